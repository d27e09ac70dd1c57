package engine_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// charge charges one event to each of the keys from first to before end.
func charge(t testing.TB, l *engine.Limiter, first, end int, r limit.Rate) {
	t.Helper()
	var ops []engine.Op
	for i := first; i < end; i++ {
		ops = append(ops, engine.Op{Key: nth(i), Rate: r, N: 1})
	}
	for i, r := range l.Do(ops, nil) {
		if !r.Decision.Allowed || r.Err != nil {
			t.Fatalf("Throttle(%q) = %+v", ops[i].Key, r)
		}
	}
}

func TestScan(t *testing.T) {
	const keys = 20_000
	opts := engine.Options{FS: vfs.NewMem(), Durability: engine.Interval}
	l := open(t, "store", opts)
	charge(t, l, 0, keys, limit.PerDay(1))
	for _, count := range []int{30, 1000, math.MaxInt} {
		got := scan(t, l, count)
		for i := range keys {
			if !got[string(nth(i))].Exists() {
				t.Fatalf("Scan by %d does not visit %q", count, nth(i))
			}
		}
		if len(got) != keys {
			t.Errorf("Scan by %d visits %d keys, want %d", count, len(got), keys)
		}
	}
	if n, err := l.Len(); n != keys || err != nil {
		t.Errorf("Len = %d, %v, want %d", n, err, keys)
	}
	if n := l.Metrics().Records; n != keys {
		t.Errorf("Metrics count %d records, want %d", n, keys)
	}

	// The cursor outlives the limiter.
	visits := map[string]int{}
	for cursor, first := 0, true; first || cursor != 0; first = false {
		var err error
		if cursor, err = l.Scan(cursor, 4000, func(key []byte, _ engine.Stat) { visits[string(key)]++ }); err != nil {
			t.Fatal(err)
		}
		l = reopen(t, l, "store", opts)
	}
	for i := range keys {
		if n := visits[string(nth(i))]; n != 1 {
			t.Fatalf("Scan across reopens visits %q %d times", nth(i), n)
		}
	}
}

// TestScanAmongWriters scans while others charge keys that stay, and create
// and delete others.
func TestScanAmongWriters(t *testing.T) {
	const stay, all = 3000, 6000
	l := open(t, "store", engine.Options{})
	rate := limit.Rate{Burst: 1 << 30, Count: 1, Period: time.Hour}
	charge(t, l, 0, stay, rate)
	var (
		stop    atomic.Bool
		writers sync.WaitGroup
	)
	for w := range uint64(4) {
		writers.Go(func() {
			rng := rand.New(rand.NewPCG(w, 0))
			ops := make([]engine.Op, 50)
			for !stop.Load() {
				for i := range ops {
					n := rng.IntN(all)
					ops[i] = engine.Op{Key: nth(n), Rate: rate, N: 1}
					if n >= stay && rng.IntN(2) == 0 {
						ops[i].Verb = engine.OpReset
					}
				}
				for i, r := range l.Do(ops, nil) {
					if r.Err != nil {
						t.Errorf("%+v: %v", ops[i], r.Err)
						return
					}
				}
			}
		})
	}
	for range 3 {
		got := scan(t, l, 20)
		missing := 0
		for i := range stay {
			if !got[string(nth(i))].Exists() {
				missing++
			}
		}
		if missing > 0 {
			t.Errorf("Scan does not visit %d of %d keys that stay", missing, stay)
		}
	}
	stop.Store(true)
	writers.Wait()
}

func TestExpiredKeysAreAbsent(t *testing.T) {
	clock := newManualClock(epoch)
	l := open(t, "store", engine.Options{Now: clock.Now})
	short := limit.Rate{Count: 1, Period: 10 * time.Second}
	charge(t, l, 0, 100, short)
	charge(t, l, 100, 200, limit.Rate{Count: 1, Period: 20 * time.Second})
	check := func(live int) {
		t.Helper()
		if n := len(scan(t, l, 10)); n != live {
			t.Errorf("Scan visits %d keys, want %d", n, live)
		}
		if n, err := l.Len(); n != int64(live) || err != nil {
			t.Errorf("Len = %d, %v, want %d", n, err, live)
		}
	}
	clock.Advance(10*time.Second - 1)
	check(200)
	if got, err := l.TTL(nth(0)); got != 1 || err != nil {
		t.Errorf("TTL before the deadline = %v, %v, want 1ns", got, err)
	}
	clock.Advance(1)
	check(100)
	if s, err := l.Stat(nth(0)); s != (engine.Stat{}) || err != nil {
		t.Errorf("Stat = %+v, %v, want none", s, err)
	}
	if d, err := l.Probe(nth(0), short, 1); !d.Allowed || err != nil {
		t.Errorf("Probe = %+v, %v, want it allowed", d, err)
	}
	if found, err := l.Reset(nth(0)); found || err != nil {
		t.Errorf("Reset = %t, %v, want false", found, err)
	}
	if n := len(records(t, l)); n != 200 {
		t.Errorf("the store holds %d records, want all 200", n)
	}
	if m := l.Metrics(); m.Records != 200 || m.Expired != 100 {
		t.Errorf("Metrics count %d records and %d expired, want 200 and 100", m.Records, m.Expired)
	}
}

func TestScanCursor(t *testing.T) {
	l := open(t, "store", engine.Options{})
	charge(t, l, 0, 10, limit.PerDay(1))
	for _, c := range []struct {
		cursor int
		ok     bool
	}{
		{math.MinInt, false},
		{-1, false},
		{0, true},
		{engine.ScanEnd - 1, true},
		{engine.ScanEnd, false},
		{math.MaxInt, false},
	} {
		visited := 0
		_, err := l.Scan(c.cursor, 10, func([]byte, engine.Stat) { visited++ })
		if c.ok != (err == nil) || !c.ok && (!errors.Is(err, limit.ErrInvalid) || visited > 0) {
			t.Errorf("Scan(%d): %v after %d keys, want it accepted: %t", c.cursor, err, visited, c.ok)
		}
	}
	// A count of nothing still gets on.
	if got := scan(t, l, 0); len(got) != 10 {
		t.Errorf("Scan by 0 visits %d keys, want 10", len(got))
	}
}

// TestResetAll forgets keys that are in tables, applied and only staged.
func TestResetAll(t *testing.T) {
	for _, d := range []engine.Durability{engine.Always, engine.Interval, engine.Never} {
		t.Run(d.String(), func(t *testing.T) {
			opts := engine.Options{FS: vfs.NewMem(), Durability: d, SyncInterval: time.Hour}
			l := open(t, "store", opts)
			charge(t, l, 0, 100, limit.PerDay(1))
			flush(t, l)
			charge(t, l, 100, 200, limit.PerDay(1))
			if err := l.Sync(); err != nil {
				t.Fatal(err)
			}
			charge(t, l, 200, 300, limit.PerDay(1))
			if err := l.ResetAll(); err != nil {
				t.Fatal(err)
			}
			if got := scan(t, l, 10); len(got) > 0 {
				t.Errorf("%d keys are left", len(got))
			}
			charge(t, l, 0, 300, limit.PerDay(1))
			l = reopen(t, l, "store", opts)
			if n, err := l.Len(); n != 300 || err != nil {
				t.Errorf("Len = %d, %v, want 300", n, err)
			}
		})
	}
}

// TestResetAllIsSynced forgets all keys of a store that is then left alone.
func TestResetAllIsSynced(t *testing.T) {
	for _, d := range []engine.Durability{engine.Always, engine.Interval, engine.Never} {
		t.Run(d.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var syncs atomic.Int64
				fs := newWatchedFS()
				fs.before = func(op errorfs.Op) {
					if op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData {
						syncs.Add(1)
					}
				}
				l := open(t, "store", engine.Options{FS: fs, Durability: d, SyncInterval: time.Second})
				charge(t, l, 0, 10, limit.PerDay(1))
				time.Sleep(2 * time.Second)
				synctest.Wait()
				before := syncs.Load()
				if err := l.ResetAll(); err != nil {
					t.Fatal(err)
				}
				time.Sleep(2 * time.Second)
				synctest.Wait()
				if n := syncs.Load() - before; (n > 0) != (d != engine.Never) {
					t.Errorf("%d syncs", n)
				}
			})
		})
	}
}

// TestScanIsBounded scans a store whose records have nearly all expired. One
// call looks at no more than it was told and the rest of a slice.
func TestScanIsBounded(t *testing.T) {
	clock := newManualClock(epoch)
	l := open(t, "store", engine.Options{Now: clock.Now})
	charge(t, l, 0, 5000, limit.PerSecond(10))
	clock.Advance(time.Hour)
	charge(t, l, 5000, 5001, limit.PerDay(10))
	calls, visited := 0, 0
	for cursor := 0; ; calls++ {
		next, err := l.Scan(cursor, 10, func([]byte, engine.Stat) { visited++ })
		if err != nil {
			t.Fatal(err)
		}
		if cursor = next; cursor == 0 {
			break
		}
	}
	if visited != 1 || calls < 300 {
		t.Errorf("%d calls of Scan(…, 10) have visited %d keys of 1 that is live among 5000", calls, visited)
	}
}
