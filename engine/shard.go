package engine

import (
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

	key, value []byte // scratch

	_ [64]byte // keeps the mutexes of neighbours out of one cache line
}

func (l *Limiter) shardOf(slice uint16) *shard {
	return &l.shards[slice>>(16-shardBits)]
}

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

// begin takes the turn of key. When it fails the turn is not taken.
func (l *Limiter) begin(key []byte) (turn, error) {
	if err := checkKey(key); err != nil {
		return turn{}, err
	}
	t := turn{key: key, slice: l.keys.Slice(key)}
	t.sh = l.shardOf(t.slice)
	t.sh.mu.Lock()
	if t.entry = t.sh.cache.get(key); t.entry == nil {
		t.sh.key = l.keys.AppendHead(t.sh.key[:0], t.slice, key)
		state, err := l.get(t.sh.key)
		t.round = l.rounds.applying.Load()
		if err != nil {
			t.sh.mu.Unlock()
			return turn{}, err
		}
		if state.Kind != limit.None {
			t.entry = l.cacheEntry(&t, state)
		}
	}
	if t.entry != nil {
		t.state, t.round = t.entry.state, t.entry.round
	}
	t.now = l.clock.now()
	t.state = ttl.Live(t.state, t.now)
	return t, nil
}

// put stages state as what the key of t holds from now on.
func (l *Limiter) put(t *turn, state limit.State) {
	if t.entry == nil {
		t.entry = l.cacheEntry(t, state)
	}
	t.entry.state = state
	l.stage(t.sh, t.entry, t.now)
	t.round = t.entry.round
}

func (t *turn) end() { t.sh.mu.Unlock() }

// cacheEntry puts the key of t with this state into the cache.
func (l *Limiter) cacheEntry(t *turn, state limit.State) *entry {
	e := &entry{key: string(t.key), slice: t.slice, state: state, round: t.round}
	t.sh.cache.add(e, l.rounds.applied.Load())
	return e
}

// get reads the record under a head key; a key that is not there is absent.
func (l *Limiter) get(head []byte) (limit.State, error) {
	value, closer, err := l.db.Get(head)
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
