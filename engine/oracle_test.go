package engine_test

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// modelKey is what a limiter must know of a key: the pure decision on a GCRA
// state, a quota that keeps every request, or a list that keeps every stamp.
// Nil is a key that was never used. It keeps what has expired, which must make
// no difference. It is never changed: what is done to it makes another.
type modelKey struct {
	kind     limit.Kind
	deadline int64

	gcra limit.GCRAState

	quota    limit.Quota
	requests []modelRequest

	stamps []int64
}

// modelRequest is a request that was accepted, or that it was refunded.
type modelRequest struct {
	id     string
	cost   int64
	refund bool
}

// do returns what op makes of k at now, which is k itself if it changes
// nothing, and what a limiter must answer.
func (k *modelKey) do(now int64, op engine.Op) (next *modelKey, want engine.Result) {
	held := k
	if held == nil || held.deadline <= now {
		held = &modelKey{}
	}
	next = k
	change := func(to *modelKey) { next = to }
	switch op.Verb {
	case engine.OpThrottle, engine.OpProbe:
		want.Decision, want.Err = held.throttle(now, op, change)
	case engine.OpRefund:
		want.Decision, want.Err = held.refund(now, op, change)
	case engine.OpTakeQuota, engine.OpProbeQuota:
		want.Grant, want.Err = held.takeQuota(now, op, change)
	case engine.OpRefundQuota:
		want.Refund, want.Err = held.refundQuota(now, op, change)
	case engine.OpQuota:
		switch held.kind {
		case limit.KindNone:
		case limit.KindQuota:
			want.Quota = engine.QuotaUsage{Quota: held.quota, Used: held.spent(), ResetAfter: time.Duration(held.deadline - now)}
		default:
			want.Err = engine.ErrWrongKind
		}
	case engine.OpAllow, engine.OpIncrement, engine.OpPeek, engine.OpWait:
		want = held.roll(now, op, change)
	case engine.OpStat:
		want.Stat = held.stat(now)
	case engine.OpReset:
		if want.Stat = held.stat(now); want.Stat.Exists() {
			change(nil)
		}
	}
	return next, want
}

func (k *modelKey) throttle(now int64, op engine.Op, change func(*modelKey)) (limit.Decision, error) {
	next, d, err := k.gcra.Take(now, op.Rate, op.N)
	switch {
	case errors.Is(err, limit.ErrInvalid):
		return d, err
	case k.kind != limit.KindNone && k.kind != limit.KindGCRA:
		return limit.Decision{}, engine.ErrWrongKind
	case err != nil:
		return d, err
	}
	if op.Verb == engine.OpThrottle && d.Allowed && op.N > 0 {
		change(&modelKey{kind: limit.KindGCRA, deadline: next.Deadline, gcra: next})
	}
	return d, nil
}

func (k *modelKey) refund(now int64, op engine.Op, change func(*modelKey)) (limit.Decision, error) {
	next, d, err := k.gcra.Refund(now, op.Rate, op.N)
	switch {
	case err != nil:
		return d, err
	case k.kind != limit.KindNone && k.kind != limit.KindGCRA:
		return limit.Decision{}, engine.ErrWrongKind
	case next == k.gcra:
	case next == limit.GCRAState{}:
		change(nil)
	default:
		change(&modelKey{kind: limit.KindGCRA, deadline: next.Deadline, gcra: next})
	}
	return d, nil
}

// together returns what ops, which are carried out together at now, make of keys,
// and what a limiter must answer. It leaves keys as they are.
func together(now int64, keys map[string]*modelKey, ops []engine.Op) (next map[string]*modelKey, want []engine.Result) {
	want = make([]engine.Result, len(ops))
	fail := func(err error) (map[string]*modelKey, []engine.Result) {
		for i := range want {
			want[i] = engine.Result{Err: err}
		}
		return keys, want
	}
	for _, op := range ops {
		if op.N < 0 || op.Rate.Validate() != nil {
			return fail(limit.ErrInvalid)
		}
	}
	for _, op := range ops {
		if kind := keys[string(op.Key)].stat(now).Kind; kind != limit.KindNone && kind != limit.KindGCRA {
			return fail(engine.ErrWrongKind)
		}
	}
	verb := ops[0].Verb
	all := verb == engine.OpThrottleAll || verb == engine.OpProbeAll
	if all {
		denied, err := deniedTogether(now, keys, ops, want)
		switch {
		case denied:
			return keys, want
		case err != nil:
			return fail(err)
		}
	}
	// What may pass as a whole passes one by one.
	next = maps.Clone(keys)
	for i, op := range ops {
		op.Verb = engine.OpThrottle
		before := next[string(op.Key)]
		var after *modelKey
		if after, want[i] = before.do(now, op); want[i].Err != nil {
			return fail(want[i].Err)
		}
		if after != before {
			next[string(op.Key)] = after
		}
	}
	if looks(verb) {
		next = keys
	}
	return next, want
}

// deniedTogether tells whether some of ops, of which all are to pass or none,
// can't, and what is answered then. The error is that of one that may pass and
// can't be charged.
func deniedTogether(now int64, keys map[string]*modelKey, ops []engine.Op, want []engine.Result) (denied bool, err error) {
	// A key that is charged whether it may pass or not is one under a limit of 2^63-1
	// events. At a nanosecond each or more they take longer than there is time.
	charge := func(s limit.GCRAState, op engine.Op) (limit.GCRAState, error) {
		op.Rate.Burst = math.MaxInt64 - 1
		s, d, err := s.Take(now, op.Rate, op.N)
		if err == nil && op.N > 0 && !d.Allowed {
			err = limit.ErrOutOfRange
		}
		return s, err
	}
	for i, op := range ops {
		var held, fresh limit.GCRAState // as the rows before have left them
		if key := keys[string(op.Key)]; key.stat(now).Exists() {
			held = key.gcra
		}
		_, look, _ := held.Take(now, op.Rate, 0)
		over := false
		for _, before := range ops[:i] {
			if string(before.Key) != string(op.Key) || over {
				continue
			}
			var failed error
			held, failed = charge(held, before)
			fresh, _ = charge(fresh, before)
			over = failed != nil
		}
		_, d, failed := held.Take(now, op.Rate, op.N)
		switch _, alone, alonefailed := fresh.Take(now, op.Rate, op.N); {
		case over:
			d = limit.Decision{RetryAfter: limit.Never}
		case failed != nil:
			d, err = limit.Decision{Allowed: true}, failed
		case !d.Allowed && alonefailed == nil && !alone.Allowed:
			d.RetryAfter = limit.Never
		}
		d.Limit, d.Remaining, d.ResetAfter = look.Limit, look.Remaining, look.ResetAfter
		want[i] = engine.Result{Decision: d}
		denied = denied || !d.Allowed
	}
	return denied, err
}

// spent returns what has been spent of a quota.
func (k *modelKey) spent() int64 {
	used, _, _ := k.find("")
	return used
}

// find returns what has been spent of a quota, and what had been by the last of
// what it knows of id, which it returns as well; the zero value if it knows none.
func (k *modelKey) find(id string) (used, then int64, last modelRequest) {
	for _, r := range k.requests {
		if r.refund {
			used -= r.cost
		} else {
			used += r.cost
		}
		if r.id == id {
			then, last = used, r
		}
	}
	return used, then, last
}

// with returns k with a request more.
func (k *modelKey) with(r modelRequest) *modelKey {
	next := *k
	next.requests = append(slices.Clip(k.requests), r)
	return &next
}

func modelID(id string) bool { return id != "" && len(id) <= 64 && !strings.Contains(id, " ") }

func (k *modelKey) takeQuota(now int64, op engine.Op, change func(*modelKey)) (limit.Grant, error) {
	q := op.Quota
	if !modelID(op.ID) || q.Limit < 1 || q.Limit > 10_000 || q.Window < 1 || q.Window > 24*time.Hour || op.N < 1 || op.N > q.Limit {
		return limit.Grant{}, limit.ErrInvalid
	}
	switch {
	case k.kind == limit.KindNone:
		k = &modelKey{kind: limit.KindQuota, deadline: now + int64(q.Window), quota: q}
	case k.kind != limit.KindQuota:
		return limit.Grant{}, engine.ErrWrongKind
	case k.quota != q:
		return limit.Grant{}, limit.ErrPolicyChanged
	}
	g := limit.Grant{Limit: q.Limit, ResetAfter: time.Duration(k.deadline - now)}
	used, then, last := k.find(op.ID)
	switch {
	case last.refund:
		return limit.Grant{}, limit.ErrRefunded
	case last.cost == op.N:
		g.Accepted, g.Replay, g.Used = true, true, then
	case last.cost != 0:
		return limit.Grant{}, limit.ErrConflict
	case used+op.N > q.Limit:
		g.Used = used
	default:
		g.Accepted, g.Used = true, used+op.N
		if op.Verb == engine.OpTakeQuota {
			change(k.with(modelRequest{id: op.ID, cost: op.N}))
		}
	}
	return g, nil
}

func (k *modelKey) refundQuota(now int64, op engine.Op, change func(*modelKey)) (limit.Refund, error) {
	switch {
	case !modelID(op.ID):
		return limit.Refund{}, limit.ErrInvalid
	case k.kind == limit.KindNone:
		return limit.Refund{}, nil
	case k.kind != limit.KindQuota:
		return limit.Refund{}, engine.ErrWrongKind
	}
	used, then, last := k.find(op.ID)
	r := limit.Refund{Cost: last.cost, Limit: k.quota.Limit, ResetAfter: time.Duration(k.deadline - now)}
	switch {
	case last.cost == 0:
		r.Used = used
	case last.refund:
		r.Refunded, r.Replay, r.Used = true, true, then
	default:
		r.Refunded, r.Used = true, used-last.cost
		change(k.with(modelRequest{id: op.ID, cost: last.cost, refund: true}))
	}
	return r, nil
}

func (k *modelKey) roll(now int64, op engine.Op, change func(*modelKey)) (want engine.Result) {
	w, n := op.Rolling, int64(0)
	switch op.Verb {
	case engine.OpAllow:
		n = 1
	case engine.OpIncrement:
		n = op.N
	}
	switch {
	case w.Limit > limit.MaxLimit || w.Window < 1 || w.Window > 24*time.Hour || n < 0 || n > limit.MaxLimit:
		return engine.Result{Err: limit.ErrInvalid}
	case k.kind != limit.KindNone && k.kind != limit.KindRolling:
		return engine.Result{Err: engine.ErrWrongKind}
	}
	places := max(w.Limit, 0)
	if w.Pause && places > 0 {
		places++
	}
	var live []int64
	for _, stamp := range k.stamps {
		if now-stamp < int64(w.Window) {
			live = append(live, stamp)
		}
	}
	before, deadline := int64(len(live)), k.deadline
	if recorded := min(n, places-before); recorded > 0 {
		for range recorded {
			live = append(live, now)
		}
		deadline = now + int64(w.Window)
		change(&modelKey{kind: limit.KindRolling, deadline: deadline, stamps: live})
	}
	switch op.Verb {
	case engine.OpAllow:
		want.Admission = limit.Admission{Allowed: before < w.Limit, Count: int64(len(live)), Limit: w.Limit}
		want.Admission.Wait = waitFor(live, deadline, now, w)
	case engine.OpIncrement:
		want.Total = min(before+n, places+1)
	case engine.OpPeek:
		want.Admission.Count = before
	case engine.OpWait:
		want.Admission.Wait = waitFor(live, deadline, now, w)
	}
	return want
}

// waitFor returns how long it is until a list has room, of whose events live
// are left under w.
func waitFor(live []int64, deadline, now int64, w limit.Rolling) time.Duration {
	n := int64(len(live)) - w.Limit
	switch {
	case w.Limit <= 0:
		return limit.Never
	case n < 0:
		return 0
	}
	return time.Duration(min(live[n]+int64(w.Window), deadline) - now)
}

func (k *modelKey) stat(now int64) engine.Stat {
	if k == nil || k.deadline <= now {
		return engine.Stat{}
	}
	return engine.Stat{Kind: k.kind, Deadline: time.Unix(0, k.deadline), TTL: time.Duration(k.deadline - now)}
}

// long tells whether k is a list of more stamps than fit in one record.
func (k *modelKey) long() bool {
	return k != nil && len(slices.Compact(slices.Clone(k.stamps))) > limit.MaxRuns
}

// equal tells whether k and o hold the same.
func (k *modelKey) equal(o *modelKey) bool {
	if k == o || k == nil || o == nil {
		return k == o
	}
	return k.kind == o.kind && k.deadline == o.deadline && k.gcra == o.gcra && k.quota == o.quota &&
		slices.Equal(k.requests, o.requests) && slices.Equal(k.stamps, o.stamps)
}
