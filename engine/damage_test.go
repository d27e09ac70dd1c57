package engine_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// logBlock is what a log is made of. Damage to a block is noticed when a later
// one tells that the damaged one had been synced.
const logBlock = 32 << 10

// TestDamagedFirstLog damages the log of a store that has just been made, one
// byte at a time. Either it is refused or all that was acknowledged is there.
//
// Two kinds of damage go unnoticed by Pebble and are left out: to the log's
// last block, which looks like a write that a power cut has left half done, and
// the one bit that makes the number of an even log odd in the header of a
// record, which looks like the log's end.
func TestDamagedFirstLog(t *testing.T) {
	const batch, damages = 16, 300
	rng := rand.New(rand.NewPCG(newSeed(t), 0))
	fs := vfs.NewCrashableMem()
	l := open(t, "store", engine.Options{FS: fs, Now: tickingClock()})
	charged := 0
	for logSize(t, fs) < 3*logBlock+logBlock/2 {
		var ops []engine.Op
		for range batch {
			ops = append(ops, engine.Op{Key: fmt.Appendf(nil, "key-%d", charged), Rate: bucket(10), N: 1})
			charged++
		}
		for _, r := range l.Do(ops, nil) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
	}
	left := fs.CrashClone(vfs.CrashCloneCfg{})
	refused := 0
	for range damages {
		damaged := left.CrashClone(vfs.CrashCloneCfg{})
		at := rng.Int64N(3 * logBlock)
		damage(t, damaged, newestLog(t, damaged), at)
		l, err := engine.Open("store", &engine.Options{FS: damaged.CrashClone(vfs.CrashCloneCfg{}), Now: tickingClock()})
		if err != nil {
			refused++
			continue
		}
		if n, err := l.Len(); n != int64(charged) || err != nil {
			t.Errorf("byte %d damaged: Len = %d, %v, want %d", at, n, err, charged)
		}
		if closeChecked(t, l); t.Failed() {
			keep(t, damaged, "damaged")
			return
		}
	}
	if refused == 0 {
		t.Errorf("none of %d damaged stores was refused", damages)
	}
}

// A damagedStore is a store that a power cut has left with tables and with
// several logs that are still needed, and what its only client knows of it.
type damagedStore struct {
	*faultLife
	left    *vfs.MemFS
	newest  string  // log
	history []model // after each round, the last included
}

// newDamagedStore makes the store. Its newest log ends with many short rounds.
func newDamagedStore(t *testing.T) *damagedStore {
	t.Helper()
	s := &damagedStore{faultLife: newFaultLife(t, 0, nil, false)}
	gate := make(chan struct{})
	var closed atomic.Bool
	opts := s.options(newHookFS(s.fs, func(op errorfs.Op) error {
		if closed.Load() && on("*.sst", creates...)(op) {
			<-gate
		}
		return nil
	}))
	l, err := engine.Open("store", &opts)
	if err != nil {
		t.Fatal(err)
	}
	s.l = l
	call := func(ops ...engine.Op) {
		for _, op := range ops { // a round may be cut in the middle of a pipeline
			s.do(op)
			s.history = append(s.history, s.clone())
		}
	}
	part := func(n, long int) {
		for i := range n {
			key := func(kind string) string { return fmt.Sprintf("%s %d %s", kind, i%3, strings.Repeat("k", long)) }
			call(rated(key("rate"), 1), listed(key("list"), lifeList, 2))
			id := fmt.Sprintf("%d-%d", len(s.history), long)
			call(engine.Op{Verb: engine.OpTakeQuota, Key: []byte(key("quota")), ID: id, Quota: limit.Quota{Limit: 1000, Window: time.Hour}, N: 2})
		}
		call(forgotten(fmt.Sprintf("rate 0 %s", strings.Repeat("k", long))))
	}
	s.tick = time.Microsecond
	s.do(slices.Repeat([]engine.Op{listed("long", lifeList, 1)}, 3*limit.MaxRuns)...)
	s.tick = 0
	part(3, 10)
	flush(t, l)
	part(3, 11)
	compact(t, l)
	part(3, 12)
	flush(t, l)
	closed.Store(true)
	for i := range 2 {
		part(6, 1000+i)
		if _, err := l.DB().AsyncFlush(); err != nil {
			t.Fatal(err)
		}
	}
	part(10, 1002)
	part(6, 3)
	s.left = s.fs.CrashClone(vfs.CrashCloneCfg{})
	s.newest = newestLog(t, s.left)
	close(gate)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return s
}

// An outcome is what comes of a damage.
type outcome int

const (
	allThere outcome = iota
	byOpen           // it refuses the store
	byReads          // of what is damaged
	asBefore         // nobody tells, and what is there is what once was, as after a power cut
	silently         // nobody tells, and it is not even that
	outcomes
)

// open opens the store in fs and holds what it finds against the history.
func (s *damagedStore) open(fs vfs.FS) (outcome, error) {
	opts := s.options(fs)
	opts.BlockCacheSize = 1 << 20
	l, err := engine.Open("store", &opts)
	if err != nil {
		return byOpen, err
	}
	defer l.Close()
	switch found, _ := s.find(l, s.history); {
	case found == len(s.history)-1:
		return allThere, nil
	case found >= 0:
		return asBefore, nil
	}
	for _, r := range l.Do(s.looks(), nil) {
		if errors.Is(r.Err, engine.ErrStorage) || errors.Is(r.Err, engine.ErrCorrupt) {
			return byReads, r.Err
		}
	}
	return silently, nil
}

// size returns the size of a file of the store.
func (s *damagedStore) size(t *testing.T, name string) int64 {
	t.Helper()
	info, err := s.left.Stat("store/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

// TestTruncatedLog cuts off the newest log, byte by byte: what a power cut may
// leave. What is there then is what there was after one of the rounds.
func TestTruncatedLog(t *testing.T) {
	s := newDamagedStore(t)
	rng := rand.New(rand.NewPCG(newSeed(t), 0))
	name := path.Base(newestLog(t, s.left))
	size := s.size(t, name)
	var counts [outcomes]int
	all, seam, one := int64(1000), int64(12), 400 // bytes at the end, around the seams of blocks, and in how many elsewhere
	if testing.Short() {
		all, seam, one = 20, 2, 4000
	}
	for end := size; end >= 0; end-- {
		switch off := end % logBlock; {
		case end > size-all || off < seam || off > logBlock-seam:
		case rng.IntN(one) > 0:
			continue
		}
		fs := s.left.CrashClone(vfs.CrashCloneCfg{})
		truncate(t, fs, "store/"+name, end)
		o, err := s.open(fs.CrashClone(vfs.CrashCloneCfg{}))
		if counts[o]++; o != asBefore && !(o == allThere && end == size) {
			t.Errorf("%s cut off at %d of %d: outcome %d, %v, want what there was after a round", name, end, size, o, err)
			keep(t, fs, "truncated")
			return
		}
	}
	t.Logf("%d truncations", counts[asBefore]+counts[allThere])
}

// A damageTo is damage to a part of a file.
type damageTo struct {
	at, size int64
	bits     byte // to flip, of one byte; or to zero all if there are none
}

// damages makes up some damages to a file of this size.
func damages(rng *rand.Rand, size int64, bits []byte) (all []damageTo) {
	flips, blocks := 80, int64(20)
	if testing.Short() {
		flips, blocks = 5, 2
	}
	for range flips {
		all = append(all, damageTo{rng.Int64N(size), 1, bits[rng.IntN(len(bits))]})
	}
	for _, block := range []int64{512, 4096} {
		for at := int64(0); at < size; at += block {
			if n := (size + block - 1) / block; rng.Int64N(n) < blocks {
				all = append(all, damageTo{at, min(block, size-at), 0})
			}
		}
	}
	return all
}

// silent tells whether Pebble can't tell this damage from what a power cut
// leaves of a file: see "What damage is found" in DESIGN.md.
func (s *damagedStore) silent(name string, size int64, d damageTo) bool {
	switch {
	case "store/"+name == s.newest:
		return d.at+d.size > size/logBlock*logBlock
	case strings.HasPrefix(name, "MANIFEST-"):
		return true
	}
	return false
}

// TestDamagedFiles damages each file of a store, in many places and in several
// ways. Open refuses the store and says what to do, or reads tell of the damage,
// or all is there, but for damage that can't be told from a power cut. Check
// finds what Open or reads have found.
func TestDamagedFiles(t *testing.T) {
	s := newDamagedStore(t)
	rng := rand.New(rand.NewPCG(newSeed(t), 0))
	names, err := s.left.List("store")
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	for _, name := range names {
		size := s.size(t, name)
		if size == 0 {
			continue
		}
		bits := []byte{1, 2, 4, 8, 16, 32, 64, 128}
		if strings.HasSuffix(name, ".log") {
			bits = bits[1:] // the first makes the number of an even log odd
		}
		var counts [outcomes]int
		for _, d := range damages(rng, size, bits) {
			fs := s.left.CrashClone(vfs.CrashCloneCfg{})
			change(t, fs, "store/"+name, d)
			opts := s.options(fs)
			r, errCheck := engine.Check("store", &opts, nil)
			o, err := s.open(fs.CrashClone(vfs.CrashCloneCfg{}))
			counts[o]++
			switch {
			case o == silently || o == asBefore:
				if !s.silent(name, size, d) {
					t.Errorf("%s, %+v: something is missing, and nobody says so", name, d)
				}
			case o == byOpen && !strings.HasPrefix(name, "OPTIONS-"):
				foreign := strings.HasPrefix(name, "MANIFEST-") && errors.Is(err, engine.ErrForeign) // without its first table
				if !foreign && !(errors.Is(err, engine.ErrDamaged) && strings.Contains(err.Error(), "backup")) {
					t.Errorf("%s, %+v: Open = %v, want %v and what to do", name, d, err, engine.ErrDamaged)
				}
				if number, _, isLog := strings.Cut(name, ".log"); isLog && !strings.Contains(err.Error(), number) {
					t.Errorf("%s, %+v: Open = %v, which does not name the file", name, d, err)
				}
			}
			if (o == byOpen || o == byReads) && r.Damaged == 0 && errCheck == nil {
				t.Errorf("%s, %+v: Check finds nothing, and Open or reads say %v", name, d, err)
			}
			if t.Failed() {
				keep(t, fs, "damaged")
				return
			}
		}
		t.Logf("%s, %d bytes: %d refused, %d told by reads, %d all there, %d as before a round, %d otherwise silent", name, size,
			counts[byOpen], counts[byReads], counts[allThere], counts[asBefore], counts[silently])
	}
}

// TestMissingFiles removes each file of a store.
func TestMissingFiles(t *testing.T) {
	s := newDamagedStore(t)
	names, err := s.left.List("store")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		want := []error{engine.ErrDamaged}
		switch {
		case strings.HasPrefix(name, "marker.manifest."):
			want = []error{engine.ErrForeign}
		case name == "LOCK" || strings.HasPrefix(name, "OPTIONS-"):
			want = nil
		case strings.HasSuffix(name, ".log"):
			continue // Pebble does not know which logs there were
		}
		fs := s.left.CrashClone(vfs.CrashCloneCfg{})
		if err := fs.Remove("store/" + name); err != nil {
			t.Fatal(err)
		}
		syncNames(t, fs)
		opts := s.options(fs.CrashClone(vfs.CrashCloneCfg{}))
		r, errCheck := engine.Check("store", &opts, nil)
		o, err := s.open(fs)
		if want == nil {
			if o != allThere || r.Damaged > 0 || errCheck != nil {
				t.Errorf("without %s: outcome %d, %v, and Check finds %v, %v", name, o, err, r.Damage, errCheck)
			}
			continue
		}
		if o != byOpen || !errors.Is(err, want[0]) {
			t.Errorf("without %s: outcome %d, %v, want %v", name, o, err, want[0])
		}
		if r.Damaged == 0 && errCheck == nil {
			t.Errorf("without %s: Check finds nothing", name)
		}
	}
}

// TestTruncatedTable cuts off the end of each table of a store.
func TestTruncatedTable(t *testing.T) {
	s := newDamagedStore(t)
	names, err := s.left.List("store")
	if err != nil {
		t.Fatal(err)
	}
	tables := 0
	for _, name := range names {
		if !strings.HasSuffix(name, ".sst") {
			continue
		}
		tables++
		fs := s.left.CrashClone(vfs.CrashCloneCfg{})
		truncate(t, fs, "store/"+name, s.size(t, name)-1)
		syncNames(t, fs)
		opts := s.options(fs.CrashClone(vfs.CrashCloneCfg{}))
		if r, err := engine.Check("store", &opts, nil); err != nil || r.Damaged == 0 {
			t.Errorf("with %s cut off Check finds %d, %v", name, r.Damaged, err)
		}
		if o, err := s.open(fs); o != byOpen || !errors.Is(err, engine.ErrDamaged) || !strings.Contains(err.Error(), name) {
			t.Errorf("with %s cut off: outcome %d, %v, want %v of %s", name, o, err, engine.ErrDamaged, name)
		}
	}
	if tables == 0 {
		t.Error("there are no tables")
	}
}

// change damages a part of a file for good.
func change(t *testing.T, fs vfs.FS, name string, d damageTo) {
	t.Helper()
	f, err := fs.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, d.size)
	if _, err := f.ReadAt(b, d.at); err != nil {
		t.Fatal(err)
	}
	if d.bits == 0 {
		clear(b)
	} else {
		b[0] ^= d.bits
	}
	if _, err := f.WriteAt(b, d.at); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

// truncate cuts off a file for good.
func truncate(t *testing.T, fs vfs.FS, name string, size int64) {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(f, b); err != nil {
		t.Fatal(err)
	}
	g, err := fs.Create(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	_, errWrite := g.Write(b)
	if err := errors.Join(errWrite, g.Sync(), f.Close(), g.Close()); err != nil {
		t.Fatal(err)
	}
	syncNames(t, fs)
}

// syncNames makes the names in the store's directory durable.
func syncNames(t *testing.T, fs vfs.FS) {
	t.Helper()
	dir, err := fs.OpenDir("store")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		t.Fatal(err)
	}
}

func logSize(t *testing.T, fs vfs.FS) int64 {
	t.Helper()
	info, err := fs.Stat(newestLog(t, fs))
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func newestLog(t *testing.T, fs vfs.FS) string {
	t.Helper()
	names, err := fs.List("store")
	if err != nil {
		t.Fatal(err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasSuffix(name, ".log") })
	return fs.PathJoin("store", slices.Max(names))
}

// damage flips every other bit of a byte of a file.
func damage(t *testing.T, fs vfs.FS, name string, at int64) {
	t.Helper()
	change(t, fs, name, damageTo{at, 1, 0b0101_0101})
}
