package engine_test

import (
	"context"
	"errors"
	"maps"
	"path"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// lend starts a limiter in db. When the test ends the store is checked as a whole,
// and the limiter closed before it.
func lend(t testing.TB, db *pebble.DB, opts engine.Options) *engine.Limiter {
	t.Helper()
	l, err := engine.New(db, &opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeChecked(t, l) })
	return l
}

// TestEventsTellThePurge has two limiters, whose sidecars are guesses, follow what
// is written, and one that does not. The application has a listener of its own.
func TestEventsTellThePurge(t *testing.T) {
	var flushed atomic.Int64
	events := new(engine.Events)
	listener := pebble.TeeEventListener(events.Listener(), pebble.EventListener{FlushEnd: func(pebble.FlushInfo) { flushed.Add(1) }})
	db := openLender(t, &pebble.Options{EventListener: &listener})
	t.Cleanup(func() { must(t, db.Close) })

	clock := newManualClock(epoch)
	limiters := map[string]*engine.Limiter{}
	for prefix, e := range map[string]*engine.Events{"a/": events, "b/": events, "c/": nil} {
		opts := engine.Options{Prefix: []byte(prefix), Events: e, NoPurge: true, Now: clock.Now}
		l := lend(t, db, opts)
		must(t, hours(l, "k", 100), l.Close)
		// As after a crash.
		mark := l.Keys().AppendMeta(nil, codec.MetaMark)
		must(t, func() error { return db.Set(mark, codec.AppendMark(nil, codec.Mark{Now: epoch.UnixNano()}), nil) })
		limiters[prefix] = lend(t, db, opts)
	}
	if n := events.Followers(); n != 2 {
		t.Errorf("%d limiters are told, want 2", n)
	}
	// A pass makes one guess anew by itself, and more where something was written.
	anew := func(l *engine.Limiter) int {
		before := len(l.Guesses())
		must(t, func() error { return engine.Pass(l) })
		return before - len(l.Guesses())
	}
	for prefix, l := range limiters {
		if n := anew(l); n != 1 {
			t.Errorf("%s: a pass makes %d guesses anew, want 1", prefix, n)
		}
		must(t, hours(l, "k", 1))
	}
	before := flushed.Load()
	must(t, db.Flush)
	if n := flushed.Load() - before; n != 1 {
		t.Errorf("the application was told of %d flushes, want 1", n)
	}
	for prefix, l := range limiters {
		if n := anew(l); (n > 1) != (prefix != "c/") {
			t.Errorf("%s: a pass after a flush makes %d guesses anew", prefix, n)
		}
	}
	must(t, limiters["a/"].Close)
	if n := events.Followers(); n != 1 {
		t.Errorf("%d limiters are told after one was closed, want 1", n)
	}
	refuse(t, db, &engine.Options{Prefix: []byte("b/h"), Events: events}, engine.ErrInUse)
	refuse(t, db, &engine.Options{Prefix: []byte("a/h"), Events: events}, engine.ErrForeign)
	if n := events.Followers(); n != 1 {
		t.Errorf("%d limiters are told after some were refused, want 1", n)
	}
}

// onTable returns a file system that calls fn, once, when it is armed, and a table
// is made.
func onTable(fn func()) (fs vfs.FS, armed *atomic.Bool) {
	armed = new(atomic.Bool)
	match := on("*.sst", creates...)
	return newHookFS(vfs.NewMem(), func(op errorfs.Op) error {
		if match(op) && armed.CompareAndSwap(true, false) {
			fn()
		}
		return nil
	}), armed
}

// TestCompactGoesOn has the application flush when there is nothing to flush, and
// cut out keys that are being compacted. Pebble reports both with an error, and
// neither is one.
func TestCompactGoesOn(t *testing.T) {
	checkLeaks(t)
	for name, meanwhile := range map[string]func(db *pebble.DB) error{
		"nothing to flush": func(db *pebble.DB) error { return db.Flush() },
		"excise": func(db *pebble.DB) error {
			return db.Excise(context.Background(), pebble.KeyRange{Start: []byte("limits0"), End: []byte("limits1")})
		},
	} {
		t.Run(name, func(t *testing.T) {
			var db *pebble.DB
			var told atomic.Int64
			fs, armed := onTable(func() { must(t, func() error { return meanwhile(db) }) })
			events := new(engine.Events)
			listener := pebble.TeeEventListener(events.Listener(), pebble.EventListener{
				FlushEnd: func(info pebble.FlushInfo) {
					if name == "nothing to flush" && info.Err != nil {
						told.Add(1)
					}
				},
				CompactionEnd: func(info pebble.CompactionInfo) {
					if name == "excise" && info.Err != nil {
						told.Add(1)
					}
				},
			})
			db = openLender(t, &pebble.Options{
				FS: fs, EventListener: &listener, FormatMajorVersion: pebble.FormatNewest, DisableAutomaticCompactions: true,
			})
			l, err := engine.New(db, &engine.Options{Prefix: []byte("limits/"), Events: events, NoPurge: true})
			if err != nil {
				t.Fatal(err)
			}
			for i := range 3 { // tables that overlap, with a row of the application at the end of each
				must(t, func() error { return db.Set([]byte("limits0"), nil, nil) })
				charge(t, l, i*100, 1000, bucket(10))
				must(t, db.Flush)
			}
			armed.Store(true)
			if err := l.Compact(t.Context(), nil); err != nil {
				t.Errorf("Compact = %v", err)
			}
			if n := told.Load(); n == 0 || armed.Load() {
				t.Errorf("Pebble has reported %d errors, want some", n)
			}
			must(t, l.Check, l.Close, db.Close)
		})
	}
}

// TestCompactHears has tables that can't be written. Compact hears of it, and the
// limiter goes on. Without Events it waits until its context ends.
func TestCompactHears(t *testing.T) {
	checkLeaks(t)
	for _, inMemory := range []bool{true, false} { // so that a flush fails, or a compaction
		for _, events := range []*engine.Events{new(engine.Events), nil} {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			f := &fault{match: on("*.sst", writes...), n: 1, err: syscall.ENOSPC, sticky: true}
			fs := newHookFS(vfs.NewMem(), func(op errorfs.Op) error {
				err := f.inject(op)
				if err != nil && events == nil {
					cancel()
				}
				return err
			})
			listener := events.Listener()
			if events == nil {
				listener = pebble.EventListener{}
			}
			db := openLender(t, &pebble.Options{FS: fs, EventListener: &listener, DisableAutomaticCompactions: true})
			l, err := engine.New(db, &engine.Options{Prefix: []byte("limits/"), Events: events, NoPurge: true})
			if err != nil {
				t.Fatal(err)
			}
			for i := range 3 {
				charge(t, l, i*100, 1000, bucket(10))
				if !inMemory {
					must(t, db.Flush)
				}
			}
			f.armed.Store(true)
			err = l.Compact(ctx, nil)
			switch {
			case events == nil && !errors.Is(err, context.Canceled):
				t.Errorf("Compact = %v without events, want %v", err, context.Canceled)
			case events != nil && !(errors.Is(err, engine.ErrStorage) && errors.Is(err, syscall.ENOSPC)):
				t.Errorf("Compact = %v, want %v that wraps %v", err, engine.ErrStorage, syscall.ENOSPC)
			}
			f.armed.Store(false)
			must(t, throttle(l, "k", 1), func() error { return l.Compact(t.Context(), nil) }, l.Check, l.Close, db.Close)
		}
	}
}

// TestManifestFails has the manifest of an application's store fail, whose logger
// goes on. That is no failure of the limiter as long as Pebble takes its writes, and
// keeps neither its calls nor Close from returning.
func TestManifestFails(t *testing.T) {
	checkLeaks(t)
	for _, events := range []*engine.Events{new(engine.Events), nil} {
		log := new(recorder)
		told := make(chan struct{}, 1)
		f := &fault{match: func(op errorfs.Op) bool {
			ok, _ := path.Match("MANIFEST-*", path.Base(op.Path))
			return ok && op.Kind == errorfs.OpFileWrite
		}, n: 1, err: syscall.EIO, sticky: true}
		fs := newHookFS(vfs.NewMem(), func(op errorfs.Op) error {
			err := f.inject(op)
			if err != nil {
				select {
				case told <- struct{}{}:
				default:
				}
			}
			return err
		})
		listener := pebble.EventListener{}
		if events != nil {
			listener = events.Listener()
		}
		db := openLender(t, &pebble.Options{FS: fs, EventListener: &listener, Logger: log})
		l, err := engine.New(db, &engine.Options{Prefix: []byte("limits/"), Events: events})
		if err != nil {
			t.Fatal(err)
		}
		charge(t, l, 0, 1000, bucket(10))
		f.armed.Store(true)
		if _, err := db.AsyncFlush(); err != nil {
			t.Fatal(err)
		}
		<-told
		must(t, throttle(l, "k", 1), func() error { return l.Purge(t.Context()) }, l.Sync, l.Close)
		f.armed.Store(false)
		_ = db.Close()
		if n := log.fatal.Load(); n == 0 {
			t.Error("the logger has heard nothing, want what ends most processes")
		}
	}
}

// TestOpenReaders has an application read from a snapshot and by an iterator while a
// limiter purges and compacts, and a View of that read while the application does.
// Each goes on to see what it saw, and neither keeps the other from going on.
func TestOpenReaders(t *testing.T) {
	checkLeaks(t)
	clock := newManualClock(epoch)
	db := openLender(t, &pebble.Options{})
	l, err := engine.New(db, &engine.Options{Prefix: []byte("limits/"), Now: clock.Now, NoPurge: true})
	if err != nil {
		t.Fatal(err)
	}
	row := []byte("row")
	must(t, func() error { return db.Set(row, []byte("old"), pebble.Sync) })
	charge(t, l, 0, 1000, limit.PerSecond(1))
	snapshot := db.NewSnapshot()
	it, err := db.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	it.First()
	before := contents(t, snapshot)

	must(t, func() error {
		return l.View(func(v *engine.View) error {
			clock.Advance(time.Hour)
			must(t,
				func() error { return l.Purge(t.Context()) },
				func() error { return l.Compact(t.Context(), nil) },
				func() error { return db.Set(row, []byte("new"), pebble.Sync) },
				db.Flush,
				func() error { return db.Compact(t.Context(), []byte("a"), []byte("z"), false) })
			if n, err := v.Len(); n != 1000 || err != nil {
				t.Errorf("View.Len = %d, %v, want 1000", n, err)
			}
			return nil
		})
	})
	if after := contents(t, snapshot); len(before) < 1000 || !maps.Equal(before, after) {
		t.Errorf("the snapshot has %d keys, and had %d", len(after), len(before))
	}
	n := 0
	for ; it.Valid(); it.Next() {
		n++
	}
	if n != len(before) {
		t.Errorf("the iterator has seen %d keys, want %d", n, len(before))
	}
	must(t, it.Close, snapshot.Close, l.Close)
	if left := contents(t, db); len(left) != 3 {
		t.Errorf("%d keys are left, want the row, the identity and the mark", len(left))
	}
	must(t, db.Close)
}

// TestStoreIsForgotten wants nothing to hold on to a store once it and the limiters
// in it are closed, and that were refused in it.
func TestStoreIsForgotten(t *testing.T) {
	events, freed := new(engine.Events), make(chan struct{})
	func() {
		db := openLender(t, &pebble.Options{})
		runtime.AddCleanup(db, func(freed chan struct{}) { close(freed) }, freed)
		opts := &engine.Options{Prefix: []byte("limits/"), Events: events}
		l, err := engine.New(db, opts)
		if err != nil {
			t.Fatal(err)
		}
		refuse(t, db, opts, engine.ErrInUse)
		must(t, throttle(l, "k", 1), l.Close)
		refuse(t, db, &engine.Options{Prefix: []byte("limits/h"), Events: events}, engine.ErrForeign)
		must(t, db.Close)
	}()
	for range 1000 {
		select {
		case <-freed:
			runtime.KeepAlive(events)
			return
		default:
			runtime.GC()
		}
	}
	t.Error("the store is not forgotten")
}
