package engine_test

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// machine is what a limiter's default clock reads.
type machine struct{ wall, monotonic, suspended atomic.Int64 }

// advance lets true time pass: the clocks go on.
func (m *machine) advance(d time.Duration) {
	m.monotonic.Add(int64(d))
	m.wall.Add(int64(d))
}

// sleep suspends the machine. The monotonic clock stands still meanwhile.
func (m *machine) sleep(d time.Duration) {
	m.suspended.Add(int64(d))
	m.wall.Add(int64(d))
}

// truth is the true time since the machine was made.
func (m *machine) truth() int64 { return m.monotonic.Load() + m.suspended.Load() }

// latest is the beginning of the year 2200, the latest time that is believed.
var latest = time.Date(2200, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano()

// walk is a walk of the wall clock over a limiter, beside an oracle that goes by
// true time.
type walk struct {
	t   *testing.T
	rng *rand.Rand
	machine
	fs   *vfs.MemFS
	opts engine.Options
	l    *engine.Limiter

	opened, openedAt int64 // true time, and the engine's, when l was opened
	mark             int64 // no less than the store's when it was opened
	charged          int64 // the newest time on the engine's clock that is on disk
	apart            int64 // when the purge last saw that the clocks don't agree, or l was opened

	// granted is the time that a believed wall has granted beyond the true one,
	// and counted what had been counted when l was opened.
	granted, counted int64

	keys     []*walked
	deadline map[string]int64 // of keys that nobody charges again
	ids      int
}

// walked is a key of one policy, and what the oracle knows of it.
type walked struct {
	name    string
	rate    limit.Rate
	quota   limit.Quota
	rolling limit.Rolling

	tat    int64   // of a rate
	window int64   // when the quota's was opened, and
	used   int64   // what is gone of it
	events []int64 // of a rolling list

	waits bool  // for what was promised: on the clock of what is counted, it passes
	due   int64 // then at the latest
}

// TestClockWalk has the wall clock leap about, while a limiter is running,
// between two of them and while the machine sleeps.
func TestClockWalk(t *testing.T) {
	seed := newSeed(t)
	walks, steps := 24, 150
	if testing.Short() {
		walks = 3
	}
	for n := range walks {
		if !t.Run(fmt.Sprint(n), func(t *testing.T) {
			w := &walk{t: t, rng: rand.New(rand.NewPCG(seed, uint64(n))), deadline: map[string]int64{}}
			w.wall.Store(epoch.UnixNano())
			w.opts = engine.Options{NoPurge: n%2 == 0, PurgeWait: time.Minute}
			for i, d := range []time.Duration{time.Second, time.Minute, time.Hour, 24 * time.Hour} {
				w.keys = append(w.keys,
					&walked{name: fmt.Sprint("rate", i), rate: limit.Rate{Burst: 2, Count: 3, Period: 3 * d}},
					&walked{name: fmt.Sprint("quota", i), quota: limit.Quota{Limit: 3, Window: d}},
					&walked{name: fmt.Sprint("rolling", i), rolling: limit.Rolling{Limit: 3, Window: d}})
			}
			w.fs = vfs.NewCrashableMem()
			w.open(0)
			defer func() {
				if closeChecked(t, w.l); t.Failed() {
					keep(t, w.fs, "clock")
				}
			}()
			for range steps {
				if w.step(n%3 == 0); t.Failed() {
					return
				}
			}
		}) {
			return
		}
	}
}

// length draws a length of time, from a nanosecond up.
func (w *walk) length(most time.Duration) time.Duration {
	units := []time.Duration{1, time.Microsecond, time.Second, time.Minute, time.Hour, 24 * time.Hour, 365 * 24 * time.Hour}
	return min(most, units[w.rng.IntN(len(units))]*time.Duration(1+w.rng.IntN(60)))
}

// step does one thing and looks at what has become of the limiter. Unless wild,
// the wall is never ahead of the true time.
func (w *walk) step(wild bool) {
	const longest = 100 * 24 * time.Hour
	right := epoch.UnixNano() + w.truth()
	switch w.rng.IntN(12) {
	case 0, 1, 2, 3:
		w.advance(w.length(longest))
	case 4:
		w.sleep(w.length(longest))
		w.advance(time.Second) // it is looked up as often
	case 5:
		w.wall.Add(-int64(w.length(longest)))
	case 6:
		w.wall.Store(right)
	case 7:
		switch {
		case w.rng.IntN(20) > 0:
			w.wall.Store(right - int64(w.length(longest)))
		case wild:
			w.wall.Store([]int64{-1, 0, 1 << 62, latest + int64(longest)}[w.rng.IntN(4)])
		default:
			w.wall.Store(-1)
		}
	case 8:
		if wild {
			w.wall.Add(int64(w.length(longest)))
		}
	default:
		w.restart()
	}
	w.look()
	for range 1 + w.rng.IntN(8) {
		w.charge(w.keys[w.rng.IntN(len(w.keys))])
	}
	w.unused()
	w.canary()
	if w.rng.IntN(2) == 0 {
		w.purge()
	}
}

func (w *walk) open(down int64) {
	w.t.Helper()
	before := w.mark // the engine's time when it was last looked at
	opts := w.opts
	opts.FS = w.fs
	opts = opts.On(w.wall.Load, w.monotonic.Load, w.suspended.Load)
	l, err := engine.Open("store", &opts)
	if err != nil {
		w.t.Fatal(err)
	}
	w.l, w.opened, w.openedAt = l, w.truth(), l.Now().UnixNano()
	w.apart = w.openedAt
	if before == 0 {
		w.mark = w.openedAt
		return
	}
	believed := min(max(w.wall.Load(), 1), latest)
	if lo, hi := max(believed, w.charged), max(believed, before); w.openedAt < lo || w.openedAt > hi {
		w.t.Errorf("a limiter opened at %d begins at %d, want %d to %d", believed, w.openedAt, lo, hi)
	}
	if ahead := w.openedAt - before - down; ahead > 0 {
		w.granted += ahead
		w.counted += down
	} else {
		w.counted += w.openedAt - before
	}
	if w.charged == 0 {
		w.mark = w.openedAt // the store has none, and nothing that a clock could endanger
	}
}

// restart closes the limiter, or cuts its power, and opens it after a while.
func (w *walk) restart() {
	w.mark, w.counted = w.now(), w.counts()
	if w.rng.IntN(2) == 0 {
		closeChecked(w.t, w.l)
	} else {
		fs, _ := cutPower(w.fs, w.rng)
		if err := w.l.Close(); err != nil {
			w.t.Fatal(err)
		}
		w.fs = fs
	}
	down := time.Duration(0)
	if w.rng.IntN(2) == 0 {
		down = w.length(100 * 24 * time.Hour)
	}
	w.advance(down)
	w.open(int64(down))
}

// now is the time that the engine has to have, and has.
func (w *walk) now() int64 {
	w.t.Helper()
	want := w.openedAt + w.truth() - w.opened
	got := w.l.Now().UnixNano()
	if got != want {
		w.t.Fatalf("Now = %d, %v after it was opened, want %d", got, time.Duration(got-w.openedAt), want)
	}
	return got
}

// counts returns the time that the engine has counted up to now.
func (w *walk) counts() int64 { return w.counted + w.truth() - w.opened }

// look keeps what was promised.
func (w *walk) look() {
	w.t.Helper()
	w.now()
	for _, k := range w.keys {
		if !k.waits {
			continue
		}
		left, err := w.wait(k)
		if err != nil {
			w.t.Fatal(err)
		}
		if most := max(0, k.due-w.counts()); int64(left) > most {
			w.t.Errorf("%s has to wait %v, want no more than %v: so it was promised", k.name, left, time.Duration(most))
		}
	}
}

// wait returns how long the limiter says that k has to wait.
func (w *walk) wait(k *walked) (time.Duration, error) {
	switch key := []byte(k.name); {
	case k.rate.Count > 0:
		d, err := w.l.Probe(key, k.rate, 1)
		return d.RetryAfter, err
	case k.quota.Limit > 0:
		g, err := w.l.ProbeQuota(key, "probe", k.quota, 1)
		if g.Accepted {
			return 0, err
		}
		return g.ResetAfter, err
	default:
		return w.l.Wait(key, k.rolling)
	}
}

// charge charges k, and holds that in no stretch of true time more is admitted
// than its policy has room for.
func (w *walk) charge(k *walked) {
	w.t.Helper()
	now, loose := w.truth()+w.granted, false
	admitted, key := false, []byte(k.name)
	var err error
	switch {
	case k.rate.Count > 0:
		var d limit.Decision
		if d, err = w.l.Throttle(key, k.rate, 1); d.Allowed {
			admitted = true
			interval := int64(k.rate.Period) / k.rate.Count
			k.tat = max(k.tat, now) + interval
			loose = k.tat-now > (k.rate.Burst+1)*interval
		}
	case k.quota.Limit > 0:
		w.ids++
		var g limit.Grant
		if g, err = w.l.TakeQuota(key, fmt.Sprint(w.ids), k.quota, 1); g.Accepted {
			admitted = true
			if g.Used == 1 {
				loose = k.window != 0 && now-k.window < int64(k.quota.Window)
				k.window, k.used = now, 0
			}
			k.used++
			loose = loose || k.used > k.quota.Limit
		}
	default:
		var a limit.Admission
		if a, err = w.l.Allow(key, k.rolling); a.Allowed {
			admitted = true
			k.events = append(k.events, now)
			n := len(k.events) - 1 - int(k.rolling.Limit) // it has to be gone
			loose = n >= 0 && now-k.events[n] < int64(k.rolling.Window)
		}
	}
	if err != nil {
		w.t.Fatal(err)
	}
	if loose {
		w.t.Fatalf("%s admits too much", k.name)
	}
	if admitted {
		w.charged = w.now()
		k.waits = false
		return
	}
	left, err := w.wait(k)
	if err != nil || left <= 0 {
		w.t.Fatalf("%s is denied and has to wait %v, %v", k.name, left, err)
	}
	if due := w.counts() + int64(left); !k.waits || due < k.due {
		k.waits, k.due = true, due
	}
}

// unused charges a key that nobody has used.
func (w *walk) unused() {
	w.t.Helper()
	w.ids++
	must(w.t, hours(w.l, fmt.Sprint("unused", w.ids), 0))
	if d, err := w.l.Probe(fmt.Append(nil, "unused", w.ids), limit.PerDay(1), 1); !d.Allowed || err != nil {
		w.t.Errorf("a key that was never used: %+v, %v", d, err)
	}
}

// canary makes a key that is over after some hours, and tells of all of them
// whether they are.
func (w *walk) canary() {
	w.t.Helper()
	now := w.now()
	name, n := fmt.Sprint("canary", w.ids), int64(1+w.rng.IntN(1000))
	must(w.t, hours(w.l, name, n))
	w.deadline[name], w.charged = now+n*int64(time.Hour), now
	for name, deadline := range w.deadline {
		if s, err := w.l.Stat([]byte(name)); s.Exists() != (deadline > now) || err != nil {
			w.t.Errorf("Stat(%q) = %+v, %v, %v before its deadline", name, s, err, time.Duration(deadline-now))
		}
	}
}

// purge purges, and holds that nothing is gone that is over only by a wall that
// was ahead when the limiter was opened, until the clock is confirmed.
func (w *walk) purge() {
	w.t.Helper()
	now := w.now()
	if apart := now - min(max(w.wall.Load(), 1), latest); apart <= -int64(time.Second) || apart >= int64(time.Second) {
		w.apart = now
	}
	purge(w.t, w.l)
	horizon := now
	if now-w.apart < int64(10*time.Minute) {
		horizon = min(now, w.mark+int64(48*time.Hour)+now-w.openedAt)
	}
	left := records(w.t, w.l)
	for name, deadline := range w.deadline {
		_, there := left[name]
		switch {
		case !there && deadline > horizon:
			w.t.Errorf("%s is gone, %v too soon", name, time.Duration(deadline-horizon))
		case there && deadline <= min(horizon, w.mark):
			w.t.Errorf("%s is left %v after its deadline", name, time.Duration(horizon-deadline))
		case !there:
			delete(w.deadline, name)
		}
	}
}
