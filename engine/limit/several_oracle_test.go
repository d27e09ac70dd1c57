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

// refund gives n events back, in exact fractions, and looks.
func (o *oracle) refund(at int64, r limit.Rate, n int64) (limit.Decision, error) {
	now := integer(at)
	if n > 0 && o.tat.Cmp(now) > 0 {
		o.tat = sub(o.read(r.Count), mul(integer(n), big.NewRat(int64(r.Period), r.Count)))
		o.count = r.Count
		if o.tat.Cmp(now) <= 0 {
			o.tat, o.count = new(big.Rat), 0
		}
	}
	return o.take(at, r, 0)
}

// after returns what o is once rows, which are all of its key, have been charged
// at now, whether they may pass or not, and whether all that is in
// representable time.
func (o *oracle) after(now *big.Rat, rows []limit.Row) (*oracle, bool) {
	next := &oracle{o.tat, o.count}
	for _, row := range rows {
		if row.N > 0 {
			next.tat, next.count = next.arrival(now, row), row.Rate.Count
		}
	}
	return next, next.tat.Cmp(integer(math.MaxInt64)) <= 0
}

// arrival returns the arrival time after row.
func (o *oracle) arrival(now *big.Rat, row limit.Row) *big.Rat {
	return add(later(o.read(row.Rate.Count), now), mul(integer(row.N), big.NewRat(int64(row.Rate.Period), row.Rate.Count)))
}

// lack returns by how many nanoseconds row is too early at now; it passes if
// that is not more than 0.
func (o *oracle) lack(now *big.Rat, row limit.Row) *big.Rat {
	tau := mul(integer(row.Rate.Burst+1), big.NewRat(int64(row.Rate.Period), row.Rate.Count))
	return sub(sub(o.arrival(now, row), tau), now)
}

// judge decides the last of rows, which are all of o's key, once the others have
// been charged. It tells whether the row could be charged.
func (o *oracle) judge(at int64, rows []limit.Row) (d limit.Decision, fits bool) {
	before, row := rows[:len(rows)-1], rows[len(rows)-1]
	now := integer(at)
	held, fits := o.after(now, before)
	d.Limit = row.Rate.Burst + 1
	if !fits {
		d.RetryAfter = limit.Never
		return d, true
	}
	lack := held.lack(now, row)
	if lack.Sign() <= 0 {
		d.Allowed = true
		return d, row.N == 0 || held.arrival(now, row).Cmp(integer(math.MaxInt64)) <= 0
	}
	d.RetryAfter = time.Duration(ceil(lack).Int64())
	if alone, _ := newOracle().after(now, before); alone.lack(now, row).Sign() > 0 {
		d.RetryAfter = limit.Never
	}
	return d, true
}

// checkWait holds a wait, which judge has found for the last of rows, against
// what it means: then the row passes, and no sooner.
func (o *oracle) checkWait(at int64, rows []limit.Row, wait time.Duration) error {
	before, row := rows[:len(rows)-1], rows[len(rows)-1]
	for early := range int64(2) {
		now := sub(add(integer(at), integer(int64(wait))), integer(early))
		held, _ := o.after(now, before)
		if passes := held.lack(now, row).Sign() <= 0; passes != (early == 0) {
			return fmt.Errorf("%d ns before a wait of %d is over, %+v passes: %t", early, wait, rows, passes)
		}
	}
	return nil
}

// several decides rows: all together or, if each, one after the other. keys are
// changed unless there is an error.
func several(at int64, keys []*oracle, rows []limit.Row, each bool) ([]limit.Decision, error) {
	next := make([]*oracle, len(keys))
	for i, o := range keys {
		next[i] = &oracle{o.tat, o.count}
	}
	var decisions []limit.Decision
	take := func() error {
		decisions = nil
		for _, row := range rows {
			d, err := next[row.State].take(at, row.Rate, row.N)
			if err != nil {
				return err
			}
			decisions = append(decisions, d)
		}
		copy(keys, next)
		return nil
	}
	if each {
		err := take()
		return decisions, err
	}
	denied, fit := false, true
	for i, row := range rows {
		var same []limit.Row
		for _, other := range rows[:i+1] {
			if other.State == row.State {
				same = append(same, other)
			}
		}
		o := keys[row.State]
		d, fits := o.judge(at, same)
		if !d.Allowed && d.RetryAfter != limit.Never {
			if err := o.checkWait(at, same, d.RetryAfter); err != nil {
				return nil, err
			}
		}
		denied, fit = denied || !d.Allowed, fit && fits
		look, err := o.take(at, row.Rate, 0)
		if err != nil {
			return nil, err
		}
		d.Remaining, d.ResetAfter = look.Remaining, look.ResetAfter
		decisions = append(decisions, d)
	}
	switch {
	case denied:
		return decisions, nil
	case !fit:
		return nil, limit.ErrOutOfRange
	}
	err := take()
	return decisions, err
}

// A step of a trace on several keys is one row, which is decided together with
// those of the steps before it that say so, at the time of the last.
type step struct {
	Verb, Key uint8
	Call      call
}

const (
	stepSize = 2 + callSize
	maxSteps = 256
	keys     = 3

	more     = 1 << 7 // another row follows
	verbAll  = 0      // and 1
	verbEach = 2
	refund   = 3
	verbs    = 4
)

func (s step) row() limit.Row {
	return limit.Row{State: int(s.Key % keys), Rate: s.Call.rate(), N: s.Call.N}
}

func encodeSteps(trace []step) []byte {
	data, err := binary.Append(nil, binary.BigEndian, trace)
	if err != nil {
		panic(err)
	}
	return data
}

func decodeSteps(data []byte) []step {
	trace := make([]step, min(len(data)/stepSize, maxSteps))
	if _, err := binary.Decode(data, binary.BigEndian, trace); err != nil {
		panic(err)
	}
	for i := range trace {
		trace[i].Call = trace[i].Call.clamp()
	}
	return trace
}

// checkSeveral makes the calls of a trace and compares each, in every field and
// in the states after it, with the oracle.
func checkSeveral(trace []step, seen outcomes) error {
	states := make([]limit.GCRAState, keys)
	var oracles []*oracle
	for range keys {
		oracles = append(oracles, newOracle())
	}
	var rows []limit.Row
	for i, s := range trace {
		now, verb := s.Call.Now, s.Verb%verbs
		rows = append(rows, s.row())
		if s.Verb&more != 0 && i < len(trace)-1 && len(rows) < 8 {
			continue
		}
		before := slices.Clone(states)
		decisions := make([]limit.Decision, len(rows))
		var want []limit.Decision
		var err, wantErr error
		switch verb {
		case refund:
			rows = rows[len(rows)-1:]
			row := rows[0]
			decisions, want = decisions[:1], make([]limit.Decision, 1)
			o := oracles[row.State]
			states[row.State], decisions[0], err = states[row.State].Refund(now, row.Rate, row.N)
			want[0], wantErr = o.refund(now, row.Rate, row.N)
		case verbEach:
			err = limit.TakeEach(now, states, rows, decisions)
			want, wantErr = several(now, oracles, rows, true)
		default:
			err = limit.TakeAll(now, states, rows, decisions)
			want, wantErr = several(now, oracles, rows, false)
		}
		call := fmt.Sprintf("step %d: verb %d at %d of %+v on %+v", i, verb, now, rows, before)
		if !errors.Is(err, wantErr) || err == nil && !slices.Equal(decisions, want) {
			return fmt.Errorf("%s = %+v, %v, want %+v, %v", call, decisions, err, want, wantErr)
		}
		if err == nil {
			if err := checkDecisions(decisions); err != nil {
				return fmt.Errorf("%s = %+v: %w", call, decisions, err)
			}
		}
		for k, state := range states {
			if got := tat(state); got.Cmp(oracles[k].tat) != 0 {
				return fmt.Errorf("%s: key %d goes to %+v = %v, want %v", call, k, state, got, oracles[k].tat)
			}
			if err := checkForm(state); err != nil {
				return fmt.Errorf("%s: key %d goes to %+v: %w", call, k, state, err)
			}
		}
		count(seen, verb, before, states, rows, decisions, err)
		rows = nil
	}
	return nil
}

// checkDecisions compares what is said about all of ds with a naive count.
func checkDecisions(ds limit.Decisions) error {
	denied, waits := 0, []time.Duration{0}
	for _, d := range ds {
		if !d.Allowed {
			denied++
			waits = append(waits, d.RetryAfter)
		}
	}
	if got := ds.Denied(); got != denied {
		return fmt.Errorf("Denied() = %d, want %d", got, denied)
	}
	if got, want := ds.RetryAfter(), slices.Max(waits); got != want {
		return fmt.Errorf("RetryAfter() = %d, want %d", got, want)
	}
	return nil
}

// count notes what became of a call.
func count(seen outcomes, verb uint8, before, after []limit.GCRAState, rows []limit.Row, ds limit.Decisions, err error) {
	name := [verbs]string{"all", "all", "each", "refund"}[verb]
	changed := !slices.Equal(before, after)
	switch {
	case err != nil:
		seen[name+": out of range"]++
	case verb == refund && !changed:
		seen["refund: nothing"]++
	case verb == refund:
		if after[rows[0].State] == (limit.GCRAState{}) {
			seen["refund: full"]++
		} else {
			seen["refund: some"]++
		}
	case ds.Denied() == 0:
		seen[name+": none denied"]++
	case ds.RetryAfter() == limit.Never:
		seen[name+": never"]++
	case ds.Denied() == len(ds):
		seen[name+": all denied"]++
	default:
		seen[name+": some denied"]++
	}
	if err != nil || verb == refund {
		return
	}
	for i, row := range rows {
		same := slices.IndexFunc(rows, func(other limit.Row) bool { return other.State == row.State }) < i
		if same && ds[i].Allowed {
			seen[name+": a key again"]++
		}
		if same && !ds[i].Allowed && row.N <= ds[i].Limit && ds[i].RetryAfter == limit.Never {
			seen[name+": a sum never"]++
		}
	}
}

// randomSteps returns calls on several keys that tend to lie where something
// changes.
func randomSteps(seed uint64) []step {
	rng := rand.New(rand.NewPCG(seed, 0))
	states := make([]limit.GCRAState, keys)
	ds := make(limit.Decisions, 1)
	var trace []step
	c := call{Now: wide(rng)}
	rates := make([]call, 3)
	for i := range rates {
		rates[i] = call{Burst: wide(rng), Count: wide(rng), Period: wide(rng)}
		if i > 0 && rng.IntN(2) == 0 { // about as fast as the first
			rates[i] = rates[0]
			rates[i].Count += rng.Int64N(8)
			rates[i].Burst += rng.Int64N(8)
		}
	}
	for len(trace) < 60 {
		edge := rng.Int64N(3) - 1
		switch rng.IntN(12) {
		case 0:
			c.Now = wide(rng)
		case 1:
			c.Now = states[rng.IntN(keys)].Deadline + edge
		case 2, 3, 4:
			c.Now += int64(ds.RetryAfter()) + edge
		case 5:
			c.Now += wide(rng)
		case 6, 7:
			c.Now += rng.Int64N(1 + int64(ds[0].ResetAfter)/2)
		}
		now := c.clamp().Now
		verb := uint8(rng.IntN(verbs))
		n := 1 + rng.IntN(5)
		if verb == refund {
			n = 1
		}
		if verb != refund && len(trace) > 0 && rng.IntN(4) == 0 { // the same again
			from := len(trace) - 1
			for from > 0 && trace[from-1].Verb&more != 0 {
				from--
			}
			for _, s := range slices.Clone(trace[from:]) {
				s.Call.Now = now
				s.Verb = s.Verb&more | verb
				trace = append(trace, s)
			}
		} else {
			for i := range n {
				s := step{Verb: verb, Key: uint8(rng.IntN(keys)), Call: rates[rng.IntN(len(rates))]}
				if i < n-1 {
					s.Verb |= more
				}
				s.Call.Now = now
				s.Call = s.Call.clamp()
				_, look, _ := states[s.Key].Take(now, s.Call.rate(), 0)
				switch rng.IntN(8) {
				case 0:
					s.Call.N = rng.Int64N(2)
				case 1:
					s.Call.N = look.Remaining + edge
				case 2:
					s.Call.N = look.Limit/2 + edge
				case 3:
					s.Call.N = look.Limit - look.Remaining + edge
				case 4:
					s.Call.N = wide(rng)
				default:
					s.Call.N = rng.Int64N(max(1, look.Remaining/int64(n)))
				}
				s.Call = s.Call.clamp()
				trace = append(trace, s)
			}
		}
		var rows []limit.Row
		for i := len(trace) - 1; i >= 0 && (i == len(trace)-1 || trace[i].Verb&more != 0); i-- {
			rows = append(rows, trace[i].row())
		}
		slices.Reverse(rows)
		ds = make(limit.Decisions, len(rows))
		switch verb {
		case refund:
			k := rows[0].State
			states[k], ds[0], _ = states[k].Refund(now, rows[0].Rate, rows[0].N)
		case verbEach:
			_ = limit.TakeEach(now, states, rows, ds)
		default:
			_ = limit.TakeAll(now, states, rows, ds)
		}
		c.Now = now
	}
	return trace
}

func TestSeveralRandom(t *testing.T) {
	seen := outcomes{}
	for seed := range uint64(500) {
		if err := checkSeveral(randomSteps(seed), seen); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	for _, name := range []string{
		"all: none denied", "all: some denied", "all: all denied", "all: never", "all: out of range", "all: a key again", "all: a sum never",
		"each: none denied", "each: some denied", "each: all denied", "each: never", "each: out of range", "each: a key again",
		"refund: nothing", "refund: some", "refund: full",
	} {
		if seen[name] < 100 {
			t.Errorf("%q came up %d times in %v, want 100 or more", name, seen[name], seen)
		}
	}
	t.Logf("%v", seen)
}

// TestSeveralExtremes lets two rows at the ends of the ranges meet on a key that
// another one has charged, and gives back what they took.
func TestSeveralExtremes(t *testing.T) {
	calls := extremes()
	rng := rand.New(rand.NewPCG(1, 2))
	for _, first := range calls {
		trace := []step{{verbEach, 0, first}}
		for range 20 {
			second, third := calls[rng.IntN(len(calls))], calls[rng.IntN(len(calls))]
			trace = append(trace, step{more, 0, second}, step{uint8(rng.IntN(verbs)), uint8(rng.IntN(2)), third})
		}
		if err := checkSeveral(trace, outcomes{}); err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzSeveral(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(encodeSteps(randomSteps(seed)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := checkSeveral(decodeSteps(data), outcomes{}); err != nil {
			t.Fatal(err)
		}
	})
}
