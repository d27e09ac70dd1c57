package limit_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gabiondb/gabion/engine/limit"
)

// quotaOracle is a quota that remembers every request that it ever accepted or
// refunded.
type quotaOracle struct {
	events  []quotaEvent
	windows int // how many have been opened or wiped out
}

type quotaEvent struct {
	window int
	id     byte
	at     int64
	q      limit.Quota
	cost   int64
	refund bool
}

// open returns what happened in the window that is open at now.
func (o *quotaOracle) open(now int64) []quotaEvent {
	for i, e := range o.events {
		if e.window == o.windows {
			if now-e.at >= int64(e.q.Window) {
				return nil
			}
			return o.events[i:]
		}
	}
	return nil
}

// find returns what has been spent by events, and what had been by the last of
// those that are about id, which it returns as well; nil if there is none.
func find(events []quotaEvent, id byte) (used, then int64, last *quotaEvent) {
	for i, e := range events {
		if e.refund {
			used -= e.cost
		} else {
			used += e.cost
		}
		if e.id == id {
			last, then = &events[i], used
		}
	}
	return used, then, last
}

func (o *quotaOracle) delete() { o.windows++ }

// take answers a request and, if keep, remembers it.
func (o *quotaOracle) take(now int64, q limit.Quota, id byte, cost int64, keep bool) (limit.Grant, error) {
	if q.Limit < 1 || q.Limit > 1<<53-1 || q.Window < 1 || q.Window > 315_360_000*time.Second || cost < 1 || cost > q.Limit {
		return limit.Grant{}, limit.ErrInvalid
	}
	g := limit.Grant{Limit: q.Limit, ResetAfter: q.Window}
	window := o.windows + 1
	if open := o.open(now); len(open) > 0 {
		window = o.windows
		if open[0].q != q {
			return limit.Grant{}, limit.ErrPolicyChanged
		}
		g.ResetAfter = time.Duration(open[0].at + int64(q.Window) - now)
		used, then, last := find(open, id)
		switch {
		case last == nil:
			g.Used = used
		case last.refund:
			return limit.Grant{}, limit.ErrRefunded
		case last.cost != cost:
			return limit.Grant{}, limit.ErrConflict
		default:
			g.Accepted, g.Replay, g.Used = true, true, then
			return g, nil
		}
	} else if now > math.MaxInt64-int64(q.Window) {
		return limit.Grant{}, limit.ErrOutOfRange
	}
	if cost > q.Limit-g.Used {
		return g, nil
	}
	if keep {
		o.windows = window
		o.events = append(o.events, quotaEvent{window, id, now, q, cost, false})
	}
	g.Accepted = true
	g.Used += cost
	return g, nil
}

// refund gives back what a request took and, if keep, remembers it.
func (o *quotaOracle) refund(now int64, id byte, keep bool) limit.Refund {
	open := o.open(now)
	if len(open) == 0 {
		return limit.Refund{}
	}
	first := open[0]
	used, then, last := find(open, id)
	r := limit.Refund{Used: used, Limit: first.q.Limit, ResetAfter: time.Duration(first.at + int64(first.q.Window) - now)}
	switch {
	case last == nil:
	case last.refund:
		r.Refunded, r.Replay, r.Used, r.Cost = true, true, then, last.cost
	default:
		r.Refunded, r.Used, r.Cost = true, used-last.cost, last.cost
		if keep {
			o.events = append(o.events, quotaEvent{o.windows, id, now, first.q, last.cost, true})
		}
	}
	return r
}

// check holds what a quota promises against all that happened: no window spends
// more than its limit or lasts longer than it may, and none charges an id twice,
// or gives back what it did not take.
func (o *quotaOracle) check() error {
	type charge struct {
		window int
		id     byte
	}
	charged, refunded := map[charge]int64{}, map[charge]bool{}
	spent := map[int]int64{}
	first := map[int]quotaEvent{}
	for _, e := range o.events {
		if _, ok := first[e.window]; !ok {
			first[e.window] = e
		}
		opened, c := first[e.window], charge{e.window, e.id}
		if e.refund {
			if charged[c] != e.cost || refunded[c] {
				return fmt.Errorf("window %d gives %d back to %d, refunded before: %t, charged %d", e.window, e.cost, e.id, refunded[c], charged[c])
			}
			refunded[c] = true
			spent[e.window] -= e.cost
		} else {
			if charged[c] != 0 {
				return fmt.Errorf("window %d charges %d twice", e.window, e.id)
			}
			charged[c] = e.cost
			spent[e.window] += e.cost
		}
		switch {
		case spent[e.window] < 0 || spent[e.window] > opened.q.Limit:
			return fmt.Errorf("window %d spends %d of %d", e.window, spent[e.window], opened.q.Limit)
		case e.at-opened.at >= int64(opened.q.Window):
			return fmt.Errorf("window %d is open %d ns after it began, longer than %v", e.window, e.at-opened.at, opened.q.Window)
		}
	}
	return nil
}

// A trace of calls on a quota is a byte that says when it begins, and quotaStep
// bytes for each call.
const (
	quotaStep     = 6
	maxQuotaSteps = 200
)

// small reads a byte as a number from 0 to 507,904, the larger the coarser.
func small(b byte) int64 {
	if b < 16 {
		return int64(b)
	}
	return int64(16+b&15) << (b>>4 - 1)
}

// begin reads a byte as an instant at which a trace begins.
func begin(b byte) int64 {
	switch b % 4 {
	case 0:
		return 1
	case 1:
		return math.MaxInt64 - 1_000_000
	}
	return start
}

// checkQuota makes the calls of a trace and compares each with the oracle, in
// every field of the answer and of the state after it.
func checkQuota(trace []byte, seen outcomes) error {
	if len(trace) == 0 {
		return nil
	}
	now := begin(trace[0])
	trace = trace[1:]
	usual := limit.Quota{Limit: 100, Window: 1000}
	q := usual
	var s limit.QuotaState
	var g limit.Grant
	var o quotaOracle
	type key struct {
		windowEnd int64
		id        byte
	}
	requests := map[key]limit.Request{}
	for i := 0; len(trace) >= quotaStep && i < maxQuotaSteps; i, trace = i+1, trace[quotaStep:] {
		verb, id, costs, limits, windows, advance := trace[0], trace[1]%16, trace[2], trace[3], trace[4], trace[5]
		if trace[1]&0x80 != 0 {
			id %= 3 // so that some come again
		}
		switch verb % 8 {
		case 0:
			now += small(advance)
		case 1:
			now = max(now, s.Deadline+int64(advance%3)-1)
		case 2:
			now -= small(advance) / 16 // which an engine's clock never does
		default:
			now += int64(advance) / 32
		}
		now = max(1, now&math.MaxInt64)
		if limits < 10 {
			q.Limit = []int64{small(windows), limit.MaxLimit, limit.MaxLimit + 1, 0, -1, math.MinInt64, 3, 10, 20, 30}[limits]
		}
		if windows < 10 {
			q.Window = []time.Duration{time.Duration(small(limits)), limit.MaxWindow, limit.MaxWindow + 1, 0, -1, math.MaxInt64, 10, 100, 1000, 5000}[windows]
		}
		if verb>>3 == 31 {
			o.delete()
			s = limit.QuotaState{}
			clear(requests)
			seen["deleted"]++
			continue
		}
		if s.Deadline <= now && verb>>3 > 20 {
			s = limit.QuotaState{} // purged
			o.delete()             // in case time goes back, too
		}
		keep := verb>>3%4 > 0
		earlier := requests[key{s.Deadline, id}] // at times of a window that is over
		if verb>>3 > 25 {
			call := fmt.Sprintf("step %d: %+v.Refund(%d, %+v)", i, s, now, earlier)
			next, got := s.Refund(now, earlier)
			if want := o.refund(now, id, keep); got != want {
				return fmt.Errorf("%s = %+v, want %+v", call, got, want)
			}
			want := s
			if got.Refunded && !got.Replay {
				want.Used -= earlier.Cost
			}
			request := limit.Request{Cost: got.Cost, Used: got.Used, Refunded: true}
			switch {
			case next != want:
				return fmt.Errorf("%s goes to %+v, want %+v", call, next, want)
			case !got.Refunded:
				seen["no refund"]++
			case got.Replay:
				seen["refund again"]++
			case !next.Valid() || !request.Valid():
				return fmt.Errorf("%s goes to %+v and is remembered as %+v, which is not valid", call, next, request)
			case keep:
				s = next
				requests[key{s.Deadline, id}] = request
				seen["refunded"]++
				if s.Used == 0 {
					seen["all refunded"]++
				}
			}
			continue
		}
		cost := max(1, small(costs)/64)
		if costs%2 == 0 {
			cost = []int64{s.Limit - s.Used, s.Limit - s.Used + 1, q.Limit, q.Limit + 1, earlier.Cost, earlier.Cost, earlier.Cost + 1, math.MaxInt64}[costs>>1%8]
		}

		call := fmt.Sprintf("step %d: %+v.Take(%d, %+v, %d, %+v)", i, s, now, q, cost, earlier)
		next, got, err := s.Take(now, q, cost, earlier)
		want, wantErr := o.take(now, q, id, cost, keep)
		if got != want || !errors.Is(err, wantErr) || errors.Is(err, limit.ErrRefunded) != (wantErr == limit.ErrRefunded) {
			return fmt.Errorf("%s = %+v, %v, want %+v, %v", call, got, err, want, wantErr)
		}
		g = got
		switch charged := g.Accepted && !g.Replay; {
		case !charged && next != s:
			return fmt.Errorf("%s goes to %+v without a charge", call, next)
		case charged && (!next.Valid() || next.Deadline-now != int64(g.ResetAfter) || next.Used != g.Used || next.Limit != q.Limit || next.Window != q.Window):
			return fmt.Errorf("%s = %+v goes to %+v", call, g, next)
		case charged && keep:
			request := limit.Request{Cost: cost, Used: g.Used}
			if !request.Valid() {
				return fmt.Errorf("%s is remembered as %+v, which is not valid", call, request)
			}
			s = next
			requests[key{s.Deadline, id}] = request
		}
		switch {
		case err != nil:
			seen[wantErr.Error()]++
			q = usual
		case !keep:
			seen["probe"]++
		case g.Replay:
			seen["replay"]++
		case g.Accepted:
			seen["accepted"]++
		default:
			seen["denied"]++
		}
	}
	return o.check()
}

// randomBytes returns n bytes that the seed determines.
func randomBytes(seed uint64, n int) []byte {
	rng := rand.New(rand.NewPCG(seed, 0))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

func TestQuotaRandom(t *testing.T) {
	seen := outcomes{}
	for seed := range uint64(1000) {
		if err := checkQuota(randomBytes(seed, 1+quotaStep*maxQuotaSteps), seen); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	for _, name := range []string{
		"accepted", "denied", "replay", "probe", "deleted", "refunded", "all refunded", "refund again", "no refund", limit.ErrInvalid.Error(),
		limit.ErrPolicyChanged.Error(), limit.ErrConflict.Error(), limit.ErrRefunded.Error(), limit.ErrOutOfRange.Error(),
	} {
		if seen[name] < 100 {
			t.Errorf("%q came up %d times in %v, want 100 or more", name, seen[name], seen)
		}
	}
	t.Logf("%v", seen)
}

func FuzzQuota(f *testing.F) {
	for seed := range uint64(10) {
		f.Add(randomBytes(seed, 1+quotaStep*20))
	}
	f.Fuzz(func(t *testing.T, trace []byte) {
		if err := checkQuota(trace, outcomes{}); err != nil {
			t.Fatal(err)
		}
	})
}
