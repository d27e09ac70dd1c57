package limit

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// Rolling is the policy of a rolling list: Limit events in any span of Window.
// Each event that is admitted is recorded, and gone when it is Window old.
type Rolling struct {
	Limit  int64         // up to MaxLimit; 0 and less deny everything
	Window time.Duration // 1ns..MaxWindow

	// Pause keeps a caller out, once a check has failed, until it has come
	// less often than Limit times in a window: a failed check is recorded too
	// while there is a place for it, of which there is then one more than Limit.
	Pause bool
}

// Validate returns an error that wraps ErrInvalid and names the field that is
// out of its range, or nil.
func (r Rolling) Validate() error {
	if r.Limit > MaxLimit {
		return fmt.Errorf("%w: limit %d is more than %d", ErrInvalid, r.Limit, MaxLimit)
	}
	return validateWindow(r.Window)
}

// places returns how many events the list can hold.
func (r Rolling) places() int64 {
	switch {
	case r.Limit <= 0:
		return 0
	case r.Pause:
		return r.Limit + 1
	}
	return r.Limit
}

// Admission is the answer of a rolling list to a check.
type Admission struct {
	Allowed bool
	Count   int64 // live events after the call
	Limit   int64 // the policy's

	// Wait is how long until a call would be allowed: 0 if one would be right
	// now, Never if the limit is 0 or less.
	Wait time.Duration
}

// The state of a list lies in two places: the newest runs of it in its
// RollingState, the older ones in chunks that are written once and never
// changed. What a call writes is thus bounded, however long the list.
const (
	// MaxRuns is the most runs that a RollingState or a Chunk has.
	MaxRuns = 100

	// chunkRuns is how many runs a RollingState that is full gives up, as a
	// chunk of their own.
	chunkRuns = MaxRuns / 2
)

// Run is all the events of one instant in a list. It reaches up to the
// ordinal of the run after it.
type Run struct {
	Stamp   int64 // when they were recorded
	Ordinal int64 // of the first of them
}

// Chunk is a stretch of runs that has left its list's RollingState. It is kept
// under the ordinal of its first event, Runs[0].Ordinal, and never changed.
type Chunk struct {
	Runs  []Run // oldest first; 1 to MaxRuns
	Next  int64 // ordinal of the first event after it
	After int64 // stamp of that event
}

// Valid tells whether c is a chunk that a decision can have returned, as far as
// a chunk alone can tell.
func (c *Chunk) Valid() bool { return validRuns(c.Runs, c.After, c.Next) }

func (c *Chunk) first() int64 { return c.Runs[0].Ordinal }

func (c *Chunk) holds(ordinal int64) bool { return c.first() <= ordinal && ordinal < c.Next }

// validRuns tells whether runs are 1 to MaxRuns, whose stamps and ordinals
// ascend to less than after and next.
func validRuns(runs []Run, after, next int64) bool {
	if len(runs) < 1 || len(runs) > MaxRuns || runs[0].Stamp < 1 || runs[0].Ordinal < 0 {
		return false
	}
	for i, run := range runs[1:] {
		if runs[i].Stamp >= run.Stamp || runs[i].Ordinal >= run.Ordinal {
			return false
		}
	}
	last := runs[len(runs)-1]
	return last.Stamp < after && last.Ordinal < next
}

// ChunkReader returns the chunk of a list that holds the event of an ordinal. A
// decision calls it seldom, at most some 70 times, and never if the list has no
// chunks. The chunk must not change afterwards, since the next state may refer
// to it. An error ends the decision, which returns it as it is.
type ChunkReader func(ordinal int64) (*Chunk, error)

// Span is a range of ordinals. The chunks in it are those whose first event is
// in it, which are whole: no chunk reaches out of a Span that is given here.
type Span struct {
	From, To int64 // From is in it, To is not; equal if it is empty

	// Single tells that exactly one chunk is in the span, that of From. If it
	// is not set there may be any number.
	Single bool
}

// Empty tells whether nothing is in the span.
func (s Span) Empty() bool { return s.From == s.To }

// Change is what a call on a rolling list has changed, and what is to be
// written with the next state, all or nothing.
type Change struct {
	// Recorded is how many events have been recorded. If it is 0 nothing has
	// changed, and nothing is to be written.
	Recorded int64

	// Dead is where chunks are to be deleted, before Seal is written: ordinals
	// start anew when a list does.
	Dead Span

	// Seal is the chunk that is to be written, under the ordinal of its first
	// event, or nil. Nobody may change it.
	Seal *Chunk
}

// RollingState is the state of a rolling list. The zero value is an empty list.
//
// The events have ordinals, 0, 1, 2, … since the list was last empty, and their
// stamps ascend with the ordinals. So those that are live at some instant are
// the newest ones, and counting them takes no more than the ordinal of the
// oldest.
//
// No call changes a state, which stays good when the next one is dropped. But
// states share the memory of Runs as slices do that were made by append: of all
// the states that were made from one, only the one that was made last may be
// used, or have others made from it.
type RollingState struct {
	// Deadline is the newest stamp plus the window of the last call that
	// recorded: the first instant at which the list can no longer be told from
	// one that never was.
	Deadline int64

	Front int64 // ordinal of the first event of the oldest chunk; Runs[0].Ordinal if there is none
	First int64 // ordinal of the oldest event that hasn't been forgotten
	Next  int64 // ordinal of the event to come

	// Runs are the newest runs, oldest first: 1 to MaxRuns. The events before
	// them are in chunks, which follow one another from Front up to Runs.
	Runs []Run

	// front and target are the chunks that the oldest live event and the event
	// to wait for were last looked up in. They save reading them again and are
	// no part of the state.
	front, target *Chunk
}

// Valid tells whether s is a state that a call can have returned that recorded
// something, as far as a state without its chunks can tell.
func (s *RollingState) Valid() bool {
	if !validRuns(s.Runs, s.Deadline, s.Next) || s.Deadline-s.newest() > int64(MaxWindow) {
		return false
	}
	sealed := s.sealed()
	return 0 <= s.Front && s.Front <= s.First && s.Next-s.First <= MaxLimit+1 &&
		(s.First < sealed || s.Front == sealed && s.First == sealed)
}

// Chunks returns where the chunks of the list are, to delete them with it. They
// stay where they are when the list expires.
func (s *RollingState) Chunks() Span {
	if len(s.Runs) == 0 {
		return Span{}
	}
	return Span{From: s.Front, To: s.sealed()}
}

// sealed returns the ordinal of the first event that is not in a chunk.
func (s *RollingState) sealed() int64 { return s.Runs[0].Ordinal }

// newest returns the newest stamp, 0 if there is none.
func (s *RollingState) newest() int64 {
	if len(s.Runs) == 0 {
		return 0
	}
	return s.Runs[len(s.Runs)-1].Stamp
}

// Allow records one event at now (1..2^63-1), if r has room for it, and returns
// the state after it. Time doesn't go back: a now before the newest stamp counts
// as that stamp.
//
// A call that records anything forgets for good the events that are gone by
// r.Window. One that records nothing changes nothing: the next state is then s,
// which may know more of its chunks. When there is an error it is s itself. An
// error wraps ErrInvalid, ErrOutOfRange or ErrCorrupt, or is one of chunks.
func (s RollingState) Allow(now int64, r Rolling, chunks ChunkReader) (RollingState, Admission, Change, error) {
	next, live, change, err := s.add(now, r, 1, chunks)
	if err != nil {
		return s, Admission{}, Change{}, err
	}
	a := Admission{
		Allowed: live < r.Limit,
		Count:   live + change.Recorded,
		Limit:   r.Limit,
	}
	if a.Wait, err = next.wait(now, r, a.Count, chunks); err != nil {
		return s, Admission{}, Change{}, err
	}
	return next, a, change, nil
}

// Increment records as many of amount events (0..MaxLimit) at now as r has
// room for, and returns the state after it as Allow does. The total is what
// there would be if all had been recorded: the live events before the call and
// amount, but at most one more than r can hold, which is r.Limit, or one more
// with r.Pause. So all were recorded if the total is at most r.Limit.
func (s RollingState) Increment(now int64, r Rolling, amount int64, chunks ChunkReader) (next RollingState, total int64, change Change, err error) {
	if amount < 0 || amount > MaxLimit {
		return s, 0, Change{}, fmt.Errorf("%w: amount %d is outside 0..%d", ErrInvalid, amount, MaxLimit)
	}
	next, live, change, err := s.add(now, r, amount, chunks)
	if err != nil {
		return s, 0, Change{}, err
	}
	return next, min(live+amount, r.places()+1), change, nil
}

// Peek returns how many events are live at now. An error is as Allow's.
func (s RollingState) Peek(now int64, r Rolling, chunks ChunkReader) (int64, error) {
	_, live, _, err := s.add(now, r, 0, chunks)
	return live, err
}

// Wait returns how long it is from now until a call would be allowed, as
// Admission.Wait. An error is as Allow's.
func (s RollingState) Wait(now int64, r Rolling, chunks ChunkReader) (time.Duration, error) {
	s, live, _, err := s.add(now, r, 0, chunks)
	if err != nil {
		return 0, err
	}
	return s.wait(now, r, live, chunks)
}

// add records as many of amount events as r has room for, and returns how many
// were live before.
func (s RollingState) add(now int64, r Rolling, amount int64, chunks ChunkReader) (next RollingState, live int64, change Change, err error) {
	if err := r.Validate(); err != nil {
		return s, 0, Change{}, err
	}
	now = max(now, s.newest())
	front, oldest := s.front, s.Next
	if s.Deadline > now {
		if oldest, err = s.oldest(now-int64(r.Window), chunks); err != nil {
			return s, 0, Change{}, err
		}
	}
	live = s.Next - oldest
	if n := min(amount, r.places()-live); n > 0 {
		if change, err = s.record(now, r.Window, n, oldest); err != nil {
			return s, 0, Change{}, err
		}
		change.Dead.Single = front != nil && front.first() == change.Dead.From && front.Next == change.Dead.To
	}
	return s, live, change, nil
}

// record makes s the list with n more events at now and without the events
// before the ordinal oldest.
func (s *RollingState) record(now int64, window time.Duration, n, oldest int64) (Change, error) {
	if now > math.MaxInt64-int64(window) {
		return Change{}, fmt.Errorf("%w: the list would live past 2^63-1 ns", ErrOutOfRange)
	}
	change := Change{Recorded: n}
	if oldest == s.Next {
		change.Dead = s.Chunks()
		*s = RollingState{Runs: s.Runs[len(s.Runs):]}
	} else {
		if s.Next > math.MaxInt64-n {
			return Change{}, fmt.Errorf("%w: the list has seen 2^63-1 events since it was last empty", ErrOutOfRange)
		}
		change.Dead = s.forget(oldest)
	}
	if s.newest() != now {
		if len(s.Runs) == MaxRuns {
			change.Seal = s.seal()
		}
		s.Runs = append(s.Runs, Run{Stamp: now, Ordinal: s.Next})
	}
	s.Next += n
	s.Deadline = now + int64(window)
	return change, nil
}

// forget drops the events before the ordinal oldest, which s.oldest has found,
// and returns where chunks have died of it.
func (s *RollingState) forget(oldest int64) Span {
	dead := Span{From: s.Front, To: oldest}
	if sealed := s.sealed(); oldest >= sealed {
		dead.To = sealed
		s.Runs = s.Runs[runOf(s.Runs, oldest):]
		s.Front = oldest
		s.front, s.target = nil, nil // to let go of their memory
	} else {
		if s.front.holds(oldest) {
			dead.To = s.front.first()
		}
		s.Front = dead.To
	}
	s.First = oldest
	return dead
}

// seal takes the oldest runs out of s and returns them as a chunk.
func (s *RollingState) seal() *Chunk {
	left := s.Runs[chunkRuns:]
	c := &Chunk{
		Runs:  slices.Clone(s.Runs[:chunkRuns]), // or it would hold on to all of their memory
		Next:  left[0].Ordinal,
		After: left[0].Stamp,
	}
	if s.Front == s.sealed() {
		s.front = c
	}
	s.Runs = left
	return c
}

// oldest returns the ordinal of the oldest event that was recorded after
// horizon and hasn't been forgotten, s.Next if there is none.
func (s *RollingState) oldest(horizon int64, chunks ChunkReader) (int64, error) {
	i := firstAfter(s.Runs, horizon)
	switch sealed := s.sealed(); {
	case i == len(s.Runs):
		return s.Next, nil
	case i > 0 || s.Front == sealed:
		return s.Runs[i].Ordinal, nil
	}
	return s.oldestSealed(horizon, chunks)
}

// oldestSealed returns what oldest does when s.Runs are live and there are
// chunks before them. It leaves in s.front the chunk that settles it, which
// holds the event or ends at it.
//
// As a rule s.front still settles it, or the chunk after it does: a window that
// moves on steadily reads each chunk once. Otherwise bisection finds it in no
// more steps than the number of events has bits.
func (s *RollingState) oldestSealed(horizon int64, chunks ChunkReader) (int64, error) {
	lo, hi := s.First, s.sealed() // what is before lo is gone, hi is live
	c := s.front
	for reads := 0; ; reads++ {
		if c == nil || reads > 0 {
			ordinal := lo
			if reads > 2 {
				ordinal += (hi - lo) / 2
			}
			var err error
			if c, err = s.chunk(ordinal, chunks); err != nil {
				return 0, err
			}
		}
		switch i := firstAfter(c.Runs, horizon); {
		case i == 0:
			s.front = c
			if hi = max(lo, c.first()); hi == lo {
				return lo, nil
			}
		case i < len(c.Runs):
			s.front = c
			return max(lo, c.Runs[i].Ordinal), nil
		case c.After > horizon:
			s.front = c
			return c.Next, nil
		default:
			if lo = c.Next; lo >= hi {
				return 0, fmt.Errorf("%w: the chunk before ordinal %d is not followed by what it says", ErrCorrupt, c.Next)
			}
		}
	}
}

// wait returns how long it is until one more event has room, when count are
// live at now.
func (s *RollingState) wait(now int64, r Rolling, count int64, chunks ChunkReader) (time.Duration, error) {
	switch {
	case r.Limit <= 0:
		return Never, nil
	case count < r.Limit:
		return 0, nil
	}
	// The event that has to go first is the one after which there are Limit-1.
	now = max(now, s.newest())
	ordinal := s.Next - r.Limit
	runs := s.Runs
	if ordinal < s.sealed() {
		c, err := s.chunk(ordinal, chunks)
		if err != nil {
			return 0, err
		}
		if c != s.front {
			s.target = c
		}
		runs = c.Runs
	}
	age := now - runs[runOf(runs, ordinal)].Stamp
	if age >= int64(r.Window) {
		return 0, fmt.Errorf("%w: ordinal %d is older than one before it", ErrCorrupt, ordinal)
	}
	// A window longer than the last recording one outlives the list.
	return time.Duration(min(int64(r.Window)-age, s.Deadline-now)), nil
}

// chunk returns the chunk that holds ordinal, which is between s.First and the
// start of s.Runs.
func (s *RollingState) chunk(ordinal int64, chunks ChunkReader) (*Chunk, error) {
	for _, c := range [...]*Chunk{s.front, s.target} {
		if c != nil && c.holds(ordinal) {
			return c, nil
		}
	}
	c, err := chunks(ordinal)
	if err != nil {
		return nil, err
	}
	if c == nil || !c.Valid() || !c.holds(ordinal) || c.first() < s.Front || c.Next > s.sealed() || c.After > s.Runs[0].Stamp {
		return nil, fmt.Errorf("%w: no chunk of it holds ordinal %d", ErrCorrupt, ordinal)
	}
	return c, nil
}

// firstAfter returns the index of the first run that was recorded after
// horizon, len(runs) if there is none.
func firstAfter(runs []Run, horizon int64) int {
	i, _ := slices.BinarySearchFunc(runs, horizon+1, func(r Run, stamp int64) int {
		return cmp.Compare(r.Stamp, stamp)
	})
	return i
}

// runOf returns the index of the run that holds ordinal, which is not before
// the first.
func runOf(runs []Run, ordinal int64) int {
	i, found := slices.BinarySearchFunc(runs, ordinal, func(r Run, ordinal int64) int {
		return cmp.Compare(r.Ordinal, ordinal)
	})
	if !found {
		i--
	}
	return i
}

// Size returns about how much memory s takes, in bytes.
func (s *RollingState) Size() int64 {
	const state, chunk, run = 112, 48, 16
	n := state + run*cap(s.Runs)
	for _, c := range [...]*Chunk{s.front, s.target} {
		if c != nil {
			n += chunk + run*cap(c.Runs)
		}
	}
	return int64(n)
}
