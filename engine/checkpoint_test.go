package engine_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine"
)

// takenTo makes a checkpoint of l, which lies in fs, and returns what a power cut
// right behind it leaves: a file system in which the checkpoint is "store".
func takenTo(t *testing.T, l *engine.Limiter, fs *vfs.MemFS, dir string) *vfs.MemFS {
	t.Helper()
	if err := l.Checkpoint(t.Context(), dir); err != nil {
		t.Fatalf("Checkpoint: %v", err)
	}
	left, err := cutTo(fs, dir)
	if err != nil {
		t.Fatal(err)
	}
	must(t, func() error { return fs.RemoveAll(dir) })
	checkWhole(t, left, "store")
	return left
}

// cutTo returns what a power cut leaves in dir, as the directory "store".
func cutTo(fs *vfs.MemFS, dir string) (*vfs.MemFS, error) {
	left := vfs.NewCrashableMem()
	_, err := vfs.Clone(fs.CrashClone(vfs.CrashCloneCfg{}), left, dir, "store", vfs.CloneSync)
	root, errOpen := left.OpenDir("/")
	return left, errors.Join(err, errOpen, root.Sync(), root.Close())
}

// checkWhole checks that nothing is wrong with the store in dir.
func checkWhole(t *testing.T, fs vfs.FS, dir string) {
	t.Helper()
	r, err := engine.Check(dir, &engine.Options{FS: fs, Now: func() time.Time { return epoch }}, nil)
	if err != nil || r.Damaged > 0 {
		t.Errorf("Check(%s) = %+v, %v, want no damage", dir, r, err)
	}
}

// TestCheckpointPrefix makes checkpoints while a client calls, one call after the
// other, and the store flushes, purges and compacts. Each holds what the first
// operations have led to, up to one of them, and all that were answered before
// it.
func TestCheckpointPrefix(t *testing.T) {
	n := 15
	if testing.Short() {
		n = 5
	}
	for _, durability := range durabilities {
		t.Run(durability.String(), func(t *testing.T) {
			checkLeaks(t)
			seed := newSeed(t)
			rng := rand.New(rand.NewPCG(seed, 1))
			fs, tr, d := vfs.NewCrashableMem(), newTrace(seed), new(diary)
			d.add(tr)
			opts := engine.Options{
				FS:  newHookFS(fs, func(errorfs.Op) error { return nil }), // that of a log that is used again, above all
				Now: tr.clock.Now, Durability: durability, SyncInterval: time.Millisecond, CacheSize: rng.Int64N(2), PurgeWait: 1,
			}
			opts.UseSmallMemtables()
			l := open(t, "store", opts)
			var others sync.WaitGroup
			stop := make(chan struct{})
			defer others.Wait()
			defer close(stop)
			others.Go(func() { d.write(t, l, tr, newCutter(rng), stop) })
			others.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						must(t, l.DB().Flush, func() error { return l.Purge(t.Context()) }, func() error { return l.Compact(t.Context(), nil) })
					}
				}
			})
			for i := range n {
				if !awaitAnswers(t, d) {
					return
				}
				_, least, _ := d.read()
				left := takenTo(t, l, fs, "backups/new")
				states, _, _ := d.read()
				c, err := engine.Open("store", &engine.Options{FS: left, Now: func() time.Time { return epoch }})
				if err != nil {
					t.Fatalf("checkpoint %d: Open: %v", i, err)
				}
				if shown := picturing(c); !slices.ContainsFunc(states[least:], func(s diaryState) bool { return shown.shows(s.keys) }) {
					t.Errorf("checkpoint %d is none of what there was from operation %d to %d", i, least, len(states)-1)
					keep(t, left, "checkpoint")
				}
				closeChecked(t, c)
			}
		})
	}
}

// awaitAnswers waits until d's client has been answered some more, and returns
// false when it has given up.
func awaitAnswers(t *testing.T, d *diary) bool {
	_, before, _ := d.read()
	for !t.Failed() {
		if _, answered, _ := d.read(); answered >= before+20 {
			return true
		}
		runtime.Gosched()
	}
	return false
}

// TestCheckpointOfGrowingLog writes whenever the checkpoint is about to read on
// in a log, one that is used again and holds records of another behind its own.
// What the checkpoint has read of these must not lie before what was written
// since.
func TestCheckpointOfGrowingLog(t *testing.T) {
	const batch = 700 // which take less of the log than is read of it at once
	var l *engine.Limiter
	var armed atomic.Bool
	grown, charged := 0, 0
	grow := func() {
		ops := make([]engine.Op, batch)
		for i := range ops {
			ops[i] = engine.Op{Key: fmt.Appendf(nil, "key-%d", charged+i), Rate: bucket(10), N: 1}
		}
		for _, r := range l.Do(ops, nil) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		charged += batch
	}
	fs := vfs.NewCrashableMem()
	l = open(t, "store", engine.Options{NoPurge: true, Now: tickingClock(), FS: newHookFS(fs, func(op errorfs.Op) error {
		if armed.Load() && op.Kind == errorfs.OpFileRead && strings.HasSuffix(op.Path, ".log") {
			armed.Store(false)
			grow()
			grown++
			armed.Store(true)
		}
		return nil
	})})
	for range 3 {
		for range 10 {
			grow()
		}
		flush(t, l)
	}
	grow()
	must(t, throttle(l, "k", 3))
	before := charged
	armed.Store(true)
	left := takenTo(t, l, fs, "backup")
	armed.Store(false)
	if grown == 0 {
		t.Fatal("the log was not read")
	}
	used := scanAll(t, open(t, "store", engine.Options{FS: left, Now: tickingClock()}))
	if got := len(used) - 1; used["k"] != 3 || got < before {
		t.Errorf("the checkpoint has %d keys and %d used of k, want at least %d, and 3", got, used["k"], before)
	}
}

// TestPowerCutWhileCheckpointing cuts the power at each change of the disk that a
// checkpoint takes. Either there is none or a whole one.
func TestPowerCutWhileCheckpointing(t *testing.T) {
	for _, linked := range []bool{true, false} {
		t.Run(fmt.Sprintf("linked=%t", linked), func(t *testing.T) {
			fs := vfs.NewCrashableMem()
			cuts := newCuts(t, fs)
			l := open(t, "store", engine.Options{NoPurge: true, Now: tickingClock(), FS: newHookFS(fs, func(op errorfs.Op) error {
				_ = cuts.hook(op)
				if !linked && op.Kind == errorfs.OpLink {
					return syscall.EXDEV
				}
				return nil
			})})
			must(t, throttle(l, "k", 2))
			flush(t, l)
			compact(t, l) // or that goes on meanwhile, and a MemFS hangs that is cloned in the middle of a Link
			must(t, throttle(l, "k", 1))
			cuts.check("backups/new", 3, func() error { return l.Checkpoint(t.Context(), "backups/new") })
		})
	}
}

func exists(t *testing.T, fsys vfs.FS, name string) bool {
	t.Helper()
	_, err := fsys.Stat(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// TestCheckpointFault has each operation on the checkpoint's side fail, one at a
// time and all from one on. The store goes on as if nothing had been, and the
// next checkpoint succeeds.
func TestCheckpointFault(t *testing.T) {
	for _, linked := range []bool{true, false} {
		for _, sticky := range []bool{false, true} {
			t.Run(fmt.Sprintf("linked=%t sticky=%t", linked, sticky), func(t *testing.T) {
				checkLeaks(t)
				f := &fault{err: syscall.ENOSPC, sticky: sticky, match: func(op errorfs.Op) bool {
					return strings.HasPrefix(op.Path, "backups") || op.Kind == errorfs.OpLink
				}}
				fs := vfs.NewMem()
				var befell errorfs.Op // the last that has failed
				l := open(t, "store", engine.Options{NoPurge: true, Now: tickingClock(), FS: newHookFS(fs, func(op errorfs.Op) error {
					if !linked && op.Kind == errorfs.OpLink {
						return syscall.EXDEV
					}
					err := f.inject(op)
					if err != nil {
						befell = op
					}
					return err
				})})
				must(t, throttle(l, "k", 2))
				flush(t, l)
				failed, n := 0, int64(1)
				for more := true; more; n++ {
					before := failed
					more = checkpointFault(t, l, fs, f, n, &failed)
					// A table that can't be linked is copied.
					if more && failed == before && befell.Kind != errorfs.OpLink && befell.Kind != errorfs.OpFileClose {
						t.Errorf("the checkpoint succeeds in spite of a fault in %s", place(befell))
					}
				}
				t.Logf("%d of %d faults failed the checkpoint", failed, n-1)
				if failed < 10 {
					t.Errorf("only %d faults failed the checkpoint", failed)
				}
			})
		}
	}
}

// checkpointFault makes a checkpoint with a fault in operation n. It returns
// false if that doesn't take so many.
func checkpointFault(t *testing.T, l *engine.Limiter, fs *vfs.MemFS, f *fault, n int64, failed *int) bool {
	dir := fmt.Sprintf("backups/%d", n)
	f.n = n
	f.seen.Store(0)
	f.failed.Store(0)
	f.armed.Store(true)
	err := l.Checkpoint(t.Context(), dir)
	f.armed.Store(false)
	if err != nil {
		*failed++
		if !errors.Is(err, syscall.ENOSPC) || errors.Is(err, engine.ErrStorage) || !strings.Contains(err.Error(), "checkpoint") {
			t.Errorf("operation %d: Checkpoint = %v, want it to wrap %v alone", n, err, syscall.ENOSPC)
		}
		if left := exists(t, fs, dir+".partial"); left && !f.sticky && f.failed.Load() > 0 {
			// The fault was in taking it away.
			t.Errorf("operation %d: something is left", n)
		}
		if exists(t, fs, dir) {
			if !f.sticky {
				t.Errorf("operation %d: Checkpoint = %v, and has made one", n, err)
			}
			// The disk let it be made whole, and neither synced nor taken away.
			checkWhole(t, fs, dir)
			must(t, func() error { return fs.RemoveAll(dir) })
		}
		must(t,
			func() error { return fs.RemoveAll(dir + ".partial") },
			func() error { return l.Checkpoint(t.Context(), dir) })
	}
	checkWhole(t, fs, dir)
	if err := l.Failure(); err != nil {
		t.Fatalf("operation %d: Failure = %v", n, err)
	}
	must(t, throttle(l, fmt.Sprint("k", n), 1), l.Sync)
	return f.failed.Load() > 0
}

// TestCheckpointOfFailingStore has the store's own disk fail while a checkpoint
// is being made. The store has failed then, and there is no checkpoint.
func TestCheckpointOfFailingStore(t *testing.T) {
	checkLeaks(t)
	for _, at := range []string{"OPTIONS-*", "*.sst", "MANIFEST-*", "*.log"} {
		t.Run(at, func(t *testing.T) {
			fs := vfs.NewMem()
			f := &fault{match: on("*.log", writes...), n: 1, sticky: true, err: syscall.EIO}
			var l *engine.Limiter
			l = open(t, "store", engine.Options{NoPurge: true, FS: newHookFS(fs, func(op errorfs.Op) error {
				if !strings.HasPrefix(op.Path, "store/") {
					if ok, _ := filepath.Match(at, filepath.Base(op.Path)); ok && op.Kind == errorfs.OpCreate && f.armed.CompareAndSwap(false, true) {
						if err := throttle(l, "more", 1)(); !errors.Is(err, engine.ErrStorage) {
							t.Errorf("Throttle = %v, want %v", err, engine.ErrStorage)
						}
					}
					return nil
				}
				if op.Kind == errorfs.OpLink {
					return syscall.EXDEV
				}
				return f.inject(op)
			})})
			must(t, throttle(l, "k", 2))
			flush(t, l)
			if err := l.Checkpoint(t.Context(), "backups/new"); !errors.Is(err, engine.ErrStorage) {
				t.Errorf("Checkpoint = %v, want %v", err, engine.ErrStorage)
			}
			if names, _ := fs.List("backups"); len(names) > 0 {
				t.Errorf("%q is left", names)
			}
			if !errors.Is(l.Failure(), syscall.EIO) {
				t.Errorf("Failure = %v, want %v", l.Failure(), syscall.EIO)
			}
		})
	}
}

// TestCheckpointRefused asks for checkpoints where there can't be one.
func TestCheckpointRefused(t *testing.T) {
	for name, disk := range map[string]vfs.FS{"memory": vfs.NewMem(), "disk": vfs.Default} {
		t.Run(name, func(t *testing.T) {
			checkLeaks(t)
			root := disk.PathJoin(t.TempDir()) // not there in memory
			in := func(name string) string { return disk.PathJoin(root, name) }
			l := open(t, in("store"), engine.Options{FS: disk})
			write := func(name string) func() error {
				return func() error {
					f, err := disk.Create(in(name), vfs.WriteCategoryUnspecified)
					if err != nil {
						return err
					}
					return f.Close()
				}
			}
			mkdir := func(name string) func() error { return func() error { return disk.MkdirAll(in(name), 0o755) } }
			must(t, write("file"), mkdir("full"), write("full/file"), mkdir("cut.partial"), mkdir("empty"))
			for _, refused := range []struct{ dir, why string }{
				{"", "no directory is named"},
				{in("file"), "exist"},
				{in("full"), "not empty"},
				{in("store"), "not empty"},
				{in("store/backup"), "lies in"},
				{in("store/a/backup"), "lies in"},
				{in("cut"), "cut.partial: file already exists: it is being made, or was cut off and is to be removed"},
				{in("new.partial"), ".partial"},
				{in("file/backup"), ""},
			} {
				if err := l.Checkpoint(t.Context(), refused.dir); err == nil || !strings.Contains(err.Error(), refused.why) {
					t.Errorf("Checkpoint(%s) = %v, want %s", refused.dir, err, refused.why)
				}
			}
			if _, err := disk.Stat(in("store/a")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("Stat of a directory that a checkpoint was refused in = %v, want %v", err, fs.ErrNotExist)
			}
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			if err := l.Checkpoint(ended, in("new")); !errors.Is(err, context.Canceled) {
				t.Errorf("Checkpoint = %v, want %v", err, context.Canceled)
			}
			for _, dir := range []string{"new", "new2/", "empty", "a/b/c"} {
				must(t, func() error { return l.Checkpoint(t.Context(), in("")+"/"+dir) })
				checkWhole(t, disk, in(dir))
			}
			if names, _ := disk.List(in("full")); len(names) != 1 {
				t.Errorf("there is %q in a directory that was refused", names)
			}
		})
	}
}

// TestCheckpointAndStoreAreApart changes a store and its checkpoint on a disk
// that can link. Neither changes the other, and no log is shared.
func TestCheckpointAndStoreAreApart(t *testing.T) {
	checkLeaks(t)
	root := t.TempDir()
	dir, copied := filepath.Join(root, "store"), filepath.Join(root, "copy")
	l := open(t, dir, engine.Options{FS: vfs.Default, NoPurge: true})
	work := func(l *engine.Limiter) {
		t.Helper()
		for range 3 {
			must(t, throttle(l, "k", 1))
			charge(t, l, 0, 1000, bucket(1<<20))
			flush(t, l)
			must(t, func() error { return l.Compact(t.Context(), nil) }, throttle(l, "k", 1))
		}
	}
	left := func(l *engine.Limiter, want int64) {
		t.Helper()
		if d, err := l.Probe([]byte("k"), bucket(10), 0); err != nil || d.Remaining != want {
			t.Errorf("Probe leaves %d, %v, want %d", d.Remaining, err, want)
		}
	}
	must(t, throttle(l, "k", 1))
	flush(t, l)
	compact(t, l) // or tables could go before they are linked
	must(t, throttle(l, "k", 1))
	own := infosOf(t, dir)
	must(t, func() error { return l.Checkpoint(t.Context(), copied) })
	linked := 0
	for name, info := range infosOf(t, copied) {
		switch shared, isTable := own[name] != nil && os.SameFile(own[name], info), strings.HasSuffix(name, ".sst"); {
		case shared && isTable:
			linked++
		case shared:
			t.Errorf("%s is shared", name)
		}
	}
	if linked == 0 {
		t.Error("no table is shared")
	}

	before := filesOf(t, copied)
	work(l)
	left(l, 2)
	for name, text := range filesOf(t, copied) {
		if text != before[name] {
			t.Errorf("%s of the checkpoint has changed", name)
		}
	}
	c := open(t, copied, engine.Options{FS: vfs.Default})
	left(c, 8)
	work(c)
	work(c)
	closeChecked(t, c)
	left(l, 2)
	closeChecked(t, l)
	left(open(t, dir, engine.Options{FS: vfs.Default}), 2)
	if err := os.RemoveAll(copied); err != nil {
		t.Fatal(err)
	}
}

// infosOf returns the files in dir as they are now. What the store removes
// meanwhile is left out.
func infosOf(t *testing.T, dir string) map[string]os.FileInfo {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	infos := make(map[string]os.FileInfo)
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		infos[e.Name()] = info
	}
	return infos
}

// filesOf returns the files in dir.
func filesOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = string(text)
	}
	return files
}

// TestCheckpointIsWaitedFor holds a checkpoint up. Other calls go on, one more
// checkpoint waits for it, and so does Close.
func TestCheckpointIsWaitedFor(t *testing.T) {
	for _, gives := range []string{"done", "canceled"} {
		t.Run(gives, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := vfs.NewMem()
				held := make(chan struct{})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				l := open(t, "store", engine.Options{NoPurge: true, FS: newHookFS(fs, func(op errorfs.Op) error {
					if strings.HasPrefix(op.Path, "first.partial/MANIFEST") && op.Kind == errorfs.OpCreate {
						<-held
					}
					if strings.HasPrefix(op.Path, "first.partial") && op.Kind == errorfs.OpFileWrite && ctx.Err() != nil {
						t.Errorf("%s is written though nobody wants it any more", op.Path)
					}
					return nil
				})})
				var p pending
				p.start("first", func() error { return l.Checkpoint(ctx, "first") })
				p.start("second", func() error { return l.Checkpoint(t.Context(), "second") })
				p.start("charge", throttle(l, "k", 1))
				p.start("reset", l.ResetAll)
				p.start("flush", func() error { return l.DB().Flush() })
				p.start("compact", func() error { return l.Compact(t.Context(), nil) })
				p.want(t, "first", "second")
				p.start("close", l.Close)
				p.want(t, "first", "second", "close")
				if gives == "canceled" {
					cancel()
				}
				close(held)
				p.calls.Wait()
				if got, want := exists(t, fs, "first"), gives == "done"; got != want {
					t.Errorf("there is a checkpoint: %t, want %t", got, want)
				}
				if gives == "canceled" && !errors.Is(p.returned["first"], context.Canceled) {
					t.Errorf("Checkpoint = %v, want %v", p.returned["first"], context.Canceled)
				}
				// It came to its turn when closing had begun.
				if err := p.returned["second"]; err != engine.ErrClosed {
					t.Errorf("the second Checkpoint = %v, want %v", err, engine.ErrClosed)
				}
				if names, _ := fs.List(""); len(names) > 2 {
					t.Errorf("%q are there", names)
				}
			})
		})
	}
}

// TestCheckpointOfBorrowedStore leaves the copy of an application's store to the
// application. What has been synced is in it.
func TestCheckpointOfBorrowedStore(t *testing.T) {
	fs := vfs.NewMem()
	db, err := pebble.Open("app", &pebble.Options{FS: fs, Logger: quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	l, err := engine.New(db, &engine.Options{Prefix: []byte("limits"), Durability: engine.Never, SyncInterval: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	must(t,
		func() error { return db.Set([]byte("row"), []byte("1"), pebble.Sync) },
		throttle(l, "k", 3),
		l.Sync)
	if err := l.Checkpoint(t.Context(), "copy"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Checkpoint = %v, want %v", err, errors.ErrUnsupported)
	}
	must(t, func() error { return db.Checkpoint("copy") })
	copied, err := pebble.Open("copy", &pebble.Options{FS: fs, Logger: quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	defer copied.Close()
	if _, closer, err := copied.Get([]byte("row")); err != nil {
		t.Errorf("Get = %v", err)
	} else {
		closer.Close()
	}
	c, err := engine.New(copied, &engine.Options{Prefix: []byte("limits")})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if d, err := c.Probe([]byte("k"), bucket(10), 0); err != nil || d.Remaining != 7 {
		t.Errorf("Probe leaves %d, %v, want 7", d.Remaining, err)
	}
}

// restoreInto restores the store "store" of fs to dir.
func restoreInto(fs vfs.FS, dir string) (engine.Report, error) {
	return engine.Restore(context.Background(), "store", dir, &engine.Options{FS: fs, Now: atCheckTime}, nil)
}

// TestRestore restores a backup twice. What is made is as the backup was, and
// shares nothing with it.
func TestRestore(t *testing.T) {
	checkLeaks(t)
	root := t.TempDir()
	dir, backup := filepath.Join(root, "store"), filepath.Join(root, "backups", "1")
	l := open(t, dir, engine.Options{FS: vfs.Default, Now: newManualClock(epoch).Now})
	charge(t, l, 0, 1000, bucket(10))
	flush(t, l)
	must(t, throttle(l, "k", 3), func() error { return l.Checkpoint(t.Context(), backup) })
	before := filesOf(t, backup)
	for _, name := range []string{"first", "second/deep"} {
		restored := filepath.Join(root, name)
		last, all := 0, 0
		r, err := engine.Restore(t.Context(), backup, restored, &engine.Options{Now: newManualClock(epoch).Now}, func(done, of int) {
			if done < last || done > of || all != 0 && all != of {
				t.Errorf("progress is %d of %d after %d of %d", done, of, last, all)
			}
			last, all = done, of
		})
		if err != nil || r.GCRA.Live != 1001 || r.Damaged > 0 || last != all || all == 0 {
			t.Fatalf("Restore = %+v, %v, with %d of %d done", r, err, last, all)
		}
		for file := range before {
			a, errA := os.Stat(filepath.Join(backup, file))
			b, errB := os.Stat(filepath.Join(restored, file))
			if errA != nil || errB != nil || os.SameFile(a, b) {
				t.Errorf("%s is shared, or missing: %v, %v", file, errA, errB)
			}
		}
		c := open(t, restored, engine.Options{FS: vfs.Default, Now: newManualClock(epoch).Now})
		if d, err := c.Throttle([]byte("k"), bucket(10), 5); err != nil || d.Remaining != 2 {
			t.Errorf("Throttle leaves %d, %v, want 2", d.Remaining, err)
		}
		must(t, func() error { return c.Compact(t.Context(), nil) })
	}
	after := filesOf(t, backup)
	if len(after) != len(before) {
		t.Errorf("the backup has %d files, and had %d", len(after), len(before))
	}
	for name, text := range before {
		if after[name] != text {
			t.Errorf("%s of the backup has changed", name)
		}
	}
}

// TestRestoreRefused restores what is no whole store, or to where none can be.
// Nothing is made of it.
func TestRestoreRefused(t *testing.T) {
	checkLeaks(t)
	good := vfs.NewCrashableMem()
	newCheckable(t, good)
	for name, spoil := range map[string]struct {
		spoil func(fs *vfs.MemFS) error
		dir   string
		want  error
	}{
		"a damaged table": {func(fs *vfs.MemFS) error {
			names, _ := fs.List("store")
			for _, name := range names {
				if strings.HasSuffix(name, ".sst") {
					damage(t, fs, "store/"+name, 100)
				}
			}
			return nil
		}, "new", engine.ErrDamaged},
		"a missing manifest": {func(fs *vfs.MemFS) error {
			names, err := fs.List("store")
			for _, name := range names {
				if strings.HasPrefix(name, "MANIFEST-") {
					err = errors.Join(err, fs.Remove("store/"+name))
				}
			}
			return err
		}, "new", engine.ErrDamaged},
		"something else": {func(fs *vfs.MemFS) error {
			return errors.Join(fs.RemoveAll("store"), fs.MkdirAll("store/photos", 0o755))
		}, "new", engine.ErrForeign},
		"nothing": {func(fs *vfs.MemFS) error {
			return errors.Join(fs.RemoveAll("store"), fs.MkdirAll("store", 0o755))
		}, "new", engine.ErrForeign},
		"another application's": {func(fs *vfs.MemFS) error {
			if err := fs.RemoveAll("store"); err != nil {
				return err
			}
			edit(t, fs, "store", func(db *pebble.DB) error { return db.Set([]byte("row"), nil, pebble.Sync) })
			return nil
		}, "new", engine.ErrForeign},
		"one in use": {func(fs *vfs.MemFS) error {
			open(t, "store", engine.Options{FS: fs})
			return nil
		}, "new", engine.ErrInUse},
		"no backup":      {func(fs *vfs.MemFS) error { return fs.RemoveAll("store") }, "new", fs.ErrNotExist},
		"a full target":  {func(fs *vfs.MemFS) error { return fs.MkdirAll("full/new", 0o755) }, "full", fs.ErrExist},
		"a cut off one":  {func(fs *vfs.MemFS) error { return fs.MkdirAll("new.partial", 0o755) }, "new", fs.ErrExist},
		"to itself":      {func(fs *vfs.MemFS) error { return nil }, "store", fs.ErrExist},
		"into itself":    {func(fs *vfs.MemFS) error { return nil }, "store/new", nil},
		"to a bad place": {func(fs *vfs.MemFS) error { return nil }, "new.partial", nil},
	} {
		t.Run(name, func(t *testing.T) {
			fs := good.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(0, 0))})
			must(t, func() error { return spoil.spoil(fs) })
			before, _ := fs.List("")
			_, err := restoreInto(fs, spoil.dir)
			if err == nil || spoil.want != nil && !errors.Is(err, spoil.want) || !strings.Contains(err.Error(), "restore store: ") {
				t.Errorf("Restore = %v, want %v", err, spoil.want)
			}
			if after, _ := fs.List(""); len(after) != len(before) {
				t.Errorf("%q are there, and were %q", after, before)
			}
		})
	}
}

// TestPartialIsNoStore has a store lie under the name of one that is being made.
func TestPartialIsNoStore(t *testing.T) {
	fs := vfs.NewMem()
	opts := &engine.Options{FS: fs}
	must(t, open(t, "store", *opts).Close, func() error { return fs.Rename("store", "copy.partial") })
	_, errOpen := engine.Open("copy.partial", opts)
	_, errCheck := engine.Check("copy.partial/", opts, nil)
	_, errRestore := engine.Restore(t.Context(), "copy.partial", "new", opts, nil)
	for name, err := range map[string]error{"Open": errOpen, "Check": errCheck, "Restore": errRestore} {
		if !errors.Is(err, engine.ErrForeign) {
			t.Errorf("%s = %v, want %v", name, err, engine.ErrForeign)
		}
	}
}

// TestRestoreGivenUp ends the context while files are copied, once into a new
// directory and once into an empty one.
func TestRestoreGivenUp(t *testing.T) {
	for _, empty := range []bool{false, true} {
		fs := vfs.NewMem()
		l := open(t, "store", engine.Options{FS: fs})
		must(t, throttle(l, "k", 3), l.Close)
		if empty {
			must(t, func() error { return fs.MkdirAll("new", 0o755) })
		}
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := engine.Restore(ctx, "store", "new", &engine.Options{FS: fs}, func(int, int) { cancel() }); !errors.Is(err, context.Canceled) {
			t.Errorf("Restore = %v, want %v", err, context.Canceled)
		}
		names, err := fs.List("")
		slices.Sort(names)
		want := []string{"store"}
		if empty {
			want = []string{"new", "store"}
		}
		if !slices.Equal(names, want) || err != nil {
			t.Errorf("there are %q, %v, want %q", names, err, want)
		}
	}
}

// TestRestoreTakesHarmlessDamage restores a backup of which no answer depends on
// what is wrong.
func TestRestoreTakesHarmlessDamage(t *testing.T) {
	fs := vfs.NewMem()
	newCheckable(t, fs)
	edit(t, fs, "store", func(db *pebble.DB) error {
		return db.Set(codec.Keyspace{}.AppendSidecarKey(nil, 3), []byte("junk"), pebble.Sync)
	})
	if r, err := restoreInto(fs, "new"); err != nil || r.Damaged != 1 {
		t.Errorf("Restore = %+v, %v, want one damage", r, err)
	}
	l, err := engine.Open("new", &engine.Options{FS: fs, Now: atCheckTime})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := l.Len(); n != 53 || err != nil {
		t.Errorf("Len = %d, %v, want 53", n, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// TestPowerCutWhileRestoring cuts the power at each change of the disk that
// restoring takes. Either there is no store or a whole one.
func TestPowerCutWhileRestoring(t *testing.T) {
	for _, dir := range []string{"a/b/new", "empty"} {
		t.Run(dir, func(t *testing.T) {
			fs := vfs.NewCrashableMem()
			cuts := newCuts(t, fs)
			l := open(t, "store", engine.Options{FS: fs, Now: tickingClock()})
			must(t, throttle(l, "k", 2))
			flush(t, l)
			must(t, throttle(l, "k", 1), l.Close, func() error { return fs.MkdirAll("empty", 0o755) })
			hooked := newHookFS(fs, cuts.hook)
			cuts.check(dir, 3, func() error {
				_, err := engine.Restore(context.Background(), "store", dir, &engine.Options{FS: hooked, Now: tickingClock()}, nil)
				return err
			})
		})
	}
}

// TestRestoreFault has each operation that restoring takes fail, one at a time.
// There is no store then, and the next try succeeds.
func TestRestoreFault(t *testing.T) {
	checkLeaks(t)
	used := vfs.NewCrashableMem()
	newCheckable(t, used)
	failed, n := 0, int64(1)
	for more := true; more; n++ {
		fs := used.CrashClone(vfs.CrashCloneCfg{})
		f := &fault{match: func(errorfs.Op) bool { return true }, n: n, err: syscall.EIO}
		f.armed.Store(true)
		_, err := restoreInto(newHookFS(fs, f.inject), "new")
		more = f.failed.Load() > 0
		if err != nil {
			failed++
			if exists(t, fs, "new") || exists(t, fs, "new.partial") {
				t.Errorf("operation %d: Restore = %v, and has left something", n, err)
			}
			if _, err := restoreInto(fs, "new"); err != nil {
				t.Errorf("operation %d: Restore without a fault: %v", n, err)
			}
		}
		if !exists(t, fs, "new") {
			t.Errorf("operation %d: Restore = %v, and has made nothing", n, err)
		}
	}
	t.Logf("%d of %d faults failed Restore", failed, n-1)
	if failed < 20 {
		t.Errorf("only %d faults failed Restore", failed)
	}
}

// TestCheckpointBehindCrash cuts the power at each change of the disk that opening
// a store takes, and makes a checkpoint of what that leaves, before anything else
// has happened: of a store, too, that has no log to go on with.
func TestCheckpointBehindCrash(t *testing.T) {
	fs := vfs.NewCrashableMem()
	cuts := newCuts(t, fs)
	l := open(t, "store", engine.Options{FS: fs, NoPurge: true, Now: tickingClock()})
	must(t, throttle(l, "k", 3), l.Close)
	cuts.armed.Store(true)
	open(t, "store", engine.Options{NoPurge: true, Now: tickingClock(), FS: newHookFS(fs, cuts.hook)})
	cuts.each(func(fs *vfs.MemFS) error {
		if testing.Short() && cuts.rng.IntN(4) > 0 {
			return nil
		}
		l, err := engine.Open("store", &engine.Options{FS: fs, NoPurge: true, Now: tickingClock()})
		if err != nil {
			return err
		}
		left := takenTo(t, l, fs, "copy")
		closeChecked(t, l)
		if l, err = engine.Open("store", &engine.Options{FS: left, NoPurge: true, Now: tickingClock()}); err != nil {
			return fmt.Errorf("of the checkpoint: %w", err)
		}
		defer closeChecked(t, l)
		if used := scanAll(t, l)["k"]; used != 3 {
			return fmt.Errorf("the checkpoint has %d used, want 3", used)
		}
		return nil
	})
}
