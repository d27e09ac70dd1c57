//go:build !race

package engine_test

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// TestBytesPerCall counts what calls write to the log, each in a round of its
// own, on keys that hold little and on keys that hold much. The race detector
// would take too long to fill those.
func TestBytesPerCall(t *testing.T) {
	const calls = 500
	for _, c := range []struct {
		what       string
		sizes      []int
		use        use
		mean, most uint64 // bytes that a call may write
	}{
		{"requests", []int{10, 10_000}, request, 130, 130},
		{"events", []int{100, 10_000, 1_000_000}, event, 400, 450},
	} {
		for _, size := range c.sizes {
			clock := newManualClock(epoch)
			opts := engine.Options{
				FS: vfs.NewMem(), Now: clock.Now, QuotaMaxLimit: limit.MaxLimit,
				Durability: engine.Interval, SyncInterval: time.Hour, NoPurge: true,
			}
			l := open(t, "store", opts)
			for i := range size {
				c.use(t, l, clock, size, i)
			}
			opts.Durability = engine.Always
			l = reopen(t, l, "store", opts)
			var most uint64
			start := l.DB().Metrics().WAL.BytesIn
			for i := range calls {
				before := l.DB().Metrics().WAL.BytesIn
				c.use(t, l, clock, size, size+i)
				most = max(most, l.DB().Metrics().WAL.BytesIn-before)
			}
			mean := (l.DB().Metrics().WAL.BytesIn - start) / calls
			t.Logf("a call on a key with %d %s writes %d bytes, at most %d", size, c.what, mean, most)
			if mean > c.mean || most > c.most {
				t.Errorf("a call on a key with %d %s writes %d bytes, at most %d, want no more than %d and %d",
					size, c.what, mean, most, c.mean, c.most)
			}
		}
	}
}
