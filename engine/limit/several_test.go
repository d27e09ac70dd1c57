package limit_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/gabiondb/gabion/engine/limit"
)

// takeFunc is TakeAll or TakeEach.
type takeFunc = func(int64, []limit.GCRAState, []limit.Row, []limit.Decision) error

func TestSeveralErrors(t *testing.T) {
	r := limit.PerSecond(3)
	slow := limit.Rate{Burst: 9, Count: 1, Period: math.MaxInt64}
	s, _, err := limit.GCRAState{}.Take(start, r, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name      string
		rows      []limit.Row
		all, each error
	}{
		{"nothing", nil, nil, nil},
		{"a rate", []limit.Row{{0, r, 1}, {1, limit.Rate{Count: 0, Period: 1}, 1}}, limit.ErrInvalid, limit.ErrInvalid},
		{"a quantity", []limit.Row{{0, r, 1}, {1, r, -1}}, limit.ErrInvalid, limit.ErrInvalid},
		{"an argument behind what is too late", []limit.Row{{0, slow, 1}, {1, r, -1}}, limit.ErrInvalid, limit.ErrInvalid},
		{"too late", []limit.Row{{1, r, 1}, {0, slow, 1}}, limit.ErrOutOfRange, limit.ErrOutOfRange},
		{"too late, and a denial", []limit.Row{{0, slow, 1}, {1, r, 4}}, nil, limit.ErrOutOfRange},
		{"a denial, and too late", []limit.Row{{1, r, 4}, {0, slow, 1}}, nil, limit.ErrOutOfRange},
		{"too late, and the same key again", []limit.Row{{0, slow, 1}, {0, slow, 0}}, nil, limit.ErrOutOfRange},
	} {
		for _, f := range []struct {
			name string
			take takeFunc
			want error
		}{{"TakeAll", limit.TakeAll, test.all}, {"TakeEach", limit.TakeEach, test.each}} {
			states := []limit.GCRAState{s, {}}
			err := f.take(start, states, test.rows, make([]limit.Decision, len(test.rows)))
			if !errors.Is(err, f.want) {
				t.Errorf("%s: %s fails with %v, want %v", test.name, f.name, err, f.want)
			}
			if !slices.Equal(states, []limit.GCRAState{s, {}}) {
				t.Errorf("%s: %s leaves %+v, want it unchanged", test.name, f.name, states)
			}
		}
	}
}

// manyRows are a row for each of n keys, and one more for the first.
func manyRows(n int) (states []limit.GCRAState, rows []limit.Row) {
	for i := range n {
		states = append(states, limit.GCRAState{Deadline: start + 10, Short: 5, Count: 700_000_000})
		rows = append(rows, limit.Row{State: i, Rate: limit.PerSecond(700_000_000), N: 1500})
	}
	return states, append(rows, rows[0])
}

func TestSeveralAllocs(t *testing.T) {
	for n, want := range map[int]float64{1: 0, 16: 0, 128: 1} {
		states, rows := manyRows(n)
		decisions := make(limit.Decisions, len(rows))
		for name, take := range map[string]takeFunc{
			"TakeAll": limit.TakeAll, "TakeEach": limit.TakeEach,
		} {
			allocs := testing.AllocsPerRun(100, func() {
				if err := take(start, states, rows, decisions); err != nil {
					t.Fatal(err)
				}
			})
			if allocs > want {
				t.Errorf("%s of %d keys: %v allocations, want %v", name, n, allocs, want)
			}
		}
	}
}

func BenchmarkSeveral(b *testing.B) {
	for _, n := range []int{1, 10, 128} {
		b.Run(fmt.Sprintf("all/%d", n), func(b *testing.B) { benchmarkSeveral(b, n, limit.TakeAll) })
		b.Run(fmt.Sprintf("each/%d", n), func(b *testing.B) { benchmarkSeveral(b, n, limit.TakeEach) })
	}
}

// benchmarkSeveral charges n keys, all of which are full again by the next call.
func benchmarkSeveral(b *testing.B, n int, take takeFunc) {
	states, rows := manyRows(n)
	decisions := make([]limit.Decision, len(rows))
	b.ReportAllocs()
	for now := int64(start); b.Loop(); now += int64(time.Second) {
		_ = take(now, states, rows, decisions)
	}
}
