package codec

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/gabiondb/gabion/engine/limit"
)

func appendRolling(dst []byte, s *limit.RollingState) []byte {
	dst = appendRecord(dst, 6, s.Deadline, limit.KindRolling)
	dst = appendUint(dst, uint64(s.Front))
	dst = appendUint(dst, uint64(s.First))
	dst = appendUint(dst, uint64(s.Next))
	return appendRuns(dst, s.Runs, limit.Run{Stamp: s.Deadline, Ordinal: s.Next})
}

// rolling reads the fields of a rolling list's record that follow its kind.
func (r *reader) rolling(deadline int64) *limit.RollingState {
	s := &limit.RollingState{
		Deadline: deadline,
		Front:    r.int(),
		First:    r.int(),
		Next:     r.int(),
	}
	var runs [limit.MaxRuns]limit.Run
	n := r.runs(&runs, limit.Run{Stamp: s.Deadline, Ordinal: s.Next})
	// A list is decoded in order to append to it. Room for a quarter more spares
	// long lists most of the copying, and the memory of short ones, of which
	// there are many.
	s.Runs = append(make([]limit.Run, 0, n+max(4, n/4)), runs[:n]...)
	if !s.Valid() {
		r.fail("impossible rolling list")
	}
	return s
}

// AppendChunk appends the value of c, which a decision of package limit has
// returned. It panics if c is no possible chunk.
func AppendChunk(dst []byte, c *limit.Chunk) []byte {
	if !c.Valid() {
		panic(fmt.Sprintf("codec: no record for chunk %+v", *c))
	}
	dst = append(dst, Version, codeFixarray|3)
	dst = appendUint(dst, uint64(c.Next))
	dst = appendUint(dst, uint64(c.After))
	return appendRuns(dst, c.Runs, limit.Run{Stamp: c.After, Ordinal: c.Next})
}

// DecodeChunk returns the chunk that b holds, in memory of its own. That it is
// the chunk of the key that it lies under is not checked. Errors wrap ErrCorrupt
// or ErrVersion.
func DecodeChunk(b []byte) (*limit.Chunk, error) {
	r := open(b)
	c := &limit.Chunk{Next: r.int(), After: r.int()}
	var runs [limit.MaxRuns]limit.Run
	n := r.runs(&runs, limit.Run{Stamp: c.After, Ordinal: c.Next})
	c.Runs = append(make([]limit.Run, 0, n), runs[:n]...)
	if !c.Valid() {
		r.fail("impossible chunk")
	}
	if err := r.finish(); err != nil {
		return nil, err
	}
	return c, nil
}

// appendRuns appends a byte string of runs, oldest first, each as its distance
// to the one after it: uvarint(gap<<1 | many), then uvarint(events) if many is
// set. gap is the time between their stamps, events is how many events the run
// has, and many tells that these are more than 1. After the newest comes end.
func appendRuns(dst []byte, runs []limit.Run, end limit.Run) []byte {
	dst = append(dst, 0, 0)
	start := len(dst)
	for i, run := range runs {
		after := end
		if i+1 < len(runs) {
			after = runs[i+1]
		}
		gap, events := uint64(after.Stamp-run.Stamp), uint64(after.Ordinal-run.Ordinal)
		if events == 1 {
			dst = binary.AppendUvarint(dst, gap<<1)
			continue
		}
		dst = binary.AppendUvarint(dst, gap<<1|1)
		dst = binary.AppendUvarint(dst, events)
	}
	return closeBin(dst, start)
}

// runs reads a field that appendRuns wrote into dst, and returns how many runs
// there are.
func (r *reader) runs(dst *[limit.MaxRuns]limit.Run, end limit.Run) int {
	b := r.bin()
	n := 0
	for ; len(b) > 0; n++ {
		if n == len(dst) {
			r.fail("too many runs")
			return 0
		}
		gap, rest, ok := cutUvarint(b)
		events := uint64(1)
		if ok && gap&1 != 0 {
			events, rest, ok = cutUvarint(rest)
			ok = ok && 1 < events && events <= math.MaxInt64
		}
		if !ok {
			r.fail("malformed run")
			return 0
		}
		dst[n] = limit.Run{Stamp: int64(gap >> 1), Ordinal: int64(events)}
		b = rest
	}
	// Distances become places from the end backwards.
	for i := n - 1; i >= 0; i-- {
		run := &dst[i]
		if run.Stamp >= end.Stamp || run.Ordinal > end.Ordinal {
			r.fail("runs go back too far")
			return 0
		}
		end.Stamp -= run.Stamp
		end.Ordinal -= run.Ordinal
		*run = end
	}
	return n
}

// cutUvarint returns the number that b begins with, and what follows it. It is
// not ok if there is none, if it passes 2^64-1, or if a shorter spelling says
// the same.
func cutUvarint(b []byte) (v uint64, rest []byte, ok bool) {
	v, n := binary.Uvarint(b)
	if n < 1 || n > 1 && b[n-1] == 0 {
		return 0, nil, false
	}
	return v, b[n:], true
}
