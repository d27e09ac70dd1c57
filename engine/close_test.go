package engine_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/engine"
)

func TestClosed(t *testing.T) {
	checkLeaks(t)
	l := open(t, "store", engine.Options{})
	for name, err := range everyCall(t, l) {
		if err != nil {
			t.Errorf("%s = %v", name, err)
		}
	}
	if err := l.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	for range 2 {
		for name, err := range everyCall(t, l) {
			if err != engine.ErrClosed {
				t.Errorf("%s = %v after Close, want %v", name, err, engine.ErrClosed)
			}
		}
		if err := l.Close(); err != engine.ErrClosed {
			t.Errorf("Close again = %v, want %v", err, engine.ErrClosed)
		}
	}
	if m := l.Metrics(); m != (engine.Metrics{}) {
		t.Errorf("Metrics = %+v after Close, want zeros", m)
	}
	if err := l.Failure(); err != nil {
		t.Errorf("Failure = %v after Close, want nil", err)
	}
}

func TestCloseSyncs(t *testing.T) {
	for _, durability := range durabilities {
		t.Run(durability.String(), func(t *testing.T) {
			checkLeaks(t)
			fs := vfs.NewCrashableMem()
			for i := range int64(5) {
				l := open(t, "store", engine.Options{FS: fs, Durability: durability, SyncInterval: 1 << 62, Now: newManualClock(epoch).Now})
				if d, err := l.Throttle([]byte("k"), bucket(10), 1); err != nil || d.Remaining != 9-i {
					t.Errorf("Throttle leaves %d, %v, want %d", d.Remaining, err, 9-i)
				}
				if err := l.Close(); err != nil {
					t.Errorf("Close = %v", err)
				}
				fs = fs.CrashClone(vfs.CrashCloneCfg{})
			}
		})
	}
}

// TestCloseWaits closes a limiter while a View is under way. Close waits for
// it, and what the View's function calls meanwhile doesn't wait for Close.
func TestCloseWaits(t *testing.T) {
	for _, durability := range durabilities {
		inBubble(t, engine.Options{Durability: durability}, func(t *testing.T, l *engine.Limiter, _ *slowDisk) {
			must(t, throttle(l, "k", 3))
			proceed := make(chan struct{})
			var p pending
			p.start("view", func() error {
				return l.View(func(v *engine.View) error {
					<-proceed
					for name, err := range everyCall(t, l) {
						if err != engine.ErrClosed {
							t.Errorf("%s = %v while Close waits, want %v", name, err, engine.ErrClosed)
						}
					}
					d, err := v.Probe([]byte("k"), bucket(10), 0)
					if d.Remaining != 7 {
						t.Errorf("View.Probe leaves %d, want 7", d.Remaining)
					}
					return err
				})
			})
			p.start("close", l.Close)
			p.want(t, "view", "close")
			close(proceed)
			synctest.Wait()
			p.want(t)
			for name, err := range p.returned {
				if err != nil {
					t.Errorf("%s = %v", name, err)
				}
			}
		})
	}
}

// TestCloseWaitsForTheDisk closes a limiter while a charge waits for its sync.
func TestCloseWaitsForTheDisk(t *testing.T) {
	inBubble(t, engine.Options{Now: tickingClock()}, func(t *testing.T, l *engine.Limiter, d *slowDisk) {
		d.hold()
		var p pending
		p.start("charge", throttle(l, "k", 3))
		p.start("close", l.Close)
		p.start("late", throttle(l, "k", 1))
		p.want(t, "charge", "close")
		d.release()
		synctest.Wait()
		p.want(t)
		if p.returned["charge"] != nil || p.returned["close"] != nil || p.returned["late"] != engine.ErrClosed {
			t.Errorf("the calls returned %v", p.returned)
		}
		if got := d.durable(t, "k"); got != 3 {
			t.Errorf("%d used on disk, want 3", got)
		}
	})
}

// TestCloseDuringCalls closes limiters in the midst of all kinds of calls.
func TestCloseDuringCalls(t *testing.T) {
	checkLeaks(t)
	seed := newSeed(t)
	for _, durability := range durabilities {
		for i := range uint64(20) {
			fs := vfs.NewCrashableMem()
			l := open(t, "store", engine.Options{FS: fs, Durability: durability, Now: tickingClock()})
			m := newMix(t, l, 8)
			started := make(chan struct{}, 8)
			var clients sync.WaitGroup
			for id := range 8 {
				rng := rand.New(rand.NewPCG(seed+i, uint64(id)))
				clients.Go(func() {
					err := m.step(id, rng)
					started <- struct{}{}
					for err == nil {
						err = m.step(id, rng)
					}
					if err != engine.ErrClosed {
						t.Errorf("a call during Close = %v, want %v", err, engine.ErrClosed)
					}
				})
			}
			for range 8 {
				<-started
			}
			if err := l.Close(); err != nil {
				t.Errorf("Close = %v", err)
			}
			clients.Wait()
			m.verify(open(t, "store", engine.Options{FS: fs.CrashClone(vfs.CrashCloneCfg{}), Now: newManualClock(epoch).Now}))
		}
	}
}

// A mix is clients that make all kinds of calls, each charging keys of its own
// and all charging one together.
type mix struct {
	t    *testing.T
	l    *engine.Limiter
	used []map[string]int64 // of each client's own keys
	all  account

	mu     sync.RWMutex // held by ResetAll alone, and by the charges of what it resets
	resets bool         // whether ResetAll is one of the calls
}

func newMix(t *testing.T, l *engine.Limiter, clients int) *mix {
	m := &mix{t: t, l: l, all: account{key: []byte("all"), limit: 1 << 30}}
	for range clients {
		m.used = append(m.used, make(map[string]int64))
	}
	return m
}

// step makes one call, and returns its error.
func (m *mix) step(id int, rng *rand.Rand) error {
	if m.resets && rng.IntN(200) == 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		if err := m.l.ResetAll(); err != nil {
			return err
		}
		for i := range m.used {
			clear(m.used[i])
		}
		m.all.acknowledged.Store(0)
		return nil
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	const limit = 1 << 30
	own := fmt.Sprintf("own-%d-%d", id, rng.IntN(30))
	switch rng.IntN(12) {
	case 0:
		return m.l.Sync()
	case 1:
		_, err := m.l.Scan(rng.IntN(engine.ScanEnd), 10, func([]byte, engine.Stat) {})
		return err
	case 2:
		return m.l.Purge(m.t.Context())
	case 3:
		_ = m.l.Metrics()
		_ = m.l.Now()
		return m.l.View(func(v *engine.View) error {
			d, err := v.Probe([]byte(own), bucket(limit), 0)
			if used := limit - d.Remaining; err == nil && used != m.used[id][own] {
				m.t.Errorf("View.Probe says %d used of %s, want %d", used, own, m.used[id][own])
			}
			return err
		})
	case 4:
		existed, err := m.l.Reset([]byte(own))
		if err == nil {
			if existed != (m.used[id][own] > 0) {
				m.t.Errorf("Reset(%s) = %t with %d used", own, existed, m.used[id][own])
			}
			delete(m.used[id], own)
		}
		return err
	case 5:
		s, err := m.l.Stat([]byte(own))
		if err == nil && usedOf(s) != m.used[id][own] {
			m.t.Errorf("Stat says %d used of %s, want %d", usedOf(s), own, m.used[id][own])
		}
		return err
	}
	ops := []engine.Op{
		{Verb: engine.OpThrottle, Key: []byte(own), Rate: bucket(limit), N: 1 + rng.Int64N(3)},
		{Verb: engine.OpThrottle, Key: m.all.key, Rate: bucket(limit), N: 1},
		{Verb: engine.OpProbe, Key: []byte(own), Rate: bucket(limit), N: 0},
	}
	results := m.l.Do(ops, nil)
	for _, r := range results {
		if !errors.Is(r.Err, results[0].Err) {
			m.t.Errorf("operations of one Do return %v and %v", results[0].Err, r.Err)
		}
	}
	if err := results[0].Err; err != nil {
		return err
	}
	m.used[id][own] += ops[0].N
	m.all.acknowledged.Add(1)
	if used := limit - results[2].Decision.Remaining; used != m.used[id][own] {
		m.t.Errorf("Probe says %d used of %s, want %d", used, own, m.used[id][own])
	}
	return nil
}

// verify checks that l holds what the clients know, and nothing else.
func (m *mix) verify(l *engine.Limiter) {
	m.t.Helper()
	used := scanAll(m.t, l)
	want := map[string]int64{}
	if n := m.all.acknowledged.Load(); n > 0 {
		want[string(m.all.key)] = n
	}
	for _, own := range m.used {
		for key, n := range own {
			want[key] = n
		}
	}
	if len(used) != len(want) {
		m.t.Errorf("%d keys, want %d", len(used), len(want))
	}
	for key, n := range want {
		if used[key] != n {
			m.t.Errorf("%s has %d used, want %d", key, used[key], n)
		}
	}
}

// TestConcurrentCalls has 32 clients make all kinds of calls. It is meant for
// the race detector too.
func TestConcurrentCalls(t *testing.T) {
	for _, durability := range durabilities {
		t.Run(durability.String(), func(t *testing.T) {
			checkLeaks(t)
			seed := newSeed(t)
			l := open(t, "store", engine.Options{Durability: durability, Now: tickingClock(), CacheSize: int64(seed & 1)})
			m := newMix(t, l, 32)
			m.resets = true
			var clients sync.WaitGroup
			for id := range 32 {
				rng := rand.New(rand.NewPCG(seed, uint64(id)))
				clients.Go(func() {
					for range 300 {
						if err := m.step(id, rng); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			clients.Wait()
			m.verify(l)
		})
	}
}

// TestResetAllDuringCalls has clients charge a key of their own each while
// everything is reset again and again. What a reset has forgotten does not come
// back, and what was charged after it is not forgotten.
func TestResetAllDuringCalls(t *testing.T) {
	for _, durability := range durabilities {
		t.Run(durability.String(), func(t *testing.T) {
			seed := newSeed(t)
			l := open(t, "store", engine.Options{Durability: durability, Now: tickingClock(), CacheSize: int64(seed & 1)})
			var begun, ended atomic.Int64 // of the resets
			var clients sync.WaitGroup
			for id := range 8 {
				clients.Go(func() {
					const limit = 1 << 30
					key := fmt.Append(nil, id)
					var most, least []int64 // resets that each charge is before, at most and at least
					for range 1000 {
						least = append(least, ended.Load())
						d, err := l.Throttle(key, bucket(limit), 1)
						most = append(most, begun.Load())
						if err != nil {
							t.Error(err)
							return
						}
						newest := len(most) - 1
						var certain, possible int64
						for i := newest; i >= 0 && most[i] >= least[newest]; i-- {
							possible++
							if least[i] == most[newest] {
								certain++
							}
						}
						if used := limit - d.Remaining; used < max(certain, 1) || used > possible {
							t.Errorf("%d used after charge %d, want %d to %d", used, newest, max(certain, 1), possible)
							return
						}
					}
				})
			}
			charged := make(chan struct{})
			go func() {
				defer close(charged)
				clients.Wait()
			}()
			for {
				select {
				case <-charged:
					return
				default:
				}
				begun.Add(1)
				if err := l.ResetAll(); err != nil {
					t.Error(err)
				}
				ended.Add(1)
			}
		})
	}
}
