package limit_test

import (
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/gabiondb/gabion/engine/limit"
	"github.com/gabiondb/gabion/engine/limit/limittest"
)

func TestVectors(t *testing.T) {
	for _, base := range []int64{1, 1_700_000_000_000_000_000, 1_700_000_000_123_456_789, math.MaxInt64 - 2_000_000_000_000_000} {
		for _, g := range limittest.Throttle() {
			store := map[string]limit.GCRAState{}
			for _, step := range g.Steps {
				got := run(t, store, base+int64(step.At), step.Command)
				if !slices.Equal(got, step.Want) {
					t.Errorf("throttle.tsv:%d: at %d + %v: %v = %v, want %v",
						step.Line, base, step.At, step.Command, got, step.Want)
				}
			}
		}
	}
}

// run carries out one command of the vectors on the states in store.
func run(t *testing.T, store map[string]limit.GCRAState, now int64, command []string) []int64 {
	name, key := command[0], command[1]
	switch name {
	case "EXISTS":
		if store[key].Deadline > now {
			return []int64{1}
		}
		return []int64{0}
	case "CL.THROTTLE", "CL.PROBE":
		args := []int64{0, 0, 0, 1}
		for i, s := range command[2:] {
			var err error
			if args[i], err = strconv.ParseInt(s, 10, 64); err != nil {
				t.Fatal(err)
			}
		}
		r := limit.Rate{Burst: args[0], Count: args[1], Period: time.Duration(args[2]) * time.Second}
		next, d, err := store[key].Take(now, r, args[3])
		if err != nil {
			t.Fatalf("%v: %v", command, err)
		}
		if name == "CL.THROTTLE" {
			store[key] = next
		}
		return reply(d)
	}
	t.Fatalf("unknown command %v", command)
	return nil
}

// reply returns the five integers of CL.THROTTLE.
func reply(d limit.Decision) []int64 {
	limited, retry := int64(1), int64(-1)
	if d.Allowed {
		limited = 0
	} else if d.RetryAfter != limit.Never {
		retry = ceilSeconds(d.RetryAfter)
	}
	return []int64{limited, d.Limit, d.Remaining, retry, ceilSeconds(d.ResetAfter)}
}

func ceilSeconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}
