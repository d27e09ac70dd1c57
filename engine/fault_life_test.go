package engine_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"path"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/goleak"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// opNames are the kinds of operations by what they are called in messages.
var opNames = map[errorfs.OpKind]string{
	errorfs.OpCreate: "create", errorfs.OpLink: "link", errorfs.OpOpen: "open", errorfs.OpOpenDir: "open directory",
	errorfs.OpRemove: "remove", errorfs.OpRemoveAll: "remove all", errorfs.OpRename: "rename", errorfs.OpReuseForWrite: "reuse",
	errorfs.OpMkdirAll: "make directory", errorfs.OpLock: "lock", errorfs.OpList: "list", errorfs.OpFilePreallocate: "preallocate",
	errorfs.OpStat: "stat", errorfs.OpGetDiskUsage: "disk usage", errorfs.OpFileRead: "read", errorfs.OpFileReadAt: "read at",
	errorfs.OpFileWrite: "write", errorfs.OpFileWriteAt: "write at", errorfs.OpFileStat: "file stat", errorfs.OpFileSync: "sync",
	errorfs.OpFileSyncData: "sync data", errorfs.OpFileSyncTo: "sync to", errorfs.OpFileFlush: "flush",
}

// failedOp is an operation that has failed.
type failedOp struct {
	errorfs.Op
	unlocked   bool // it was before the store was locked
	background bool // it was none of the client's
	deleting   bool // it was to find what is to be deleted
}

// harmless tells whether op may fail without an error to any caller.
func (op failedOp) harmless() bool {
	switch op.Kind {
	case errorfs.OpRemove:
		return true // a file too many is removed when the store is opened the next time
	case errorfs.OpLink:
		return true // what can't be linked is copied
	case errorfs.OpGetDiskUsage:
		return true // it paces the removal of files
	case errorfs.OpStat:
		// The search for directories that have to be made ends at "." anyway,
		// and Pebble looks there for what it is going to remove, to count bytes.
		return path.Dir(op.Path) == "." && op.Path != "store" && !strings.HasPrefix(op.Path, "backup")
	case errorfs.OpList, errorfs.OpOpenDir:
		return op.unlocked // Open looks again under the lock
	case errorfs.OpOpen, errorfs.OpFileStat, errorfs.OpFileReadAt:
		// Pebble tries again to compact tables, and to learn what is in them.
		// What lies beside a key need not be read to be deleted.
		return (op.background || op.deleting) && strings.HasSuffix(op.Path, ".sst")
	}
	return false
}

// openFiles is a file system that knows which of its files are open.
type openFiles struct {
	vfs.FS

	mu   sync.Mutex
	open map[io.Closer]string // and how each was opened
}

func newOpenFiles(fs vfs.FS) *openFiles {
	return &openFiles{FS: fs, open: make(map[io.Closer]string)}
}

func (fs *openFiles) names() []string {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return slices.Sorted(maps.Values(fs.open))
}

// openFile is a file or a lock that is open.
type openFile struct {
	vfs.File
	closer io.Closer
	fs     *openFiles
}

func (f *openFile) Close() error {
	f.fs.mu.Lock()
	delete(f.fs.open, f)
	f.fs.mu.Unlock()
	return f.closer.Close()
}

func (fs *openFiles) track(how, name string, f vfs.File, closer io.Closer, err error) (*openFile, error) {
	if err != nil {
		return nil, err
	}
	o := &openFile{File: f, closer: closer, fs: fs}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.open[o] = how + " " + name
	return o, nil
}

func (fs *openFiles) file(how, name string, f vfs.File, err error) (vfs.File, error) {
	o, err := fs.track(how, name, f, f, err)
	if err != nil {
		return nil, err
	}
	return o, nil
}

func (fs *openFiles) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, category)
	return fs.file("create", name, f, err)
}

func (fs *openFiles) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := fs.FS.Open(name, opts...)
	return fs.file("open", name, f, err)
}

func (fs *openFiles) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := fs.FS.OpenReadWrite(name, category, opts...)
	return fs.file("open", name, f, err)
}

func (fs *openFiles) OpenDir(name string) (vfs.File, error) {
	f, err := fs.FS.OpenDir(name)
	return fs.file("open directory", name, f, err)
}

func (fs *openFiles) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.ReuseForWrite(oldname, newname, category)
	return fs.file("reuse", newname, f, err)
}

func (fs *openFiles) Lock(name string) (io.Closer, error) {
	c, err := fs.FS.Lock(name)
	o, err := fs.track("lock", name, nil, c, err)
	if err != nil {
		return nil, err
	}
	return o, nil
}

// A faultLife is a store from its making to its end on a disk one of whose
// operations fails, its only client, and a model of what the store holds.
type faultLife struct {
	t     *testing.T
	fs    *vfs.MemFS
	files *openFiles
	fault fault
	clock *manualClock
	tick  time.Duration // by which the clock goes on whenever it is looked at
	l     *engine.Limiter

	// The model has all that was answered. When the store has failed it also
	// has all that was not, and maybe has what the store may hold just as well.
	model
	maybe []model

	asked map[string][]engine.Op // what looks at the keys that have been called
	took  map[string]engine.Op   // the requests to quotas

	backup *model // what the checkpoint holds that was made
	purged int    // records

	mu     sync.Mutex
	locked bool       // the store has been, since it was last opened; guarded by mu
	failed []failedOp // guarded by mu
	told   int        // how many calls have returned an error
}

// The policies of a faultLife.
var (
	lifeRate  = bucket(100)
	lifeQuota = limit.Quota{Limit: 9, Window: 10 * time.Hour}
	lifeList  = limit.Rolling{Limit: 1000, Window: 10 * time.Hour}
	briefRate = limit.Rate{Burst: 9, Count: 1, Period: time.Second}
	briefList = limit.Rolling{Limit: 1000, Window: time.Minute}
)

func newFaultLife(t *testing.T, n int64, err error, sticky bool) *faultLife {
	li := &faultLife{
		t:     t,
		fs:    vfs.NewCrashableMem(),
		fault: fault{match: func(errorfs.Op) bool { return true }, n: n, err: err, sticky: sticky},
		clock: newManualClock(epoch),
		model: model{now: epoch.UnixNano(), keys: map[string]*modelKey{}, seen: map[string]int{}},
		asked: map[string][]engine.Op{},
		took:  map[string]engine.Op{},
	}
	li.files = newOpenFiles(li.fs)
	return li
}

func (li *faultLife) String() string {
	s := fmt.Sprintf("operation %d fails with %q", li.fault.n, li.fault.err)
	if li.fault.sticky {
		s += " and all that follow it"
	}
	li.mu.Lock()
	defer li.mu.Unlock()
	if len(li.failed) > 0 {
		s += fmt.Sprintf(", %s of %s", opNames[li.failed[0].Kind], li.failed[0].Path)
	}
	return s
}

func (li *faultLife) errorf(format string, args ...any) {
	li.t.Helper()
	li.t.Errorf("%v: %s", li, fmt.Sprintf(format, args...))
}

func (li *faultLife) hook(op errorfs.Op) error {
	err := li.fault.inject(op)
	li.mu.Lock()
	defer li.mu.Unlock()
	li.locked = li.locked || op.Kind == errorfs.OpLock
	if err != nil {
		stack := make([]byte, 64<<10)
		stack = stack[:runtime.Stack(stack, false)]
		li.failed = append(li.failed, failedOp{
			Op:         op,
			unlocked:   !li.locked,
			background: !bytes.Contains(stack, []byte("(*faultLife).run(")),
			deleting:   bytes.Contains(stack, []byte("(*Limiter).dropSpan(")),
		})
	}
	return err
}

func (li *faultLife) options(fs vfs.FS) engine.Options {
	return engine.Options{
		FS: fs, NoPurge: true, CacheSize: 1, BlockCacheSize: 1, // so that reads go to the disk
		Now: func() time.Time {
			li.clock.Advance(li.tick)
			return li.clock.Now()
		},
	}
}

// fails tells whether what a call has returned is an error, and notes that.
func (li *faultLife) fails(what any, err error) bool {
	li.t.Helper()
	if err == nil {
		return false
	}
	li.told++
	if !errors.Is(err, li.fault.err) || li.fault.failed.Load() == 0 {
		li.errorf("%v = %v, want an error that wraps %v", what, err, li.fault.err)
	}
	return true
}

// open opens the store. Where that fails, and the disk goes on, it is to
// succeed the next time.
func (li *faultLife) open() bool {
	li.t.Helper()
	for range 2 {
		li.mu.Lock()
		li.locked = false
		li.mu.Unlock()
		opts := li.options(newHookFS(li.files, li.hook))
		l, err := engine.Open("store", &opts)
		if !li.fails("Open", err) {
			li.l = l
			if li.maybe != nil {
				li.recover(l)
			}
			return true
		}
		li.left()
		if li.fault.sticky {
			return false
		}
	}
	li.errorf("Open fails again")
	return false
}

// left sees that nothing is open.
func (li *faultLife) left() {
	li.t.Helper()
	for _, op := range li.failed {
		if op.Kind == errorfs.OpFileStat {
			return // Pebble does not close a table whose size it can't learn
		}
	}
	if names := li.files.names(); len(names) > 0 {
		li.errorf("%q are left open", names)
	}
}

func (li *faultLife) close() {
	li.t.Helper()
	failure := li.l.Failure()
	if err := li.l.Close(); !li.fails("Close", err) && failure != nil {
		li.errorf("Close = nil after %v", failure)
	}
	li.left()
	li.l = nil
}

// do carries out operations, and holds what is answered against the model.
func (li *faultLife) do(ops ...engine.Op) {
	li.t.Helper()
	broken := li.l.Failure()
	results := li.l.Do(ops, nil)
	failure := li.l.Failure()
	for i, op := range ops {
		li.note(op)
		got := results[i]
		switch {
		case errors.Is(got.Err, engine.ErrStorage):
			li.fails(op.Verb, got.Err)
			if broken != nil || got.Err != failure {
				continue // nothing is done after a failure, or where something can't be read
			}
			li.doubt()
			li.now += int64(li.tick)
			li.model.do(op)
			li.maybe = append(li.maybe, li.clone())
			continue
		case broken != nil:
			li.errorf("%+v = %+v after %v", op, got, broken)
		}
		before := li.keys
		if li.maybe != nil {
			before = li.clone().keys
		}
		li.now += int64(li.tick)
		if want := li.model.do(op); !sameAnswer(got, want) || !sameError(got.Err, want.Err) {
			li.errorf("%+v = %+v, want %+v", op, got, want)
		}
		if li.maybe != nil && !reflect.DeepEqual(before, li.keys) {
			li.maybe = nil // a round that is on disk is not without those before it
		}
	}
	li.now = li.clock.Now().UnixNano()
}

// asOne carries out ops as they go together or, if they don't, as a transaction.
func (li *faultLife) asOne(ops ...engine.Op) {
	li.t.Helper()
	broken := li.l.Failure()
	var results []engine.Result
	var err error
	if n := ops[0].With; n > 0 && n == len(ops)-1 {
		results = li.l.Do(ops, nil)
		err = results[0].Err
	} else {
		err = li.l.Update(func(tx *engine.Tx) error {
			results = tx.Do(ops, nil)
			for _, r := range results {
				if errors.Is(r.Err, engine.ErrStorage) {
					return r.Err
				}
			}
			return nil
		})
	}
	failure := li.l.Failure()
	for _, op := range ops {
		li.note(op)
	}
	switch {
	case li.fails("all of it", err):
		if broken == nil && err == failure {
			li.doubt()
			li.model.carryOut(ops...)
			li.maybe = append(li.maybe, li.clone())
		}
		return
	case broken != nil:
		li.errorf("%+v = %+v after %v", ops, results, broken)
	}
	before := li.clone().keys
	for i, want := range li.model.carryOut(ops...) {
		if got := results[i]; !sameAnswer(got, want) || !sameError(got.Err, want.Err) {
			li.errorf("%+v = %+v, want %+v", ops[i], got, want)
		}
	}
	if li.maybe != nil && !reflect.DeepEqual(before, li.keys) {
		li.maybe = nil
	}
}

// doubt notes that nobody knows whether what comes next is on disk.
func (li *faultLife) doubt() {
	if li.maybe == nil {
		li.maybe = []model{li.clone()}
	}
}

// clone returns a model like li's.
func (li *faultLife) clone() model {
	return model{now: li.now, mark: li.mark, keys: maps.Clone(li.keys), seen: map[string]int{}}
}

// note takes down how to look at what op may change.
func (li *faultLife) note(op engine.Op) {
	if looks(op.Verb) {
		return
	}
	name := string(op.Key) + " " + op.ID
	if li.asked[name] != nil {
		return
	}
	look := []engine.Op{{Verb: engine.OpStat, Key: op.Key}}
	switch op.Verb {
	case engine.OpThrottle, engine.OpThrottleAll, engine.OpRefund:
		look = append(look, engine.Op{Verb: engine.OpProbe, Key: op.Key, Rate: op.Rate, N: 1})
	case engine.OpTakeQuota:
		li.took[name] = op
		op.Verb = engine.OpProbeQuota
		look = append(look, engine.Op{Verb: engine.OpQuota, Key: op.Key}, op)
	case engine.OpAllow, engine.OpIncrement:
		look = append(look, engine.Op{Verb: engine.OpPeek, Key: op.Key, Rolling: op.Rolling})
		op.Rolling.Limit = 1 // the wait of which tells of the newest event
		look = append(look, engine.Op{Verb: engine.OpWait, Key: op.Key, Rolling: op.Rolling})
	}
	li.asked[name] = look
}

// looks looks at all that the client has ever called, and all else that there is.
func (li *faultLife) looks() (ops []engine.Op) {
	for _, name := range slices.Sorted(maps.Keys(li.asked)) {
		ops = append(ops, li.asked[name]...)
	}
	return ops
}

// recover finds out which of the states that the store may be in it is in.
func (li *faultLife) recover(l *engine.Limiter) {
	li.t.Helper()
	found, wrong := li.find(l, append(li.maybe, li.clone()))
	if found < 0 {
		li.errorf("the store is in none of %d possible states: %s", len(li.maybe)+1, wrong)
		return
	}
	if found < len(li.maybe) {
		li.model = li.maybe[found]
		li.model.now, li.seen = li.clock.Now().UnixNano(), map[string]int{}
	}
	li.maybe = nil
}

// find returns which of these states the store is in; -1 and what is wrong with
// the last if it is in none.
func (li *faultLife) find(l *engine.Limiter, states []model) (found int, wrong string) {
	li.t.Helper()
	ops := li.looks()
	results := l.Do(ops, nil)
	all := map[string]engine.Stat{}
	if _, err := l.Scan(0, 1<<20, func(key []byte, s engine.Stat) { all[string(key)] = s }); err != nil {
		return -1, fmt.Sprintf("Scan: %v", err)
	}
	for i, m := range states {
		m.now, m.seen, wrong = li.now, map[string]int{}, ""
		for j, op := range ops {
			if want := m.do(op); !sameAnswer(results[j], want) || !sameError(results[j].Err, want.Err) {
				wrong = fmt.Sprintf("%+v = %+v, want %+v", op, results[j], want)
				break
			}
		}
		if want := m.all(); wrong == "" && !maps.Equal(all, want) {
			wrong = fmt.Sprintf("Scan = %v, want %v", all, want)
		}
		if wrong == "" {
			return i, ""
		}
	}
	return -1, wrong
}

// on calls a function that changes nothing that anybody could tell.
func (li *faultLife) on(what string, call func() error) {
	li.t.Helper()
	broken := li.l.Failure()
	if err := call(); !li.fails(what, err) {
		if broken != nil {
			li.errorf("%s = nil after %v", what, broken)
		}
	} else if !errors.Is(err, engine.ErrStorage) {
		li.errorf("%s = %v, want %v", what, err, engine.ErrStorage)
	}
}

func (li *faultLife) flush() {
	li.t.Helper()
	// It says nothing of its failure, as it belongs to no call: the store fails.
	if flushed, err := li.l.DB().AsyncFlush(); !li.fails("AsyncFlush", err) {
		<-flushed
	}
}

func (li *faultLife) look() {
	li.t.Helper()
	li.on("Scan", func() error {
		got := map[string]engine.Stat{}
		_, err := li.l.Scan(0, 1<<20, func(key []byte, s engine.Stat) { got[string(key)] = s })
		if want := li.all(); err == nil && !maps.Equal(got, want) {
			li.errorf("Scan = %v, want %v", got, want)
		}
		return err
	})
	li.on("Len", func() error {
		n, err := li.l.Len()
		if want := len(li.all()); err == nil && n != int64(want) {
			li.errorf("Len = %d, want %d", n, want)
		}
		return err
	})
	li.on("View", func() error {
		return li.l.View(func(v *engine.View) error {
			s, err := v.Stat([]byte("rate"))
			if want := li.stat("rate"); err == nil && s != want {
				li.errorf("View sees %v, want %v", s, want)
			}
			return err
		})
	})
	li.do(li.looks()...)
}

func (li *faultLife) resetAll() {
	li.t.Helper()
	broken := li.l.Failure()
	if err := li.l.ResetAll(); !li.fails("ResetAll", err) {
		if broken != nil {
			li.errorf("ResetAll = nil after %v", broken)
		}
	} else if broken != nil || err != li.l.Failure() {
		return
	} else {
		li.doubt()
	}
	clear(li.keys)
	if li.maybe != nil {
		li.maybe = append(li.maybe, li.clone())
	}
}

func (li *faultLife) advance(d time.Duration) {
	li.clock.Advance(d)
	li.now = li.clock.Now().UnixNano()
}

// Operations of the script.
func rated(key string, n int64) engine.Op {
	return engine.Op{Verb: engine.OpThrottle, Key: []byte(key), Rate: lifeRate, N: n}
}

func briefly(key string) engine.Op {
	return engine.Op{Verb: engine.OpThrottle, Key: []byte(key), Rate: briefRate, N: 2}
}

func taken(id string, cost int64) engine.Op {
	return engine.Op{Verb: engine.OpTakeQuota, Key: []byte("quota"), ID: id, Quota: lifeQuota, N: cost}
}

func listed(key string, w limit.Rolling, n int64) engine.Op {
	return engine.Op{Verb: engine.OpIncrement, Key: []byte(key), Rolling: w, N: n}
}

func forgotten(key string) engine.Op { return engine.Op{Verb: engine.OpReset, Key: []byte(key)} }

func refunded(id string) engine.Op {
	return engine.Op{Verb: engine.OpRefundQuota, Key: []byte("quota"), ID: id}
}

// allOf has ops, which charge rates, go together.
func allOf(ops ...engine.Op) []engine.Op {
	for i := range ops {
		ops[i].Verb = engine.OpThrottleAll
	}
	ops[0].With = len(ops) - 1
	return ops
}

// run is the life. Whatever fails, the client goes on as if it had not.
func (li *faultLife) run() {
	li.fault.armed.Store(true)
	defer li.fault.armed.Store(false)
	long := slices.Repeat([]engine.Op{listed("long", lifeList, 1)}, limit.MaxRuns+10)
	brief := slices.Repeat([]engine.Op{listed("brief list", briefList, 1)}, limit.MaxRuns+10)

	if !li.open() {
		return
	}
	li.do(rated("rate", 1), taken("first", 2), listed("list", lifeList, 3))
	li.resetAll()
	li.do(rated("rate", 2), rated("other", 1), taken("first", 3), briefly("brief"))
	li.do(taken("second", 2), taken("first", 3))
	li.asOne(allOf(rated("rate", 1), rated("third", 2), rated("rate", 1))...)
	li.asOne(rated("rate", 1), taken("fifth", 1), listed("list", lifeList, 1), refunded("second"), taken("too much", 7))
	li.tick = time.Microsecond
	li.do(append(long, brief...)...)
	li.tick = 0
	li.flush()
	li.do(taken("second", 2), taken("third", 2), taken("too much", 5), rated("rate", 1), forgotten("other"))
	li.do(engine.Op{Verb: engine.OpAllow, Key: []byte("long"), Rolling: lifeList})
	li.on("Compact", func() error { return li.l.Compact(li.t.Context(), nil) })
	li.look()
	li.advance(time.Hour)
	li.on("Purge", func() error { return li.l.Purge(li.t.Context()) })
	li.purged += int(li.l.Metrics().Purged)
	li.do(briefly("brief"), rated("another", 3), rated("rate", 99))
	li.on("Sync", li.l.Sync)
	if !li.fails("Checkpoint", li.l.Checkpoint(li.t.Context(), "backup")) {
		m := li.clone()
		li.backup = &m
	}
	li.close()

	if !li.open() {
		return
	}
	li.look()
	li.do(taken("third", 2), taken("fourth", 1), rated("rate", 1), listed("long", lifeList, 2), forgotten("list"))
	li.flush()
	li.asOne(append(allOf(rated("rate", 1), rated("rate", 100)), forgotten("third"), refunded("third"), refunded("second"), listed("long", lifeList, 1))...)
	li.do(forgotten("long"), listed("list", lifeList, 1))
	li.on("Purge", func() error { return li.l.Purge(li.t.Context()) })
	li.close()
}

// verify opens what the life has left on a disk that does not fail, and what a
// power cut leaves of it.
func (li *faultLife) verify() {
	li.t.Helper()
	all := li.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(0, 0))})
	left := []struct {
		what string
		fs   *vfs.MemFS
	}{
		{"nothing unsynced kept", li.fs.CrashClone(vfs.CrashCloneCfg{})},
		{"all kept", all},
	}
	last, maybe := li.clone(), li.maybe
	for i, s := range left {
		li.model, li.maybe = last, slices.Clone(maybe)
		opts := li.options(s.fs)
		opts.BlockCacheSize = 1 << 20
		opts.UseSmallMemtables() // they are faster to make
		l, err := engine.Open("store", &opts)
		if err != nil {
			li.errorf("%s: Open: %v", s.what, err)
			continue
		}
		li.recover(l)
		li.model = li.clone()
		for _, name := range slices.Sorted(maps.Keys(li.took)) {
			op := li.took[name]
			if got, want := l.Do([]engine.Op{op}, nil)[0], li.model.do(op); !sameAnswer(got, want) || !sameError(got.Err, want.Err) {
				li.errorf("%s: %+v = %+v, want %+v", s.what, op, got, want)
			}
		}
		if i == int(li.fault.n%2) { // it takes long
			err = l.Check()
		}
		if err := errors.Join(err, l.Close()); err != nil {
			li.errorf("%s: %v", s.what, err)
		}
		if li.backup == nil {
			continue
		}
		if l, err = engine.Open("backup", &opts); err != nil {
			li.errorf("%s: Open of the checkpoint: %v", s.what, err)
			continue
		}
		if found, wrong := li.find(l, []model{*li.backup}); found < 0 {
			li.errorf("%s: the checkpoint: %s", s.what, wrong)
		}
		if err := l.Close(); err != nil {
			li.errorf("%s: the checkpoint: %v", s.what, err)
		}
	}
	if li.fault.n%8 != 0 {
		return // reading all files takes long
	}
	opts := li.options(all)
	opts.BlockCacheSize = 1 << 20
	if r, err := engine.Check("store", &opts, nil); err != nil || r.Damaged > 0 {
		li.errorf("Check = %+v, %v", r, err)
	}
}

// TestNthFault has each operation on the disk fail that a life takes, one life
// after the other, by itself and together with all that follow it. Whoever has
// called hears of it, nobody is told that something is done that isn't, nobody
// waits for ever, nothing is left open, and what is left on the disk is what
// was answered.
func TestNthFault(t *testing.T) {
	checkLeaks(t)
	others := goleak.IgnoreCurrent()
	stride := func() int64 { return 1 }
	if testing.Short() {
		rng := rand.New(rand.NewPCG(newSeed(t), 0))
		stride = func() int64 { return 1 + rng.Int64N(200) }
	}

	clean := newFaultLife(t, 0, syscall.EIO, false)
	clean.run()
	if clean.told > 0 || clean.purged == 0 || clean.seen["long list"] == 0 || clean.seen["replay"] == 0 {
		t.Fatalf("without a fault %d calls fail, %d records are purged, and %v", clean.told, clean.purged, clean.seen)
	}
	clean.verify()

	lives, told, ignored := 0, 0, map[string]int{}
	for _, kind := range []error{syscall.EIO, syscall.ENOSPC} {
		for _, sticky := range []bool{false, true} {
			for n := stride(); ; n += stride() {
				li := newFaultLife(t, n, kind, sticky)
				watchdog := time.AfterFunc(20*time.Second, func() {
					debug.SetTraceback("all")
					panic(fmt.Sprintf("%v: the life does not end", li))
				})
				li.run()
				if li.fault.failed.Load() == 0 {
					watchdog.Stop()
					break // it does not take so many
				}
				lives++
				if li.told > 0 {
					told++
				} else {
					for _, op := range li.failed {
						if !op.harmless() {
							li.errorf("no call has failed")
						}
						ignored[opNames[op.Kind]+" "+pattern(op.Path)]++
					}
				}
				li.verify()
				watchdog.Stop()
				if found := goleak.Find(others); found != nil {
					li.errorf("goroutines are left: %v", found)
				}
				if t.Failed() {
					keep(t, li.fs, "life")
					return
				}
			}
		}
	}
	t.Logf("%d operations, %d lives, %d failed a call; the others: %v", clean.fault.seen.Load(), lives, told, ignored)
}

// pattern returns the name of a file without what tells it from others of its
// kind.
func pattern(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return 'n'
		}
		return r
	}, path.Base(name))
}
