package ttl_test

import (
	"math"
	"testing"
	"time"

	"github.com/gabiondb/gabion/engine/limit"
	"github.com/gabiondb/gabion/ttl"
)

func TestLive(t *testing.T) {
	s := limit.State{Kind: limit.GCRA, GCRA: limit.GCRAState{Deadline: 100}}
	for _, test := range []struct {
		now  int64
		want limit.State
	}{
		{1, s},
		{99, s},
		{100, limit.State{}}, // the deadline is the first instant without it
		{math.MaxInt64, limit.State{}},
	} {
		if got := ttl.Live(s, test.now); got != test.want {
			t.Errorf("Live(%v, %d) = %v, want %v", s, test.now, got, test.want)
		}
	}
	if got := ttl.Live(limit.State{}, 1); got != (limit.State{}) {
		t.Errorf("Live of an absent key = %v", got)
	}
}

func TestLeft(t *testing.T) {
	for _, test := range []struct {
		deadline, now int64
		want          time.Duration
	}{
		{100, 1, 99},
		{100, 99, 1},
		{100, 100, 0},
		{100, 101, 0},
		{0, 1, 0},
		{math.MaxInt64, 1, math.MaxInt64 - 1},
		{math.MaxInt64, -1, math.MaxInt64}, // further than a Duration reaches
	} {
		if got := ttl.Left(test.deadline, test.now); got != test.want {
			t.Errorf("Left(%d, %d) = %d, want %d", test.deadline, test.now, got, test.want)
		}
	}
}
