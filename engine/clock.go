package engine

import (
	"math"
	"sync/atomic"
	"time"
)

// clock is the engine's time: nanoseconds since the Unix epoch, from 1 up. It
// never goes back, neither in a process nor, by way of the mark that every
// batch carries, from one to the next.
//
// In a process it is a base fixed at open plus what the monotonic clock has
// counted since, plus what the machine has slept, so that steps of the wall
// clock go unnoticed. With an injected wall clock it is that clock, held back
// from going back.
type clock struct {
	base  int64     // the time at start
	start time.Time // a monotonic reading

	// slept is the time that the machine was suspended since start, which the
	// monotonic clock doesn't count. It is looked up once a second.
	slept     atomic.Int64
	sleptDue  atomic.Int64 // when to look again, in nanoseconds since start
	sleptBase int64        // the system's reading at start

	wall   func() time.Time // the injected clock, or nil
	newest atomic.Int64     // the newest time given out under an injected clock

	system *system
}

// system is where a clock that is not injected has its readings from.
type system struct {
	now       func() time.Time // the wall clock and the monotonic one
	since     func(time.Time) time.Duration
	suspended func() int64
}

var thisSystem = system{time.Now, time.Since, suspended}

// newClock returns a clock that begins at the wall's time, or at mark if the
// wall lies behind it.
func newClock(wall func() time.Time, mark int64) *clock { return newClockOn(&thisSystem, wall, mark) }

func newClockOn(on *system, wall func() time.Time, mark int64) *clock {
	c := &clock{wall: wall, system: on}
	if wall != nil {
		c.newest.Store(max(mark, 1))
		return c
	}
	c.start = on.now()
	c.sleptBase = on.suspended()
	c.base = max(unixNano(c.start), mark)
	return c
}

// now returns the time.
func (c *clock) now() int64 {
	if c.wall != nil {
		return raise(&c.newest, unixNano(c.wall()))
	}
	elapsed := int64(c.system.since(c.start))
	if due := c.sleptDue.Load(); elapsed >= due {
		if c.sleptDue.CompareAndSwap(due, elapsed+int64(time.Second)) {
			raise(&c.slept, c.system.suspended()-c.sleptBase)
		}
	}
	return addSaturating(c.base, elapsed+c.slept.Load())
}

// monotonic returns a reading that is good for telling lengths of time.
func monotonic() time.Time { return time.Now() }

// readWall returns the time on the wall clock, of which now knows nothing.
func (c *clock) readWall() int64 {
	if c.wall != nil {
		return unixNano(c.wall())
	}
	return unixNano(c.system.now())
}

// raise sets v to x if that is more, and returns what it then is.
func raise(v *atomic.Int64, x int64) int64 {
	for {
		old := v.Load()
		if x <= old {
			return old
		}
		if v.CompareAndSwap(old, x) {
			return x
		}
	}
}

// latestWall is the latest reading of a wall clock that is taken at its word:
// the beginning of the year 2200. One wild reading makes a mark that stays for
// ever, so it has to leave room up to 2^63-1, the year 2262, for the deadlines
// of all that comes after it.
const latestWall = 7_258_118_400 * int64(time.Second)

// unixNano returns t in nanoseconds since the Unix epoch, brought into the
// range from 1 to latestWall.
func unixNano(t time.Time) int64 {
	switch s := t.Unix(); {
	case s < 0:
		return 1
	case s >= latestWall/int64(time.Second):
		return latestWall
	}
	return max(t.UnixNano(), 1)
}

// addSaturating returns a + b, or 2^63-1 if that is less; b is not negative.
func addSaturating(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
