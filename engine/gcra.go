package engine

import (
	"github.com/gabiondb/gabion/engine/limit"
)

// Throttle decides whether n events (0..2^63-1) may pass under r, and charges
// them to key if so. An n of 0 looks only. A denial is not an error: it has
// changed nothing.
//
// A key is one balance, whatever rates it is asked under. The rate may change from
// call to call, as a policy does; two limits of one user need two keys.
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

// Refund gives n events (0..2^63-1) that were charged under r back to key, or as
// many as it owes: more than it owes make no credit. The decision tells how key
// stands then, as a Probe of no events does. Durability and errors are as with
// Throttle. To refund twice gives back twice, so do not repeat one whose outcome
// is unknown.
func (l *Limiter) Refund(key []byte, r limit.Rate, n int64) (limit.Decision, error) {
	result := l.do(Op{Verb: OpRefund, Key: key, Rate: r, N: n})
	return result.Decision, result.Err
}

func (l *Limiter) throttle(t *turn, op *Op, r *Result) error {
	next, err := throttle(&t.state, t.now, op, &r.Decision)
	if err == nil && r.Decision.Allowed && op.N > 0 {
		l.put(t, limit.State{Kind: limit.KindGCRA, GCRA: next})
	}
	return err
}

// throttle decides op on state at now, without a look at anything else, and
// returns the state that a charge leaves.
func throttle(state *limit.State, now int64, op *Op, d *limit.Decision) (limit.GCRAState, error) {
	next, decision, err := state.GCRA.Take(now, op.Rate, op.N)
	if err := refused(err, state.Kind, limit.KindGCRA); err != nil {
		return state.GCRA, err
	}
	*d = decision
	return next, nil
}

func (l *Limiter) refund(t *turn, op *Op, r *Result) error {
	next, decision, err := t.state.GCRA.Refund(t.now, op.Rate, op.N)
	if err := refused(err, t.state.Kind, limit.KindGCRA); err != nil {
		return err
	}
	r.Decision = decision
	if next != t.state.GCRA {
		l.put(t, gcraState(next))
	}
	return nil
}

// gcraState returns the state of a key that holds s; a full one is absent.
func gcraState(s limit.GCRAState) limit.State {
	if s == (limit.GCRAState{}) {
		return limit.State{}
	}
	return limit.State{Kind: limit.KindGCRA, GCRA: s}
}

// Probe answers what Throttle would have answered at the instant of the view.
func (v *View) Probe(key []byte, r limit.Rate, n int64) (limit.Decision, error) {
	result := v.do(Op{Verb: OpProbe, Key: key, Rate: r, N: n})
	return result.Decision, result.Err
}
