package engine_test

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// TestViewIsOneInstant looks at pairs of keys of which writers charge now the
// one and now the other, so that the charges of the first are as many as those
// of the second, or one more. Between the two looks the writers get on.
func TestViewIsOneInstant(t *testing.T) {
	const pairs = 4
	for _, d := range []engine.Durability{engine.Always, engine.Interval} {
		t.Run(d.String(), func(t *testing.T) {
			clock := newManualClock(epoch)
			l := open(t, "store", engine.Options{Durability: d, Now: clock.Now, SyncInterval: time.Millisecond})
			rate := limit.PerDay(1 << 40)
			var (
				stop    atomic.Bool
				charged [pairs]atomic.Int64
				writers sync.WaitGroup
			)
			for w := range pairs {
				writers.Go(func() {
					for i := 0; !stop.Load(); i++ {
						if _, err := l.Throttle(nth(2*w+i%2), rate, 1); err != nil {
							t.Error(err)
							return
						}
						charged[w].Add(1)
						runtime.Gosched()
					}
				})
			}
			for range 30 {
				err := l.View(func(v *engine.View) error {
					var used [2 * pairs]int64
					for i := range used {
						w := i / 2
						if i%2 == 1 {
							for n := charged[w].Load(); charged[w].Load() < n+3 && !t.Failed(); {
								runtime.Gosched()
							}
						}
						d, err := v.Probe(nth(i), rate, 0)
						if err != nil {
							return err
						}
						used[i] = d.Limit - d.Remaining
					}
					for w := range pairs {
						if a, b := used[2*w], used[2*w+1]; a != b && a != b+1 {
							t.Errorf("pair %d is charged %d and %d", w, a, b)
						}
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			stop.Store(true)
			writers.Wait()
		})
	}
}

// TestViewScanAndProbe probes every key while it is visited.
func TestViewScanAndProbe(t *testing.T) {
	clock := newManualClock(epoch)
	l := open(t, "store", engine.Options{Now: clock.Now})
	rate := limit.PerDay(10)
	charge(t, l, 0, 100, rate)
	visited := 0
	err := l.View(func(v *engine.View) error {
		clock.Advance(time.Hour) // a view stays where it is
		if now := v.Now(); !now.Equal(epoch) {
			t.Errorf("Now = %v, want %v", now, epoch)
		}
		_, err := v.Scan(0, 1000, func(key []byte, s engine.Stat) {
			name := string(key)
			if got, err := v.Stat(key); got != s || err != nil {
				t.Errorf("Stat(%q) = %+v, %v, want %+v as scanned", name, got, err, s)
			}
			if d, err := v.Probe(key, rate, 0); d.Remaining != 9 || err != nil {
				t.Errorf("Probe(%q) = %+v, %v, want 9 remaining", name, d, err)
			}
			if string(key) != name {
				t.Errorf("%q has become %q", name, key)
			}
			visited++
		})
		return err
	})
	if visited != 100 || err != nil {
		t.Errorf("%d keys are visited, %v, want 100", visited, err)
	}
}

func TestViewReturnsItsFunctionsError(t *testing.T) {
	l := open(t, "store", engine.Options{})
	want := errors.New("enough")
	if err := l.View(func(*engine.View) error { return want }); err != want {
		t.Errorf("View = %v, want %v", err, want)
	}
}

// TestReadYourWrites has callers look at what they have charged before the
// engine had any reason to write it.
func TestReadYourWrites(t *testing.T) {
	const callers, charges = 8, 50
	for _, d := range []engine.Durability{engine.Always, engine.Interval, engine.Never} {
		t.Run(d.String(), func(t *testing.T) {
			clock := newManualClock(epoch)
			l := open(t, "store", engine.Options{Durability: d, Now: clock.Now, SyncInterval: time.Hour, CacheSize: 1})
			rate := limit.PerDay(charges)
			var wg sync.WaitGroup
			for c := range callers {
				wg.Go(func() {
					key := nth(c)
					for n := range int64(charges) {
						if _, err := l.Throttle(key, rate, 1); err != nil {
							t.Error(err)
							return
						}
						var got limit.Decision
						var err error
						if n%2 == 0 {
							got, err = l.Probe(key, rate, 0)
						} else {
							err = l.View(func(v *engine.View) (err error) {
								got, err = v.Probe(key, rate, 0)
								return err
							})
						}
						if want := charges - 1 - n; got.Remaining != want || err != nil {
							t.Errorf("%q has %d remaining, %v, want %d", key, got.Remaining, err, want)
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// TestSync has many callers charge and sync at once, and then cuts the power.
func TestSync(t *testing.T) {
	const callers = 16
	for _, d := range []engine.Durability{engine.Always, engine.Interval, engine.Never} {
		t.Run(d.String(), func(t *testing.T) {
			fs := vfs.NewCrashableMem()
			l := open(t, "store", engine.Options{FS: fs, Durability: d, SyncInterval: time.Hour})
			var wg sync.WaitGroup
			for c := range callers {
				wg.Go(func() {
					for i := range 10 {
						if _, err := l.Throttle(fmt.Appendf(nil, "%d/%d", c, i), limit.PerDay(1), 1); err != nil {
							t.Error(err)
						}
						if err := l.Sync(); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			after := open(t, "store", engine.Options{FS: fs.CrashClone(vfs.CrashCloneCfg{})})
			if n, err := after.Len(); n != 10*callers || err != nil {
				t.Errorf("after a power cut there are %d keys, %v, want %d", n, err, 10*callers)
			}
		})
	}
}
