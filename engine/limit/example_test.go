package limit_test

import (
	"fmt"
	"time"

	"github.com/gabiondb/gabion/engine/limit"
)

// A state starts as its zero value, and whoever keeps it replaces it by the
// next one. A call whose next state is dropped is a probe.
func ExampleGCRAState_Take() {
	rate := limit.Rate{Burst: 1, Count: 1, Period: 10 * time.Second}
	var state limit.GCRAState
	now := time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC).UnixNano()
	for range 3 {
		next, d, err := state.Take(now, rate, 1)
		if err != nil {
			fmt.Println(err)
			return
		}
		state = next
		fmt.Println(d.Allowed, d.Remaining, d.RetryAfter, d.ResetAfter)
	}
	// Output:
	// true 1 0s 10s
	// true 0 0s 20s
	// false 0 10s 20s
}

// Three events have to be within a user's limit and within that of all users
// together. Either both are charged or none.
func ExampleTakeAll() {
	states := make([]limit.GCRAState, 2)
	rows := []limit.Row{
		{State: 0, Rate: limit.PerMinute(5), N: 3},
		{State: 1, Rate: limit.PerMinute(100), N: 3},
	}
	decisions := make(limit.Decisions, len(rows))
	now := time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC).UnixNano()
	for range 2 {
		if err := limit.TakeAll(now, states, rows, decisions); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(decisions.Denied(), decisions.RetryAfter(), decisions[0].Remaining, decisions[1].Remaining)
	}
	// Output:
	// 0 0s 2 97
	// 1 12s 2 97
}

// The records of the accepted requests are kept beside the state, for as long
// as the window is open. So a request that is repeated, because its answer was
// lost, is known again and not charged twice.
func ExampleQuotaState_Take() {
	quota := limit.Quota{Limit: 5, Window: time.Minute}
	var state limit.QuotaState
	requests := map[string]limit.Request{}
	now := time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC).UnixNano()
	for _, id := range []string{"order-1", "order-1", "order-2", "order-3"} {
		next, g, err := state.Take(now, quota, 2, requests[id])
		if err != nil {
			fmt.Println(err)
			return
		}
		if g.Accepted && !g.Replay {
			state = next
			requests[id] = limit.Request{Cost: 2, Used: g.Used}
		}
		fmt.Println(id, g.Accepted, g.Used, g.Replay)
	}
	// Output:
	// order-1 true 2 false
	// order-1 true 2 true
	// order-2 true 4 false
	// order-3 false 4 false
}

// A list of up to limit.MaxRuns instants has no chunks. Whoever keeps longer
// ones carries out what Change says and finds the chunks again.
func ExampleRollingState_Allow() {
	rolling := limit.Rolling{Limit: 2, Window: 10 * time.Second}
	var state limit.RollingState
	chunks := map[int64]*limit.Chunk{} // by the ordinal of their first event
	read := func(ordinal int64) (*limit.Chunk, error) {
		for _, c := range chunks {
			if c.Runs[0].Ordinal <= ordinal && ordinal < c.Next {
				return c, nil
			}
		}
		return nil, fmt.Errorf("no chunk holds event %d", ordinal)
	}
	now := time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC).UnixNano()
	for range 4 {
		next, a, change, err := state.Allow(now, rolling, read)
		if err != nil {
			fmt.Println(err)
			return
		}
		state = next
		for ordinal := range chunks {
			if change.Dead.From <= ordinal && ordinal < change.Dead.To {
				delete(chunks, ordinal)
			}
		}
		if change.Seal != nil {
			chunks[change.Seal.Runs[0].Ordinal] = change.Seal
		}
		fmt.Println(a.Allowed, a.Count, a.Wait)
		now += int64(4 * time.Second)
	}
	// Output:
	// true 1 0s
	// true 2 6s
	// false 2 2s
	// true 2 2s
}
