package engine_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// carriers are the ways to have operations carried out.
var carriers = map[string]func(l *engine.Limiter, ops []engine.Op, dst []engine.Result) []engine.Result{
	"calls":     call,
	"pipelines": (*engine.Limiter).Do,
}

// forRaces runs fn under every durability, by calls and by pipelines, with next
// to no cache.
func forRaces(t *testing.T, fn func(t *testing.T, l *engine.Limiter, carryOut func([]engine.Op) []engine.Result)) {
	for _, d := range []engine.Durability{engine.Always, engine.Interval, engine.Never} {
		for name, carryOut := range carriers {
			t.Run(d.String()+"/"+name, func(t *testing.T) {
				l := open(t, "store", engine.Options{Durability: d, SyncInterval: time.Millisecond, CacheSize: 1})
				fn(t, l, func(ops []engine.Op) []engine.Result { return carryOut(l, ops, nil) })
			})
		}
	}
}

// TestQuotaRace has 20 callers compete for a quota of 5, on many keys at once.
func TestQuotaRace(t *testing.T) {
	const callers, keys, lim = 20, 30, 5
	forRaces(t, func(t *testing.T, l *engine.Limiter, carryOut func([]engine.Op) []engine.Result) {
		var mu sync.Mutex
		var used [keys][]int64 // by those who were accepted
		var wg sync.WaitGroup
		for c := range callers {
			wg.Go(func() {
				var ops []engine.Op
				for k := range keys {
					ops = append(ops, engine.Op{
						Verb: engine.OpTakeQuota, Key: nth(k), ID: fmt.Sprint(c), N: 1,
						Quota: limit.Quota{Limit: lim, Window: time.Hour},
					})
				}
				results := carryOut(ops)
				mu.Lock()
				defer mu.Unlock()
				for k, r := range results {
					switch g := r.Grant; {
					case r.Err != nil || g.Replay || g.Limit != lim || !g.Accepted && g.Used != lim:
						t.Errorf("TakeQuota(%q) = %+v", ops[k].Key, r)
					case g.Accepted:
						used[k] = append(used[k], g.Used)
					}
				}
			})
		}
		wg.Wait()
		for k := range used {
			if slices.Sort(used[k]); !slices.Equal(used[k], []int64{1, 2, 3, 4, 5}) {
				t.Errorf("%q was spent up to %v, want 1 to 5", nth(k), used[k])
			}
		}
	})
}

// TestReplayRace has 200 callers make the same requests, each of which is to be
// charged once.
func TestReplayRace(t *testing.T) {
	const callers, requests = 200, 30
	forRaces(t, func(t *testing.T, l *engine.Limiter, carryOut func([]engine.Op) []engine.Result) {
		var charged, replayed [requests]atomic.Int64
		var used [requests]atomic.Int64
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				var ops []engine.Op
				for i := range requests {
					ops = append(ops, engine.Op{
						Verb: engine.OpTakeQuota, Key: nth(i % 3), ID: fmt.Sprint("id-", i), N: 3,
						Quota: limit.Quota{Limit: 1000, Window: time.Hour},
					})
				}
				for i, r := range carryOut(ops) {
					if r.Err != nil || !r.Grant.Accepted {
						t.Errorf("TakeQuota(%q) = %+v", ops[i].ID, r)
						continue
					}
					if r.Grant.Replay {
						replayed[i].Add(1)
					} else {
						charged[i].Add(1)
					}
					// All are told the same.
					if !used[i].CompareAndSwap(0, r.Grant.Used) && used[i].Load() != r.Grant.Used {
						t.Errorf("TakeQuota(%q) = %+v, and another was told %d", ops[i].ID, r.Grant, used[i].Load())
					}
				}
			})
		}
		wg.Wait()
		for i := range requests {
			if n, again := charged[i].Load(), replayed[i].Load(); n != 1 || again != callers-1 {
				t.Errorf("request %d was charged %d times and replayed %d times", i, n, again)
			}
		}
		for i := range 3 {
			if u, err := l.Quota(nth(i)); u.Used != 3*requests/3 || err != nil {
				t.Errorf("Quota = %+v, %v, want %d used", u, err, requests)
			}
		}
	})
}

// TestRollingRace has 64 callers record more in a list than there is room for.
// Time passes meanwhile, so the list has chunks.
func TestRollingRace(t *testing.T) {
	const callers, lim, keys = 64, 1000, 2
	forRaces(t, func(t *testing.T, l *engine.Limiter, carryOut func([]engine.Op) []engine.Result) {
		w := limit.Rolling{Limit: lim, Window: time.Hour}
		var admitted [keys]atomic.Int64
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				// A few more each than are needed.
				for range (lim + callers) / callers / 2 {
					var ops []engine.Op
					for k := range keys {
						op := engine.Op{Verb: engine.OpAllow, Key: nth(k), Rolling: w}
						ops = append(ops, op, op)
					}
					for i, r := range carryOut(ops) {
						a := r.Admission
						if r.Err != nil || a.Count < 1 || a.Count > lim || a.Limit != lim || !a.Allowed && (a.Count != lim || a.Wait <= 0) {
							t.Errorf("Allow(%q) = %+v", ops[i].Key, r)
						} else if a.Allowed {
							admitted[i/2].Add(1)
						}
					}
				}
			})
		}
		wg.Wait()
		for k := range keys {
			if n := admitted[k].Load(); n != lim {
				t.Errorf("%q admitted %d, want %d", nth(k), n, lim)
			}
			if n, err := l.Peek(nth(k), w); n != lim || err != nil {
				t.Errorf("Peek(%q) = %d, %v, want %d", nth(k), n, err, lim)
			}
		}
	})
}
