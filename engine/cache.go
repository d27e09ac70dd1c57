package engine

import (
	"time"
	"unsafe"

	"github.com/gabiondb/gabion/engine/limit"
)

// entry is the decoded state of one key in a shard's cache.
type entry struct {
	key    string
	packed packedState
	slice  uint16
	used   bool  // since the hand last passed
	staged bool  // in a round that has not been cut
	place  int32 // in the cache's ring

	// round is the newest round that state can have come from: the one that
	// it was last staged in or, when it was read from the store, the newest
	// that was being applied then. An answer that rests on state waits for it.
	round uint64

	// stored is the deadline in the record that the rounds cut so far have
	// left of the key; 0 if they have left none, or unread.
	stored int64

	bytes int64 // what it counts for in its cache
}

// packedState is a limit.State in two thirds of the memory: the kinds share one
// place.
type packedState struct {
	kind    limit.Kind
	numbers [4]int64
	rolling *limit.RollingState
}

// set makes s the state of e.
func (e *entry) set(s limit.State) {
	e.packed = packedState{kind: s.Kind, rolling: s.Rolling}
	switch s.Kind {
	case limit.KindGCRA:
		e.packed.numbers = [4]int64{s.GCRA.Deadline, s.GCRA.Short, s.GCRA.Count}
	case limit.KindQuota:
		e.packed.numbers = [4]int64{s.Quota.Deadline, s.Quota.Used, s.Quota.Limit, int64(s.Quota.Window)}
	}
}

// state returns the state of e.
func (e *entry) state() limit.State {
	p := &e.packed
	s := limit.State{Kind: p.kind, Rolling: p.rolling}
	switch p.kind {
	case limit.KindGCRA:
		s.GCRA = limit.GCRAState{Deadline: p.numbers[0], Short: p.numbers[1], Count: p.numbers[2]}
	case limit.KindQuota:
		s.Quota = limit.QuotaState{Deadline: p.numbers[0], Used: p.numbers[1], Limit: p.numbers[2], Window: time.Duration(p.numbers[3])}
	}
	return s
}

// size returns what e takes in memory.
func (e *entry) size() int64 {
	n := entryOverhead + int64(len(e.key))
	if e.packed.kind == limit.KindRolling {
		n += e.packed.rolling.Size()
	}
	return n
}

// entryOverhead is what any entry takes in memory beside its key's bytes: the
// struct, the pointer in the ring, and its place in the map (a string header
// and a pointer in a table that is at least half full).
const entryOverhead = int64(unsafe.Sizeof(entry{})) + 8 + 2*24

// cache holds decoded states, up to a bound, by the second chance algorithm:
// a hand goes round the entries and takes the first that was not used since it
// last passed or, if it has come far without finding one, the next. It is
// guarded by its shard's mutex.
type cache struct {
	entries  map[string]*entry
	ring     []*entry
	hand     int
	bytes    int64
	capacity int64

	// evicted is the newest round that the state of an entry that is gone can
	// have come from. What is not in the cache has not changed since.
	evicted uint64

	hits, misses uint64
}

func newCache(capacity int64) cache {
	return cache{entries: make(map[string]*entry), capacity: capacity}
}

// get returns the entry of key, or nil.
func (c *cache) get(key []byte) *entry {
	e := c.entries[string(key)]
	if e == nil {
		c.misses++
		return nil
	}
	c.hit(e)
	return e
}

// hit notes that e, which is in the cache, was asked for.
func (c *cache) hit(e *entry) {
	c.hits++
	e.used = true
}

// maxEvictSteps bounds how far one call of add moves the hand. In the second
// half of them no entry gets a second chance, lest a cache whose entries are
// all in use outgrow its bound.
const maxEvictSteps = 64

// add puts a new entry in, and evicts others to make room. An entry whose
// round is after applied is not in the store yet and stays, so what is in
// flight may exceed the capacity.
func (c *cache) add(e *entry, applied uint64) {
	c.entries[e.key] = e
	e.place = int32(len(c.ring))
	c.ring = append(c.ring, e)
	c.resize(e, applied)
}

// keep puts e, which may be nil, back if it has been evicted. Only who has held
// the shard's mutex since e was in the cache may call it.
func (c *cache) keep(e *entry, applied uint64) {
	if e != nil && c.entries[e.key] == nil {
		c.add(e, applied)
	}
}

// resize takes note of the size of e, whose state has changed, and evicts
// others to make room.
func (c *cache) resize(e *entry, applied uint64) {
	size := e.size()
	c.bytes += size - e.bytes
	e.bytes = size
	for step := 0; c.bytes > c.capacity && step < maxEvictSteps; step++ {
		if c.hand >= len(c.ring) {
			c.hand = 0
		}
		switch old := c.ring[c.hand]; {
		case old == e || old.round > applied:
			c.hand++
		case old.used && step < maxEvictSteps/2:
			old.used = false
			c.hand++
		default:
			c.evict(old)
		}
	}
}

// evict drops e.
func (c *cache) evict(e *entry) {
	last := c.ring[len(c.ring)-1]
	c.ring[e.place], last.place = last, e.place
	c.ring[len(c.ring)-1] = nil
	c.ring = c.ring[:len(c.ring)-1]
	delete(c.entries, e.key)
	c.bytes -= e.bytes
	e.bytes = 0
	c.evicted = max(c.evicted, e.round)
}

// clear drops all entries.
func (c *cache) clear() {
	clear(c.entries)
	clear(c.ring)
	c.ring, c.hand, c.bytes = c.ring[:0], 0, 0
}
