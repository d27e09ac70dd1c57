package engine

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine/limit"
	"github.com/gabiondb/gabion/ttl"
)

const (
	// purgeTick is the time between two looks at the sidecars.
	purgeTick = 200 * time.Millisecond

	// lookSize is how many records a pass reads through one iterator, which
	// takes less than a millisecond as long as they are in memory. Slices are
	// looked at as a whole.
	lookSize = 2048

	// maxLook is how many records a look reads at most, for want of knowing
	// how many there are. Then the pass begins anew, with crowdedStep slices a
	// look.
	maxLook     = 4 * lookSize
	crowdedStep = 4

	// maxGuesses is how many guesses a pass replaces, so that opening a store
	// after a crash does not begin with reading all of it.
	maxGuesses = 8

	// maxPurging is how many deletions a pass stages before it waits until
	// they are applied, so that no round grows much by them.
	maxPurging = 2048

	// maxScratch is how large a look's scratch may be to be kept.
	maxScratch = 1 << 20

	// paceTick is the time within which a pass keeps to its pace.
	paceTick = 10 * time.Millisecond

	// quietTicks is how many ticks after the last purge its deletions are
	// flushed. Until then they free no space, and in a store that is idle Pebble
	// would never do it by itself.
	quietTicks = 25

	// minGarbage is how much a compaction of an idle store has to free, in
	// bytes, and dueGarbage what share of it all, as a divisor.
	minGarbage = 256 << 10
	dueGarbage = 4
)

// purger runs the compaction filter over the store.
type purger struct {
	mu      passLock // held during a pass; it comes before all other locks
	horizon ttl.Horizon
	look    look
	looked  func() // for tests: called between a look and its turn
	staged  int    // deletions since the last wait
	round   uint64 // the newest that has some

	// requests is when request records were last deleted, requestsRound the
	// round that does it, and requestsFailed when they last could not be read; 0
	// if they could.
	requests       int64
	requestsRound  uint64
	requestsFailed int64

	// written tells, a bit for each sidecar, over which slices Pebble has
	// written tables since they were looked at.
	written [codec.Sidecars / 64]atomic.Uint64

	wake    chan struct{}
	ctx     context.Context // ends when the limiter is being closed
	cancel  context.CancelFunc
	stopped sync.WaitGroup

	deletions atomic.Uint64 // how often some have been staged
	dropped   atomic.Uint64
	reclaimed atomic.Uint64
	passes    atomic.Uint64
	last      atomic.Int64 // when the last one ended, on the engine's clock
	behind    atomic.Int64 // how far the horizon was behind the clock
}

// passLock is a mutex that nobody has to wait for longer than a context lasts.
type passLock chan struct{}

func (m passLock) lock(ctx context.Context) error {
	select {
	case m <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (m passLock) unlock() { <-m }

// look is what a pass has read through one iterator.
type look struct {
	sum     ttl.Sidecar // of all heads
	dead    []deadHead  // those that the filter drops
	keys    []byte      // the memory of their slices
	applied uint64      // the newest round that shows
}

// deadHead is a head whose record is over.
type deadHead struct {
	head, key []byte
	slice     uint16
	size      int // of head and record
	verdict   ttl.Verdict
}

// purge looks after the store until the limiter is being closed.
func (l *Limiter) purge() {
	p := &l.purger
	defer p.stopped.Done()
	var closed error // which is the limiter's failure, too
	defer l.recoverClosed(&closed)
	ticker := time.NewTicker(purgeTick)
	defer ticker.Stop()
	quiet, unflushed, uncompacted, seen := 0, false, false, uint64(0)
	for {
		select {
		case <-p.ctx.Done():
			return
		case <-p.wake:
		case <-ticker.C:
			quiet++
		}
		err := l.pass()
		deletions := p.deletions.Load()
		switch {
		case errors.Is(err, errStopped) || l.failure.get() != nil:
			return
		case err != nil:
		case deletions != seen:
			quiet, unflushed, seen = 0, true, deletions
		case unflushed && quiet >= quietTicks:
			unflushed, uncompacted = false, true
			err = l.flushPurged()
		case uncompacted && quiet >= 2*quietTicks:
			uncompacted = false
			err = l.compactGarbage()
		}
		if err != nil && !errors.Is(err, errStopped) {
			what, _, _ := strings.Cut(err.Error(), "\n") // Pebble's errors go on for pages
			l.opts.Logger.Error("a purge has failed", "error", what)
		}
	}
}

// flushPurged has Pebble begin to flush what has been purged.
func (l *Limiter) flushPurged() error {
	p := &l.purger
	if p.mu.lock(p.ctx) != nil {
		return errStopped
	}
	defer p.mu.unlock()
	if err := l.waitApplied(p.round); err != nil {
		return err
	}
	_, err := l.db.AsyncFlush()
	return err
}

// compactGarbage has Pebble compact a store of our own, if what a compaction
// would free is worth it. Pebble does most of that by itself. But it leaves
// range tombstones, as the end of a long list is, above the tables that they
// empty in part, until more is written.
func (l *Limiter) compactGarbage() error {
	m := l.db.Metrics()
	garbage := m.Table.Garbage.PointDeletionsBytesEstimate + m.Table.Garbage.RangeDeletionsBytesEstimate
	if l.lent || garbage < minGarbage || garbage < uint64(tableBytes(m))/dueGarbage {
		return nil
	}
	lower, upper := l.keys.StatePart(0, 1)
	if err := l.compact(l.purger.ctx, lower, upper); !errors.Is(err, context.Canceled) {
		return err
	}
	return errStopped
}

// tableBytes returns the size of all tables.
func tableBytes(m *pebble.Metrics) (n int64) {
	for i := range m.Levels {
		n += m.Levels[i].TablesSize
	}
	return n
}

// errStopped is why a pass has ended early: the limiter is being closed.
var errStopped = errors.New("engine: pass stopped")

// errCleared is why a look comes to nothing: all keys have been forgotten.
var errCleared = errors.New("engine: keys forgotten")

// errCrowded is why a look is given up: there is more than it can read.
var errCrowded = errors.New("engine: too many records for one look")

// pass looks at all sidecars and goes over the slices of those that call for
// it: by what they say is due. Where they are guesses, some are made anew each
// time, of slices that Pebble has just written, which are at hand, and one more.
func (l *Limiter) pass() error {
	p := &l.purger
	if p.mu.lock(p.ctx) != nil {
		return errStopped
	}
	defer p.mu.unlock()
	ticker := time.NewTicker(paceTick)
	defer ticker.Stop()
	// Each tick brings as much as may be looked at in a second, and each record
	// costs as much as there are ticks in one.
	budget := min(l.opts.PurgePace, math.MaxInt64/2)
	pace := func(looked int) error {
		for budget -= int64(looked) * int64(time.Second/paceTick); budget < 0; budget += min(l.opts.PurgePace, math.MaxInt64/2) {
			select {
			case <-p.ctx.Done():
				return errStopped
			case <-ticker.C:
				l.horizon() // which has to see how the clocks go
			}
		}
		return nil
	}
	horizon := l.horizon()
	var errs []error
	left := guesses{written: maxGuesses, turn: 1}
	for n := range codec.Sidecars {
		if !l.isDue(n, horizon, &left) {
			continue
		}
		if err := l.filter(n, horizon, pace); errors.Is(err, errStopped) {
			return err
		} else if err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, l.purgeRequests(horizon, false))...)
}

// guesses is how many guesses a pass may still replace: of slices that Pebble has
// just written, and of others.
type guesses struct{ written, turn int }

// isDue tells whether sidecar n calls for a pass.
func (l *Limiter) isDue(n int, horizon int64, left *guesses) bool {
	p := &l.purger
	sh, sc := l.sidecar(n)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sc.failed != 0 && horizon-sc.failed < int64(l.opts.PurgeWait) {
		return false
	}
	if worth := sc.sum.Worth(horizon, l.opts.PurgeWait); worth || sc.exact {
		return worth
	}
	from := &left.turn
	bit := uint64(1) << (n % 64)
	if p.written[n/64].Load()&bit != 0 {
		from = &left.written
	}
	if *from == 0 {
		return false
	}
	*from--
	p.written[n/64].And(^bit)
	return true
}

// horizon returns the instant up to which expired state may be deleted. Whoever
// calls it holds purger.mu.
func (l *Limiter) horizon() int64 {
	now := l.clock.now()
	horizon := l.purger.horizon.At(now, l.clock.readWall())
	l.purger.behind.Store(now - horizon)
	return horizon
}

// filter runs the compaction filter over the slices of sidecar n and has it
// count them anew. It calls pace with the number of records after each look.
// Whoever calls it holds purger.mu.
func (l *Limiter) filter(n int, horizon int64, pace func(int) error) (err error) {
	sh, sc := l.sidecar(n)
	if err := l.waitPurged(sh, sc); err != nil {
		return err
	}
	next := ttl.NewSidecar(horizon)
	first := n * codec.SlicesPerSidecar
	sh.mu.Lock()
	sc.next, sc.passed, sc.doubted = &next, first, false
	clears := sc.clears
	step := int(max(1, lookSize/max(1, sc.sum.Records()/codec.SlicesPerSidecar)))
	sh.mu.Unlock()

	var stopped error
	for end, from := first+codec.SlicesPerSidecar, first; from < end && err == nil && stopped == nil; {
		to := min(from+step, end)
		err = l.filterSlices(n, from, to, horizon, clears)
		if errors.Is(err, errCrowded) {
			sh.mu.Lock()
			next, sc.passed = ttl.NewSidecar(horizon), first
			sh.mu.Unlock()
			to, step = first, crowdedStep
			err = l.waitPurged(sh, sc)
		}
		if err == nil {
			stopped = pace(1 + int(l.purger.look.sum.Records()))
		}
		from = to
	}

	sh.mu.Lock()
	defer sh.mu.Unlock()
	sc.next = nil
	switch {
	case sc.clears != clears || stopped != nil:
		return stopped
	case err != nil:
		sc.failed = horizon
		return err
	}
	sc.sum, sc.exact, sc.failed = next, !sc.doubted, 0
	l.putSidecar(n)
	l.purger.passes.Add(1)
	l.purger.last.Store(l.clock.now())
	return nil
}

// waitPurged waits until what has been staged of sc's dead heads is applied: it
// must not be found a second time.
func (l *Limiter) waitPurged(sh *shard, sc *sidecar) error {
	sh.mu.Lock()
	purged := sc.purged
	sh.mu.Unlock()
	return l.waitApplied(purged)
}

// filterSlices filters the slices from first to just before end, in one look
// and one turn.
func (l *Limiter) filterSlices(n, first, end int, horizon int64, clears uint64) error {
	p := &l.purger
	sh, sc := l.sidecar(n)
	if err := l.read(&p.look, sh, sc, first, end, horizon); err != nil {
		return err
	}
	if p.looked != nil {
		p.looked()
	}
	sh.mu.Lock()
	if sc.clears != clears {
		sh.mu.Unlock()
		return errCleared
	}
	sc.next.Merge(&p.look.sum)
	var err error
	for i := range p.look.dead {
		if err = l.lookAgain(sh, &p.look.dead[i], p.look.applied, horizon); err != nil {
			break // then nothing is deleted: the overlay knows whole slices only
		}
	}
	staged := 0
	for i := range p.look.dead {
		if d := &p.look.dead[i]; err == nil && d.verdict.Drop {
			staged += l.drop(sh, sc, d)
		}
	}
	if staged > 0 {
		y := l.layerOf(sh)
		y.purged = append(y.purged, purgedSlices{first, end, horizon})
		sh.mark = max(sh.mark, horizon)
		sc.purged, p.round = y.round, y.round
		p.deletions.Add(1)
	}
	sh.mu.Unlock()

	if cap(p.look.keys) > maxScratch {
		p.look = look{}
	}
	if p.staged += staged; p.staged >= maxPurging {
		p.staged = 0
		err = errors.Join(err, l.waitApplied(p.round))
	}
	return err
}

// read looks at the heads in the slices from first to just before end, as all
// rounds cut so far have left them.
func (l *Limiter) read(k *look, sh *shard, sc *sidecar, first, end int, horizon int64) error {
	k.sum, k.dead, k.keys = ttl.NewSidecar(horizon), k.dead[:0], k.keys[:0]

	// Holding the committer's lock, no round is cut and not yet applied. So
	// what changes from here on, in these slices, is counted as it is cut.
	l.rounds.commitMu.Lock()
	it, err := l.iter(l.keys.AppendSliceStart(nil, first), l.keys.AppendSliceStart(nil, end))
	k.applied = l.rounds.applied.Load()
	sh.mu.Lock()
	sc.passed = end
	sh.mu.Unlock()
	l.rounds.commitMu.Unlock()
	if err != nil {
		return storageError(err)
	}
	defer it.Close()
	for more := it.First(); more; more = it.Next() {
		value, err := it.ValueAndErr()
		if err != nil {
			return storageError(err)
		}
		if k.sum.Records() > maxLook && end-first > crowdedStep {
			return errCrowded
		}
		verdict := ttl.Filter(value, horizon)
		if !verdict.Drop {
			k.sum.Add(verdict.Deadline)
			continue
		}
		d := deadHead{size: len(it.Key()) + len(value), verdict: verdict}
		at := len(k.keys)
		k.keys = append(k.keys, it.Key()...)
		d.head = k.keys[at:len(k.keys):len(k.keys)]
		at = len(k.keys)
		if d.slice, k.keys, err = l.keys.ParseHead(k.keys, d.head); err != nil {
			continue // it is no key of anybody's
		}
		d.key = k.keys[at:len(k.keys):len(k.keys)]
		if d.slice != l.keys.Slice(d.key) {
			continue // it is not where anybody would look for it
		}
		k.sum.Add(verdict.Deadline)
		k.dead = append(k.dead, d)
	}
	// An iterator that fails looks like one at its end.
	return storageError(it.Error())
}

// lookAgain judges a head that a look has found over by the newest state of its
// key. Whoever calls it holds sh.mu.
func (l *Limiter) lookAgain(sh *shard, d *deadHead, applied uint64, horizon int64) (err error) {
	v := &d.verdict
	if e := sh.cache.entries[string(d.key)]; e != nil {
		v.State, v.Deadline = e.state(), e.stored
		v.Drop = !e.staged && e.stored != 0 && ttl.Expired(e.stored, horizon)
	} else if sh.cache.evicted > applied {
		// It may have changed, and left the cache since.
		v.State, err = l.get(d.head)
		v.Deadline = v.State.Deadline()
		v.Drop = v.State.Kind != limit.KindNone && ttl.Expired(v.Deadline, horizon)
	}
	return err
}

// drop stages the end of a head that is over. It returns how many deletions it
// has staged. Whoever calls it holds sh.mu.
func (l *Limiter) drop(sh *shard, sc *sidecar, d *deadHead) int {
	if e := sh.cache.entries[string(d.key)]; e != nil {
		e.set(limit.State{})
		e.stored, e.used = 0, false
		sh.cache.resize(e, l.rounds.applied.Load())
	}
	sc.remove(d.verdict.Deadline)
	_ = l.staging(&sh.purged).Delete(d.head, nil)
	l.purger.dropped.Add(1)
	l.purger.reclaimed.Add(uint64(d.size))
	if d.verdict.State.Kind != limit.KindRolling {
		return 1
	}
	return 1 + l.dropChunks(sh, &sh.purged, d.slice, d.key, d.verdict.State.Rolling.Chunks())
}

// purgeRequests stages the end of the request records of all windows that are
// over at horizon. If they are few, and not all is set, they are left to the
// longest wait.
func (l *Limiter) purgeRequests(horizon int64, all bool) error {
	p := &l.purger
	if l.rounds.applied.Load() < p.requestsRound {
		return nil // the store still shows what is on its way out
	}
	if !all && p.requestsFailed != 0 && horizon-p.requestsFailed < int64(l.opts.PurgeWait) {
		return nil
	}
	upper := l.keys.AppendRequestStart(nil, horizon+1)
	it, err := l.iter(l.keys.AppendRequestStart(nil, 0), upper)
	if err != nil {
		return storageError(err)
	}
	var keys [][]byte
	var size uint64
	for it.First(); it.Valid() && len(keys) <= maxPointDeletes; it.Next() {
		keys = append(keys, bytes.Clone(it.Key()))
		size += uint64(len(it.Key()) + len(it.Value()))
	}
	if err := it.Close(); err != nil {
		p.requestsFailed = horizon
		return storageError(err)
	}
	p.requestsFailed = 0
	if len(keys) == 0 {
		return nil
	}
	many := len(keys) > maxPointDeletes
	if !many && !all && horizon-p.requests < int64(l.opts.PurgeWait) {
		return nil
	}
	p.requests = horizon
	if many {
		if size, err = l.db.EstimateDiskUsage(keys[0], upper); err != nil {
			return storageError(err)
		}
	}
	// A call that read the clock when one of these windows was open, and has yet
	// to look for a request of it, is over before the round is cut, which takes
	// all turns. So any turn serves.
	sh := &l.shards[0]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if many {
		_ = l.staging(&sh.purged).DeleteRange(keys[0], upper, nil)
	} else {
		for _, key := range keys {
			_ = l.staging(&sh.purged).Delete(key, nil)
		}
	}
	sh.mark = max(sh.mark, horizon)
	p.round = l.rounds.open.seq
	p.requestsRound = p.round
	p.deletions.Add(1)
	p.reclaimed.Add(size)
	return nil
}

// tablesWritten returns a function that notes over which slices of keys Pebble
// has written tables, and has the purger look there.
func (p *purger) tablesWritten(keys codec.Keyspace) func([]pebble.TableInfo) {
	return func(tables []pebble.TableInfo) {
		for _, t := range tables {
			first, end := keys.HeadSlices(t.Smallest.UserKey, t.Largest.UserKey)
			for n := first / codec.SlicesPerSidecar; n*codec.SlicesPerSidecar < end; n++ {
				p.written[n/64].Or(1 << (n % 64))
			}
		}
		signal(p.wake)
	}
}

// Purge deletes all that has expired, at once and at full speed, whatever the
// sidecars say; with Options.NoPurge nothing else does. It changes no answer.
// It goes no further than the engine's clock can be trusted: see
// Options.PurgeAhead. Nothing that it deletes is promised to be on disk when it
// returns, and with NoPurge nobody flushes it: the space is free when Pebble has
// come by, or after Compact. A ctx that ends makes it return early with ctx's
// error. Where the store can't be read Purge leaves everything as it is, goes on
// behind that, and returns the first such error in the end.
func (l *Limiter) Purge(ctx context.Context) error {
	if !l.calls.enter() {
		return ErrClosed
	}
	defer l.calls.exit()
	return l.purgeAll(ctx, nil)
}

// purgeAll is Purge. It tells progress how many of the
// codec.Sidecars it has seen to.
func (l *Limiter) purgeAll(ctx context.Context, progress func(done int)) error {
	if err := l.failure.get(); err != nil {
		return err
	}
	p := &l.purger
	if err := p.mu.lock(ctx); err != nil {
		return err
	}
	defer p.mu.unlock()
	// What is staged and has expired already is to be found as well, and what is
	// on its way out is not.
	if err := l.waitApplied(max(l.newestStaged(), p.round)); err != nil {
		return err
	}
	horizon := l.horizon()
	pace := func(int) error { return ctx.Err() }
	var unread error
	for n := range codec.Sidecars {
		if err := cmp.Or(l.failure.get(), ctx.Err()); err != nil {
			return err
		}
		sh, sc := l.sidecar(n)
		sh.mu.Lock()
		due := !sc.exact || sc.sum.First() <= horizon || horizon < sc.sum.Since
		sh.mu.Unlock()
		if due {
			unread = cmp.Or(unread, l.filter(n, horizon, pace))
		}
		if progress != nil {
			progress(n + 1)
		}
	}
	err := l.purgeRequests(horizon, true)
	return cmp.Or(unread, err, l.waitApplied(p.round))
}
