package limit

import (
	"fmt"
	"time"
)

// Row is one of several charges that are decided together.
type Row struct {
	State int // the index, among the states, of the key that it is about
	Rate  Rate
	N     int64 // how many events, 0..2^63-1
}

// Decisions are the answers to several charges.
type Decisions []Decision

// Denied tells how many of them deny.
func (ds Decisions) Denied() int {
	n := 0
	for _, d := range ds {
		if !d.Allowed {
			n++
		}
	}
	return n
}

// RetryAfter returns the longest wait of those that deny: 0 if none does, Never
// if no wait helps one of them.
func (ds Decisions) RetryAfter() time.Duration {
	var longest time.Duration
	for _, d := range ds {
		longest = max(longest, d.RetryAfter)
	}
	return longest
}

// TakeAll decides rows at now (1..2^63-1): all of them are charged, or none.
// decisions has a place for each row, and gets the answers. states are those of
// different keys, and become what is to be kept.
//
// A row is judged as if the rows before it on the same key had been charged,
// whether they may pass or not. It is denied if Take would deny it then, and
// RetryAfter is how long until Take would not; Never if it would not pass even if
// nothing but these rows had been charged. If none is denied, the decisions are
// those of Take, one row after the other. If one is, then Remaining and
// ResetAfter are those of a look at the states as they are, and the rows that
// are not denied stay Allowed, though they are not charged either. So after the
// longest wait, and no sooner, the same rows would pass.
//
// An error wraps ErrInvalid, or ErrOutOfRange if no row is denied and one can't
// be charged. It changes no state, and what decisions hold means nothing.
func TakeAll(now int64, states []GCRAState, rows []Row, decisions []Decision) error {
	if err := checkRows(rows); err != nil {
		return err
	}
	var few [fewStates]pile
	piles := few[:0]
	if len(states) > fewStates {
		piles = make([]pile, 0, len(states))
	}
	for _, s := range states {
		piles = append(piles, pile{state: s})
	}
	denied := false
	var failure error
	for i, row := range rows {
		d, err := piles[row.State].take(now, row.Rate, row.N)
		if failure == nil {
			failure = err
		}
		denied = denied || !d.Allowed
		decisions[i] = d
	}
	if denied {
		for i, row := range rows {
			_, look, _ := states[row.State].Take(now, row.Rate, 0) // its arguments have been checked
			decisions[i].Remaining, decisions[i].ResetAfter = look.Remaining, look.ResetAfter
		}
		return nil
	}
	if failure != nil {
		return failure
	}
	for i := range states {
		states[i] = piles[i].state
	}
	return nil
}

// TakeEach decides rows at now (1..2^63-1) one after the other, as so many calls
// of Take would. decisions has a place for each row, and gets the answers. states
// are those of different keys, and become what is to be kept.
//
// An error wraps ErrInvalid, or ErrOutOfRange if one of the charges would have
// that error. It changes no state, and what decisions hold means nothing.
func TakeEach(now int64, states []GCRAState, rows []Row, decisions []Decision) error {
	if err := checkRows(rows); err != nil {
		return err
	}
	var few [fewStates]GCRAState
	next := append(few[:0], states...)
	for i, row := range rows {
		var err error
		if next[row.State], decisions[i], err = next[row.State].Take(now, row.Rate, row.N); err != nil {
			return err
		}
	}
	copy(states, next)
	return nil
}

// fewStates is how many states need no memory but the stack's.
const fewStates = 16

func checkRows(rows []Row) error {
	for i, row := range rows {
		if err := row.Rate.check(row.N); err != nil {
			return fmt.Errorf("%w: row %d of %d", err, i+1, len(rows))
		}
	}
	return nil
}

// pile is a key on which rows are charged whether they may pass or not.
type pile struct {
	state GCRAState // of the key
	fresh GCRAState // of the key if nothing but the rows had been charged
	over  bool      // a row would have passed representable time
}

// take judges a row, and charges it. With an error, which wraps ErrOutOfRange,
// the row is not denied: it is allowed, but can't be charged.
func (p *pile) take(now int64, r Rate, n int64) (Decision, error) {
	if p.over {
		// Time goes on, so what passes its end does so for ever.
		return Decision{Limit: r.Burst + 1, RetryAfter: Never}, nil
	}
	_, d, err := p.state.Take(now, r, n)
	switch {
	case err != nil:
		d = Decision{Allowed: true, Limit: r.Burst + 1}
	case !d.Allowed:
		if _, alone, err := p.fresh.Take(now, r, n); err == nil && !alone.Allowed {
			d.RetryAfter = Never
		}
	}
	if n > 0 {
		// The state is never before the fresh one, so it is the first to pass the end.
		var ok bool
		p.state, ok = p.state.charge(now, r, n)
		p.fresh, _ = p.fresh.charge(now, r, n)
		p.over = !ok
	}
	return d, err
}
