package engine

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/gabiondb/gabion/engine/limit"
)

// checkCache compares what c says of itself with what it holds.
func checkCache(t *testing.T, c *cache) {
	t.Helper()
	var bytes int64
	for i, e := range c.ring {
		if c.entries[e.key] != e {
			t.Fatalf("place %d of the ring holds %q, which is not to be found", i, e.key)
		}
		bytes += entryOverhead + int64(len(e.key))
	}
	if len(c.entries) != len(c.ring) || c.bytes != bytes {
		t.Fatalf("%d entries of %d bytes, and %d in the ring of %d bytes", len(c.entries), c.bytes, len(c.ring), bytes)
	}
}

// TestCacheIsBounded adds keys of all lengths, a few or very many hits apart.
func TestCacheIsBounded(t *testing.T) {
	const applied = 5
	for _, hits := range []int{0, 1, 10, 1000} {
		rng := rand.New(rand.NewPCG(1, 0))
		c := newCache(40_000)
		for i := range 2000 {
			for range hits {
				if len(c.ring) > 0 {
					c.get([]byte(c.ring[rng.IntN(len(c.ring))].key))
				}
			}
			e := &entry{key: fmt.Sprint(i), round: applied}
			if rng.IntN(20) == 0 {
				e.key += strings.Repeat("x", rng.IntN(MaxKeyLen-10))
			}
			c.add(e, applied)
			if c.entries[e.key] != e {
				t.Fatalf("entry %d is gone at once", i)
			}
			if newest := entryOverhead + int64(len(e.key)); c.bytes > c.capacity && c.bytes-newest > c.capacity {
				t.Fatalf("%d hits apart: %d bytes after %d entries, want at most %d", hits, c.bytes, i+1, c.capacity)
			}
		}
		checkCache(t, &c)
	}
}

// TestCacheKeepsWhatIsInFlight fills a cache with entries that are not in the
// store yet, and then some that are.
func TestCacheKeepsWhatIsInFlight(t *testing.T) {
	const size = entryOverhead + 4
	c := newCache(10 * size)
	for i := range 200 {
		c.add(&entry{key: fmt.Sprintf("%04d", i), round: 2}, 1)
	}
	for i := range 200 {
		if c.get(fmt.Appendf(nil, "%04d", i)) == nil {
			t.Fatalf("entry %d is gone before it was applied", i)
		}
	}
	for i := range 20 {
		c.add(&entry{key: fmt.Sprintf("a%03d", i), round: 2}, 2)
	}
	if c.bytes > c.capacity {
		t.Errorf("%d bytes after all was applied, want at most %d", c.bytes, c.capacity)
	}
	checkCache(t, &c)
	c.clear()
	checkCache(t, &c)
	if c.bytes != 0 || c.get([]byte("a019")) != nil {
		t.Errorf("%d bytes are left after clear", c.bytes)
	}
}

// TestCacheGivesASecondChance keeps a few entries in use among many that are
// added once.
func TestCacheGivesASecondChance(t *testing.T) {
	const size = entryOverhead + 4
	c := newCache(100 * size)
	for i := range 10 {
		c.add(&entry{key: fmt.Sprintf("hot%d", i)}, 0)
	}
	for i := range 1000 {
		for h := range 10 {
			if c.get(fmt.Appendf(nil, "hot%d", h)) == nil {
				t.Fatalf("after %d others hot%d is gone", i, h)
			}
		}
		c.add(&entry{key: fmt.Sprintf("%04d", i)}, 0)
	}
}

// TestEntryState sets states of all kinds in one entry, in every order.
func TestEntryState(t *testing.T) {
	states := []limit.State{
		{},
		{Kind: limit.KindGCRA, GCRA: limit.GCRAState{Deadline: math.MaxInt64, Short: 2, Count: 3}},
		{Kind: limit.KindQuota, Quota: limit.QuotaState{Deadline: 4, Used: 5, Limit: limit.MaxLimit, Window: 7 * time.Hour}},
		{Kind: limit.KindRolling, Rolling: &limit.RollingState{Deadline: 8}},
	}
	for _, before := range states {
		for _, s := range states {
			var e entry
			e.set(before)
			e.set(s)
			if got := e.state(); got != s {
				t.Errorf("the state set after %+v is %+v, want %+v", before, got, s)
			}
		}
	}
	if reflect.TypeFor[limit.GCRAState]().NumField() != 3 || reflect.TypeFor[limit.QuotaState]().NumField() != 4 {
		t.Error("there are fields that this test does not know of")
	}
}

// TestEntrySize holds what a million cached keys take: 96 bytes are a size that
// the allocator has, and one more would be 112.
func TestEntrySize(t *testing.T) {
	if n := unsafe.Sizeof(entry{}); unsafe.Sizeof(uintptr(0)) == 8 && n != 96 {
		t.Errorf("an entry is %d bytes, want 96", n)
	}
}
