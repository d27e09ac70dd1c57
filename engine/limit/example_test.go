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
