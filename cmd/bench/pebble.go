package main

import (
	"context"
	"encoding/binary"
	"errors"
	"log"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/engine"
)

const (
	rawSynced   = "raw Pebble, one writer, synced batches of 256"
	rawUnsynced = "raw Pebble, one writer, unsynced batches of 256"
)

// rawBatch is how much one writer of raw Pebble commits at once.
var rawBatch = crowd{"one writer", 1, 256}

// With rawPrefix a key is as long as one of gabion's is on disk, and rawValue is
// the size of what gabion writes under it.
const (
	rawPrefix = "raw//"
	rawValue  = 12
)

// rawPebble measures what Pebble can write where nothing is decided. What it
// can is the same for all columns, and for all keys but for how many there are:
// there are many.
func rawPebble(name string, keys func() *keySet, sync bool) *Subject {
	options := pebble.NoSync
	if sync {
		options = pebble.Sync
	}
	return &Subject{Name: name, Measure: func(r *Run) error {
		return openPebble(options).on(r, keys(), func(l *limiter) error {
			f, err := l.drive(r, rawBatch, keys())
			if err != nil {
				return err
			}
			for _, c := range crowds {
				r.Report(c.name, f.perSecond())
			}
			return nil
		})
	}}
}

// openStore opens a store with the settings of gabion's own.
func openStore(dir string, fsys vfs.FS) (*pebble.DB, error) {
	cache := pebble.NewCache(engine.DefaultBlockCacheSize)
	defer cache.Unref()
	opts := &pebble.Options{
		FormatMajorVersion:          pebble.FormatNewest,
		FS:                          fsys,
		Cache:                       cache,
		Logger:                      pebbleLogger{},
		MemTableSize:                16 << 20,
		MemTableStopWritesThreshold: 4,
		L0CompactionThreshold:       8,
		L0StopWritesThreshold:       24,
		FlushDelayDeleteRange:       5 * time.Second,
	}
	opts.Experimental.ReadSamplingMultiplier = -1
	opts.Levels[0].FilterPolicy = bloom.FilterPolicy(10)
	opts.Levels[len(opts.Levels)-1].FilterPolicy = pebble.NoFilterPolicy
	return pebble.Open(dir, opts)
}

// openPebble fills a store with keys.
func openPebble(sync *pebble.WriteOptions) opener {
	return func(ctx context.Context, dir string, keys *keySet) (_ *limiter, err error) {
		db, err := openStore(dir, vfs.Default)
		if err != nil {
			return nil, err
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, db.Close())
			}
		}()
		w := &pebbleWriter{db: db, keys: keys}
		err = keys.parts(10_000, func(first, end int) error {
			var all []int
			for i := first; i < end; i++ {
				all = append(all, i)
			}
			return errors.Join(w.write(all, pebble.NoSync), ctx.Err())
		})
		if err == nil {
			err = db.Compact(ctx, []byte(rawPrefix), []byte(rawPrefix+"\xff"), false)
		}
		if err != nil {
			return nil, err
		}
		return &limiter{func(crowd) decider {
			return func(drawn []int) error { return w.write(drawn, sync) }
		}, db.Close}, nil
	}
}

// pebbleWriter is the one that writes to a store.
type pebbleWriter struct {
	db    *pebble.DB
	keys  *keySet
	value [rawValue]byte
	n     uint64 // values so far
}

// write sets keys in a batch.
func (w *pebbleWriter) write(keys []int, sync *pebble.WriteOptions) error {
	b := w.db.NewBatch()
	defer b.Close()
	for _, i := range keys {
		w.n++
		binary.BigEndian.PutUint64(w.value[:], w.n)
		op := b.SetDeferred(len(rawPrefix)+nameLen, len(w.value))
		copy(op.Key[copy(op.Key, rawPrefix):], w.keys.name(i))
		copy(op.Value, w.value[:])
		if err := op.Finish(); err != nil {
			return err
		}
	}
	return b.Commit(sync)
}

// pebbleLogger tells only what ends the process, since Pebble has no other
// answer to some failures.
type pebbleLogger struct{}

func (pebbleLogger) Infof(string, ...any)              {}
func (pebbleLogger) Errorf(string, ...any)             {}
func (pebbleLogger) Fatalf(format string, args ...any) { log.Fatalf(format, args...) }
