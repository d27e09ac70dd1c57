package engine

import (
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine/limit"
)

// OnLook has the purge call fn between each look and the turn that follows.
func (l *Limiter) OnLook(fn func()) {
	l.purger.mu.Lock()
	defer l.purger.mu.Unlock()
	l.purger.looked = fn
}

// Pass has the purge of l go once over what the sidecars call for.
func Pass(l *Limiter) error { return l.pass() }

// DB returns the store under l.
func (l *Limiter) DB() *pebble.DB { return l.db }

// RangeTombstones returns how many range tombstones are staged.
func (l *Limiter) RangeTombstones() (n int) {
	for i := range l.shards {
		sh := &l.shards[i]
		sh.mu.Lock()
		defer sh.mu.Unlock()
		if sh.beside == nil {
			continue
		}
		for r := sh.beside.Reader(); ; {
			kind, _, _, ok, err := r.Next()
			if err != nil {
				panic(err)
			}
			if !ok {
				break
			}
			if kind == pebble.InternalKeyKindRangeDelete {
				n++
			}
		}
	}
	return n
}

// Check looks at the whole store: every key is one that a limiter writes, every
// value decodes, heads lie in their key's slice, request records add up to what
// their quota has spent, chunks are where their list says, what is cached is
// what is stored, and Pebble's levels are in order. Nobody may use l meanwhile.
func (l *Limiter) Check() error {
	l.purger.mu.Lock() // what it stages is still to come
	defer l.purger.mu.Unlock()
	if err := l.Sync(); err != nil {
		return err
	}
	if err := l.db.CheckLevels(nil); err != nil {
		return err
	}
	c := checker{
		l:     l,
		now:   l.clock.now(),
		heads: make(map[string]limit.State),
		spent: make(map[window]int64),
		next:  make(map[string]limit.Span),
	}
	lower, upper := l.keys.Bounds()
	it, err := l.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return err
	}
	defer it.Close()
	for it.First(); it.Valid(); it.Next() {
		if err := c.record(it.Key(), it.Value()); err != nil {
			return fmt.Errorf("%q: %w", it.Key(), err)
		}
	}
	return errors.Join(it.Error(), c.agree(), l.checkCaches(), l.checkSidecars())
}

// checkCaches tells whether the caches hold what the store does, and count the
// memory that they take.
func (l *Limiter) checkCaches() error {
	for i := range l.shards {
		sh := &l.shards[i]
		sh.mu.Lock()
		defer sh.mu.Unlock()
		var bytes int64
		for place, e := range sh.cache.ring {
			if sh.cache.entries[e.key] != e {
				return fmt.Errorf("place %d of the ring holds %q, which is not to be found", place, e.key)
			}
			if e.bytes != e.size() {
				return fmt.Errorf("%q counts for %d bytes, want %d", e.key, e.bytes, e.size())
			}
			bytes += e.bytes
			stored, err := l.get(l.keys.AppendHead(nil, e.slice, []byte(e.key)))
			if err != nil {
				return err
			}
			if got, want := recordOf(e.state), recordOf(stored); got != want {
				return fmt.Errorf("%q is cached as %x and stored as %x", e.key, got, want)
			}
		}
		if len(sh.cache.entries) != len(sh.cache.ring) || sh.cache.bytes != bytes {
			return fmt.Errorf("%d entries of %d bytes, and %d in the ring of %d bytes",
				len(sh.cache.entries), sh.cache.bytes, len(sh.cache.ring), bytes)
		}
	}
	return nil
}

// recordOf returns the record of a state, none for an absent key.
func recordOf(s limit.State) string {
	if s.Kind == limit.KindNone {
		return ""
	}
	return string(codec.AppendState(nil, s))
}

// window names a window of a quota.
type window struct {
	key      string
	deadline int64
}

// checker gathers what Check sees.
type checker struct {
	l     *Limiter
	now   int64
	heads map[string]limit.State
	spent map[window]int64      // the sum of the costs of its request records
	next  map[string]limit.Span // the ordinals that a list's chunks cover
}

func (c *checker) record(key, value []byte) error {
	keys := c.l.keys
	switch string(key) {
	case string(keys.AppendMeta(nil, codec.MetaIdentity)):
		_, err := codec.DecodeIdentity(value)
		return err
	case string(keys.AppendMeta(nil, codec.MetaMark)):
		mark, err := codec.DecodeMark(value)
		if err == nil && mark.Now > c.now {
			return fmt.Errorf("the mark %d lies in the future", mark.Now)
		}
		return err
	}
	if _, err := keys.ParseSidecarKey(key); err == nil {
		_, err = codec.DecodeSidecar(value)
		return err
	}
	if deadline, user, _, err := keys.ParseRequestKey(nil, key); err == nil {
		r, err := codec.DecodeRequest(value)
		c.spent[window{string(user), deadline}] += r.Cost
		return err
	}
	if slice, user, ordinal, err := keys.ParseChunkKey(nil, key); err == nil {
		return c.chunk(slice, string(user), ordinal, value)
	}
	slice, user, err := keys.ParseHead(nil, key)
	if err != nil {
		return err
	}
	if want := keys.Slice(user); slice != want {
		return fmt.Errorf("slice %d, want %d", slice, want)
	}
	c.heads[string(user)], err = codec.DecodeState(value)
	return err
}

func (c *checker) chunk(slice uint16, user string, ordinal int64, value []byte) error {
	chunk, err := codec.DecodeChunk(value)
	if err != nil {
		return err
	}
	span, found := c.next[user]
	switch {
	case slice != c.l.keys.Slice([]byte(user)):
		return fmt.Errorf("a chunk in slice %d", slice)
	case chunk.Runs[0].Ordinal != ordinal:
		return fmt.Errorf("it begins at ordinal %d", chunk.Runs[0].Ordinal)
	case !found:
		span.From = ordinal
	case ordinal != span.To:
		return fmt.Errorf("it follows a chunk that ends at %d", span.To)
	}
	span.To = chunk.Next
	c.next[user] = span
	return nil
}

// agree tells whether heads and what lies beside them say the same.
func (c *checker) agree() error {
	for w, spent := range c.spent {
		if w.deadline <= c.now {
			continue // they may stay until they are purged
		}
		if q := c.heads[w.key].Quota; q.Deadline != w.deadline {
			return fmt.Errorf("%q has request records until %d, and its head says %d", w.key, w.deadline, q.Deadline)
		} else if q.Used != spent {
			return fmt.Errorf("%q has spent %d on its requests, and its head says %d", w.key, spent, q.Used)
		}
	}
	for key, s := range c.heads {
		if q := s.Quota; q.Deadline > c.now && c.spent[window{key, q.Deadline}] != q.Used {
			return fmt.Errorf("%q has no request records for the %d that it has spent", key, q.Used)
		}
		if s.Kind == limit.KindRolling {
			want, got := s.Rolling.Chunks(), c.next[key]
			if got != want && !want.Empty() {
				return fmt.Errorf("%q has chunks %v, want %v", key, got, want)
			}
		}
	}
	for key, span := range c.next {
		if s := c.heads[key]; s.Kind != limit.KindRolling || s.Rolling.Chunks() != span {
			return fmt.Errorf("%q has chunks %v and no list that they belong to", key, span)
		}
	}
	return nil
}

// Visible tells what Pebble shows of key, be it on disk or not.
func (l *Limiter) Visible(key []byte) (Stat, error) {
	state, err := l.get(l.keys.AppendHead(nil, l.keys.Slice(key), key))
	return statOf(state, 0), err
}

// Borrow starts a limiter on what lies under prefix in db, which somebody else
// has opened and, once the limiter is closed, is to close. Pebble tells it
// nothing of the tables that it writes.
func Borrow(db *pebble.DB, prefix []byte, opts Options) (*Limiter, error) {
	l, err := newLimiter(codec.Keyspace{Prefix: prefix}, &opts)
	if err != nil {
		return nil, err
	}
	l.db = db
	mark, _, err := l.identify(fmt.Sprintf("what is under %q", prefix), &l.keys)
	if err != nil {
		return nil, err
	}
	if err := l.start(mark); err != nil {
		return nil, err
	}
	return l, nil
}

// Keys returns how the keys of the store under l are laid out.
func (l *Limiter) Keys() codec.Keyspace { return l.keys }
