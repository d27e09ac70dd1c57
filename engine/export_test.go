package engine

import (
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/gabiondb/gabion/codec"
)

// DB returns the store under l.
func (l *Limiter) DB() *pebble.DB { return l.db }

// Check looks at the whole store: every key is one that a limiter writes,
// every record decodes and lies in its key's slice, and Pebble's levels are in
// order.
func (l *Limiter) Check() error {
	if err := l.Sync(); err != nil {
		return err
	}
	if err := l.db.CheckLevels(nil); err != nil {
		return err
	}
	it, err := l.db.NewIter(nil)
	if err != nil {
		return err
	}
	defer it.Close()
	for it.First(); it.Valid(); it.Next() {
		if err := l.checkRecord(it.Key(), it.Value()); err != nil {
			return fmt.Errorf("%q: %w", it.Key(), err)
		}
	}
	return it.Error()
}

func (l *Limiter) checkRecord(key, value []byte) error {
	switch string(key) {
	case string(l.keys.AppendMeta(nil, codec.MetaIdentity)):
		_, err := codec.DecodeIdentity(value)
		return err
	case string(l.keys.AppendMeta(nil, codec.MetaMark)):
		mark, err := codec.DecodeMark(value)
		if err == nil && mark > l.clock.now() {
			return fmt.Errorf("the mark %d lies in the future", mark)
		}
		return err
	}
	slice, user, err := l.keys.ParseHead(nil, key)
	if err != nil {
		return err
	}
	if want := l.keys.Slice(user); slice != want {
		return fmt.Errorf("slice %d, want %d", slice, want)
	}
	_, err = codec.DecodeState(value)
	return err
}
