package engine

import (
	"errors"
	"fmt"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/ttl"
)

// sidecarsPerShard is how many sidecars the slices of one shard have.
const sidecarsPerShard = codec.Sidecars / shardCount

// sidecar is what is known of the deadlines in some of a shard's slices. It is
// guarded by the shard's mutex.
type sidecar struct {
	// sum counts what the rounds cut so far have left. Unless it is exact that
	// is a guess: what the store had kept before a crash, and what has changed
	// since.
	sum   ttl.Sidecar
	exact bool

	stored  bool // the store has one, be it up to date or not
	changed bool // sum is not what the store has

	// next is what a pass under way has counted; nil while there is none. From
	// the slice passed on it has yet to look.
	next    *ttl.Sidecar
	passed  int
	doubted bool // since it began

	purged uint64 // the newest round that takes away what a pass has found
	failed int64  // when a pass has failed to read the slices; 0 if none has
	clears uint64 // how often all keys have been forgotten
}

// sidecarOf returns the sidecar that counts the heads of slice, which is one
// of the shard's.
func (sh *shard) sidecarOf(slice uint16) *sidecar {
	return &sh.sidecars[int(slice)/codec.SlicesPerSidecar%sidecarsPerShard]
}

// count notes what the staged state of e leaves in the store.
func (sh *shard) count(e *entry) {
	deadline := e.state().Deadline()
	sh.sidecarOf(e.slice).move(e.slice, e.stored, deadline)
	e.stored = deadline
}

// unread stands for the deadline of a record that can't be read. There is no
// telling whether a sidecar counts it.
const unread = -1

// move notes that a head in slice has got another deadline; 0 stands for no
// head.
func (sc *sidecar) move(slice uint16, from, to int64) {
	if from == to {
		return
	}
	if from == unread {
		sc.exact, sc.doubted, from = false, true, 0
	}
	sc.sum.Remove(from)
	sc.sum.Add(to)
	sc.changed = true
	if sc.next != nil && int(slice) < sc.passed {
		sc.next.Remove(from)
		sc.next.Add(to)
	}
}

// remove notes that a head that a pass has counted is deleted.
func (sc *sidecar) remove(deadline int64) {
	sc.sum.Remove(deadline)
	sc.next.Remove(deadline)
	sc.changed = true
}

// clear notes that there are no heads any more.
func (sc *sidecar) clear(now int64) {
	*sc = sidecar{sum: ttl.NewSidecar(now), exact: true, clears: sc.clears + 1}
}

// loadSidecars reads the sidecars that the store has. Those of a store that
// was closed are exact.
func (l *Limiter) loadSidecars(clean bool) error {
	now := l.clock.now()
	for i := range l.shards {
		for j := range l.shards[i].sidecars {
			l.shards[i].sidecars[j] = sidecar{sum: ttl.NewSidecar(now), exact: clean}
		}
	}
	lower, upper := l.keys.SidecarBounds()
	it, err := l.iter(lower, upper)
	if err != nil {
		return storageError(err)
	}
	defer it.Close()
	for more := it.First(); more; more = it.Next() {
		n, err := l.keys.ParseSidecarKey(it.Key())
		if err != nil {
			return fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		value, err := it.ValueAndErr()
		if err != nil {
			return storageError(err)
		}
		_, sc := l.sidecar(int(n))
		sc.stored = true
		s, err := codec.DecodeSidecar(value)
		switch {
		case err == nil:
			sc.sum = ttl.LoadSidecar(s)
		case errors.Is(err, codec.ErrCorrupt), errors.Is(err, codec.ErrVersion):
			sc.exact = false // it was a hint, and can be had again
		}
	}
	if err := it.Error(); err != nil || !clean {
		return storageError(err)
	}
	return l.doubtMissing()
}

// doubtMissing takes the sidecars that a store closed in good order does not have
// for guesses, if there are heads that they should count.
func (l *Limiter) doubtMissing() error {
	it, err := l.iter(l.keys.AppendSliceStart(nil, 0), l.keys.AppendSliceStart(nil, codec.Slices))
	if err != nil {
		return storageError(err)
	}
	defer it.Close()
	var start []byte
	for n := range codec.Sidecars {
		_, sc := l.sidecar(n)
		if sc.stored {
			continue
		}
		start = l.keys.AppendSliceStart(start[:0], n*codec.SlicesPerSidecar)
		if !it.SeekGE(start) {
			break
		}
		if first, _ := l.keys.HeadSlices(it.Key(), it.Key()); first < (n+1)*codec.SlicesPerSidecar {
			sc.exact = false
		}
	}
	return storageError(it.Error())
}

// sidecar returns sidecar n and the shard that it is of.
func (l *Limiter) sidecar(n int) (*shard, *sidecar) {
	sh := &l.shards[n/sidecarsPerShard]
	return sh, &sh.sidecars[n%sidecarsPerShard]
}

// putSidecar stages sidecar n. Whoever calls it holds sh.mu.
func (l *Limiter) putSidecar(n int) {
	sh, sc := l.sidecar(n)
	sc.changed = false
	if sc.sum.Records() == 0 && !sc.stored {
		return
	}
	sh.key = l.keys.AppendSidecarKey(sh.key[:0], uint8(n))
	if sc.stored = sc.sum.Records() > 0; !sc.stored {
		_ = l.staging(&sh.purged).Delete(sh.key, nil)
		return
	}
	sh.value = codec.AppendSidecar(sh.value[:0], &sc.sum.Sidecar)
	_ = l.staging(&sh.purged).Set(sh.key, sh.value, nil)
}

// putSidecars stages all sidecars that are not up to date, for the round that
// is the store's last: so they are exact when it is opened again. If some are
// no more than guesses that can't be promised, and nothing is staged.
func (l *Limiter) putSidecars() {
	if l.clean && l.rounds.count.Load() == 0 && l.rounds.open.staged.Load() == 0 {
		return // nothing has changed since they were put before
	}
	l.lockAll()
	defer l.unlockAll()
	// What is staged is to be counted as well.
	for i := range l.shards {
		sh := &l.shards[i]
		for _, e := range sh.staged {
			sh.count(e)
		}
	}
	for n := range codec.Sidecars {
		if _, sc := l.sidecar(n); !sc.exact {
			return
		}
	}
	for n := range codec.Sidecars {
		if _, sc := l.sidecar(n); sc.changed {
			l.putSidecar(n)
		}
	}
	l.rounds.open.clean = true
	l.rounds.grow()
}
