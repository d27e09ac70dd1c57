package engine_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// take spends one of a quota's 1000 on each of n requests, from the first on.
func take(t *testing.T, l *engine.Limiter, key []byte, first, n int) {
	t.Helper()
	var ops []engine.Op
	for i := range n {
		ops = append(ops, engine.Op{Verb: engine.OpTakeQuota, Key: key, ID: fmt.Sprint(first + i), Quota: limit.Quota{Limit: 1000, Window: time.Hour}, N: 1})
	}
	for i, r := range l.Do(ops, nil) {
		if !r.Grant.Accepted || r.Grant.Replay || r.Err != nil {
			t.Fatalf("TakeQuota(%q, %q) = %+v, want it accepted", key, ops[i].ID, r)
		}
	}
}

// record records n events, 1 ms apart, in the rolling list of key.
func record(t *testing.T, l *engine.Limiter, clock *manualClock, key []byte, n int) {
	t.Helper()
	for range n {
		clock.Advance(time.Millisecond)
		if a, err := l.Allow(key, limit.Rolling{Limit: 100_000, Window: time.Hour}); !a.Allowed || err != nil {
			t.Fatalf("Allow(%q) = %+v, %v, want it allowed", key, a, err)
		}
	}
}

// TestFewAreDeletedOneByOne has keys forgotten together with what lies beside
// them, applied or only staged. Until it is flushed a range tombstone costs
// every read, so there must not be one for every key that is forgotten.
func TestFewAreDeletedOneByOne(t *testing.T) {
	clock := newManualClock(epoch)
	l := open(t, "store", engine.Options{Durability: engine.Interval, SyncInterval: time.Hour, Now: clock.Now, CacheSize: 1})
	quota, list := []byte("quota"), []byte("list")
	forget := map[string]func(key []byte){
		"reset": func(key []byte) {
			if found, err := l.Reset(key); !found || err != nil {
				t.Errorf("Reset(%q) = %t, %v, want true", key, found, err)
			}
		},
		"expiry": func(key []byte) {
			clock.Advance(time.Hour)
			if d, err := l.Throttle(key, limit.PerSecond(1), 1); !d.Allowed || err != nil {
				t.Errorf("Throttle(%q) = %+v, %v, want it allowed", key, d, err)
			}
			clock.Advance(time.Hour)
		},
	}
	for name, forget := range forget {
		for range 3 {
			// One half of it is in tables, a quarter in memory.
			take(t, l, quota, 0, 100)
			record(t, l, clock, list, 2000)
			flush(t, l)
			take(t, l, quota, 100, 50)
			record(t, l, clock, list, 1000)
			if err := l.Sync(); err != nil {
				t.Fatal(err)
			}
			take(t, l, quota, 150, 50)
			record(t, l, clock, list, 1000)
			forget(quota)
			forget(list)
			if n := l.RangeTombstones(); n > 0 {
				t.Errorf("%d range tombstones after %s", n, name)
			}
			if err := l.Check(); err != nil {
				t.Error(err)
			}
		}
	}

	take(t, l, quota, 0, 1000)
	record(t, l, clock, list, 20_000)
	flush(t, l)
	forget["reset"](quota)
	if n := l.RangeTombstones(); n != 1 {
		t.Errorf("%d range tombstones for a long quota, want 1", n)
	}
	forget["expiry"](list)
	if n := l.RangeTombstones(); n != 2 {
		t.Errorf("%d range tombstones for a long list, too, want 2", n)
	}
}

// TestBeginAnew forgets a quota and a long list, and uses both again at the
// same instant: the new window ends when the old one would have, and the new
// list numbers its events as the old one did.
func TestBeginAnew(t *testing.T) {
	for _, d := range []engine.Durability{engine.Always, engine.Interval, engine.Never} {
		t.Run(d.String(), func(t *testing.T) {
			clock := newManualClock(epoch)
			opts := engine.Options{Durability: d, SyncInterval: time.Hour, Now: clock.Now, CacheSize: 1, FS: vfs.NewMem()}
			l := open(t, "store", opts)
			quota, list := []byte("quota"), []byte("list")
			forget := map[string]func(){
				"Reset": func() {
					for _, key := range [][]byte{quota, list} {
						if found, err := l.Reset(key); !found || err != nil {
							t.Errorf("Reset(%q) = %t, %v, want true", key, found, err)
						}
					}
				},
				"ResetAll": func() {
					if err := l.ResetAll(); err != nil {
						t.Error(err)
					}
				},
			}
			for name, forget := range forget {
				for _, settle := range []func(){
					func() {},
					func() { flush(t, l) },
					func() { l = reopen(t, l, "store", opts) },
				} {
					record(t, l, clock, list, 280)
					take(t, l, quota, 0, 10)
					settle()
					forget()
					take(t, l, quota, 0, 7) // as requests that were never made
					record(t, l, clock, list, 220)
					// The oldest 150 events are in three chunks.
					for _, n := range []int64{219, 150, 100, 75} {
						a, err := l.Allow(list, limit.Rolling{Limit: n, Window: time.Hour})
						if want := time.Hour - time.Duration(n-1)*time.Millisecond; a.Wait != want || err != nil {
							t.Errorf("Allow(%d) after %s = %+v, %v, want a wait of %v", n, name, a, err, want)
						}
					}
					for _, want := range []int64{219, 150, 100, 75} {
						w := limit.Rolling{Limit: 1000, Window: time.Duration(want) * time.Millisecond}
						if n, err := l.Peek(list, w); n != want || err != nil {
							t.Errorf("Peek(%v) after %s = %d, %v, want %d", w.Window, name, n, err, want)
						}
					}
					if u, err := l.Quota(quota); u.Used != 7 || err != nil {
						t.Errorf("Quota after %s = %+v, %v, want 7 used", name, u, err)
					}
					forget()
				}
			}
		})
	}
}

// TestAnswersWaitForWhatTheySaw has a request and events on their way to the
// disk. Whoever sees them, be it in the cache or in the store, is not answered
// before they are there, and whoever sees what has long been there is at once.
func TestAnswersWaitForWhatTheySaw(t *testing.T) {
	for _, evict := range []bool{false, true} {
		t.Run(fmt.Sprintf("evicted=%t", evict), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { checkAnswersWait(t, evict) })
		})
	}
}

func checkAnswersWait(t *testing.T, evict bool) {
	gate, shut := make(chan struct{}), atomic.Bool{}
	fs := newWatchedFS()
	fs.before = func(op errorfs.Op) {
		if shut.Load() && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) {
			<-gate
		}
	}
	clock := newManualClock(epoch)
	opts := engine.Options{FS: fs, Now: clock.Now}
	if evict {
		opts.CacheSize = 1
	}
	l := open(t, "store", opts)
	q, w := limit.Quota{Limit: 10, Window: time.Hour}, limit.Rolling{Limit: 1, Window: time.Hour}
	quota, list, old := []byte("quota"), []byte("list"), []byte("old")
	charge(t, l, 0, 2000, limit.PerDay(1))
	if g, err := l.TakeQuota(old, "id", q, 1); !g.Accepted || err != nil {
		t.Fatal(g, err)
	}
	synctest.Wait()

	shut.Store(true)
	var mu sync.Mutex
	pending := map[string]bool{}
	ask := func(name string, op engine.Op, want error) {
		mu.Lock()
		defer mu.Unlock()
		pending[name] = true
		go func() {
			if r := l.Do([]engine.Op{op}, nil)[0]; !errors.Is(r.Err, want) {
				t.Errorf("%s: %+v, want error %v", name, r, want)
			}
			mu.Lock()
			defer mu.Unlock()
			delete(pending, name)
		}()
	}
	ask("request", engine.Op{Verb: engine.OpTakeQuota, Key: quota, ID: "id", Quota: q, N: 1}, nil)
	ask("event", engine.Op{Verb: engine.OpAllow, Key: list, Rolling: w}, nil)
	synctest.Wait()
	if !evict {
		if g, err := l.TakeQuota(old, "id", q, 1); !g.Replay || err != nil {
			t.Errorf("replay of what is on disk = %+v, %v", g, err)
		}
	} else {
		for i := range 2000 {
			go l.Throttle(nth(i), limit.PerDay(1), 1)
		}
		synctest.Wait()
	}
	misses := l.Metrics().CacheMisses
	other := q
	other.Limit++
	ask("replay", engine.Op{Verb: engine.OpTakeQuota, Key: quota, ID: "id", Quota: q, N: 1}, nil)
	ask("conflict", engine.Op{Verb: engine.OpTakeQuota, Key: quota, ID: "id", Quota: q, N: 2}, limit.ErrConflict)
	ask("policy", engine.Op{Verb: engine.OpTakeQuota, Key: quota, ID: "x", Quota: other, N: 1}, limit.ErrPolicyChanged)
	ask("no room", engine.Op{Verb: engine.OpTakeQuota, Key: quota, ID: "x", Quota: q, N: 10}, nil)
	ask("probe", engine.Op{Verb: engine.OpProbeQuota, Key: quota, ID: "id", Quota: q, N: 1}, nil)
	ask("probe of a conflict", engine.Op{Verb: engine.OpProbeQuota, Key: quota, ID: "id", Quota: q, N: 2}, limit.ErrConflict)
	ask("quota", engine.Op{Verb: engine.OpQuota, Key: quota}, nil)
	ask("denial", engine.Op{Verb: engine.OpAllow, Key: list, Rolling: w}, nil)
	ask("increment", engine.Op{Verb: engine.OpIncrement, Key: list, Rolling: w, N: 1}, nil)
	ask("peek", engine.Op{Verb: engine.OpPeek, Key: list, Rolling: w}, nil)
	ask("wait", engine.Op{Verb: engine.OpWait, Key: list, Rolling: w}, nil)
	ask("wrong kind", engine.Op{Verb: engine.OpAllow, Key: quota, Rolling: w}, engine.ErrWrongKind)
	ask("wrong kind of probe", engine.Op{Verb: engine.OpProbeQuota, Key: list, ID: "id", Quota: q, N: 1}, engine.ErrWrongKind)
	synctest.Wait()
	if len(pending) != 15 {
		t.Errorf("%d calls wait, want 15: %v", len(pending), pending)
	}
	// The second of the two keys may be in a round that waits to be applied, and so
	// in the cache.
	if n := l.Metrics().CacheMisses - misses; evict != (n > 0) {
		t.Errorf("%d times a key was not in the cache", n)
	}
	shut.Store(false)
	close(gate)
	synctest.Wait()
	if len(pending) > 0 {
		t.Errorf("%v still wait", pending)
	}
}

// TestDamageBeside damages a chunk and the record of a request. What needs them
// fails and charges nothing, all else goes on, and to forget the key mends it.
func TestDamageBeside(t *testing.T) {
	for name, damage := range map[string]func(db *pebble.DB, key string) error{
		"cut short": func(db *pebble.DB, key string) error { return db.Set([]byte(key), []byte{codec.Version}, nil) },
		"emptied":   func(db *pebble.DB, key string) error { return db.Set([]byte(key), nil, nil) },
		"lost":      func(db *pebble.DB, key string) error { return db.Delete([]byte(key), nil) },
	} {
		t.Run(name, func(t *testing.T) {
			clock := newManualClock(epoch)
			opts := engine.Options{Now: clock.Now, FS: vfs.NewMem()}
			l := open(t, "store", opts)
			take(t, l, quotaKey, 0, 3)
			record(t, l, clock, listKey, 300)
			closeChecked(t, l)
			edit(t, opts.FS, "store", func(db *pebble.DB) error {
				var err error
				for key := range contents(t, db) {
					_, _, id, notRequest := codec.Keyspace{}.ParseRequestKey(nil, []byte(key))
					_, _, ordinal, notChunk := codec.Keyspace{}.ParseChunkKey(nil, []byte(key))
					if notRequest == nil && id == "1" || notChunk == nil && ordinal == 50 {
						err = errors.Join(err, damage(db, key))
					}
				}
				return err
			})
			l = open(t, "store", opts)
			for range 2 {
				// The 51st to 100th of 300 events are gone.
				for live, want := range map[int64]error{300: nil, 225: engine.ErrCorrupt, 90: nil, 10: nil} {
					w := limit.Rolling{Limit: live, Window: time.Hour}
					if a, err := l.Allow(listKey, w); !errors.Is(err, want) || want != nil && a != (limit.Admission{}) {
						t.Errorf("Allow(%d) = %+v, %v, want %v", live, a, err, want)
					}
					w.Window = time.Duration(live) * time.Millisecond
					if n, err := l.Peek(listKey, w); !errors.Is(err, want) || (n == live) != (want == nil) {
						t.Errorf("Peek(%v) = %d, %v, want %v", w.Window, n, err, want)
					}
				}
				for id, want := range map[string]error{"0": nil, "1": engine.ErrCorrupt, "2": nil} {
					if name == "lost" {
						continue // one can't tell
					}
					g, err := l.TakeQuota(quotaKey, id, limit.Quota{Limit: 1000, Window: time.Hour}, 1)
					if !errors.Is(err, want) || g.Replay != (want == nil) {
						t.Errorf("TakeQuota(%q) = %+v, %v, want %v", id, g, err, want)
					}
				}
			}
			if n, err := l.Peek(listKey, limit.Rolling{Limit: 1, Window: time.Hour}); n != 300 || err != nil {
				t.Errorf("Peek = %d, %v, want 300", n, err)
			}
			for _, key := range [][]byte{quotaKey, listKey} {
				if found, err := l.Reset(key); !found || err != nil {
					t.Errorf("Reset(%q) = %t, %v, want true", key, found, err)
				}
			}
			take(t, l, quotaKey, 0, 3)
			record(t, l, clock, listKey, 300)
		})
	}
}
