package engine

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/ttl"
)

// checkSidecars tells whether the sidecars that are exact count what the store
// has.
func (l *Limiter) checkSidecars() error {
	for n := range codec.Sidecars {
		if err := l.checkSidecar(n); err != nil {
			return fmt.Errorf("sidecar %d: %w", n, err)
		}
	}
	return nil
}

func (l *Limiter) checkSidecar(n int) error {
	sh, sc := l.sidecar(n)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sc.exact {
		return nil
	}
	it, err := l.db.NewIter(&pebble.IterOptions{
		LowerBound: l.keys.AppendSliceStart(nil, n*codec.SlicesPerSidecar),
		UpperBound: l.keys.AppendSliceStart(nil, (n+1)*codec.SlicesPerSidecar),
	})
	if err != nil {
		return err
	}
	defer it.Close()
	want := ttl.NewSidecar(sc.sum.Since)
	for it.First(); it.Valid(); it.Next() {
		if _, err := codec.DecodeState(it.Value()); err != nil {
			return nil // it may or may not count
		}
		deadline, _ := codec.DecodeDeadline(it.Value())
		want.Add(deadline)
	}
	if want != sc.sum {
		return fmt.Errorf("it counts %v, want %v", sc.sum, want)
	}
	return it.Error()
}
