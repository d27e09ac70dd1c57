package engine_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
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

// BenchmarkUpdate charges a key and writes a row of 100 bytes, in one transaction
// in an application's store. Beside it the application does the same by itself, in
// a synced batch of its own.
func BenchmarkUpdate(b *testing.B) {
	db, err := pebble.Open(b.TempDir(), &pebble.Options{FormatMajorVersion: pebble.FormatNewest, MemTableSize: 16 << 20, Logger: quiet{}})
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	l, err := engine.New(db, &engine.Options{Prefix: []byte("limits/")})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	row := make([]byte, 100)
	write := func(batch *pebble.Batch, i int64) error {
		return batch.Set(fmt.Appendf(nil, "row:%d", i%100_000), row, nil)
	}
	for _, way := range []struct {
		name string
		do   func(i int64) error
	}{
		{"transaction", func(i int64) error {
			return l.Update(func(tx *engine.Tx) error {
				if _, err := tx.Throttle(nth(int(i)%1000), wide, 1); err != nil {
					return err
				}
				return write(tx.Batch(), i)
			})
		}},
		{"application", func(i int64) error {
			batch := db.NewBatch()
			defer batch.Close()
			if err := errors.Join(write(batch, i), write(batch, i+1)); err != nil {
				return err
			}
			return batch.Commit(pebble.Sync)
		}},
	} {
		for _, callers := range []int{1, 64, 256} {
			b.Run(fmt.Sprintf("%s/%d", way.name, callers), func(b *testing.B) {
				var done atomic.Int64
				b.ReportAllocs()
				b.ResetTimer()
				var wg sync.WaitGroup
				for range callers {
					wg.Go(func() {
						for i := done.Add(1); i <= int64(b.N); i = done.Add(1) {
							if err := way.do(i); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "ops/s")
			})
		}
	}
}

// BenchmarkThrottleAll charges ten keys together.
func BenchmarkThrottleAll(b *testing.B) {
	l := open(b, b.TempDir(), engine.Options{FS: vfs.Default, Durability: engine.Never})
	ops := make([]engine.Op, 10)
	for i := range ops {
		ops[i] = engine.Op{Verb: engine.OpThrottleAll, Key: nth(i), Rate: wide, N: 1}
	}
	ops[0].With = len(ops) - 1
	var results []engine.Result
	b.ReportAllocs()
	for b.Loop() {
		if results = l.Do(ops, results[:0]); results[0].Err != nil {
			b.Fatal(results[0].Err)
		}
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

// request makes request i of a quota, whose window closes after twice as many
// as size, so that this is how many records it has on average.
func request(t testing.TB, l *engine.Limiter, clock *manualClock, size, i int) {
	i %= 2 * size
	if i == 0 {
		clock.Advance(time.Hour)
	}
	q := limit.Quota{Limit: int64(2 * size), Window: time.Hour}
	if g, err := l.TakeQuota(quotaKey, fmt.Sprintf("request-%09d", i), q, 1); g.Used != int64(i+1) || err != nil {
		t.Fatalf("TakeQuota = %+v, %v, want it accepted", g, err)
	}
}

// event records the next event of a list with room for size of them in as many
// milliseconds. From then on one comes and one goes.
func event(t testing.TB, l *engine.Limiter, clock *manualClock, size, _ int) {
	clock.Advance(time.Millisecond)
	w := limit.Rolling{Limit: int64(size), Window: time.Duration(size) * time.Millisecond}
	if a, err := l.Allow(listKey, w); !a.Allowed || err != nil {
		t.Fatalf("Allow = %+v, %v, want it allowed", a, err)
	}
}

var quotaKey, listKey = []byte("quota"), []byte("list")

// use is request or event.
type use func(t testing.TB, l *engine.Limiter, clock *manualClock, size, i int)

// runSize uses a key that holds size requests or events, with each call
// in a round of its own under Always, and with as many as there are in one
// under Never.
func runSize(b *testing.B, d engine.Durability, size int, fn use) {
	clock := newManualClock(epoch)
	dir, opts := b.TempDir(), engine.Options{FS: vfs.Default, Durability: engine.Never, Now: clock.Now, QuotaMaxLimit: limit.MaxLimit}
	l := open(b, dir, opts)
	for i := range size {
		fn(b, l, clock, size, i)
	}
	opts.Durability = d
	l = reopen(b, l, dir, opts)
	written := l.DB().Metrics().WAL.BytesWritten
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		fn(b, l, clock, size, size+i)
	}
	b.StopTimer()
	if err := l.Sync(); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(l.DB().Metrics().WAL.BytesWritten-written)/float64(b.N), "walB/op")
}

func BenchmarkQuota(b *testing.B) {
	for _, d := range []engine.Durability{engine.Always, engine.Never} {
		for _, size := range []int{10, 10_000} {
			b.Run(fmt.Sprintf("%v/records=%d", d, size), func(b *testing.B) { runSize(b, d, size, request) })
		}
	}
}

func BenchmarkRolling(b *testing.B) {
	for _, d := range []engine.Durability{engine.Always, engine.Never} {
		for _, size := range []int{100, 10_000, 1_000_000} {
			b.Run(fmt.Sprintf("%v/limit=%d", d, size), func(b *testing.B) { runSize(b, d, size, event) })
		}
	}
}
