package engine_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
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
var (
	crashSeed = flag.Uint64("crash.seed", 0, "seed of the power cuts; 0 draws one")
	crashFor  = flag.Duration("crash.for", 0, "how long each test that cuts the power goes on; 0 for a number of cuts")
)

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

// lives calls live with a seed after the other until it has failed: n times, or
// for as long as -crash.for says. It returns how often that was.
func lives(t *testing.T, n int, live func(seed uint64)) (lived int) {
	seed, began := newSeed(t), time.Now()
	for more := true; more && !t.Failed(); more = lived < n || time.Since(began) < *crashFor {
		live(seed + uint64(lived))
		lived++
	}
	return lived
}

// keep writes the file system of a store that a test has failed on to a directory
// of its own, and has the test say where.
func keep(t testing.TB, fs *vfs.MemFS, name string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gabion-"+name+"-")
	if err == nil {
		_, err = vfs.Clone(fs, vfs.Default, "/", dir)
	}
	if err != nil {
		t.Errorf("keep the store: %v", err)
	}
	t.Logf("the store is kept in %s", dir)
	return dir
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

// scanAll returns how many events have been charged to each key.
func scanAll(t testing.TB, l *engine.Limiter) map[string]int64 {
	t.Helper()
	used := map[string]int64{}
	for key, stat := range scan(t, l, 1000) {
		used[key] = usedOf(stat)
	}
	return used
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
	f, err := fs.reuse(oldname, newname, category)
	if err != nil {
		return nil, err
	}
	return errorfs.WrapFile(f, errorfs.InjectorFunc(func(op errorfs.Op) error {
		op.Path = newname
		return fs.hook(op)
	})), nil
}

// reuse does in two steps what MemFS does in one, for which it takes a lock twice:
// with a CrashClone in between that waits for ever.
func (fs hookFS) reuse(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	mem, ok := fs.FS.Unwrap().(*vfs.MemFS)
	if !ok {
		return fs.FS.ReuseForWrite(oldname, newname, category)
	}
	if err := fs.hook(errorfs.Op{Kind: errorfs.OpReuseForWrite, Path: oldname}); err != nil {
		return nil, err
	}
	if err := mem.Rename(oldname, newname); err != nil {
		return nil, err
	}
	return mem.OpenReadWrite(newname, category)
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
	c.arm()
	return c.await(givenUp)
}

// arm has the next cut be taken at a random instant.
func (c *cutter) arm() {
	if c.rng.IntN(3) == 0 {
		c.calls.Store(1 + c.rng.Int64N(100))
	} else {
		c.changes.Store(1 + c.rng.Int64N(50))
	}
}

func (c *cutter) await(givenUp <-chan struct{}) bool {
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

// cuts are the power cuts at every change of the disk, while they are armed.
type cuts struct {
	t     *testing.T
	fs    *vfs.MemFS
	rng   *rand.Rand
	armed atomic.Bool

	mu    sync.Mutex
	taken []cut // guarded by mu
}

// A cut is what a power cut has left.
type cut struct {
	fs    *vfs.MemFS
	where string
}

func newCuts(t *testing.T, fs *vfs.MemFS) *cuts {
	return &cuts{t: t, fs: fs, rng: rand.New(rand.NewPCG(newSeed(t), 0))}
}

// hook is called before each operation of the file system.
func (c *cuts) hook(op errorfs.Op) error {
	if !c.armed.Load() || !changesDisk(op) {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, percent := range []int{0, 25, 50, 50, 75, 100} {
		left := c.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: c.rng})
		c.taken = append(c.taken, cut{left, fmt.Sprintf("%s, %d %%", place(op), percent)})
	}
	return nil
}

// each disarms the cuts and has hold look at what each of them has left, until
// it finds a fault. It returns how many cuts there were.
func (c *cuts) each(hold func(fs *vfs.MemFS) error) int {
	c.t.Helper()
	c.armed.Store(false)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cut := range c.taken {
		if err := hold(cut.fs.CrashClone(vfs.CrashCloneCfg{})); err != nil {
			c.t.Errorf("cut at %s: %v", cut.where, err)
		}
		if c.t.Failed() {
			keep(c.t, cut.fs, "cut")
			break
		}
	}
	return len(c.taken)
}

// check has make make a store in dir, in which so much is used of the key k, and
// checks each cut that was taken meanwhile, and one right behind it.
func (c *cuts) check(dir string, used int64, make func() error) {
	t := c.t
	t.Helper()
	c.armed.Store(true)
	must(t, make)
	c.armed.Store(false)
	last := c.fs.CrashClone(vfs.CrashCloneCfg{})
	if !exists(t, last, dir) {
		t.Errorf("a cut behind it leaves no %s", dir)
	}
	c.mu.Lock()
	c.taken = append(c.taken, cut{last, "its end"})
	c.mu.Unlock()
	whole := 0
	all := c.each(func(fs *vfs.MemFS) error {
		if names, _ := fs.List(dir); len(names) == 0 {
			return nil // not there, or as empty as it was
		}
		whole++
		checkWhole(t, fs, dir)
		l, err := engine.Open(dir, &engine.Options{FS: fs, Now: tickingClock()})
		if err != nil {
			return err
		}
		defer closeChecked(t, l)
		d, err := l.Probe([]byte("k"), bucket(10), 0)
		if err == nil && d.Remaining != 10-used {
			err = fmt.Errorf("Probe leaves %d, want %d", d.Remaining, 10-used)
		}
		return err
	})
	t.Logf("%d cuts, %d of them with a store", all, whole)
	if whole < 2 || whole >= all {
		t.Error("the cuts are all of one kind")
	}
}

// An account is what the clients know of a key that several of them charge.
type account struct {
	key   []byte
	limit int64

	acknowledged atomic.Int64 // charged by calls that have returned
	possible     atomic.Int64 // charged, or asked for by a call that has not returned
}

func raise(v *atomic.Int64, x int64) {
	for old := v.Load(); x > old && !v.CompareAndSwap(old, x); old = v.Load() {
	}
}

// TestPowerCutWhileOpening cuts the power at each change of the disk that the
// making of a store takes, and its recovery.
func TestPowerCutWhileOpening(t *testing.T) {
	fs := vfs.NewCrashableMem()
	for used := range int64(3) {
		cuts := newCuts(t, fs)
		cuts.armed.Store(true)
		l := open(t, "store", engine.Options{Now: tickingClock(), FS: newHookFS(fs, cuts.hook)})
		cuts.each(func(fs *vfs.MemFS) error {
			l, err := engine.Open("store", &engine.Options{FS: fs, Now: tickingClock()})
			if err != nil {
				return err
			}
			d, err := l.Throttle([]byte("k"), bucket(10), 1)
			if err == nil && d.Remaining != 9-used {
				err = fmt.Errorf("Throttle leaves %d, want %d", d.Remaining, 9-used)
			}
			return errors.Join(err, l.Close())
		})
		must(t, throttle(l, "k", 1))
		fs, _ = cutPower(fs, cuts.rng)
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
