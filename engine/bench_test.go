package engine_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// Benchmarks run on the disk that holds the temporary directory:
//
//	go test ./engine -run '^$' -bench Throttle/always/warm -benchtime 3s -count 5

// Every key is charged once under usedUp, which then denies it for a day;
// wide lets it pass for ever.
var (
	usedUp = limit.PerDay(1)
	wide   = limit.Rate{Burst: 1 << 40, Count: 1000, Period: time.Second}
)

// benchKeys are the sets of keys that benchmarks draw from.
var benchKeys = []struct {
	name      string
	n         int
	cacheSize int64
}{
	{"hot", 1, 0},                // one key
	{"warm", 1_000_000, 1 << 30}, // all in the cache
	{"cold", 1_000_000, 1},       // all in tables
}

// benchCallers are how many goroutines call at once, each with how many
// operations at a time.
var benchCallers = []struct {
	name              string
	callers, pipeline int
}{
	{"1", 1, 1},
	{"64", 64, 1},
	{"256", 256, 1},
	{"64x32", 64, 32},
}

// forCallers opens a store of keys and runs op on keys drawn at random, for all
// numbers of callers.
func forCallers(b *testing.B, d engine.Durability, keys, cacheSize int64, op engine.Op) {
	l := open(b, b.TempDir(), engine.Options{FS: vfs.Default, Durability: d, CacheSize: cacheSize})
	names := make([][]byte, keys)
	for i := range names {
		names[i] = nth(i)
	}
	for first := 0; first < len(names); first += 10_000 {
		charge(b, l, first, min(first+10_000, len(names)), usedUp)
	}
	flush(b, l)
	for _, c := range benchCallers {
		b.Run(c.name, func(b *testing.B) { runCallers(b, l, c.callers, c.pipeline, names, op) })
	}
}

// runCallers runs op b.N times.
func runCallers(b *testing.B, l *engine.Limiter, callers, pipeline int, names [][]byte, op engine.Op) {
	var left atomic.Int64
	left.Store(int64(b.N))
	b.ReportAllocs()
	b.ResetTimer()
	var wg sync.WaitGroup
	for c := range uint64(callers) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, c))
			ops := make([]engine.Op, pipeline)
			results := make([]engine.Result, 0, pipeline)
			for {
				n := min(left.Add(-int64(pipeline))+int64(pipeline), int64(pipeline))
				if n <= 0 {
					return
				}
				for i := range ops[:n] {
					ops[i] = op
					ops[i].Key = names[rng.IntN(len(names))]
				}
				results = l.Do(ops[:n], results[:0])
				for i := range results {
					if results[i].Err != nil {
						b.Error(results[i].Err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
}

func BenchmarkThrottle(b *testing.B) {
	for _, d := range []engine.Durability{engine.Always, engine.Interval, engine.Never} {
		for _, k := range benchKeys {
			b.Run(fmt.Sprintf("%v/%s", d, k.name), func(b *testing.B) {
				forCallers(b, d, int64(k.n), k.cacheSize, engine.Op{Verb: engine.OpThrottle, Rate: wide, N: 1})
			})
		}
	}
}

func BenchmarkProbe(b *testing.B) {
	for _, k := range benchKeys {
		b.Run(k.name, func(b *testing.B) {
			forCallers(b, engine.Always, int64(k.n), k.cacheSize, engine.Op{Verb: engine.OpProbe, Rate: wide, N: 1})
		})
	}
}

func BenchmarkDenial(b *testing.B) {
	for _, k := range benchKeys {
		b.Run(k.name, func(b *testing.B) {
			forCallers(b, engine.Always, int64(k.n), k.cacheSize, engine.Op{Verb: engine.OpThrottle, Rate: usedUp, N: 1})
		})
	}
}

// BenchmarkView probes a hundred keys in one view.
func BenchmarkView(b *testing.B) {
	l := open(b, b.TempDir(), engine.Options{FS: vfs.Default})
	charge(b, l, 0, 100_000, usedUp)
	flush(b, l)
	names := make([][]byte, 100_000)
	for i := range names {
		names[i] = nth(i)
	}
	rng := rand.New(rand.NewPCG(1, 0))
	b.ReportAllocs()
	for b.Loop() {
		err := l.View(func(v *engine.View) error {
			for range 100 {
				if _, err := v.Probe(names[rng.IntN(len(names))], wide, 1); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLen counts a hundred thousand keys.
func BenchmarkLen(b *testing.B) {
	l := open(b, b.TempDir(), engine.Options{FS: vfs.Default})
	charge(b, l, 0, 100_000, usedUp)
	flush(b, l)
	for b.Loop() {
		if n, err := l.Len(); n != 100_000 || err != nil {
			b.Fatal(n, err)
		}
	}
}
