// Package limit decides whether events may pass. It holds the arithmetic of
// rate limiting and nothing else: a decision takes the time, a state and a
// policy as values, and gives the next state and the answer back.
//
//	next, decision, err := state.Take(now, rate, 1)
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
	"math"
	"time"
)

var (
	// ErrInvalid is what every error about a policy or an amount outside its
	// range wraps. Such a call has charged nothing.
	ErrInvalid = errors.New("limit: invalid argument")

	// ErrOutOfRange reports a call that would have been allowed, but whose
	// state would lie past the end of representable time (the year 2262). It
	// has charged nothing.
	ErrOutOfRange = errors.New("limit: out of range")
)

// Never is the RetryAfter of a call that no wait can help.
const Never time.Duration = math.MaxInt64

// Kind is what a key holds. A key holds one kind at a time.
type Kind uint8

// The kinds. Their numbers are part of the record format.
const (
	None Kind = 0 // nothing: the key is absent or has expired
	GCRA Kind = 1
)

var kindNames = [...]string{None: "none", GCRA: "gcra"}

// String returns the name of the kind as the TYPE command gives it.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// Decision is the answer to a rate limited call.
type Decision struct {
	// Allowed tells whether the call passed and, unless it was a probe, has
	// been charged.
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
