package codec

import (
	"fmt"

	"github.com/gabiondb/gabion/engine/limit"
)

// AppendState appends the record of s, which a decision of package limit has
// returned. It panics if s is absent, which is the absence of a record, or no
// possible state: DecodeState would refuse it for ever after.
func AppendState(dst []byte, s limit.State) []byte {
	switch {
	case s.Kind == limit.KindGCRA && validGCRA(s.GCRA):
		return appendGCRA(dst, s.GCRA)
	case s.Kind == limit.KindQuota && s.Quota.Valid():
		return appendQuota(dst, s.Quota)
	case s.Kind == limit.KindRolling && s.Rolling != nil && s.Rolling.Valid():
		return appendRolling(dst, s.Rolling)
	}
	panic(fmt.Sprintf("codec: no record for %+v", s))
}

// DecodeState returns the state that the record b holds; it is never an absent
// one. A rolling list gets memory of its own, in which a few more runs have
// room. Errors wrap ErrCorrupt or ErrVersion.
func DecodeState(b []byte) (limit.State, error) {
	r := open(b)
	deadline, kind := r.int(), r.int()
	var s limit.State
	switch {
	case r.err != nil:
	case kind == int64(limit.KindGCRA):
		s = limit.State{Kind: limit.KindGCRA, GCRA: r.gcra(deadline)}
	case kind == int64(limit.KindQuota):
		s = limit.State{Kind: limit.KindQuota, Quota: r.quota(deadline)}
	case kind == int64(limit.KindRolling):
		s = limit.State{Kind: limit.KindRolling, Rolling: r.rolling(deadline)}
	default:
		r.fail("unknown kind")
	}
	if err := r.finish(); err != nil {
		return limit.State{}, err
	}
	return s, nil
}

// DecodeDeadline returns the deadline of the record b, 1..2^63-1, which may be
// of any kind. It reads no further, so DecodeState may still refuse the record.
// Errors wrap ErrCorrupt or ErrVersion.
func DecodeDeadline(b []byte) (int64, error) {
	r := open(b)
	deadline := r.int()
	if r.err == nil && deadline == 0 {
		r.fail("no deadline")
	}
	return deadline, r.err
}

// appendRecord begins a record with so many fields, deadline and kind included.
func appendRecord(dst []byte, fields byte, deadline int64, kind limit.Kind) []byte {
	dst = append(dst, Version, codeFixarray|fields)
	dst = appendUint(dst, uint64(deadline))
	return appendUint(dst, uint64(kind))
}

func appendGCRA(dst []byte, s limit.GCRAState) []byte {
	if s.Short == 0 {
		return appendRecord(dst, 2, s.Deadline, limit.KindGCRA)
	}
	dst = appendRecord(dst, 4, s.Deadline, limit.KindGCRA)
	dst = appendUint(dst, uint64(s.Short))
	return appendUint(dst, uint64(s.Count))
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
	if !validGCRA(s) {
		r.fail("impossible GCRA state")
	}
	return s
}

// validGCRA tells whether s satisfies what limit.GCRAState promises, and is not
// absent.
func validGCRA(s limit.GCRAState) bool {
	if s.Short == 0 {
		return s.Deadline > 0 && s.Count == 0
	}
	return s.Deadline > 0 && 0 < s.Short && s.Short < s.Count
}
