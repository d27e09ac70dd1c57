package engine_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/codec"
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
	reportWritten(b, l.DB(), cpu)
	m := l.Metrics()
	b.ReportMetric(float64(m.DiskBytes)/(1<<20), "disk-MB")
	b.Logf("records %d, expired %d, purged %d in %d passes", m.Records, m.Expired, m.Purged, m.PurgePasses)
}

// BenchmarkExpiryDesigns sets what it costs to find expired keys by a pass over
// slices beside what it costs to find them by an index, in which every key has
// a record under its deadline. It is the same churn on Pebble alone, in batches
// of 256 by one writer, on a clock by which each operation takes 5 us.
//
//	go test ./engine -run '^$' -bench ExpiryDesigns -benchtime 5000000x
func BenchmarkExpiryDesigns(b *testing.B) {
	for _, d := range []string{"none", "slices", "index"} {
		b.Run(d, func(b *testing.B) { expiryDesign(b, d) })
	}
}

func expiryDesign(b *testing.B, design string) {
	const (
		batchSize = 256
		opTime    = 5 * time.Microsecond
		life      = 3 * time.Second
		fresh     = 100_000
		record    = 12 // bytes
	)
	l := open(b, b.TempDir(), engine.Options{FS: vfs.Default, NoPurge: true}) // for its settings of Pebble
	db := l.DB()
	keys := codec.Keyspace{Prefix: []byte{0x80}}
	rng := rand.New(rand.NewPCG(1, 1))
	var deadlines []int64 // by key
	headOf := func(n int64) []byte { return keys.AppendHead(nil, keys.Slice(nth(int(n))), nth(int(n))) }
	indexOf := func(deadline, n int64) []byte {
		return append(binary.BigEndian.AppendUint64([]byte{0x81}, uint64(deadline)), nth(int(n))...)
	}
	must := func(err error) {
		if err != nil {
			b.Fatal(err)
		}
	}
	now := int64(1)
	purge := func(batch *pebble.Batch) {
		bounds := &pebble.IterOptions{LowerBound: []byte{0x80}, UpperBound: []byte{0x81}}
		if design == "index" {
			bounds = &pebble.IterOptions{LowerBound: []byte{0x81}, UpperBound: binary.BigEndian.AppendUint64([]byte{0x81}, uint64(now+1))}
		}
		it, err := db.NewIter(bounds)
		must(err)
		for it.First(); it.Valid(); it.Next() {
			if design == "index" {
				key := it.Key()[9:]
				must(batch.Delete(keys.AppendHead(nil, keys.Slice(key), key), nil))
			} else if int64(binary.BigEndian.Uint64(it.Value())) <= now {
				must(batch.Delete(it.Key(), nil))
			}
		}
		must(it.Close())
		if design == "index" {
			must(batch.DeleteRange(bounds.LowerBound, bounds.UpperBound, nil))
		}
	}
	cpu := cpuTime(b)
	b.ResetTimer()
	purged := now
	for done := 0; done < b.N; done += batchSize {
		batch := db.NewBatch()
		for i := range batchSize {
			now += int64(opTime)
			n := int64(len(deadlines)) - 1 - rng.Int64N(fresh)
			if i%2 == 0 || n < 0 {
				n = int64(len(deadlines))
				deadlines = append(deadlines, 0)
			}
			old := deadlines[n]
			deadlines[n] = now + int64(life)
			value := binary.BigEndian.AppendUint64(make([]byte, 0, record), uint64(deadlines[n]))[:record]
			must(batch.Set(headOf(n), value, nil))
			if design == "index" {
				must(batch.Set(indexOf(deadlines[n], n), nil, nil))
				if old > now {
					must(batch.Delete(indexOf(old, n), nil))
				}
			}
		}
		if design != "none" && now-purged >= int64(life/4) {
			purged = now
			purge(batch)
		}
		must(db.Apply(batch, pebble.Sync))
	}
	b.StopTimer()
	reportWritten(b, db, cpuTime(b)-cpu)
	must(db.DeleteRange([]byte{0x80}, []byte{0x82}, pebble.Sync))
}

// reportWritten reports what b.N operations took of the processor, and had
// Pebble write.
func reportWritten(b *testing.B, db *pebble.DB, cpu time.Duration) {
	log, flushed, compacted := written(db)
	n := float64(b.N)
	b.ReportMetric(n/b.Elapsed().Seconds(), "ops/s")
	b.ReportMetric(float64(cpu.Nanoseconds())/n, "cpu-ns/op")
	b.ReportMetric(float64(log)/n, "log-B/op")
	b.ReportMetric(float64(flushed)/n, "flushed-B/op")
	b.ReportMetric(float64(compacted)/n, "compacted-B/op")
	b.ReportMetric(float64(log+flushed+compacted)/n, "written-B/op")
}
