package limit_test

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/gabiondb/gabion/engine/limit"
)

const start = 1_700_000_000_000_000_000

func TestPer(t *testing.T) {
	for _, test := range []struct{ got, want limit.Rate }{
		{limit.PerSecond(1), limit.Rate{Burst: 0, Count: 1, Period: time.Second}},
		{limit.PerMinute(30), limit.Rate{Burst: 29, Count: 30, Period: time.Minute}},
		{limit.PerHour(5000), limit.Rate{Burst: 4999, Count: 5000, Period: time.Hour}},
		{limit.PerDay(math.MaxInt64), limit.Rate{Burst: math.MaxInt64 - 1, Count: math.MaxInt64, Period: 24 * time.Hour}},
	} {
		if err := test.got.Validate(); test.got != test.want || err != nil {
			t.Errorf("rate %+v, %v, want %+v", test.got, err, test.want)
		}
	}
	for _, n := range []int64{0, -1, math.MinInt64} {
		if err := limit.PerSecond(n).Validate(); !errors.Is(err, limit.ErrInvalid) {
			t.Errorf("PerSecond(%d).Validate() = %v, want ErrInvalid", n, err)
		}
	}
}

func TestTakeErrors(t *testing.T) {
	ok := limit.Rate{Burst: 4, Count: 3, Period: 10 * time.Second}
	s, _, err := limit.GCRAState{}.Take(start, ok, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		now  int64
		r    limit.Rate
		n    int64
		want error
		text string
	}{
		{start, limit.Rate{Burst: -1, Count: 1, Period: 1}, 1, limit.ErrInvalid, "burst -1"},
		{start, limit.Rate{Burst: math.MaxInt64, Count: 1, Period: 1}, 1, limit.ErrInvalid, "burst 9223372036854775807"},
		{start, limit.Rate{Burst: 0, Count: 0, Period: 1}, 1, limit.ErrInvalid, "count 0"},
		{start, limit.Rate{Burst: 0, Count: math.MinInt64, Period: 1}, 1, limit.ErrInvalid, "count -9223372036854775808"},
		{start, limit.Rate{Burst: 0, Count: 1, Period: 0}, 1, limit.ErrInvalid, "period 0 ns"},
		{start, limit.Rate{Burst: 0, Count: 1, Period: -1}, 0, limit.ErrInvalid, "period -1 ns"},
		{start, ok, -1, limit.ErrInvalid, "quantity -1"},
		{start, ok, math.MinInt64, limit.ErrInvalid, "quantity -9223372036854775808"},
		{math.MaxInt64 - 3_333_333_333, ok, 1, limit.ErrOutOfRange, "arrival time"},
		{math.MaxInt64, limit.Rate{Burst: 0, Count: math.MaxInt64, Period: 1}, 1, limit.ErrOutOfRange, "arrival time"},
	} {
		next, d, err := s.Take(test.now, test.r, test.n)
		if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.text) {
			t.Errorf("Take(%d, %v, %d) fails with %v, want %v about %q", test.now, test.r, test.n, err, test.want, test.text)
		}
		if next != s || d != (limit.Decision{}) {
			t.Errorf("Take(%d, %v, %d) = %+v, %+v, want %+v and no decision", test.now, test.r, test.n, next, d, s)
		}
	}
	if next, d, err := s.Take(math.MaxInt64-3_333_333_334, ok, 1); err != nil || next.Deadline != math.MaxInt64 {
		t.Errorf("the last charge in time = %+v, %+v, %v, want a deadline of 2^63-1", next, d, err)
	}
}

// TestTakeProperties holds what follows from the contract without computing a
// decision: it would find a fault that the oracle shares.
func TestTakeProperties(t *testing.T) {
	for seed := range uint64(1000) {
		var s limit.GCRAState
		for i, c := range randomTrace(seed) {
			next, d, err := s.Take(c.Now, c.rate(), c.N)
			if err == nil {
				err = checkProperties(s, c, next, d)
			}
			if err != nil && !errors.Is(err, limit.ErrOutOfRange) {
				t.Fatalf("seed %d: call %d: %+v.%v = %+v, %+v: %v", seed, i, s, c, next, d, err)
			}
			s = next
		}
	}
}

func checkProperties(s limit.GCRAState, c call, next limit.GCRAState, d limit.Decision) error {
	passes := func(s limit.GCRAState, now, n int64) bool {
		_, d, err := s.Take(now, c.rate(), n)
		return d.Allowed || errors.Is(err, limit.ErrOutOfRange)
	}
	if d.Remaining < 0 || d.Remaining > d.Limit || d.Limit != c.Burst+1 {
		return errors.New("remaining is outside 0..limit, or limit is not burst + 1")
	}
	if (!d.Allowed || c.N == 0) && next != s {
		return errors.New("a call that charged nothing changed the state")
	}
	if tat(next).Cmp(tat(s)) < 0 {
		return errors.New("the arrival time fell")
	}

	// The wait is enough and no longer than that, to the nanosecond and in
	// the whole seconds of the protocol.
	switch never := c.N > d.Limit; {
	case d.Allowed != (d.RetryAfter == 0) || never != (d.RetryAfter == limit.Never):
		return fmt.Errorf("retry is %d", d.RetryAfter)
	case d.Allowed || never:
	case !passes(s, c.Now+int64(d.RetryAfter), c.N):
		return errors.New("denied after the wait")
	case passes(s, c.Now+int64(d.RetryAfter)-1, c.N):
		return errors.New("allowed 1 ns before the wait is over")
	default:
		seconds := ceilSeconds(d.RetryAfter)
		if passes(s, c.Now+(seconds-1)*int64(time.Second), c.N) {
			return errors.New("allowed 1 s before the wait is over")
		}
		if seconds <= (math.MaxInt64-c.Now)/int64(time.Second) && !passes(s, c.Now+seconds*int64(time.Second), c.N) {
			return fmt.Errorf("denied after %d s", seconds)
		}
	}

	// What remains passes, and no more than that.
	if d.Remaining > 0 && !passes(next, c.Now, d.Remaining) || passes(next, c.Now, d.Remaining+1) {
		return errors.New("remaining is not the most that passes")
	}

	// Until the reset, and no longer, the key can be told from an absent one.
	look := func(s limit.GCRAState, now int64) limit.Decision {
		_, d, _ := s.Take(now, c.rate(), 0)
		return d
	}
	if reset := c.Now + int64(d.ResetAfter); look(next, reset) != look(limit.GCRAState{}, reset) {
		return errors.New("not full after the reset")
	} else if d.ResetAfter > 0 && look(next, reset-1).ResetAfter != 1 {
		return errors.New("full 1 ns before the reset")
	}
	if end := next.Deadline; end > 1 && (look(next, end) != look(limit.GCRAState{}, end) || look(next, end-1).ResetAfter != 1) {
		return errors.New("the deadline is not where the key ends")
	}
	return nil
}

func TestRefundErrors(t *testing.T) {
	ok := limit.Rate{Burst: 4, Count: 3, Period: 10 * time.Second}
	s, _, err := limit.GCRAState{}.Take(start, ok, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		r    limit.Rate
		n    int64
		text string
	}{
		{limit.Rate{Burst: -1, Count: 1, Period: 1}, 1, "burst -1"},
		{limit.Rate{Burst: 0, Count: 0, Period: 1}, 1, "count 0"},
		{limit.Rate{Burst: 0, Count: 1, Period: 0}, 0, "period 0 ns"},
		{ok, -1, "quantity -1"},
		{ok, math.MinInt64, "quantity -9223372036854775808"},
	} {
		next, d, err := s.Refund(start, test.r, test.n)
		if !errors.Is(err, limit.ErrInvalid) || !strings.Contains(err.Error(), test.text) {
			t.Errorf("Refund(%v, %d) fails with %v, want ErrInvalid about %q", test.r, test.n, err, test.text)
		}
		if next != s || d != (limit.Decision{}) {
			t.Errorf("Refund(%v, %d) = %+v, %+v, want %+v and no decision", test.r, test.n, next, d, s)
		}
	}
}

// TestRefundProperties gives back what was taken, at once and later, in one piece
// and in two: whoever does so is where he would be if he had not taken it.
func TestRefundProperties(t *testing.T) {
	exact := 0
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 0))
		r := limit.Rate{Burst: wide(rng) / 2, Count: max(1, wide(rng)), Period: time.Duration(max(1, wide(rng)))}
		now := 1 + wide(rng)/2
		// n out of a burst leaves the other half of it for what comes before and after.
		n := rng.Int64N(1 + r.Burst/2)
		var before limit.GCRAState
		before, _, _ = before.Take(now, r, rng.Int64N(1+r.Burst/2))
		charged, d, err := before.Take(now, r, n)
		if err != nil || !d.Allowed || n == 0 {
			continue
		}
		back, _, err := charged.Refund(now, r, n)
		want := before
		if before.Deadline <= now {
			want = limit.GCRAState{}
		}
		if back != want || err != nil {
			t.Fatalf("seed %d: Refund(%d, %v, %d) of %+v = %+v, %v, want %+v", seed, now, r, n, charged, back, err, want)
		}
		k := rng.Int64N(n + 1)
		first, _, _ := charged.Refund(now, r, k)
		if both, _, _ := first.Refund(now, r, n-k); both != want {
			t.Fatalf("seed %d: %d and %d back of %+v = %+v, want %+v", seed, k, n-k, charged, both, want)
		}
		if all, d, _ := charged.Refund(now, r, math.MaxInt64); all != (limit.GCRAState{}) || d.Remaining != d.Limit {
			t.Fatalf("seed %d: more than all back of %+v = %+v, %+v, want it full", seed, charged, all, d)
		}
		if before.Deadline > now {
			exact++
		}
	}
	if exact < 100 {
		t.Errorf("%d refunds led back to a live state, want 100 or more", exact)
	}
}

// TestTakeEveryQuantity compares each quantity that means anything with what a
// look said before, and the answer of a dropped call with that of the next one.
func TestTakeEveryQuantity(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		r := limit.Rate{Burst: rng.Int64N(20), Count: 1 + rng.Int64N(20), Period: 1 + time.Duration(rng.Int64N(100))}
		var s limit.GCRAState
		now := int64(start)
		for range 20 {
			now += rng.Int64N(2 * int64(r.Period))
			_, full, _ := s.Take(now, r, 0)
			for n := range r.Burst + 3 {
				_, probe, _ := s.Take(now, r, n)
				next, d, err := s.Take(now, r, n)
				if d != probe || err != nil {
					t.Fatalf("seed %d: Take(%d, %v, %d) = %+v, %v after a probe said %+v", seed, now, r, n, d, err, probe)
				}
				want := full.Remaining
				if n <= full.Remaining {
					want -= n
				}
				if d.Allowed != (n <= full.Remaining) || d.Remaining != want {
					t.Fatalf("seed %d: Take(%d, %v, %d) = %+v with %d remaining before", seed, now, r, n, d, full.Remaining)
				}
				if n == full.Remaining {
					if _, d, _ := next.Take(now, r, 1); d.Allowed {
						t.Fatalf("seed %d: Take(%d, %v, 1) passes after all that remained", seed, now, r)
					}
				}
			}
			s, _, _ = s.Take(now, r, rng.Int64N(full.Remaining+1))
		}
	}
}

// TestTakeSpans remembers every event and counts those in every span X: they
// are at most limit + X/T, rounded down.
func TestTakeSpans(t *testing.T) {
	type event struct{ at, n int64 }
	tight := 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 0))
		r := limit.Rate{Burst: rng.Int64N(10), Count: 1 + rng.Int64N(1000), Period: 1 + time.Duration(rng.Int64N(1000))}
		var s limit.GCRAState
		var admitted []event
		now := int64(start)
		for range 200 {
			now += rng.Int64N(2 + int64(r.Period)*2/r.Count)
			n := 1 + rng.Int64N(1+rng.Int64N(r.Burst+1))
			next, d, err := s.Take(now, r, n)
			if err != nil {
				t.Fatal(err)
			}
			if d.Allowed {
				admitted = append(admitted, event{now, n})
			}
			s = next
		}
		for i, first := range admitted {
			sum := int64(0)
			for _, last := range admitted[i:] {
				sum += last.n
				most := r.Burst + 1 + (last.at-first.at)*r.Count/int64(r.Period)
				if sum > most {
					t.Fatalf("seed %d: %+v let %d pass from %d to %d, want at most %d", seed, r, sum, first.at, last.at, most)
				}
				if sum == most {
					tight++
				}
			}
		}
	}
	if tight == 0 {
		t.Error("no span reached the bound")
	}
}

// TestTakeHour takes all there is at uneven instants for an hour, often enough
// for the limit never to be whole in between: it gets what the rate gives, not an
// event more or less.
func TestTakeHour(t *testing.T) {
	for _, r := range []limit.Rate{
		limit.PerSecond(700_000_000),
		limit.PerSecond(3_000_000_000),
		limit.PerSecond(3),
		limit.PerMinute(7),
		limit.PerHour(1_000_003),
		{Burst: 1 << 40, Count: 999_999_999_989, Period: 7*time.Second + 1},
	} {
		rng := rand.New(rand.NewPCG(uint64(r.Count), 0))
		var s limit.GCRAState
		var sum int64
		for elapsed := int64(0); ; elapsed = min(elapsed+rng.Int64N(int64(600*time.Millisecond)), int64(time.Hour)) {
			_, d, _ := s.Take(start+elapsed, r, 0)
			next, got, err := s.Take(start+elapsed, r, d.Remaining)
			if !got.Allowed || err != nil {
				t.Fatalf("%+v: Take of all %d = %+v, %v", r, d.Remaining, got, err)
			}
			s = next
			sum += d.Remaining
			if elapsed == int64(time.Hour) {
				break
			}
		}
		given := floor(mul(integer(r.Count), big.NewRat(int64(time.Hour), int64(r.Period))))
		if want := r.Burst + 1 + given.Int64(); sum != want {
			t.Errorf("%+v: %d in an hour, want %d", r, sum, want)
		}
	}
}

// TestTakeSteadyByteRate sends at the very rate for an hour, 700,000 bytes each
// millisecond: all of it passes, and one byte more does not.
func TestTakeSteadyByteRate(t *testing.T) {
	r := limit.Rate{Burst: 699_999, Count: 700_000_000, Period: time.Second}
	var s limit.GCRAState
	for elapsed := time.Duration(0); elapsed < time.Hour; elapsed += time.Millisecond {
		next, d, err := s.Take(start+int64(elapsed), r, 700_000)
		if !d.Allowed || err != nil {
			t.Fatalf("after %v: Take(700000) = %+v, %v, want it allowed", elapsed, d, err)
		}
		if _, d, _ := next.Take(start+int64(elapsed), r, 1); d.Allowed {
			t.Fatalf("after %v: Take(1) = %+v, want it denied", elapsed, d)
		}
		s = next
	}
}

// takes are calls on one state for each way through Take.
var takes = []struct {
	name string
	s    limit.GCRAState
	r    limit.Rate
	n    int64
}{
	{"absent", limit.GCRAState{}, limit.PerSecond(700_000_000), 1500},
	{"charged", limit.GCRAState{Deadline: start + 10, Short: 5, Count: 700_000_000}, limit.PerSecond(700_000_000), 1500},
	{"rounded", limit.GCRAState{Deadline: start + 10, Short: 5, Count: 700_000_001}, limit.PerSecond(700_000_000), 1500},
	{"denied", limit.GCRAState{Deadline: start + 1e9}, limit.PerSecond(100), 1},
	{"never", limit.GCRAState{Deadline: start + 1e9}, limit.PerSecond(100), 101},
}

func TestTakeAllocs(t *testing.T) {
	for _, test := range takes {
		allocs := testing.AllocsPerRun(100, func() {
			test.s.Take(start, test.r, test.n)
			test.s.Refund(start, test.r, test.n)
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations, want 0", test.name, allocs)
		}
	}
}

func BenchmarkTake(b *testing.B) {
	for _, test := range takes {
		b.Run(test.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				test.s.Take(start, test.r, test.n)
			}
		})
	}
}
