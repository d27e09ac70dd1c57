package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
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
// writes none.
//
// Close leaves the store open, and has to be called before the store is closed. If
// the store is closed first, a limiter that has nothing to do answers ErrStorage from
// then on. But Pebble frees the memory that a write or a read under way uses, which
// may end the process; and with a Durability that answers at once writes are under
// way after the calls have returned.
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
//     unless it is another: see pebble.Options.Logger. Where Fatalf returns Pebble
//     takes writes until its memtables are full, and then holds them up for good:
//     the limiter is to be closed before. Options.Logger is told what the limiter
//     itself has to say.
//   - Purges flush the store, once they have been over for some seconds. They follow the
//     store's compactions if the application has it opened with Options.Events.
//
// Errors: limit.ErrInvalid, ErrInUse for a prefix that another limiter has, or
// that begins with its prefix, or it with that; ErrForeign for one under which
// there is something else, or that is inside what another limiter has left;
// ErrComparer, ErrNotWritable, ErrNewerFormat, ErrCorrupt for a mark that can't be
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
	if err := lent.take(db, o.Prefix); err != nil {
		return nil, err
	}
	l.db, l.lent = db, true
	o.Events.add(&l.store, l.purger.tablesWritten(l.keys))
	l.opened = append(l.opened, closer(func() {
		o.Events.remove(&l.store)
		lent.giveBack(db, o.Prefix)
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

// recoverClosed makes a failure of a panic that is due to the application's having
// closed the store.
func (s *store) recoverClosed(err *error) {
	if r := recover(); r != nil {
		if !isClosed(s.db) {
			panic(r)
		}
		*err = s.failure.set(fmt.Errorf("%w: the application has closed it: %v", ErrNotWritable, r))
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

// checkOrder tells whether db has keys like those of a limiter in the order of
// their bytes, tells each from all others, and splits them in that order, too. It
// tries keys that comparers treat in ways of their own, in batches that are not
// written.
func checkOrder(db *pebble.DB, keys *codec.Keyspace) (err error) {
	defer func() {
		// A comparer may expect keys of another form.
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrComparer, r)
		}
	}()
	for _, pair := range trialPairs(keys) {
		if err := checkTrial(db, sorted(pair[:])); err != nil {
			return err
		}
	}
	tried := sorted(trialKeys(keys))
	if err := checkTrial(db, tried); err != nil {
		return err
	}
	return checkSplit(db, tried)
}

// sorted returns keys in order, each once.
func sorted(keys [][]byte) [][]byte {
	slices.SortFunc(keys, bytes.Compare)
	return slices.CompactFunc(keys, bytes.Equal)
}

// checkTrial tells whether db has tried in order, and finds each of them.
func checkTrial(db *pebble.DB, tried [][]byte) error {
	b := db.NewIndexedBatch()
	defer b.Close()
	// Pebble compares a key with the one before it only if it is the older.
	for _, key := range slices.Backward(tried) {
		if err := b.Set(key, nil, nil); err != nil {
			return storageError(err)
		}
	}
	it, err := b.NewBatchOnlyIter(context.Background(), nil)
	if err != nil {
		return storageError(err)
	}
	defer it.Close()
	it.First()
	for _, key := range tried {
		if !it.Valid() || !bytes.Equal(it.Key(), key) {
			return fmt.Errorf("%w: it has %q where %q belongs", ErrComparer, it.Key(), key)
		}
		it.Next()
	}
	for _, key := range tried {
		if !it.SeekPrefixGE(key) || !bytes.Equal(it.Key(), key) {
			return fmt.Errorf("%w: it does not find %q", ErrComparer, key)
		}
	}
	return storageError(it.Error())
}

// checkSplit tells whether db splits tried, which are in order, so that the first
// parts are in order, too: tables store them apart, and search among them.
func checkSplit(db *pebble.DB, tried [][]byte) error {
	b := db.NewIndexedBatch()
	defer b.Close()
	it, err := b.NewBatchOnlyIter(context.Background(), nil)
	if err != nil {
		return storageError(err)
	}
	defer it.Close()
	var last []byte
	for _, key := range tried {
		part, ok := splitOf(it, key)
		if !ok || bytes.Compare(last, part) > 0 {
			return fmt.Errorf("%w: it splits %q behind %q, and has %q before it", ErrComparer, key, part, last)
		}
		last = part
	}
	return nil
}

// splitOf returns the part of key that the comparer under it splits off, and
// whether that is a key which is split at its end, as it has to be. Pebble does not
// tell. But it does not seek key from a bound behind it unless the two have that
// part in common.
func splitOf(it *pebble.Iterator, key []byte) (part []byte, ok bool) {
	defer it.SetBounds(nil, nil)
	same := func(bound, key []byte) bool {
		it.SetBounds(nil, bound)
		it.SeekPrefixGE(key)
		return it.Error() == nil
	}
	n := 1 + sort.Search(len(key)-1, func(n int) bool { return same(key[:1+n], key) })
	if n < len(key) {
		return key[:n], true
	}
	smaller := bytes.Clone(key)
	if smaller[len(key)-1] == 0 {
		return key, true
	}
	smaller[len(key)-1]--
	return key, !same(smaller, key)
}

// trialPairs returns pairs of keys that a comparer may take for one.
func trialPairs(keys *codec.Keyspace) (pairs [][2][]byte) {
	long := strings.Repeat("k", MaxKeyLen-1)
	for _, users := range [][2]string{
		{"A", "a"}, {"aB", "ab"}, {"\u00c9", "\u00e9"}, {"\u00e9", "e\u0301"}, {"1", "01"}, {"1", "1.0"}, {"a", "a "}, {"a", " a"},
		{"a", "a\x00"}, {"a\x00", "a\x00\x00"}, {"\xfe", "\xff"}, {"a-b", "a_b"}, {"a/b", "a//b"}, {"a", "a@0"}, {long + "0", long + "1"},
	} {
		a, b := []byte(users[0]), []byte(users[1])
		pairs = append(pairs,
			[2][]byte{keys.AppendHead(nil, 7, a), keys.AppendHead(nil, 7, b)},
			[2][]byte{keys.AppendChunkKey(nil, 7, a, 1), keys.AppendChunkKey(nil, 7, b, 1)},
			[2][]byte{keys.AppendRequestKey(nil, 7, a, "id"), keys.AppendRequestKey(nil, 7, b, "id")})
	}
	user := []byte("a")
	for bit := range 8 {
		n := uint64(1) << (bit * 8)
		pairs = append(pairs,
			[2][]byte{keys.AppendHead(nil, 0, user), keys.AppendHead(nil, uint16(n), user)},
			[2][]byte{keys.AppendChunkKey(nil, 0, user, 0), keys.AppendChunkKey(nil, 0, user, int64(n))},
			[2][]byte{keys.AppendRequestKey(nil, 0, user, "id"), keys.AppendRequestKey(nil, int64(n), user, "id")},
			[2][]byte{keys.AppendSidecarKey(nil, 0), keys.AppendSidecarKey(nil, 1<<bit)})
	}
	for _, ids := range [][2]string{{"a", "A"}, {"id-1", "id_1"}, {"id-1", "id-01"}, {"id", "id-"}} {
		pairs = append(pairs, [2][]byte{keys.AppendRequestKey(nil, 7, user, ids[0]), keys.AppendRequestKey(nil, 7, user, ids[1])})
	}
	return pairs
}

// trialKeys returns keys as a limiter has them, in no order. Comparers may see
// numbers, versions, or lengths in them, or what separates one part from another.
func trialKeys(keys *codec.Keyspace) [][]byte {
	const alphabet = "\x00\x01\x02\x08\x09\x0c\x0d 09@AZaz_\x7f\x80\xfe\xff"
	users := [][]byte{[]byte("a"), []byte("A"), []byte("a/2"), []byte("a/10"), []byte("a@1"), []byte("a@10"), []byte("a@9"), {0}, {0xff}}
	rng := rand.New(rand.NewPCG(1, 2)) // the same keys each time
	for range 50 {
		user := make([]byte, 1+rng.IntN(20))
		for i := range user {
			user[i] = alphabet[rng.IntN(len(alphabet))]
		}
		users = append(users, user)
	}
	trial := [][]byte{keys.AppendMeta(nil, codec.MetaIdentity), keys.AppendMeta(nil, codec.MetaMark)}
	for s := range 256 {
		trial = append(trial, keys.AppendHead(nil, 1, []byte{'a', byte(s), '1'}))
	}
	for i, user := range users {
		trial = append(trial,
			keys.AppendSidecarKey(nil, uint8(i)),
			keys.AppendHead(nil, 1, user), // beside each other
			keys.AppendHead(nil, uint16(rng.Uint32()), user))
		for _, ordinal := range []int64{0, 1, rng.Int64()} {
			trial = append(trial, keys.AppendChunkKey(nil, 1, user, ordinal))
		}
		for _, deadline := range []int64{1, rng.Int64()} {
			trial = append(trial,
				keys.AppendRequestKey(nil, deadline, user, "id-9"),
				keys.AppendRequestKey(nil, deadline, user, "id-10"))
		}
	}
	return trial
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
// of those that fail, which it would else wait for until its context ends: of all of
// them, since what others have in the store is compacted with it. The zero value is
// ready for use; one is for one store, and for all limiters in it:
//
//	events := new(engine.Events)
//	listener := events.Listener()
//	db, err := pebble.Open(dir, &pebble.Options{EventListener: &listener})
//	…
//	l, err := engine.New(db, &engine.Options{Prefix: []byte("limits/"), Events: events})
//
// To have a listener of its own as well the application uses
// pebble.TeeEventListener. That leaves BackgroundError and DataCorruption to the
// two, where Pebble would log the one and end the process for the other; Listener has
// neither.
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
	if err != nil && isRoutine(err) {
		return
	}
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

// isRoutine tells whether err is how Pebble reports what is no trouble: a flush of
// which there was nothing to write, for which it exports no error, and a compaction
// that it begins anew.
func isRoutine(err error) bool {
	return errors.Is(err, pebble.ErrCancelledCompaction) || err.Error() == "pebble: empty table"
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
