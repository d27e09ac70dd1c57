package ttl

import "time"

// Horizon is how far deletion follows a clock. A wall clock that was ahead of
// the store's mark when the store was opened can't be told from one that is
// wrong, and what is deleted by a wrong clock is lost. So deletion stays within
// Ahead of the mark, plus the time since, until the wall clock has agreed with
// the store's for as long as Confirm.
type Horizon struct {
	Mark    int64         // when the store was opened
	Base    int64         // the store's clock when it was opened
	Ahead   time.Duration // not negative
	Confirm time.Duration // not negative

	agreed int64 // since when the clocks agree; 0 if they don't
}

// agreement is how near the two clocks have to be.
const agreement = time.Second

// At returns the instant up to which what is over may be deleted, when now is
// the time on the store's clock and wall that on the wall clock. It is to be
// called every second or so, since it learns from each call how the clocks go.
// For one goroutine.
func (h *Horizon) At(now, wall int64) int64 {
	switch apart := now - wall; {
	case apart <= -int64(agreement) || apart >= int64(agreement):
		h.agreed = 0
	case h.agreed == 0:
		h.agreed = now
	}
	if h.agreed != 0 && now-h.agreed >= int64(h.Confirm) {
		return now
	}
	// Compared without the sum, which could overflow.
	if leap := h.Base - h.Mark; leap > int64(h.Ahead) {
		return now - (leap - int64(h.Ahead))
	}
	return now
}
