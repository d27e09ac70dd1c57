package engine_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// An invocation is something that is done to one key at an instant of the
// engine's clock.
type invocation struct {
	op  engine.Op
	now int64
	way way
}

type way int

const (
	byItself    way = iota
	amongAll        // a ResetAll, whose answer says nothing
	denied          // one of several of which none was charged
	checkpoints     // the key as it is goes into a checkpoint
	restores        // the key becomes what it was in the checkpoint
)

// A keyState is what a key holds, and what it held in the last checkpoint.
type keyState struct{ held, saved *modelKey }

// keyModel tells which histories of a key are linearizable. An operation whose
// answer has come is there. One that was under way when the power was cut, and
// has no output, may have been carried out or not: either way it was before all
// that came after the cut. One that began after the cut is in no history.
var keyModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{keyState{}} },
	Step: func(state, input, output any) []any {
		s, in := state.(keyState), input.(invocation)
		switch in.way {
		case checkpoints:
			return []any{keyState{s.held, s.held}}
		case restores:
			return []any{keyState{s.saved, s.saved}}
		}
		next, want := s.held.do(in.now, in.op)
		if in.way == denied && want.Err != engine.ErrWrongKind {
			rows := []engine.Result{want}
			_, _ = deniedTogether(in.now, map[string]*modelKey{string(in.op.Key): s.held}, []engine.Op{in.op}, rows)
			want = rows[0]
		}
		after := keyState{next, s.saved}
		if got, answered := output.(engine.Result); !answered {
			return []any{s, after}
		} else if in.way != amongAll && !(sameAnswer(got, want) && sameError(got.Err, want.Err)) {
			return nil
		}
		return []any{after}
	},
	Equal: func(a, b any) bool {
		x, y := a.(keyState), b.(keyState)
		return x.held.equal(y.held) && x.saved.equal(y.saved)
	},
	DescribeOperation: func(input, output any) string {
		c := input.(invocation)
		switch c.way {
		case amongAll:
			return "reset all"
		case checkpoints:
			return "checkpoint"
		case restores:
			return "restore"
		}
		said := fmt.Sprintf("%v at %d", c.op.Verb, c.now-epoch.UnixNano())
		switch c.op.Verb {
		case engine.OpThrottle, engine.OpProbe, engine.OpRefund:
			said += fmt.Sprintf(" of %d under %v", c.op.N, c.op.Rate)
		case engine.OpRefundQuota:
			said += fmt.Sprintf(" of %q", c.op.ID)
		case engine.OpTakeQuota, engine.OpProbeQuota:
			said += fmt.Sprintf(" of %d for %q under %v", c.op.N, c.op.ID, c.op.Quota)
		case engine.OpAllow, engine.OpIncrement, engine.OpPeek, engine.OpWait:
			said += fmt.Sprintf(" of %d under %v", c.op.N, c.op.Rolling)
		}
		if r, answered := output.(engine.Result); answered {
			return said + " = " + answer(c.op.Verb, r)
		}
		return said
	},
	DescribeState: func(state any) string { return fmt.Sprintf("%+v", state.(keyState).held) },
}).ToModel()

// answer writes down what r says to a verb.
func answer(v engine.Verb, r engine.Result) string {
	switch {
	case r.Err != nil:
		return r.Err.Error()
	case v == engine.OpThrottle || v == engine.OpProbe || v == engine.OpRefund:
		return fmt.Sprintf("%+v", r.Decision)
	case v == engine.OpTakeQuota || v == engine.OpProbeQuota:
		return fmt.Sprintf("%+v", r.Grant)
	case v == engine.OpRefundQuota:
		return fmt.Sprintf("%+v", r.Refund)
	case v == engine.OpQuota:
		return fmt.Sprintf("%+v", r.Quota)
	case v == engine.OpIncrement:
		return fmt.Sprint(r.Total)
	case v == engine.OpStat || v == engine.OpReset:
		return fmt.Sprintf("%v until %d", r.Stat.Kind, r.Stat.Deadline.UnixNano()-epoch.UnixNano())
	}
	return fmt.Sprintf("%+v", r.Admission)
}

const (
	lifeClients = 8
	lifeEpochs  = 10
)

// A life is a store that serves clients until the power is cut, goes on with
// what that has left, and so on: each time is an epoch. Now and then an epoch
// ends in another way: what goes on is a checkpoint that was made meanwhile.
type life struct {
	t     *testing.T
	rng   *rand.Rand
	fs    *vfs.MemFS // what the last cut has left
	l     *engine.Limiter
	opts  engine.Options
	clock *manualClock

	// The clock moves only while no operation is under way, so that it is
	// known at which instant each was carried out.
	moving sync.RWMutex
	now    int64 // on the engine's clock; guarded by moving

	ticks    atomic.Int64 // tell what came before what
	*cutter               // of the epoch
	cutBegan int64        // in ticks
	cutEnded int64
	savedAt  int64      // what was answered before is in what is left
	left     *vfs.MemFS // by the cut
	where    string
	stop     atomic.Bool
	observer *client // looks at all keys when an epoch begins

	history map[string][]porcupine.Operation // by key
	floor   int64                            // the latest instant of a change that was acknowledged
	cuts    []*vfs.MemFS                     // what each has left, to be kept if the test fails
	again   int                              // cuts during recovery

	checkpoints int
}

// A client calls, and takes down what it is answered.
type client struct {
	id    int
	trace *trace // makes up operations; its model is not used
	calls []porcupine.Operation

	// hint is how long it was, at the last answer that said so, until
	// something changes by itself.
	hint time.Duration
}

func newLife(t *testing.T, seed uint64) *life {
	li := &life{t: t, rng: rand.New(rand.NewPCG(seed, 0)), fs: vfs.NewCrashableMem(), clock: newManualClock(epoch), history: map[string][]porcupine.Operation{}}
	li.opts = engine.Options{
		Now:       li.clock.Now,
		CacheSize: li.rng.Int64N(2), // the default, or every entry that may go is gone
		NoPurge:   li.rng.IntN(4) == 0,
		PurgeWait: 1,
	}
	if li.rng.IntN(2) == 0 {
		li.opts.UseSmallMemtables()
	}
	return li
}

// keep keeps what each cut has left, and what the store is now.
func (li *life) keep() string {
	li.t.Helper()
	dir := keep(li.t, li.fs, "cut")
	for i, fs := range li.cuts {
		if _, err := vfs.Clone(fs, vfs.Default, "store", filepath.Join(dir, fmt.Sprintf("store-%d", i))); err != nil {
			li.t.Errorf("keep what cut %d has left: %v", i, err)
		}
	}
	return dir
}

func (li *life) fail(format string, args ...any) {
	li.t.Helper()
	li.t.Errorf("after %d cuts, the last at %s: %s", len(li.cuts), li.where, fmt.Sprintf(format, args...))
}

// open opens what is left of the store, or makes it. Now and then the power is
// cut while it does so.
func (li *life) open() bool {
	for {
		second := newCutter(rand.New(rand.NewPCG(li.rng.Uint64(), 0)))
		var left atomic.Pointer[vfs.MemFS]
		second.cut = func(string) {
			fs, _ := cutPower(li.fs, second.rng)
			left.Store(fs)
		}
		if li.rng.IntN(4) == 0 {
			second.changes.Store(1 + li.rng.Int64N(60))
		}
		li.cutter = newCutter(li.rng)
		opts := li.opts
		opts.FS = newHookFS(li.fs, func(op errorfs.Op) error {
			_ = second.hook(op)
			return li.hook(op)
		})
		l, err := engine.Open("store", &opts)
		second.changes.Store(0)
		if err != nil {
			li.fail("Open: %v", err)
			return false
		}
		fs := left.Load()
		if fs == nil {
			li.l = l
			break
		}
		li.again++
		li.fs = fs
		if err := l.Close(); err != nil {
			li.fail("Close: %v", err)
		}
	}
	if err := li.l.Check(); err != nil {
		li.fail("the store is damaged: %v", err)
	}
	if li.now = li.l.Now().UnixNano(); li.now < li.floor {
		li.fail("the clock has gone back by %v", time.Duration(li.floor-li.now))
	}
	return true
}

func (li *life) takeCut(where string) {
	li.where = where
	li.cutBegan = li.ticks.Add(1)
	li.savedAt = li.cutBegan
	li.left, _ = cutPower(li.fs, li.rng)
	li.cutEnded = li.ticks.Add(1)
}

// checkpoint makes a checkpoint, while other clients call, and has it be what is
// left, as a power cut right behind leaves it.
func (li *life) checkpoint(string) {
	li.savedAt = li.ticks.Add(1)
	if err := li.l.Checkpoint(li.t.Context(), "copy"); err != nil {
		li.fail("Checkpoint: %v", err)
	}
	li.all(checkpoints, li.savedAt, li.ticks.Add(1))
	var err error
	if li.left, err = cutTo(li.fs, "copy"); err != nil {
		li.fail("the checkpoint can't be copied: %v", err)
	}
	li.where, li.checkpoints = "a checkpoint", li.checkpoints+1
}

// all takes down something that was done to all keys.
func (li *life) all(way way, called, returned int64) {
	for n := range traceKeys {
		li.observer.calls = append(li.observer.calls, porcupine.Operation{
			ClientId: li.observer.id, Call: called, Return: returned,
			Input: invocation{op: engine.Op{Key: keyOf(n)}, way: way}, Output: engine.Result{},
		})
	}
}

// lookAtAll takes down all that there is of the keys.
func (li *life) lookAtAll() {
	for n := range traceKeys {
		li.do(li.observer, looksAt(n)...)
	}
}

// epoch has clients call until the power is cut, or a checkpoint has been made.
func (li *life) epoch() {
	clients := make([]*client, lifeClients)
	li.observer = &client{id: lifeClients, trace: newTrace(li.rng.Uint64())}
	li.lookAtAll()
	if li.rng.IntN(4) == 0 {
		li.fill(li.observer)
	}
	li.stop.Store(false)
	var wg sync.WaitGroup
	for id := range clients {
		clients[id] = &client{id: id, trace: newTrace(li.rng.Uint64())}
		wg.Go(func() { li.call(clients[id]) })
	}
	givenUp := make(chan struct{})
	go func() {
		defer close(givenUp)
		wg.Wait()
	}()
	restoring := li.rng.IntN(5) == 0
	if restoring {
		li.cutter.cut = li.checkpoint
		li.calls.Store(1 + li.rng.Int64N(100))
	} else {
		li.cutter.cut = li.takeCut
		li.arm()
	}
	if !li.await(givenUp) {
		return
	}
	li.stop.Store(true)
	<-givenUp
	if restoring {
		li.lookAtAll()
		called := li.ticks.Add(1)
		li.cutBegan = li.ticks.Add(1) // it was all before
		li.cutEnded = li.cutBegan
		li.all(restores, called, called)
	}
	for _, c := range append(clients, li.observer) {
		li.take(c.calls)
	}
	if err := li.l.Close(); err != nil {
		li.fail("Close: %v", err)
	}
	li.fs = li.left
	li.cuts = append(li.cuts, li.left.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: li.rng}))
}

// take adds what is known of calls to the history.
func (li *life) take(calls []porcupine.Operation) {
	for _, c := range calls {
		in := c.Input.(invocation)
		switch {
		case c.Call > li.cutEnded:
			continue // of this nothing can be left
		case c.Return > li.cutBegan:
			c.Return, c.Output = li.cutEnded, nil
		case c.Return < li.savedAt && charges(in.op, c.Output.(engine.Result)):
			li.floor = max(li.floor, in.now)
		}
		key := string(in.op.Key)
		li.history[key] = append(li.history[key], c)
	}
}

// charges tells whether the answer r to op says that the store has changed.
func charges(op engine.Op, r engine.Result) bool {
	switch {
	case r.Err != nil:
		return false
	case op.Verb == engine.OpThrottle:
		return r.Decision.Allowed && op.N > 0
	case op.Verb == engine.OpTakeQuota:
		return r.Grant.Accepted && !r.Grant.Replay
	case op.Verb == engine.OpRefundQuota:
		return r.Refund.Refunded && !r.Refund.Replay
	case op.Verb == engine.OpAllow:
		return r.Admission.Allowed
	}
	return false
}

// looksAt returns operations that show all that there is of key n.
func looksAt(n int) []engine.Op {
	return []engine.Op{
		{Verb: engine.OpStat, Key: keyOf(n)},
		{Verb: engine.OpProbe, Key: keyOf(n), Rate: traceRates[n%7]},
		{Verb: engine.OpQuota, Key: keyOf(n)},
		{Verb: engine.OpPeek, Key: keyOf(n), Rolling: traceLists[n%7]},
		{Verb: engine.OpWait, Key: keyOf(n), Rolling: traceLists[n%7]},
	}
}

// do carries out ops and takes down what it is answered.
func (li *life) do(c *client, ops ...engine.Op) {
	li.during(c, func(note func(invocation, engine.Result)) {
		for i, r := range li.l.Do(ops, nil) {
			note(invocation{op: ops[i]}, r)
		}
	})
}

// update carries out ops in a transaction, and takes down what it is answered. Of
// one that is aborted only the first look at a key says something of it.
func (li *life) update(c *client, abort bool, ops ...engine.Op) {
	li.during(c, func(note func(invocation, engine.Result)) {
		var results []engine.Result
		err := li.l.Update(func(tx *engine.Tx) error {
			results = tx.Do(ops, nil)
			if abort {
				return errAborted
			}
			return nil
		})
		if abort != (err == errAborted) || !abort && err != nil {
			li.fail("Update: %v", err)
		}
		seen := map[string]bool{}
		for i, r := range results {
			key := string(ops[i].Key)
			if !abort || looks(ops[i].Verb) && !seen[key] {
				note(invocation{op: ops[i]}, r)
			}
			seen[key] = true
		}
	})
}

var errAborted = errors.New("aborted")

// doTogether carries out ops, which go together, by themselves or in a
// transaction, and takes down what that says of single keys. What it says of all
// of them at once (that they are charged or not as a whole) a checker that has one
// key after the other can't tell.
//
// A row of those that are decided each by itself is an operation on its key. So is
// a row of those that all pass. Where some deny, none is charged: each is judged as
// if it were, and shows what its key has left as it is. Rows that only look, or
// that nothing was charged for, are judged on those before them on the same key,
// so of each key just the first says something by itself. An error may be that of
// another key, and has changed nothing.
func (li *life) doTogether(c *client, ops []engine.Op) {
	verb := ops[0].Verb
	carryOut := func() []engine.Result { return li.l.Do(ops, nil) }
	if c.trace.rng.IntN(2) == 0 {
		carryOut = func() (results []engine.Result) {
			err := li.l.Update(func(tx *engine.Tx) error {
				results = tx.Do(ops, nil)
				return nil
			})
			if err != nil {
				li.fail("Update: %v", err)
			}
			return results
		}
	}
	li.during(c, func(note func(invocation, engine.Result)) {
		results := carryOut()
		way, single := byItself, engine.OpThrottle
		for _, r := range results {
			switch {
			case r.Err != nil:
				return
			case !r.Decision.Allowed && (verb == engine.OpThrottleAll || verb == engine.OpProbeAll):
				way, single = denied, engine.OpProbe
			}
		}
		if looks(verb) {
			single = engine.OpProbe
		}
		seen := map[string]bool{}
		for i, op := range ops {
			if single == engine.OpThrottle || !seen[string(op.Key)] {
				note(invocation{op: engine.Op{Verb: single, Key: op.Key, Rate: op.Rate, N: op.N}, way: way}, results[i])
			}
			seen[string(op.Key)] = true
		}
	})
}

// during takes down the calls that carryOut makes, as calls at one instant.
func (li *life) during(c *client, carryOut func(note func(invocation, engine.Result))) {
	li.moving.RLock()
	defer li.moving.RUnlock()
	first, called := len(c.calls), li.ticks.Add(1)
	carryOut(func(in invocation, r engine.Result) {
		in.now = li.now
		c.calls = append(c.calls, porcupine.Operation{ClientId: c.id, Input: in, Call: called, Output: r})
		c.hint = max(r.Decision.RetryAfter, r.Grant.ResetAfter, r.Admission.Wait, r.Stat.TTL)
	})
	returned := li.ticks.Add(1)
	for i := first; i < len(c.calls); i++ {
		c.calls[i].Return = returned
	}
}

// move moves the wall clock, and with it the engine's, unless that is ahead.
func (li *life) move(d time.Duration) {
	li.moving.Lock()
	defer li.moving.Unlock()
	li.clock.Advance(d)
	li.now = li.l.Now().UnixNano()
}

// call calls until the epoch ends.
func (li *life) call(c *client) {
	rng := c.trace.rng
	want := func(what string, err error) {
		if err != nil {
			li.fail("%s: %v", what, err)
		}
	}
	for !li.stop.Load() && !li.t.Failed() {
		li.cutter.call()
		switch rng.IntN(64) {
		case 0:
			want("Sync", li.l.Sync())
		case 1:
			_, err := li.l.DB().AsyncFlush()
			want("AsyncFlush", err)
		case 2:
			want("Purge", li.l.Purge(li.t.Context()))
		case 3:
			if rng.IntN(8) == 0 {
				want("Compact", li.l.Compact(li.t.Context(), nil))
			}
		case 4:
			if rng.IntN(8) == 0 {
				li.resetAll(c)
			}
		case 5:
			li.scan(c)
		case 6:
			li.view(c)
		case 7, 8, 9, 10:
			li.move(time.Duration(rng.Int64N(int64(time.Second) >> rng.IntN(20))))
		case 11, 12, 13, 14:
			li.doTogether(c, c.trace.group())
		case 15, 16:
			if c.hint > 0 && c.hint < time.Minute {
				li.move(c.hint - time.Duration(rng.Int64N(2)))
			}
		default:
			ops := make([]engine.Op, 1+rng.IntN(12)*rng.IntN(2))
			for i := range ops {
				ops[i] = c.trace.op()
			}
			if rng.IntN(4) == 0 {
				li.update(c, rng.IntN(3) == 0, ops...)
			} else {
				li.do(c, ops...)
			}
		}
	}
}

// resetAll forgets all keys.
func (li *life) resetAll(c *client) {
	li.during(c, func(note func(invocation, engine.Result)) {
		if err := li.l.ResetAll(); err != nil {
			li.fail("ResetAll: %v", err)
		}
		for n := range traceKeys {
			note(invocation{op: engine.Op{Verb: engine.OpReset, Key: keyOf(n)}, way: amongAll}, engine.Result{})
		}
	})
}

// scan looks at all keys by a scan of the store.
func (li *life) scan(c *client) {
	li.during(c, func(note func(invocation, engine.Result)) {
		seen := scan(li.t, li.l, 1+c.trace.rng.IntN(20))
		for n := range traceKeys {
			note(invocation{op: engine.Op{Verb: engine.OpStat, Key: keyOf(n)}}, engine.Result{Stat: seen[string(keyOf(n))]})
		}
	})
}

// view looks at some keys at one instant.
func (li *life) view(c *client) {
	var ops []engine.Op
	for range 10 {
		if op := c.trace.op(); looks(op.Verb) {
			ops = append(ops, op)
		}
	}
	li.during(c, func(note func(invocation, engine.Result)) {
		for i, r := range viewed(li.t, li.l, ops) {
			note(invocation{op: ops[i]}, r)
		}
	})
}

// fill makes a list so long that its head has chunks beside it, or soon has.
func (li *life) fill(c *client) {
	const n = 27
	for range limit.MaxRuns/2 + c.trace.rng.IntN(2*limit.MaxRuns) {
		li.move(time.Microsecond)
		li.do(c, engine.Op{Verb: engine.OpAllow, Key: keyOf(n), Rolling: traceLists[n%7]})
	}
}

// check tells whether what the clients were told of each key fits together.
func (li *life) check() (operations int) {
	for key, calls := range li.history {
		operations += len(calls)
		result, info := porcupine.CheckOperationsVerbose(keyModel, calls, time.Minute)
		if result == porcupine.Ok {
			continue
		}
		li.fail("the history of %q is not linearizable: %s", key, result)
		dir := li.keep()
		_ = porcupine.VisualizePath(keyModel, info, filepath.Join(dir, "history.html"))
		var text strings.Builder
		slices.SortFunc(calls, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
		for _, c := range calls {
			fmt.Fprintf(&text, "%d-%d client %d: %s\n", c.Call, c.Return, c.ClientId, keyModel.DescribeOperation(c.Input, c.Output))
		}
		_ = os.WriteFile(filepath.Join(dir, "history.txt"), []byte(text.String()), 0o666)
		break
	}
	return operations
}

// TestPowerCut cuts the power at random instants while clients call, opens what
// is left, and goes on with that. What the clients were told, before and after
// each cut, has to be what one key after the other can answer.
func TestPowerCut(t *testing.T) {
	n := 100
	if testing.Short() {
		n = 3
	}
	var cuts, again, checkpoints, operations int
	n = lives(t, n, func(seed uint64) {
		li := newLife(t, seed)
		for range lifeEpochs {
			if li.open() {
				li.epoch()
			}
			if t.Failed() {
				li.keep()
				return
			}
			if li.rng.IntN(3) == 0 {
				li.clock.Advance(time.Duration(li.rng.Int64N(int64(20*time.Second))) - 10*time.Second)
			}
		}
		cuts, again = cuts+len(li.cuts)-li.checkpoints, again+li.again
		checkpoints += li.checkpoints
		operations += li.check()
	})
	t.Logf("%d lives, %d cuts, another %d during recovery, %d checkpoints, %d operations", n, cuts, again, checkpoints, operations)
}

// A diary is what an only client has led a store through: its state at first,
// and after each operation.
type diary struct {
	mu       sync.Mutex
	states   []diaryState
	answered int // the state after the last operation that was answered
	synced   int // the state after the last that was answered before a Sync that has returned
}

type diaryState struct {
	keys map[string]*modelKey
	mark int64 // the instant of the newest change
}

// add takes down that tr is at a new state.
func (d *diary) add(tr *trace) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.states = append(d.states, diaryState{maps.Clone(tr.keys), tr.mark})
}

func (d *diary) answer() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answered = len(d.states) - 1
}

func (d *diary) sync() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.synced = d.answered
}

func (d *diary) read() (states []diaryState, answered, synced int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clip(d.states), d.answered, d.synced
}

// A picture is what a store shows of its keys at an instant.
type picture struct {
	now  int64
	keys map[string]keyPicture
}

type keyPicture struct {
	looks   []engine.Op
	results []engine.Result
	held    map[*modelKey]bool // whether these are what the key may hold
}

func picturing(l *engine.Limiter) picture {
	p := picture{l.Now().UnixNano(), map[string]keyPicture{}}
	for n := range traceKeys {
		looks := looksAt(n)
		p.keys[string(keyOf(n))] = keyPicture{looks, l.Do(looks, nil), map[*modelKey]bool{}}
	}
	return p
}

// shows tells whether p can be the picture of a store whose keys hold these.
func (p picture) shows(keys map[string]*modelKey) bool {
	for name, key := range p.keys {
		held, known := key.held[keys[name]]
		if !known {
			held = true
			for i, op := range key.looks {
				_, want := keys[name].do(p.now, op)
				held = held && sameAnswer(key.results[i], want) && sameError(key.results[i].Err, want.Err)
			}
			key.held[keys[name]] = held
		}
		if !held {
			return false
		}
	}
	return true
}

// write calls until stop is closed.
func (d *diary) write(t *testing.T, l *engine.Limiter, tr *trace, cutter *cutter, stop <-chan struct{}) {
	for !t.Failed() {
		select {
		case <-stop:
			return
		default:
		}
		cutter.call()
		tr.tick()
		l.Now() // or what it hasn't seen of the wall, before that goes back, it can't know
		switch tr.rng.IntN(50) {
		case 0:
			if err := l.Sync(); err != nil {
				t.Errorf("Sync: %v", err)
			}
			d.sync()
			continue
		case 1:
			clear(tr.keys)
			tr.mark = tr.now
			d.add(tr)
			if err := l.ResetAll(); err != nil {
				t.Errorf("ResetAll: %v", err)
			}
			d.answer()
			continue
		}
		ops := make([]engine.Op, 1+tr.rng.IntN(8)*tr.rng.IntN(2))
		want := make([]engine.Result, len(ops))
		for i := range ops {
			ops[i] = tr.op()
			want[i] = tr.do(ops[i])
			d.add(tr)
		}
		for i, got := range l.Do(ops, nil) {
			if !sameAnswer(got, want[i]) || !sameError(got.Err, want[i].Err) {
				t.Errorf("%+v = %+v, want %+v", ops[i], got, want[i])
			}
		}
		d.answer()
	}
}

// TestPowerCutPrefix cuts the power while one client calls, one call after the
// other. What is left is what its first operations have led to, up to one of
// them, and that one is none before the last that the durability promises.
func TestPowerCutPrefix(t *testing.T) {
	n, cuts := 4, 20
	if testing.Short() {
		n, cuts = 1, 8
	}
	for _, durability := range durabilities {
		t.Run(durability.String(), func(t *testing.T) {
			lost := 0 // cuts that took back what had been answered
			n := lives(t, n, func(seed uint64) { lost += prefixLife(t, seed, durability, cuts) })
			t.Logf("%d of %d cuts took back something that had been answered", lost, n*cuts)
			if (lost == 0) != (durability == engine.Always) {
				t.Errorf("%d of %d cuts took back something that had been answered", lost, n*cuts)
			}
		})
	}
}

func prefixLife(t *testing.T, seed uint64, durability engine.Durability, cuts int) (lost int) {
	fs, tr, d := vfs.NewCrashableMem(), newTrace(seed), new(diary)
	d.add(tr)
	var states []diaryState
	var answered, synced int
	var left *vfs.MemFS
	var where string
	cutter := newCutter(rand.New(rand.NewPCG(seed, 1)))
	cutter.cut = func(w string) {
		where = w
		_, answered, synced = d.read()
		left, _ = cutPower(fs, cutter.rng)
		states, _, _ = d.read()
	}
	l := open(t, "store", engine.Options{
		FS: newHookFS(fs, cutter.hook), Now: tr.clock.Now, Durability: durability, SyncInterval: time.Millisecond,
		CacheSize: cutter.rng.Int64N(2), // the default, or every entry that may go is gone
		PurgeWait: 1,
	})
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		d.write(t, l, tr, cutter, stop)
	}()
	defer func() {
		close(stop)
		<-stopped
	}()

	for range cuts {
		if !cutter.next(stopped) {
			return lost
		}
		l, err := engine.Open("store", &engine.Options{FS: left, Now: func() time.Time { return epoch }})
		if err != nil {
			t.Errorf("cut at %s: Open: %v", where, err)
			keep(t, left, "cut")
			return lost
		}
		if err := l.Check(); err != nil {
			t.Errorf("cut at %s: the store is damaged: %v", where, err)
		}
		shown := picturing(l)
		l.Close()

		least := synced
		if durability == engine.Always {
			least = answered
		}
		first, last := -1, -1
		for i := least; i < len(states); i++ {
			if shown.shows(states[i].keys) {
				if first < 0 {
					first = i
				}
				last = i
			}
		}
		switch {
		case first < 0:
			t.Errorf("cut at %s: what is left is none of what there was from operation %d to %d", where, least, len(states)-1)
		case shown.now < states[first].mark:
			t.Errorf("cut at %s: the clock is %v behind operation %d", where, time.Duration(states[first].mark-shown.now), first)
		}
		if t.Failed() {
			keep(t, left, "cut")
			return lost
		}
		if last < answered {
			lost++
		}
	}
	return lost
}
