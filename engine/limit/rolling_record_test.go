package limit_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/gabiondb/gabion/engine/limit"
)

// stepped returns n runs, each a nanosecond and an event after the one before.
func stepped(n int, stamp, ordinal int64) []limit.Run {
	var runs []limit.Run
	for i := range int64(n) {
		runs = append(runs, limit.Run{Stamp: stamp + i, Ordinal: ordinal + i})
	}
	return runs
}

func TestRollingValid(t *testing.T) {
	ok := limit.RollingState{Deadline: 120, Front: 3, First: 7, Next: 20, Runs: stepped(5, 100, 10)}
	whole := limit.RollingState{Deadline: 120, Front: 10, First: 10, Next: 20, Runs: ok.Runs}
	for _, s := range []limit.RollingState{
		ok,
		whole,
		{Deadline: 2, Next: 1, Runs: stepped(1, 1, 0)},
		{Deadline: math.MaxInt64, Front: math.MaxInt64 - 1, First: math.MaxInt64 - 1, Next: math.MaxInt64, Runs: stepped(1, math.MaxInt64-1, math.MaxInt64-1)},
		{Deadline: 1 + int64(limit.MaxWindow), Next: limit.MaxLimit + 1, Runs: stepped(1, 1, 0)},
		{Deadline: 1000, Next: 1000, Runs: stepped(limit.MaxRuns, 100, 0)},
	} {
		if !s.Valid() {
			t.Errorf("%+v is not valid", s)
		}
	}
	for name, change := range map[string]func(s *limit.RollingState){
		"no runs":                   func(s *limit.RollingState) { s.Runs = nil },
		"too many runs":             func(s *limit.RollingState) { s.Runs, s.Deadline, s.Next = stepped(101, 100, 10), 1000, 1000 },
		"zero stamp":                func(s *limit.RollingState) { s.Runs = stepped(5, 0, 10) },
		"negative stamp":            func(s *limit.RollingState) { s.Runs = stepped(5, -9, 10) },
		"negative ordinal":          func(s *limit.RollingState) { s.Runs, s.Front, s.First = stepped(5, 100, -1), -1, -1 },
		"equal stamps":              func(s *limit.RollingState) { s.Runs = append(stepped(4, 100, 10), limit.Run{Stamp: 103, Ordinal: 14}) },
		"falling stamps":            func(s *limit.RollingState) { s.Runs = append(stepped(4, 100, 10), limit.Run{Stamp: 99, Ordinal: 14}) },
		"equal ordinals":            func(s *limit.RollingState) { s.Runs = append(stepped(4, 100, 10), limit.Run{Stamp: 104, Ordinal: 13}) },
		"falling ordinals":          func(s *limit.RollingState) { s.Runs = append(stepped(4, 100, 10), limit.Run{Stamp: 104, Ordinal: 9}) },
		"empty newest run":          func(s *limit.RollingState) { s.Next = 14 },
		"dead newest run":           func(s *limit.RollingState) { s.Deadline = 104 },
		"too late a deadline":       func(s *limit.RollingState) { s.Deadline = 105 + int64(limit.MaxWindow) },
		"negative front":            func(s *limit.RollingState) { s.Front = -1 },
		"front after first":         func(s *limit.RollingState) { s.Front = 8 },
		"chunks that are forgotten": func(s *limit.RollingState) { s.First = 10 },
		"forgotten runs":            func(s *limit.RollingState) { s.Front, s.First = 11, 11 },
		"front after runs":          func(s *limit.RollingState) { s.Front, s.First = 10, 11 },
		"too many events":           func(s *limit.RollingState) { s.Next = 7 + limit.MaxLimit + 2 },
	} {
		s := ok
		change(&s)
		if s.Valid() {
			t.Errorf("%s: %+v is valid", name, s)
		}
	}
	if s := new(limit.RollingState); s.Valid() || !s.Chunks().Empty() || !whole.Chunks().Empty() || ok.Chunks() != (limit.Span{From: 3, To: 10}) {
		t.Errorf("Chunks() = %+v, %+v, %+v, want none, none and 3..10", s.Chunks(), whole.Chunks(), ok.Chunks())
	}
}

func TestChunkValid(t *testing.T) {
	for name, test := range map[string]struct {
		c    limit.Chunk
		want bool
	}{
		"good":         {limit.Chunk{Runs: stepped(5, 100, 0), Next: 5, After: 105}, true},
		"largest":      {limit.Chunk{Runs: stepped(100, 1, 0), Next: math.MaxInt64, After: math.MaxInt64}, true},
		"zero":         {limit.Chunk{}, false},
		"too many":     {limit.Chunk{Runs: stepped(101, 1, 0), Next: 1000, After: 1000}, false},
		"next":         {limit.Chunk{Runs: stepped(5, 100, 0), Next: 4, After: 105}, false},
		"after":        {limit.Chunk{Runs: stepped(5, 100, 0), Next: 5, After: 104}, false},
		"zero stamp":   {limit.Chunk{Runs: stepped(5, 0, 0), Next: 5, After: 105}, false},
		"negative":     {limit.Chunk{Runs: stepped(5, 100, -1), Next: 5, After: 105}, false},
		"equal stamps": {limit.Chunk{Runs: []limit.Run{{Stamp: 1, Ordinal: 0}, {Stamp: 1, Ordinal: 1}}, Next: 5, After: 105}, false},
		"empty run":    {limit.Chunk{Runs: []limit.Run{{Stamp: 1, Ordinal: 1}, {Stamp: 2, Ordinal: 1}}, Next: 5, After: 105}, false},
	} {
		if got := test.c.Valid(); got != test.want {
			t.Errorf("%s: %+v.Valid() = %t, want %t", name, test.c, got, test.want)
		}
	}
}

// TestRollingWrongChunks reads chunks that cannot be where they are.
func TestRollingWrongChunks(t *testing.T) {
	s := limit.RollingState{Deadline: 10_000, Front: 100, First: 103, Next: 210, Runs: stepped(10, 1000, 200)}
	good := limit.Chunk{Runs: stepped(50, 500, 100), Next: 200, After: 1000}
	for name, test := range map[string]struct {
		window time.Duration
		change func(c *limit.Chunk)
		want   error
	}{
		"good":                          {510, func(*limit.Chunk) {}, nil},
		"all dead":                      {11, func(*limit.Chunk) {}, nil},
		"not valid":                     {510, func(c *limit.Chunk) { c.Runs = nil }, limit.ErrCorrupt},
		"another's":                     {510, func(c *limit.Chunk) { c.Next = 103; c.Runs = stepped(3, 500, 100) }, limit.ErrCorrupt},
		"from before the front":         {510, func(c *limit.Chunk) { c.Runs = stepped(50, 500, 99) }, limit.ErrCorrupt},
		"into the runs of the state":    {510, func(c *limit.Chunk) { c.Next = 201 }, limit.ErrCorrupt},
		"newer than those":              {510, func(c *limit.Chunk) { c.After = 1001 }, limit.ErrCorrupt},
		"followed by something too old": {400, func(c *limit.Chunk) { c.After = 600 }, limit.ErrCorrupt},
	} {
		c := good
		test.change(&c)
		count, err := s.Peek(1009, limit.Rolling{Limit: 1000, Window: test.window}, func(int64) (*limit.Chunk, error) {
			return &c, nil
		})
		if !errors.Is(err, test.want) || (err == nil) != (count > 0) {
			t.Errorf("%s: Peek = %d, %v, want %v", name, count, err, test.want)
		}
	}
}

// TestRollingOverlap reads chunks that reach into one another, such that a
// search that did not look out would go round for ever, and chunks that only
// deny what the one before them says of them.
func TestRollingOverlap(t *testing.T) {
	s := limit.RollingState{Deadline: 10_000, Front: 100, First: 103, Next: 210, Runs: stepped(10, 1000, 200)}
	const live = 140 // from here on, says one of the chunks
	for _, dead := range []int64{live, live + 11} {
		reads := 0
		count, err := s.Peek(1009, limit.Rolling{Limit: 1000, Window: 400}, func(ordinal int64) (*limit.Chunk, error) {
			if reads++; reads > 70 {
				return nil, errors.New("too many reads")
			}
			if ordinal >= dead {
				return &limit.Chunk{Runs: stepped(50, 700, live), Next: 200, After: 1000}, nil
			}
			next := min(ordinal+max(1, 10-int64(reads)), dead)
			return &limit.Chunk{Runs: stepped(1, 500, ordinal), Next: next, After: 501}, nil
		})
		if !errors.Is(err, limit.ErrCorrupt) || count != 0 {
			t.Errorf("dead up to %d: Peek = %d, %v after %d reads, want ErrCorrupt", dead, count, err, reads)
		}
	}
}

// script reads numbers from bytes, mostly small ones.
type script []byte

func (s *script) next() int64 {
	if len(*s) == 0 {
		return 0
	}
	b := (*s)[0]
	*s = (*s)[1:]
	if b < 240 || len(*s) < 8 {
		return small(b / 2)
	}
	x := int64(binary.BigEndian.Uint64(*s) >> (b & 15 * 4))
	*s = (*s)[8:]
	return x
}

func (s *script) runs(stamp, ordinal int64) []limit.Run {
	runs := []limit.Run{{Stamp: stamp, Ordinal: ordinal}}
	for range s.next() % 8 {
		stamp += 1 + s.next()
		ordinal += 1 + s.next()
		runs = append(runs, limit.Run{Stamp: stamp, Ordinal: ordinal})
	}
	return runs
}

// checkRecords makes calls on a list whose state is any that is valid, and
// whose chunks are any at all: they may fail, but not panic, go on for ever or
// answer what no list can. It tells whether the state was valid.
func checkRecords(data script) (valid bool, err error) {
	front := data.next()
	first := front + data.next()
	s := limit.RollingState{Front: front, First: first}
	s.Runs = data.runs(1+data.next(), first+data.next())
	newest := s.Runs[len(s.Runs)-1]
	s.Next = newest.Ordinal + 1 + data.next()
	s.Deadline = newest.Stamp + 1 + data.next()
	if !s.Valid() {
		return false, nil
	}
	reads := 0
	read := func(ordinal int64) (*limit.Chunk, error) {
		reads++
		c := &limit.Chunk{Runs: data.runs(newest.Stamp-data.next(), ordinal-data.next())}
		last := c.Runs[len(c.Runs)-1]
		c.Next = max(last.Ordinal, ordinal) + 1 + data.next()/8
		c.After = last.Stamp + 1 + data.next()/8
		return c, nil
	}
	now := newest.Stamp
	for range 8 {
		now = max(1, (now+data.next())&math.MaxInt64)
		r := limit.Rolling{
			Limit:  min(data.next(), limit.MaxLimit),
			Window: min(1+time.Duration(data.next()&math.MaxInt64/2), limit.MaxWindow),
			Pause:  data.next()%2 == 1,
		}
		var next limit.RollingState
		var change limit.Change
		reads = 0
		call := fmt.Sprintf("%+v at %d with %+v", s, now, r)
		switch data.next() & 3 {
		case 0:
			var a limit.Admission
			next, a, change, err = s.Allow(now, r, read)
			if a.Count < 0 || a.Count > limit.MaxLimit+1 || a.Wait < 0 || a.Wait > limit.MaxWindow && a.Wait != limit.Never {
				return true, fmt.Errorf("%s: Allow = %+v", call, a)
			}
		case 1:
			var total int64
			next, total, change, err = s.Increment(now, r, data.next()&limit.MaxLimit, read)
			if total < 0 || total > limit.MaxLimit+2 {
				return true, fmt.Errorf("%s: Increment = %d", call, total)
			}
		case 2:
			var count int64
			next = s
			if count, err = s.Peek(now, r, read); count < 0 || count > limit.MaxLimit+1 {
				return true, fmt.Errorf("%s: Peek = %d", call, count)
			}
		case 3:
			var wait time.Duration
			next = s
			if wait, err = s.Wait(now, r, read); wait < 0 || wait > limit.MaxWindow && wait != limit.Never {
				return true, fmt.Errorf("%s: Wait = %d", call, wait)
			}
		}
		switch {
		case reads > 70:
			return true, fmt.Errorf("%s: %d reads", call, reads)
		case err != nil && !errors.Is(err, limit.ErrCorrupt) && !errors.Is(err, limit.ErrOutOfRange):
			return true, fmt.Errorf("%s fails with %w", call, err)
		case change.Recorded == 0 && (!sameRecord(next, s) || change != limit.Change{}):
			return true, fmt.Errorf("%s goes to %+v with %+v", call, next, change)
		case change.Recorded > 0 && !next.Valid():
			return true, fmt.Errorf("%s goes to %+v, which is not valid", call, next)
		case change.Dead.From > change.Dead.To || change.Seal != nil && !change.Seal.Valid():
			return true, fmt.Errorf("%s has changed %+v", call, change)
		}
		s = next
	}
	return true, nil
}

func TestRollingRecords(t *testing.T) {
	valid := 0
	for seed := range uint64(20_000) {
		ok, err := checkRecords(randomBytes(seed, 400))
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if ok {
			valid++
		}
	}
	if valid < 10_000 {
		t.Errorf("%d states were valid, want 10000 or more", valid)
	}
	t.Logf("%d valid", valid)
}

func FuzzRollingRecords(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(randomBytes(seed, 200))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := checkRecords(data); err != nil {
			t.Fatal(err)
		}
	})
}
