package engine

import (
	"bytes"
	"errors"
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine/limit"
	"github.com/gabiondb/gabion/ttl"
)

// shardCount is how many shards the slices are dealt to, a power of two.
const (
	shardBits  = 6
	shardCount = 1 << shardBits
)

// shard owns the keys of a range of slices. Its mutex is the turn: whoever
// holds it decides and stages, in its own goroutine.
type shard struct {
	mu     sync.Mutex
	cache  cache
	staged []*entry // changed since the last cut
	mark   int64    // the largest now of any change

	// beside is what has been staged since the last cut beside heads, in
	// order; nil until there is something. overlay is what of it the store may
	// not show yet.
	beside  *pebble.Batch
	overlay overlay

	// purged is what has been staged since the last cut of the end of expired
	// keys, and of their sidecars. It goes before all else, so that it takes
	// nothing from a key that has begun anew.
	purged   *pebble.Batch
	sidecars [sidecarsPerShard]sidecar

	key, user, value []byte // scratch
	fetched          byte   // what fetch has read, lest that be left out

	_ [64]byte // keeps the mutexes of neighbours out of one cache line
}

func (l *Limiter) shardOf(slice uint16) *shard { return &l.shards[shardNumber(slice)] }

// shardNumber returns the number of the shard that slice is dealt to.
func shardNumber(slice uint16) int { return int(slice >> (16 - shardBits)) }

func (l *Limiter) lockAll() {
	for i := range l.shards {
		l.shards[i].mu.Lock()
	}
}

func (l *Limiter) unlockAll() {
	for i := range l.shards {
		l.shards[i].mu.Unlock()
	}
}

// turn is one operation's hold of its key: the state that it found there, and
// the one reading of the clock that all of the operation uses.
type turn struct {
	sh    *shard
	key   []byte
	slice uint16
	entry *entry      // nil if the key is neither cached nor stored
	state limit.State // absent if it has expired
	now   int64
	round uint64 // the newest that state can have come from
}

// turnOf returns the turn of key, which is a valid one. It is not taken yet.
func (l *Limiter) turnOf(key []byte) turn {
	t := turn{key: key, slice: l.keys.Slice(key)}
	t.sh = l.shardOf(t.slice)
	return t
}

// load finds the state that the key of t has at t.now. Whoever calls it holds
// t.sh.mu, and has done so since t.entry was found, if it was.
func (l *Limiter) load(t *turn) error {
	if t.entry != nil {
		t.sh.cache.hit(t.entry)
	} else if t.entry = t.sh.cache.get(t.key); t.entry == nil {
		t.sh.key = l.keys.AppendHead(t.sh.key[:0], t.slice, t.key)
		applied := l.rounds.applied.Load()
		state, err := l.get(t.sh.key)
		t.round = l.rounds.applying.Load()
		if err != nil {
			return err
		}
		if state.Kind != limit.KindNone && !t.sh.overlay.hasPurged(applied, t.slice, state.Deadline()) {
			t.entry = l.cacheEntry(t, state)
			t.entry.stored = state.Deadline()
		}
	}
	if t.entry != nil {
		t.state, t.round = ttl.Live(t.entry.state(), t.now), t.entry.round
	}
	return nil
}

// put stages state as what the key of t holds from now on.
func (l *Limiter) put(t *turn, state limit.State) {
	if t.entry == nil {
		t.entry = l.cacheEntry(t, state)
	} else {
		if state.Kind != t.state.Kind {
			l.dropBeside(t)
		}
		t.entry.set(state)
		t.sh.cache.resize(t.entry, l.rounds.applied.Load())
	}
	l.stage(t.sh, t.entry, t.now)
	t.round = t.entry.round
}

// dropBeside stages the end of what lies beside the head that t has found, and
// that another state is taking the place of.
func (l *Limiter) dropBeside(t *turn) {
	switch old := t.entry.state(); old.Kind {
	case limit.KindQuota:
		// The records of a window that is over are dead as they are.
		if t.state.Kind == limit.KindQuota {
			l.dropRequests(t, old.Quota.Deadline)
		}
	case limit.KindRolling:
		l.dropChunks(t.sh, &t.sh.beside, t.slice, t.key, old.Rolling.Chunks())
	}
}

// maxPointDeletes is how many keys of a span are deleted one by one. Until
// Pebble has flushed them range tombstones slow down every read, the more of
// them there are, so there must be far fewer of them than of calls.
const maxPointDeletes = 256

// dropSpan stages the deletion of all keys from lower to just before upper:
// those that the store shows and those that are staged. It goes into batch, one
// of the shard's, as so many deletions as dropSpan returns.
func (l *Limiter) dropSpan(batch **pebble.Batch, lower, upper []byte, staged [][]byte) int {
	keys := staged
	it, err := l.iter(lower, upper)
	if err == nil {
		for it.First(); it.Valid() && len(keys) <= maxPointDeletes; it.Next() {
			keys = append(keys, bytes.Clone(it.Key()))
		}
		err = it.Close() // which tells how far it got
	}
	// A span that can't be read can still be deleted.
	if err != nil || len(keys) > maxPointDeletes {
		_ = l.staging(batch).DeleteRange(lower, upper, nil)
		return 1
	}
	for _, key := range keys {
		_ = l.staging(batch).Delete(key, nil)
	}
	return len(keys)
}

// cacheEntry puts the key of t with this state into the cache.
func (l *Limiter) cacheEntry(t *turn, state limit.State) *entry {
	e := &entry{key: string(t.key), slice: t.slice, round: t.round}
	e.set(state)
	t.sh.cache.add(e, l.rounds.applied.Load())
	return e
}

// get reads the record under a head key; a key that is not there is absent.
func (l *Limiter) get(head []byte) (limit.State, error) {
	value, closer, err := l.lookup(head)
	if errors.Is(err, pebble.ErrNotFound) {
		return limit.State{}, nil
	}
	if err != nil {
		return limit.State{}, storageError(err)
	}
	defer closer.Close()
	return decodeState(head, value)
}

// decodeState decodes the record under a head key.
func decodeState(head, value []byte) (limit.State, error) {
	state, err := codec.DecodeState(value)
	if err != nil {
		return limit.State{}, fmt.Errorf("%w: %q: %w", ErrCorrupt, head, err)
	}
	return state, nil
}

func checkKey(key []byte) error {
	if len(key) == 0 || len(key) > MaxKeyLen {
		return ErrInvalidKey
	}
	return nil
}
