package engine_test

import (
	"fmt"
	"maps"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// A watchedFS is a file system in memory that counts the operations that
// change it, and calls before ahead of each.
type watchedFS struct {
	vfs.FS
	writes atomic.Int64
	before func(errorfs.Op) // may be nil
}

func newWatchedFS() *watchedFS {
	w := new(watchedFS)
	w.FS = errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			w.writes.Add(1)
			if w.before != nil {
				w.before(op)
			}
		}
		return nil
	}))
	return w
}

// ReuseForWrite makes a new file, which is allowed: errorfs doesn't watch those
// that are made from old ones.
func (w *watchedFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err := w.Remove(oldname); err != nil {
		return nil, err
	}
	return w.Create(newname, category)
}

// quietly calls fn when l is quiet, waits until it is quiet again, and tells
// what fn has changed: on the file system, in the store, and in the cache.
func (w *watchedFS) quietly(t *testing.T, l *engine.Limiter, fn func()) {
	t.Helper()
	synctest.Wait()
	stored, m, writes := contents(t, l.DB()), l.Metrics(), w.writes.Load()
	fn()
	synctest.Wait()
	if n := w.writes.Load() - writes; n > 0 {
		t.Errorf("%d operations changed the file system", n)
	}
	if !maps.Equal(contents(t, l.DB()), stored) {
		t.Error("the store has changed")
	}
	got := l.Metrics()
	if got.Rounds != m.Rounds || got.Writes != m.Writes || got.Flushes != m.Flushes || got.Compactions != m.Compactions {
		t.Errorf("metrics went from %+v to %+v", m, got)
	}
	if got.CacheEntries != m.CacheEntries || got.CacheBytes != m.CacheBytes {
		t.Errorf("the cache went from %+v to %+v", m, got)
	}
}

// TestReadsWriteNothing reads keys that are live, expired and absent, and
// cached or not, from tables and from memory.
func TestReadsWriteNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newWatchedFS()
		clock := newManualClock(epoch)
		l := open(t, "store", engine.Options{FS: fs, Now: clock.Now, CacheSize: 16 << 10, NoPurge: true})
		rate := limit.Rate{Burst: 4, Count: 1, Period: 10 * time.Second}
		for i := range 300 {
			if i == 100 {
				compact(t, l)
				clock.Advance(5 * time.Second)
			}
			if d, err := l.Throttle(nth(i), rate, 1+int64(i%2)); !d.Allowed || err != nil {
				t.Fatal(d, err)
			}
		}
		clock.Advance(9 * time.Second) // half of the first hundred have expired

		check := func(i int, d limit.Decision, s engine.Stat, err error) {
			t.Helper()
			full := i >= 300 || i < 100 && i%2 == 0
			if err != nil || full != (d.Remaining == 4) || full == s.Exists() {
				t.Errorf("key %d: %+v, %+v, %v", i, d, s, err)
			}
		}
		fs.quietly(t, l, func() {
			for n := range 10_000 {
				i := n % 400
				d, err := l.Probe(nth(i), rate, 1)
				if err != nil {
					t.Fatal(err)
				}
				s, err := l.Stat(nth(i))
				check(i, d, s, err)
			}
		})
		fs.quietly(t, l, func() {
			err := l.View(func(v *engine.View) error {
				for n := range 10_000 {
					i := n % 400
					d, err := v.Probe(nth(i), rate, 1)
					if err != nil {
						return err
					}
					s, err := v.Stat(nth(i))
					check(i, d, s, err)
				}
				return nil
			})
			if n := len(scan(t, l, 10)); n != 250 || err != nil {
				t.Errorf("%d keys, %v, want 250", n, err)
			}
		})
	})
}

// TestProbeBesideWriters probes a key whose charge waits for the disk behind
// others. The probe has to wait too, but must not have anything written.
func TestProbeBesideWriters(t *testing.T) {
	writes := func(probe bool) int64 {
		var n int64
		synctest.Test(t, func(t *testing.T) {
			gate, shut := make(chan struct{}), atomic.Bool{}
			fs := newWatchedFS()
			fs.before = func(op errorfs.Op) {
				if shut.Load() && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) {
					<-gate
				}
			}
			l := open(t, "store", engine.Options{FS: fs, NoPurge: true})
			synctest.Wait()
			shut.Store(true)
			n = -fs.writes.Load()
			// The first two fill the way to the disk, the third is held up.
			for i := range 3 {
				go l.Throttle(nth(i), limit.PerHour(5), 1)
				synctest.Wait()
			}
			if probe {
				go func() {
					if d, err := l.Probe(nth(2), limit.PerHour(5), 1); d.Remaining != 3 || err != nil {
						t.Errorf("Probe = %+v, %v, want 3 remaining", d, err)
					}
				}()
				synctest.Wait()
			}
			for range 10 {
				// One sync at a time, lest what is written meanwhile shares it.
				select {
				case gate <- struct{}{}:
				default:
				}
				synctest.Wait()
			}
			n += fs.writes.Load()
			shut.Store(false)
		})
		return n
	}
	if got, want := writes(true), writes(false); got != want || want == 0 {
		t.Errorf("%d operations changed the file system, and %d without the probe", got, want)
	}
}

// TestProbeTellsThrottle compares, for every fill of a bucket and every
// quantity, what a probe says with what the next throttle does.
func TestProbeTellsThrottle(t *testing.T) {
	clock := newManualClock(epoch)
	l := open(t, "store", engine.Options{Now: clock.Now, NoPurge: true})
	rate := limit.Rate{Burst: 6, Count: 3, Period: time.Second}
	for fill := range rate.Burst + 2 {
		for n := range rate.Burst + 3 {
			key := fmt.Appendf(nil, "%d/%d", fill, n)
			if d, err := l.Throttle(key, rate, fill); !d.Allowed || err != nil {
				t.Fatal(d, err)
			}
			clock.Advance(100 * time.Millisecond)
			want, err := l.Probe(key, rate, n)
			if err != nil {
				t.Fatal(err)
			}
			var inView limit.Decision
			err = l.View(func(v *engine.View) (err error) {
				inView, err = v.Probe(key, rate, n)
				return err
			})
			if inView != want || err != nil {
				t.Errorf("%s: View.Probe = %+v, %v, want %+v", key, inView, err, want)
			}
			if got, err := l.Throttle(key, rate, n); got != want || err != nil {
				t.Errorf("%s: Throttle = %+v, %v, want %+v as the probe said", key, got, err, want)
			}
		}
	}
}

func TestDenialWritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newWatchedFS()
		l := open(t, "store", engine.Options{FS: fs, NoPurge: true})
		rate := limit.Rate{Burst: 4, Count: 1, Period: 10 * time.Second}
		if d, err := l.Throttle([]byte("k"), rate, 3); !d.Allowed || err != nil {
			t.Fatal(d, err)
		}
		before, _ := l.Stat([]byte("k"))
		fs.quietly(t, l, func() {
			for _, c := range []struct {
				key     string
				n       int64
				allowed bool
			}{
				{"k", 3, false},
				{"k", 6, false},
				{"k", 0, true},
				{"absent", 6, false},
				{"absent", 0, true},
			} {
				if d, err := l.Throttle([]byte(c.key), rate, c.n); d.Allowed != c.allowed || err != nil {
					t.Errorf("Throttle(%q, %d) = %+v, %v", c.key, c.n, d, err)
				}
			}
		})
		if after, err := l.Stat([]byte("k")); after.Deadline != before.Deadline || err != nil {
			t.Errorf("Stat = %+v, %v, want the deadline of %+v", after, err, before)
		}
		if s, err := l.Stat([]byte("absent")); s.Exists() || err != nil {
			t.Errorf("Stat of an absent key = %+v, %v", s, err)
		}
	})
}

// TestLooksWriteNothing looks at quotas and lists that are live, expired and
// absent, cached or not, from tables and from memory, with chunks and without.
func TestLooksWriteNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 60
		fs := newWatchedFS()
		clock := newManualClock(epoch)
		l := open(t, "store", engine.Options{FS: fs, Now: clock.Now, CacheSize: 16 << 10, NoPurge: true})
		q, w := limit.Quota{Limit: 5, Window: 10 * time.Second}, limit.Rolling{Limit: 200, Window: 10 * time.Second}
		fill := func(first, end int) {
			var ops []engine.Op
			for i := first; i < end; i++ {
				ops = append(ops, engine.Op{Verb: engine.OpTakeQuota, Key: nth(2 * i), ID: "a", Quota: q, N: 2})
			}
			for range 150 {
				for i := first; i < end; i += 5 { // some are long
					ops = append(ops, engine.Op{Verb: engine.OpAllow, Key: nth(2*i + 1), Rolling: w})
				}
				clock.Advance(time.Millisecond)
				for _, r := range l.Do(ops, nil) {
					if !r.Grant.Accepted && !r.Admission.Allowed {
						t.Fatalf("%+v, want it accepted", r)
					}
				}
				ops = ops[:0]
			}
		}
		fill(0, keys/3)
		compact(t, l)
		clock.Advance(5 * time.Second)
		fill(keys/3, 2*keys/3)
		clock.Advance(5 * time.Second) // the first third has expired

		var ops []engine.Op
		for i := range keys {
			ops = append(ops,
				engine.Op{Verb: engine.OpProbeQuota, Key: nth(2 * i), ID: "a", Quota: q, N: 2},
				engine.Op{Verb: engine.OpProbeQuota, Key: nth(2 * i), ID: "b", Quota: q, N: 4},
				engine.Op{Verb: engine.OpQuota, Key: nth(2 * i)},
				engine.Op{Verb: engine.OpStat, Key: nth(2 * i)},
				engine.Op{Verb: engine.OpPeek, Key: nth(2*i + 1), Rolling: w},
				engine.Op{Verb: engine.OpPeek, Key: nth(2*i + 1), Rolling: limit.Rolling{Limit: 9, Window: 5*time.Second + 20*time.Millisecond}},
				engine.Op{Verb: engine.OpWait, Key: nth(2*i + 1), Rolling: limit.Rolling{Limit: 120, Window: time.Minute}})
		}
		fs.quietly(t, l, func() {
			want := l.Do(ops, nil)
			for i, r := range call(l, ops, nil) {
				checkResult(t, ops[i], r, want[i])
			}
			for i, r := range viewed(t, l, ops) {
				checkResult(t, ops[i], r, want[i])
			}
			for i, r := range want {
				key := i / 7
				live, long := keys/3 <= key && key < 2*keys/3, key%5 == 0
				var got, want any
				switch i % 7 {
				case 0:
					got, want = r.Grant.Replay, live
				case 1:
					got, want = r.Grant.Accepted, !live
				case 2:
					got, want = r.Quota.Used == 2, live
				case 3:
					got, want = r.Stat.Exists(), live
				case 4:
					got, want = r.Admission.Count == 150, live && long
				case 5:
					got, want = r.Admission.Count == 20, live && long
				case 6:
					// The 31st event is the one to go first, but the list dies earlier.
					got, want = r.Admission.Wait > 0, live && long
				}
				if got != want {
					t.Errorf("%+v = %+v, want it to be %v", ops[i], r, want)
				}
			}
		})
	})
}

// TestReplayWritesNothing repeats requests, and has others denied and events
// refused.
func TestReplayWritesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newWatchedFS()
		clock := newManualClock(epoch)
		l := open(t, "store", engine.Options{FS: fs, Now: clock.Now, NoPurge: true})
		q := limit.Quota{Limit: 5, Window: 10 * time.Second}
		w, pause := limit.Rolling{Limit: 2, Window: 10 * time.Second}, limit.Rolling{Limit: 2, Window: 10 * time.Second, Pause: true}
		quota, list, paused := []byte("quota"), []byte("list"), []byte("paused")
		first := []engine.Op{
			{Verb: engine.OpTakeQuota, Key: quota, ID: "a", Quota: q, N: 2},
			{Verb: engine.OpTakeQuota, Key: quota, ID: "b", Quota: q, N: 2},
			{Verb: engine.OpIncrement, Key: list, Rolling: w, N: 5},
			{Verb: engine.OpIncrement, Key: paused, Rolling: pause, N: 2},
			{Verb: engine.OpAllow, Key: paused, Rolling: pause}, // the one failed check that is recorded
		}
		for i, r := range l.Do(first, nil) {
			if r.Err != nil {
				t.Fatalf("%+v: %v", first[i], r.Err)
			}
		}
		clock.Advance(time.Second)
		fs.quietly(t, l, func() {
			for _, c := range []struct {
				op   engine.Op
				want engine.Result
			}{
				{first[0], engine.Result{Grant: limit.Grant{Accepted: true, Replay: true, Used: 2, Limit: 5, ResetAfter: 9 * time.Second}}},
				{first[1], engine.Result{Grant: limit.Grant{Accepted: true, Replay: true, Used: 4, Limit: 5, ResetAfter: 9 * time.Second}}},
				{engine.Op{Verb: engine.OpTakeQuota, Key: quota, ID: "c", Quota: q, N: 2}, engine.Result{Grant: limit.Grant{Used: 4, Limit: 5, ResetAfter: 9 * time.Second}}},
				{engine.Op{Verb: engine.OpAllow, Key: list, Rolling: w}, engine.Result{Admission: limit.Admission{Count: 2, Limit: 2, Wait: 9 * time.Second}}},
				{engine.Op{Verb: engine.OpIncrement, Key: list, Rolling: w, N: 3}, engine.Result{Total: 3}},
				{engine.Op{Verb: engine.OpIncrement, Key: list, Rolling: w}, engine.Result{Total: 2}},
				{engine.Op{Verb: engine.OpAllow, Key: paused, Rolling: pause}, engine.Result{Admission: limit.Admission{Count: 3, Limit: 2, Wait: 9 * time.Second}}},
				{engine.Op{Verb: engine.OpIncrement, Key: paused, Rolling: pause, N: 1}, engine.Result{Total: 4}},
				{engine.Op{Verb: engine.OpAllow, Key: []byte("absent"), Rolling: limit.Rolling{Window: time.Second}}, engine.Result{Admission: limit.Admission{Wait: limit.Never}}},
				{engine.Op{Verb: engine.OpAllow, Key: []byte("absent"), Rolling: limit.Rolling{Limit: -1, Window: time.Second, Pause: true}}, engine.Result{Admission: limit.Admission{Limit: -1, Wait: limit.Never}}},
				{engine.Op{Verb: engine.OpIncrement, Key: []byte("absent"), Rolling: w}, engine.Result{}},
				{engine.Op{Verb: engine.OpStat, Key: []byte("absent")}, engine.Result{}},
			} {
				for range 2 {
					checkResult(t, c.op, l.Do([]engine.Op{c.op}, nil)[0], c.want)
				}
			}
		})
	})
}
