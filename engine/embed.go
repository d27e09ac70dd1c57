package engine

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine/limit"
)

var (
	// ErrComparer is returned by New for a store whose comparer does not order
	// keys as their bytes do, takes different ones for equal, or splits them so that
	// the first parts are in another order than the keys.
	ErrComparer = errors.New("engine: the store's comparer does not order keys as bytes do")

	// ErrNotWritable is returned by New for a store that has been closed, is open
	// for reading only, or writes no log.
	ErrNotWritable = errors.New("engine: the store does not take durable writes")
)

// MaxPrefixLen is the length of the longest Options.Prefix, in bytes.
const MaxPrefixLen = 256

// New starts a limiter in a Pebble store that the application has opened, of
// whatever format version and options, and goes on using. All that the limiter
// has is kept under opts.Prefix, which is required; of other keys it reads and
// writes none. The application writes none under the prefix: as long as there is
// one, New returns ErrForeign. To be rid of a limiter for good, close it and delete
// the range of its prefix.
//
// Close leaves the store open, and has to be called before the store is closed. If
// the store is closed first, a limiter that has nothing to do answers ErrStorage from
// then on. But Pebble frees the memory that a write or a read under way uses, which
// may end the process; and with a Durability that answers at once writes are under
// way after the calls have returned.
//
// There may be several limiters in one store, as long as no prefix begins with
// another; a transaction is of one of them. Of opts New does not take FS, which is
// the application's affair, nor BlockCacheSize.
//
// What the application decides by opening the store holds for the limiter too:
//
//   - The limiter syncs the store's log as its Durability says. That makes durable
//     what others have written before it, too, and waits for it.
//   - When Pebble holds up writes, because it can't flush or compact as fast as
//     they come, calls of the limiter wait as well.
//   - As long as an iterator or a snapshot of the application is open, what the
//     limiter deletes keeps its space; a View of the limiter does the same to the
//     application.
//   - A log that can't be written or synced fails the limiter at its next sync, as in
//     a store of its own: see Limiter.Failed. But of writes without a sync, as all are
//     under Never, Pebble tells nobody that they fail: it panics in one that comes
//     later, which may end the process, or holds it up for ever.
//   - What fails in the background (a flush, a compaction, the manifest)
//     Pebble tells to the application's logger, whose Fatalf ends the process
//     unless it is another: see pebble.Options.Logger. Where Fatalf returns Pebble
//     takes writes until its memtables are full, and then holds them up for good:
//     the limiter is to be closed before. Options.Logger is told what the limiter
//     itself has to say.
//   - Purges flush the store, once they have been over for some seconds. They follow the
//     store's compactions if the application has it opened with Options.Events.
//
// Errors: limit.ErrInvalid; ErrInUse if another limiter has the prefix, or one of the
// two begins with the other; ErrForeign for one under which there is something
// else, or that is inside what another limiter has left; ErrComparer, ErrNotWritable, ErrNewerFormat, ErrCorrupt for a mark that can't be
// read, or ErrStorage with what Pebble says.
func New(db *pebble.DB, opts *Options) (_ *Limiter, err error) {
	o, err := opts.complete()
	switch {
	case err != nil:
		return nil, err
	case db == nil:
		return nil, fmt.Errorf("%w: there is no store", limit.ErrInvalid)
	case len(o.Prefix) < 1 || len(o.Prefix) > MaxPrefixLen:
		return nil, fmt.Errorf("%w: the option Prefix has %d bytes, want 1..%d", limit.ErrInvalid, len(o.Prefix), MaxPrefixLen)
	}
	o.Prefix = bytes.Clone(o.Prefix)
	l := newLimiter(codec.Keyspace{Prefix: o.Prefix}, o)
	if err := registry.take(db, o.Prefix); err != nil {
		return nil, err
	}
	l.db, l.lent = db, true
	o.Events.add(&l.store, l.purger.tablesWritten(l.keys))
	l.opened = append(l.opened, closer(func() {
		o.Events.remove(&l.store)
		registry.giveBack(db, o.Prefix)
	}))
	if err := l.settleIn(); err != nil {
		return nil, errors.Join(err, l.store.close())
	}
	return l, nil
}

// settleIn starts l on what is under its prefix, unless that is not fit for it.
func (l *Limiter) settleIn() (err error) {
	defer l.recoverClosed(&err)
	for _, check := range []func(*pebble.DB, *codec.Keyspace) error{checkLog, checkOrder, checkOuter} {
		if err := check(l.db, &l.keys); err != nil {
			return err
		}
	}
	mark, made, err := l.identify(fmt.Sprintf("what is under %q", l.keys.Prefix), &l.keys)
	if err == nil && !made {
		err = checkGaps(l.db, &l.keys)
	}
	if err != nil {
		return err
	}
	return l.start(mark)
}

type closer func()

func (c closer) Close() error {
	c()
	return nil
}

var errStoreClosed = fmt.Errorf("%w: the application has closed it", ErrNotWritable)

// recoverClosed makes a failure of a panic that is due to the application's having
// closed the store.
func (s *store) recoverClosed(err *error) {
	if r := recover(); r != nil {
		if !isClosed(s.db) {
			panic(r)
		}
		*err = s.failure.set(errStoreClosed)
	}
}

// isClosed tells whether db has been closed. It waits for nothing: whoever asks may
// have left Pebble's locks as they were.
func isClosed(db *pebble.DB) (closed bool) {
	defer func() {
		err, _ := recover().(error)
		closed = errors.Is(err, pebble.ErrClosed)
	}()
	_ = db.Apply(db.NewBatch(), pebble.NoSync) // there is nothing in it to write
	return false
}

// checkLog tells whether db has a log that can be synced.
func checkLog(db *pebble.DB, _ *codec.Keyspace) error {
	b := db.NewBatch()
	_ = b.LogData(nil, nil)
	if err := db.ApplyNoSyncWait(b, pebble.Sync); err != nil {
		return fmt.Errorf("%w: %w", ErrNotWritable, err)
	}
	if err := b.SyncWait(); err != nil {
		return storageError(err)
	}
	_ = b.Close()
	return nil
}

// checkOuter tells whether what is under the prefix is not inside another
// limiter's.
func checkOuter(db *pebble.DB, keys *codec.Keyspace) error {
	for n := range len(keys.Prefix) {
		outer := codec.Keyspace{Prefix: keys.Prefix[:n]}
		value, closer, err := db.Get(outer.AppendMeta(nil, codec.MetaIdentity))
		if errors.Is(err, pebble.ErrNotFound) {
			continue
		}
		if err != nil {
			return storageError(err)
		}
		_, err = codec.DecodeIdentity(value)
		closer.Close()
		if err == nil || errors.Is(err, codec.ErrVersion) {
			return fmt.Errorf("%w: what is under %q is inside what a limiter has under %q", ErrForeign, keys.Prefix, outer.Prefix)
		}
	}
	return nil
}

// checkGaps tells whether nobody else has keys under the prefix, as far as that
// shows without reading what lies where a limiter's do.
func checkGaps(db *pebble.DB, keys *codec.Keyspace) error {
	lower, upper := keys.Bounds()
	for _, part := range append(keys.StateSpans(), [2][]byte{upper, nil}) {
		if err := checkGap(db, keys, lower, part[0]); err != nil {
			return err
		}
		lower = part[1]
	}
	return nil
}

// checkGap tells whether there is nothing from lower to just before upper but meta
// values of keys.
func checkGap(db *pebble.DB, keys *codec.Keyspace, lower, upper []byte) error {
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper, KeyTypes: pebble.IterKeyTypePointsAndRanges})
	if err != nil {
		return storageError(err)
	}
	defer it.Close()
	for more := it.First(); more; more = it.Next() {
		if !bytes.Equal(it.Key(), keys.AppendMeta(nil, codec.MetaIdentity)) && !bytes.Equal(it.Key(), keys.AppendMeta(nil, codec.MetaMark)) {
			return fmt.Errorf("%w: under the prefix %q there is a key that no limiter has written: %q", ErrForeign, keys.Prefix, it.Key())
		}
	}
	return storageError(it.Error())
}

// registry is what limiters have of the stores of applications.
var registry = loans{prefixes: make(map[*pebble.DB][][]byte)}

// loans knows under which prefixes of which stores there are limiters: two in one
// place would each go by a cache of its own.
type loans struct {
	mu       sync.Mutex
	prefixes map[*pebble.DB][][]byte // guarded by mu
}

// take takes prefix in db, unless it begins with one that is taken, or one that is
// taken begins with it.
func (ls *loans) take(db *pebble.DB, prefix []byte) error {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, other := range ls.prefixes[db] {
		if bytes.HasPrefix(other, prefix) || bytes.HasPrefix(prefix, other) {
			return fmt.Errorf("%w: the prefix %q, by a limiter with the prefix %q", ErrInUse, prefix, other)
		}
	}
	ls.prefixes[db] = append(ls.prefixes[db], prefix)
	return nil
}

func (ls *loans) giveBack(db *pebble.DB, prefix []byte) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	left := slices.DeleteFunc(slices.Clone(ls.prefixes[db]), func(p []byte) bool { return bytes.Equal(p, prefix) })
	if ls.prefixes[db] = left; len(left) == 0 {
		delete(ls.prefixes, db)
	}
}

// of returns the prefixes that are taken in db.
func (ls *loans) of(db *pebble.DB) [][]byte {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.prefixes[db]
}

// span is the keys from lower to just before upper; nil is no bound.
type span struct{ lower, upper []byte }

// overlaps tells whether s has key or, if end is not nil, something of what is from
// key to just before end.
func (s span) overlaps(key, end []byte) bool {
	if s.upper != nil && bytes.Compare(key, s.upper) >= 0 {
		return false
	}
	if end == nil {
		return bytes.Compare(key, s.lower) >= 0
	}
	return bytes.Compare(end, s.lower) > 0
}

// reserved returns the spans of all keys of limiters in the store.
func (s *store) reserved() []span {
	if !s.lent {
		return []span{{}}
	}
	var spans []span
	for _, prefix := range registry.of(s.db) {
		lower, upper := codec.Keyspace{Prefix: prefix}.Bounds()
		spans = append(spans, span{lower, upper})
	}
	return spans
}
