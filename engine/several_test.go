package engine_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sort"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// TestAllOrNone has ten limits charged together of which the last is full. Nothing
// is charged to the other nine, to the byte, until the wait is over that the answer
// tells, to the nanosecond.
func TestAllOrNone(t *testing.T) {
	const full = 9
	var charges []engine.Charge
	for i := range full + 1 {
		charges = append(charges, engine.Charge{Key: nth(i), N: 1 + int64(i%3), Rate: limit.Rate{Burst: int64(3 + i), Count: int64(1 + i), Period: time.Duration(1+i*i) * time.Second}})
	}
	last := charges[full]
	type all func(...engine.Charge) (limit.Decisions, error)
	ways := map[string]func(l *engine.Limiter) (throttle, probe all){
		"by itself": func(l *engine.Limiter) (throttle, probe all) { return l.ThrottleAll, l.ProbeAll },
		"in a transaction": func(l *engine.Limiter) (throttle, probe all) {
			return func(charges ...engine.Charge) (ds limit.Decisions, err error) {
				return ds, errors.Join(l.Update(func(tx *engine.Tx) error {
					ds, err = tx.ThrottleAll(charges...)
					return err
				}))
			}, l.ProbeAll
		},
	}
	for way, of := range ways {
		for _, cacheSize := range []int64{0, 1} {
			t.Run(fmt.Sprintf("%s cache %d", way, cacheSize), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					fs, clock := newWatchedFS(), newManualClock(epoch)
					l := open(t, "store", engine.Options{FS: fs, Now: clock.Now, CacheSize: cacheSize, NoPurge: true})
					throttle, probe := of(l)
					if d, err := l.Throttle(last.Key, last.Rate, last.Rate.Burst+1); !d.Allowed || err != nil {
						t.Fatal(d, err)
					}
					if d, err := l.Throttle(nth(0), charges[0].Rate, 1); !d.Allowed || err != nil { // one of them is there
						t.Fatal(d, err)
					}
					wait := time.Duration(last.N * int64(last.Rate.Period) / last.Rate.Count)
					if last.N*int64(last.Rate.Period)%last.Rate.Count > 0 {
						wait++
					}
					denied := func(wait time.Duration) {
						t.Helper()
						fs.quietly(t, l, func() {
							for _, all := range []all{probe, throttle, throttle} {
								ds, err := all(charges...)
								if err != nil || len(ds) != len(charges) || ds.Denied() != 1 || ds[full].Allowed || ds.RetryAfter() != wait {
									t.Errorf("%+v, %v, want the last to be denied for %v", ds, err, wait)
								}
							}
						})
					}
					denied(wait)
					clock.Advance(wait - 1)
					denied(1)
					clock.Advance(1)
					ds, err := throttle(charges...)
					if err != nil || ds.Denied() != 0 {
						t.Errorf("%+v, %v, want no denial once the wait is over", ds, err)
					}
					for i, c := range charges {
						if d, err := l.Probe(c.Key, c.Rate, 0); err != nil || d.Remaining != ds[i].Remaining || d.Remaining > c.Rate.Burst+1-c.N {
							t.Errorf("limit %d has %d left, %v, and had %d when it was charged", i, d.Remaining, err, ds[i].Remaining)
						}
					}
				})
			})
		}
	}
}

// A deal is what a caller of many has done at once, and what it was told.
type deal struct {
	now     int64
	ops     []engine.Op
	results []engine.Result
	aborted bool
}

// In a crowd all charge the same eight keys, at rates whose arrival times are whole
// nanoseconds.
const crowdKeys = 8

func crowdRate(key int) limit.Rate {
	return limit.Rate{Burst: int64(4 + key), Count: 1, Period: time.Second + time.Duration(key)}
}

func dealOf(rng *rand.Rand) (ops []engine.Op) {
	for range 1 + rng.IntN(2)*rng.IntN(3) {
		group := make([]engine.Op, 1+rng.IntN(5))
		verb := []engine.Verb{engine.OpThrottleAll, engine.OpThrottleEach}[rng.IntN(2)]
		if len(group) == 1 && rng.IntN(2) == 0 {
			verb = engine.OpThrottle
		}
		for i := range group {
			key := rng.IntN(crowdKeys)
			group[i] = engine.Op{Verb: verb, Key: nth(key), Rate: crowdRate(key), N: rng.Int64N(4)}
		}
		group[0].With = len(group) - 1
		ops = append(ops, group...)
	}
	return ops
}

// TestCrowd has 64 callers charge eight keys, in groups of up to five in whatever
// order, and in transactions, some of which are aborted, while the time goes on.
// Nobody waits for ever. There is an order in which the oracle gives all the
// answers: so each was decided at one instant, and no limit was exceeded.
func TestCrowd(t *testing.T) {
	last := 2 * time.Second
	if testing.Short() {
		last = 10 * time.Second // the race detector is to see much of it
	}
	seed := newSeed(t)
	clock := newManualClock(epoch)
	l, err := engine.Open("store", &engine.Options{FS: vfs.NewMem(), Now: clock.Now, CacheSize: int64(seed % 2)})
	if err != nil {
		t.Fatal(err)
	}
	// The clock moves only while nobody calls, so that each instant is known.
	var moving sync.RWMutex
	now := l.Now().UnixNano()
	const callers = 64
	var made [callers][]*deal
	began := time.Now()
	call := func(rng *rand.Rand) *deal {
		moving.RLock()
		defer moving.RUnlock()
		d := &deal{now: now, ops: dealOf(rng)}
		if rng.IntN(3) > 0 {
			d.results = l.Do(d.ops[:1+d.ops[0].With], nil)
			d.ops = d.ops[:len(d.results)]
			return d
		}
		d.aborted = rng.IntN(4) == 0
		err := l.Update(func(tx *engine.Tx) error {
			d.results = tx.Do(d.ops, nil)
			if d.aborted {
				return errors.ErrUnsupported
			}
			return nil
		})
		if d.aborted != (err == errors.ErrUnsupported) || !d.aborted && err != nil {
			t.Errorf("Update = %v", err)
		}
		return d
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var wg sync.WaitGroup
		for i := range callers {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			wg.Go(func() {
				defer func() {
					if r := recover(); r != nil {
						t.Errorf("a call has panicked: %v", r)
					}
				}()
				for time.Since(began) < last && !t.Failed() {
					made[i] = append(made[i], call(rng))
					if rng.IntN(16) == 0 {
						moving.Lock()
						clock.Advance(time.Duration(rng.Int64N(int64(2 * time.Second))))
						now = l.Now().UnixNano()
						moving.Unlock()
					}
				}
			})
		}
		wg.Wait()
	}()
	select {
	case <-done:
	case <-time.After(last + 30*time.Second):
		stacks := make([]byte, 1<<20)
		t.Fatalf("the callers do not come to an end:\n%s", stacks[:runtime.Stack(stacks, true)])
	}
	t.Cleanup(func() { closeChecked(t, l) })
	if t.Failed() {
		return
	}

	deals := slices.Concat(made[:]...)
	ordered, err := inOrder(deals)
	if err != nil {
		t.Fatal(err)
	}
	m := &model{keys: map[string]*modelKey{}, seen: map[string]int{}}
	rows := 0
	for _, d := range ordered {
		keys := maps.Clone(m.keys)
		m.now = d.now
		for i, want := range m.carryOut(d.ops...) {
			rows++
			checkResult(t, d.ops[i], d.results[i], want)
		}
		if d.aborted {
			m.keys = keys
		}
	}
	m.now = now
	for i := range crowdKeys {
		want := m.do(engine.Op{Verb: engine.OpProbe, Key: nth(i), Rate: crowdRate(i)}).Decision
		if d, err := l.Probe(nth(i), crowdRate(i), 0); d != want || err != nil {
			t.Errorf("Probe(%q) = %+v, %v, want %+v", nth(i), d, err, want)
		}
	}
	for _, verb := range []int{13, 14} {
		for _, outcome := range []string{"passes", "denies"} {
			if name := fmt.Sprintf("verb %d %s", verb, outcome); m.seen[name] < 100 {
				t.Errorf("%q came up %d times, want 100 or more", name, m.seen[name])
			}
		}
	}
	t.Logf("%d deals with %d charges", len(deals), rows)
}

// inOrder returns deals in an order in which they can have been made, as far as
// the arrival times tell that they leave and find. A charge raises that of its key,
// so the charges of a key are in the order of what they leave.
func inOrder(deals []*deal) ([]*deal, error) {
	type charge struct {
		tat int64
		by  int
	}
	charges := map[string][]charge{}
	found := make([]map[string]int64, len(deals)) // by key, what each deal has found; now if the key was full
	for i, d := range deals {
		found[i] = map[string]int64{}
		denied, end := false, 0 // whether none of a group is charged, and where it ends
		for j, op := range d.ops {
			r := d.results[j]
			if r.Err != nil {
				return nil, r.Err
			}
			if j == end {
				end += 1 + op.With
				denied = op.Verb == engine.OpThrottleAll &&
					slices.ContainsFunc(d.results[j:end], func(r engine.Result) bool { return !r.Decision.Allowed })
			}
			key, left := string(op.Key), d.now+int64(r.Decision.ResetAfter)
			charged := r.Decision.Allowed && op.N > 0 && !denied
			if _, again := found[i][key]; !again {
				found[i][key] = left
				if charged {
					found[i][key] -= op.N * int64(op.Rate.Period)
				}
			}
			if charged && !d.aborted {
				charges[key] = append(charges[key], charge{left, i})
			}
		}
	}
	for _, of := range charges {
		slices.SortFunc(of, func(a, b charge) int { return cmp.Compare(a.tat, b.tat) })
	}
	after := make([][]int, len(deals)) // those that come after each
	waits := make([]int, len(deals))   // for so many
	edge := func(a, b int) error {
		switch {
		case a == b:
			return nil
		case deals[a].now > deals[b].now:
			return fmt.Errorf("%+v comes before %+v, which was earlier", deals[a], deals[b])
		}
		after[a] = append(after[a], b)
		waits[b]++
		return nil
	}
	for i := range deals {
		for key, tat := range found[i] {
			of := charges[key]
			n := sort.Search(len(of), func(n int) bool { return of[n].tat > tat })
			if n > 0 {
				if err := edge(of[n-1].by, i); err != nil {
					return nil, err
				}
			}
			for n < len(of) && of[n].by == i {
				n++
			}
			if n < len(of) {
				if err := edge(i, of[n].by); err != nil {
					return nil, err
				}
			}
		}
	}
	var instants []int64
	ready := map[int64][]int{}
	left := map[int64]int{}
	for i, d := range deals {
		if left[d.now]++; left[d.now] == 1 {
			instants = append(instants, d.now)
		}
		if waits[i] == 0 {
			ready[d.now] = append(ready[d.now], i)
		}
	}
	slices.Sort(instants)
	var ordered []*deal
	for _, now := range instants {
		for ; len(ready[now]) > 0; left[now]-- {
			i := ready[now][0]
			ready[now] = ready[now][1:]
			ordered = append(ordered, deals[i])
			for _, j := range after[i] {
				if waits[j]--; waits[j] == 0 {
					ready[deals[j].now] = append(ready[deals[j].now], j)
				}
			}
		}
		if left[now] > 0 {
			return nil, fmt.Errorf("at %d there are %d deals of which each saw something of another that came later", now, left[now])
		}
	}
	return ordered, nil
}
