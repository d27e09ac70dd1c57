package engine_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

func TestWallGoesBack(t *testing.T) {
	clock := newManualClock(epoch)
	opts := engine.Options{Now: clock.Now, FS: vfs.NewMem()}
	l := open(t, "store", opts)
	rate := limit.Rate{Count: 1, Period: time.Hour}
	charge(t, l, 0, 1, rate)
	check := func(when string, want time.Duration) {
		t.Helper()
		if d, err := l.Probe(nth(0), rate, 1); d.RetryAfter != want || err != nil {
			t.Errorf("%s: RetryAfter = %v, %v, want %v", when, d.RetryAfter, err, want)
		}
		if d, err := l.Throttle(nth(0), rate, 1); d.RetryAfter != want || err != nil {
			t.Errorf("%s: RetryAfter = %v, %v, want %v", when, d.RetryAfter, err, want)
		}
	}
	check("at once", time.Hour)
	clock.Advance(-time.Minute)
	check("a minute back", time.Hour)
	l = reopen(t, l, "store", opts)
	check("a minute back, reopened", time.Hour)
	clock.Advance(time.Minute + time.Second)
	check("a second ahead", time.Hour-time.Second)
	clock.Set(time.Unix(0, 0))
	check("in 1970", time.Hour-time.Second)

	// Nothing was charged since the beginning, so that is where a reopened
	// limiter has to go on from. It does believe a wall ahead of it.
	l = reopen(t, l, "store", opts)
	check("in 1970, reopened", time.Hour)
	clock.Set(epoch.Add(30 * time.Minute))
	l = reopen(t, l, "store", opts)
	check("half an hour ahead, reopened", 30*time.Minute)
}

// TestWallStandsStill charges a limit at one instant.
func TestWallStandsStill(t *testing.T) {
	clock := newManualClock(epoch)
	l := open(t, "store", engine.Options{Now: clock.Now})
	rate := limit.PerSecond(3)
	for n := range int64(5) {
		want := limit.Decision{Allowed: n < 3, Limit: 3, Remaining: max(2-n, 0)}
		if n >= 3 {
			want.RetryAfter = 333333334
		}
		want.ResetAfter = []time.Duration{333333334, 666666667, 1e9, 1e9, 1e9}[n]
		if got, err := l.Throttle(nth(0), rate, 1); got != want || err != nil {
			t.Errorf("Throttle = %+v, %v, want %+v", got, err, want)
		}
	}
}

// TestWildWall opens stores on days that can't be. Whatever they did there,
// on an ordinary day they have to work.
func TestWildWall(t *testing.T) {
	for _, at := range []time.Time{
		{},
		time.Unix(0, 0),
		time.Date(1969, 7, 20, 0, 0, 0, 0, time.UTC),
		time.Date(2262, 4, 11, 0, 0, 0, 0, time.UTC), // the last whole day below 2^63 ns
		time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC),
		time.Unix(1<<62, 0),
	} {
		t.Run(at.Format(time.DateOnly), func(t *testing.T) {
			wall := at
			opts := engine.Options{Now: func() time.Time { return wall }, FS: vfs.NewMem()}
			l := open(t, "store", opts)
			charges := func() {
				t.Helper()
				for range 2 {
					charge(t, l, 0, 10, limit.PerDay(2))
				}
				if d, err := l.Throttle(nth(0), limit.PerDay(2), 1); d.Allowed || err != nil {
					t.Errorf("Throttle = %+v, %v, want it denied", d, err)
				}
				if n, err := l.Len(); n != 10 || err != nil {
					t.Errorf("Len = %d, %v, want 10", n, err)
				}
				if err := l.ResetAll(); err != nil {
					t.Fatal(err)
				}
			}
			charges()
			l = reopen(t, l, "store", opts)
			charges()
			wall = epoch
			l = reopen(t, l, "store", opts)
			charges()
		})
	}
}

// TestMarkIsTheNewestNow looks at the mark after every batch, while the wall
// leaps about and the changes fall to all shards.
func TestMarkIsTheNewestNow(t *testing.T) {
	clock := newManualClock(epoch)
	l := open(t, "store", engine.Options{Now: clock.Now, Durability: engine.Never, SyncInterval: time.Hour})
	rng := rand.New(rand.NewPCG(1, 0))
	var newest int64
	for range 300 {
		for range rng.IntN(4) {
			clock.Set(epoch.Add(time.Duration(rng.Int64N(int64(time.Hour)))))
			newest = max(newest, clock.Now().UnixNano())
			i := rng.IntN(1000)
			charge(t, l, i, i+1, limit.Rate{Burst: 1000, Count: 1, Period: time.Second})
		}
		if err := l.Sync(); err != nil {
			t.Fatal(err)
		}
		if got := storedMark(t, l); got != newest {
			t.Fatalf("the mark is %d, want %d", got, newest)
		}
	}
}

// TestMarkStaysBehindResetAll forgets everything, closes the store, and sets the
// wall clock back. The mark does not go back.
func TestMarkStaysBehindResetAll(t *testing.T) {
	clock := newManualClock(epoch)
	opts := engine.Options{Now: clock.Now, FS: vfs.NewMem()}
	l := open(t, "store", opts)
	must(t, throttle(l, "k", 1))
	clock.Advance(time.Hour)
	must(t, l.ResetAll)
	want := clock.Now().UnixNano()
	if got := storedMark(t, l); got != want {
		t.Errorf("the mark is %d, want %d", got, want)
	}
	clock.Set(epoch)
	l = reopen(t, l, "store", opts)
	if got := storedMark(t, l); got != want {
		t.Errorf("the mark is %d after Close, want %d", got, want)
	}
	if got := l.Now().UnixNano(); got != want {
		t.Errorf("Now = %d, want %d", got, want)
	}
}
