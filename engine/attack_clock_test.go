package engine_test

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine"
)

// TestWildClockThenRestart opens a store with a clock that is 100 days ahead,
// charges one key, and opens it again with the same clock. Is it trusted at
// once?
func TestWildClockThenRestart(t *testing.T) {
	clock := newManualClock(epoch)
	opts := engine.Options{Now: clock.Now, NoPurge: true, FS: vfs.NewMem()}
	l := open(t, "store", opts)
	for i := range 2000 {
		must(t, hours(l, string(nth(i)), 72))
	}
	must(t, l.Close)
	clock.Advance(100 * 24 * time.Hour)
	l = open(t, "store", opts)
	purge(t, l)
	m := l.Metrics()
	t.Logf("behind: purged %d, records %d, expired %d, backlog %d, behind %v", m.Purged, m.Records, m.Expired, m.Backlog, m.PurgeBehind)
	if m.Purged != 0 {
		t.Errorf("purged %d", m.Purged)
	}
	must(t, hours(l, "one", 1))
	must(t, l.Close)
	l = open(t, "store", opts)
	purge(t, l)
	m = l.Metrics()
	t.Logf("restarted: purged %d, behind %v", m.Purged, m.PurgeBehind)
	if m.Purged != 0 {
		t.Errorf("a restart after one charge has the wild clock trusted: %d purged", m.Purged)
	}
	must(t, l.Close)
}

// TestSidecarsLostInACleanStore deletes the sidecars of a store that was closed
// in good order. They are to be made anew when they are missing.
func TestSidecarsLostInACleanStore(t *testing.T) {
	clock := newManualClock(epoch)
	opts := engine.Options{Now: clock.Now, NoPurge: true, FS: vfs.NewMem()}
	l := open(t, "store", opts)
	for i := range 2000 {
		must(t, hours(l, string(nth(i)), 1))
	}
	keys := l.Keys()
	must(t, l.Close)
	edit(t, opts.FS, "store", func(db *pebble.DB) error {
		lower, upper := keys.SidecarBounds()
		return db.DeleteRange(lower, upper, pebble.Sync)
	})
	clock.Advance(2 * time.Hour)
	report, err := engine.Check("store", &opts, nil)
	t.Logf("Check: %+v, %v", report, err)
	l, err = engine.Open("store", &opts)
	if err != nil {
		t.Fatal(err)
	}
	for range 300 {
		clock.Advance(time.Minute)
		if err := engine.Pass(l); err != nil {
			t.Fatal(err)
		}
	}
	purge(t, l)
	if n := len(records(t, l)); n != 0 {
		t.Errorf("%d expired records are left 5 hours later, with sidecars missing", n)
	}
	must(t, l.Close)
}

// TestAbsurdSidecar gives a store that was closed in good order a sidecar that
// counts more than there can be.
func TestAbsurdSidecar(t *testing.T) {
	clock := newManualClock(epoch)
	opts := engine.Options{Now: clock.Now, NoPurge: true, FS: vfs.NewMem()}
	l := open(t, "store", opts)
	for i := range 2000 {
		must(t, hours(l, string(nth(i)), 1))
	}
	keys := l.Keys()
	must(t, l.Close)
	s := codec.Sidecar{Since: epoch.UnixNano()}
	s.Counts[40], s.Counts[41], s.Counts[42] = 1<<62, 1<<62, 1<<62
	edit(t, opts.FS, "store", func(db *pebble.DB) error {
		return db.Set(keys.AppendSidecarKey(nil, 7), codec.AppendSidecar(nil, &s), pebble.Sync)
	})
	l, err := engine.Open("store", &opts)
	if err != nil {
		t.Fatal(err)
	}
	m := l.Metrics()
	t.Logf("records %d, expired %d, backlog %d", m.Records, m.Expired, m.Backlog)
	if m.Records < 0 || m.Records > 1_000_000 {
		t.Errorf("records %d", m.Records)
	}
	clock.Advance(2 * time.Hour)
	purge(t, l)
	m = l.Metrics()
	t.Logf("records %d, expired %d, backlog %d", m.Records, m.Expired, m.Backlog)
	if n := len(records(t, l)); n != 0 {
		t.Errorf("%d left", n)
	}
	must(t, l.Close)
}
