package engine_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// The schedule of goroutines is not part of a seed, so it may take several
// runs with the seed of a failure until that shows again:
//
//	go test ./engine -run PowerCut -crash.seed 123 -count 100 -failfast
var crashSeed = flag.Uint64("crash.seed", 0, "seed of the power cuts; 0 draws one")

// newSeed returns the seed for a test, and has it printed if the test fails.
func newSeed(t testing.TB) uint64 {
	seed := *crashSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("rerun with -crash.seed %d", seed)
		}
	})
	return seed
}

var durabilities = []engine.Durability{engine.Always, engine.Interval, engine.Never}

// emission is the emission interval of all rates here. It is longer than the
// time that passes on a tickingClock, so that nothing leaks back, and what has
// been used of a key is exactly what was charged to it.
const emission = time.Hour

// bucket returns a rate that lets n events pass, ever.
func bucket(n int64) limit.Rate {
	return limit.Rate{Burst: n - 1, Count: 1, Period: emission}
}

// throttle returns a call that charges n of the ten events that key may pass.
func throttle(l *engine.Limiter, key string, n int64) func() error {
	return func() error {
		_, err := l.Throttle([]byte(key), bucket(10), n)
		return err
	}
}

func must(t *testing.T, calls ...func() error) {
	t.Helper()
	for _, call := range calls {
		if err := call(); err != nil {
			t.Fatal(err)
		}
	}
}

// usedOf returns how many events have been charged to a key that s describes.
func usedOf(s engine.Stat) int64 {
	if !s.Exists() {
		return 0
	}
	return int64(s.Deadline.Sub(epoch) / emission)
}

// tickingClock begins at the epoch and goes on by a microsecond each time it
// is looked at.
func tickingClock() func() time.Time {
	var ticks atomic.Int64
	return func() time.Time { return epoch.Add(time.Duration(ticks.Add(1)) * time.Microsecond) }
}

// hookFS has hook called before each operation on the files of fs. errorfs
// alone forgets the files that are made by ReuseForWrite.
type hookFS struct {
	*errorfs.FS
	hook errorfs.InjectorFunc
}

func newHookFS(fs vfs.FS, hook errorfs.InjectorFunc) hookFS {
	return hookFS{FS: errorfs.Wrap(fs, hook), hook: hook}
}

func (fs hookFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.ReuseForWrite(oldname, newname, category)
	if err != nil {
		return nil, err
	}
	return errorfs.WrapFile(f, errorfs.InjectorFunc(func(op errorfs.Op) error {
		op.Path = newname
		return fs.hook(op)
	})), nil
}

// changesDisk tells whether op is of the kind that a power cut may take back.
func changesDisk(op errorfs.Op) bool { return op.Kind.ReadOrWrite() == errorfs.OpIsWrite }

// syncsLog tells whether op makes a log durable. What it makes so has been
// visible for a while.
func syncsLog(op errorfs.Op) bool {
	return strings.HasSuffix(op.Path, ".log") && (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData)
}

// cutPower returns what a power cut now leaves of fs: what was synced, and of
// the rest a share between nothing and all.
func cutPower(fs *vfs.MemFS, rng *rand.Rand) (clone *vfs.MemFS, percent int) {
	percent = []int{0, 0, 100, rng.IntN(101)}[rng.IntN(4)]
	return fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng}), percent
}

// A cutter has cut called at random instants: between two calls of a client,
// or before a change of the disk, by whichever goroutine is about to make it.
type cutter struct {
	rng *rand.Rand // for one cut at a time
	cut func(where string)

	calls, changes atomic.Int64 // how many are left until the next cut
	taken          chan struct{}
}

func newCutter(rng *rand.Rand) *cutter {
	return &cutter{rng: rng, taken: make(chan struct{}, 1)}
}

// next waits until a cut has been taken. It returns false when the clients
// have given up before.
func (c *cutter) next(givenUp <-chan struct{}) bool {
	if c.rng.IntN(3) == 0 {
		c.calls.Store(1 + c.rng.Int64N(100))
	} else {
		c.changes.Store(1 + c.rng.Int64N(50))
	}
	select {
	case <-c.taken:
		return true
	case <-givenUp:
		return false
	}
}

// call is called by a client before each of its calls.
func (c *cutter) call() {
	if c.calls.Add(-1) == 0 {
		c.cut("a moment between calls")
		c.taken <- struct{}{}
	}
}

// hook is called before each operation of the file system.
func (c *cutter) hook(op errorfs.Op) error {
	if changesDisk(op) && c.changes.Add(-1) == 0 {
		if syncsLog(op) {
			// Whoever doesn't wait for this sync, but should, gets the time to
			// be caught.
			for range 200 {
				runtime.Gosched()
			}
		}
		c.cut(place(op))
		c.taken <- struct{}{}
	}
	return nil
}

func place(op errorfs.Op) string { return fmt.Sprintf("operation %d on %s", op.Kind, op.Path) }

// An account is what the clients know of a key that several of them charge.
type account struct {
	key   []byte
	limit int64

	acknowledged atomic.Int64 // charged by calls that have returned
	possible     atomic.Int64 // charged, or asked for by a call that has not returned
	reported     atomic.Int64 // the most that any answer has said to be used
}

func (a *account) report(used int64) { raise(&a.reported, used) }

func raise(v *atomic.Int64, x int64) {
	for old := v.Load(); x > old && !v.CompareAndSwap(old, x); old = v.Load() {
	}
}

// A diary is what the only client of a key knows of it: what was used of it
// before its first call and after each.
type diary struct {
	key []byte

	mu       sync.Mutex
	states   []int64
	answered int // the index of the state after the last call that has returned
}

func (d *diary) add(used int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.states = append(d.states, used)
}

func (d *diary) answer(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answered += n
}

func (d *diary) read() (states []int64, answered int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.states[:len(d.states):len(d.states)], d.answered
}

const (
	crashClients = 8
	crashHot     = 4    // keys that everybody charges, without an end
	crashCold    = 4096 // keys that a few charge, until they are denied
	crashWindow  = 6    // how many of the cold keys are charged at a time
	diaryLimit   = 60
)

// A life is a store from its making to its end, its clients, and the power
// cuts that are taken of it meanwhile.
type life struct {
	t  testing.TB
	fs *vfs.MemFS
	l  *engine.Limiter

	accounts []account // hot ones first
	frontier atomic.Int64
	diaries  [crashClients]diary
	floor    atomic.Int64 // a time at which something acknowledged was charged

	*cutter
	cut cut // the newest

	stop atomic.Bool
}

// A cut is what a power cut left, and what the clients knew around it.
type cut struct {
	fs      *vfs.MemFS
	percent int
	where   string

	acknowledged, reported []int64 // before it
	possible               []int64 // after it
	answered               [crashClients]int
	states                 [crashClients][]int64
	visible                [crashHot]int64 // what the store showed of the hot keys before it
	floor                  int64
}

func (li *life) takeCut(where string) {
	c := cut{where: where}
	for i := range c.visible {
		s, err := li.l.Visible(li.accounts[i].key)
		if err != nil {
			li.t.Error(err)
		}
		c.visible[i] = usedOf(s)
	}
	c.floor = li.floor.Load()
	for i := range li.diaries {
		_, c.answered[i] = li.diaries[i].read()
	}
	n := li.touched()
	for i := range n {
		c.acknowledged = append(c.acknowledged, li.accounts[i].acknowledged.Load())
		c.reported = append(c.reported, li.accounts[i].reported.Load())
	}
	c.fs, c.percent = cutPower(li.fs, li.rng)
	for i := range n {
		c.possible = append(c.possible, li.accounts[i].possible.Load())
	}
	for i := range li.diaries {
		c.states[i], _ = li.diaries[i].read()
	}
	li.cut = c
}

// touched returns how many accounts may have been charged.
func (li *life) touched() int {
	return min(crashHot+int(li.frontier.Load())+crashWindow, len(li.accounts))
}

// client calls until the life ends.
func (li *life) client(id int, rng *rand.Rand) {
	var ops []engine.Op
	var results []engine.Result
	var owners []*account // of each op; nil for one on the client's own key
	own := &li.diaries[id]
	used := int64(0) // of it
	var after []int64

	for !li.stop.Load() {
		li.call()
		switch rng.IntN(40) {
		case 0:
			if err := li.l.View(func(v *engine.View) error { return li.look(v) }); err != nil {
				li.t.Errorf("View: %v", err)
			}
			continue
		case 1:
			if err := li.scan(rng); err != nil {
				li.t.Errorf("Scan: %v", err)
			}
			continue
		case 2:
			if err := li.l.Sync(); err != nil {
				li.t.Errorf("Sync: %v", err)
			}
			continue
		case 3:
			if _, err := li.l.DB().AsyncFlush(); err != nil {
				li.t.Errorf("AsyncFlush: %v", err)
			}
			continue
		}

		ops, owners, after = ops[:0], owners[:0], after[:0]
		n := 1
		if rng.IntN(2) == 0 {
			n = 2 + rng.IntN(15)
		}
		for range n {
			a := li.pick(rng)
			if a == nil {
				op := engine.Op{Verb: []engine.Verb{engine.OpThrottle, engine.OpProbe, engine.OpStat, engine.OpReset}[rng.IntN(4)], Key: own.key, Rate: bucket(diaryLimit), N: rng.Int64N(7)}
				switch {
				case op.Verb == engine.OpThrottle && used+op.N <= diaryLimit:
					used += op.N
				case op.Verb == engine.OpReset:
					used = 0
				}
				own.add(used)
				after = append(after, used)
				ops, owners = append(ops, op), append(owners, nil)
				continue
			}
			op := engine.Op{Key: a.key, Rate: bucket(a.limit), N: 1 + rng.Int64N(3)}
			switch rng.IntN(6) {
			case 0:
				op.Verb = engine.OpProbe
			case 1:
				op.Verb = engine.OpStat
			default:
				op.Verb = engine.OpThrottle
				a.possible.Add(op.N)
			}
			ops, owners = append(ops, op), append(owners, a)
		}
		began := li.l.Now().UnixNano()
		results = li.l.Do(ops, results[:0])
		for i, r := range results {
			if r.Err != nil {
				li.t.Errorf("%v of %s: %v", ops[i].Verb, ops[i].Key, r.Err)
				return
			}
			if a := owners[i]; a != nil {
				li.note(a, &ops[i], &r, began)
				continue
			}
			if got, told := usedAfter(&ops[i], &r, diaryLimit); told && got != after[0] {
				li.t.Errorf("%v of %s says that %d are used, want %d", ops[i].Verb, ops[i].Key, got, after[0])
			}
			after = after[1:]
			own.answer(1)
		}
	}
}

// pick returns the account to charge next, or nil for the client's own key.
func (li *life) pick(rng *rand.Rand) *account {
	switch rng.IntN(5) {
	case 0:
		return nil
	case 1, 2:
		return &li.accounts[rng.IntN(crashHot)]
	}
	first := li.frontier.Load()
	if rng.IntN(crashWindow) == 0 {
		first = li.frontier.Add(1)
	}
	return &li.accounts[(crashHot+int(first)+rng.IntN(crashWindow))%len(li.accounts)]
}

// usedAfter returns how much of its key is used as the answer to op has it.
func usedAfter(op *engine.Op, r *engine.Result, limit int64) (used int64, told bool) {
	switch op.Verb {
	case engine.OpStat:
		return usedOf(r.Stat), true
	case engine.OpReset:
		return 0, false
	case engine.OpProbe:
		if r.Decision.Allowed {
			return limit - r.Decision.Remaining - op.N, true
		}
	}
	return limit - r.Decision.Remaining, true
}

// note takes down what the answer to op says of a.
func (li *life) note(a *account, op *engine.Op, r *engine.Result, began int64) {
	used, _ := usedAfter(op, r, a.limit)
	if op.Verb == engine.OpThrottle {
		if r.Decision.Allowed {
			a.acknowledged.Add(op.N)
			raise(&li.floor, began)
		} else {
			a.possible.Add(-op.N)
		}
	}
	a.report(used)
}

// look probes all hot keys, and a few cold ones, in one snapshot.
func (li *life) look(v *engine.View) error {
	for i := range li.touched() {
		if i >= crashHot && i < li.touched()-2*crashWindow {
			continue
		}
		a := &li.accounts[i]
		d, err := v.Probe(a.key, bucket(a.limit), 0)
		if err != nil {
			return err
		}
		a.report(a.limit - d.Remaining)
	}
	return nil
}

// scan reads some slices.
func (li *life) scan(rng *rand.Rand) error {
	_, err := li.l.Scan(rng.IntN(engine.ScanEnd), 20, func(key []byte, s engine.Stat) {
		if a := li.account(key); a != nil {
			a.report(usedOf(s))
		}
	})
	return err
}

// account finds the account of key; nil if there is none.
func (li *life) account(key []byte) *account {
	var i int
	if _, err := fmt.Sscanf(string(key), "account-%d", &i); err != nil {
		return nil
	}
	return &li.accounts[i]
}

// newLife makes a store in a file system that can crash.
func newLife(t testing.TB, seed uint64) *life {
	li := &life{
		t:        t,
		fs:       vfs.NewCrashableMem(),
		accounts: make([]account, crashHot+crashCold),
		cutter:   newCutter(rand.New(rand.NewPCG(seed, 0))),
	}
	li.cutter.cut = li.takeCut
	for i := range li.accounts {
		li.accounts[i].key = fmt.Appendf(nil, "account-%d", i)
		li.accounts[i].limit = 1 + li.rng.Int64N(5)
		if i < crashHot {
			li.accounts[i].limit = 1 << 20
		}
	}
	for i := range li.diaries {
		li.diaries[i].key = fmt.Appendf(nil, "diary-%d", i)
		li.diaries[i].states = []int64{0}
	}
	li.l = open(t, "store", engine.Options{
		FS: newHookFS(li.fs, li.hook), Now: tickingClock(),
		CacheSize: li.rng.Int64N(2), // the default, or every entry that may go is gone
	})
	return li
}

// run has the clients call while n power cuts are taken, and passes these to
// check.
func (li *life) run(n int, check func(cut)) {
	var clients sync.WaitGroup
	for id := range crashClients {
		rng := rand.New(rand.NewPCG(li.rng.Uint64(), uint64(id)))
		clients.Go(func() { li.client(id, rng) })
	}
	givenUp := make(chan struct{})
	go func() {
		defer close(givenUp)
		clients.Wait()
	}()
	for range n {
		if !li.next(givenUp) {
			break
		}
		check(li.cut)
	}
	li.stop.Store(true)
	<-givenUp
}

// TestPowerCut cuts the power at random instants while clients call. Of each
// cut a store is opened and held against what the clients were told before it.
func TestPowerCut(t *testing.T) {
	seed := newSeed(t)
	lives, cuts := 20, 20
	if testing.Short() {
		lives = 6
	}
	var took int // cuts that took back what the store had shown
	for i := range lives {
		if t.Failed() {
			break
		}
		li := newLife(t, seed+uint64(i))
		li.run(cuts, func(c cut) {
			if li.verify(c, true) {
				took++
			}
		})
		li.settled()
	}
	t.Logf("%d of %d cuts took back what the store had shown", took, lives*cuts)
	if took == 0 {
		t.Error("no cut fell between a change becoming visible and becoming durable")
	}
}

// verify opens what c left and holds it against what the clients knew. It
// returns whether the cut took back what the store had shown before. With
// again it cuts the power another time, while the store recovers.
func (li *life) verify(c cut, again bool) (took bool) {
	t := li.t
	var recovery atomic.Int64 // changes until the second cut
	second := make(chan cut, 1)
	fs := newHookFS(c.fs, func(op errorfs.Op) error {
		if changesDisk(op) && recovery.Add(-1) == 0 {
			d := c
			d.fs, d.percent = cutPower(c.fs, li.rng)
			d.where += " and, in recovery, " + place(op)
			second <- d
		}
		return nil
	})
	if again {
		recovery.Store(1 + li.rng.Int64N(60))
	}
	fail := func(format string, args ...any) {
		t.Helper()
		t.Errorf("cut at %s, %d %% of unsynced data kept: %s", c.where, c.percent, fmt.Sprintf(format, args...))
	}

	l, err := engine.Open("store", &engine.Options{FS: fs, Now: func() time.Time { return epoch }})
	recovery.Store(0)
	if err != nil {
		fail("Open: %v", err)
		return false
	}
	defer l.Close()
	if err := l.Check(); err != nil {
		fail("the store is damaged: %v", err)
	}
	if got := l.Now().UnixNano(); got < c.floor {
		fail("the clock has gone back by %d ns", c.floor-got)
	}
	used := scanAll(t, l)
	for i := range c.acknowledged {
		a := &li.accounts[i]
		got := used[string(a.key)]
		delete(used, string(a.key))
		switch {
		case got < c.acknowledged[i]:
			fail("%s has %d used, but %d were acknowledged", a.key, got, c.acknowledged[i])
		case got > c.possible[i]:
			fail("%s has %d used, but no more than %d were asked for", a.key, got, c.possible[i])
		case got < c.reported[i]:
			fail("%s has %d used, but an answer has said %d", a.key, got, c.reported[i])
		}
		took = took || i < crashHot && got < c.visible[i]
	}
	for i := range c.states {
		d := &li.diaries[i]
		got := used[string(d.key)]
		delete(used, string(d.key))
		if want := c.states[i][c.answered[i]:]; !slices.Contains(want, got) {
			fail("%s has %d used, want one of %d", d.key, got, want)
		}
	}
	for key, got := range used {
		if a := li.account([]byte(key)); a == nil || a.possible.Load() < got {
			fail("%s has %d used, which nobody asked for", key, got)
		}
	}
	a := &li.accounts[0]
	before, _ := l.Stat(a.key)
	d, err := l.Throttle(a.key, bucket(a.limit), 1)
	if want := a.limit - usedOf(before) - 1; err != nil || d.Remaining != want {
		fail("Throttle leaves %d, %v, want %d", d.Remaining, err, want)
	}
	select {
	case d := <-second:
		li.verify(d, false)
	default:
	}
	return took
}

// settled checks that in the end exactly what was acknowledged is used.
func (li *life) settled() {
	used := scanAll(li.t, li.l)
	for i := range li.touched() {
		a := &li.accounts[i]
		if got, want := used[string(a.key)], a.acknowledged.Load(); got != want {
			li.t.Errorf("%s has %d used in the end, want %d", a.key, got, want)
		}
	}
	for i := range li.diaries {
		d := &li.diaries[i]
		states, _ := d.read()
		if got, want := used[string(d.key)], states[len(states)-1]; got != want {
			li.t.Errorf("%s has %d used in the end, want %d", d.key, got, want)
		}
	}
}

// scanAll returns what is used of each key in the store.
func scanAll(t testing.TB, l *engine.Limiter) map[string]int64 {
	t.Helper()
	used := make(map[string]int64)
	if _, err := l.Scan(0, 1<<30, func(key []byte, s engine.Stat) { used[string(key)] = usedOf(s) }); err != nil {
		t.Errorf("Scan: %v", err)
	}
	return used
}

const prefixKeys = 20

// A history is the states that the operations of one client lead through: what
// is used of each of its keys, before the first and after each.
type history struct {
	mu       sync.Mutex
	states   [][prefixKeys]int64
	times    []int64 // of the operations, no later than each was carried out; 0 if it changed nothing
	answered int     // the state after the last operation that was answered
	synced   int     // the state after the last that was answered before a Sync that has returned
}

func newHistory() *history {
	return &history{states: make([][prefixKeys]int64, 1), times: make([]int64, 1)}
}

func (h *history) add(state [prefixKeys]int64, at int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.states, h.times = append(h.states, state), append(h.times, at)
}

func (h *history) answer() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answered = len(h.states) - 1
}

func (h *history) sync() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.synced = h.answered
}

func (h *history) read() history {
	h.mu.Lock()
	defer h.mu.Unlock()
	return history{states: slices.Clip(h.states), times: slices.Clip(h.times), answered: h.answered, synced: h.synced}
}

// find returns the first and the last state from index least on that is state.
func (h *history) find(least int, state [prefixKeys]int64) (first, last int) {
	first, last = -1, -1
	for i := least; i < len(h.states); i++ {
		if h.states[i] == state {
			if first < 0 {
				first = i
			}
			last = i
		}
	}
	return first, last
}

func prefixKey(i int) []byte { return fmt.Appendf(nil, "key-%d", i) }

// prefixState returns what is used of each key in l.
func prefixState(t testing.TB, l *engine.Limiter) (state [prefixKeys]int64) {
	t.Helper()
	used := scanAll(t, l)
	for i := range state {
		state[i] = used[string(prefixKey(i))]
	}
	return state
}

// prefixClient calls until stop is closed.
func prefixClient(t testing.TB, l *engine.Limiter, h *history, cutter *cutter, rng *rand.Rand, stop <-chan struct{}) {
	const limit = 1 << 20
	var state [prefixKeys]int64
	for !t.Failed() {
		select {
		case <-stop:
			return
		default:
		}
		cutter.call()
		switch rng.IntN(50) {
		case 0:
			if err := l.Sync(); err != nil {
				t.Errorf("Sync: %v", err)
			}
			h.sync()
			continue
		case 1:
			state = [prefixKeys]int64{}
			h.add(state, l.Now().UnixNano())
			if err := l.ResetAll(); err != nil {
				t.Errorf("ResetAll: %v", err)
			}
			h.answer()
			continue
		case 2:
			if got := prefixState(t, l); got != state {
				t.Errorf("Scan = %v, want %v", got, state)
			}
			continue
		}
		ops := make([]engine.Op, 1+rng.IntN(8)*rng.IntN(2))
		want := make([]int64, len(ops))
		for i := range ops {
			k := rng.IntN(prefixKeys)
			op := engine.Op{Key: prefixKey(k), Rate: bucket(limit), N: 1 + rng.Int64N(9)}
			at := int64(0)
			switch rng.IntN(12) {
			case 0:
				op.Verb = engine.OpReset
				if state[k] > 0 {
					at = l.Now().UnixNano()
				}
				state[k] = 0
			case 1:
				op.Verb = engine.OpProbe
			default:
				at = l.Now().UnixNano()
				state[k] += op.N
			}
			h.add(state, at)
			ops[i], want[i] = op, state[k]
		}
		for i, r := range l.Do(ops, nil) {
			if r.Err != nil {
				t.Errorf("Do(%v) = %v", ops[i], r.Err)
			} else if got, told := usedAfter(&ops[i], &r, limit); told && got != want[i] {
				t.Errorf("%v of %s says that %d are used, want %d", ops[i].Verb, ops[i].Key, got, want[i])
			}
		}
		h.answer()
	}
}

// TestPowerCutPrefix cuts the power while one client charges and resets many
// keys, one call after the other. What is left is what its first operations
// have led to, up to one of them, and that one is none before the last that
// the durability promises.
func TestPowerCutPrefix(t *testing.T) {
	for _, durability := range durabilities {
		t.Run(durability.String(), func(t *testing.T) {
			seed := newSeed(t)
			lost := 0 // cuts that took back what had been answered
			lives, cuts := 4, 20
			if testing.Short() {
				lives = 2
			}
			for i := range lives {
				lost += prefixLife(t, seed+uint64(i), durability, cuts)
			}
			t.Logf("%d of %d cuts took back something that had been answered", lost, lives*cuts)
			if (lost == 0) != (durability == engine.Always) {
				t.Errorf("%d of %d cuts took back something that had been answered", lost, lives*cuts)
			}
		})
	}
}

func prefixLife(t *testing.T, seed uint64, durability engine.Durability, cuts int) (lost int) {
	fs, h := vfs.NewCrashableMem(), newHistory()
	var before, after history
	var left *vfs.MemFS
	var where string
	cutter := newCutter(rand.New(rand.NewPCG(seed, 0)))
	cutter.cut = func(w string) {
		before = h.read()
		left, _ = cutPower(fs, cutter.rng)
		after, where = h.read(), w
	}
	l := open(t, "store", engine.Options{
		FS: newHookFS(fs, cutter.hook), Now: tickingClock(), Durability: durability, SyncInterval: time.Millisecond,
		CacheSize: cutter.rng.Int64N(2), // the default, or every entry that may go is gone
	})
	stop, stopped := make(chan struct{}), make(chan struct{})
	rng := rand.New(rand.NewPCG(seed, 1))
	go func() {
		defer close(stopped)
		prefixClient(t, l, h, cutter, rng, stop)
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
			return lost
		}
		if err := l.Check(); err != nil {
			t.Errorf("cut at %s: the store is damaged: %v", where, err)
		}
		state, now := prefixState(t, l), l.Now().UnixNano()
		l.Close()

		least := before.synced
		if durability == engine.Always {
			least = before.answered
		}
		first, last := after.find(least, state)
		if first < 0 {
			t.Errorf("cut at %s: %v is left, which is none of what there was from operation %d to %d", where, state, least, len(after.states)-1)
			return lost
		}
		for i, at := range after.times[:first+1] {
			if at > now {
				t.Errorf("cut at %s: the clock is %d ns behind operation %d", where, at-now, i)
				return lost
			}
		}
		if last < before.answered {
			lost++
		}
	}
	return lost
}

// TestPowerCutWhileOpening cuts the power at each change of the disk that the
// making of a store takes, and its recovery.
func TestPowerCutWhileOpening(t *testing.T) {
	rng := rand.New(rand.NewPCG(newSeed(t), 0))
	fs := vfs.NewCrashableMem()
	for used := range int64(3) {
		type cut struct {
			fs    *vfs.MemFS
			where string
		}
		var cuts []cut
		var opening atomic.Bool
		opening.Store(true)
		var mu sync.Mutex
		before := fs
		l := open(t, "store", engine.Options{Now: tickingClock(), FS: newHookFS(before, func(op errorfs.Op) error {
			if !opening.Load() || !changesDisk(op) {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			for _, percent := range []int{0, 25, 50, 50, 75, 100} {
				clone := before.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
				cuts = append(cuts, cut{clone, fmt.Sprintf("%s, %d %%", place(op), percent)})
			}
			return nil
		})})
		opening.Store(false)
		mu.Lock()
		for _, c := range cuts {
			l, err := engine.Open("store", &engine.Options{FS: c.fs, Now: tickingClock()})
			if err != nil {
				t.Errorf("cut at %s: Open: %v", c.where, err)
				continue
			}
			if d, err := l.Throttle([]byte("k"), bucket(10), 1); err != nil || d.Remaining != 9-used {
				t.Errorf("cut at %s: Throttle leaves %d, %v, want %d", c.where, d.Remaining, err, 9-used)
			}
			if err := l.Close(); err != nil {
				t.Errorf("cut at %s: Close: %v", c.where, err)
			}
		}
		mu.Unlock()
		if _, err := l.Throttle([]byte("k"), bucket(10), 1); err != nil {
			t.Fatal(err)
		}
		fs, _ = cutPower(before, rng)
	}
}

// TestPowerCutInNewDirectories cuts the power after a charge in a store whose
// directory was made together with those above it.
func TestPowerCutInNewDirectories(t *testing.T) {
	fs := vfs.NewCrashableMem()
	const dir = "a/b/c/store"
	if _, err := open(t, dir, engine.Options{FS: fs}).Throttle([]byte("k"), bucket(10), 3); err != nil {
		t.Fatal(err)
	}
	left := fs.CrashClone(vfs.CrashCloneCfg{})
	if d, err := open(t, dir, engine.Options{FS: left}).Probe([]byte("k"), bucket(10), 0); err != nil || d.Remaining != 7 {
		t.Errorf("Probe leaves %d, %v, want 7", d.Remaining, err)
	}
}
