package engine_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/gabiondb/gabion/engine"
)

// A slowDisk is a file system that can be told to hold back the syncs of logs.
// It is used in a bubble of synctest, where it can be seen who waits.
type slowDisk struct {
	*vfs.MemFS
	mu    sync.Mutex
	gate  chan error // where a sync gets its outcome; nil if none is held back
	syncs int        // that have been asked for
}

func (d *slowDisk) hook(op errorfs.Op) error {
	if !syncsLog(op) {
		return nil
	}
	d.mu.Lock()
	d.syncs++
	gate := d.gate
	d.mu.Unlock()
	if gate == nil {
		return nil
	}
	return <-gate
}

func (d *slowDisk) setGate(gate chan error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gate = gate
}

// hold holds back syncs from now on.
func (d *slowDisk) hold() chan error {
	gate := make(chan error)
	d.setGate(gate)
	return gate
}

// release lets all syncs go on.
func (d *slowDisk) release() {
	if gate := d.gate; gate != nil {
		d.setGate(nil)
		close(gate)
	}
}

// inBubble runs test in a bubble of synctest, on a new store.
func inBubble(t *testing.T, opts engine.Options, test func(*testing.T, *engine.Limiter, *slowDisk)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := &slowDisk{MemFS: vfs.NewCrashableMem()}
		opts.FS = newHookFS(d.MemFS, d.hook)
		l := open(t, "store", opts)
		t.Cleanup(d.release) // or a test that gives up would wait for the disk
		test(t, l, d)
	})
}

// durable returns what is used of key on the disk.
func (d *slowDisk) durable(t *testing.T, key string) int64 {
	t.Helper()
	l, err := engine.Open("store", &engine.Options{FS: d.CrashClone(vfs.CrashCloneCfg{}), Now: func() time.Time { return epoch }})
	if err != nil {
		t.Fatal(err)
	}
	defer closeChecked(t, l)
	s, err := l.Stat([]byte(key))
	if err != nil {
		t.Error(err)
	}
	return usedOf(s)
}

// pending is calls under way.
type pending struct {
	mu       sync.Mutex
	calls    sync.WaitGroup
	names    []string
	returned map[string]error
}

// start makes a call, and returns when it has returned or waits.
func (p *pending) start(name string, call func() error) {
	p.names = append(p.names, name)
	p.calls.Go(func() {
		err := call()
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.returned == nil {
			p.returned = make(map[string]error)
		}
		p.returned[name] = err
	})
	synctest.Wait()
}

// waiting returns the calls that have not returned.
func (p *pending) waiting() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var names []string
	for _, name := range p.names {
		if _, ok := p.returned[name]; !ok {
			names = append(names, name)
		}
	}
	return names
}

// want checks that exactly these calls wait.
func (p *pending) want(t *testing.T, names ...string) {
	t.Helper()
	if got := p.waiting(); !slices.Equal(got, names) {
		t.Errorf("%q are waiting, want %q", got, names)
	}
}

// TestOneRoundAtATime makes charges while a sync is under way. All of them go
// into the next round.
func TestOneRoundAtATime(t *testing.T) {
	now := func() time.Time { return epoch }
	inBubble(t, engine.Options{Now: now, NoPurge: true}, func(t *testing.T, l *engine.Limiter, d *slowDisk) {
		visible := func(key string) int64 {
			s, err := l.Visible([]byte(key))
			if err != nil {
				t.Fatal(err)
			}
			return usedOf(s)
		}
		rounds := l.Metrics().Rounds
		gate := d.hold()
		var p pending
		for _, key := range []string{"a", "b", "c"} {
			p.start(key, throttle(l, key, 1))
		}
		p.want(t, "a", "b", "c")
		if a, b := visible("a"), visible("b"); a != 1 || b != 0 {
			t.Errorf("the store shows %d and %d used while the first is being synced, want 1 and 0", a, b)
		}
		gate <- nil
		synctest.Wait()
		p.want(t, "b", "c")
		if b, c := visible("b"), visible("c"); b != 1 || c != 1 {
			t.Errorf("the store shows %d and %d used behind the first sync, want both", b, c)
		}
		d.release()
		p.calls.Wait()
		if n := l.Metrics().Rounds - rounds; n != 2 {
			t.Errorf("three charges went into %d rounds, want 2", n)
		}
	})
}

// TestAnswersWaitForTheDisk holds a charge back between becoming visible and
// becoming durable. No answer may rest on it meanwhile.
func TestAnswersWaitForTheDisk(t *testing.T) {
	inBubble(t, engine.Options{Now: tickingClock()}, func(t *testing.T, l *engine.Limiter, d *slowDisk) {
		must(t, throttle(l, "k", 1), throttle(l, "idle", 10))
		d.hold()
		var p pending
		p.start("charge", throttle(l, "k", 2))
		if s, err := l.Visible([]byte("k")); usedOf(s) != 3 {
			t.Fatalf("the store shows %d used, %v, want 3", usedOf(s), err)
		}

		var mu sync.Mutex
		answers := make(map[string]int64)
		answer := func(name string, used int64, err error) error {
			mu.Lock()
			defer mu.Unlock()
			answers[name] = used
			return err
		}
		key := []byte("k")
		calls := []struct {
			name string
			call func(name string) error
		}{
			{"denial", func(name string) error {
				d, err := l.Throttle(key, bucket(10), 10)
				return answer(name, 10-d.Remaining, err)
			}},
			{"look", func(name string) error {
				d, err := l.Throttle(key, bucket(10), 0)
				return answer(name, 10-d.Remaining, err)
			}},
			{"probe", func(name string) error {
				d, err := l.Probe(key, bucket(10), 0)
				return answer(name, 10-d.Remaining, err)
			}},
			{"stat", func(name string) error {
				s, err := l.Stat(key)
				return answer(name, usedOf(s), err)
			}},
			{"view", func(name string) error {
				return l.View(func(v *engine.View) error {
					d, err := v.Probe(key, bucket(10), 0)
					return answer(name, 10-d.Remaining, err)
				})
			}},
			{"scan", func(name string) error {
				_, err := l.Scan(0, 10, func(k []byte, s engine.Stat) {
					if string(k) == "k" {
						answer(name, usedOf(s), nil)
					}
				})
				return err
			}},
		}
		want := []string{"charge"}
		for _, c := range calls {
			p.start(c.name, func() error { return c.call(c.name) })
			want = append(want, c.name)
		}
		p.start("probe of an absent key", func() error {
			_, err := l.Probe([]byte("absent"), bucket(10), 1)
			return err
		})
		p.start("reset of an absent key", func() error {
			_, err := l.Reset([]byte("absent"))
			return err
		})
		p.start("sync", l.Sync)
		want = append(want, "probe of an absent key", "reset of an absent key", "sync")
		// What it rests on has long been on disk, and it knows.
		p.start("denial on an idle key", throttle(l, "idle", 1))
		p.want(t, want...)
		if got := d.durable(t, "k"); got != 1 {
			t.Errorf("%d used on disk while the sync is held back, want 1", got)
		}

		d.release()
		p.calls.Wait()
		for name, err := range p.returned {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		for _, c := range calls {
			if got := answers[c.name]; got != 3 {
				t.Errorf("the %s says %d used, want 3", c.name, got)
			}
		}
		if got := d.durable(t, "k"); got != 3 {
			t.Errorf("%d used on disk, want 3", got)
		}
	})
}

// TestReadersMeetApply has readers look at a key again and again while a charge
// of it becomes visible. What the first of them sees of it is not on disk yet.
func TestReadersMeetApply(t *testing.T) {
	inBubble(t, engine.Options{Now: tickingClock()}, func(t *testing.T, l *engine.Limiter, d *slowDisk) {
		const limit = 1 << 20
		charges := int64(10_000)
		if testing.Short() {
			charges = 1000
		}
		key := []byte("k")
		var released atomic.Int64 // charges whose sync was let go
		view := func() (used int64, err error) {
			err = l.View(func(v *engine.View) error {
				s, err := v.Stat(key)
				used = usedOf(s)
				return err
			})
			return used, err
		}
		probe := func() (int64, error) {
			d, err := l.Probe(key, bucket(limit), 0)
			return limit - d.Remaining, err
		}
		var readers sync.WaitGroup
		for i := range 4 {
			read := []func() (int64, error){view, probe}[i%2]
			readers.Go(func() {
				used := int64(0)
				for n := 0; used < charges && !t.Failed(); n++ {
					var err error
					if used, err = read(); err != nil {
						t.Error(err)
						return
					}
					if on := released.Load(); used > on {
						t.Errorf("an answer says %d used, but %d are on disk", used, on)
						return
					}
					if n%16 == 0 {
						runtime.Gosched() // it is the others that are to get on
					}
				}
			})
		}
		for range charges {
			d.hold()
			var charge sync.WaitGroup
			charge.Go(func() {
				if _, err := l.Throttle(key, bucket(limit), 1); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
			released.Add(1)
			d.release()
			charge.Wait()
			if t.Failed() {
				break
			}
		}
		readers.Wait()
	})
}

// TestBackpressure has changes pile up. When they are many nobody waits for the
// interval to end, and while the way to the disk is blocked there is an end to
// how many may.
func TestBackpressure(t *testing.T) {
	inBubble(t, engine.Options{Durability: engine.Interval, SyncInterval: 1 << 62}, func(t *testing.T, l *engine.Limiter, d *slowDisk) {
		flood := func(name string, n int) func() error {
			var ops []engine.Op
			for i := range n {
				ops = append(ops, engine.Op{Key: fmt.Appendf(nil, "%s-%d", name, i), Rate: bucket(10), N: 1})
			}
			return func() error { return l.Do(ops, nil)[0].Err }
		}
		must(t, flood("many", 1<<15))
		synctest.Wait()
		if s, err := l.Visible([]byte("many-0")); err != nil || !s.Exists() {
			t.Errorf("a change does not show when many others have followed it: %v", err)
		}

		d.hold()
		var p pending
		for _, key := range []string{"a", "b"} {
			must(t, throttle(l, key, 1))
			p.start("sync "+key, l.Sync)
		}
		p.start("some", flood("some", 1<<15))
		p.start("too many", flood("too many", 1<<16))
		p.want(t, "sync a", "sync b", "too many")
		d.release()
		p.calls.Wait()
		for name, err := range p.returned {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// TestRoundIsACut has a client charge keys one after the other, again and
// again, while rounds are cut that take long to build. What the store shows is
// what it has done up to one moment.
func TestRoundIsACut(t *testing.T) {
	const views, many = 50, 10_000
	l := open(t, "store", engine.Options{Durability: engine.Interval, SyncInterval: 1 << 62, Now: tickingClock()})
	var keys [16][]byte
	for i := range keys {
		keys[i] = fmt.Appendf(nil, "ordered-%d", i)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			for _, key := range keys {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := l.Throttle(key, bucket(1<<30), 1); err != nil {
					t.Error(err)
					return
				}
			}
		}
	}()
	var ops []engine.Op
	for i := range many {
		ops = append(ops, engine.Op{Key: fmt.Append(nil, i), Rate: bucket(1000), N: 1})
	}
	for range views {
		l.Do(ops, nil)
		err := l.View(func(v *engine.View) error {
			var used [len(keys)]int64
			for i, key := range keys {
				s, err := v.Stat(key)
				if err != nil {
					return err
				}
				used[i] = usedOf(s)
			}
			for i := range used[1:] {
				if used[i] < used[i+1] || used[i] > used[len(used)-1]+1 {
					return fmt.Errorf("%d used of the keys, which no moment has seen", used)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	<-stopped
}

// permute calls do with each order of s.
func permute[T any](s []T, do func([]T)) {
	var from func(i int)
	from = func(i int) {
		if i == len(s) {
			do(slices.Clone(s))
			return
		}
		for j := i; j < len(s); j++ {
			s[i], s[j] = s[j], s[i]
			from(i + 1)
			s[i], s[j] = s[j], s[i]
		}
	}
	from(0)
}

// schedule is calls that fill the way to the disk: as many rounds as may be are
// in flight and one is open, while others want to get in.
func schedule(l *engine.Limiter, order []string) (p *pending) {
	p = new(pending)
	for _, name := range order {
		switch name {
		case "sync":
			p.start(name, l.Sync)
		case "reset all":
			p.start(name, l.ResetAll)
		case "len":
			p.start(name, func() error {
				_, err := l.Len()
				return err
			})
		default:
			p.start(name, throttle(l, name, 1))
		}
	}
	return p
}

// TestSchedules has calls queue up before a disk that doesn't sync, in all
// orders. When it goes on they all return, with what is on disk then, and the
// limiter works as before.
func TestSchedules(t *testing.T) {
	for _, durability := range durabilities {
		permute([]string{"a", "b", "c", "reset all", "sync"}, func(order []string) {
			inBubble(t, engine.Options{Durability: durability, SyncInterval: 1 << 62, Now: tickingClock()}, func(t *testing.T, l *engine.Limiter, d *slowDisk) {
				must(t, throttle(l, "a", 1), l.Sync)
				d.hold()
				p := schedule(l, order)
				if durability == engine.Always {
					p.want(t, order...)
				} else {
					p.want(t, slices.DeleteFunc(slices.Clone(order), func(name string) bool { return name != "sync" })...)
				}
				d.release()
				p.calls.Wait()
				for name, err := range p.returned {
					if err != nil {
						t.Errorf("%v: %s: %v", order, name, err)
					}
				}
				// What began after another call waited may be before it in the
				// order of the store, so only this is certain: who was reset
				// was charged before.
				must(t, l.Sync)
				used := scanAll(t, l)
				for _, key := range []string{"a", "b", "c"} {
					if got := d.durable(t, key); got != used[key] {
						t.Errorf("%v: %d of %s used on disk, but %d in the store", order, got, key, used[key])
					}
					if got := used[key]; slices.Index(order, key) < slices.Index(order, "reset all") && got != 0 {
						t.Errorf("%v: %d of %s used, want 0", order, got, key)
					} else if durability != engine.Always && slices.Index(order, key) > slices.Index(order, "reset all") && got != 1 {
						t.Errorf("%v: %d of %s used, want 1", order, got, key)
					}
				}
				must(t, throttle(l, "d", 3), l.Sync)
				if got := d.durable(t, "d"); got != 3 {
					t.Errorf("%v: %d used on disk, want 3", order, got)
				}
			})
		})
	}
}

// TestSchedulesFail is TestSchedules with a disk that goes on with an error.
func TestSchedulesFail(t *testing.T) {
	for _, durability := range durabilities {
		permute([]string{"a", "b", "len", "reset all", "sync"}, func(order []string) {
			inBubble(t, engine.Options{Durability: durability, SyncInterval: 1 << 62, Now: tickingClock()}, func(t *testing.T, l *engine.Limiter, d *slowDisk) {
				must(t, throttle(l, "a", 1), l.Sync)
				gate := d.hold()
				p := schedule(l, order)
				waiting := p.waiting()
				gate <- syscall.EIO
				d.release()
				p.calls.Wait()
				for _, name := range waiting {
					if err := p.returned[name]; !errors.Is(err, syscall.EIO) || !errors.Is(err, engine.ErrStorage) {
						t.Errorf("%v: %s = %v, want %v", order, name, err, syscall.EIO)
					}
				}
				if !slices.Contains(waiting, "sync") {
					t.Errorf("%v: Sync has not waited", order)
				}
				if err := l.Close(); !errors.Is(err, engine.ErrStorage) {
					t.Errorf("%v: Close = %v, want %v", order, err, engine.ErrStorage)
				}
				if got := d.durable(t, "a"); got != 1 {
					t.Errorf("%v: %d used on disk, want 1", order, got)
				}
			})
		})
	}
}

// TestSyncCoversWhatCameBefore has two Syncs wait: the first does not wait for
// what came after it, and the second is not let go with the first.
func TestSyncCoversWhatCameBefore(t *testing.T) {
	inBubble(t, engine.Options{Durability: engine.Interval, SyncInterval: 1 << 62, Now: tickingClock()}, func(t *testing.T, l *engine.Limiter, d *slowDisk) {
		gate := d.hold()
		var p pending
		must(t, throttle(l, "a", 1))
		p.start("first", l.Sync)
		must(t, throttle(l, "b", 1))
		p.start("second", l.Sync)
		p.want(t, "first", "second")
		gate <- nil
		synctest.Wait()
		p.want(t, "second")
		if a, b := d.durable(t, "a"), d.durable(t, "b"); a != 1 || b != 0 {
			t.Errorf("%d and %d used on disk, want 1 and 0", a, b)
		}
		d.release()
		p.calls.Wait()
		if b := d.durable(t, "b"); b != 1 {
			t.Errorf("%d used on disk, want 1", b)
		}
	})
}

// TestIntervalSyncs sees that what was answered is on disk an interval later,
// whatever has made the committer act before.
func TestIntervalSyncs(t *testing.T) {
	const interval = 10 * time.Millisecond
	for name, between := range map[string]func(l *engine.Limiter) error{
		"nothing":  func(*engine.Limiter) error { return nil },
		"a probe":  func(l *engine.Limiter) error { _, err := l.Probe([]byte("k"), bucket(10), 1); return err },
		"a scan":   func(l *engine.Limiter) error { _, err := l.Len(); return err },
		"a sync":   func(l *engine.Limiter) error { return l.Sync() },
		"a charge": func(l *engine.Limiter) error { return throttle(l, "other", 1)() },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, engine.Options{Durability: engine.Interval, SyncInterval: interval, Now: tickingClock()}, func(t *testing.T, l *engine.Limiter, d *slowDisk) {
				for round := range int64(3) {
					must(t, throttle(l, "k", 1), func() error { return between(l) })
					time.Sleep(interval)
					synctest.Wait()
					if got := d.durable(t, "k"); got != round+1 {
						t.Errorf("%d used on disk after %d intervals, want %d", got, round+1, round+1)
					}
				}
			})
		})
	}
}

// TestNeverSyncs sees that Never asks for no sync, and that its changes reach
// the store by themselves.
func TestNeverSyncs(t *testing.T) {
	const interval = 10 * time.Millisecond
	inBubble(t, engine.Options{Durability: engine.Never, SyncInterval: interval, Now: tickingClock()}, func(t *testing.T, l *engine.Limiter, d *slowDisk) {
		before := d.syncs
		must(t, throttle(l, "k", 1))
		time.Sleep(interval)
		synctest.Wait()
		if s, err := l.Visible([]byte("k")); err != nil || usedOf(s) != 1 {
			t.Errorf("the store shows %d used, %v, want 1", usedOf(s), err)
		}
		if d.syncs > before {
			t.Errorf("%d syncs, want none", d.syncs-before)
		}
	})
}

// TestNobodyWaitsForTheInterval has calls need what is only staged, with no
// interval to end.
func TestNobodyWaitsForTheInterval(t *testing.T) {
	for _, durability := range []engine.Durability{engine.Interval, engine.Never} {
		t.Run(durability.String(), func(t *testing.T) {
			l := open(t, "store", engine.Options{Durability: durability, SyncInterval: 1 << 62, Now: tickingClock()})
			key := []byte("k")
			used := int64(0)
			for name, read := range map[string]func() (int64, error){
				"Probe": func() (int64, error) {
					d, err := l.Probe(key, bucket(100), 0)
					return 100 - d.Remaining, err
				},
				"Stat": func() (int64, error) {
					s, err := l.Stat(key)
					return usedOf(s), err
				},
				"View": func() (used int64, err error) {
					err = l.View(func(v *engine.View) error {
						d, err := v.Probe(key, bucket(100), 0)
						used = 100 - d.Remaining
						return err
					})
					return used, err
				},
				"Scan": func() (used int64, err error) {
					_, err = l.Scan(0, 10, func(_ []byte, s engine.Stat) { used = usedOf(s) })
					return used, err
				},
				"Do": func() (int64, error) {
					used++
					r := l.Do([]engine.Op{
						{Verb: engine.OpThrottle, Key: key, Rate: bucket(100), N: 1},
						{Verb: engine.OpStat, Key: key},
					}, nil)
					return usedOf(r[1].Stat), r[1].Err
				},
			} {
				for range 3 {
					used++
					if _, err := l.Throttle(key, bucket(100), 1); err != nil {
						t.Fatal(err)
					}
					if got, err := read(); got != used || err != nil {
						t.Errorf("%s says %d used, %v, want %d", name, got, err, used)
					}
				}
			}

			// More changes than may wait for the committer.
			var ops []engine.Op
			for i := range 1 << 17 {
				ops = append(ops, engine.Op{Key: fmt.Append(nil, i), Rate: bucket(10), N: 1})
			}
			for chunk := range slices.Chunk(ops, 1<<14) {
				for _, r := range l.Do(chunk, nil) {
					if r.Err != nil {
						t.Fatal(r.Err)
					}
				}
			}
			if m := l.Metrics(); m.Writes < 1<<16 {
				t.Errorf("%d records written, want at least half of %d", m.Writes, len(ops))
			}
			if n, err := l.Len(); n != 1<<17+1 || err != nil {
				t.Errorf("Len = %d, %v, want %d", n, err, 1<<17+1)
			}
			if err := l.ResetAll(); err != nil {
				t.Error(err)
			}
			if n, err := l.Len(); n != 0 || err != nil {
				t.Errorf("Len = %d, %v after ResetAll, want 0", n, err)
			}
		})
	}
}
