package limit_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/gabiondb/gabion/engine/limit"
)

// oracle is GCRA as its formulas read, in exact fractions of a nanosecond.
type oracle struct {
	tat   *big.Rat
	count int64 // of the rate that tat was stored under
}

func newOracle() *oracle { return &oracle{tat: new(big.Rat)} }

func (o *oracle) take(at int64, r limit.Rate, n int64) (limit.Decision, error) {
	var (
		now = integer(at)
		T   = big.NewRat(int64(r.Period), r.Count)
		tau = mul(integer(r.Burst+1), T)
	)
	t0 := later(o.read(r.Count), now)
	t1 := add(t0, mul(integer(n), T))

	after := t0
	d := limit.Decision{Limit: r.Burst + 1}
	switch {
	case n > d.Limit:
		d.RetryAfter = limit.Never
	case sub(t1, now).Cmp(tau) > 0:
		d.RetryAfter = time.Duration(ceil(sub(sub(t1, tau), now)).Int64())
	case n > 0 && t1.Cmp(integer(math.MaxInt64)) > 0:
		return limit.Decision{}, limit.ErrOutOfRange
	default:
		d.Allowed = true
		if n > 0 {
			o.tat, o.count = t1, r.Count
			after = t1
		}
	}
	if room := sub(tau, sub(after, now)); room.Sign() > 0 {
		d.Remaining = floor(new(big.Rat).Quo(room, T)).Int64()
	}
	d.ResetAfter = time.Duration(ceil(sub(after, now)).Int64())
	return d, nil
}

// read returns the arrival time as a rate of so many events reads it.
func (o *oracle) read(count int64) *big.Rat {
	if o.count == count {
		return o.tat
	}
	return new(big.Rat).SetFrac(ceil(mul(o.tat, integer(count))), big.NewInt(count))
}

func integer(x int64) *big.Rat   { return new(big.Rat).SetInt64(x) }
func add(x, y *big.Rat) *big.Rat { return new(big.Rat).Add(x, y) }
func sub(x, y *big.Rat) *big.Rat { return new(big.Rat).Sub(x, y) }
func mul(x, y *big.Rat) *big.Rat { return new(big.Rat).Mul(x, y) }

// floor relies on Div being Euclidean: it rounds down, since the denominator of
// a Rat is positive.
func floor(x *big.Rat) *big.Int { return new(big.Int).Div(x.Num(), x.Denom()) }

func ceil(x *big.Rat) *big.Int {
	f := floor(new(big.Rat).Neg(x))
	return f.Neg(f)
}

func later(x, y *big.Rat) *big.Rat {
	if x.Cmp(y) < 0 {
		return y
	}
	return x
}

// tat returns the exact theoretical arrival time that s stands for.
func tat(s limit.GCRAState) *big.Rat {
	if s.Short == 0 {
		return integer(s.Deadline)
	}
	return sub(integer(s.Deadline), big.NewRat(s.Short, s.Count))
}

// call is one call of Take, of fixed size, so that a trace of them can be
// written as bytes.
type call struct{ Now, Burst, Count, Period, N int64 }

const callSize = 5 * 8

func (c call) rate() limit.Rate {
	return limit.Rate{Burst: c.Burst, Count: c.Count, Period: time.Duration(c.Period)}
}

func (c call) String() string {
	return fmt.Sprintf("Take(%d, {%d %d %d}, %d)", c.Now, c.Burst, c.Count, c.Period, c.N)
}

// clamp returns c with each field taken into its range.
func (c call) clamp() call {
	return call{
		Now:    max(1, c.Now&math.MaxInt64),
		Burst:  min(c.Burst&math.MaxInt64, math.MaxInt64-1),
		Count:  max(1, c.Count&math.MaxInt64),
		Period: max(1, c.Period&math.MaxInt64),
		N:      c.N & math.MaxInt64,
	}
}

func encodeTrace(trace []call) []byte {
	data, err := binary.Append(nil, binary.BigEndian, trace)
	if err != nil {
		panic(err)
	}
	return data
}

// decodeTrace reads up to 64 calls: a longer trace teaches nothing more.
func decodeTrace(data []byte) []call {
	trace := make([]call, min(len(data)/callSize, 64))
	if _, err := binary.Decode(data, binary.BigEndian, trace); err != nil {
		panic(err)
	}
	for i, c := range trace {
		trace[i] = c.clamp()
	}
	return trace
}

// wide returns a number of any magnitude up to 2^63-1, at times counted down
// from there.
func wide(rng *rand.Rand) int64 {
	x := rng.Int64() >> rng.IntN(63)
	if rng.IntN(16) == 0 {
		return math.MaxInt64 - x
	}
	return x
}

// randomTrace returns calls on one key that tend to lie where something
// changes: at the edge of what is left, of the wait, of the expiry.
func randomTrace(seed uint64) []call {
	rng := rand.New(rand.NewPCG(seed, 0))
	var s limit.GCRAState
	var d limit.Decision
	c := call{Now: wide(rng)}
	trace := make([]call, 40)
	for i := range trace {
		switch k := rng.IntN(16); {
		case i == 0 || k == 0:
			c.Burst, c.Count, c.Period = wide(rng), wide(rng), wide(rng)
		case k == 1:
			c.Count = wide(rng)
		case k == 2:
			c.Count += rng.Int64N(8)
			c.Burst += rng.Int64N(8)
		}
		edge := rng.Int64N(3) - 1
		switch rng.IntN(16) {
		case 0:
			c.Now = wide(rng)
		case 1:
			c.Now = s.Deadline + edge
		case 2:
			c.Now += int64(d.RetryAfter) + edge
		case 3, 4:
			c.Now += rng.Int64N(1 + int64(d.ResetAfter))
		case 5:
			c.Now += wide(rng)
		}
		c = c.clamp()
		switch rng.IntN(8) {
		case 0:
			c.N = rng.Int64N(2)
		case 1, 2:
			c.N = d.Remaining + edge
		case 3:
			c.N = c.Burst + 1 + edge
		case 4:
			c.N = wide(rng)
		default:
			c.N = rng.Int64N(c.Burst + 1)
		}
		c = c.clamp()
		trace[i] = c
		s, d, _ = s.Take(c.Now, c.rate(), c.N)
	}
	return trace
}

// extremes returns calls at the ends of every range.
func extremes() []call {
	var calls []call
	for _, now := range []int64{1, 2, 1_700_000_000_000_000_000, math.MaxInt64 - 1, math.MaxInt64} {
		for _, burst := range []int64{0, 1, math.MaxInt64 - 1} {
			for _, count := range []int64{1, 3, math.MaxInt64 - 1, math.MaxInt64} {
				for _, period := range []time.Duration{1, time.Second, 9223372036 * time.Second, math.MaxInt64} {
					for _, n := range []int64{0, 1, burst, math.MaxInt64} {
						calls = append(calls, call{now, burst, count, int64(period), n})
					}
				}
			}
		}
	}
	return calls
}

// outcomes counts what became of calls, by name.
type outcomes map[string]int

// check makes the calls of a trace on one key and compares each, in every field
// and in the state after it, with the oracle.
func check(trace []call, seen outcomes) error {
	var s limit.GCRAState
	o := newOracle()
	for i, c := range trace {
		next, d, err := s.Take(c.Now, c.rate(), c.N)
		rounded := o.count != c.Count && !mul(o.tat, integer(c.Count)).IsInt()
		want, wantErr := o.take(c.Now, c.rate(), c.N)
		if d != want || !errors.Is(err, wantErr) {
			return fmt.Errorf("call %d: %+v.%v = %+v, %v, want %+v, %v", i, s, c, d, err, want, wantErr)
		}
		if got := tat(next); got.Cmp(o.tat) != 0 {
			return fmt.Errorf("call %d: %+v.%v goes to %+v = %v, want %v", i, s, c, next, got, o.tat)
		}
		if err := checkForm(next); err != nil {
			return fmt.Errorf("call %d: %+v.%v goes to %+v: %w", i, s, c, next, err)
		}
		switch {
		case err != nil:
			seen["out of range"]++
		case c.N == 0:
			seen["look"]++
		case d.RetryAfter == limit.Never:
			seen["never"]++
		case !d.Allowed:
			seen["denied"]++
		default:
			seen["charged"]++
			if rounded {
				seen["rounded"]++
			}
		}
		s = next
	}
	return nil
}

// checkForm tells whether s is in the one form that its fields promise.
func checkForm(s limit.GCRAState) error {
	switch {
	case s.Short == 0 && s.Count != 0:
		return errors.New("a whole arrival time has a count")
	case s.Short < 0 || s.Short != 0 && s.Short >= s.Count:
		return errors.New("Short is outside 0..Count-1")
	case s.Deadline < 0:
		return errors.New("Deadline is negative")
	}
	return nil
}

func TestTakeRandom(t *testing.T) {
	seen := outcomes{}
	for seed := range uint64(1000) {
		if err := check(randomTrace(seed), seen); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	for _, name := range []string{"out of range", "look", "never", "denied", "charged", "rounded"} {
		if seen[name] < 100 {
			t.Errorf("%q came up %d times in %v, want 100 or more", name, seen[name], seen)
		}
	}
	t.Logf("%v", seen)
}

// TestTakeExtremes follows each charge at the ends of the ranges with each other
// call there.
func TestTakeExtremes(t *testing.T) {
	calls := extremes()
	states := map[limit.GCRAState]bool{}
	for _, first := range calls {
		s, _, _ := limit.GCRAState{}.Take(first.Now, first.rate(), first.N)
		if states[s] {
			continue
		}
		states[s] = true
		for _, second := range calls {
			if err := check([]call{first, second}, outcomes{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d calls, %d states", len(calls), len(states))
}

func FuzzGCRA(f *testing.F) {
	for calls := range slices.Chunk(extremes(), 64) {
		f.Add(encodeTrace(calls))
	}
	for seed := range uint64(20) {
		f.Add(encodeTrace(randomTrace(seed)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := check(decodeTrace(data), outcomes{}); err != nil {
			t.Fatal(err)
		}
	})
}
