package ttl_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/ttl"
)

// instants returns a generator of times: near to since, as a sidecar's heads
// are, or anywhere.
func instants(since int64) *rapid.Generator[int64] {
	return rapid.Custom(func(t *rapid.T) int64 {
		if rapid.IntRange(0, 3).Draw(t, "anywhere") == 0 {
			return rapid.Int64Range(1, math.MaxInt64).Draw(t, "at")
		}
		far := min(int64(1)<<rapid.IntRange(0, 62).Draw(t, "bits"), math.MaxInt64-since)
		return since + rapid.Int64Range(min(0, 1-since), far).Draw(t, "after")
	})
}

// TestSidecar counts heads in two sidecars that are merged, and in a list. What
// the sidecar says of them is never more than the list does, and misses no more
// than the heads of one bucket.
func TestSidecar(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		since := rapid.Int64Range(1, math.MaxInt64).Draw(t, "since")
		s, other := ttl.NewSidecar(since), ttl.NewSidecar(since)
		var heads []int64
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			into := &s
			if rapid.Bool().Draw(t, "into the other") {
				into = &other
			}
			if len(heads) > 0 && rapid.IntRange(0, 2).Draw(t, "remove") == 0 {
				i := rapid.IntRange(0, len(heads)-1).Draw(t, "head")
				into.Remove(heads[i]) // whichever of the two has it
				heads = slices.Delete(heads, i, i+1)
				continue
			}
			deadline := instants(since).Draw(t, "deadline")
			into.Add(deadline)
			heads = append(heads, deadline)
		}
		s.Add(0) // no head
		s.Add(0)
		s.Remove(0)
		s.Merge(&other)
		slices.Sort(heads)
		checkSidecar(t, s, heads)

		want := ttl.NewSidecar(since)
		for _, deadline := range heads {
			want.Add(deadline)
		}
		if s != want {
			t.Fatalf("the counts are %v, want %v of %d", s, want, heads)
		}
		if got := ttl.LoadSidecar(s.Sidecar); got != s {
			t.Fatalf("LoadSidecar = %v, want %v", got, s)
		}
	})
}

// checkSidecar holds s against the heads that it has, in order.
func checkSidecar(t *rapid.T, s ttl.Sidecar, heads []int64) {
	if got := s.Records(); got != int64(len(heads)) {
		t.Fatalf("Records = %d of %d", got, heads)
	}
	first := s.First()
	switch {
	case len(heads) == 0 && first != math.MaxInt64:
		t.Fatalf("First = %d without heads", first)
	case len(heads) > 0 && (first > max(heads[0], s.Since) || first < s.Since):
		t.Fatalf("First = %d of %d since %d", first, heads, s.Since)
	}
	nows := append(slices.Clone(heads), 1, s.Since, math.MaxInt64, instants(s.Since).Draw(t, "now"))
	for _, now := range nows {
		due, missed := s.Due(now), int64(0)
		for _, deadline := range heads {
			if ttl.Expired(deadline, now) {
				missed++
			}
		}
		if missed -= due; missed < 0 {
			t.Fatalf("Due(%d) = %d, which is %d too many of %d since %d", now, due, -missed, heads, s.Since)
		}
		if most := inBucketOf(s, now); missed > most {
			t.Fatalf("Due(%d) = %d, and misses %d of %d since %d, want no more than the %d of the bucket that now is in",
				now, due, missed, heads, s.Since, most)
		}
		if now < s.Since && due > 0 {
			t.Fatalf("Due(%d) = %d before %d", now, due, s.Since)
		}
	}
}

// inBucketOf returns how many heads are in the bucket that now is in. Those that
// were over before the sidecar began to count are in its first.
func inBucketOf(s ttl.Sidecar, now int64) int64 {
	probe := ttl.NewSidecar(s.Since)
	probe.Add(now)
	for i, n := range probe.Counts {
		if n > 0 {
			return s.Counts[i]
		}
	}
	return 0
}

// TestDueAtTheEnd has heads in the last bucket, which ends with time: now never
// leaves it, so they are never known to be over.
func TestDueAtTheEnd(t *testing.T) {
	s := ttl.NewSidecar(1)
	s.Add(math.MaxInt64)
	if got := s.Counts[codec.SidecarBuckets-1]; got != 1 {
		t.Fatalf("the last bucket has %d heads, want 1", got)
	}
	for _, now := range []int64{1, math.MaxInt64 - 1, math.MaxInt64} {
		if got := s.Due(now); got != 0 {
			t.Errorf("Due(%d) = %d, want 0", now, got)
		}
	}
}

// A guess may count below nothing.
func TestSidecarBelowNothing(t *testing.T) {
	s := ttl.NewSidecar(1)
	s.Remove(2)
	if n, due, first := s.Records(), s.Due(math.MaxInt64), s.First(); n != 0 || due != 0 || first != math.MaxInt64 {
		t.Errorf("Records = %d, Due = %d, First = %d of less than nothing", n, due, first)
	}
	if s.Worth(math.MaxInt64, 1) {
		t.Error("Worth = true of less than nothing")
	}
}

func TestWorth(t *testing.T) {
	const (
		since = int64(1_700_000_000_000_000_000)
		wait  = 10 * time.Minute
		soon  = since + int64(time.Second)
		later = since + int64(24*time.Hour)
		past  = since + int64(2*time.Second) // what is due soon is known to be due
	)
	for _, test := range []struct {
		what       string
		soon, late int // heads that are due soon, and much later
		now        int64
		want       bool
	}{
		{"none", 0, 0, later, false},
		{"nothing is due", 64, 0, since, false},
		{"all are due, and they are few", 63, 0, past, false},
		{"all are due", 64, 0, past, true},
		{"a quarter is due", 64, 192, past, true},
		{"less than a quarter is due", 64, 196, past, false},
		{"a quarter of many is due", 1000, 3000, past, true},
		{"less than a quarter of many is due", 1000, 3004, past, false},
		{"one has been due for less than the wait", 1, 1000, soon - int64(200*time.Millisecond) + int64(wait) - int64(time.Second), false},
		{"one has been due for the wait", 1, 1000, soon + int64(wait), true},
		{"one may be due in a day", 0, 1, since + int64(12*time.Hour), false},
	} {
		s := ttl.NewSidecar(since)
		for range test.soon {
			s.Add(soon)
		}
		for range test.late {
			s.Add(later)
		}
		if got := s.Worth(test.now, wait); got != test.want {
			t.Errorf("%s: Worth = %t with %d of %d due, the first after %v, want %t", test.what, got,
				s.Due(test.now), s.Records(), time.Duration(s.First()-since), test.want)
		}
	}
}

// TestWorthOfTheFirst goes to the instant from which on a single head is worth a
// purge.
func TestWorthOfTheFirst(t *testing.T) {
	const wait = time.Minute
	s := ttl.NewSidecar(1_000)
	s.Add(1_000 + int64(time.Hour))
	at := s.First() + int64(wait)
	if s.Worth(at-1, wait) || !s.Worth(at, wait) {
		t.Errorf("Worth = %t and %t, want false before the wait is over and true then", s.Worth(at-1, wait), s.Worth(at, wait))
	}
}
