package engine

import (
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestUnixNano(t *testing.T) {
	for _, c := range []struct {
		at   time.Time
		want int64
	}{
		{time.Time{}, 1},
		{time.Unix(math.MinInt64, 0), 1},
		{time.Unix(-10_000_000_000, 0), 1}, // a UnixNano would wrap around
		{time.Unix(0, -1), 1},
		{time.Unix(0, 0), 1},
		{time.Unix(0, 2), 2},
		{time.Unix(1_700_000_000, 5), 1_700_000_000_000_000_005},
		{time.Unix(0, latestWall-1), latestWall - 1},
		{time.Unix(0, latestWall+1), latestWall},
		{time.Unix(0, math.MaxInt64), latestWall},
		{time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), latestWall},
		{time.Unix(math.MaxInt64, 0), latestWall},
	} {
		if got := unixNano(c.at); got != c.want {
			t.Errorf("unixNano(%v) = %d, want %d", c.at, got, c.want)
		}
	}
}

// TestClockBegins has the clock begin at the wall's time or the mark,
// whichever is later, and go on from there.
func TestClockBegins(t *testing.T) {
	wall := time.Now().UnixNano()
	for mark, want := range map[int64]int64{
		1:                       wall,
		wall + int64(time.Hour): wall + int64(time.Hour),
		latestWall:              latestWall,
		math.MaxInt64:           math.MaxInt64,
	} {
		c := newClock(nil, mark)
		now := c.now()
		if now < want || now-want > int64(time.Minute) {
			t.Errorf("after the mark %d now = %d, want about %d", mark, now, want)
		}
		for now < math.MaxInt64 && c.now() == now {
			// It has to move on.
		}
	}
}

// TestClockCountsSuspend pretends that the machine has slept an hour since the
// clock began, and later another one.
func TestClockCountsSuspend(t *testing.T) {
	c := newClock(nil, 1)
	first := c.now()
	for range 2 {
		c.sleptBase -= int64(time.Hour)
		if slept := time.Duration(c.now() - first); slept > time.Minute {
			t.Errorf("the clock looks at once, after %v", slept)
		}
		c.sleptDue.Store(0)
		second := c.now()
		if slept := time.Duration(second - first).Round(time.Minute); slept != time.Hour {
			t.Errorf("the clock moves on by %v, want an hour", slept)
		}
		first = second
	}
	// It does not go back when the system's reading does.
	c.sleptBase += int64(time.Hour)
	c.sleptDue.Store(0)
	if now := c.now(); now < first {
		t.Errorf("the clock goes back by %v", time.Duration(first-now))
	}
}

// TestClockNeverGoesBack has many goroutines read one clock, each of which
// must see no less than any reading that was over when its own began.
func TestClockNeverGoesBack(t *testing.T) {
	var wall atomic.Int64
	stepping := func() time.Time {
		n := wall.Add(1)
		return time.Unix(0, 1e18+n*(1-n%3)) // leaps back and forth, ever wider
	}
	for name, c := range map[string]*clock{"real": newClock(nil, 1), "injected": newClock(stepping, 1)} {
		t.Run(name, func(t *testing.T) {
			c.sleptBase -= int64(time.Hour) // some of them notice
			c.sleptDue.Store(int64(time.Millisecond))
			var newest atomic.Int64
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					for range 10_000 {
						before := newest.Load()
						now := c.now()
						if now < before {
							t.Errorf("now = %d after %d", now, before)
							return
						}
						raise(&newest, now)
					}
				})
			}
			wg.Wait()
		})
	}
}
