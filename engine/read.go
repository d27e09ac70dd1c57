package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine/limit"
	"github.com/gabiondb/gabion/ttl"
)

// A View reads the store as it was at one instant. It is valid during the call
// of its function only, and for one goroutine.
//
// What holds the instant is an iterator, which reads at one sequence number as
// a Pebble snapshot does. Unlike a snapshot it is in no list that Pebble would
// look through for compactions to do when it is closed: a probe is to cause
// none.
type View struct {
	l     *Limiter
	it    *pebble.Iterator
	now   int64
	round uint64 // the newest that the view can show

	head []byte // scratch of what reads one key
	key  []byte // scratch of Scan, whose visit may read others
}

// closedViews holds views for their scratch.
var closedViews = sync.Pool{New: func() any { return new(View) }}

// view opens a view on the store as it is when all rounds up to applied are
// visible. The clock is read after it.
func (l *Limiter) view(applied uint64) (*View, error) {
	if err := l.waitApplied(applied); err != nil {
		return nil, err
	}
	it, err := l.iter(nil, nil)
	if err != nil {
		return nil, storageError(err)
	}
	v := closedViews.Get().(*View)
	v.l, v.it, v.round, v.now = l, it, l.rounds.applying.Load(), l.clock.now()
	return v, nil
}

func (v *View) close() {
	// An error of the iterator has been returned by whoever met it.
	_ = v.it.Close()
	v.l, v.it = nil, nil
	closedViews.Put(v)
}

// viewOf opens a view that shows every change of key that has been staged.
func (l *Limiter) viewOf(key []byte) (*View, error) {
	return l.view(l.stagedRound(l.keys.Slice(key), key))
}

// stagedRound returns the round that the newest change of key is in, if the
// cache knows.
func (l *Limiter) stagedRound(slice uint16, key []byte) uint64 {
	sh := l.shardOf(slice)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if e := sh.cache.entries[string(key)]; e != nil {
		return e.round
	}
	return 0
}

// View calls fn with a view of the store as it is now: every call that has
// returned shows in it, and no later one. While fn runs the store can't
// reclaim what it deletes or overwrites, so fn should not take long. View
// returns the error that fn returns, or its own.
func (l *Limiter) View(fn func(*View) error) error {
	if !l.calls.enter() {
		return ErrClosed
	}
	defer l.calls.exit()
	if err := l.failure.get(); err != nil {
		return err
	}
	v, err := l.view(l.newestStaged())
	if err != nil {
		return err
	}
	defer v.close()
	l.views.add(v)
	defer l.views.remove(v)
	if l.opts.Durability == Always {
		if err := l.waitDurable(v.round); err != nil {
			return err
		}
	}
	return fn(v)
}

// openViews knows since when the views are open that run functions of a
// caller's. Others are over before anybody could look.
type openViews struct {
	mu    sync.Mutex
	since map[*View]time.Time // monotonic readings
}

func (o *openViews) add(v *View) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since == nil {
		o.since = make(map[*View]time.Time)
	}
	o.since[v] = monotonic()
}

func (o *openViews) remove(v *View) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.since, v)
}

// oldest returns how long the oldest view has been open; 0 if there is none.
func (o *openViews) oldest() (age time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, since := range o.since {
		age = max(age, monotonic().Sub(since))
	}
	return age
}

// newestStaged returns the newest round that has something staged in it.
// Under Always that is 0: what has been answered has also been applied.
func (l *Limiter) newestStaged() uint64 {
	if l.opts.Durability == Always {
		return 0
	}
	sh := &l.shards[0]
	sh.mu.Lock()
	defer sh.mu.Unlock()
	r := l.rounds.open
	if r.staged.Load() == 0 {
		return r.seq - 1
	}
	return r.seq
}

// Now returns the instant of the view.
func (v *View) Now() time.Time { return time.Unix(0, v.now) }

// Stat tells what key held at the instant of the view, and until when.
func (v *View) Stat(key []byte) (Stat, error) {
	result := v.do(Op{Verb: OpStat, Key: key})
	return result.Stat, result.Err
}

// do carries out op, which changes nothing.
func (v *View) do(op Op) (r Result) {
	if r.Err = v.l.check(&op); r.Err == nil {
		r.Err = v.look(&op, &r)
	}
	return r
}

// look is do for an operation whose arguments have been checked.
func (v *View) look(op *Op, r *Result) error {
	state, err := v.state(op.Key)
	if err != nil {
		return err
	}
	return answer(op, r, v.now, state, v)
}

// state returns what key held at the instant of the view.
func (v *View) state(key []byte) (limit.State, error) {
	v.head = v.l.keys.AppendHead(v.head[:0], v.l.keys.Slice(key), key)
	value, err := v.get(v.head)
	if value == nil {
		return limit.State{}, err
	}
	state, err := decodeState(v.head, value)
	return ttl.Live(state, v.now), err
}

// get returns the value under key, nil if there is none. It is good until the
// view is next used.
func (v *View) get(key []byte) ([]byte, error) {
	// The prefix is the whole key, by which Pebble can ask its filters.
	if !v.it.SeekPrefixGE(key) || !bytes.Equal(v.it.Key(), key) {
		return nil, storageError(v.it.Error())
	}
	value, err := v.it.ValueAndErr()
	if err != nil {
		return nil, storageError(err)
	}
	return value, nil
}

// ScanEnd is the number of slices, one past the largest cursor.
const ScanEnd = codec.Slices

// Scan visits the keys of whole slices, a 65,536th of all keys each, from the
// slice that cursor (0..ScanEnd-1) numbers, until it has looked at count
// records or more, and returns the cursor to go on from: 0 at the end. It looks
// at records that have expired, too, and does not visit their keys. A key that
// is there all the while, from the first call to the last, is visited exactly
// once, also when the store is reopened in between. One whose record can't be
// read is visited with a kind that is called unknown. The key is valid during
// the call of visit only.
func (l *Limiter) Scan(cursor, count int, visit func(key []byte, s Stat)) (next int, err error) {
	err = l.View(func(v *View) error {
		next, err = v.Scan(cursor, count, visit)
		return err
	})
	return next, err
}

// Scan is Limiter.Scan on the view.
func (v *View) Scan(cursor, count int, visit func(key []byte, s Stat)) (next int, err error) {
	if cursor < 0 || cursor >= ScanEnd {
		return 0, fmt.Errorf("%w: cursor %d is outside 0..%d", limit.ErrInvalid, cursor, ScanEnd-1)
	}
	looked, slice := 0, cursor
	err = v.heads(cursor, func(s int, head, value []byte) (bool, error) {
		if s != slice && looked >= count {
			next = s
			return false, nil
		}
		slice = s
		looked++
		stat := Stat{Kind: kindUnreadable}
		if state, err := codec.DecodeState(value); err == nil {
			stat = statOf(ttl.Live(state, v.now), v.now)
		}
		if !stat.Exists() {
			return true, nil
		}
		_, v.key, err = v.l.keys.ParseHead(v.key[:0], head)
		if err != nil {
			return false, fmt.Errorf("%w: %q: %w", ErrCorrupt, head, err)
		}
		visit(v.key, stat)
		return true, nil
	})
	return next, err
}

// heads calls visit with the slice, the key and the record of each head from
// the start of slice first on, while visit wants more.
func (v *View) heads(first int, visit func(slice int, head, value []byte) (bool, error)) error {
	keys := v.l.keys
	lower := keys.AppendSliceStart(nil, first)
	it, err := v.it.Clone(pebble.CloneOptions{IterOptions: &pebble.IterOptions{
		LowerBound: lower,
		UpperBound: keys.AppendSliceStart(nil, ScanEnd),
	}})
	if err != nil {
		return storageError(err)
	}
	defer it.Close()
	at := len(lower) - 2 // where a head has its slice
	for more := it.First(); more; more = it.Next() {
		value, err := it.ValueAndErr()
		if err != nil {
			return storageError(err)
		}
		head := it.Key()
		if len(head) < len(lower) {
			return fmt.Errorf("%w: %q", ErrCorrupt, head)
		}
		if more, err = visit(int(binary.BigEndian.Uint16(head[at:])), head, value); err != nil {
			return err
		}
		if !more {
			return nil
		}
	}
	// An iterator that fails looks like one at its end.
	return storageError(it.Error())
}

// Len counts the live keys. It reads all of them, from one snapshot.
func (l *Limiter) Len() (n int64, err error) {
	err = l.View(func(v *View) error {
		n, err = v.Len()
		return err
	})
	return n, err
}

// Len is Limiter.Len on the view.
func (v *View) Len() (n int64, err error) {
	_, err = v.Scan(0, math.MaxInt, func([]byte, Stat) { n++ })
	return n, err
}
