package engine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// take spends one of a quota's 1000 on each of n requests, from the first on.
func take(t *testing.T, l *engine.Limiter, key []byte, first, n int) {
	t.Helper()
	var ops []engine.Op
	for i := range n {
		ops = append(ops, engine.Op{Verb: engine.OpTakeQuota, Key: key, ID: fmt.Sprint(first + i), Quota: limit.Quota{Limit: 1000, Window: time.Hour}, N: 1})
	}
	for i, r := range l.Do(ops, nil) {
		if !r.Grant.Accepted || r.Grant.Replay || r.Err != nil {
			t.Fatalf("TakeQuota(%q, %q) = %+v, want it accepted", key, ops[i].ID, r)
		}
	}
}

// record records n events, 1 ms apart, in the rolling list of key.
func record(t *testing.T, l *engine.Limiter, clock *manualClock, key []byte, n int) {
	t.Helper()
	for range n {
		clock.Advance(time.Millisecond)
		if a, err := l.Allow(key, limit.Rolling{Limit: 100_000, Window: time.Hour}); !a.Allowed || err != nil {
			t.Fatalf("Allow(%q) = %+v, %v, want it allowed", key, a, err)
		}
	}
}

// TestFewAreDeletedOneByOne has keys forgotten together with what lies beside
// them, applied or only staged. Until it is flushed a range tombstone costs
// every read, so there must not be one for every key that is forgotten.
func TestFewAreDeletedOneByOne(t *testing.T) {
	clock := newManualClock(epoch)
	l := open(t, "store", engine.Options{Durability: engine.Interval, SyncInterval: time.Hour, Now: clock.Now, CacheSize: 1})
	quota, list := []byte("quota"), []byte("list")
	forget := map[string]func(key []byte){
		"reset": func(key []byte) {
			if found, err := l.Reset(key); !found || err != nil {
				t.Errorf("Reset(%q) = %t, %v, want true", key, found, err)
			}
		},
		"expiry": func(key []byte) {
			clock.Advance(time.Hour)
			if d, err := l.Throttle(key, limit.PerSecond(1), 1); !d.Allowed || err != nil {
				t.Errorf("Throttle(%q) = %+v, %v, want it allowed", key, d, err)
			}
			clock.Advance(time.Hour)
		},
	}
	for name, forget := range forget {
		for range 3 {
			// One half of it is in tables, a quarter in memory.
			take(t, l, quota, 0, 100)
			record(t, l, clock, list, 2000)
			flush(t, l)
			take(t, l, quota, 100, 50)
			record(t, l, clock, list, 1000)
			if err := l.Sync(); err != nil {
				t.Fatal(err)
			}
			take(t, l, quota, 150, 50)
			record(t, l, clock, list, 1000)
			forget(quota)
			forget(list)
			if n := l.RangeTombstones(); n > 0 {
				t.Errorf("%d range tombstones after %s", n, name)
			}
			if err := l.Check(); err != nil {
				t.Error(err)
			}
		}
	}

	take(t, l, quota, 0, 1000)
	record(t, l, clock, list, 20_000)
	for key, forget := range map[string]func(key []byte){"quota": forget["reset"], "list": forget["expiry"]} {
		flush(t, l)
		forget([]byte(key))
		if n := l.RangeTombstones(); n != 1 {
			t.Errorf("%d range tombstones for a long %s, want 1", n, key)
		}
	}
}

// TestBeginAnew forgets a quota and a long list, and uses both again at the
// same instant: the new window ends when the old one would have, and the new
// list numbers its events as the old one did.
func TestBeginAnew(t *testing.T) {
	for _, d := range []engine.Durability{engine.Always, engine.Interval, engine.Never} {
		t.Run(d.String(), func(t *testing.T) {
			clock := newManualClock(epoch)
			opts := engine.Options{Durability: d, SyncInterval: time.Hour, Now: clock.Now, CacheSize: 1, FS: vfs.NewMem()}
			l := open(t, "store", opts)
			quota, list := []byte("quota"), []byte("list")
			forget := map[string]func(){
				"Reset": func() {
					for _, key := range [][]byte{quota, list} {
						if found, err := l.Reset(key); !found || err != nil {
							t.Errorf("Reset(%q) = %t, %v, want true", key, found, err)
						}
					}
				},
				"ResetAll": func() {
					if err := l.ResetAll(); err != nil {
						t.Error(err)
					}
				},
			}
			for name, forget := range forget {
				for _, settle := range []func(){
					func() {},
					func() { flush(t, l) },
					func() { l = reopen(t, l, "store", opts) },
				} {
					record(t, l, clock, list, 280)
					take(t, l, quota, 0, 10)
					settle()
					forget()
					take(t, l, quota, 0, 7) // as requests that were never made
					record(t, l, clock, list, 220)
					// The oldest 150 events are in three chunks.
					for _, n := range []int64{219, 150, 100, 75} {
						a, err := l.Allow(list, limit.Rolling{Limit: n, Window: time.Hour})
						if want := time.Hour - time.Duration(n-1)*time.Millisecond; a.Wait != want || err != nil {
							t.Errorf("Allow(%d) after %s = %+v, %v, want a wait of %v", n, name, a, err, want)
						}
					}
					for _, want := range []int64{219, 150, 100, 75} {
						w := limit.Rolling{Limit: 1000, Window: time.Duration(want) * time.Millisecond}
						if n, err := l.Peek(list, w); n != want || err != nil {
							t.Errorf("Peek(%v) after %s = %d, %v, want %d", w.Window, name, n, err, want)
						}
					}
					if u, err := l.Quota(quota); u.Used != 7 || err != nil {
						t.Errorf("Quota after %s = %+v, %v, want 7 used", name, u, err)
					}
					forget()
				}
			}
		})
	}
}
