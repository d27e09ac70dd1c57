// Package engine keeps rate limits in a Pebble store.
package engine

import (
	"errors"
	"time"

	"github.com/gabiondb/gabion/engine/limit"
)

// Limiter is a store of rate limits. Its methods are safe for concurrent use.
type Limiter struct{}

var errTODO = errors.New("engine: not built")

// Open opens the store in dir, and makes it if it is not there.
func Open(dir string, opts *Options) (*Limiter, error) { return nil, errTODO }

// Close waits for the calls under way, syncs and closes the store.
func (l *Limiter) Close() error { return errTODO }

// Do carries out ops in order and appends a result for each to dst: one wait
// for all.
func (l *Limiter) Do(ops []Op, dst []Result) []Result { return dst }

// Throttle charges n events to key under r.
func (l *Limiter) Throttle(key []byte, r limit.Rate, n int64) (limit.Decision, error) {
	return limit.Decision{}, errTODO
}

// Probe answers as Throttle would, and changes nothing.
func (l *Limiter) Probe(key []byte, r limit.Rate, n int64) (limit.Decision, error) {
	return limit.Decision{}, errTODO
}

// Stat describes key.
func (l *Limiter) Stat(key []byte) (Stat, error) { return Stat{}, errTODO }

// TTL returns how long until key expires; 0 if it is absent.
func (l *Limiter) TTL(key []byte) (time.Duration, error) { return 0, errTODO }

// Reset forgets key and tells whether it was there.
func (l *Limiter) Reset(key []byte) (bool, error) { return false, errTODO }

// ResetAll forgets every key.
func (l *Limiter) ResetAll() error { return errTODO }

// ScanEnd is the number of slices, one past the largest cursor.
const ScanEnd = 1 << 16

// Scan visits the live keys of whole slices, from the slice that cursor
// (0..ScanEnd-1) numbers, until it has visited count keys or more, and
// returns the cursor to go on from, or 0 when it has come to the end. A key
// that is there from the first call to the last is visited exactly once. key
// is valid during the call of visit only.
func (l *Limiter) Scan(cursor, count int, visit func(key []byte, s Stat)) (next int, err error) {
	return 0, errTODO
}

// Len counts the live keys. It reads all of them.
func (l *Limiter) Len() (int64, error) { return 0, errTODO }

// EstimateLen estimates Len from a sample, at a cost that does not grow with
// it. It counts expired keys that have not been removed yet.
func (l *Limiter) EstimateLen() (int64, error) { return 0, errTODO }

// Sync returns when everything answered before it is on disk.
func (l *Limiter) Sync() error { return errTODO }

// Now returns the time on the engine's clock.
func (l *Limiter) Now() time.Time { return time.Time{} }

// Metrics returns counters and sizes.
func (l *Limiter) Metrics() Metrics { return Metrics{} }

// Metrics are counters since Open, and sizes now.
type Metrics struct {
	Rounds       uint64 // batches committed
	Writes       uint64 // records written or deleted by them
	CacheHits    uint64
	CacheMisses  uint64
	CacheEntries int64
	CacheBytes   int64  // of Options.CacheSize
	DiskBytes    uint64 // size of the store on disk
	Compactions  int64
	Flushes      int64
}
