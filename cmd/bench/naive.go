package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/dgraph-io/badger/v4"
	"go.etcd.io/bbolt"
)

// naiveTake decides by the generic cell rate algorithm under wide, in whole
// nanoseconds. value is what is stored of the key, none if it is new, and next
// what is to be.
func naiveTake(value []byte, now time.Time) (next []byte, err error) {
	interval := int64(wide.Period) / wide.Count
	tat := now.UnixNano()
	if value != nil {
		tat = max(tat, int64(binary.BigEndian.Uint64(value)))
	}
	tat += interval
	if tat-now.UnixNano() > interval*(wide.Burst+1) {
		return nil, fmt.Errorf("%w: denied", errDecision)
	}
	return binary.BigEndian.AppendUint64(nil, uint64(tat)), nil
}

var boltBucket = []byte("limits")

func openBolt(ctx context.Context, dir string, keys *keySet) (_ *limiter, err error) {
	// These are the settings of etcd's own store: less is written.
	db, err := bbolt.Open(filepath.Join(dir, "limits.db"), 0o666, &bbolt.Options{FreelistType: bbolt.FreelistMapType, NoFreelistSync: true})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, db.Close())
		}
	}()
	take := func(tx *bbolt.Tx, key int) error {
		b := tx.Bucket(boltBucket)
		next, err := naiveTake(b.Get(keys.name(key)), time.Now())
		if err != nil {
			return err
		}
		return b.Put(keys.name(key), next)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucket(boltBucket)
		return err
	})
	if err != nil {
		return nil, err
	}
	err = keys.parts(100_000, func(first, end int) error {
		return db.Update(func(tx *bbolt.Tx) error {
			for i := first; i < end; i++ {
				if err := take(tx, i); err != nil {
					return err
				}
			}
			return ctx.Err()
		})
	})
	if err != nil {
		return nil, err
	}
	return &limiter{func(c crowd) decider {
		update := db.Update
		if c.callers > 1 {
			// A batch that all callers are in waits for no more of them.
			db.MaxBatchSize = c.callers
			update = db.Batch
		}
		return func(drawn []int) error {
			for _, k := range drawn {
				if err := update(func(tx *bbolt.Tx) error { return take(tx, k) }); err != nil {
					return err
				}
			}
			return nil
		}
	}, db.Close}, nil
}

func openBadger(ctx context.Context, dir string, keys *keySet) (_ *limiter, err error) {
	db, err := badger.Open(badger.DefaultOptions(dir).WithSyncWrites(true).WithLogger(nil))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, db.Close())
		}
	}()
	b := db.NewWriteBatch()
	defer b.Cancel()
	for i := range keys.n {
		first, err := naiveTake(nil, time.Now())
		if err == nil {
			err = b.Set(keys.name(i), first)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := errors.Join(b.Flush(), ctx.Err()); err != nil {
		return nil, err
	}
	take := func(tx *badger.Txn, key int) error {
		item, err := tx.Get(keys.name(key))
		if err != nil {
			return err
		}
		var next []byte
		err = item.Value(func(value []byte) error {
			next, err = naiveTake(value, time.Now())
			return err
		})
		if err != nil {
			return err
		}
		return tx.Set(keys.name(key), next)
	}
	return &limiter{func(crowd) decider {
		return func(drawn []int) error {
			for _, k := range drawn {
				err := badger.ErrConflict
				for errors.Is(err, badger.ErrConflict) {
					err = db.Update(func(tx *badger.Txn) error { return take(tx, k) })
				}
				if err != nil {
					return err
				}
			}
			return nil
		}
	}, db.Close}, nil
}
