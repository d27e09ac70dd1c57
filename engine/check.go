package engine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine/limit"
	"github.com/gabiondb/gabion/ttl"
)

// MaxDamage is how many damages a Report names. It counts all of them.
const MaxDamage = 100

// Report is what Check has found in a store.
type Report struct {
	Format uint64    // of the store
	Mark   time.Time // the largest time that the store has seen; zero if none
	Now    time.Time // what is Live, and what Expired
	Clean  bool      // the store was closed with its sidecars up to date

	// The keys by what they hold, and those whose record can't be read.
	GCRA, Quota, Rolling Count
	Unreadable           int64

	// Beside them: the requests that quotas have accepted, refunded or not, live
	// while their window is open, and the chunks of rolling lists.
	Requests Count
	Chunks   int64

	// The sidecars, and of how many stretches of the store they tell too much,
	// too little or nothing. After a crash that is no damage.
	Sidecars, StaleSidecars, MissingSidecars int64

	Bytes int64 // of all keys and values, as they were written

	Damaged int64    // how many damages there are
	Damage  []Damage // the first MaxDamage of them
}

// Count counts what is live and what has expired and is still there.
type Count struct{ Live, Expired int64 }

func (c *Count) add(live bool) {
	if live {
		c.Live++
	} else {
		c.Expired++
	}
}

// Damage is something that is wrong with a store.
type Damage struct {
	Key    []byte // the key that it concerns; nil if it concerns none, or nobody can tell
	What   string // what is wrong
	Remedy Remedy
}

// Remedy is what can be done about a damage.
type Remedy uint8

const (
	// RemedyRestore is for what only a backup of the store can mend.
	RemedyRestore Remedy = iota

	// RemedyReset is for what Limiter.Reset of the key ends, together with all
	// that the key holds.
	RemedyReset

	// RemedyNone is for what needs none, since it changes no answer.
	RemedyNone
)

// String returns a word for the remedy.
func (r Remedy) String() string {
	switch r {
	case RemedyRestore:
		return "restore"
	case RemedyReset:
		return "reset"
	case RemedyNone:
		return "none"
	}
	return fmt.Sprintf("remedy %d", uint8(r))
}

// Check reads all of the store in dir, which nobody may have open meanwhile, and
// reports what it holds and what is wrong with it. Every record has to decode
// and to lie where it belongs, and what lies beside the heads has to agree with
// them. It is for stores that Open has made. The store is not changed, but for the file that locks it, which is made
// if it is missing. The memory that Check takes does not grow with the store.
//
// Of opts it takes Now, BlockCacheSize, Logger and FS. progress, unless it is
// nil, is called with how many of the ScanEnd slices have been read.
//
// Damage is no error. Errors, for a store that could not be checked:
// limit.ErrInvalid, ErrInUse, ErrForeign, ErrNewerFormat, or what Pebble and the
// file system say.
func Check(dir string, opts *Options, progress func(slices int)) (r Report, err error) {
	o, err := opts.complete()
	if err != nil {
		return Report{}, err
	}
	if err := whole(dir, o.FS); err != nil {
		return Report{}, err
	}
	return check(dir, &o, progress)
}

func check(dir string, o *Options, progress func(slices int)) (r Report, err error) {
	s := store{failure: failure{failed: make(chan struct{})}}
	if dir, err = s.attach(dir, o, true, nil); err != nil {
		if !errors.Is(err, ErrDamaged) && !pebble.IsCorruptionError(err) {
			return Report{}, err
		}
		var c checker
		c.damage(nil, RemedyRestore, "%v", err)
		return c.report, nil
	}
	defer func() { err = errors.Join(err, s.close()) }()

	id, err := s.readIdentity(dir)
	if err != nil && !pebble.IsCorruptionError(err) {
		return Report{}, err
	}
	c := checker{
		db:       s.db,
		keys:     codec.Keyspace{Seed: id.Seed},
		progress: progress,
	}
	c.report.Format = id.Format
	c.tables(s.db, dir, o.FS)
	if err != nil {
		c.damage(nil, RemedyRestore, "the identity can't be read, without which no key can be checked: %v", err)
		return c.report, nil
	}
	c.check(newClock(o.Now, 0).now())
	return c.report, s.failure.get()
}

// readIdentity returns who wrote a store that nobody is to change.
func (s *store) readIdentity(dir string) (codec.Identity, error) {
	value, closer, err := s.db.Get(codec.Keyspace{}.AppendMeta(nil, codec.MetaIdentity))
	if errors.Is(err, pebble.ErrNotFound) {
		return codec.Identity{}, fmt.Errorf("%w: %s holds no identity", ErrForeign, dir)
	}
	if err != nil {
		return codec.Identity{}, storageError(err)
	}
	defer closer.Close()
	return identityOf(dir, value)
}

// checker goes through a store once, in the order of its keys.
type checker struct {
	db       pebble.Reader
	keys     codec.Keyspace
	progress func(slices int)

	now    int64 // what is live
	mark   codec.Mark
	report Report

	// What quotas have spent in open windows, by their heads and by their
	// requests: sums of digests, which agree if all of them do.
	seed              maphash.Seed
	byHead, byRequest uint64
	scratch           []byte

	tally tally
}

// tally is what the heads that a sidecar is about sum up to.
type tally struct {
	n      int         // the sidecar's number
	stored ttl.Sidecar // what the store has, if found is set
	heads  ttl.Sidecar // what the heads come to
	found  bool
	torn   bool // some of it all can't be read
}

// tables checks the files under the store: that each block of each table is what
// was written, also those that a walk through the keys does not need, and that
// the levels that the tables lie in are in order.
func (c *checker) tables(db *pebble.DB, dir string, fsys vfs.FS) {
	levels, err := db.SSTables()
	if err != nil {
		c.damage(nil, RemedyRestore, "the tables can't be listed: %v", err)
	}
	for _, tables := range levels {
		for _, table := range tables {
			name := table.BackingSSTNum.String() + ".sst"
			if err := checkTable(fsys, fsys.PathJoin(dir, name)); err != nil {
				c.damage(nil, RemedyRestore, "the table %s can't be read: %v", name, err)
			}
		}
	}
	err = db.CheckLevels(nil)
	if err != nil && (c.report.Damaged == 0 || !pebble.IsCorruptionError(err)) {
		c.damage(nil, RemedyRestore, "the levels of tables are not in order: %v", err)
	}
}

func checkTable(fsys vfs.FS, name string) error {
	f, err := fsys.Open(name, vfs.SequentialReadsOption)
	if err != nil {
		return err
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	r, err := sstable.NewReader(context.Background(), readable, sstable.ReaderOptions{})
	if err != nil {
		return errors.Join(err, readable.Close())
	}
	return errors.Join(r.ValidateBlockChecksums(), r.Close())
}

// check reads everything. The wall clock shows wall; the store's own is not
// behind its mark.
func (c *checker) check(wall int64) {
	c.now, c.seed = wall, maphash.MakeSeed()
	if value, closer, err := c.db.Get(c.keys.AppendMeta(nil, codec.MetaMark)); err == nil {
		if c.mark, err = codec.DecodeMark(value); err == nil {
			c.now = max(wall, c.mark.Now)
			c.report.Mark, c.report.Clean = time.Unix(0, c.mark.Now), c.mark.Clean
		}
		closer.Close()
	}
	c.report.Now = time.Unix(0, c.now)

	spans := c.keys.StateSpans()
	c.between(spans)
	c.heads(spans[1], spans[0])
	c.requests(spans[2], false, c.add)
	if c.byHead != c.byRequest {
		// Now it pays to look for each head, and each window, to name them.
		c.requests(spans[2], true, c.compare)
		c.unspent(spans[1])
	}
	c.sidecars(spans[3])
}

// damage takes down what is wrong. key may be changed afterwards.
func (c *checker) damage(key []byte, r Remedy, format string, args ...any) {
	c.report.Damaged++
	if len(c.report.Damage) < MaxDamage {
		// Pebble's errors go on for several lines.
		what, _, _ := strings.Cut(fmt.Sprintf(format, args...), "\n")
		c.report.Damage = append(c.report.Damage, Damage{Key: slices.Clone(key), What: what, Remedy: r})
	}
}

// between checks the keys that lie between the spans of the state: the meta
// values, and what nobody but a stranger has written.
func (c *checker) between(spans [][2][]byte) {
	lower, upper := c.keys.Bounds()
	for _, span := range append(spans, [2][]byte{upper, nil}) {
		u := c.walk("keys", [2][]byte{lower, span[0]}, 0, false)
		for u.next(); u.key != nil; u.next() {
			c.meta(u.key, u.value)
		}
		u.close()
		lower = span[1]
	}
}

func (c *checker) meta(key, value []byte) {
	switch string(key) {
	case string(c.keys.AppendMeta(nil, codec.MetaIdentity)):
		if _, err := codec.DecodeIdentity(value); err != nil {
			c.damage(nil, RemedyRestore, "the identity can't be read: %v", err)
		}
	case string(c.keys.AppendMeta(nil, codec.MetaMark)):
		if _, err := codec.DecodeMark(value); err != nil {
			c.damage(nil, RemedyRestore, "the mark can't be read: %v", err)
		}
	default:
		c.damage(nil, RemedyRestore, "the store has a key that gabion does not write: %x", key)
	}
}

// heads checks the heads, and beside them the chunks, which lie in the same
// order.
func (c *checker) heads(headSpan, chunkSpan [2][]byte) {
	heads, chunks := c.walk("records of keys", headSpan, 2, false), c.walk("chunks of rolling lists", chunkSpan, 2, false)
	defer heads.close()
	defer chunks.close()
	c.begin(0)
	chunks.next()
	beside := c.chunksOfOne(chunks)
	var key []byte
	for heads.next(); heads.key != nil; heads.next() {
		slice, user, err := c.keys.ParseHead(key[:0], heads.key)
		if err != nil {
			c.damage(nil, RemedyRestore, "%v", err)
			continue
		}
		key = user
		c.reach(int(slice)/codec.SlicesPerSidecar, heads.gap)
		for beside.before(heads) {
			c.orphans(&beside, heads.gap)
			beside = c.chunksOfOne(chunks)
		}
		if beside.of(heads) {
			c.head(slice, key, heads.value, &beside)
			beside = c.chunksOfOne(chunks)
		} else {
			c.head(slice, key, heads.value, &chunkRow{torn: beside.gap})
		}
	}
	for ; !beside.end(); beside = c.chunksOfOne(chunks) {
		c.orphans(&beside, heads.gap)
	}
	c.reach(codec.Sidecars, heads.gap)
}

// head checks the record of key, and the chunks beside it.
func (c *checker) head(slice uint16, key, record []byte, beside *chunkRow) {
	state, err := codec.DecodeState(record)
	if err != nil {
		c.report.Unreadable++
		c.tally.torn = true // its sidecar may count it
		c.damage(key, RemedyReset, "its record can't be read: %v", err)
		return
	}
	deadline := state.Deadline()
	live := !ttl.Expired(deadline, c.now)
	c.tally.heads.Add(deadline)
	want := c.keys.Slice(key)
	if slice != want {
		c.damage(key, RemedyRestore, "its record lies in slice %d, where nobody looks for it: it belongs into %d", slice, want)
	}
	switch state.Kind {
	case limit.KindGCRA:
		c.report.GCRA.add(live)
	case limit.KindQuota:
		c.report.Quota.add(live)
		if live && slice == want {
			c.byHead += c.digest(key, deadline, state.Quota.Used)
		}
	case limit.KindRolling:
		c.report.Rolling.add(live)
		c.list(key, state.Rolling, live, beside)
		return
	}
	if beside.found {
		c.damage(key, RemedyRestore, "it has chunks of a rolling list and holds none")
	}
}

// list checks that a list has the chunks that its head speaks of.
func (c *checker) list(key []byte, s *limit.RollingState, live bool, beside *chunkRow) {
	want, got := s.Chunks(), beside.span
	remedy := RemedyReset
	switch {
	case beside.found && (got.From < want.From || beside.newest >= want.To):
		remedy = RemedyRestore // what lies outside its own span outlives the list
	case !live:
		remedy = RemedyNone // nobody reads them again, and they go with the list
	}
	switch {
	case beside.fault != "":
		c.damage(key, remedy, "%s", beside.fault)
	case beside.torn, !beside.found && want.Empty():
	case !beside.found:
		c.damage(key, remedy, "the chunks of its events %d to %d are missing", want.From, want.To-1)
	case want.Empty():
		c.damage(key, remedy, "it has chunks for the events %d to %d, and its record knows of none", got.From, got.To-1)
	case got != want:
		c.damage(key, remedy, "its chunks hold the events %d to %d, not %d to %d", got.From, got.To-1, want.From, want.To-1)
	case beside.after != s.Runs[0].Stamp:
		c.damage(key, remedy, "its chunks end before %d, and its record begins at %d", beside.after, s.Runs[0].Stamp)
	}
}

// orphans takes down chunks that no head speaks of, unless there may have been
// one that can't be read.
func (c *checker) orphans(row *chunkRow, gap bool) {
	switch want := c.keys.Slice(row.key); {
	case row.slice != want:
		c.damage(row.key, RemedyRestore, "it has chunks of a rolling list in slice %d, which belong into %d", row.slice, want)
	case !gap:
		c.damage(row.key, RemedyRestore, "it has chunks of a rolling list that is not there, for events %d to %d", row.span.From, row.span.To-1)
	}
}

// chunkRow is the chunks of one list. The zero value is that of a list without
// any.
type chunkRow struct {
	found  bool
	place  []byte // the slice and the escaped key, as in a head
	slice  uint16
	key    []byte
	span   limit.Span // the ordinals that they hold
	newest int64      // the ordinal of the newest chunk
	after  int64      // the stamp of what comes after them
	fault  string     // what is wrong with the first of them that is wrong
	torn   bool       // there may be others that can't be read
	gap    bool       // the same of the lists between the one before and this one
}

// end tells whether the row is the one after the last.
func (r *chunkRow) end() bool { return !r.found }

func (r *chunkRow) before(heads *cursor) bool {
	return r.found && bytes.Compare(r.place, heads.place()) < 0
}

func (r *chunkRow) of(heads *cursor) bool {
	return r.found && bytes.Equal(r.place, heads.place())
}

// chunksOfOne reads the chunks of one list, the first of which u stands at.
func (c *checker) chunksOfOne(u *cursor) (r chunkRow) {
	for ; u.key != nil; u.next() {
		slice, key, ordinal, err := c.keys.ParseChunkKey(nil, u.key)
		if err != nil {
			c.damage(nil, RemedyRestore, "%v", err)
			continue
		}
		const ordinalSize = 8
		place := u.place()
		place = place[:len(place)-ordinalSize]
		if !r.found {
			r.found, r.slice, r.key, r.place = true, slice, key, bytes.Clone(place)
			r.gap = r.gap || u.gap
			r.span.From, r.span.To = ordinal, ordinal
		} else if !bytes.Equal(place, r.place) {
			break
		}
		c.report.Chunks++
		r.chunk(ordinal, u.value)
	}
	r.torn = u.gap && r.found
	if u.key == nil && !r.found {
		r.gap = r.gap || u.gap
	}
	return r
}

// chunk adds the chunk that lies under ordinal.
func (r *chunkRow) chunk(ordinal int64, value []byte) {
	c, err := codec.DecodeChunk(value)
	fault := ""
	switch {
	case err != nil:
		fault = fmt.Sprintf("its chunk from event %d on can't be read: %v", ordinal, err)
	case c.Runs[0].Ordinal != ordinal:
		fault = fmt.Sprintf("its chunk from event %d on begins with event %d", ordinal, c.Runs[0].Ordinal)
	case ordinal != r.span.To:
		fault = fmt.Sprintf("its chunk from event %d on follows one that ends before event %d", ordinal, r.span.To)
	case r.after != 0 && c.Runs[0].Stamp != r.after:
		fault = fmt.Sprintf("its chunk from event %d on begins at %d, and the one before it ends before %d", ordinal, c.Runs[0].Stamp, r.after)
	}
	r.fault = cmp.Or(r.fault, fault)
	r.newest = ordinal
	if err == nil {
		r.span.To, r.after = c.Next, c.After
	}
}

// window is what the request records of one window of a quota sum up to.
type window struct {
	key      []byte
	deadline int64
	spent    int64 // by those that have not been refunded
	torn     bool  // some of them can't be read
}

// requests checks the request records, unless it is quiet, and calls each with
// every open window. The records of one lie together.
func (c *checker) requests(span [2][]byte, quiet bool, each func(*window)) {
	u := c.walk("requests of quotas", span, 8, quiet)
	defer u.close()
	var w window // what is over may go now or later
	end := func() {
		w.torn = w.torn || u.gap
		if !ttl.Expired(w.deadline, c.now) {
			each(&w)
		}
	}
	var key []byte
	for u.next(); u.key != nil; u.next() {
		deadline, user, _, err := c.keys.ParseRequestKey(key[:0], u.key)
		if err != nil {
			w.torn = w.torn || u.gap
			if !quiet {
				c.damage(nil, RemedyRestore, "%v", err)
			}
			continue
		}
		key = user
		if deadline != w.deadline || !bytes.Equal(key, w.key) {
			end()
			w = window{key: append(w.key[:0], key...), deadline: deadline}
		}
		live := !ttl.Expired(deadline, c.now)
		r, err := codec.DecodeRequest(u.value)
		w.torn = w.torn || err != nil
		if !r.Refunded {
			w.spent = addSaturating(w.spent, r.Cost)
		}
		if quiet {
			continue
		}
		c.report.Requests.add(live)
		if err != nil {
			remedy := RemedyNone // no call reads it again
			if live {
				remedy = RemedyReset
			}
			c.damage(key, remedy, "the record of a request in its window up to %v can't be read: %v", utc(deadline), err)
		}
	}
	end()
}

// add adds a window to the sum of all.
func (c *checker) add(w *window) { c.byRequest += c.digest(w.key, w.deadline, w.spent) }

// digest returns a number that tells what has been spent in a window from
// whatever else that could be.
func (c *checker) digest(key []byte, deadline, spent int64) uint64 {
	b := binary.BigEndian.AppendUint64(c.scratch[:0], uint64(deadline))
	b = binary.BigEndian.AppendUint64(b, uint64(spent))
	c.scratch = append(b, key...)
	return maphash.Bytes(c.seed, c.scratch)
}

// compare compares the requests of a window with the head.
func (c *checker) compare(w *window) {
	value, closer, err := c.db.Get(c.keys.AppendHead(nil, c.keys.Slice(w.key), w.key))
	var state limit.State
	switch {
	case err == nil:
		state, err = codec.DecodeState(value)
		closer.Close()
	case errors.Is(err, pebble.ErrNotFound):
		err = nil
	}
	switch q := state.Quota; {
	case err != nil: // and known
	case q.Deadline != w.deadline:
		c.damage(w.key, RemedyNone, "it has requests in a window up to %v that its record does not know", utc(w.deadline))
	case !w.torn && q.Used != w.spent:
		c.damage(w.key, RemedyReset, "its requests have spent %d, and its record says %d", w.spent, q.Used)
	}
}

// unspent looks for quotas with an open window that have no request records.
func (c *checker) unspent(headSpan [2][]byte) {
	heads := c.walk("", headSpan, 2, true)
	defer heads.close()
	for heads.next(); heads.key != nil; heads.next() {
		slice, key, err := c.keys.ParseHead(nil, heads.key)
		if err != nil || slice != c.keys.Slice(key) {
			continue
		}
		state, err := codec.DecodeState(heads.value)
		if err != nil || state.Kind != limit.KindQuota || ttl.Expired(state.Quota.Deadline, c.now) {
			continue
		}
		lower, upper := c.keys.RequestBounds(state.Quota.Deadline, key)
		requests := c.walk("", [2][]byte{lower, upper}, 0, true)
		if requests.next(); requests.key == nil && !requests.gap {
			c.damage(key, RemedyReset, "it has spent %d, and the records of its requests are missing", state.Quota.Used)
		}
		requests.close()
	}
}

// sidecars checks that the sidecars can be read. What they tell has been compared
// with the heads.
func (c *checker) sidecars(span [2][]byte) {
	u := c.walk("sidecars", span, 0, false)
	defer u.close()
	for u.next(); u.key != nil; u.next() {
		n, err := c.keys.ParseSidecarKey(u.key)
		if err != nil {
			c.damage(nil, RemedyRestore, "%v", err)
			continue
		}
		c.report.Sidecars++
		if _, err := codec.DecodeSidecar(u.value); err != nil {
			c.damage(nil, RemedyNone, "sidecar %d can't be read: %v", n, err)
		}
	}
}

// begin begins to sum up the heads of sidecar n.
func (c *checker) begin(n int) {
	t := &c.tally
	*t = tally{n: n}
	value, closer, err := c.db.Get(c.keys.AppendSidecarKey(nil, uint8(n)))
	if err == nil {
		t.found = true
		var s codec.Sidecar
		s, err = codec.DecodeSidecar(value)
		t.stored, t.heads = ttl.LoadSidecar(s), ttl.NewSidecar(s.Since)
		closer.Close()
	}
	t.torn = err != nil && !errors.Is(err, pebble.ErrNotFound)
}

// reach ends the sums up to those of sidecar n, and begins with its own. gap
// tells that some heads on the way can't be read.
func (c *checker) reach(n int, gap bool) {
	for c.tally.n < n {
		c.tally.torn = c.tally.torn || gap
		c.sum()
		if c.progress != nil {
			c.progress((c.tally.n + 1) * codec.SlicesPerSidecar)
		}
		if c.tally.n+1 == codec.Sidecars {
			return
		}
		c.begin(c.tally.n + 1)
	}
	c.tally.torn = c.tally.torn || gap
}

// sum compares a sidecar with the heads that it is about. What it tells counts
// if the store was closed so; otherwise it is a hint.
func (c *checker) sum() {
	t := &c.tally
	switch {
	case t.torn:
	case !t.found && t.heads.Records() > 0:
		c.report.MissingSidecars++
		if c.mark.Clean {
			c.damage(nil, RemedyNone, "sidecar %d is missing, for %d records", t.n, t.heads.Records())
		}
	case t.found && t.stored != t.heads:
		c.report.StaleSidecars++
		if c.mark.Clean {
			c.damage(nil, RemedyNone, "sidecar %d does not count the %d records that it is about", t.n, t.heads.Records())
		}
	}
}

// cursor walks the keys of a span in their order. What Pebble can't read it
// reports and steps over, as far as it knows where to go on.
type cursor struct {
	c     *checker
	what  string // what is in the span
	width int    // how many bytes after the tag are a number that keys ascend by
	quiet bool   // what there is has been counted before

	it           *pebble.Iterator
	lower, upper []byte
	last         []byte // the newest key that could be read

	key, value []byte // nil at the end; good until the next step
	gap        bool   // something between the key before and this one can't be read
}

// walk returns a cursor before the first key of span.
func (c *checker) walk(what string, span [2][]byte, width int, quiet bool) *cursor {
	return &cursor{c: c, what: what, width: width, quiet: quiet, lower: span[0], upper: span[1]}
}

func (u *cursor) close() {
	if u.it != nil {
		_ = u.it.Close() // its error has been reported
		u.it = nil
	}
}

// place returns what follows the tag in the key.
func (u *cursor) place() []byte { return u.key[len(u.c.keys.Prefix)+1:] }

// next goes on to the next key.
func (u *cursor) next() {
	err := u.step()
	if u.gap = err != nil; u.gap {
		u.skip()
		if !u.quiet {
			u.c.damage(nil, RemedyRestore, "%s can't be read, %s: %v", u.what, stretch(u.last, u.key), err)
		}
	}
	if u.key == nil {
		return
	}
	u.last = append(u.last[:0], u.key...)
	if !u.quiet {
		u.c.report.Bytes += int64(len(u.key) + len(u.value))
	}
}

// step goes on to the next key, if there is one.
func (u *cursor) step() (err error) {
	u.key, u.value = nil, nil
	var more bool
	if u.it == nil {
		u.it, err = u.c.db.NewIter(&pebble.IterOptions{LowerBound: u.lower, UpperBound: u.upper})
		if err != nil {
			u.it = nil
			return err
		}
		more = u.it.First()
	} else {
		more = u.it.Next()
	}
	if !more {
		return u.it.Error()
	}
	value, err := u.it.ValueAndErr()
	if err != nil {
		return err
	}
	u.key, u.value = u.it.Key(), value
	return nil
}

// skip goes on to the first key that can be read and has a higher number than
// the newest one. It doubles its steps until it finds one, since keys may be far
// apart, and goes back by bisection.
func (u *cursor) skip() {
	if u.width == 0 {
		return
	}
	at := len(u.c.keys.Prefix) + 1
	from := u.lower
	if bytes.Compare(u.last, from) > 0 {
		from = u.last
	}
	var number [8]byte
	copy(number[8-u.width:], from[at:])
	tag := bytes.Clone(from[:at])
	try := func(n uint64) error {
		u.close()
		binary.BigEndian.PutUint64(number[:], n)
		u.lower = append(tag[:at:at], number[8-u.width:]...)
		return u.step()
	}
	bad, highest := binary.BigEndian.Uint64(number[:]), uint64(math.MaxUint64)>>(64-8*u.width)
	good := bad
	for step := uint64(1); ; step *= 2 {
		if bad == highest {
			return
		}
		good = bad + min(step, highest-bad)
		if try(good) == nil {
			break
		}
		bad = good
	}
	for good-bad > 1 {
		if middle := bad + (good-bad)/2; try(middle) == nil {
			good = middle
		} else {
			bad = middle
		}
	}
	_ = try(good) // as it did before
}

// stretch says between which keys of the store something is.
func stretch(after, before []byte) string {
	s := "from the first on"
	if len(after) > 0 {
		s = fmt.Sprintf("behind %x", after)
	}
	if before != nil {
		return fmt.Sprintf("%s, before %x", s, before)
	}
	return s + ", up to the end"
}

// utc returns a time as people write it.
func utc(ns int64) string { return time.Unix(0, ns).UTC().Format(time.RFC3339Nano) }
