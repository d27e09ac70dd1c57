package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine/limit"
	"github.com/gabiondb/gabion/ttl"
)

// TakeQuota spends cost (1..q.Limit) of key's quota on the request id, if that
// much is left in the window, which the first accepted request opens. It does
// so once: with an id that has been accepted in this window, at the same cost,
// it answers what it answered then, and spends nothing. So a caller that does
// not know what came of a request sends it again.
//
// q.Limit is at most Options.QuotaMaxLimit, and q.Window Options.QuotaMaxWindow: by
// default 10,000 and 24 hours.
//
// An id is 1 to 64 of A-Z a-z 0-9 _ and -, and belongs to its key. Durability
// and errors are as with Throttle, and limit.ErrConflict for an id that was
// accepted at another cost, limit.ErrPolicyChanged for another limit or window
// while one is open.
func (l *Limiter) TakeQuota(key []byte, id string, q limit.Quota, cost int64) (limit.Grant, error) {
	result := l.do(Op{Verb: OpTakeQuota, Key: key, ID: id, Quota: q, N: cost})
	return result.Grant, result.Err
}

// ProbeQuota answers what TakeQuota would answer at this instant, and changes
// nothing.
func (l *Limiter) ProbeQuota(key []byte, id string, q limit.Quota, cost int64) (limit.Grant, error) {
	result := l.do(Op{Verb: OpProbeQuota, Key: key, ID: id, Quota: q, N: cost})
	return result.Grant, result.Err
}

// QuotaUsage tells what has been spent in a quota's open window.
type QuotaUsage struct {
	limit.Quota               // the policy in force; zero if no window is open
	Used        int64         // what has been spent
	ResetAfter  time.Duration // how long until the window closes
}

// Quota tells what has been spent of key's quota; the zero value if its window
// is not open.
func (l *Limiter) Quota(key []byte) (QuotaUsage, error) {
	result := l.do(Op{Verb: OpQuota, Key: key})
	return result.Quota, result.Err
}

// RefundQuota gives back what the request id has taken of key's quota in its open
// window. It does so once: a second call answers the same and gives nothing. The
// id stays taken until the window closes: TakeQuota answers limit.ErrRefunded. A
// request that was not accepted in this window is answered with a Refund that is
// not Refunded, and nothing is written. Durability and errors are as with
// Throttle.
func (l *Limiter) RefundQuota(key []byte, id string) (limit.Refund, error) {
	result := l.do(Op{Verb: OpRefundQuota, Key: key, ID: id})
	return result.Refund, result.Err
}

func (l *Limiter) takeQuota(t *turn, op *Op, r *Result) error {
	earlier, err := l.request(t, op.ID)
	if err != nil {
		return err
	}
	next, grant, err := takeQuota(t.state, t.now, op, earlier)
	if err != nil {
		return err
	}
	if grant.Accepted && !grant.Replay {
		l.put(t, next)
		l.putRequest(t, op.ID, limit.Request{Cost: op.N, Used: grant.Used})
	}
	r.Grant = grant
	return nil
}

func (l *Limiter) refundQuota(t *turn, op *Op, r *Result) error {
	if !t.state.Kind.Admits(limit.KindQuota) {
		return ErrWrongKind
	}
	earlier, err := l.request(t, op.ID)
	if err != nil {
		return err
	}
	next, refund := t.state.Quota.Refund(t.now, earlier)
	if refund.Refunded && !refund.Replay {
		l.put(t, limit.State{Kind: limit.KindQuota, Quota: next})
		l.putRequest(t, op.ID, limit.Request{Cost: refund.Cost, Used: refund.Used, Refunded: true})
	}
	r.Refund = refund
	return nil
}

// checkQuota checks the arguments of op against what is possible at all, and
// against the caps of the options.
func (l *Limiter) checkQuota(op *Op) error {
	q, maxLimit, maxWindow := op.Quota, l.opts.QuotaMaxLimit, l.opts.QuotaMaxWindow
	switch {
	case q.Limit < 1 || q.Limit > maxLimit:
		return &limit.RangeError{Name: "limit", Value: q.Limit, Min: 1, Max: maxLimit}
	case q.Window < 1 || q.Window > maxWindow:
		return &limit.RangeError{Name: "window", Value: int64(q.Window), Min: 1, Max: int64(maxWindow), Unit: "ns"}
	}
	return limit.CheckRequestID(op.ID)
}

// takeQuota decides op on state at now, without a look at anything else, and
// returns the state that an accepted request leaves.
func takeQuota(state limit.State, now int64, op *Op, earlier limit.Request) (limit.State, limit.Grant, error) {
	next, grant, err := state.Quota.Take(now, op.Quota, op.N, earlier)
	if err := refused(err, state.Kind, limit.KindQuota); err != nil {
		return state, limit.Grant{}, err
	}
	return limit.State{Kind: limit.KindQuota, Quota: next}, grant, nil
}

// request returns the record of the request id in the window that t found open.
func (l *Limiter) request(t *turn, id string) (limit.Request, error) {
	if t.state.Kind != limit.KindQuota {
		return limit.Request{}, nil
	}
	sh := t.sh
	sh.key = l.keys.AppendRequestKey(sh.key[:0], t.state.Quota.Deadline, t.key, id)
	if r, known := sh.overlay.request(sh.key[:len(sh.key)-len(id)], id); known {
		return r, nil
	}
	value, closer, err := l.lookup(sh.key)
	if errors.Is(err, pebble.ErrNotFound) {
		return limit.Request{}, nil
	}
	if err != nil {
		return limit.Request{}, storageError(err)
	}
	defer closer.Close()
	return decodeRequest(sh.key, value)
}

func decodeRequest(key, value []byte) (limit.Request, error) {
	r, err := codec.DecodeRequest(value)
	if err != nil {
		return limit.Request{}, fmt.Errorf("%w: %q: %w", ErrCorrupt, key, err)
	}
	return r, nil
}

// putRequest stages the record of the request id beside the head of t, which
// has just been put.
func (l *Limiter) putRequest(t *turn, id string, r limit.Request) {
	sh := t.sh
	sh.key = l.keys.AppendRequestKey(sh.key[:0], t.entry.state().Deadline(), t.key, id)
	sh.value = codec.AppendRequest(sh.value[:0], r)
	_ = l.staging(&sh.beside).Set(sh.key, sh.value, nil)
	l.layerOf(sh).addRequest(sh.key[:len(sh.key)-len(id)], id, r)
}

// dropRequests stages the end of the request records of the window that closes
// at deadline.
func (l *Limiter) dropRequests(t *turn, deadline int64) {
	lower, upper := l.keys.RequestBounds(deadline, t.key)
	l.dropSpan(&t.sh.beside, lower, upper, t.sh.overlay.requestKeys(nil, lower))
	l.layerOf(t.sh).clearRequests(lower)
}

// ProbeQuota answers what TakeQuota would have answered at the instant of the
// view.
func (v *View) ProbeQuota(key []byte, id string, q limit.Quota, cost int64) (limit.Grant, error) {
	result := v.do(Op{Verb: OpProbeQuota, Key: key, ID: id, Quota: q, N: cost})
	return result.Grant, result.Err
}

// Quota tells what had been spent of key's quota at the instant of the view.
func (v *View) Quota(key []byte) (QuotaUsage, error) {
	result := v.do(Op{Verb: OpQuota, Key: key})
	return result.Quota, result.Err
}

// request is the view's look beside a quota's head.
func (v *View) request(deadline int64, key []byte, id string) (limit.Request, error) {
	v.head = v.l.keys.AppendRequestKey(v.head[:0], deadline, key, id)
	value, err := v.get(v.head)
	if value == nil {
		return limit.Request{}, err
	}
	return decodeRequest(v.head, value)
}

// usageOf tells what has been spent of the quota that state is at now.
func usageOf(state limit.State, now int64) (QuotaUsage, error) {
	if !state.Kind.Admits(limit.KindQuota) {
		return QuotaUsage{}, ErrWrongKind
	}
	q := state.Quota
	return QuotaUsage{
		Quota:      limit.Quota{Limit: q.Limit, Window: q.Window},
		Used:       q.Used,
		ResetAfter: ttl.Left(q.Deadline, now),
	}, nil
}
