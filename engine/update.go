package engine

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/gabiondb/gabion/engine/limit"
)

var (
	// ErrReservedKey is returned by Update if the batch of the application has
	// a key that is a limiter's. Nothing was written.
	ErrReservedKey = errors.New("engine: key belongs to a limiter")

	// ErrTxTooLarge is returned by Update, and by the methods of its transaction,
	// once that has come to more than MaxTxOps decisions or its batch to more than
	// MaxTxBatch bytes. Nothing was written.
	ErrTxTooLarge = errors.New("engine: transaction is too large")

	// ErrTxOver is returned by a transaction after its function has returned.
	ErrTxOver = errors.New("engine: transaction is over")

	// ErrTxCommitted is returned by Update if its function has committed the
	// batch itself. What was in the batch by then is written, and no decision is.
	ErrTxCommitted = errors.New("engine: function has committed the batch of its transaction")
)

// The most that one transaction may hold.
const (
	MaxTxOps   = 1 << 16 // decisions
	MaxTxBatch = 1 << 30 // bytes of the application's batch
)

// slowUpdate is how long the function of an Update may run before the logger is told.
const slowUpdate = 10 * time.Second

// A Tx is a transaction: what its methods decide, and what is put into its batch,
// is written as a whole or not at all. It is valid during the call of its function
// only, and for one goroutine.
//
// Its methods are those of Limiter of the same names, at one instant, and see
// what was decided before them. None of them waits for the disk. An error of
// theirs has changed nothing, and does not end the transaction.
//
// The function must call the methods of the Tx and none of the Limiter: nearly all
// of these, Metrics and Close among them, wait for the function to end, and would
// do so for ever. So would two limiters whose functions call each other.
type Tx struct {
	l     *Limiter
	now   int64
	ops   int
	batch *pebble.Batch // nil until it is asked for
	over  bool
}

// Update calls fn, once, with a transaction. If fn returns nil, all that it has
// decided and put into the batch of the transaction is written in one atomic
// batch, and Update returns, under the durability Always, when that is on disk. If
// fn returns an error, or panics, nothing of it is written, and Update returns the
// error, or panics. A denial is no error: it is up to fn what to make of it.
//
//	err := l.Update(func(tx *engine.Tx) error {
//		d, err := tx.Throttle(user, rate, 1)
//		if err != nil || !d.Allowed {
//			return cmp.Or(err, errDenied)
//		}
//		return tx.Batch().Set(orderKey, order, nil)
//	})
//
// While fn runs no other call of the limiter goes on. So fn must be quick, and must
// not call the limiter: see Tx. The logger is warned of one that runs for ten seconds.
//
// No other transaction of the limiter comes between what fn reads in the store and
// what it writes there; but what the application writes outside of Update can. A
// request of a quota that was accepted before is answered as it was then, with
// Replay, and what fn wrote with it is there.
//
// Errors: what fn returns; ErrReservedKey, ErrTxTooLarge, ErrTxCommitted, or one that
// names a record which the store's format version is too old for; ErrClosed; and
// ErrStorage, with which alone it is unknown whether anything was written.
func (l *Limiter) Update(fn func(*Tx) error) error {
	if !l.calls.enter() {
		return ErrClosed
	}
	defer l.calls.exit()
	l.rounds.updates <- struct{}{}
	defer func() { <-l.rounds.updates }()
	round, err := l.update(fn)
	// What fn has seen may have led it to its error.
	return cmp.Or(l.promise(round), err)
}

// update runs fn alone, and applies what it has made. It returns the newest round
// that the outcome rests on.
//
// The open round is cut and applied before. So what is staged afterwards is of
// the transaction alone, and to forget it is enough to abort it.
func (l *Limiter) update(fn func(*Tx) error) (round uint64, err error) {
	rs := &l.rounds
	rs.commitMu.Lock()
	defer rs.commitMu.Unlock()
	l.lockAll()
	locked := true
	defer func() {
		if locked {
			l.abort()
			l.unlockAll()
		}
	}()

	always := l.opts.Durability == Always
	if rs.open.staged.Load() > 0 {
		r := rs.open
		r.sync = r.sync || always
		l.apply(r, l.cut(l.db.NewBatch(), false))
	}
	if err := l.failure.get(); err != nil {
		return 0, err
	}
	slow := time.AfterFunc(slowUpdate, func() {
		l.opts.Logger.Warn("the function of an Update goes on and on; does it call the limiter, which waits for it?", "for", slowUpdate)
	})
	defer slow.Stop()
	seen := rs.open.seq - 1 // fn may read all that is applied, the application's too
	tx := &Tx{l: l, now: l.clock.now()}
	defer func() { tx.over = true }()
	if err = fn(tx); err == nil {
		err = tx.check()
	}
	if err != nil {
		return seen, err
	}
	r, b := rs.open, tx.batch
	if b == nil || b.Empty() {
		if r.staged.Load() == 0 {
			return seen, nil
		}
		b = l.db.NewBatch() // an empty one that fn has committed takes no more
	}
	r.sync = r.sync || always
	sh := &l.shards[0] // a row, too, may tell of this instant
	sh.mark = max(sh.mark, tx.now)
	mark := l.cut(b, true)
	locked = false
	l.apply(r, mark)
	if !r.sync {
		signal(rs.wake) // under Interval it is still to be
	}
	return r.seq, nil
}

// abort forgets all that is staged. Whoever calls it holds the mutexes of all
// shards, and has staged it since the last round was applied. The marks stay where
// the transaction has raised them: it is an instant that has been.
func (l *Limiter) abort() {
	open := l.rounds.open
	if open.staged.Swap(0) == 0 {
		return
	}
	for i := range l.shards {
		sh := &l.shards[i]
		for _, e := range sh.staged {
			sh.cache.evict(e) // the store knows what it was
		}
		clear(sh.staged)
		sh.staged = sh.staged[:0]
		if sh.beside != nil {
			sh.beside.Reset()
		}
		sh.overlay.drop(open.seq)
	}
}

// Now returns the instant of the transaction, on the engine's clock.
func (tx *Tx) Now() time.Time { return time.Unix(0, tx.now) }

// Batch returns the batch that the application's own writes go into: an indexed
// one, which reads what is in the store and what was put into it before, but nothing
// that tx has decided. Update commits it, and no one else may. To close it is not
// needed and does nothing; it must not be used after fn has returned.
//
// Of a limiter's keys, those under its Options.Prefix, it may have none, nor a range
// with some of them: then Update returns ErrReservedKey. In a store that Open has
// opened all keys are the limiter's.
func (tx *Tx) Batch() *pebble.Batch {
	if tx.batch == nil {
		tx.batch = tx.l.db.NewIndexedBatch()
		// Whoever is used to closing batches would have Pebble give this one to
		// somebody else. It does not as long as there is a reference, which stays.
		tx.batch.Ref()
	}
	return tx.batch
}

// check tells whether what tx holds may be written.
func (tx *Tx) check() error {
	b := tx.batch
	switch {
	case tx.ops > MaxTxOps:
		return ErrTxTooLarge
	case b == nil:
		return nil
	case b.CommitStats() != pebble.BatchCommitStats{} || b.SeqNum() != 0:
		return ErrTxCommitted
	case b.Len() > MaxTxBatch:
		return fmt.Errorf("%w: a batch of %d bytes", ErrTxTooLarge, b.Len())
	}
	reserved := tx.l.reserved()
	for r := b.Reader(); ; {
		kind, key, value, ok, err := r.Next()
		if err != nil {
			return fmt.Errorf("engine: read the batch of the transaction: %w", err)
		}
		if !ok {
			return nil
		}
		switch kind {
		case pebble.InternalKeyKindLogData:
			continue
		case pebble.InternalKeyKindDeleteSized: // for which Pebble would panic
			if v := tx.l.db.FormatMajorVersion(); v < pebble.FormatDeleteSizedAndObsolete {
				return fmt.Errorf("engine: DeleteSized in a store of format version %d", v)
			}
		}
		end := endOf(kind, value)
		for _, span := range reserved {
			if span.overlaps(key, end) {
				if end != nil {
					return fmt.Errorf("%w: the range from %q to %q has some under the prefix %q", ErrReservedKey, key, end, span.lower)
				}
				return fmt.Errorf("%w: %q is under the prefix %q", ErrReservedKey, key, span.lower)
			}
		}
	}
}

// endOf returns the end of the range that a record of a batch is about, whose
// value is value; nil if it is about a single key.
func endOf(kind pebble.InternalKeyKind, value []byte) []byte {
	switch kind {
	case pebble.InternalKeyKindRangeDelete, pebble.InternalKeyKindRangeKeyDelete:
		return value
	case pebble.InternalKeyKindRangeKeySet, pebble.InternalKeyKindRangeKeyUnset:
		n, size := binary.Uvarint(value) // of the end, before the rest
		return value[size : size+int(n)]
	}
	return nil
}

// Do carries out ops, as Limiter.Do does.
func (tx *Tx) Do(ops []Op, dst []Result) []Result {
	for i := 0; i < len(ops); {
		n := together(ops[i:])
		at := len(dst)
		dst = append(dst, make([]Result, n)...)
		err := tx.l.rootOf(tx.step(ops[i:i+n], dst[at:]))
		for j := range dst[at:] {
			dst[at+j].Err = err
		}
		i += n
	}
	return dst
}

func (tx *Tx) do(op Op) Result { return tx.Do([]Op{op}, nil)[0] }

// step carries out ops, which are one operation.
func (tx *Tx) step(ops []Op, rs []Result) error {
	l := tx.l
	if tx.over {
		return ErrTxOver
	}
	if tx.ops += len(ops); tx.ops > MaxTxOps || tx.batch != nil && tx.batch.Len() > MaxTxBatch {
		return ErrTxTooLarge
	}
	if ops[0].Verb.isForSeveral() {
		if err := l.checkTogether(ops); err != nil {
			return err
		}
		g := l.gather(ops)
		defer g.release()
		return l.runTogether(g, tx.now, rs)
	}
	op, r := &ops[0], &rs[0]
	if err := l.check(op); err != nil {
		return err
	}
	t := l.turnOf(op.Key)
	t.now = tx.now
	if !op.Verb.looks() {
		return l.change(&t, op, r)
	}
	if err := l.load(&t); err != nil {
		return err
	}
	r.round = t.round
	return answer(op, r, t.now, t.state, besideTurn{l, &t})
}

// besideTurn looks beside the head that a turn has found.
type besideTurn struct {
	l *Limiter
	t *turn
}

func (b besideTurn) request(_ int64, _ []byte, id string) (limit.Request, error) {
	return b.l.request(b.t, id)
}

func (b besideTurn) chunk(_ []byte, ordinal int64) (*limit.Chunk, error) {
	return b.l.chunk(b.t, ordinal)
}

// Throttle is Limiter.Throttle in the transaction.
func (tx *Tx) Throttle(key []byte, r limit.Rate, n int64) (limit.Decision, error) {
	result := tx.do(Op{Verb: OpThrottle, Key: key, Rate: r, N: n})
	return result.Decision, result.Err
}

// Probe is Limiter.Probe in the transaction.
func (tx *Tx) Probe(key []byte, r limit.Rate, n int64) (limit.Decision, error) {
	result := tx.do(Op{Verb: OpProbe, Key: key, Rate: r, N: n})
	return result.Decision, result.Err
}

// Refund is Limiter.Refund in the transaction.
func (tx *Tx) Refund(key []byte, r limit.Rate, n int64) (limit.Decision, error) {
	result := tx.do(Op{Verb: OpRefund, Key: key, Rate: r, N: n})
	return result.Decision, result.Err
}

// ThrottleAll is Limiter.ThrottleAll in the transaction.
func (tx *Tx) ThrottleAll(charges ...Charge) (limit.Decisions, error) {
	return tx.several(OpThrottleAll, charges)
}

// ThrottleEach is Limiter.ThrottleEach in the transaction.
func (tx *Tx) ThrottleEach(charges ...Charge) (limit.Decisions, error) {
	return tx.several(OpThrottleEach, charges)
}

// ProbeAll is Limiter.ProbeAll in the transaction.
func (tx *Tx) ProbeAll(charges ...Charge) (limit.Decisions, error) {
	return tx.several(OpProbeAll, charges)
}

// ProbeEach is Limiter.ProbeEach in the transaction.
func (tx *Tx) ProbeEach(charges ...Charge) (limit.Decisions, error) {
	return tx.several(OpProbeEach, charges)
}

func (tx *Tx) several(verb Verb, charges []Charge) (limit.Decisions, error) {
	return decisionsOf(charges, tx.Do(opsOf(verb, charges), nil))
}

// TakeQuota is Limiter.TakeQuota in the transaction.
func (tx *Tx) TakeQuota(key []byte, id string, q limit.Quota, cost int64) (limit.Grant, error) {
	result := tx.do(Op{Verb: OpTakeQuota, Key: key, ID: id, Quota: q, N: cost})
	return result.Grant, result.Err
}

// ProbeQuota is Limiter.ProbeQuota in the transaction.
func (tx *Tx) ProbeQuota(key []byte, id string, q limit.Quota, cost int64) (limit.Grant, error) {
	result := tx.do(Op{Verb: OpProbeQuota, Key: key, ID: id, Quota: q, N: cost})
	return result.Grant, result.Err
}

// Quota is Limiter.Quota in the transaction.
func (tx *Tx) Quota(key []byte) (QuotaUsage, error) {
	result := tx.do(Op{Verb: OpQuota, Key: key})
	return result.Quota, result.Err
}

// RefundQuota is Limiter.RefundQuota in the transaction.
func (tx *Tx) RefundQuota(key []byte, id string) (limit.Refund, error) {
	result := tx.do(Op{Verb: OpRefundQuota, Key: key, ID: id})
	return result.Refund, result.Err
}

// Allow is Limiter.Allow in the transaction.
func (tx *Tx) Allow(key []byte, w limit.Rolling) (limit.Admission, error) {
	result := tx.do(Op{Verb: OpAllow, Key: key, Rolling: w})
	return result.Admission, result.Err
}

// Increment is Limiter.Increment in the transaction.
func (tx *Tx) Increment(key []byte, w limit.Rolling, n int64) (total int64, err error) {
	result := tx.do(Op{Verb: OpIncrement, Key: key, Rolling: w, N: n})
	return result.Total, result.Err
}

// Peek is Limiter.Peek in the transaction.
func (tx *Tx) Peek(key []byte, w limit.Rolling) (int64, error) {
	result := tx.do(Op{Verb: OpPeek, Key: key, Rolling: w})
	return result.Admission.Count, result.Err
}

// Wait is Limiter.Wait in the transaction.
func (tx *Tx) Wait(key []byte, w limit.Rolling) (time.Duration, error) {
	result := tx.do(Op{Verb: OpWait, Key: key, Rolling: w})
	return result.Admission.Wait, result.Err
}

// Stat is Limiter.Stat in the transaction.
func (tx *Tx) Stat(key []byte) (Stat, error) {
	result := tx.do(Op{Verb: OpStat, Key: key})
	return result.Stat, result.Err
}

// Reset is Limiter.Reset in the transaction.
func (tx *Tx) Reset(key []byte) (bool, error) {
	result := tx.do(Op{Verb: OpReset, Key: key})
	return result.Stat.Exists(), result.Err
}
