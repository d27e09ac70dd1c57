package engine_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/goleak"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// A fault has operations of a file system fail, once it is armed.
type fault struct {
	match  func(errorfs.Op) bool
	err    error
	n      int64 // which of those that match fails, counted from 1
	sticky bool  // all that follow it fail too

	armed        atomic.Bool
	seen, failed atomic.Int64
}

func (f *fault) inject(op errorfs.Op) error {
	if !f.armed.Load() || !f.match(op) {
		return nil
	}
	if n := f.seen.Add(1); n == f.n || f.sticky && n > f.n {
		f.failed.Add(1)
		return f.err
	}
	return nil
}

// on returns a match for these kinds of operations on files whose name matches
// pattern.
func on(pattern string, kinds ...errorfs.OpKind) func(errorfs.Op) bool {
	return func(op errorfs.Op) bool {
		ok, _ := path.Match(pattern, path.Base(op.Path))
		for _, k := range kinds {
			if ok && k == op.Kind {
				return true
			}
		}
		return false
	}
}

var (
	creates = []errorfs.OpKind{errorfs.OpCreate, errorfs.OpReuseForWrite}
	writes  = []errorfs.OpKind{errorfs.OpFileWrite}
	syncs   = []errorfs.OpKind{errorfs.OpFileSync, errorfs.OpFileSyncData}
	reads   = []errorfs.OpKind{errorfs.OpFileReadAt}
)

// checkLeaks sees that at the end of the test, when all that it has opened is
// closed, no goroutines are left.
func checkLeaks(t *testing.T) {
	t.Cleanup(func() { goleak.VerifyNone(t) })
}

// everyCall makes every call that l has and that can fail, and returns the
// errors by the name of the method.
func everyCall(t *testing.T, l *engine.Limiter) map[string]error {
	t.Helper()
	key, rate := []byte("every-call"), bucket(10)
	errs := map[string]error{
		"View":       l.View(func(*engine.View) error { return nil }),
		"ResetAll":   l.ResetAll(),
		"Sync":       l.Sync(),
		"Purge":      l.Purge(t.Context()),
		"Compact":    l.Compact(t.Context(), nil),
		"Checkpoint": l.Checkpoint(t.Context(), "every-checkpoint"),
		"Update": l.Update(func(tx *engine.Tx) error {
			_, err := tx.Throttle(key, rate, 1)
			return err
		}),
	}
	_, errs["Throttle"] = l.Throttle(key, rate, 1)
	_, errs["Probe"] = l.Probe(key, rate, 1)
	_, errs["Refund"] = l.Refund(key, rate, 1)
	charge := engine.Charge{Key: key, Rate: rate, N: 1}
	_, errs["ThrottleAll"] = l.ThrottleAll(charge, charge)
	_, errs["ThrottleEach"] = l.ThrottleEach(charge, charge)
	_, errs["ProbeAll"] = l.ProbeAll(charge, charge)
	_, errs["ProbeEach"] = l.ProbeEach(charge, charge)
	_, errs["TakeQuota"] = l.TakeQuota([]byte("every-quota"), "id", limit.Quota{Limit: 5, Window: time.Hour}, 1)
	_, errs["ProbeQuota"] = l.ProbeQuota([]byte("every-quota"), "id", limit.Quota{Limit: 5, Window: time.Hour}, 1)
	_, errs["Quota"] = l.Quota([]byte("every-quota"))
	_, errs["RefundQuota"] = l.RefundQuota([]byte("every-quota"), "id")
	_, errs["Allow"] = l.Allow([]byte("every-list"), limit.Rolling{Limit: 5, Window: time.Hour})
	_, errs["Increment"] = l.Increment([]byte("every-list"), limit.Rolling{Limit: 5, Window: time.Hour}, 1)
	_, errs["Peek"] = l.Peek([]byte("every-list"), limit.Rolling{Limit: 5, Window: time.Hour})
	_, errs["Wait"] = l.Wait([]byte("every-list"), limit.Rolling{Limit: 5, Window: time.Hour})
	_, errs["Stat"] = l.Stat(key)
	_, errs["TTL"] = l.TTL(key)
	_, errs["Reset"] = l.Reset(key)
	_, errs["Scan"] = l.Scan(0, 10, func([]byte, engine.Stat) {})
	_, errs["Len"] = l.Len()
	ops := []engine.Op{{Verb: engine.OpThrottle, Key: key, Rate: rate, N: 1}, {Verb: engine.OpProbe, Key: key, Rate: rate, N: 1}}
	for i, r := range l.Do(ops, nil) {
		errs[fmt.Sprintf("Do[%d]", i)] = r.Err
	}

	except := map[string]bool{"Close": true, "Failure": true, "Check": true, "Visible": true, "Define": true, "Named": true}
	typ, failing := reflect.TypeFor[*engine.Limiter](), reflect.TypeFor[error]()
	for i := range typ.NumMethod() {
		m := typ.Method(i)
		if n := m.Type.NumOut(); n == 0 || m.Type.Out(n-1) != failing || except[m.Name] {
			continue
		}
		if _, ok := errs[m.Name]; !ok {
			t.Errorf("%s is missing in everyCall", m.Name)
		}
	}
	return errs
}

// A faultyStore is a store that is going to fail, and what its clients know of
// it.
type faultyStore struct {
	t        *testing.T
	fs       *vfs.MemFS
	fault    *fault
	l        *engine.Limiter
	always   bool
	accounts [4]account
	kept     [4]atomic.Int64 // acknowledged before a Sync that has returned
	full     []byte          // a key that denies
}

func newFaultyStore(t *testing.T, f *fault, opts engine.Options) *faultyStore {
	t.Helper()
	s := &faultyStore{t: t, fs: vfs.NewCrashableMem(), fault: f, always: opts.Durability == engine.Always, full: []byte("full")}
	opts.FS = newHookFS(s.fs, f.inject)
	s.l = open(t, "store", opts)
	for i := range s.accounts {
		s.accounts[i].key = fmt.Appendf(nil, "account-%d", i)
		s.accounts[i].limit = 1 << 20
	}
	must(t, throttle(s.l, string(s.full), 10), s.l.Sync)
	return s
}

// client calls until something fails, and returns the error.
func (s *faultyStore) client(rng *rand.Rand) error {
	for {
		switch rng.IntN(16) {
		case 0:
			var acknowledged [4]int64
			for i := range s.accounts {
				acknowledged[i] = s.accounts[i].acknowledged.Load()
			}
			if err := s.l.Sync(); err != nil {
				return err
			}
			for i := range s.accounts {
				raise(&s.kept[i], acknowledged[i])
			}
		case 1:
			if _, err := s.l.DB().AsyncFlush(); err != nil {
				return err
			}
		case 2:
			a := &s.accounts[rng.IntN(len(s.accounts))]
			if _, err := s.l.Probe(a.key, bucket(a.limit), 1); err != nil {
				return err
			}
		default:
			if err := s.charge(1+rng.IntN(4), rng); err != nil {
				return err
			}
		}
	}
}

// charge charges n keys in one pipeline.
func (s *faultyStore) charge(n int, rng *rand.Rand) error {
	var ops []engine.Op
	var owners []*account
	for range n {
		a := &s.accounts[rng.IntN(len(s.accounts))]
		op := engine.Op{Key: a.key, Rate: bucket(a.limit), N: 1 + rng.Int64N(3)}
		a.possible.Add(op.N)
		ops, owners = append(ops, op), append(owners, a)
	}
	var err error
	for i, r := range s.l.Do(ops, nil) {
		if r.Err == nil {
			owners[i].acknowledged.Add(ops[i].N)
		} else {
			err = r.Err
		}
	}
	return err
}

// verify opens what is on the disk, and what a power cut leaves of it, and
// holds it against what the clients know.
func (s *faultyStore) verify(when string) {
	for _, percent := range []int{0, 100} {
		clone := s.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(0, 0))})
		l, err := engine.Open("store", &engine.Options{FS: clone})
		if err != nil {
			s.t.Errorf("%s, %d %% of unsynced data kept: Open: %v", when, percent, err)
			continue
		}
		for i := range s.accounts {
			a := &s.accounts[i]
			least, most := s.kept[i].Load(), a.possible.Load()
			if s.always {
				least = a.acknowledged.Load()
			}
			d, err := l.Probe(a.key, bucket(a.limit), 0)
			if got := a.limit - d.Remaining; err != nil || got < least || got > most {
				s.t.Errorf("%s, %d %% of unsynced data kept: %s has %d used, %v, want %d to %d", when, percent, a.key, got, err, least, most)
			}
			if d, err := l.Throttle(a.key, bucket(a.limit), 1); err != nil || !d.Allowed {
				s.t.Errorf("%s, %d %% of unsynced data kept: Throttle = %+v, %v", when, percent, d, err)
			}
		}
		closeChecked(s.t, l)
	}
}

// failed checks that the store has failed and says so to everybody.
func (s *faultyStore) failed() {
	s.t.Helper()
	select {
	case <-s.l.Failed():
	default:
		s.t.Error("Failed is not closed")
	}
	if err := s.l.Failure(); !errors.Is(err, engine.ErrStorage) || !errors.Is(err, s.fault.err) {
		s.t.Errorf("Failure = %v, want %v that wraps %v", err, engine.ErrStorage, s.fault.err)
	}
	errs := everyCall(s.t, s.l)
	// A denial that rests on nothing but what has long been on disk.
	_, errs["a denial"] = s.l.Throttle(s.full, bucket(10), 1)
	for name, err := range errs {
		if !errors.Is(err, engine.ErrStorage) {
			s.t.Errorf("%s = %v after the failure, want %v", name, err, engine.ErrStorage)
		}
	}
}

func (s *faultyStore) close() {
	s.t.Helper()
	if err := s.l.Close(); !errors.Is(err, engine.ErrStorage) {
		s.t.Errorf("Close = %v, want %v", err, engine.ErrStorage)
	}
	if err := s.l.Close(); err != engine.ErrClosed {
		s.t.Errorf("Close again = %v, want %v", err, engine.ErrClosed)
	}
}

// TestWriteFault has changes of the disk fail while clients call, flushes and
// compactions run. Nobody is told that something is done that isn't, nobody
// waits for ever, and nothing is answered from then on.
func TestWriteFault(t *testing.T) {
	checkLeaks(t)
	places := map[string]func(errorfs.Op) bool{
		"log create":     on("*.log", creates...),
		"log write":      on("*.log", writes...),
		"log sync":       on("*.log", syncs...),
		"table create":   on("*.sst", creates...),
		"table write":    on("*.sst", writes...),
		"table sync":     on("*.sst", syncs...),
		"manifest write": on("MANIFEST-*", writes...),
		"manifest sync":  on("MANIFEST-*", syncs...),
		"directory sync": on("store", syncs...),
		"anything":       func(op errorfs.Op) bool { return changesDisk(op) && op.Kind != errorfs.OpRemove },
	}
	seed := newSeed(t)
	for place, match := range places {
		for _, durability := range durabilities {
			for _, n := range []int64{1, 2, 9} {
				f := &fault{match: match, n: n, sticky: seed>>uint(n)&1 == 0, err: syscall.EIO}
				if seed>>uint(n+1)&1 == 0 {
					f.err = syscall.ENOSPC
				}
				t.Run(fmt.Sprintf("%s %d %v", place, n, durability), func(t *testing.T) {
					writeFault(t, f, durability, seed)
				})
			}
		}
	}
}

func writeFault(t *testing.T, f *fault, durability engine.Durability, seed uint64) {
	s := newFaultyStore(t, f, engine.Options{Durability: durability})
	if err := s.charge(3, rand.New(rand.NewPCG(seed, 0))); err != nil {
		t.Fatal(err)
	}
	f.armed.Store(true)
	var clients sync.WaitGroup
	for id := range 4 {
		clients.Go(func() {
			if err := s.client(rand.New(rand.NewPCG(seed, uint64(id)))); !errors.Is(err, engine.ErrStorage) {
				t.Errorf("a call that failed = %v, want %v", err, engine.ErrStorage)
			}
		})
	}
	clients.Wait()
	s.failed()
	s.verify("before Close")
	s.close()
	s.verify("after Close")
}

// TestFailedDiskIsLeftAlone sees that nothing is written any more behind a
// write that has failed, which could leave a gap, or a manifest that names
// tables which were removed.
func TestFailedDiskIsLeftAlone(t *testing.T) {
	checkLeaks(t)
	var changes atomic.Int64
	f := &fault{match: on("*.log", writes...), n: 1, err: syscall.EIO}
	fs := vfs.NewCrashableMem()
	l := open(t, "store", engine.Options{FS: newHookFS(fs, func(op errorfs.Op) error {
		if err := f.inject(op); err != nil {
			return err
		}
		if changesDisk(op) && f.failed.Load() > 0 {
			changes.Add(1)
		}
		return nil
	})})
	f.armed.Store(true)
	if _, err := l.Throttle([]byte("k"), bucket(10), 1); !errors.Is(err, syscall.EIO) {
		t.Errorf("Throttle = %v, want %v", err, syscall.EIO)
	}
	flushed, err := l.DB().AsyncFlush()
	if err != nil {
		t.Fatal(err)
	}
	<-flushed
	if err := l.Close(); !errors.Is(err, engine.ErrStorage) {
		t.Errorf("Close = %v, want %v", err, engine.ErrStorage)
	}
	if n := changes.Load(); n > 0 {
		t.Errorf("the disk was changed %d times after it had failed", n)
	}
}

// TestStallEnds has tables fail when memtables are full and a commit waits for
// one of them to be flushed.
func TestStallEnds(t *testing.T) {
	checkLeaks(t)
	full := make(chan struct{})
	var armed atomic.Bool
	l := open(t, "store", engine.Options{FS: newHookFS(vfs.NewMem(), func(op errorfs.Op) error {
		if armed.Load() && on("*.sst", creates...)(op) {
			<-full
			return syscall.ENOSPC
		}
		return nil
	}), Durability: engine.Interval})
	armed.Store(true)
	writer := make(chan error)
	go func() {
		for i := 0; ; i++ {
			var ops []engine.Op
			for j := range 1000 {
				key := fmt.Appendf(nil, "%d-%d-%s", i, j, strings.Repeat("k", 3900))
				ops = append(ops, engine.Op{Key: key, Rate: bucket(10), N: 1})
			}
			for _, r := range l.Do(ops, nil) {
				if r.Err != nil {
					writer <- r.Err
					return
				}
			}
		}
	}()
	const limit = 4 * 16 << 20 // bytes of memtables at which Pebble has writers wait
	for l.DB().Metrics().MemTable.Size < limit {
		runtime.Gosched()
	}
	close(full)
	if err := <-writer; !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Throttle = %v, want %v", err, syscall.ENOSPC)
	}
	if err := l.Close(); !errors.Is(err, engine.ErrStorage) {
		t.Errorf("Close = %v, want %v", err, engine.ErrStorage)
	}
}

// TestCloseFault has the last sync fail.
func TestCloseFault(t *testing.T) {
	checkLeaks(t)
	for _, durability := range durabilities {
		t.Run(durability.String(), func(t *testing.T) {
			f := &fault{match: on("*.log", syncs...), n: 1, err: syscall.EIO}
			s := newFaultyStore(t, f, engine.Options{Durability: durability, SyncInterval: 1 << 62})
			if err := s.charge(3, rand.New(rand.NewPCG(0, 0))); err != nil {
				t.Fatal(err)
			}
			f.armed.Store(true)
			s.close()
			s.verify("after Close")
		})
	}
}

// TestReadFault has reads of tables fail: for once they harm the call that
// they befall, and nothing else.
func TestReadFault(t *testing.T) {
	checkLeaks(t)
	f := &fault{match: on("*.sst", append(reads, errorfs.OpOpen)...), n: 1, err: syscall.EIO, sticky: true}
	opts := engine.Options{FS: newHookFS(vfs.NewMem(), f.inject), CacheSize: 1, BlockCacheSize: 1, Now: newManualClock(epoch).Now}
	l := open(t, "store", opts)
	stored, cached := []byte("stored"), []byte("cached")
	if _, err := l.Throttle(stored, bucket(10), 3); err != nil {
		t.Fatal(err)
	}
	flushed, err := l.DB().AsyncFlush()
	if err != nil {
		t.Fatal(err)
	}
	<-flushed
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = open(t, "store", opts)
	if _, err := l.Throttle(cached, bucket(10), 3); err != nil {
		t.Fatal(err)
	}

	f.armed.Store(true)
	ops := []engine.Op{
		{Verb: engine.OpThrottle, Key: cached, Rate: bucket(10), N: 1},
		{Verb: engine.OpThrottle, Key: stored, Rate: bucket(10), N: 1},
		{Verb: engine.OpProbe, Key: stored, Rate: bucket(10), N: 1},
		{Verb: engine.OpStat, Key: stored},
		{Verb: engine.OpReset, Key: stored},
		{Verb: engine.OpThrottle, Key: cached, Rate: bucket(10), N: 1},
	}
	for i, r := range l.Do(ops, nil) {
		if fails := string(ops[i].Key) == "stored"; fails != errors.Is(r.Err, engine.ErrStorage) || !fails && r.Err != nil {
			t.Errorf("%v of %s = %v", ops[i].Verb, ops[i].Key, r.Err)
		}
	}
	_, errScan := l.Scan(0, 10, func([]byte, engine.Stat) {})
	_, errLen := l.Len()
	for name, err := range map[string]error{"Scan": errScan, "Len": errLen} {
		if !errors.Is(err, engine.ErrStorage) {
			t.Errorf("%s = %v, want %v", name, err, engine.ErrStorage)
		}
	}
	if f.failed.Load() == 0 {
		t.Error("nothing was read from a table")
	}

	f.armed.Store(false)
	if err := l.Failure(); err != nil {
		t.Errorf("Failure = %v after reads that failed, want nil", err)
	}
	for _, want := range []struct {
		key       []byte
		remaining int64
	}{{stored, 7}, {cached, 5}} {
		if d, err := l.Probe(want.key, bucket(10), 0); err != nil || d.Remaining != want.remaining {
			t.Errorf("Probe(%s) leaves %d, %v, want %d", want.key, d.Remaining, err, want.remaining)
		}
	}
}
