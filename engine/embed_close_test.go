package engine_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"github.com/gabiondb/gabion/engine"
)

// TestStoreIsClosedFirst has an application close its store under a limiter that is
// at rest. What is asked of that then says so, and so does Close. The purge, which
// comes by without being asked, ends.
func TestStoreIsClosedFirst(t *testing.T) {
	checkLeaks(t)
	for _, durability := range durabilities {
		for _, noPurge := range []bool{false, true} {
			for _, first := range []string{"every call", "Close", "the purge"} {
				if noPurge && first == "the purge" {
					continue
				}
				t.Run(fmt.Sprintf("%v/noPurge=%t/%s", durability, noPurge, first), func(t *testing.T) {
					closeStoreFirst(t, engine.Options{Prefix: []byte("limits/"), Durability: durability, NoPurge: noPurge}, first)
				})
			}
		}
	}
}

func closeStoreFirst(t *testing.T, opts engine.Options, first string) {
	db := openLender(t, &pebble.Options{Logger: new(recorder)})
	l, err := engine.New(db, &opts)
	if err != nil {
		t.Fatal(err)
	}
	charge(t, l, 0, 500, bucket(10))
	must(t, l.Sync, db.Flush)
	charge(t, l, 500, 1000, bucket(10))
	must(t, l.Sync, db.Close)
	switch first {
	case "every call":
		for name, err := range everyCall(t, l) {
			if !errors.Is(err, engine.ErrStorage) && name != "Checkpoint" {
				t.Errorf("%s = %v, want %v", name, err, engine.ErrStorage)
			}
		}
		_ = l.Metrics()
	case "the purge":
		<-l.Failed()
	}
	if err := l.Close(); !errors.Is(err, engine.ErrNotWritable) || !errors.Is(err, engine.ErrStorage) {
		t.Errorf("Close = %v, want %v that wraps %v", err, engine.ErrStorage, engine.ErrNotWritable)
	}
}
