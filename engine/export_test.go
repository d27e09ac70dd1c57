package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine/limit"
)

// UseSmallMemtables has stores begin new logs and tables all the time.
func (o *Options) UseSmallMemtables() { o.memTableSize = 64 << 10 }

// OnLook has the purge call fn between each look and the turn that follows.
func (l *Limiter) OnLook(fn func()) {
	_ = l.purger.mu.lock(context.Background())
	defer l.purger.mu.unlock()
	l.purger.looked = fn
}

// Pass has the purge of l go once over what the sidecars call for.
func Pass(l *Limiter) error { return l.pass() }

// DB returns the store under l.
func (l *Limiter) DB() *pebble.DB { return l.db }

// RangeTombstones returns how many range tombstones are staged.
func (l *Limiter) RangeTombstones() (n int) {
	for i := range l.shards {
		sh := &l.shards[i]
		sh.mu.Lock()
		defer sh.mu.Unlock()
		if sh.beside == nil {
			continue
		}
		for r := sh.beside.Reader(); ; {
			kind, _, _, ok, err := r.Next()
			if err != nil {
				panic(err)
			}
			if !ok {
				break
			}
			if kind == pebble.InternalKeyKindRangeDelete {
				n++
			}
		}
	}
	return n
}

// Check looks at the whole store, as the function Check does, and at the caches:
// what is cached is what is stored. Nobody may use l meanwhile.
func (l *Limiter) Check() error {
	_ = l.purger.mu.lock(context.Background()) // what it stages is still to come
	defer l.purger.mu.unlock()
	if err := l.Sync(); err != nil {
		return err
	}
	if err := l.db.CheckLevels(nil); err != nil {
		return err
	}
	snapshot := l.db.NewSnapshot()
	defer snapshot.Close()
	c := checker{db: snapshot, keys: l.keys}
	now := l.clock.now()
	c.check(now)
	if c.mark.Now > now {
		return fmt.Errorf("the mark %d lies in the future", c.mark.Now)
	}
	for _, d := range c.report.Damage {
		return fmt.Errorf("%d damages, the first: %q: %s", c.report.Damaged, d.Key, d.What)
	}
	return errors.Join(l.checkCaches(), l.checkSidecars())
}

// checkCaches tells whether the caches hold what the store does, and count the
// memory that they take.
func (l *Limiter) checkCaches() error {
	for i := range l.shards {
		sh := &l.shards[i]
		sh.mu.Lock()
		defer sh.mu.Unlock()
		var bytes int64
		for place, e := range sh.cache.ring {
			if sh.cache.entries[e.key] != e {
				return fmt.Errorf("place %d of the ring holds %q, which is not to be found", place, e.key)
			}
			if e.bytes != e.size() {
				return fmt.Errorf("%q counts for %d bytes, want %d", e.key, e.bytes, e.size())
			}
			bytes += e.bytes
			stored, err := l.get(l.keys.AppendHead(nil, e.slice, []byte(e.key)))
			if err != nil {
				return err
			}
			if got, want := recordOf(e.state()), recordOf(stored); got != want {
				return fmt.Errorf("%q is cached as %x and stored as %x", e.key, got, want)
			}
		}
		if len(sh.cache.entries) != len(sh.cache.ring) || sh.cache.bytes != bytes {
			return fmt.Errorf("%d entries of %d bytes, and %d in the ring of %d bytes",
				len(sh.cache.entries), sh.cache.bytes, len(sh.cache.ring), bytes)
		}
	}
	return nil
}

// recordOf returns the record of a state, none for an absent key.
func recordOf(s limit.State) string {
	if s.Kind == limit.KindNone {
		return ""
	}
	return string(codec.AppendState(nil, s))
}

// Visible tells what Pebble shows of key, be it on disk or not.
func (l *Limiter) Visible(key []byte) (Stat, error) {
	state, err := l.get(l.keys.AppendHead(nil, l.keys.Slice(key), key))
	return statOf(state, 0), err
}

// TurnsFree tells whether nobody holds a turn.
func (l *Limiter) TurnsFree() bool {
	for i := range l.shards {
		if !l.shards[i].mu.TryLock() {
			return false
		}
		l.shards[i].mu.Unlock()
	}
	return true
}

// Keys returns how the keys of the store under l are laid out.
func (l *Limiter) Keys() codec.Keyspace { return l.keys }

// On returns opts for a limiter that is about to be opened on another system,
// which tells its wall clock, its monotonic one and how long it has been
// suspended, in nanoseconds.
func (o Options) On(wall, monotonic, suspended func() int64) Options {
	start := monotonic()
	o.system = &system{
		now:       func() time.Time { return time.Unix(0, wall()) },
		since:     func(time.Time) time.Duration { return time.Duration(monotonic() - start) },
		suspended: suspended,
	}
	return o
}

// Followers returns how many limiters e tells.
func (e *Events) Followers() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.followers)
}
