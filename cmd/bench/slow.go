package main

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/engine"
)

// slowCallers are how many callers there are at once.
var slowCallers = []int{1, 64, 256, 1024}

// slowTable measures callers on a disk whose syncs take so much longer.
func slowTable(delay time.Duration) *Table {
	const syncTime, share = "sync with 1024 callers", "1024 callers, of callers/(2 x sync)"
	t := &Table{
		Section: "scale",
		Name:    fmt.Sprintf("a slow disk, +%v per sync", delay),
		Note: "Each caller has a key of its own, and waits for the disk before its next call. " +
			"A call that comes while the disk is at it waits for that sync and for its own, so callers/(2 x sync) is what there is at least if each sync is for all who wait. " +
			"The length of a sync is the mean of those of the log in the same run, with what was added.",
	}
	for _, n := range slowCallers {
		t.Columns = append(t.Columns, Column{callersOf(n), PerSecond})
	}
	t.Columns = append(t.Columns, Column{syncTime, Micros}, Column{share, Ratio})

	const gabion, raw = "gabion, always", "raw Pebble, a synced batch for each call"
	add := func(name string, open func(r *Run, fsys vfs.FS) (charge func(key []byte) error, close func() error, err error)) {
		t.Subjects = append(t.Subjects, &Subject{Name: name, Measure: func(r *Run) error {
			fsys := &slowFS{FS: vfs.Default, delay: delay}
			charge, closeStore, err := open(r, fsys)
			if err != nil {
				return err
			}
			for _, n := range slowCallers {
				var rate float64
				var sync time.Duration
				rate, sync, err = chargeOwn(r, n, fsys, charge)
				if err != nil {
					break
				}
				r.Report(callersOf(n), rate)
				if n == 1024 {
					r.Report(syncTime, float64(sync)/float64(time.Microsecond))
					r.Report(share, rate*2*sync.Seconds()/float64(n))
				}
			}
			return errors.Join(err, closeStore())
		}})
	}
	add(gabion, openSlowGabion)
	add(raw, openSlowPebble)
	t.Baseline = raw
	if delay == 5*time.Millisecond {
		t.Targets = []Target{{What: "1024 callers at +5 ms per sync, of callers/(2 x sync)", Of: Cell{gabion, share}, Bound: 0.7}}
	}
	return t
}

func callersOf(n int) string {
	if n == 1 {
		return "1 caller"
	}
	return fmt.Sprintf("%d callers", n)
}

// chargeOwn has callers charge a key of their own each, and returns how many
// calls per second there were and how long a sync of the log took.
func chargeOwn(r *Run, callers int, fsys *slowFS, charge func(key []byte) error) (rate float64, sync time.Duration, err error) {
	fsys.syncs.Store(0)
	fsys.syncing.Store(0)
	f, err := drive(r.Context, callers, longer*r.Time, func(_, caller uint64) call {
		key := make([]byte, nameLen)
		putKey(key, int(caller))
		return func() (int, error) { return 1, charge(key) }
	})
	if n := fsys.syncs.Load(); n > 0 {
		sync = time.Duration(fsys.syncing.Load() / n)
	}
	return f.perSecond(), sync, err
}

func openSlowGabion(r *Run, fsys vfs.FS) (charge func(key []byte) error, closeStore func() error, err error) {
	l, err := engine.Open(r.Dir, &engine.Options{FS: fsys})
	if err != nil {
		return nil, nil, err
	}
	return func(key []byte) error {
		d, err := l.Throttle(key, wide, 1)
		if err == nil && !d.Allowed {
			err = fmt.Errorf("the decision on %q is %+v", key, d)
		}
		return err
	}, l.Close, nil
}

func openSlowPebble(r *Run, fsys vfs.FS) (charge func(key []byte) error, closeStore func() error, err error) {
	db, err := openStore(r.Dir, fsys)
	if err != nil {
		return nil, nil, err
	}
	value := make([]byte, rawValue)
	return func(key []byte) error {
		b := db.NewBatch()
		defer b.Close()
		return errors.Join(b.Set(key, value, nil), b.Commit(pebble.Sync))
	}, db.Close, nil
}

// slowFS is a file system whose syncs take longer by delay. It measures those of
// logs.
type slowFS struct {
	vfs.FS
	delay          time.Duration
	syncs, syncing atomic.Int64 // how many, and how long all of them took in nanoseconds
}

func (fsys *slowFS) file(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	return &slowFile{f, fsys, strings.HasSuffix(name, ".log")}, nil
}

func (fsys *slowFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fsys.FS.Create(name, category)
	return fsys.file(name, f, err)
}

func (fsys *slowFS) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := fsys.FS.OpenReadWrite(name, category, opts...)
	return fsys.file(name, f, err)
}

func (fsys *slowFS) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fsys.FS.ReuseForWrite(oldname, newname, category)
	return fsys.file(newname, f, err)
}

func (fsys *slowFS) OpenDir(name string) (vfs.File, error) {
	f, err := fsys.FS.OpenDir(name)
	return fsys.file(name, f, err)
}

type slowFile struct {
	vfs.File
	fsys  *slowFS
	isLog bool
}

func (f *slowFile) Sync() error     { return f.slowly(f.File.Sync) }
func (f *slowFile) SyncData() error { return f.slowly(f.File.SyncData) }

func (f *slowFile) SyncTo(length int64) (fullSync bool, err error) {
	err = f.slowly(func() error {
		fullSync, err = f.File.SyncTo(length)
		return err
	})
	return fullSync, err
}

func (f *slowFile) slowly(sync func() error) error {
	start := time.Now()
	time.Sleep(f.fsys.delay)
	err := sync()
	if f.isLog {
		f.fsys.syncs.Add(1)
		f.fsys.syncing.Add(int64(time.Since(start)))
	}
	return err
}
