package engine_test

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// TestCacheUnderLoad charges many more keys than the cache has room for. It
// may exceed its size by the entries of one pipeline, and of each shard one.
func TestCacheUnderLoad(t *testing.T) {
	const keys, pipeline, size, entrySize = 5000, 50, 128 << 10, 171
	clock := newManualClock(epoch)
	l := open(t, "store", engine.Options{CacheSize: size, Now: clock.Now})
	rate := limit.PerDay(100)
	rng := rand.New(rand.NewPCG(1, 0))
	charges := make([]int64, keys)
	for range 500 {
		ops := make([]engine.Op, pipeline)
		want := make([]int64, pipeline)
		for i := range ops {
			n := rng.IntN(keys)
			ops[i] = engine.Op{Key: nth(n), Rate: rate, N: 1}
			charges[n]++
			want[i] = rate.Burst + 1 - charges[n]
		}
		for i, r := range l.Do(ops, nil) {
			if r.Decision.Remaining != want[i] || r.Err != nil {
				t.Fatalf("Throttle(%q) = %+v, want %d remaining", ops[i].Key, r, want[i])
			}
		}
		if m := l.Metrics(); m.CacheBytes > size+(pipeline+64)*entrySize {
			t.Fatalf("the cache holds %d bytes in %d entries, want about %d", m.CacheBytes, m.CacheEntries, size)
		}
	}
	if m := l.Metrics(); m.CacheEntries < size/entrySize || m.CacheHits == 0 || m.CacheMisses < keys {
		t.Errorf("metrics = %+v: the cache is of no use", m)
	}
}

// TestExactUnderEviction has many callers use up the limits of keys that don't
// all fit into the cache.
func TestExactUnderEviction(t *testing.T) {
	const keys, callers, burst = 300, 16, 9
	for _, d := range []engine.Durability{engine.Always, engine.Interval, engine.Never} {
		t.Run(d.String(), func(t *testing.T) {
			clock := newManualClock(epoch)
			l := open(t, "store", engine.Options{Durability: d, Now: clock.Now, CacheSize: 1, SyncInterval: time.Millisecond})
			rate := limit.Rate{Burst: burst, Count: 1, Period: time.Hour}
			var admitted [keys]atomic.Int64
			var wg sync.WaitGroup
			for c := range uint64(callers) {
				wg.Go(func() {
					rng := rand.New(rand.NewPCG(c, 0))
					for range 2 {
						order := rng.Perm(keys)
						for len(order) > 0 {
							n := min(1+rng.IntN(20), len(order))
							var ops []engine.Op
							for _, i := range order[:n] {
								ops = append(ops, engine.Op{Key: nth(i), Rate: rate, N: 1})
							}
							for i, r := range l.Do(ops, nil) {
								if r.Err != nil {
									t.Error(r.Err)
								} else if r.Decision.Allowed {
									admitted[order[i]].Add(1)
								}
							}
							order = order[n:]
						}
					}
				})
			}
			wg.Wait()
			for i := range admitted {
				if n := admitted[i].Load(); n != burst+1 {
					t.Errorf("%q admitted %d, want %d", nth(i), n, burst+1)
				}
			}
		})
	}
}

// TestExactOnOneKey has many callers use up the limit of one key, some of them
// event by event, some by more.
func TestExactOnOneKey(t *testing.T) {
	for _, d := range []engine.Durability{engine.Always, engine.Interval} {
		t.Run(d.String(), func(t *testing.T) {
			clock := newManualClock(epoch)
			l := open(t, "store", engine.Options{Durability: d, Now: clock.Now})
			rate := limit.PerDay(1000)
			var admitted atomic.Int64
			var wg sync.WaitGroup
			for c := range int64(64) {
				wg.Go(func() {
					for n := 1 + c%3; n > 0; {
						d, err := l.Throttle(nth(0), rate, n)
						switch {
						case err != nil:
							t.Error(err)
							return
						case d.Allowed:
							admitted.Add(n)
						default:
							n--
						}
					}
				})
			}
			wg.Wait()
			if n := admitted.Load(); n != 1000 {
				t.Errorf("admitted %d, want 1000", n)
			}
		})
	}
}
