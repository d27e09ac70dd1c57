package engine

import (
	"context"

	"github.com/gabiondb/gabion/codec"
)

// compactPart is about how many bytes of tables are compacted between two
// reports of progress.
const compactPart = 64 << 20

// Compact purges, as Purge does, and has Pebble rewrite all tables that hold
// what was deleted or overwritten, so that it takes no space any more. Calls go
// on meanwhile. progress, unless it is nil, is called with how much is done, and
// of how much, which stays the same. A ctx that ends makes Compact return early,
// with ctx's error. So does a table that can't be read, or written, with one that
// wraps ErrStorage.
func (l *Limiter) Compact(ctx context.Context, progress func(done, of int)) error {
	if !l.calls.enter() {
		return ErrClosed
	}
	defer l.calls.exit()
	if progress == nil {
		progress = func(int, int) {}
	}
	parts := int(min(l.db.Metrics().DiskSpaceUsage()/compactPart+1, 256))
	// The passes and the parts are given half of the way each.
	const passes = codec.Sidecars
	err := l.purgeAll(ctx, func(done int) { progress(done*parts, 2*passes*parts) })
	if err != nil {
		return err
	}
	for i := range parts {
		lower, upper := l.keys.StatePart(i, parts)
		if err := l.compact(ctx, lower, upper); err != nil {
			return err
		}
		progress(passes*(parts+i+1), 2*passes*parts)
	}
	return l.failure.get()
}
