package engine_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// TestRetriesAtTheEndOfAWindow retries the same few requests for ever, over
// short windows, while the purge runs as hard as it can. In no window is more
// spent than by one of each.
func TestRetriesAtTheEndOfAWindow(t *testing.T) {
	l, err := engine.Open(t.TempDir(), &engine.Options{PurgeWait: 1, Durability: engine.Interval, CacheSize: 1, SyncInterval: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	const ids = 6
	var fresh, replays, worst atomic.Int64
	stop := time.Now().Add(12 * time.Second)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := w; time.Now().Before(stop); i += 7 {
				key := fmt.Appendf(nil, "q%d", i%40)
				q := limit.Quota{Limit: 1000, Window: time.Duration(5+i%40) * time.Millisecond}
				g, err := l.TakeQuota(key, fmt.Sprint("id", i%ids), q, 1)
				if err != nil {
					t.Error(err)
					return
				}
				if g.Used > ids {
					t.Errorf("%s: %+v: more than %d spent", key, g, ids)
				}
				raise(&worst, g.Used)
				if g.Replay {
					replays.Add(1)
				} else {
					fresh.Add(1)
				}
			}
		})
	}
	wg.Go(func() {
		for time.Now().Before(stop) {
			time.Sleep(50 * time.Millisecond)
			if err := l.Purge(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	t.Logf("%d fresh, %d replays, used up to %d; %+v", fresh.Load(), replays.Load(), worst.Load(), l.Metrics())
	m := l.Metrics()
	if m.Records < 0 || m.Expired < 0 || m.Backlog < 0 {
		t.Errorf("%+v", m)
	}
	closeChecked(t, l)
}

// TestViewHeldWhilePurging holds a view while all that it shows expires and is
// purged, and reads it all then.
func TestViewHeldWhilePurging(t *testing.T) {
	clock := newManualClock(epoch)
	l := open(t, "store", engine.Options{Now: clock.Now, NoPurge: true, Durability: engine.Interval})
	for i := range 5000 {
		must(t, hours(l, string(nth(i)), 1))
	}
	if err := l.View(func(v *engine.View) error {
		clock.Advance(2 * time.Hour)
		purge(t, l)
		compact(t, l)
		if err := l.ResetAll(); err != nil {
			return err
		}
		for i := range 5000 {
			if s, err := v.Stat(nth(i)); err != nil || !s.Exists() {
				t.Fatalf("%s: %+v, %v", nth(i), s, err)
			}
		}
		if l.Metrics().OldestView <= 0 {
			t.Error("no oldest view")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	compact(t, l)
	if n := len(records(t, l)); n != 0 {
		t.Errorf("%d left", n)
	}
}

// TestResetAllAmongPasses forgets all keys while passes and calls go on.
func TestResetAllAmongPasses(t *testing.T) {
	l, err := engine.Open(t.TempDir(), &engine.Options{PurgeWait: 1, Durability: engine.Interval, CacheSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	stop := time.Now().Add(6 * time.Second)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for i := w; time.Now().Before(stop); i += 3 {
				rate := limit.Rate{Burst: 0, Count: 1000, Period: time.Duration(1+i%1000) * time.Second}
				if _, err := l.Throttle(nth(i%50_000), rate, 1); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() {
		for time.Now().Before(stop) {
			time.Sleep(37 * time.Millisecond)
			if err := l.ResetAll(); err != nil {
				t.Error(err)
			}
			if m := l.Metrics(); m.Records < 0 || m.Expired > m.Records || m.Expired < 0 {
				t.Errorf("%+v", m)
			}
		}
	})
	wg.Go(func() {
		for time.Now().Before(stop) {
			if err := l.Purge(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	t.Logf("%+v", l.Metrics())
	closeChecked(t, l)
}
