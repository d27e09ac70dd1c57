package engine

import (
	"math"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/gabiondb/gabion/engine/limit"
	"github.com/gabiondb/gabion/ttl"
)

// kindUnreadable is the kind of a key whose record can't be read.
const kindUnreadable limit.Kind = 255

// statOf describes state, which is live at now or absent.
func statOf(state limit.State, now int64) Stat {
	if state.Kind == limit.KindNone {
		return Stat{}
	}
	deadline := state.Deadline()
	return Stat{Kind: state.Kind, Deadline: time.Unix(0, deadline), TTL: ttl.Left(deadline, now)}
}

// Stat tells what key holds and until when. It changes nothing.
func (l *Limiter) Stat(key []byte) (Stat, error) {
	result := l.do(Op{Verb: OpStat, Key: key})
	return result.Stat, result.Err
}

// TTL returns how long until key expires: 0 if it is absent.
func (l *Limiter) TTL(key []byte) (time.Duration, error) {
	result := l.do(Op{Verb: OpStat, Key: key})
	return result.Stat.TTL, result.Err
}

// Reset forgets key, and tells whether it was there.
func (l *Limiter) Reset(key []byte) (bool, error) {
	result := l.do(Op{Verb: OpReset, Key: key})
	return result.Stat.Exists(), result.Err
}

func (l *Limiter) reset(t *turn, r *Result) {
	if r.Stat = statOf(t.state, t.now); r.Stat.Exists() {
		l.put(t, limit.State{})
	}
}

// resetUnreadable forgets a key whose record can't be read, with all chunks
// that it may have. It leaves request records, which can't be found without
// their window's end; they are no part of any window that opens later.
func (l *Limiter) resetUnreadable(t *turn, r *Result) {
	l.dropSpan(&t.sh.beside,
		l.keys.AppendChunkKey(nil, t.slice, t.key, 0),
		l.keys.AppendChunkKey(nil, t.slice, t.key, math.MaxInt64), nil)
	l.put(t, limit.State{})
	t.entry.stored = unread
	r.Stat = Stat{Kind: kindUnreadable}
}

// ResetAll forgets every key.
func (l *Limiter) ResetAll() error {
	if !l.calls.enter() {
		return ErrClosed
	}
	defer l.calls.exit()
	if err := l.failure.get(); err != nil {
		return err
	}
	r := l.resetAll()
	if l.opts.Durability == Always {
		return l.waitDurable(r.seq)
	}
	return l.failure.get()
}

// resetAll puts the end of all heads into a round and applies it. It keeps
// every turn until then, so that nobody reads what is on its way out.
func (l *Limiter) resetAll() *round {
	rs := &l.rounds
	rs.inFlight <- struct{}{}
	rs.commitMu.Lock()
	defer rs.commitMu.Unlock()
	l.lockAll()
	defer l.unlockAll()

	now := l.clock.now()
	for i := range l.shards {
		sh := &l.shards[i]
		clear(sh.staged)
		sh.staged = sh.staged[:0]
		for _, batch := range []*pebble.Batch{sh.purged, sh.beside} {
			if batch != nil {
				batch.Reset()
			}
		}
		sh.overlay = nil
		sh.cache.clear()
		sh.mark = now
		for j := range sh.sidecars {
			sh.sidecars[j].clear(now)
		}
	}
	r := rs.open
	r.sync, r.token = r.sync || l.opts.Durability == Always, true
	r.batch = l.db.NewBatch()
	for _, span := range l.keys.StateSpans() {
		_ = r.batch.DeleteRange(span[0], span[1], nil)
	}
	rs.openNext(r.seq + 1)
	l.apply(r, now)
	signal(rs.wake) // under Interval it is still to be synced
	return r
}

// Sync returns when everything that was answered before it is on disk.
func (l *Limiter) Sync() error {
	if !l.calls.enter() {
		return ErrClosed
	}
	defer l.calls.exit()
	if err := l.failure.get(); err != nil {
		return err
	}
	sh := &l.shards[0]
	sh.mu.Lock()
	r := l.rounds.open
	r.sync = true
	sh.mu.Unlock()
	signal(l.rounds.kick)
	r.done.Wait()
	return r.err
}
