package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sync/errgroup"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// scaleTables sets stores of different sizes side by side, and disks of
// different speeds.
func scaleTables() []*Table {
	few, many, most := &filling{keys: 10_000}, &filling{keys: 1_000_000}, &filling{keys: 10_000_000}
	return []*Table{
		keysTable(few, many, most, math.MaxInt64),
		bytesTable(most),
		slowTable(time.Millisecond),
		slowTable(5 * time.Millisecond),
	}
}

// The columns of keysTable, of which bytesTable has those per key.
const (
	keysDecisions = "decisions"
	keysOnDisk    = "on disk per key"
	keysInTables  = "in tables per key"
	keysPeak      = "peak memory"
	keysLive      = "live memory"
	keysAllowed   = "memory by the options"
	keysLog       = "log"
	keysReopened  = "reopened"
)

// keysTable measures stores of so many keys: few, many and most, all of them in
// the cache, and most with a cache for many, the second time with one for blocks
// that holds all of them. They are killed when their log has grown to so many bytes,
// or as large as it gets.
func keysTable(few, many, most *filling, log int64) *Table {
	t := &Table{
		Section: "scale",
		Name:    "keys in the store",
		Note: fmt.Sprintf("gabion, always: 64 callers charge 32 keys at a time, drawn uniformly, for %d times as long as elsewhere. "+
			"Keys of 16 bytes that live for 12 to 24 hours, compacted before. 512 MiB hold all blocks of ten million, the default of 160 MiB a part. "+
			"Memory is that of a process that does nothing else: the most that was resident, and what is live of the Go heap, with Pebble's caches where they are on it. "+
			"By the options it is the caches, and 64 MiB for what blocks take beyond what they count for; Go's garbage collector takes up to as much again, unless GOGC or GOMEMLIMIT say otherwise. "+
			"Reopened: from a kill with the log at its largest to the first decision, with what was written still in the system's cache.", longer),
		Rounds: 3,
		Columns: []Column{
			{keysDecisions, PerSecond},
			{keysOnDisk, Bytes},
			{keysInTables, Bytes},
			{keysPeak, Megabytes},
			{keysLive, Megabytes},
			{keysAllowed, Megabytes},
			{keysLog, Megabytes},
			{keysReopened, Seconds},
		},
	}
	add := func(name string, f *filling, cached int, blocks int64) string {
		t.Subjects = append(t.Subjects, &Subject{Name: name, Measure: func(r *Run) error { return measureKeys(r, f, cached, blocks, log) }})
		return name
	}
	add(inShort(few.keys)+" keys", few, few.keys, engine.DefaultBlockCacheSize)
	warm := add(inShort(many.keys)+" keys", many, many.keys, engine.DefaultBlockCacheSize)
	all := add(inShort(most.keys)+" keys", most, most.keys, engine.DefaultBlockCacheSize)
	part := add(fmt.Sprintf("%s keys, a cache for %s", inShort(most.keys), inShort(many.keys)), most, many.keys, engine.DefaultBlockCacheSize)
	add(part+", 512 MiB of blocks", most, many.keys, 512<<20)
	t.Targets = []Target{
		{What: "decisions with " + all + ", of those with " + warm, Of: Cell{all, keysDecisions}, To: Cell{warm, keysDecisions}, Bound: 0.6},
		{What: "decisions with " + part + ", of those with " + warm, Of: Cell{part, keysDecisions}, To: Cell{warm, keysDecisions}, Bound: 0.3},
		{What: "bytes on disk per key with " + all, Of: Cell{all, keysOnDisk}, Bound: 35, AtMost: true},
		{What: "live memory with " + all + ", of what the options allow", Of: Cell{all, keysLive}, To: Cell{all, keysAllowed}, Bound: 1, AtMost: true},
		{What: "live memory with " + part + ", of what the options allow", Of: Cell{part, keysLive}, To: Cell{part, keysAllowed}, Bound: 1, AtMost: true},
		{What: "seconds to reopen " + all + " after a kill", Of: Cell{all, keysReopened}, Bound: 2, AtMost: true},
		{What: "seconds to reopen " + part + " after a kill", Of: Cell{part, keysReopened}, Bound: 2, AtMost: true},
	}
	return t
}

// bytesTable measures how much room different keys and rates take on disk, beside
// plain ones.
func bytesTable(plain *filling) *Table {
	const whole, fraction, random = "whole nanoseconds", "fractions of a nanosecond", "whole nanoseconds, random keys"
	t := &Table{
		Section: "scale",
		Name:    "bytes on disk of " + inShort(plain.keys) + " keys",
		Note: "Compacted, by what a rate's emission interval is: 1,000 per second, or 3,000,000,019. " +
			"Keys of 16 bytes that live for 12 to 24 hours: a prefix and 12 digits, or random bytes, which can't be compressed.",
		Rounds:  1,
		Columns: []Column{{keysOnDisk, Bytes}, {keysInTables, Bytes}},
		Targets: []Target{
			{What: "bytes on disk per key with rates of whole nanoseconds", Of: Cell{whole, keysOnDisk}, Bound: 35, AtMost: true},
			{What: "bytes on disk per key with rates of fractions of a nanosecond", Of: Cell{fraction, keysOnDisk}, Bound: 45, AtMost: true},
		},
	}
	for _, s := range []struct {
		name string
		*filling
	}{
		{whole, plain},
		{fraction, &filling{keys: plain.keys, fractions: true}},
		{random, &filling{keys: plain.keys, random: true}},
	} {
		t.Subjects = append(t.Subjects, &Subject{Name: s.name, Measure: s.prepare})
	}
	return t
}

// inShort returns a number as 10 k or 10 M.
func inShort(n int) string {
	switch {
	case n >= 1_000_000 && n%1_000_000 == 0:
		return strconv.Itoa(n/1_000_000) + " M"
	case n >= 1000 && n%1000 == 0:
		return strconv.Itoa(n/1000) + " k"
	}
	return strconv.Itoa(n)
}

// fractionRate is never used up either. Its emission interval is a fraction of a
// nanosecond.
var fractionRate = limit.Rate{Burst: 1 << 62, Count: 3_000_000_019, Period: time.Second}

// putRandomKey does what putKey does, with keys that have no pattern.
func putRandomKey(dst []byte, i int) {
	rng := rand.NewPCG(1, uint64(i))
	for j := range nameLen / 8 {
		for b, v := 0, rng.Uint64(); b < 8; b++ {
			dst[8*j+b] = byte(v >> (8 * b))
		}
	}
}

// newOps returns n operations that charge rate, each with a key to be written.
func newOps(n int, rate limit.Rate) []engine.Op {
	keys := make([]byte, n*nameLen)
	ops := make([]engine.Op, n)
	for i := range ops {
		ops[i] = engine.Op{Verb: engine.OpThrottle, Key: keys[i*nameLen : (i+1)*nameLen], Rate: rate, N: 1}
	}
	return ops
}

// decide carries out ops, all of which are to be allowed, or denied.
func decide(l *engine.Limiter, ops []engine.Op, results []engine.Result, allowed bool) ([]engine.Result, error) {
	results = l.Do(ops, results[:0])
	for i := range results {
		switch r := &results[i]; {
		case r.Err != nil:
			return results, r.Err
		case r.Decision.Allowed != allowed:
			return results, fmt.Errorf("the decision on %q is %+v", ops[i].Key, r.Decision)
		}
	}
	return results, nil
}

// eachPart calls fn with the parts of 0 to just before n, several at once, and
// with ops for as many keys, under rate, to be used by that call alone.
func eachPart(ctx context.Context, n int, rate limit.Rate, fn func(first int, ops []engine.Op) error) error {
	const pipeline = 4096
	var next atomic.Int64
	var group errgroup.Group
	for range 2 * runtime.GOMAXPROCS(0) {
		group.Go(func() error {
			ops := newOps(pipeline, rate)
			for {
				first := int(next.Add(pipeline)) - pipeline
				if first >= n || ctx.Err() != nil {
					return ctx.Err()
				}
				if err := fn(first, ops[:min(pipeline, n-first)]); err != nil {
					return err
				}
			}
		})
	}
	return group.Wait()
}

// A filling is what stores are filled with. That takes longer than to measure
// them, so it is done once and copied.
type filling struct {
	keys      int
	fractions bool // rates are of fractions of a nanosecond
	random    bool // keys are random bytes

	dir string // the store that is copied; "" until there is one
}

// prepare puts a compacted store into the directory of r, and reports its size.
func (f *filling) prepare(r *Run) error {
	if f.dir == "" {
		dir, err := os.MkdirTemp(filepath.Dir(r.Dir), "filled-")
		if err != nil {
			return err
		}
		if err := f.fill(r.Context, dir); err != nil {
			os.RemoveAll(dir)
			return fmt.Errorf("fill the store: %w", err)
		}
		f.dir = dir
	}
	if err := copyStore(r.Dir, f.dir); err != nil {
		return err
	}
	return reportBytes(r, f.keys)
}

// copyStore copies a closed store into a directory that is there. Its tables, which
// nobody ever changes, are linked.
func copyStore(to, from string) error {
	files, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, f := range files {
		at, source := filepath.Join(to, f.Name()), filepath.Join(from, f.Name())
		if filepath.Ext(f.Name()) == ".sst" {
			err = os.Link(source, at)
		} else {
			var b []byte
			if b, err = os.ReadFile(source); err == nil {
				err = os.WriteFile(at, b, 0o666)
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// fill makes a store in dir, each key of which is charged with half a day to a
// day, and compacts it.
func (f *filling) fill(ctx context.Context, dir string) (err error) {
	// Each key is looked for first, so all of the tables had best be in memory.
	l, err := engine.Open(dir, &engine.Options{Durability: engine.Never, CacheSize: 1, BlockCacheSize: 1 << 30, NoPurge: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	rate, write := wide, putKey
	if f.fractions {
		rate = fractionRate
	}
	if f.random {
		write = putRandomKey
	}
	day := 24 * 60 * 60 * rate.Count // both are rates per second
	err = eachPart(ctx, f.keys, rate, func(first int, ops []engine.Op) error {
		rng := rand.New(rand.NewPCG(2, uint64(first)))
		for i := range ops {
			write(ops[i].Key, first+i)
			ops[i].N = day/2 + rng.Int64N(day/2)
		}
		_, err := decide(l, ops, nil, true)
		return err
	})
	if err == nil {
		err = l.Compact(ctx, nil)
	}
	return err
}

// reportBytes reports what the closed store of r takes on disk, without its log,
// which has nothing in it that the tables have not.
func reportBytes(r *Run, keys int) error {
	var tables, all int64
	err := filepath.WalkDir(r.Dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasSuffix(d.Name(), ".log") {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		all += info.Size()
		if strings.HasSuffix(d.Name(), ".sst") {
			tables += info.Size()
		}
		return nil
	})
	if err != nil {
		return err
	}
	r.Report(keysOnDisk, float64(all)/float64(keys))
	r.Report(keysInTables, float64(tables)/float64(keys))
	return nil
}

// measureKeys measures a store of what f fills it with, a cache for so many keys,
// and one of so many bytes for blocks.
func measureKeys(r *Run, f *filling, cached int, blocks, log int64) error {
	if err := f.prepare(r); err != nil {
		return err
	}
	size, err := cacheSize(cached)
	if err != nil {
		return err
	}
	job := storeJob{Dir: r.Dir, Keys: f.keys, Cached: cached, CacheSize: size, Blocks: blocks, Time: longer * r.Time, Log: log}
	figures, err := job.run(r.Context)
	if err != nil {
		return err
	}
	const mb = 1e6
	r.Report(keysDecisions, figures.Decisions)
	if figures.Peak > 0 {
		r.Report(keysPeak, float64(figures.Peak)/mb)
	}
	r.Report(keysLive, float64(figures.Live)/mb)
	r.Report(keysAllowed, float64(size+blocks+besides)/mb)

	fsys := &logFS{FS: vfs.Default}
	start := time.Now()
	l, err := engine.Open(r.Dir, job.options(fsys))
	if err != nil {
		return err
	}
	ops := newOps(min(f.keys, 1000), usedUp)
	for i := range ops {
		putKey(ops[i].Key, i*(f.keys/len(ops)))
	}
	_, err = decide(l, ops[:1], nil, false)
	r.Report(keysReopened, time.Since(start).Seconds())
	r.Report(keysLog, float64(fsys.moved.Load())/mb)
	if err == nil {
		_, err = decide(l, ops, nil, false)
	}
	return errors.Join(err, l.Close())
}

// besides is what a store takes in memory beside its caches, in which memtables
// count.
const besides = 64 << 20

// cacheSize returns the size of a cache that holds so many keys. It is dealt to
// 64 shards in equal parts, and keys are dealt to them by their hash: so there has
// to be room for those that get more, by five standard deviations.
func cacheSize(keys int) (int64, error) {
	l, err := engine.Open("one", &engine.Options{FS: vfs.NewMem()})
	if err != nil {
		return 0, err
	}
	ops := newOps(1, wide)
	putKey(ops[0].Key, 0)
	_, err = decide(l, ops, nil, true)
	entry := l.Metrics().CacheBytes
	n := float64(keys)
	return int64((n + 5*math.Sqrt(64*n)) * float64(entry)), errors.Join(err, l.Close())
}

// A storeJob is what another process, which is this program, does with a store
// that is there: it charges its keys, fills its log and dies.
type storeJob struct {
	Dir          string
	Keys, Cached int
	CacheSize    int64
	Blocks       int64 // the size of the cache of blocks
	Time         time.Duration
	Log          int64 // how large the log is to grow, in bytes, if it can
}

// storeFigures are what it has measured.
type storeFigures struct {
	Decisions  float64 // per second
	Peak, Live int64   // bytes of memory; Peak is 0 where the system does not tell
}

// storeJobEnv is the environment variable that has a process of this program do
// a storeJob and nothing else.
const storeJobEnv = "GABION_BENCH_STORE_JOB"

// run has another process do j.
func (j *storeJob) run(ctx context.Context) (f storeFigures, err error) {
	text, err := json.Marshal(j)
	if err != nil {
		return f, err
	}
	program, err := os.Executable()
	if err != nil {
		return f, err
	}
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = append(os.Environ(), storeJobEnv+"="+string(text))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	if bad := json.Unmarshal(stdout.Bytes(), &f); bad != nil {
		return f, fmt.Errorf("the process that has the store open: %w: %s", err, stderr.Bytes())
	}
	if err == nil {
		return f, errors.New("the process that has the store open was to be killed, and was not")
	}
	return f, ctx.Err()
}

// doStoreJob does a job in this process, writes the figures to stdout and does
// not return unless something is wrong.
func doStoreJob(text string, stdout io.Writer) error {
	var j storeJob
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	fsys := &logFS{FS: vfs.Default}
	l, err := engine.Open(j.Dir, j.options(fsys))
	if err != nil {
		return err
	}
	var f storeFigures
	if err := warmUp(l); err != nil {
		return err
	}
	missed := l.Metrics().CacheMisses
	if f.Decisions, err = j.charge(l, j.Time); err != nil {
		return err
	}
	if missed = l.Metrics().CacheMisses - missed; j.Cached == j.Keys && missed > 0 {
		return fmt.Errorf("%d decisions did not find their key in the cache, which was to hold all", missed)
	}
	f.Peak = peakResident()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	f.Live = int64(m.HeapAlloc)

	// Without flushes the log grows until the memtables are full, and no
	// decision comes back any more. There is most room in a store that was just
	// opened, since Pebble's first memtables are small and come on top.
	if err := l.Close(); err != nil {
		return err
	}
	if l, err = engine.Open(j.Dir, j.options(fsys)); err != nil {
		return err
	}
	fsys.moved.Store(0)
	fsys.held.Store(true)
	go j.charge(l, math.MaxInt64)
	grown := time.Now()
	for last := int64(0); last < j.Log && time.Since(grown) < time.Second; time.Sleep(10 * time.Millisecond) {
		if now := fsys.moved.Load(); now != last {
			last, grown = now, time.Now()
		}
	}
	if err := json.NewEncoder(stdout).Encode(f); err != nil {
		return err
	}
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		return err
	}
	if err := self.Kill(); err != nil {
		return err
	}
	select {}
}

func (j *storeJob) options(fsys vfs.FS) *engine.Options {
	return &engine.Options{CacheSize: j.CacheSize, BlockCacheSize: j.Blocks, FS: fsys}
}

// warmUp fills the cache of l. It takes the keys in the order of the store, since
// a block of a table is read once so, and not once for each of its keys.
func warmUp(l *engine.Limiter) error {
	const pipeline = 4096
	var ops []engine.Op
	var results []engine.Result
	for cursor := 0; ; {
		ops = ops[:0]
		next, err := l.Scan(cursor, pipeline, func(key []byte, _ engine.Stat) {
			ops = append(ops, engine.Op{Verb: engine.OpThrottle, Key: bytes.Clone(key), Rate: usedUp, N: 1})
		})
		if err != nil {
			return err
		}
		if results, err = decide(l, ops, results, false); err != nil || next == 0 {
			return err
		}
		cursor = next
	}
}

// charge charges keys and returns how many per second.
func (j *storeJob) charge(l *engine.Limiter, length time.Duration) (float64, error) {
	const callers, pipeline = 64, 32
	f, err := drive(context.Background(), callers, length, func(turn, caller uint64) call {
		rng := rand.New(rand.NewPCG(turn, caller))
		ops := newOps(pipeline, wide)
		var results []engine.Result
		return func() (n int, err error) {
			for i := range ops {
				putKey(ops[i].Key, rng.IntN(j.Keys))
			}
			results, err = decide(l, ops, results, true)
			return len(ops), err
		}
	})
	return f.perSecond(), err
}

// peakResident returns the most memory of this process that was resident at
// once, in bytes, or 0 if the system does not tell. What getrusage tells would be
// that of the process that has started this one, if it was more.
func peakResident() int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		var kb int64
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kb); err == nil {
			return kb << 10
		}
	}
	return 0
}

// logFS counts what is written to logs and read from them, and can hold back
// tables.
type logFS struct {
	vfs.FS
	moved atomic.Int64 // bytes
	held  atomic.Bool
}

func (fsys *logFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if fsys.held.Load() && strings.HasSuffix(name, ".sst") {
		select {}
	}
	f, err := fsys.FS.Create(name, category)
	return fsys.log(name, f, err)
}

func (fsys *logFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fsys.FS.ReuseForWrite(oldname, newname, category)
	return fsys.log(newname, f, err)
}

func (fsys *logFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := fsys.FS.Open(name, opts...)
	return fsys.log(name, f, err)
}

func (fsys *logFS) log(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil || !strings.HasSuffix(name, ".log") {
		return f, err
	}
	return &countedFile{f, &fsys.moved}, nil
}

type countedFile struct {
	vfs.File
	moved *atomic.Int64
}

func (f *countedFile) Write(p []byte) (int, error) {
	n, err := f.File.Write(p)
	f.moved.Add(int64(n))
	return n, err
}

func (f *countedFile) Read(p []byte) (int, error) {
	n, err := f.File.Read(p)
	f.moved.Add(int64(n))
	return n, err
}
