package engine

import (
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine/limit"
)

// Allow records an event in key's rolling list if w has room for it; the rate of a
// key is charged by Throttle. Durability and errors are as with Throttle.
func (l *Limiter) Allow(key []byte, w limit.Rolling) (limit.Admission, error) {
	result := l.do(Op{Verb: OpAllow, Key: key, Rolling: w})
	return result.Admission, result.Err
}

// Increment records as many of n events (0..limit.MaxLimit) in key's rolling
// list as w has room for. The total that it returns is the number of live
// events if all were recorded, and one more than fit if not: so all were if it is
// at most w.Limit.
func (l *Limiter) Increment(key []byte, w limit.Rolling, n int64) (total int64, err error) {
	result := l.do(Op{Verb: OpIncrement, Key: key, Rolling: w, N: n})
	return result.Total, result.Err
}

// Peek counts the live events in key's rolling list, and changes nothing.
func (l *Limiter) Peek(key []byte, w limit.Rolling) (int64, error) {
	result := l.do(Op{Verb: OpPeek, Key: key, Rolling: w})
	return result.Admission.Count, result.Err
}

// Wait tells how long it is until Allow would allow an event: 0 if it would
// right now, limit.Never if w allows none. It changes nothing.
func (l *Limiter) Wait(key []byte, w limit.Rolling) (time.Duration, error) {
	result := l.do(Op{Verb: OpWait, Key: key, Rolling: w})
	return result.Admission.Wait, result.Err
}

// record carries out OpAllow and OpIncrement.
func (l *Limiter) record(t *turn, op *Op, r *Result) error {
	list, wrongKind := listOf(t.state)
	chunks := func(ordinal int64) (*limit.Chunk, error) { return l.chunk(t, ordinal) }
	var next limit.RollingState
	var change limit.Change
	var err error
	if op.Verb == OpAllow {
		next, r.Admission, change, err = list.Allow(t.now, op.Rolling, chunks)
	} else {
		next, r.Total, change, err = list.Increment(t.now, op.Rolling, op.N, chunks)
	}
	switch {
	case errors.Is(err, limit.ErrInvalid):
		return err
	case wrongKind != nil:
		r.Admission, r.Total = limit.Admission{}, 0
		return wrongKind
	case err != nil:
		return rollingError(op.Key, err)
	case change.Recorded == 0:
		if t.state.Kind == limit.KindRolling {
			*t.state.Rolling = next // it may know its chunks better
			t.sh.cache.resize(t.entry, l.rounds.applied.Load())
		}
		return nil
	}
	l.dropChunks(t.sh, &t.sh.beside, t.slice, t.key, change.Dead)
	if t.state.Kind == limit.KindRolling {
		*t.state.Rolling = next
		l.put(t, t.state)
	} else {
		l.put(t, newList(next))
	}
	if change.Seal != nil {
		l.putChunk(t, change.Seal)
	}
	return nil
}

func (l *Limiter) checkRolling(w limit.Rolling) error {
	if w.Window > l.opts.RollingMaxWindow {
		return fmt.Errorf("%w: window %v is longer than %v", limit.ErrInvalid, w.Window, l.opts.RollingMaxWindow)
	}
	return w.Validate()
}

// listOf returns the rolling list that state holds, an empty one if it is
// absent.
func listOf(state limit.State) (limit.RollingState, error) {
	switch state.Kind {
	case limit.KindNone:
		return limit.RollingState{}, nil
	case limit.KindRolling:
		return *state.Rolling, nil
	}
	return limit.RollingState{}, ErrWrongKind
}

// newList returns the state of a key that holds list.
func newList(list limit.RollingState) limit.State {
	return limit.State{Kind: limit.KindRolling, Rolling: &list}
}

// rollingError names the key whose chunks can't be read.
func rollingError(key []byte, err error) error {
	if errors.Is(err, limit.ErrCorrupt) {
		return fmt.Errorf("%w: %q: %w", ErrCorrupt, key, err)
	}
	return err
}

// chunk returns the chunk of the list that t has found that holds ordinal.
func (l *Limiter) chunk(t *turn, ordinal int64) (*limit.Chunk, error) {
	if c := t.sh.overlay.chunk(t.key, ordinal); c != nil {
		return c, nil
	}
	it, err := l.iter(nil, nil)
	if err != nil {
		return nil, storageError(err)
	}
	defer it.Close()
	t.sh.key = l.keys.AppendChunkKey(t.sh.key[:0], t.slice, t.key, ordinal+1)
	return chunkBefore(it, t.sh.key)
}

// chunkBefore returns the last chunk before key. Whether it is the one that is
// looked for its reader knows: if it is none at all, or one of another list,
// that is nil or a chunk that does not fit.
func chunkBefore(it *pebble.Iterator, key []byte) (*limit.Chunk, error) {
	if !it.SeekLT(key) {
		return nil, storageError(it.Error())
	}
	const ordinal = 8 // bytes at the end of a chunk's key
	if n := len(key) - ordinal; len(it.Key()) != len(key) || string(it.Key()[:n]) != string(key[:n]) {
		return nil, nil
	}
	value, err := it.ValueAndErr()
	if err != nil {
		return nil, storageError(err)
	}
	c, err := codec.DecodeChunk(value)
	if err != nil {
		return nil, fmt.Errorf("%w: %q: %w", ErrCorrupt, it.Key(), err)
	}
	return c, nil
}

func (l *Limiter) putChunk(t *turn, c *limit.Chunk) {
	sh := t.sh
	sh.key = l.keys.AppendChunkKey(sh.key[:0], t.slice, t.key, c.Runs[0].Ordinal)
	sh.value = codec.AppendChunk(sh.value[:0], c)
	_ = l.staging(&sh.beside).Set(sh.key, sh.value, nil)
	l.layerOf(sh).addChunk(t.key, c)
}

// dropChunks stages the end of the chunks in span, of the list under key. It
// goes into batch, one of the shard's, as so many deletions as dropChunks
// returns.
func (l *Limiter) dropChunks(sh *shard, batch **pebble.Batch, slice uint16, key []byte, span limit.Span) int {
	if span.Empty() {
		return 0
	}
	lower := l.keys.AppendChunkKey(nil, slice, key, span.From)
	if span.Single {
		_ = l.staging(batch).Delete(lower, nil)
		return 1
	}
	upper := l.keys.AppendChunkKey(nil, slice, key, span.To)
	var staged [][]byte
	for _, ordinal := range sh.overlay.chunksIn(key, span) {
		staged = append(staged, l.keys.AppendChunkKey(nil, slice, key, ordinal))
	}
	return l.dropSpan(batch, lower, upper, staged)
}

// Peek counts the events in key's rolling list that were live at the instant
// of the view.
func (v *View) Peek(key []byte, w limit.Rolling) (count int64, err error) {
	result := v.do(Op{Verb: OpPeek, Key: key, Rolling: w})
	return result.Admission.Count, result.Err
}

// Wait tells how long it was, at the instant of the view, until Allow would
// allow an event.
func (v *View) Wait(key []byte, w limit.Rolling) (time.Duration, error) {
	result := v.do(Op{Verb: OpWait, Key: key, Rolling: w})
	return result.Admission.Wait, result.Err
}

// chunk is the view's look beside a list's head.
func (v *View) chunk(key []byte, ordinal int64) (*limit.Chunk, error) {
	v.head = v.l.keys.AppendChunkKey(v.head[:0], v.l.keys.Slice(key), key, ordinal+1)
	return chunkBefore(v.it, v.head)
}

// lookAtList carries out OpPeek and OpWait on the list that state is at now.
func lookAtList(state limit.State, now int64, op *Op, chunks limit.ChunkReader) (a limit.Admission, err error) {
	list, err := listOf(state)
	if err != nil {
		return a, err
	}
	if op.Verb == OpPeek {
		a.Count, err = list.Peek(now, op.Rolling, chunks)
	} else {
		a.Wait, err = list.Wait(now, op.Rolling, chunks)
	}
	return a, rollingError(op.Key, err)
}
