package engine

import (
	"cmp"
	"errors"
	"slices"
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
			if err := results[i].Err; err != nil && errors.Is(err, ErrStorage) {
				// What Pebble can't read may be what never reached the disk.
				results[i].Err = cmp.Or(l.failure.get(), err)
			}
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
	if r.Err = checkKey(op.Key); r.Err != nil {
		return
	}
	switch op.Verb {
	case OpThrottle:
		r.Err = l.throttle(op, r)
	case OpTakeQuota:
		r.Err = l.takeQuota(op, r)
	case OpAllow, OpIncrement:
		r.Err = l.record(op, r)
	case OpReset:
		r.Err = l.reset(op, r)
	case OpProbe, OpProbeQuota, OpQuota, OpPeek, OpWait, OpStat:
		r.Err = l.look(op, r)
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
		if r := &results[i]; r.round > durable {
			*r = Result{Err: err}
		}
	}
}

// look carries out an operation that changes nothing, on a view of its own.
func (l *Limiter) look(op *Op, r *Result) error {
	v, err := l.viewOf(op.Key)
	if err != nil {
		return err
	}
	defer v.close()
	// An error that is drawn from the state, too, waits for what it has seen.
	r.round = v.round
	switch op.Verb {
	case OpProbe:
		r.Decision, err = v.Probe(op.Key, op.Rate, op.N)
	case OpProbeQuota:
		r.Grant, err = v.ProbeQuota(op.Key, op.ID, op.Quota, op.N)
	case OpQuota:
		r.Quota, err = v.Quota(op.Key)
	case OpPeek:
		r.Admission.Count, err = v.Peek(op.Key, op.Rolling)
	case OpWait:
		r.Admission.Wait, err = v.Wait(op.Key, op.Rolling)
	case OpStat:
		r.Stat, err = v.Stat(op.Key)
	}
	return err
}
