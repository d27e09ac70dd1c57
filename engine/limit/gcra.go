package limit

import (
	"fmt"
	"math"
	"time"
)

// Rate is the policy of the generic cell rate algorithm: Count events per
// Period, evenly spaced, with up to Burst more ahead of schedule.
type Rate struct {
	Burst  int64         // 0..2^63-2
	Count  int64         // 1..2^63-1
	Period time.Duration // 1ns..2^63-1ns
}

// PerSecond returns the rate of n events per second with a burst of n-1, so
// that n may pass at once.
func PerSecond(n int64) Rate { return per(n, time.Second) }

// PerMinute returns the rate of n events per minute with a burst of n-1.
func PerMinute(n int64) Rate { return per(n, time.Minute) }

// PerHour returns the rate of n events per hour with a burst of n-1.
func PerHour(n int64) Rate { return per(n, time.Hour) }

// PerDay returns the rate of n events per 24 hours with a burst of n-1.
func PerDay(n int64) Rate { return per(n, 24*time.Hour) }

func per(n int64, period time.Duration) Rate {
	return Rate{Burst: n - 1, Count: n, Period: period}
}

// Validate returns an error that wraps ErrInvalid and names the field that is
// out of its range, or nil.
func (r Rate) Validate() error {
	switch {
	case r.Count < 1:
		return fmt.Errorf("%w: count %d is less than 1", ErrInvalid, r.Count)
	case r.Burst < 0 || r.Burst == math.MaxInt64:
		return fmt.Errorf("%w: burst %d is outside 0..2^63-2", ErrInvalid, r.Burst)
	case r.Period < 1:
		return fmt.Errorf("%w: period %d ns is less than 1", ErrInvalid, r.Period)
	}
	return nil
}

// check checks the arguments of a call: r and a quantity.
func (r Rate) check(n int64) error {
	if err := r.Validate(); err != nil {
		return err
	}
	if n < 0 {
		return fmt.Errorf("%w: quantity %d is negative", ErrInvalid, n)
	}
	return nil
}

// GCRAState is the state of a GCRA key: its theoretical arrival time (TAT),
// exactly, as Deadline - Short/Count nanoseconds with 0 <= Short < Count. The
// zero value is a full bucket.
type GCRAState struct {
	// Deadline is the TAT rounded up to a nanosecond: the first instant at
	// which the key can no longer be told from one that never was.
	Deadline int64

	// Short is what the TAT falls short of Deadline, in units of 1/Count ns;
	// Count is the count of the rate it was charged under. Both are 0 when
	// the TAT is a whole number of nanoseconds.
	Short, Count int64
}

// Take charges n events (0..2^63-1) at now (1..2^63-1) and returns the state
// after it. When the call is denied, when n is 0, and when there is an error,
// that is s itself. An n of 0 looks only: it tells whether the key is within r.
// An error wraps ErrInvalid or ErrOutOfRange.
//
// Take is the virtual scheduling form of the algorithm (ITU-T I.371, annex A.1)
// for n cells at once, in units of 1/r.Count ns, in which the emission interval
// is r.Period exactly:
//
//	t0 = max(TAT, now)    t1 = t0 + n*period    allowed iff t1 - now <= limit*period
//
// A TAT that was stored under another count is rounded up to a multiple of
// 1/r.Count ns, never in the caller's favour.
func (s GCRAState) Take(now int64, r Rate, n int64) (GCRAState, Decision, error) {
	if err := r.check(n); err != nil {
		return s, Decision{}, err
	}

	count, interval := uint64(r.Count), uint64(r.Period)
	limit := uint64(r.Burst) + 1
	tolerance := mul(limit, interval)
	start := mul(uint64(now), count)
	tat := s.in(count).max(start)

	d := Decision{Limit: int64(limit)}
	next := s
	switch {
	case uint64(n) > limit:
		d.RetryAfter = Never
	default:
		charged := tat.add(mul(uint64(n), interval))
		if wait := charged.sub(start); wait.cmp(tolerance) > 0 {
			d.RetryAfter = time.Duration(wait.sub(tolerance).divCeil(count))
			break
		}
		d.Allowed = true
		if n == 0 {
			break
		}
		var ok bool
		if next, ok = gcraState(charged, count); !ok {
			return s, Decision{}, fmt.Errorf("%w: the arrival time would pass 2^63-1 ns", ErrOutOfRange)
		}
		tat = charged
	}

	ahead := tat.sub(start)
	d.ResetAfter = time.Duration(ahead.divCeil(count))
	if ahead.cmp(tolerance) < 0 {
		d.Remaining = int64(tolerance.sub(ahead).div(interval))
	}
	return next, d, nil
}

// Refund gives n events (0..2^63-1) back at now (1..2^63-1) and returns the
// state after it, and what a look with r says of that:
//
//	TAT = max(now, TAT - n*period)
//
// in units of 1/r.Count ns and rounded up as Take rounds. A key that is full then
// is the zero state: giving back more than was taken gains nothing. When n is 0,
// when s is full already, and when there is an error, the state is s itself. An
// error wraps ErrInvalid.
func (s GCRAState) Refund(now int64, r Rate, n int64) (GCRAState, Decision, error) {
	if err := r.check(n); err != nil {
		return s, Decision{}, err
	}
	next := s
	if n > 0 && s.Deadline > now {
		count := uint64(r.Count)
		tat, back := s.in(count), mul(uint64(n), uint64(r.Period))
		if full := mul(uint64(now), count).add(back); tat.cmp(full) > 0 {
			next, _ = gcraState(tat.sub(back), count) // no later than s, so in time
		} else {
			next = GCRAState{}
		}
	}
	_, d, err := next.Take(now, r, 0)
	return next, d, err
}

// charge returns the state after n events at now, whether they may pass or not,
// and whether it lies in representable time.
func (s GCRAState) charge(now int64, r Rate, n int64) (GCRAState, bool) {
	count := uint64(r.Count)
	tat := s.in(count).max(mul(uint64(now), count))
	return gcraState(tat.add(mul(uint64(n), uint64(r.Period))), count)
}

// in returns the TAT in units of 1/count ns, rounded up.
func (s GCRAState) in(count uint64) uint128 {
	tat := mul(uint64(s.Deadline), count)
	if s.Short == 0 {
		return tat
	}
	return tat.sub(from64(mul(uint64(s.Short), count).div(uint64(s.Count))))
}

// gcraState returns the state whose TAT is tat units of 1/count ns, and
// whether it lies in representable time.
func gcraState(tat uint128, count uint64) (GCRAState, bool) {
	if tat.cmp(mul(math.MaxInt64, count)) > 0 {
		return GCRAState{}, false
	}
	deadline := tat.divCeil(count)
	s := GCRAState{Deadline: int64(deadline)}
	if short := mul(deadline, count).sub(tat); short.lo != 0 {
		s.Short, s.Count = int64(short.lo), int64(count)
	}
	return s, true
}
