package engine

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/gabiondb/gabion/engine/limit"
)

// Do carries out ops in order, each by itself, and appends a result for each
// to dst. It waits for the disk once, after the last: a pipeline of a thousand
// operations costs one wait. Operations of other callers may come between. Charges
// and refunds in a row on one key are made at one instant, 128 of them at most.
// Those that go together (see Op.With) are carried out as one, and if there is
// an error all of them have it.
func (l *Limiter) Do(ops []Op, dst []Result) []Result {
	dst, results := grow(dst, len(ops))
	if !l.calls.enter() {
		closed(results)
		return dst
	}
	defer l.calls.exit()
	l.carryOut(ops, results)
	l.settle(results)
	return dst
}

// DoEach is Do for a caller that does ops for others: it calls done with the
// index of each operation and its result, which is where it will be returned, as
// soon as that may be told. When all are carried out, first come, in order, those
// that rest on nothing that is still on its way to the disk: a denial on a key in
// the cache, say, that nobody has just charged. Then DoEach waits, and the others
// come, in order. done is called by the caller's goroutine. It may call the
// limiter, but not Close.
func (l *Limiter) DoEach(ops []Op, dst []Result, done func(i int, r *Result)) []Result {
	dst, results := grow(dst, len(ops))
	if !l.calls.enter() {
		closed(results)
		tell(results, done, 0, 0)
		return dst
	}
	defer l.calls.exit()
	l.carryOut(ops, results)
	durable := l.rounds.durable.Load()
	tell(results, done, 0, durable)
	l.settle(results)
	tell(results, done, durable+1, math.MaxUint64)
	return dst
}

// grow appends n results that are zero to dst, and returns them, too.
func grow(dst []Result, n int) (all, added []Result) {
	all = slices.Grow(dst, n)[:len(dst)+n]
	added = all[len(dst):]
	clear(added)
	return all, added
}

// closed has all results tell that the limiter is closed.
func closed(results []Result) {
	for i := range results {
		results[i].Err = ErrClosed
	}
}

// carryOut carries out ops, but does not wait for the disk.
func (l *Limiter) carryOut(ops []Op, results []Result) {
	var held heldTurn
	defer held.release() // a panic lets go, too
	for i := 0; i < len(ops); {
		n := together(ops[i:])
		err := l.failure.get()
		if err == nil {
			if ops[i].Verb.isForSeveral() {
				held.release()
				err = l.stepTogether(ops[i:i+n], results[i:i+n])
			} else {
				err = l.step(&held, &ops[i], &results[i])
			}
			err = l.rootOf(err)
		}
		for ; n > 0; n-- {
			results[i].Err = err
			i++
		}
	}
}

// tell calls done with those of results that rest on the rounds first to last.
func tell(results []Result, done func(i int, r *Result), first, last uint64) {
	for i := range results {
		if round := results[i].round; first <= round && round <= last {
			done(i, &results[i])
		}
	}
}

// rootOf returns the failure of the store in place of err, if that may be due to it:
// what Pebble can't read may be what never reached the disk.
func (l *Limiter) rootOf(err error) error {
	if err != nil && errors.Is(err, ErrStorage) {
		return cmp.Or(l.failure.get(), err)
	}
	return err
}

// do carries out one operation.
func (l *Limiter) do(op Op) Result {
	var result [1]Result
	l.Do([]Op{op}, result[:0])
	return result[0]
}

// check returns what is wrong with the arguments of op, as far as they can be
// judged without a look at its key.
func (l *Limiter) check(op *Op) error {
	if err := checkKey(op.Key); err != nil {
		return err
	}
	switch op.Verb {
	case OpTakeQuota, OpProbeQuota:
		return l.checkQuota(op)
	case OpRefundQuota:
		return limit.CheckRequestID(op.ID)
	case OpAllow, OpIncrement, OpPeek, OpWait:
		return l.checkRolling(op.Rolling)
	case OpThrottle, OpProbe, OpQuota, OpStat, OpReset, OpRefund, OpThrottleAll, OpThrottleEach, OpProbeAll, OpProbeEach:
		return nil
	}
	return ErrInvalidVerb
}

// refused returns the error of a decision of one kind on a key that holds another,
// for which err is the arithmetic's: first what is wrong with the arguments, then
// the kind, then the rest.
func refused(err error, held, kind limit.Kind) error {
	if !held.Admits(kind) && !errors.Is(err, limit.ErrInvalid) {
		return ErrWrongKind
	}
	return err
}

// looks tells whether operations of verb v change nothing.
func (v Verb) looks() bool {
	switch v {
	case OpProbe, OpProbeQuota, OpQuota, OpPeek, OpWait, OpStat, OpProbeAll, OpProbeEach:
		return true
	}
	return false
}

// heldTurn is the turn that a pipeline holds on to for operations in a row on
// keys of one shard. Those in a row on one key, as on a hot one, have all of it in
// common: the instant, and where the key is in the cache. A cut takes the mutexes
// of all shards, so who waits for a round lets go first, as does who takes another
// shard's. The zero value holds none.
type heldTurn struct {
	turn
	ops int // how many it has been used for
}

// maxHeld is how many operations a turn is held on to for, at most: as many as
// may be carried out together.
const maxHeld = MaxTogether

// take has h hold the turn of key.
func (h *heldTurn) take(l *Limiter, key []byte) {
	if h.ops < maxHeld && bytes.Equal(key, h.key) {
		h.ops++
		return
	}
	t := l.turnOf(key)
	if h.sh != t.sh || h.ops == maxHeld {
		h.release()
		t.sh.mu.Lock()
	}
	h.turn = t
	h.now = l.clock.now()
	h.ops++
}

// release lets go of what is held.
func (h *heldTurn) release() {
	if h.sh != nil {
		h.sh.mu.Unlock()
		*h = heldTurn{}
	}
}

// step carries out op, as far as deciding and staging go.
func (l *Limiter) step(held *heldTurn, op *Op, r *Result) error {
	if err := l.check(op); err != nil {
		return err
	}
	if op.Verb.looks() {
		held.release() // a look may wait for a round
		v, err := l.viewOf(op.Key)
		if err != nil {
			return err
		}
		defer v.close()
		// An error that is drawn from the state, too, waits for what it has seen.
		r.round = v.round
		return v.look(op, r)
	}
	held.take(l, op.Key)
	err := l.change(&held.turn, op, r)
	if op.Verb != OpThrottle && op.Verb != OpRefund {
		held.release() // it may have read what lies beside the head: a cut is not to wait for many of those
	}
	return err
}

// change carries out op, which may change its key, in the turn of that.
func (l *Limiter) change(t *turn, op *Op, r *Result) error {
	err := l.load(t)
	if op.Verb == OpReset && errors.Is(err, ErrCorrupt) {
		err = nil
		l.resetUnreadable(t, r)
	} else if err == nil {
		switch op.Verb {
		case OpThrottle:
			err = l.throttle(t, op, r)
		case OpRefund:
			err = l.refund(t, op, r)
		case OpTakeQuota:
			err = l.takeQuota(t, op, r)
		case OpRefundQuota:
			err = l.refundQuota(t, op, r)
		case OpAllow, OpIncrement:
			err = l.record(t, op, r)
		case OpReset:
			l.reset(t, r)
		}
	}
	r.round = t.round
	return err
}

// beside is where a decision finds what lies beside the head of its key.
type beside interface {
	// request returns the record of the request id of key's quota, in the
	// window that closes at deadline; the zero value if there is none.
	request(deadline int64, key []byte, id string) (limit.Request, error)

	// chunk returns the chunk of key's list that holds the event of ordinal, or
	// any other if there is none.
	chunk(key []byte, ordinal int64) (*limit.Chunk, error)
}

// answer carries out op, which changes nothing, on the state of its key at now.
func answer(op *Op, r *Result, now int64, state limit.State, b beside) (err error) {
	switch op.Verb {
	case OpProbe:
		_, err = throttle(&state, now, op, &r.Decision)
	case OpProbeQuota:
		var earlier limit.Request
		if state.Kind == limit.KindQuota {
			if earlier, err = b.request(state.Quota.Deadline, op.Key, op.ID); err != nil {
				return err
			}
		}
		_, r.Grant, err = takeQuota(state, now, op, earlier)
	case OpQuota:
		r.Quota, err = usageOf(state, now)
	case OpPeek, OpWait:
		r.Admission, err = lookAtList(state, now, op, func(ordinal int64) (*limit.Chunk, error) { return b.chunk(op.Key, ordinal) })
	case OpStat:
		r.Stat = statOf(state, now)
	default:
		err = fmt.Errorf("%w: %d", ErrInvalidVerb, op.Verb)
	}
	return err
}

// settle makes good the promise of the durability for results: none of them
// is left to rest on a round that may still be lost.
func (l *Limiter) settle(results []Result) {
	var newest uint64
	for i := range results {
		newest = max(newest, results[i].round)
	}
	err := l.promise(newest)
	if err == nil {
		return
	}
	durable := l.rounds.durable.Load()
	for i := range results {
		if r := &results[i]; r.round > durable {
			*r = Result{Err: err, round: r.round}
		}
	}
}

// promise waits for as much of the way of round as the durability promises.
func (l *Limiter) promise(round uint64) error {
	switch {
	case l.opts.Durability == Always:
		return l.waitDurable(round)
	case l.rounds.full(round):
		return l.waitApplied(round)
	}
	return l.failure.get()
}
