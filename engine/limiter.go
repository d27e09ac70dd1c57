package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine/limit"
	"github.com/gabiondb/gabion/ttl"
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
	purger purger
	views  openViews

	checkpoint passLock // held while one is made

	markKey []byte
	clean   bool // nothing has changed since the sidecars were last up to date

	lists lists
}

// Open opens the store in dir, which nobody else may have open meanwhile, and
// makes it if dir is empty or does not exist. A nil opts is the zero Options.
// Close closes the store again.
//
// Errors: limit.ErrInvalid, ErrInUse, ErrForeign, ErrNewerFormat, ErrDamaged, or what the file system says.
func Open(dir string, opts *Options) (*Limiter, error) {
	o, err := opts.complete()
	if err != nil {
		return nil, err
	}
	if len(o.Prefix) > 0 || o.Events != nil {
		return nil, fmt.Errorf("%w: the options Prefix and Events are for New", limit.ErrInvalid)
	}
	l := newLimiter(codec.Keyspace{}, o)
	mark, err := l.store.open(dir, &l.keys, &l.opts, l.purger.tablesWritten(l.keys))
	if err == nil {
		if err = l.start(mark); err == nil {
			return l, nil
		}
		err = errors.Join(err, l.store.close())
	}
	if pebble.IsCorruptionError(err) && !errors.Is(err, ErrDamaged) {
		err = fmt.Errorf("%w: %s: %w", ErrDamaged, dir, err)
	}
	if errors.Is(err, ErrDamaged) {
		err = fmt.Errorf("%w; gabion check tells more, and a backup brings back what is lost", err)
	}
	return nil, err
}

// newLimiter returns a limiter that has no store yet.
func newLimiter(keys codec.Keyspace, opts Options) *Limiter {
	l := &Limiter{keys: keys, opts: opts}
	l.store.failure.failed = make(chan struct{})
	l.checkpoint = make(passLock, 1)
	l.purger.wake, l.purger.mu = make(chan struct{}, 1), make(passLock, 1)
	l.purger.ctx, l.purger.cancel = context.WithCancel(context.Background())
	return l
}

// start sets l going on the store that it has, which was left at mark.
func (l *Limiter) start(mark codec.Mark) error {
	l.markKey = l.keys.AppendMeta(nil, codec.MetaMark)
	l.clock = newClockOn(cmp.Or(l.opts.system, &thisSystem), l.opts.Now, mark.Now)
	l.clean = mark.Clean
	l.calls.idle = make(chan struct{}, 1)
	for i := range l.shards {
		l.shards[i].cache = newCache(l.opts.CacheSize / shardCount)
		l.shards[i].mark = mark.Now
	}
	if err := l.loadSidecars(mark.Clean); err != nil {
		return err
	}
	base := l.clock.now()
	l.purger.horizon = ttl.Horizon{
		Mark:    cmp.Or(mark.Now, base), // without a mark there is nothing that a clock could endanger
		Base:    base,
		Ahead:   l.opts.PurgeAhead,
		Confirm: l.opts.PurgeConfirm,
	}
	l.rounds.init(l.opts.Durability == Always)
	l.rounds.stopped.Add(2)
	go l.run()
	go l.ack()
	if !l.opts.NoPurge {
		l.purger.stopped.Add(1)
		go l.purge()
	}
	return nil
}

// Close waits for the calls under way, syncs what they have changed, whatever
// the durability, and closes the store, if Open has opened it. Calls that come
// later return ErrClosed, a second Close too. When the storage has failed Close
// returns the failure.
func (l *Limiter) Close() error {
	underWay, first := l.calls.close()
	if !first {
		return ErrClosed
	}
	l.purger.cancel() // or a call of Purge could wait for a pass
	if underWay {
		<-l.calls.idle
	}
	l.purger.stopped.Wait()
	close(l.rounds.stop)
	l.rounds.stopped.Wait()
	for i := range l.shards {
		for _, b := range []*pebble.Batch{l.shards[i].purged, l.shards[i].beside} {
			if b != nil {
				_ = b.Close()
			}
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
	Writes       uint64 // records that they wrote or deleted, with an application's in transactions
	CacheHits    uint64 // operations that found their key's state in the cache
	CacheMisses  uint64 // operations that had to look in the store
	CacheEntries int64
	CacheBytes   int64 // of Options.CacheSize
	DiskBytes    uint64

	// What there is to purge: Records counts those on disk, expired ones too,
	// and Expired the expired ones. Both are estimates: the sidecars tell when
	// a record falls due to a quarter of the time that it had to go when they
	// were last made, and after a crash they guess until they were made anew.
	Records, Expired int64

	// Backlog is how many of the expired records the purge would see to at
	// once, if it had the time: the rest is not worth it yet.
	Backlog int64

	Purged      uint64    // records of keys deleted because they had expired
	PurgedBytes uint64    // their size and that of quotas' requests; without the chunks of rolling lists
	PurgePasses uint64    // passes over the slices of a sidecar
	LastPurge   time.Time // when the last of them ended; zero if none has

	// PurgeBehind is how far behind the engine's clock the last pass has
	// stayed, because the wall clock may have been wrong: see
	// Options.PurgeAhead.
	PurgeBehind time.Duration

	// OldestView is how long the oldest view that is open has been. As long as
	// it is, what is deleted keeps its space.
	OldestView time.Duration

	TableBytes  int64 // the share of the tables in DiskBytes
	Flushes     int64 // of memtables to tables
	Compactions int64
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
	now := l.clock.now()
	horizon := now - l.purger.behind.Load()
	for i := range l.shards {
		sh := &l.shards[i]
		sh.mu.Lock()
		m.CacheHits += sh.cache.hits
		m.CacheMisses += sh.cache.misses
		m.CacheEntries += int64(len(sh.cache.ring))
		m.CacheBytes += sh.cache.bytes
		for j := range sh.sidecars {
			sum := &sh.sidecars[j].sum
			m.Records += sum.Records()
			m.Expired += sum.Due(now)
			if sum.Worth(horizon, l.opts.PurgeWait) {
				m.Backlog += sum.Due(horizon)
			}
		}
		sh.mu.Unlock()
	}
	m.Purged = l.purger.dropped.Load()
	m.PurgedBytes = l.purger.reclaimed.Load()
	m.PurgePasses = l.purger.passes.Load()
	if last := l.purger.last.Load(); last != 0 {
		m.LastPurge = time.Unix(0, last)
	}
	m.PurgeBehind = time.Duration(l.purger.behind.Load())
	m.OldestView = l.views.oldest()
	p := l.db.Metrics()
	m.DiskBytes = p.DiskSpaceUsage()
	m.TableBytes = tableBytes(p)
	m.Flushes = p.Flush.Count
	m.Compactions = p.Compact.Count
	return m
}

// complete returns o, which may be nil, with the defaults in place of zeros, and
// what validate says of that.
func (o *Options) complete() (Options, error) {
	var all Options
	if o != nil {
		all = *o
	}
	all.setDefaults()
	return all, all.validate()
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
		{"PurgePace", o.PurgePace, 1, math.MaxInt64},
		{"PurgeWait", int64(o.PurgeWait), 1, math.MaxInt64},
		{"PurgeAhead", int64(o.PurgeAhead), 1, math.MaxInt64},
		{"PurgeConfirm", int64(o.PurgeConfirm), 1, math.MaxInt64},
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
	o.PurgePace = cmp.Or(o.PurgePace, DefaultPurgePace)
	o.PurgeWait = cmp.Or(o.PurgeWait, DefaultPurgeWait)
	o.PurgeAhead = cmp.Or(o.PurgeAhead, DefaultPurgeAhead)
	o.PurgeConfirm = cmp.Or(o.PurgeConfirm, DefaultPurgeConfirm)
	o.SyncInterval = cmp.Or(o.SyncInterval, 10*time.Millisecond)
	o.CacheSize = cmp.Or(o.CacheSize, DefaultCacheSize)
	o.BlockCacheSize = cmp.Or(o.BlockCacheSize, DefaultBlockCacheSize)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.FS == nil {
		o.FS = defaultFS
	}
}
