package engine

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine/limit"
)

// A round is one atomic batch: the final states of all keys that changed since
// the round before it was cut, what changed beside their heads, and the mark.
type round struct {
	seq uint64 // 1, 2, 3, …

	staged atomic.Int64 // how many changes are in it

	// sync is whether the round is to be synced whatever the durability. It is
	// set under the mutex of any shard, and read under those of all.
	sync bool

	// clean is whether the round is the last, and leaves every sidecar up to
	// date.
	clean bool

	token bool // it has one of inFlight

	batch *pebble.Batch
	err   error // why it failed; to be read after done

	// Each is waited for until the batch has come so far, or has failed. They
	// are no channels, of which each would be an allocation.
	applied sync.WaitGroup // it is visible
	done    sync.WaitGroup // it is on disk, if it is synced
}

const (
	// maxInFlight is how many rounds may be between cut and disk where callers
	// wait for the disk: what arrives while one is being synced goes into the
	// next, not into a short one behind it and another.
	maxInFlight = 1

	// maxInFlightUnawaited is the same where nobody waits, so that a round that
	// is not synced passes by the one that is.
	maxInFlightUnawaited = 2

	// turnsBeforeCut is how often a round that callers wait for lets others have
	// the processor before it is cut. By one yield at most about sixty others run
	// there, fewer if another processor is idle. Three were best on two.
	turnsBeforeCut = 3

	// maxUpdates is how many transactions may be on their way, from waiting for
	// their turn to the disk. Each may have two rounds there.
	maxUpdates = 32

	// recentRounds is how many rounds can be found by their number: the open
	// one and those in flight, rounded up to a power of two.
	recentRounds = 128

	// maxStaged is how many changes may wait for the committer when callers
	// don't wait for the disk. At half of it the round is cut early, past it
	// they wait until it is applied.
	maxStaged = 1 << 16
)

// rounds is the way of changes to the disk. One goroutine, run, cuts the open
// round and applies it; another, ack, waits for the disk.
//
// Lock order: a token of inFlight or of updates, then commitMu, then the mutexes
// of shards in ascending order.
type rounds struct {
	open   *round // guarded by the mutexes of all shards: read under any, changed under all
	recent [recentRounds]atomic.Pointer[round]

	commitMu sync.Mutex // held from a cut until its batch is applied
	unsynced bool       // something was applied behind the last sync; guarded by commitMu
	mark     []byte     // scratch; guarded by commitMu

	inFlight chan struct{} // a token for each round between cut and disk, but for those of transactions
	updates  chan struct{} // a token for each transaction
	acks     chan *round   // applied rounds that wait for the disk, oldest first
	wake     chan struct{} // the open round has something in it
	kick     chan struct{} // somebody waits for the open round: don't delay it
	stop     chan struct{}
	stopped  sync.WaitGroup

	// The numbers of the newest round that has reached each stage. applying
	// is set before the batch can be visible, so that a reader who loads it
	// after reading knows that what it read is in no newer round.
	applying, applied, durable atomic.Uint64

	count, writes atomic.Uint64 // rounds applied, records in them
}

func (rs *rounds) init(awaited bool) {
	n := maxInFlightUnawaited
	if awaited {
		n = maxInFlight
	}
	rs.inFlight = make(chan struct{}, n)
	rs.updates = make(chan struct{}, maxUpdates)
	rs.acks = make(chan *round, n+2*maxUpdates)
	rs.wake = make(chan struct{}, 1)
	rs.kick = make(chan struct{}, 1)
	rs.stop = make(chan struct{})
	rs.openNext(1)
}

// openNext opens round seq. Whoever calls it holds the mutexes of all shards.
func (rs *rounds) openNext(seq uint64) {
	r := &round{seq: seq}
	r.applied.Add(1)
	r.done.Add(1)
	rs.open = r
	rs.recent[seq%recentRounds].Store(r)
}

// find returns round seq, or nil if it has long been done.
func (rs *rounds) find(seq uint64) *round {
	if r := rs.recent[seq%recentRounds].Load(); r != nil && r.seq == seq {
		return r
	}
	return nil
}

// stage notes that e has changed at now. Whoever calls it holds sh.mu.
func (l *Limiter) stage(sh *shard, e *entry, now int64) {
	if !e.staged {
		e.round, e.staged = l.rounds.open.seq, true
		sh.staged = append(sh.staged, e)
		l.rounds.grow()
	}
	sh.mark = max(sh.mark, now)
}

// staging returns the batch of a shard's that takes one change beside its
// heads. Whoever calls it holds the shard's mutex.
func (l *Limiter) staging(batch **pebble.Batch) *pebble.Batch {
	if *batch == nil {
		*batch = l.db.NewBatch()
	}
	l.rounds.grow()
	return *batch
}

// layerOf returns the layer of sh's overlay for the open round. Whoever calls
// it holds sh.mu.
func (l *Limiter) layerOf(sh *shard) *layer {
	return sh.overlay.at(l.rounds.open.seq)
}

// grow counts a change in the open round, and tells the committer when it has
// to know. Whoever calls it holds the mutex of a shard.
func (rs *rounds) grow() {
	switch rs.open.staged.Add(1) {
	case 1:
		signal(rs.wake)
	case maxStaged / 2:
		signal(rs.kick)
	}
}

// signal leaves a token in c unless one is there.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run commits rounds until stop is closed, and then a last one.
func (l *Limiter) run() {
	rs := &l.rounds
	defer rs.stopped.Done()
	defer close(rs.acks)

	always := l.opts.Durability == Always
	var due <-chan time.Time // when what has been answered is to be written
	for {
		select {
		case <-rs.wake:
			if always {
				l.commit(true)
			} else if due == nil {
				due = time.After(l.opts.SyncInterval)
			}
		case <-rs.kick:
			l.commit(always)
		case <-due:
			due = nil
			l.commit(l.opts.Durability == Interval)
		case <-rs.stop:
			l.putSidecars()
			l.commit(true)
			return
		}
	}
}

// ack waits for the disk, a round at a time.
func (l *Limiter) ack() {
	rs := &l.rounds
	defer rs.stopped.Done()
	for r := range rs.acks {
		err := r.batch.SyncWait()
		if err == nil {
			// Pebble reports some failures to its logger alone.
			err = l.failure.get()
		}
		if err != nil {
			r.err = l.failure.set(err)
		} else {
			rs.durable.Store(r.seq)
		}
		r.done.Done()
		_ = r.batch.Close() // always nil for a batch that has been applied
		r.batch = nil
		rs.landed(r)
	}
}

// landed notes that r is on disk, or has failed.
func (rs *rounds) landed(r *round) {
	if r.token {
		<-rs.inFlight
	}
}

// commit cuts the open round, unless it is empty, and applies it. With sync, or
// if the round asks for it, ack sees it to the disk, together with all that was
// applied before.
func (l *Limiter) commit(sync bool) {
	rs := &l.rounds
	rs.inFlight <- struct{}{}
	if l.opts.Durability == Always {
		// Those whom the round before this one has let go are about to come
		// again. With some turns at the processor they are in time.
		for range turnsBeforeCut {
			runtime.Gosched()
		}
	}
	rs.commitMu.Lock()
	defer rs.commitMu.Unlock()

	l.lockAll()
	r := rs.open
	if r.staged.Load() == 0 && !r.sync && !(sync && rs.unsynced) {
		l.unlockAll()
		<-rs.inFlight
		return
	}
	r.sync, r.token = r.sync || sync, true
	l.apply(r, l.cut(l.db.NewBatch(), true))
}

// cut cuts the open round, whose batch is b and whatever that holds so far, and
// returns the mark. Whoever calls it holds commitMu and the mutexes of all
// shards, which are let go with unlock.
func (l *Limiter) cut(b *pebble.Batch, unlock bool) (mark int64) {
	r := l.rounds.open
	r.batch = b
	l.rounds.openNext(r.seq + 1)
	for i := range l.shards {
		// From here on the cut is made: a shard may go on as soon as its
		// changes are in the batch.
		sh := &l.shards[i]
		mark = max(mark, sh.mark)
		l.drain(sh, b)
		if unlock {
			sh.mu.Unlock()
		}
	}
	return mark
}

// drain moves what is staged in sh to b. Whoever calls it holds sh.mu.
func (l *Limiter) drain(sh *shard, b *pebble.Batch) {
	drainBatch(sh.purged, b)
	for i, e := range sh.staged {
		if i%fetchAhead == 0 {
			sh.fetched += fetch(sh.staged[i:min(i+fetchAhead, len(sh.staged))])
		}
		sh.count(e)
		sh.user = append(sh.user[:0], e.key...)
		sh.key = l.keys.AppendHead(sh.key[:0], e.slice, sh.user)
		if state := e.state(); state.Kind == limit.KindNone {
			_ = b.Delete(sh.key, nil) // an open batch takes everything
		} else {
			sh.value = codec.AppendState(sh.value[:0], state)
			_ = b.Set(sh.key, sh.value, nil)
		}
		e.staged = false
		sh.staged[i] = nil
	}
	sh.staged = sh.staged[:0]
	drainBatch(sh.beside, b)
	sh.overlay.prune(l.rounds.applied.Load())
}

// fetchAhead is how many entries are fetched at a time.
const fetchAhead = 16

// fetch reads a byte of each part of entries that drain is about to need. A
// processor has many reads of memory under way at once if nothing lies between
// them, as it does in drain.
func fetch(entries []*entry) (sum byte) {
	for _, e := range entries {
		sum += e.key[0] + byte(e.packed.kind) + byte(e.place)
	}
	return sum
}

// drainBatch moves what is staged in from, which may be nil, to b.
func drainBatch(from, b *pebble.Batch) {
	if from != nil && !from.Empty() {
		_ = b.Apply(from, nil)
		from.Reset()
	}
}

// apply makes r visible and hands it on to ack, if it is to be synced. Whoever
// calls it holds commitMu.
func (l *Limiter) apply(r *round, mark int64) {
	rs := &l.rounds
	if n := r.batch.Count(); n > 0 || r.clean {
		rs.count.Add(1)
		rs.writes.Add(uint64(n))
		rs.mark = codec.AppendMark(rs.mark[:0], codec.Mark{Now: mark, Clean: r.clean})
		_ = r.batch.Set(l.markKey, rs.mark, nil)
	} else {
		_ = r.batch.LogData(nil, nil) // a barrier behind what was applied before
	}
	err := l.failure.get()
	rs.applying.Store(r.seq)
	if err == nil {
		err = l.write(r.batch, r.sync)
	}
	if err != nil {
		r.err = l.failure.set(err)
	} else {
		rs.applied.Store(r.seq)
		rs.unsynced = !r.sync
	}
	r.applied.Done()
	switch {
	case err == nil && r.sync:
		rs.acks <- r
	default:
		r.done.Done()
		if err == nil { // else Pebble may still hold on to it
			_ = r.batch.Close()
			r.batch = nil
		}
		rs.landed(r)
	}
}

// waitApplied waits until round seq is visible.
func (l *Limiter) waitApplied(seq uint64) error {
	rs := &l.rounds
	if rs.applied.Load() >= seq {
		return nil
	}
	r := rs.find(seq)
	if r == nil {
		return l.failure.get()
	}
	signal(rs.kick)
	r.applied.Wait()
	return l.failure.get()
}

// waitDurable waits until round seq, which is synced, is on disk.
func (l *Limiter) waitDurable(seq uint64) error {
	rs := &l.rounds
	if rs.durable.Load() >= seq {
		return nil
	}
	r := rs.find(seq)
	if r == nil {
		return l.failure.get()
	}
	r.done.Wait()
	return r.err
}

// full tells whether round seq has more staged in it than callers may leave
// to the committer.
func (rs *rounds) full(seq uint64) bool {
	r := rs.find(seq)
	return r != nil && r.staged.Load() > maxStaged
}
