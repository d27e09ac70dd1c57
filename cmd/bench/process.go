package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gabiondb/gabion/engine"
)

// A crowd is how many goroutines call at once, each with how many decisions at a
// time.
type crowd struct {
	name              string
	callers, inFlight int
}

var (
	alone      = crowd{"1 caller", 1, 1}
	callers64  = crowd{"64 callers", 64, 1}
	callers256 = crowd{"256 callers", 256, 1}
	pipelines  = crowd{"64 x 32", 64, 32}

	crowds = []crowd{alone, callers64, callers256, pipelines}
)

// A keySet is the keys that decisions are on: names of equal length, in one piece
// each as bytes and as text, so that they neither cost the collector time nor
// have to be converted.
type keySet struct {
	n     int
	bytes []byte
	text  string
	draws []int32 // keys drawn beforehand; nil to draw evenly
}

const nameLen = 16

func newKeySet(n int) *keySet {
	k := &keySet{n: n, bytes: make([]byte, n*nameLen)}
	for i := range n {
		putKey(k.name(i), i)
	}
	k.text = string(k.bytes)
	return k
}

// putKey writes the name of key i to dst, which has nameLen bytes.
func putKey(dst []byte, i int) {
	at := copy(dst, "key-")
	for j := nameLen - 1; j >= at; j-- {
		dst[j] = '0' + byte(i%10)
		i /= 10
	}
}

// maxDraws is how many keys are drawn beforehand.
const maxDraws = 1 << 20

// zipf returns the same keys, of which some are drawn far more often than others.
// They are drawn beforehand, since that takes longer than a quick limiter takes
// to decide.
func (k *keySet) zipf() *keySet {
	rng := rand.New(rand.NewPCG(1, 0))
	order := rng.Perm(k.n)
	ranks := rand.NewZipf(rng, 1.1, 1, uint64(k.n-1))
	draws := make([]int32, min(maxDraws, 10*k.n))
	for i := range draws {
		draws[i] = int32(order[ranks.Uint64()])
	}
	return &keySet{k.n, k.bytes, k.text, draws}
}

func (k *keySet) name(i int) []byte {
	return k.bytes[nameLen*i : nameLen*(i+1) : nameLen*(i+1)]
}

func (k *keySet) string(i int) string { return k.text[nameLen*i : nameLen*(i+1)] }

func (k *keySet) draw(rng *rand.Rand) int {
	if k.draws == nil {
		return rng.IntN(k.n)
	}
	return int(k.draws[rng.IntN(len(k.draws))])
}

// A decider makes a decision on each of some keys, given by their numbers, and
// returns an error if one is not as it has to be. One is for one goroutine.
type decider func(keys []int) error

// A limiter is one that is open, and has decided on each key before.
type limiter struct {
	decider func(c crowd) decider // makes one for a caller of a crowd
	close   func() error
}

// An opener opens a limiter in an empty directory.
type opener func(ctx context.Context, dir string, keys *keySet) (*limiter, error)

// on opens a limiter, has fn measure it and closes it.
func (open opener) on(r *Run, keys *keySet, fn func(l *limiter) error) (err error) {
	l, err := open(r.Context, r.Dir, keys)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	runtime.GC() // what others have left is not for this one to sweep
	return fn(l)
}

// speed measures decisions per second of each of the crowds.
func speed(name string, keys func() *keySet, crowds []crowd, open opener) *Subject {
	return &Subject{Name: name, Measure: func(r *Run) error {
		return open.on(r, keys(), func(l *limiter) error {
			for _, c := range crowds {
				f, err := l.drive(r, c, keys())
				if err != nil {
					return fmt.Errorf("%s: %w", c.name, err)
				}
				r.Report(c.name, f.perSecond())
			}
			return nil
		})
	}}
}

// A flow is what callers have done.
type flow struct {
	decisions   int64
	time        time.Duration
	allocations uint64
	before      int64 // decisions while they warmed up
}

func (f flow) perSecond() float64 { return float64(f.decisions) / f.time.Seconds() }

// each returns the time of one of the decisions of a lone caller, in microseconds.
func (f flow) each() float64 { return f.time.Seconds() * 1e6 / float64(f.decisions) }

// drive has a crowd decide on keys that it draws, and measures that.
func (l *limiter) drive(r *Run, c crowd, keys *keySet) (flow, error) {
	deciders := make([]decider, c.callers)
	for i := range deciders {
		deciders[i] = l.decider(c)
	}
	return drive(r.Context, c.callers, r.Time, func(turn, caller uint64) call {
		decide, rng := deciders[caller], rand.New(rand.NewPCG(turn, caller))
		drawn := make([]int, c.inFlight)
		return func() (int, error) {
			for i := range drawn {
				drawn[i] = keys.draw(rng)
			}
			return len(drawn), decide(drawn)
		}
	})
}

// A call makes decisions, and returns how many.
type call func() (int, error)

// drive has callers warm up, and then measures them. In each of these turns, 0
// and 1, every caller has its goroutine begin, and make the call that it gets
// over and over.
func drive(ctx context.Context, callers int, length time.Duration, begin func(turn, caller uint64) call) (flow, error) {
	warm, err := run(ctx, callers, length/4, 0, begin)
	if err != nil {
		return flow{}, err
	}
	f, err := run(ctx, callers, length, 1, begin)
	f.before = warm.decisions
	return f, err
}

// run has each caller call for a time, and at least once.
func run(ctx context.Context, callers int, length time.Duration, turn uint64, begin func(turn, caller uint64) call) (flow, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var wg sync.WaitGroup
	var over atomic.Bool
	var decisions atomic.Int64
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	for caller := range callers {
		wg.Go(func() {
			// Made here, what callers write to does not lie side by side in memory.
			call := begin(turn, uint64(caller))
			total := 0
			for done := false; !done; done = over.Load() {
				n, err := call()
				if err != nil {
					stop(err)
					break
				}
				total += n
			}
			decisions.Add(int64(total))
		})
	}
	select {
	case <-time.After(length):
	case <-ctx.Done():
	}
	over.Store(true)
	wg.Wait()
	f := flow{decisions: decisions.Load(), time: time.Since(start)}
	runtime.ReadMemStats(&after)
	f.allocations = after.Mallocs - before.Mallocs
	return f, context.Cause(ctx)
}

// parts calls fn for one run of keys after the other.
func (k *keySet) parts(size int, fn func(first, end int) error) error {
	for first := 0; first < k.n; first += size {
		if err := fn(first, min(first+size, k.n)); err != nil {
			return err
		}
	}
	return nil
}

var errDecision = errors.New("a decision is not the one that is due")

const inProcess = "in process"

func processTables() []*Table { return processTablesOf(1_000_000) }

// processTablesOf returns the tables, with n keys for a million. Keys are made when
// they are first measured.
func processTablesOf(n int) []*Table {
	one := sync.OnceValue(func() *keySet { return newKeySet(1) })
	many := sync.OnceValue(func() *keySet { return newKeySet(n) })
	some := sync.OnceValue(func() *keySet { return newKeySet(max(n/10, 1)) })
	skewed := sync.OnceValue(func() *keySet { return many().zipf() })
	return []*Table{
		throttles("one hot key", `All callers charge the same key. Of charges that are committed together gabion writes the last state only.`, many, one, cached, true, true,
			atLeast("always, 256 callers", gabionAlways, callers256, rawSynced, callers256, 1.1, 0),
			atLeast("always, 64 x 32", gabionAlways, pipelines, rawSynced, pipelines, 6, 0),
			atLeast("interval, 64 x 32, of throttled in memory", gabionInterval, pipelines, inThrottled, pipelines, 1, 0)),
		throttles("a million keys, in the cache", `Keys are drawn evenly; gabion has all of them in its cache.`, many, many, cached, true, true,
			atLeast("always, 64 x 32", gabionAlways, pipelines, rawSynced, pipelines, 0.8, 0.9),
			atLeast("interval, 64 x 32, of unsynced batches", gabionInterval, pipelines, rawUnsynced, pipelines, 0.8, 0),
			atLeast("interval, one caller, of always", gabionInterval, alone, gabionAlways, alone, 20, 0)),
		throttles("a million keys, read from Pebble", `Keys are drawn evenly; gabion has no cache of their states, and reads each from Pebble, whose cache of blocks holds them.`, many, many, uncached, false, false,
			atLeast("always, 64 x 32", gabionAlways, pipelines, rawSynced, pipelines, 0.25, 0.4)),
		throttles("a million keys, some far hotter than others", `Keys are drawn by Zipf's law (exponent 1.1); gabion has all of them in its cache.`, many, skewed, cached, true, false).atMost(2),
		otherWork(some),
		callTimes(one, many),
		allocations(some),
	}
}

// atMost has t measured in no more than so many rounds.
func (t *Table) atMost(rounds int) *Table {
	t.Rounds = rounds
	return t
}

// atLeast is a bound on how many times as quick as another a limiter has to be.
func atLeast(what, of string, c crowd, to string, toCrowd crowd, bound, goal float64) Target {
	return Target{What: what, Of: Cell{of, c.name}, To: Cell{to, toCrowd.name}, Bound: bound, Goal: goal}
}

// columns returns a column for each of the crowds.
func columns(unit Unit, crowds ...crowd) (columns []Column) {
	for _, c := range crowds {
		columns = append(columns, Column{c.name, unit})
	}
	return columns
}

const throttleNote = ` Decisions per second, each of which is allowed and charged. "64 x 32" is 64 callers that each have 32 decisions in flight
(limiters in memory decide them one after the other). One writer of raw Pebble sets values under random ones of a million keys, as long as
those that gabion writes, and decides nothing: its one figure stands in all columns.`

const memoryNote = `
Limiters in memory lose all at a restart. x/time/rate says yes or no, the others also what remains.`

const naiveNote = `
bbolt and badger stand for a limiter that one writes in an hour: read a time, decide, write it, in a transaction of its own for each decision. That of
bbolt is Update for one caller, and Batch for as many as there are callers beyond. One of badger that conflicts with another is made again.`

// throttles sets gabion beside what else charges keys.
func throttles(name, note string, many, keys func() *keySet, cacheSize int64, inMemory, naive bool, targets ...Target) *Table {
	t := &Table{
		Section:  inProcess,
		Name:     name,
		Note:     note + throttleNote,
		Columns:  columns(PerSecond, crowds...),
		Baseline: rawSynced,
		Targets:  targets,
	}
	t.Subjects = append(t.Subjects, rawPebble(rawSynced, many, true), rawPebble(rawUnsynced, many, false))
	for _, d := range durabilities {
		t.Subjects = append(t.Subjects, speed("gabion, "+d.String(), keys, crowds, openGabion(d, cacheSize, charges)))
	}
	if inMemory {
		t.Note += memoryNote
		t.Subjects = append(t.Subjects,
			speed(inThrottled, keys, crowds, openThrottled),
			speed("sethvargo/go-limiter, in memory", keys, crowds, openGoLimiter),
			speed("golang.org/x/time/rate, in a map of 256 parts", keys, crowds, openTimeRate))
	}
	if naive {
		t.Note += naiveNote
		calls := []crowd{alone, callers64, callers256}
		t.Subjects = append(t.Subjects,
			speed("bbolt, a transaction for each decision", keys, calls, openBolt),
			speed("badger, a synced transaction for each decision", keys, calls, openBadger))
	}
	return t
}

// otherWork measures what else gabion does.
func otherWork(keys func() *keySet) *Table {
	t := &Table{
		Section: inProcess,
		Name:    "other calls of gabion",
		Note: `A hundred thousand keys, all of them in the cache. Requests of a quota have ids of their own; a replay asks again
with an id that was accepted before. A rolling list holds what has come within the last minute.`,
		Columns: columns(PerSecond, alone, pipelines),
	}
	for _, w := range []*work{probes, denials, requests, replays, events} {
		for _, d := range []engine.Durability{engine.Always, engine.Interval} {
			t.Subjects = append(t.Subjects, speed(fmt.Sprintf("%s, %v", w.name, d), keys, []crowd{alone, pipelines}, openGabion(d, cached, w)))
		}
	}
	return t
}

// callTimes measures how long one caller waits where no write is in flight.
func callTimes(one, many func() *keySet) *Table {
	t := &Table{
		Section: inProcess,
		Name:    "time of a call that writes nothing",
		Note:    "One caller, keys drawn evenly, all of them in the cache; no write is in flight. Durability interval.",
	}
	works := []*work{denials, probes}
	for _, w := range works {
		t.Columns = append(t.Columns, Column{w.name, Micros})
	}
	for _, s := range []struct {
		name string
		keys func() *keySet
	}{{"gabion, one key", one}, {"gabion, a million keys", many}} {
		t.Subjects = append(t.Subjects, &Subject{Name: s.name, Measure: func(r *Run) (err error) {
			g, err := newGabion(r.Context, r.Dir, s.keys(), engine.Interval, cached, charge)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, g.Close()) }()
			runtime.GC()
			for _, w := range works {
				f, err := g.limiter(w).drive(r, alone, s.keys())
				if err != nil {
					return err
				}
				r.Report(w.name, f.each())
			}
			return nil
		}})
		t.Targets = append(t.Targets,
			Target{What: "denial, " + s.name, Of: Cell{s.name, denials.name}, Bound: 1, AtMost: true},
			Target{What: "probe, " + s.name, Of: Cell{s.name, probes.name}, Bound: 6, AtMost: true})
	}
	return t
}

// allocations counts those of the whole process while charges are made.
func allocations(keys func() *keySet) *Table {
	crowds := []crowd{callers64, pipelines}
	t := &Table{
		Section: inProcess,
		Name:    "allocations per decision",
		Note:    "A hundred thousand keys, all of them in the cache. What runs in the background, Pebble too, is counted with the rest.",
		Columns: columns(Count, crowds...),
	}
	for _, d := range durabilities {
		name := "gabion, " + d.String()
		t.Subjects = append(t.Subjects, &Subject{Name: name, Measure: func(r *Run) error {
			return openGabion(d, cached, charges).on(r, keys(), func(l *limiter) error {
				for _, c := range crowds {
					f, err := l.drive(r, c, keys())
					if err != nil {
						return err
					}
					r.Report(c.name, float64(f.allocations)/float64(f.decisions))
				}
				return nil
			})
		}})
		t.Targets = append(t.Targets, Target{What: "allocations, " + d.String() + ", 64 x 32", Of: Cell{name, pipelines.name}, Bound: noAllocation, AtMost: true})
	}
	return t
}

// noAllocation is so few for a decision that none can be its own: what is left is
// due to writing, of which the decisions of a batch share one.
const noAllocation = 0.02
