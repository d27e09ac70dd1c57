package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine/limit"
)

var (
	// ErrComparer is returned by New for a store whose comparer does not order
	// keys as their bytes do.
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
// writes none. Close leaves the store open, and has to be called before the store
// is closed.
//
// There may be several limiters in one store, as long as no prefix begins with
// another. Of opts it does not take FS, which is the application's affair, nor
// BlockCacheSize.
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
//   - A log that can't be written or synced fails the limiter, as in a store of its
//     own. But what fails in the background (a flush, a compaction, the manifest)
//     Pebble tells to the application's logger, whose Fatalf ends the process
//     unless it is another: see pebble.Options.Logger. Options.Logger is told what
//     the limiter itself has to say.
//   - Purges flush the store, once they have been over for some seconds. They follow the
//     store's compactions if the application has it opened with Options.Events.
//
// Errors: limit.ErrInvalid, ErrInUse for a prefix that another limiter has, or
// that begins with its prefix, or it with that; ErrForeign for one under which
// there is something else; ErrComparer, ErrNotWritable, ErrNewerFormat,
// ErrDamaged, or what Pebble says.
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
	if err := l.borrow(db, &l.keys, &l.opts, l.purger.tablesWritten(l.keys)); err != nil {
		return nil, err
	}
	mark, _, err := l.identify(fmt.Sprintf("what is under %q", o.Prefix), &l.keys)
	if err == nil {
		err = l.start(mark)
	}
	if err != nil {
		return nil, errors.Join(err, l.store.close())
	}
	return l, nil
}

// borrow has s be what is under the prefix of keys in db, unless that is not fit
// for it. When it fails nothing is left to close.
func (s *store) borrow(db *pebble.DB, keys *codec.Keyspace, opts *Options, written func([]pebble.TableInfo)) (err error) {
	if err := lent.take(db, keys.Prefix); err != nil {
		return err
	}
	s.db, s.lent = db, true
	opts.Events.add(s, written)
	s.opened = append(s.opened, closer(func() {
		opts.Events.remove(s)
		lent.giveBack(db, keys.Prefix)
	}))
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	defer recoverClosed(&err)
	if err := checkLog(db); err != nil {
		return err
	}
	if err := checkOrder(db, keys); err != nil {
		return err
	}
	return checkAround(db, keys)
}

type closer func()

func (c closer) Close() error {
	c()
	return nil
}

// recoverClosed makes the panic with which Pebble meets whoever uses a store that
// has been closed an error.
func recoverClosed(err *error) {
	switch r := recover().(type) {
	case nil:
	case error:
		if !errors.Is(r, pebble.ErrClosed) {
			panic(r)
		}
		*err = fmt.Errorf("%w: %w: the application has closed it", ErrStorage, ErrNotWritable)
	default:
		panic(r)
	}
}

// checkLog tells whether db has a log that can be synced.
func checkLog(db *pebble.DB) error {
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

// checkOrder tells whether db has keys like those of a limiter in the order of
// their bytes, and tells each from all others. It tries keys that comparers treat
// in ways of their own (with numbers, versions, or lengths at their end, or letters of
// both cases), in a batch that is not written.
func checkOrder(db *pebble.DB, keys *codec.Keyspace) (err error) {
	defer func() {
		// A comparer may expect keys of another form.
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrComparer, r)
		}
	}()
	tried := trialKeys(keys)
	b := db.NewIndexedBatch()
	defer b.Close()
	for _, key := range tried {
		if err := b.Set(key, nil, nil); err != nil {
			return storageError(err)
		}
	}
	it, err := b.NewBatchOnlyIter(context.Background(), nil)
	if err != nil {
		return storageError(err)
	}
	defer it.Close()
	slices.SortFunc(tried, bytes.Compare)
	tried = slices.CompactFunc(tried, bytes.Equal)
	it.First()
	for _, key := range tried {
		if !it.Valid() || !bytes.Equal(it.Key(), key) {
			return fmt.Errorf("%w: it has %q where %q belongs", ErrComparer, it.Key(), key)
		}
		it.Next()
	}
	// Pebble splits keys for its filters, which Get asks.
	for _, key := range tried {
		if !it.SeekPrefixGE(key) || !bytes.Equal(it.Key(), key) {
			return fmt.Errorf("%w: it does not find %q", ErrComparer, key)
		}
	}
	return storageError(it.Error())
}

// trialKeys returns keys as a limiter has them, in no order.
func trialKeys(keys *codec.Keyspace) [][]byte {
	const alphabet = "\x00\x01\x02\x08\x09\x0c\x0d 09@AZaz_\x7f\x80\xfe\xff"
	users := [][]byte{[]byte("a"), []byte("A"), []byte("a@1"), []byte("a@10"), []byte("a@9"), []byte("a/2"), []byte("a/10"), {0}, {0xff}}
	rng := rand.New(rand.NewPCG(1, 2)) // the same keys each time
	for range 100 {
		user := make([]byte, 1+rng.IntN(20))
		for i := range user {
			user[i] = alphabet[rng.IntN(len(alphabet))]
		}
		users = append(users, user)
	}
	trial := [][]byte{keys.AppendMeta(nil, codec.MetaIdentity), keys.AppendMeta(nil, codec.MetaMark)}
	for i, user := range users {
		trial = append(trial, keys.AppendSidecarKey(nil, uint8(i)))
		for _, n := range []uint64{0, 1, uint64(i), rng.Uint64()} {
			trial = append(trial,
				keys.AppendHead(nil, uint16(n), user),
				keys.AppendChunkKey(nil, uint16(n), user, int64(n>>1)),
				keys.AppendRequestKey(nil, int64(n>>1), user, "id-9"),
				keys.AppendRequestKey(nil, int64(n>>1), user, "id-10"))
		}
	}
	return trial
}

// checkAround tells whether nobody else has keys under the prefix, as far as that
// shows without reading all of it, and that it is not inside another limiter's.
func checkAround(db *pebble.DB, keys *codec.Keyspace) error {
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
		if err == nil {
			return fmt.Errorf("%w: what is under %q is inside what a limiter has under %q", ErrForeign, keys.Prefix, outer.Prefix)
		}
	}
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
			return fmt.Errorf("%w: %q is under %q", ErrForeign, it.Key(), keys.Prefix)
		}
	}
	return storageError(it.Error())
}

// lent is what limiters have of the stores of applications.
var lent = loans{prefixes: make(map[*pebble.DB][][]byte)}

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
	for _, prefix := range lent.of(s.db) {
		lower, upper := codec.Keyspace{Prefix: prefix}.Bounds()
		spans = append(spans, span{lower, upper})
	}
	return spans
}

// Events tells limiters in a store of the application what Pebble does there in the
// background. So the purge follows the store's flushes and compactions, and Compact hears
// of those that fail, which it would else wait for until its context ends. The zero value is
// ready for use; one is for one store, and for all limiters in it:
//
//	events := new(engine.Events)
//	listener := events.Listener()
//	db, err := pebble.Open(dir, &pebble.Options{EventListener: &listener})
//	…
//	l, err := engine.New(db, &engine.Options{Prefix: []byte("limits/"), Events: events})
//
// To have a listener of its own as well the application uses
// pebble.TeeEventListener.
type Events struct {
	mu        sync.Mutex
	followers []follower // guarded by mu
}

type follower struct {
	store   *store
	written func([]pebble.TableInfo)
}

// Listener returns the listener to open the store with.
func (e *Events) Listener() pebble.EventListener {
	return pebble.EventListener{
		FlushEnd:      func(info pebble.FlushInfo) { e.tell(info.Output, info.Err) },
		CompactionEnd: func(info pebble.CompactionInfo) { e.tell(info.Output.Tables, info.Err) },
	}
}

// tell tells the followers which tables were written, or why none were. Pebble
// waits for it.
func (e *Events) tell(tables []pebble.TableInfo, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, f := range e.followers {
		if err != nil {
			f.store.trouble.meet(err)
		} else {
			f.written(tables)
		}
	}
}

// add and remove do nothing where there are no events.
func (e *Events) add(s *store, written func([]pebble.TableInfo)) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.followers = append(e.followers, follower{s, written})
}

func (e *Events) remove(s *store) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.followers = slices.DeleteFunc(e.followers, func(f follower) bool { return f.store == s })
}
