package engine

import (
	"slices"
	"time"

	"github.com/gabiondb/gabion/engine/limit"
	"github.com/gabiondb/gabion/ttl"
)

// Do carries out ops in order, each by itself, and appends a result for each
// to dst. It waits for the disk once, after the last: a pipeline of a thousand
// operations costs one wait. Operations of other callers may come between.
func (l *Limiter) Do(ops []Op, dst []Result) []Result {
	n := len(dst)
	dst = slices.Grow(dst, len(ops))[:n+len(ops)]
	results := dst[n:]
	clear(results)
	if !l.calls.enter() {
		for i := range results {
			results[i].Err = ErrClosed
		}
		return dst
	}
	defer l.calls.exit()
	for i := range ops {
		if results[i].Err = l.failure.get(); results[i].Err == nil {
			l.step(&ops[i], &results[i])
		}
	}
	l.settle(results)
	return dst
}

// do carries out one operation.
func (l *Limiter) do(op Op) Result {
	var result [1]Result
	l.Do([]Op{op}, result[:0])
	return result[0]
}

// step carries out op, as far as deciding and staging go.
func (l *Limiter) step(op *Op, r *Result) {
	switch op.Verb {
	case OpThrottle:
		r.round, r.Err = l.throttle(op, &r.Decision)
	case OpProbe:
		r.round, r.Err = l.probe(op, &r.Decision)
	case OpStat:
		r.round, r.Err = l.stat(op, &r.Stat)
	case OpReset:
		r.round, r.Err = l.reset(op, &r.Stat)
	default:
		r.Err = ErrInvalidVerb
	}
}

// settle makes good the promise of the durability for results: none of them
// is left to rest on a round that may still be lost.
func (l *Limiter) settle(results []Result) {
	var newest uint64
	for i := range results {
		newest = max(newest, results[i].round)
	}
	var err error
	switch {
	case l.opts.Durability == Always:
		err = l.waitDurable(newest)
	case l.rounds.full(newest):
		err = l.waitApplied(newest)
	default:
		err = l.failure.get()
	}
	if err == nil {
		return
	}
	durable := l.rounds.durable.Load()
	for i := range results {
		if r := &results[i]; r.Err == nil && r.round > durable {
			*r = Result{Err: err}
		}
	}
}

func (l *Limiter) throttle(op *Op, d *limit.Decision) (round uint64, err error) {
	t, err := l.begin(op.Key)
	if err != nil {
		return 0, err
	}
	defer t.end()
	next, err := throttle(t.state, t.now, op, d)
	if err != nil {
		return 0, err
	}
	if d.Allowed && op.N > 0 {
		l.put(&t, next)
	}
	return t.round, nil
}

// throttle decides op on state at now, without a look at anything else, and
// returns the state that a charge leaves.
func throttle(state limit.State, now int64, op *Op, d *limit.Decision) (limit.State, error) {
	next, decision, err := state.GCRA.Take(now, op.Rate, op.N)
	switch {
	case err != nil:
		return state, err
	case state.Kind != limit.None && state.Kind != limit.GCRA:
		return state, ErrWrongKind
	}
	*d = decision
	return limit.State{Kind: limit.GCRA, GCRA: next}, nil
}

func (l *Limiter) reset(op *Op, s *Stat) (round uint64, err error) {
	t, err := l.begin(op.Key)
	if err != nil {
		return 0, err
	}
	defer t.end()
	*s = statOf(t.state, t.now)
	if s.Exists() {
		l.put(&t, limit.State{})
	}
	return t.round, nil
}

func (l *Limiter) probe(op *Op, d *limit.Decision) (round uint64, err error) {
	v, err := l.viewOf(op.Key)
	if err != nil {
		return 0, err
	}
	defer v.close()
	return v.round, v.probe(op, d)
}

func (l *Limiter) stat(op *Op, s *Stat) (round uint64, err error) {
	v, err := l.viewOf(op.Key)
	if err != nil {
		return 0, err
	}
	defer v.close()
	*s, err = v.Stat(op.Key)
	return v.round, err
}

// statOf describes state, which is live at now or absent.
func statOf(state limit.State, now int64) Stat {
	if state.Kind == limit.None {
		return Stat{}
	}
	deadline := state.Deadline()
	return Stat{Kind: state.Kind, Deadline: time.Unix(0, deadline), TTL: ttl.Left(deadline, now)}
}

// Throttle decides whether n events (0..2^63-1) may pass under r, and charges
// them to key if so. An n of 0 looks only. A denial is not an error: it has
// changed nothing.
//
// Under the durability Always it returns when a charge is on disk. An error
// that wraps ErrStorage leaves open whether it is; any other means that
// nothing was charged. Errors: ErrInvalidKey, ErrWrongKind, ErrClosed,
// ErrStorage, ErrCorrupt, limit.ErrInvalid, limit.ErrOutOfRange.
func (l *Limiter) Throttle(key []byte, r limit.Rate, n int64) (limit.Decision, error) {
	result := l.do(Op{Verb: OpThrottle, Key: key, Rate: r, N: n})
	return result.Decision, result.Err
}

// Probe answers what Throttle would answer at this instant, and changes
// nothing: no state, no deadline, no byte of the store. It sees every call on
// key that has returned.
func (l *Limiter) Probe(key []byte, r limit.Rate, n int64) (limit.Decision, error) {
	result := l.do(Op{Verb: OpProbe, Key: key, Rate: r, N: n})
	return result.Decision, result.Err
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
		sh.cache.clear()
	}
	r := rs.open
	r.sync = r.sync || l.opts.Durability == Always
	r.batch = l.db.NewBatch()
	_ = r.batch.DeleteRange(l.keys.AppendSliceStart(nil, 0), l.keys.AppendSliceStart(nil, ScanEnd), nil)
	rs.openNext(r.seq + 1)
	l.apply(r, now)
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
	<-r.done
	return r.err
}
