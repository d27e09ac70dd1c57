package engine_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// open opens the store in dir with opts, in memory unless opts has a file
// system. When the test ends the store is checked as a whole and closed.
func open(t testing.TB, dir string, opts engine.Options) *engine.Limiter {
	t.Helper()
	if opts.FS == nil {
		opts.FS = vfs.NewMem()
	}
	l, err := engine.Open(dir, &opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeChecked(t, l) })
	return l
}

// closeChecked checks the store of l and closes it, unless the test has closed
// it or broken it on purpose.
func closeChecked(t testing.TB, l *engine.Limiter) {
	t.Helper()
	if l.Failure() != nil {
		l.Close()
		return
	}
	switch err := l.Check(); err {
	case nil:
		if err := l.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	case engine.ErrClosed:
	default:
		t.Errorf("the store is damaged: %v", err)
	}
}

// manualClock is a wall clock that tests set.
type manualClock struct{ ns atomic.Int64 }

func newManualClock(t time.Time) *manualClock {
	c := new(manualClock)
	c.Set(t)
	return c
}

func (c *manualClock) Now() time.Time          { return time.Unix(0, c.ns.Load()) }
func (c *manualClock) Set(t time.Time)         { c.ns.Store(t.UnixNano()) }
func (c *manualClock) Advance(d time.Duration) { c.ns.Add(int64(d)) }

// epoch is when tests begin.
var epoch = time.Unix(1_700_000_000, 0)

func TestThrottleThenProbe(t *testing.T) {
	clock := newManualClock(epoch)
	l := open(t, "store", engine.Options{Now: clock.Now})
	rate := limit.Rate{Burst: 4, Count: 1, Period: 10 * time.Second}
	want := limit.Decision{Allowed: true, Limit: 5, Remaining: 4, ResetAfter: 10 * time.Second}
	if got, err := l.Throttle([]byte("k"), rate, 1); got != want || err != nil {
		t.Errorf("Throttle = %+v, %v, want %+v", got, err, want)
	}
	want.Remaining, want.ResetAfter = 3, 20*time.Second
	for range 2 {
		if got, err := l.Probe([]byte("k"), rate, 1); got != want || err != nil {
			t.Errorf("Probe = %+v, %v, want %+v", got, err, want)
		}
	}
}
