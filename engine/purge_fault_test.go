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
