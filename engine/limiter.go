package engine

import (
	"cmp"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine/limit"
)

// Format is the newest format of a store that this version reads, and the one
// that it writes.
const Format = codec.Format

// A Limiter keeps rate limits in a Pebble store. Its methods are safe for
// concurrent use. Keys that are passed to it are not retained.
type Limiter struct {
	store
	opts  Options
	keys  codec.Keyspace
	clock *clock

	calls  calls
	shards [shardCount]shard
	rounds rounds

	markKey []byte

	lists lists
}

// Open opens the store in dir, which nobody else may have open meanwhile, and
// makes it if dir is empty or does not exist. A nil opts is the zero Options.
// Close closes the store again.
//
// Errors: limit.ErrInvalid, ErrInUse, ErrForeign, ErrNewerFormat, or what the file system says.
func Open(dir string, opts *Options) (*Limiter, error) {
	l := &Limiter{}
	if opts != nil {
		l.opts = *opts
	}
	l.opts.setDefaults()
	if err := l.opts.validate(); err != nil {
		return nil, err
	}
	mark, err := l.store.open(dir, &l.opts)
	if err != nil {
		return nil, err
	}
	l.keys = codec.Keyspace{Seed: l.store.seed}
	l.markKey = l.keys.AppendMeta(nil, codec.MetaMark)
	l.clock = newClock(l.opts.Now, mark)
	l.calls.idle = make(chan struct{}, 1)
	for i := range l.shards {
		l.shards[i].cache = newCache(l.opts.CacheSize / shardCount)
	}
	l.rounds.init()
	l.rounds.stopped.Add(2)
	go l.run()
	go l.ack()
	return l, nil
}

// Close waits for the calls under way, syncs what they have changed, whatever
// the durability, and closes the store. Calls that come later return
// ErrClosed, a second Close too. When the storage has failed Close returns
// the failure.
func (l *Limiter) Close() error {
	if !l.calls.close() {
		return ErrClosed
	}
	close(l.rounds.stop)
	l.rounds.stopped.Wait()
	for i := range l.shards {
		if b := l.shards[i].beside; b != nil {
			_ = b.Close()
		}
	}
	err := l.store.close()
	return cmp.Or(l.failure.get(), err)
}

// Now returns the time on the engine's clock. It never goes back.
func (l *Limiter) Now() time.Time { return time.Unix(0, l.clock.now()) }

// Failed returns a channel that is closed when the storage fails.
func (l *Limiter) Failed() <-chan struct{} { return l.failure.failed }

// Failure returns the error that the storage has failed with, which wraps
// ErrStorage, or nil.
func (l *Limiter) Failure() error { return l.failure.get() }

// Metrics are counters since Open, and sizes now.
type Metrics struct {
	Rounds       uint64 // batches committed
	Writes       uint64 // records that they wrote or deleted
	CacheHits    uint64 // operations that found their key's state in the cache
	CacheMisses  uint64 // operations that had to look in the store
	CacheEntries int64
	CacheBytes   int64 // of Options.CacheSize
	DiskBytes    uint64
	Flushes      int64 // of memtables to tables
	Compactions  int64
}

// Metrics returns the limiter's metrics; zeros when it is closed.
func (l *Limiter) Metrics() Metrics {
	if !l.calls.enter() {
		return Metrics{}
	}
	defer l.calls.exit()
	m := Metrics{
		Rounds: l.rounds.count.Load(),
		Writes: l.rounds.writes.Load(),
	}
	for i := range l.shards {
		sh := &l.shards[i]
		sh.mu.Lock()
		m.CacheHits += sh.cache.hits
		m.CacheMisses += sh.cache.misses
		m.CacheEntries += int64(len(sh.cache.ring))
		m.CacheBytes += sh.cache.bytes
		sh.mu.Unlock()
	}
	p := l.db.Metrics()
	m.DiskBytes = p.DiskSpaceUsage()
	m.Flushes = p.Flush.Count
	m.Compactions = p.Compact.Count
	return m
}

// validate returns an error that wraps limit.ErrInvalid and names the option
// that is out of its range, or nil.
func (o *Options) validate() error {
	for _, option := range []struct {
		name            string
		value, min, max int64
	}{
		{"Durability", int64(o.Durability), int64(Always), int64(Never)},
		{"SyncInterval", int64(o.SyncInterval), 1, math.MaxInt64},
		{"CacheSize", o.CacheSize, 1, math.MaxInt64},
		{"BlockCacheSize", o.BlockCacheSize, 1, math.MaxInt64},
		{"QuotaMaxLimit", o.QuotaMaxLimit, 1, MaxLimit},
		{"QuotaMaxWindow", int64(o.QuotaMaxWindow), 1, int64(MaxWindow)},
		{"RollingMaxWindow", int64(o.RollingMaxWindow), 1, int64(MaxWindow)},
	} {
		if option.value < option.min || option.value > option.max {
			return fmt.Errorf("%w: the option %s is %d, outside %d..%d", limit.ErrInvalid, option.name, option.value, option.min, option.max)
		}
	}
	return nil
}

func (o *Options) setDefaults() {
	o.QuotaMaxLimit = cmp.Or(o.QuotaMaxLimit, 10_000)
	o.QuotaMaxWindow = cmp.Or(o.QuotaMaxWindow, 24*time.Hour)
	o.RollingMaxWindow = cmp.Or(o.RollingMaxWindow, 24*time.Hour)
	o.SyncInterval = cmp.Or(o.SyncInterval, 10*time.Millisecond)
	o.CacheSize = cmp.Or(o.CacheSize, 256<<20)
	o.BlockCacheSize = cmp.Or(o.BlockCacheSize, 64<<20)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.FS == nil {
		o.FS = defaultFS
	}
}
