package engine_test

import (
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine"
)

// tableFault returns a fault of reads of tables: of the first, or of all.
func tableFault(sticky bool) *fault {
	return &fault{match: on("*.sst", append(reads, errorfs.OpOpen)...), n: 1, err: syscall.EIO, sticky: sticky}
}

// TestPurgeReadFault has reads of tables fail during a purge. Nothing is deleted
// that is live, what can be read is purged, and the next purge sees to the rest.
func TestPurgeReadFault(t *testing.T) {
	for _, sticky := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) { purgeReadFault(t, sticky) })
	}
}

func purgeReadFault(t *testing.T, sticky bool) {
	clock := newManualClock(epoch)
	f := tableFault(sticky)
	l := open(t, "store", engine.Options{FS: newHookFS(vfs.NewMem(), f.inject), NoPurge: true, Now: clock.Now, CacheSize: 1, BlockCacheSize: 1})
	var live []string
	for i := range 300 {
		if i%3 == 0 {
			live = append(live, string(nth(i)))
			must(t, hours(l, string(nth(i)), 2))
		} else {
			must(t, hours(l, string(nth(i)), 1))
		}
	}
	flush(t, l)
	synctest.Wait() // until Pebble has looked at its tables
	clock.Advance(time.Hour)
	f.armed.Store(true)
	if err := l.Purge(t.Context()); !errors.Is(err, engine.ErrStorage) || !errors.Is(err, syscall.EIO) {
		t.Errorf("Purge = %v, want %v that wraps %v", err, engine.ErrStorage, syscall.EIO)
	}
	f.armed.Store(false)
	if err := l.Failure(); err != nil {
		t.Errorf("Failure = %v after reads that failed, want nil", err)
	}
	unread := map[int]bool{}
	ks := keyspaceOf(t, l)
	for i := range 300 {
		if s, err := l.Stat(nth(i)); s.Exists() != (i%3 == 0) || err != nil {
			t.Errorf("Stat(%q) = %+v, %v", nth(i), s, err)
		}
	}
	for key := range records(t, l) {
		unread[int(ks.Slice([]byte(key)))/codec.SlicesPerSidecar] = true
	}
	purged := l.Metrics().Purged
	if sticky && purged > 0 {
		t.Errorf("%d records purged that could not be read", purged)
	}
	if !sticky && purged < 190 {
		t.Errorf("%d records purged with one read that failed, want nearly all 200", purged)
	}
	purge(t, l)
	wantRecords(t, l, live...)
}

// TestPassReadFault has reads of tables fail in the background for a while, in a
// store whose sidecars are guesses. That keeps none of the others from being made
// anew, and those whose slices could not be read are later.
func TestPassReadFault(t *testing.T) {
	clock := newManualClock(epoch)
	opts := engine.Options{Now: clock.Now, BlockCacheSize: 1}
	inBubble(t, opts, func(t *testing.T, l *engine.Limiter, d *slowDisk) {
		for i := range 1000 {
			must(t, hours(l, string(nth(i)), 1))
		}
		must(t, hours(l, "live", 100))
		compact(t, l) // so that Pebble has nothing to do when it is opened
		f := tableFault(true)
		opts.FS = newHookFS(d.CrashClone(vfs.CrashCloneCfg{}), f.inject)
		l = open(t, "store", opts)
		synctest.Wait() // until Pebble has looked at its tables, which it tries without a pause
		f.armed.Store(true)
		time.Sleep(time.Second)
		synctest.Wait()
		f.armed.Store(false)
		if f.failed.Load() == 0 {
			t.Fatal("nothing was read from a table")
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if n := len(l.Guesses()); n == 0 || n > 10 {
			t.Errorf("%d sidecars are still guesses, want those that could not be read at first", n)
		}
		clock.Advance(2 * time.Hour)
		time.Sleep(time.Minute)
		synctest.Wait()
		if guesses := l.Guesses(); len(guesses) > 0 {
			t.Errorf("the sidecars %v are still guesses", guesses)
		}
		wantRecords(t, l, "live")
	})
}

// TestPurgeFaultInTheTurn has the second look at a record fail, while another in
// the same slices is deleted. What could not be looked at is not taken for
// deleted.
func TestPurgeFaultInTheTurn(t *testing.T) {
	clock := newManualClock(epoch)
	f := tableFault(false)
	l := open(t, "store", engine.Options{
		FS: newHookFS(vfs.NewMem(), f.inject), NoPurge: true, Now: clock.Now,
		Durability: engine.Interval, SyncInterval: time.Hour, CacheSize: 1, BlockCacheSize: 1,
	})
	keys := keysOf(t, l, 7, 4)
	inTable, inMemory := keys[0], keys[1]
	must(t, hours(l, inTable, 1))
	flush(t, l)
	must(t, hours(l, inMemory, 1))
	must(t, hours(l, keysOf(t, l, 9, 1)[0], 1))
	clock.Advance(time.Hour)
	looks := 0
	l.OnLook(func() {
		switch looks++; looks {
		case 1:
			// Something changes and leaves the cache, so all must be read again.
			must(t, hours(l, keys[2], 10), l.Sync, hours(l, keys[3], 10))
			f.armed.Store(true)
		case 2:
			must(t, hours(l, inTable, 10))
		}
	})
	if err := l.Purge(t.Context()); !errors.Is(err, syscall.EIO) {
		t.Errorf("Purge = %v, want %v", err, syscall.EIO)
	}
	l.OnLook(nil)
	if looks != 2 || f.failed.Load() != 1 {
		t.Errorf("%d looks and %d faults, want 2 and 1", looks, f.failed.Load())
	}
	if err := l.Check(); err != nil {
		t.Error(err)
	}
	clock.Advance(time.Hour)
	purge(t, l)
	wantRecords(t, l, inTable, keys[2], keys[3])
}
