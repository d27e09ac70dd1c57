package engine_test

import (
	"maps"
	"testing"
	"time"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// TestUpdateLooks: what looks in a transaction changes nothing.
func TestUpdateLooks(t *testing.T) {
	l := open(t, "store", engine.Options{Now: func() time.Time { return epoch }})
	charge := engine.Charge{Key: []byte("k"), Rate: bucket(10), N: 3}
	before := contents(t, l.DB())
	err := l.Update(func(tx *engine.Tx) error {
		for range 2 {
			for _, probe := range []func(...engine.Charge) (limit.Decisions, error){tx.ProbeAll, tx.ProbeEach} {
				ds, err := probe(charge, charge)
				if err != nil || ds[0].Remaining != 7 || ds[1].Remaining != 4 {
					t.Errorf("a probe of several = %+v, %v, want 7 and 4 left", ds, err)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if after := contents(t, l.DB()); !maps.Equal(after, before) {
		t.Errorf("the store has %q, and had %q", after, before)
	}
}
