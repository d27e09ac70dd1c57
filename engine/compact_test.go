package engine_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/engine"
)

// TestCompact compacts a store in which all has expired but one key. What it
// took on the disk is free when Compact returns.
func TestCompact(t *testing.T) {
	clock := newManualClock(epoch)
	l := open(t, "store", engine.Options{FS: vfs.NewMem(), NoPurge: true, Now: clock.Now, Durability: engine.Never})
	must(t, hours(l, "long", 100))
	for i := range 5000 {
		must(t, hours(l, string(nth(i)), 1))
	}
	compact(t, l)
	before := l.Metrics().TableBytes
	clock.Advance(2 * time.Hour)

	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Compact(cancelled, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Compact = %v, want %v", err, context.Canceled)
	}
	if n := len(records(t, l)); n != 5001 {
		t.Errorf("%d records are left by a Compact that was cancelled before it began, want 5001", n)
	}

	// All is purged, and nothing compacted yet.
	half, stop := context.WithCancel(t.Context())
	err := l.Compact(half, func(done, of int) {
		if 2*done == of {
			stop()
		}
	})
	if !errors.Is(err, context.Canceled) || errors.Is(err, engine.ErrStorage) {
		t.Errorf("Compact = %v, want %v alone", err, context.Canceled)
	}

	done, of := 0, 0
	err = l.Compact(t.Context(), func(now, all int) {
		if now <= done && done > 0 || of != 0 && all != of {
			t.Errorf("progress from %d of %d to %d of %d", done, of, now, all)
		}
		done, of = now, all
	})
	if err != nil || done != of || of == 0 {
		t.Errorf("Compact = %v at %d of %d", err, done, of)
	}
	wantRecords(t, l, "long")
	if after := l.Metrics().TableBytes; before < 20_000 || after > 2_000 {
		t.Errorf("tables of %d bytes before and %d after, want 20,000 or more and 2,000 or less", before, after)
	}
}
