package engine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// TestPurgeToTheNanosecond purges at the last instant of a record and at its
// deadline.
func TestPurgeToTheNanosecond(t *testing.T) {
	clock := newManualClock(epoch)
	opts := engine.Options{Now: clock.Now, NoPurge: true, FS: vfs.NewMem()}
	l := open(t, "store", opts)
	for i := range 20 {
		if _, err := l.Throttle(nth(i), limit.Rate{Burst: 1, Count: 1, Period: time.Second}, 1); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		at   time.Duration
		want int
	}{{time.Second - 1, 20}, {time.Second, 0}} {
		l = reopen(t, l, "store", opts) // with nothing in the cache
		clock.Set(epoch.Add(test.at))
		purgeNow(t, l)
		if got := len(records(t, l)); got != test.want {
			t.Errorf("%d records after a purge at %v, want %d", got, test.at, test.want)
		}
	}
}

// TestPurgeBringsItsMark has a second of two keys pass and be purged, and
// reopens the store after a power cut, with a wall clock that has gone back
// into it. By the engine's clock it must be over all the same, or more could be
// spent of it than the limit.
func TestPurgeBringsItsMark(t *testing.T) {
	quota := limit.Quota{Limit: 1, Window: time.Second}
	rate := limit.Rate{Count: 1, Period: time.Second}
	take := engine.Op{Verb: engine.OpTakeQuota, Key: []byte("quota"), ID: "id", Quota: quota, N: 1}
	throttle := engine.Op{Verb: engine.OpThrottle, Key: []byte("rate"), Rate: rate, N: 1}
	for _, test := range []struct {
		name  string
		op    engine.Op
		purge func(*engine.Limiter) error
		left  int // heads
	}{
		{"heads", throttle, func(l *engine.Limiter) error { return l.Purge(t.Context()) }, 0},
		// A pass to which no sidecar is worth it takes the requests alone.
		{"requests", take, engine.Pass, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			clock := newManualClock(epoch)
			fs := vfs.NewCrashableMem()
			opts := engine.Options{Now: clock.Now, NoPurge: true, FS: fs}
			l := open(t, "store", opts)
			if r := l.Do([]engine.Op{test.op}, nil)[0]; r.Err != nil {
				t.Fatal(r.Err)
			}
			over := clock.Now().Add(time.Second)
			clock.Set(over)
			must(t, func() error { return test.purge(l) }, l.Sync)
			heads, requests := 0, 0
			for stored := range contents(t, l.DB()) {
				if _, _, err := (codec.Keyspace{}).ParseHead(nil, []byte(stored)); err == nil {
					heads++
				} else if _, _, _, err := (codec.Keyspace{}).ParseRequestKey(nil, []byte(stored)); err == nil {
					requests++
				}
			}
			if heads != test.left || requests != 0 {
				t.Fatalf("%d heads and %d requests are left, want %d and 0", heads, requests, test.left)
			}
			clock.Set(epoch.Add(time.Second / 2))
			opts.FS = fs.CrashClone(vfs.CrashCloneCfg{})
			l = open(t, "store", opts)
			if got := l.Now(); got.Before(over) {
				t.Errorf("the clock says %v after a purge at %v", got, over)
			}
		})
	}
}

// TestPurgeStaged has keys of all kinds used while their purge is staged, and
// while it is still to come. Some begin anew, others are looked at only.
func TestPurgeStaged(t *testing.T) {
	const keys = 90
	rate := limit.Rate{Burst: 9, Count: 1, Period: time.Second}
	quota := limit.Quota{Limit: 9, Window: time.Second}
	list := limit.Rolling{Limit: 400, Window: time.Second}
	use := func(i int, id string) []engine.Op {
		op := engine.Op{Key: nth(i), N: 1}
		switch i % 3 {
		case 0:
			op.Verb, op.Rate = engine.OpThrottle, rate
		case 1:
			op.Verb, op.ID, op.Quota = engine.OpTakeQuota, id, quota
		case 2:
			op.Verb, op.Rolling = engine.OpAllow, list
		}
		return []engine.Op{op}
	}
	for _, cached := range []bool{true, false} {
		t.Run(fmt.Sprintf("cached=%t", cached), func(t *testing.T) {
			clock := newManualClock(epoch)
			opts := engine.Options{
				Now: clock.Now, NoPurge: true, FS: vfs.NewMem(),
				Durability: engine.Never, SyncInterval: time.Hour, // nothing is applied until somebody waits for it
			}
			l := open(t, "store", opts)
			fill := func(i int, id string) {
				t.Helper()
				n := 1
				if i%3 == 2 {
					n = 250 // so that there are chunks
				}
				for range n {
					clock.Advance(1)
					for _, r := range l.Do(use(i, id), nil) {
						if r.Err != nil || !r.Decision.Allowed && !r.Grant.Accepted && !r.Admission.Allowed || r.Grant.Replay || r.Grant.Used > 1 {
							t.Fatalf("%q: %+v, want it to begin anew", nth(i), r)
						}
					}
				}
			}
			for i := range keys {
				fill(i, "id")
			}
			must(t, l.Sync)
			clock.Advance(time.Minute)
			if !cached {
				l = reopen(t, l, "store", opts)
			}
			looks := 0
			l.OnLook(func() {
				if looks++; looks != 20 {
					return // of those before, the purge is staged by now
				}
				for i := range keys {
					if i%2 == 0 {
						fill(i, "id")
					} else if was, err := l.Reset(nth(i)); was || err != nil {
						t.Errorf("Reset(%q) = %t, %v, want false", nth(i), was, err)
					}
				}
			})
			purgeNow(t, l)
			if looks < 20 {
				t.Fatalf("the purge has looked %d times, want 20 or more", looks)
			}
			l.OnLook(nil)
			if err := l.Check(); err != nil {
				t.Fatal(err)
			}
			for i := range keys {
				if s, err := l.Stat(nth(i)); s.Exists() != (i%2 == 0) || err != nil {
					t.Errorf("Stat(%q) = %+v, %v", nth(i), s, err)
				}
				if n, err := l.Peek(nth(i), list); i%6 == 2 && (n != 250 || err != nil) {
					t.Errorf("Peek(%q) = %d, %v, want 250", nth(i), n, err)
				}
			}
		})
	}
}

// TestPurgeMeetsEviction has keys begin anew and leave the cache between a look
// of the purge, which finds one of them over, and its turn.
func TestPurgeMeetsEviction(t *testing.T) {
	const keys = 100
	clock := newManualClock(epoch)
	l := open(t, "store", engine.Options{Now: clock.Now, NoPurge: true, CacheSize: 1})
	charge := func(from, to int) {
		t.Helper()
		var ops []engine.Op
		for i := from; i < to; i++ {
			ops = append(ops, engine.Op{Key: nth(i), Rate: limit.Rate{Count: 1, Period: time.Second}, N: 1})
		}
		for i, r := range l.Do(ops, nil) {
			if !r.Decision.Allowed || r.Err != nil {
				t.Fatalf("Throttle(%q) = %+v", ops[i].Key, r)
			}
		}
	}
	charge(0, keys)
	clock.Advance(time.Minute)
	looked := false
	l.OnLook(func() {
		if !looked {
			looked = true
			charge(0, keys)
			charge(keys, 40*keys) // which takes all places in the cache
		}
	})
	purgeNow(t, l)
	l.OnLook(nil)
	if n, err := l.Len(); !looked || n != 40*keys || err != nil {
		t.Errorf("Len = %d, %v, want %d", n, err, 40*keys)
	}
}

// TestPurgeTakesWhatIsStaged purges keys that have expired before they were
// written to the store.
func TestPurgeTakesWhatIsStaged(t *testing.T) {
	clock := newManualClock(epoch)
	l := open(t, "store", engine.Options{
		Now: clock.Now, NoPurge: true, Durability: engine.Never, SyncInterval: time.Hour,
	})
	for i := range 20 {
		if _, err := l.Throttle(nth(i), limit.Rate{Count: 1, Period: time.Second}, 1); err != nil {
			t.Fatal(err)
		}
	}
	clock.Advance(time.Second)
	purgeNow(t, l)
	must(t, l.Sync)
	if got := records(t, l); len(got) != 0 {
		t.Errorf("%d records are left, want none", len(got))
	}
}
