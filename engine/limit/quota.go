package limit

import (
	"fmt"
	"math"
	"time"
)

// Quota is the policy of a budget that is spent in windows of time: requests
// may cost up to Limit in a window. A window opens with the first request that
// is accepted and closes Window later; nothing extends it.
type Quota struct {
	Limit  int64         // 1..MaxLimit
	Window time.Duration // 1ns..MaxWindow
}

// Validate returns a *RangeError for the field that is out of its range, or nil.
func (q Quota) Validate() error {
	if q.Limit < 1 || q.Limit > MaxLimit {
		return &RangeError{Name: "limit", Value: q.Limit, Min: 1, Max: MaxLimit}
	}
	return validateWindow(q.Window)
}

// MaxRequestIDLen is the length of the longest request id, in bytes. The
// shortest is 1.
const MaxRequestIDLen = 64

// CheckRequestID returns an error that wraps ErrInvalid unless id is 1 to
// MaxRequestIDLen of the characters A-Z a-z 0-9 _ and -.
func CheckRequestID[T string | []byte](id T) error {
	if len(id) == 0 || len(id) > MaxRequestIDLen {
		return fmt.Errorf("%w: request id has %d bytes, want 1..%d", ErrInvalid, len(id), MaxRequestIDLen)
	}
	for i := range len(id) {
		switch c := id[i]; {
		case 'A' <= c && c <= 'Z', 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '_', c == '-':
		default:
			return fmt.Errorf("%w: request id has %q, want A-Z a-z 0-9 _ -", ErrInvalid, []byte{c})
		}
	}
	return nil
}

// QuotaState is the state of a quota: its newest window. The zero value is a
// quota of which nothing has been spent.
type QuotaState struct {
	// Deadline is when the window closes: the first instant at which the quota
	// can no longer be told from one that never was.
	Deadline int64

	Used int64 // what has been spent in the window, 0..Limit; 0 if all was refunded

	// Limit and Window are the policy that the window was opened under, which
	// is in force until it closes.
	Limit  int64
	Window time.Duration
}

// Valid tells whether s is a state that Take can have returned for an accepted
// request, or Refund for one that it has refunded.
func (s QuotaState) Valid() bool {
	return s.policy().Validate() == nil && 0 <= s.Used && s.Used <= s.Limit && s.Deadline > int64(s.Window)
}

func (s QuotaState) policy() Quota { return Quota{s.Limit, s.Window} }

// Request is the record of a request that was accepted, to be kept under its
// id until the window closes. The zero value is the record of none.
type Request struct {
	Cost int64

	// Used is what had been spent in the window once the request was accepted
	// or, if it has been refunded, once it was.
	Used int64

	// Refunded tells that its cost was given back.
	Refunded bool
}

// Valid tells whether r is the record of a request.
func (r Request) Valid() bool {
	if r.Refunded {
		return 1 <= r.Cost && r.Cost <= MaxLimit && 0 <= r.Used && r.Used <= MaxLimit-r.Cost
	}
	return 1 <= r.Cost && r.Cost <= r.Used && r.Used <= MaxLimit
}

// Grant is the answer of a quota to a request.
type Grant struct {
	// Accepted tells whether the request has been paid for, by this call or by
	// an earlier one.
	Accepted bool

	// Replay tells that it was an earlier one: the request had been accepted
	// before in this window, and this call has charged nothing.
	Replay bool

	// Used is what had been spent in the window once the request was accepted;
	// for a denied request, what has been spent.
	Used int64

	// Limit is the most that can be spent in a window.
	Limit int64

	// ResetAfter is how long until the window closes.
	ResetAfter time.Duration
}

// Take spends cost (1..q.Limit) on a request at now (1..2^63-1), if that much
// is left, and returns the state after it. earlier is the record of the request
// with the same id in the open window, the zero value if there is none; it
// doesn't count when no window is open. If earlier has the same cost this is
// the same request, and the answer is the one that it was given then.
//
// If the grant is accepted and no replay, the next state and the record
// Request{cost, grant.Used} of the request are to be kept, either both or
// neither. Otherwise, and when there is an error, the next state is s itself. An
// error wraps ErrInvalid, ErrPolicyChanged, ErrConflict (and ErrRefunded, if
// earlier was refunded) or ErrOutOfRange, of which the first that applies is
// reported.
func (s QuotaState) Take(now int64, q Quota, cost int64, earlier Request) (QuotaState, Grant, error) {
	if err := q.Validate(); err != nil {
		return s, Grant{}, err
	}
	if cost < 1 || cost > q.Limit {
		return s, Grant{}, &RangeError{Name: "cost", Value: cost, Min: 1, Max: q.Limit}
	}

	next := s
	switch {
	case s.Deadline <= now:
		if now > math.MaxInt64-int64(q.Window) {
			return s, Grant{}, fmt.Errorf("%w: the window would close after 2^63-1 ns", ErrOutOfRange)
		}
		next = QuotaState{Deadline: now + int64(q.Window), Limit: q.Limit, Window: q.Window}
	case q != s.policy():
		return s, Grant{}, fmt.Errorf("%w: limit %d and window %d ns until the window closes", ErrPolicyChanged, s.Limit, s.Window)
	case earlier.Refunded:
		return s, Grant{}, ErrRefunded
	case earlier.Cost == cost:
		return s, Grant{
			Accepted:   true,
			Replay:     true,
			Used:       earlier.Used,
			Limit:      s.Limit,
			ResetAfter: time.Duration(s.Deadline - now),
		}, nil
	case earlier != Request{}:
		return s, Grant{}, fmt.Errorf("%w: it was accepted at cost %d, not %d", ErrConflict, earlier.Cost, cost)
	}

	accepted := cost <= next.Limit-next.Used
	if accepted {
		next.Used += cost
	}
	return next, Grant{
		Accepted:   accepted,
		Used:       next.Used,
		Limit:      next.Limit,
		ResetAfter: time.Duration(next.Deadline - now),
	}, nil
}

// Refund is the answer of a quota to giving back what a request took.
type Refund struct {
	// Refunded tells whether the request has been refunded, by this call or by
	// an earlier one. If not, it was not accepted in the open window.
	Refunded bool

	// Replay tells that it was an earlier one: this call has given nothing back.
	Replay bool

	// Used is what had been spent in the window once the request was refunded;
	// if it was not, what has been spent, and 0 if no window is open.
	Used int64

	// Cost is what was given back, by this call or by the earlier one.
	Cost int64

	// Limit is the most that can be spent in a window; 0 if none is open.
	Limit int64

	// ResetAfter is how long until the window closes; 0 if none is open.
	ResetAfter time.Duration
}

// Refund gives back at now (1..2^63-1) what a request took in the open window,
// and returns the state after it. earlier is the record of the request, as with
// Take. The window stays open, until its time and under its policy, even if all
// has been given back; and the id of the request stays taken.
//
// If the request is refunded and it is no replay, the next state and the record
// Request{refund.Cost, refund.Used, true} of the request are to be kept, either
// both or neither. Otherwise the next state is s itself.
func (s QuotaState) Refund(now int64, earlier Request) (QuotaState, Refund) {
	if s.Deadline <= now {
		return s, Refund{}
	}
	next := s
	r := Refund{Used: s.Used, Limit: s.Limit, ResetAfter: time.Duration(s.Deadline - now)}
	switch {
	case earlier == Request{}:
	case earlier.Refunded:
		r.Refunded, r.Replay, r.Cost, r.Used = true, true, earlier.Cost, earlier.Used
	default:
		// A record that doesn't belong to s gives back no more than was spent.
		next.Used = max(0, s.Used-earlier.Cost)
		r.Refunded, r.Cost, r.Used = true, earlier.Cost, next.Used
	}
	return next, r
}
