// Package ttl says when state is over. A key's record begins with its
// deadline, the first instant at which the record can't be told from an absent
// one, so that a record past it may be dropped at once, late or never without
// changing any answer.
//
// Filter decides about one record, Sidecar tells where it is worth it to look for
// records to drop, and Horizon how far a clock is to be trusted with that. They
// are values; who runs them over a store is package engine.
//
// Times are nanoseconds since the Unix epoch on the engine's clock.
package ttl

import (
	"math"
	"time"

	"github.com/gabiondb/gabion/engine/limit"
)

// Expired tells whether state with this deadline is over at now. It is the one
// place where that is decided.
func Expired(deadline, now int64) bool { return deadline <= now }

// Live returns s, or an absent key if s is over at now.
func Live(s limit.State, now int64) limit.State {
	if Expired(s.Deadline(), now) {
		return limit.State{}
	}
	return s
}

// Left returns how long it is from now to the deadline: 0 if it has passed,
// and the longest Duration if it is further away than one can hold.
func Left(deadline, now int64) time.Duration {
	if Expired(deadline, now) {
		return 0
	}
	left := uint64(deadline) - uint64(now)
	return time.Duration(min(left, math.MaxInt64))
}
