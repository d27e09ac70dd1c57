package codec

import (
	"fmt"

	"github.com/gabiondb/gabion/engine/limit"
)

// AppendState appends the record of s, which a decision of package limit has
// returned. It panics if s is absent, which is the absence of a record, or no
// possible state: DecodeState would refuse it for ever after.
func AppendState(dst []byte, s limit.State) []byte {
	if s.Kind != limit.GCRA || !valid(s.GCRA) {
		panic(fmt.Sprintf("codec: no record for %+v", s))
	}
	fields := byte(2)
	if s.GCRA.Short != 0 {
		fields = 4
	}
	dst = append(dst, Version, codeFixarray|fields)
	dst = appendUint(dst, uint64(s.GCRA.Deadline))
	dst = appendUint(dst, uint64(limit.GCRA))
	if s.GCRA.Short != 0 {
		dst = appendUint(dst, uint64(s.GCRA.Short))
		dst = appendUint(dst, uint64(s.GCRA.Count))
	}
	return dst
}

// DecodeState returns the state that the record b holds; it is never an absent
// one. Errors wrap ErrCorrupt or ErrVersion.
func DecodeState(b []byte) (limit.State, error) {
	r := open(b)
	deadline, kind := r.int(), r.int()
	var s limit.State
	switch {
	case r.err != nil:
	case kind == int64(limit.GCRA):
		s = limit.State{Kind: limit.GCRA, GCRA: r.gcra(deadline)}
	default:
		r.fail("unknown kind")
	}
	if err := r.finish(); err != nil {
		return limit.State{}, err
	}
	return s, nil
}

// gcra reads the fields of a GCRA record that follow its kind.
func (r *reader) gcra(deadline int64) limit.GCRAState {
	s := limit.GCRAState{Deadline: deadline}
	if r.left > 0 {
		s.Short, s.Count = r.int(), r.int()
		// Two zeros hold the place where later fields follow, and only there.
		if s.Count == 0 && r.left == 0 {
			r.fail("zero count")
		}
	}
	if !valid(s) {
		r.fail("impossible GCRA state")
	}
	return s
}

// valid tells whether s satisfies what limit.GCRAState promises, and is not
// absent.
func valid(s limit.GCRAState) bool {
	if s.Short == 0 {
		return s.Deadline > 0 && s.Count == 0
	}
	return s.Deadline > 0 && 0 < s.Short && s.Short < s.Count
}
