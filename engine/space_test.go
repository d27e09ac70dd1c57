package engine_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// TestOneShotKeysLeave makes a million keys, or ten, that are used once and
// live for seconds to minutes. When the last has been over for the longest wait
// hardly anything of them may be left, in the store or in memory, though nobody
// has asked for it.
func TestOneShotKeysLeave(t *testing.T) {
	keys := 1_000_000
	switch {
	case *crashFor > 0:
		keys *= 10
	case testing.Short():
		keys /= 10
	}
	const pipeline = 1000
	clock := newManualClock(epoch)
	l := open(t, t.TempDir(), engine.Options{FS: vfs.Default, Now: clock.Now, CacheSize: 1 << 20, BlockCacheSize: 1 << 20})
	ops := make([]engine.Op, pipeline)
	var results []engine.Result
	var last time.Duration // the longest life of a key
	var used []uint64      // memory, from time to time
	for first := 0; first < keys; first += pipeline {
		for i := range ops {
			life := time.Second << ((first + i) % 9) // to 4 min 16 s
			last = max(last, life)
			ops[i] = engine.Op{Verb: engine.OpThrottle, Key: nth(first + i), Rate: limit.Rate{Count: 1, Period: life}, N: 1}
		}
		results = l.Do(ops, results[:0])
		for _, r := range results {
			if r.Err != nil || !r.Decision.Allowed {
				t.Fatalf("a new key is answered %+v, %v", r.Decision, r.Err)
			}
		}
		clock.Advance(time.Second)
		if first%(keys/10) == 0 {
			used = append(used, heapInUse())
		}
	}
	clock.Advance(last + engine.DefaultPurgeWait)
	settled := func() (left int, size int64) {
		left = len(contents(t, l.DB()))
		m := l.DB().Metrics()
		for i := range m.Levels {
			size += m.Levels[i].TablesSize
		}
		return left, size
	}
	left, size := settled()
	for tries := 0; (left >= 1000 || size >= 2<<20) && tries < 1200; tries++ {
		time.Sleep(50 * time.Millisecond)
		left, size = settled()
	}
	m := l.Metrics()
	t.Logf("%d records in tables of %d bytes are left of %d keys; %d purged in %d passes; memory in use was %d", left, size, keys, m.Purged, m.PurgePasses, used)
	if left >= 1000 || size >= 2<<20 {
		t.Errorf("%d records in tables of %d bytes are left, want less than 1000 in 2 MiB:\n%v", left, size, l.DB().Metrics())
	}
	if m.Purged != uint64(keys) {
		t.Errorf("%d keys were purged, want %d", m.Purged, keys)
	}
	if testing.Short() {
		return // under the race detector Pebble's memtables, which grow at first, are on the heap
	}
	for _, n := range used[2:] {
		if n > 2*used[1] {
			t.Errorf("memory in use grew from %d to %d", used[1], n)
		}
	}
}

// heapInUse returns how many bytes of memory are in use.
func heapInUse() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapInuse
}
