package engine_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// cpuTime returns the processor time that the process has used.
func cpuTime(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// written returns what Pebble has written: to logs, by flushes, by compactions.
func written(db *pebble.DB) (log, flushed, compacted uint64) {
	m := db.Metrics()
	for i := range m.Levels {
		flushed += m.Levels[i].TableBytesFlushed
		compacted += m.Levels[i].TableBytesCompacted
	}
	return m.WAL.BytesWritten, flushed, compacted
}

// BenchmarkChurn is what it costs to purge: every other operation makes a key,
// and the others refresh one of the newest 100,000. Each lives for three
// seconds from then on. What it reports is per operation.
//
//	go test ./engine -run '^$' -bench Churn -benchtime 10000000x
func BenchmarkChurn(b *testing.B) {
	for _, purge := range []bool{false, true} {
		b.Run(fmt.Sprintf("purge=%t", purge), func(b *testing.B) { churn(b, purge) })
	}
}

func churn(b *testing.B, purge bool) {
	const callers, pipeline, fresh = 64, 32, 100_000
	l := open(b, b.TempDir(), engine.Options{FS: vfs.Default, NoPurge: !purge})
	rate := limit.Rate{Burst: 1 << 20, Count: 1, Period: 3 * time.Second}
	var left, made atomic.Int64
	left.Store(int64(b.N))
	cpu := cpuTime(b)
	b.ResetTimer()
	var wg sync.WaitGroup
	for c := range uint64(callers) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, c))
			ops := make([]engine.Op, pipeline)
			results := make([]engine.Result, 0, pipeline)
			for left.Add(-pipeline) >= 0 {
				for i := range ops {
					n := made.Load() - 1 - rng.Int64N(fresh)
					if i%2 == 0 || n < 0 {
						n = made.Add(1) - 1
					}
					ops[i] = engine.Op{Verb: engine.OpThrottle, Key: nth(int(n)), Rate: rate, N: 1}
				}
				results = l.Do(ops, results[:0])
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
	cpu = cpuTime(b) - cpu
	log, flushed, compacted := written(l.DB())
	n := float64(b.N)
	b.ReportMetric(n/b.Elapsed().Seconds(), "ops/s")
	b.ReportMetric(float64(cpu.Nanoseconds())/n, "cpu-ns/op")
	b.ReportMetric(float64(log)/n, "log-B/op")
	b.ReportMetric(float64(flushed)/n, "flushed-B/op")
	b.ReportMetric(float64(compacted)/n, "compacted-B/op")
	b.ReportMetric(float64(log+flushed+compacted)/n, "written-B/op")
	m := l.Metrics()
	b.ReportMetric(float64(m.DiskBytes)/(1<<20), "disk-MB")
	b.Logf("records %d, expired %d, purged %d in %d passes", m.Records, m.Expired, m.Purged, m.PurgePasses)
}
