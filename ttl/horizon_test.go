package ttl_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gabiondb/gabion/ttl"
)

const (
	mark    = int64(1_700_000_000_000_000_000)
	second  = int64(time.Second)
	minute  = int64(time.Minute)
	hour    = int64(time.Hour)
	ahead   = 48 * time.Hour
	confirm = 10 * time.Minute
)

// reading is one call of At.
type reading struct {
	now, wall, want int64
}

func checkHorizon(t *testing.T, h ttl.Horizon, readings []reading) {
	t.Helper()
	for i, r := range readings {
		if got := h.At(r.now, r.wall); got != r.want {
			t.Errorf("reading %d: At(mark%+d, mark%+d) = mark%+d, want mark%+d", i, r.now-mark, r.wall-mark, got-mark, r.want-mark)
		}
	}
}

// TestHorizonWithoutLeap has clocks that were no further ahead than is believed.
func TestHorizonWithoutLeap(t *testing.T) {
	for _, leap := range []int64{0, 1, hour, int64(ahead)} {
		base := mark + leap
		h := ttl.Horizon{Mark: mark, Base: base, Ahead: ahead, Confirm: confirm}
		checkHorizon(t, h, []reading{
			{base, base, base},
			{base + hour, 1, base + hour}, // whatever the wall clock says
		})
	}
}

// TestHorizonAfterLeap has a clock that was a year ahead when the store was
// opened, and a wall clock that does not agree with it.
func TestHorizonAfterLeap(t *testing.T) {
	base, bound := mark+8760*hour, mark+int64(ahead)
	h := ttl.Horizon{Mark: mark, Base: base, Ahead: ahead, Confirm: confirm}
	checkHorizon(t, h, []reading{
		{base, mark, bound},
		{base + minute, mark + minute, bound + minute}, // it goes on with the uptime
		{base + 100*hour, mark + 100*hour, bound + 100*hour},
	})
	h = ttl.Horizon{Mark: mark, Base: mark + int64(ahead) + 1, Ahead: ahead, Confirm: confirm}
	checkHorizon(t, h, []reading{{mark + int64(ahead) + 1, mark, bound}}) // one nanosecond too far
}

// TestHorizonConfirmed has the clocks agree, for long enough or not.
func TestHorizonConfirmed(t *testing.T) {
	base, bound := mark+8760*hour, mark+int64(ahead)
	h := ttl.Horizon{Mark: mark, Base: base, Ahead: ahead, Confirm: confirm}
	at := func(after, apart, want int64) reading { return reading{base + after, base + after - apart, want} }
	full := func(after, apart int64) reading { return at(after, apart, base+after) }
	bounded := func(after, apart int64) reading { return at(after, apart, bound+after) }
	checkHorizon(t, h, []reading{
		bounded(0, 0),
		bounded(10*minute-1, 0),
		full(10*minute, 0),
		full(11*minute, second-1), // they still agree
		full(12*minute, 1-second),
		bounded(13*minute, second), // not any more
		bounded(14*minute, 0),
		bounded(24*minute-1, 0),
		full(24*minute, 0),
		bounded(25*minute, -second),
		bounded(26*minute, 0),
		bounded(30*minute, hour), // before they have agreed for long enough
		bounded(31*minute, 0),
		bounded(36*minute, 0), // ten minutes after they first did
		bounded(41*minute-1, 0),
		full(41*minute, 0),
	})
}

// TestHorizonEdges goes to the ends of time.
func TestHorizonEdges(t *testing.T) {
	const end = math.MaxInt64
	for _, test := range []struct {
		h               ttl.Horizon
		now, wall, want int64
	}{
		{ttl.Horizon{Mark: 1, Base: end, Ahead: end, Confirm: end}, end, 1, end},
		{ttl.Horizon{Mark: 1, Base: end, Ahead: 0, Confirm: end}, end, 1, 1},
		{ttl.Horizon{Mark: 1, Base: end, Ahead: end - 2, Confirm: end}, end, 1, end - 1},
		{ttl.Horizon{Mark: end, Base: end, Ahead: end, Confirm: end}, end, 1, end},
		{ttl.Horizon{Mark: 1, Base: end, Ahead: 0, Confirm: 0}, end, end, end}, // at once
		{ttl.Horizon{Mark: 1, Base: 1, Ahead: 0, Confirm: end}, 1, end, 1},
	} {
		if got := test.h.At(test.now, test.wall); got != test.want {
			t.Errorf("%+v: At(%d, %d) = %d, want %d", test.h, test.now, test.wall, got, test.want)
		}
	}
}

// TestHorizonProperties has clocks go anyhow. What is deleted is never in the
// clock's future, never before what the mark allows, and past it only after a
// while in which every reading agreed.
func TestHorizonProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := rapid.Int64Range(1, math.MaxInt64/4).Draw(t, "mark")
		base := m + rapid.Int64Range(0, math.MaxInt64/4).Draw(t, "leap")
		h := ttl.Horizon{
			Mark: m, Base: base,
			Ahead:   time.Duration(rapid.Int64Range(0, math.MaxInt64/4).Draw(t, "ahead")),
			Confirm: time.Duration(rapid.Int64Range(0, 100*second).Draw(t, "confirm")),
		}
		now, agreedSince := base, int64(-1)
		for range rapid.IntRange(1, 50).Draw(t, "readings") {
			now += rapid.Int64Range(0, 30*second).Draw(t, "passed")
			wall := now + rapid.Int64Range(-second-1, second+1).Draw(t, "apart")
			if apart := wall - now; apart <= -second || apart >= second {
				agreedSince = -1
			} else if agreedSince < 0 {
				agreedSince = now
			}
			want := min(now, m+int64(h.Ahead)+now-base)
			if agreedSince >= 0 && now-agreedSince >= int64(h.Confirm) {
				want = now
			}
			if got := h.At(now, wall); got != want || got > now {
				t.Fatalf("At(%d, %d) = %d, want %d: mark %d, base %d, agreed since %d", now, wall, got, want, m, base, agreedSince)
			}
		}
	})
}
