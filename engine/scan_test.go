package engine_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
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
	if m := l.Metrics(); m.Records != 200 {
		t.Errorf("Metrics count %d records, want 200", m.Records)
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

// TestScanWhilePurging scans some hundred thousand keys of all kinds while half
// of them expire and are purged, and others are charged. Each that stays is
// visited exactly once, none after its end, and calls on other keys go on.
func TestScanWhilePurging(t *testing.T) {
	keys := 200_000
	if testing.Short() {
		keys = 30_000
	}
	clock := newManualClock(epoch)
	l := open(t, "store", engine.Options{Now: clock.Now, NoPurge: true})
	day, minute := limit.PerDay(1), limit.PerMinute(1)
	ops := make([]engine.Op, 1000)
	for first := 0; first < keys; first += len(ops) {
		for i := range ops {
			op := engine.Op{Key: nth(first + i), N: 1}
			switch life := []time.Duration{time.Minute, 24 * time.Hour}[i%2]; i / 2 % 3 {
			case 0:
				op.Verb, op.Rate = engine.OpThrottle, []limit.Rate{minute, day}[i%2]
			case 1:
				op.Verb, op.ID, op.Quota = engine.OpTakeQuota, "id", limit.Quota{Limit: 1, Window: life}
			case 2:
				op.Verb, op.Rolling = engine.OpAllow, limit.Rolling{Limit: 1, Window: life}
			}
			ops[i] = op
		}
		for _, r := range l.Do(ops, nil) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
	}
	clock.Advance(30 * time.Second)
	stop := make(chan struct{})
	var others sync.WaitGroup
	charges := 0
	others.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := l.Throttle([]byte("busy"), wide, 1); err != nil {
				t.Error(err)
				return
			}
			charges++
		}
	})
	visits := make([]int, keys)
	purged := make(chan error, 1)
	for cursor, step, first := 0, 0, true; first || cursor != 0; first, step = false, step+1 {
		if step == 50 {
			clock.Advance(time.Minute) // the half that lives for one is over
			go func() { purged <- l.Purge(t.Context()) }()
		}
		var err error
		cursor, err = l.Scan(cursor, keys/200, func(key []byte, s engine.Stat) {
			if string(key) == "busy" {
				return
			}
			n, err := strconv.Atoi(strings.TrimPrefix(string(key), "key:"))
			if err != nil {
				t.Fatalf("Scan visits %q", key)
			}
			if visits[n]++; n%2 == 0 && step > 50 {
				t.Errorf("Scan visits %q, which is over", key)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := <-purged; err != nil {
		t.Error(err)
	}
	close(stop)
	others.Wait()
	for n, times := range visits {
		if times > 1 || times == 0 && n%2 == 1 {
			t.Fatalf("Scan visits key %d, of which one in two stays, %d times", n, times)
		}
	}
	if n, err := l.Len(); n != int64(keys/2+1) || err != nil {
		t.Errorf("Len = %d, %v, want %d", n, err, keys/2+1)
	}
	// The busy key, too, may be over for a moment when the clock leaps.
	if m := l.Metrics(); m.Purged < uint64(keys/2) || m.Purged > uint64(keys/2+1) || charges == 0 {
		t.Errorf("%d keys were purged, want %d; %d charges went on", m.Purged, keys/2, charges)
	}
}
