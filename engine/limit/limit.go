// Package limit decides whether events may pass. It holds the arithmetic of
// rate limiting and nothing else: a decision takes the time, a state and a
// policy as values, and gives the next state and the answer back.
//
//	next, decision, err := state.Take(now, rate, 1)
//
// There are three kinds of limit: GCRAState spaces events evenly, QuotaState
// spends a budget per window and knows a request again that it has seen, and
// RollingState lets so many events pass in any span of time. TakeAll and
// TakeEach decide several charges of the first kind together.
//
// Nothing here reads a clock, keeps anything, or talks to a disk, so the same
// decision can be made again elsewhere (in a test, an oracle, a replica) and
// comes out alike to the last bit. All arithmetic is on integers and exact:
// products are 128 bits wide, nothing is rounded but where a field's comment
// says so, and nothing wraps around.
//
// A time is a count of nanoseconds since the Unix epoch, from 1 to 2^63-1.
package limit

import (
	"errors"
	"fmt"
	"math"
	"time"
)

var (
	// ErrInvalid is what every error about a policy or an amount outside its
	// range wraps. Such a call has charged nothing.
	ErrInvalid = errors.New("limit: invalid argument")

	// ErrOutOfRange reports a call that would have been allowed, but whose
	// state would lie past the end of representable time (the year 2262), or
	// of what else an int64 holds. It has charged nothing.
	ErrOutOfRange = errors.New("limit: out of range")

	// ErrPolicyChanged reports a request under another policy than the one that
	// its quota's open window began with. It has charged nothing.
	ErrPolicyChanged = errors.New("limit: another policy is in force")

	// ErrConflict reports a request under the id of another one, which was
	// accepted in the open window. It has charged nothing.
	ErrConflict = errors.New("limit: request id is taken")

	// ErrRefunded reports a request under the id of one that was accepted in the
	// open window and refunded. It wraps ErrConflict.
	ErrRefunded = fmt.Errorf("%w: its request was refunded", ErrConflict)

	// ErrCorrupt reports a chunk that cannot belong to the rolling list that
	// it was read for. The call has recorded nothing.
	ErrCorrupt = errors.New("limit: corrupt list")
)

// A RangeError tells which number is outside its range: the limit, the window
// or the cost of a quota, or the window of a rolling list. It wraps ErrInvalid.
type RangeError struct {
	Name            string // limit, window or cost
	Value, Min, Max int64
	Unit            string // of the numbers: ns for a window
}

// Error returns the name, the value and the range.
func (e *RangeError) Error() string {
	if e.Unit == "ns" {
		return fmt.Sprintf("%v: %s %v is outside %v..%v", ErrInvalid, e.Name, time.Duration(e.Value), time.Duration(e.Min), time.Duration(e.Max))
	}
	return fmt.Sprintf("%v: %s %d is outside %d..%d", ErrInvalid, e.Name, e.Value, e.Min, e.Max)
}

// Unwrap returns ErrInvalid.
func (e *RangeError) Unwrap() error { return ErrInvalid }

// Never is the wait of a call that no wait can help.
const Never time.Duration = math.MaxInt64

const (
	// MaxLimit is the largest limit of a quota or a rolling list, and the most
	// that one call can ask of either. Every integer up to it fits in a
	// float64, which is the only number that some clients have.
	MaxLimit int64 = 1<<53 - 1

	// MaxWindow is the longest window of a quota or a rolling list: ten years
	// of 365 days.
	MaxWindow time.Duration = 10 * 365 * 24 * time.Hour
)

// Kind is what a key holds. A key holds one kind at a time.
type Kind uint8

// The kinds. Their numbers are part of the record format.
const (
	KindNone    Kind = 0 // nothing: the key is absent or has expired
	KindGCRA    Kind = 1
	KindQuota   Kind = 2
	KindRolling Kind = 3
)

var kindNames = [...]string{
	KindNone:    "none",
	KindGCRA:    "gcra",
	KindQuota:   "quota",
	KindRolling: "rolling",
}

// Admits tells whether a decision of kind d can be made on a key that holds k: it
// holds the same, or nothing.
func (k Kind) Admits(d Kind) bool { return k == d || k == KindNone }

// String returns the name of the kind as the TYPE command gives it.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// validateWindow checks the length of a quota's or a rolling list's window.
func validateWindow(window time.Duration) error {
	if window < 1 || window > MaxWindow {
		return &RangeError{Name: "window", Value: int64(window), Min: 1, Max: int64(MaxWindow), Unit: "ns"}
	}
	return nil
}

// Decision is the answer of GCRA to a call.
type Decision struct {
	// Allowed tells whether the call passed and, unless it was a probe or goes
	// together with one that is denied, has been charged.
	Allowed bool

	// Limit is the most that can pass at once: the burst plus one.
	Limit int64

	// Remaining is how many events would pass right now, after this call. It
	// is within 0..Limit.
	Remaining int64

	// RetryAfter is how long to wait until the same call would pass, rounded
	// up to a nanosecond: 0 if it was allowed, Never if it asks for more than
	// Limit.
	RetryAfter time.Duration

	// ResetAfter is how long until the limit is whole again, rounded up to a
	// nanosecond.
	ResetAfter time.Duration
}
