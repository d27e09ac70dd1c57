package engine_test

import (
	"fmt"
	"testing"
	"time"

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
