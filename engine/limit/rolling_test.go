package limit_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gabiondb/gabion/engine/limit"
)

func TestRollingValidate(t *testing.T) {
	for _, test := range []struct {
		r    limit.Rolling
		text string // of the error; empty if there is none
	}{
		{limit.Rolling{Limit: 1, Window: 1}, ""},
		{limit.Rolling{Limit: 0, Window: 1, Pause: true}, ""},
		{limit.Rolling{Limit: math.MinInt64, Window: 1}, ""},
		{limit.Rolling{Limit: limit.MaxLimit, Window: limit.MaxWindow}, ""},
		{limit.Rolling{Limit: limit.MaxLimit + 1, Window: 1}, "limit 9007199254740992 "},
		{limit.Rolling{Limit: math.MaxInt64, Window: 1}, "limit 9223372036854775807 "},
		{limit.Rolling{Limit: 1, Window: 0}, "window 0s is outside"},
		{limit.Rolling{Limit: 1, Window: math.MinInt64}, "window -2562047h47m16.854775808s is outside"},
		{limit.Rolling{Limit: 1, Window: limit.MaxWindow + 1}, "window 87600h0m0.000000001s is outside"},
	} {
		err := test.r.Validate()
		if test.text == "" && err != nil || test.text != "" && (!errors.Is(err, limit.ErrInvalid) || !strings.Contains(err.Error(), test.text)) {
			t.Errorf("%+v.Validate() = %v, want %q", test.r, err, test.text)
		}
	}
}

// calls are the four calls on a list, of which only the error is of interest.
func calls(s limit.RollingState, now int64, r limit.Rolling, amount int64, read limit.ChunkReader) map[string]error {
	errs := map[string]error{}
	next, a, change, err := s.Allow(now, r, read)
	if errs["Allow"] = err; err != nil && (!sameRecord(s, next) || a != (limit.Admission{}) || change != (limit.Change{})) {
		errs["Allow"] = fmt.Errorf("an answer beside the error %v", err)
	}
	next, total, change, err := s.Increment(now, r, amount, read)
	if errs["Increment"] = err; err != nil && (!sameRecord(s, next) || total != 0 || change != (limit.Change{})) {
		errs["Increment"] = fmt.Errorf("an answer beside the error %v", err)
	}
	count, err := s.Peek(now, r, read)
	if errs["Peek"] = err; err != nil && count != 0 {
		errs["Peek"] = fmt.Errorf("an answer beside the error %v", err)
	}
	wait, err := s.Wait(now, r, read)
	if errs["Wait"] = err; err != nil && wait != 0 {
		errs["Wait"] = fmt.Errorf("an answer beside the error %v", err)
	}
	return errs
}

func TestRollingErrors(t *testing.T) {
	long := newList(t, limit.Rolling{Limit: 1000, Window: time.Second})
	long.fill(500, 1)
	broken := errors.New("broken")
	fails := func(int64) (*limit.Chunk, error) { return nil, broken }
	none := func(int64) (*limit.Chunk, error) { return nil, nil }
	ok := limit.Rolling{Limit: 5, Window: time.Second}
	for _, test := range []struct {
		name   string
		s      limit.RollingState
		now    int64
		r      limit.Rolling
		amount int64
		read   limit.ChunkReader
		want   error
		calls  string
	}{
		{"limit", limit.RollingState{}, start, limit.Rolling{Limit: limit.MaxLimit + 1, Window: 1}, 0, nil, limit.ErrInvalid, "Allow Increment Peek Wait"},
		{"window", limit.RollingState{}, start, limit.Rolling{Limit: 0, Window: 0}, 0, nil, limit.ErrInvalid, "Allow Increment Peek Wait"},
		{"amount", limit.RollingState{}, start, ok, -1, nil, limit.ErrInvalid, "Increment"},
		{"amount", limit.RollingState{}, start, ok, math.MinInt64, nil, limit.ErrInvalid, "Increment"},
		{"amount", limit.RollingState{}, start, ok, limit.MaxLimit + 1, nil, limit.ErrInvalid, "Increment"},
		{"amount", limit.RollingState{}, start, limit.Rolling{Limit: -1, Window: 1}, math.MaxInt64, nil, limit.ErrInvalid, "Increment"},
		{"time", limit.RollingState{}, math.MaxInt64 - 1e9 + 1, ok, 1, nil, limit.ErrOutOfRange, "Allow Increment"},
		{"time", long.s, math.MaxInt64, ok, limit.MaxLimit, nil, limit.ErrOutOfRange, "Allow Increment"},
		{"read", reopen(long.s), long.now, long.r, 1, fails, broken, "Allow Increment Peek Wait"},
		{"read", reopen(long.s), long.now, ok, 1, none, limit.ErrCorrupt, "Allow Increment Peek Wait"},
		{"read of the event to wait for", long.s, long.now, limit.Rolling{Limit: 300, Window: time.Second}, 1, fails, broken, "Allow Wait"},
	} {
		for name, err := range calls(test.s, test.now, test.r, test.amount, test.read) {
			var want error
			if strings.Contains(test.calls, name) {
				want = test.want
			}
			if !errors.Is(err, want) {
				t.Errorf("%s: %s at %d with %+v and %d fails with %v, want %v", test.name, name, test.now, test.r, test.amount, err, want)
			}
		}
	}
	next, _, change, err := limit.RollingState{}.Allow(math.MaxInt64-1e9, ok, nil)
	if err != nil || next.Deadline != math.MaxInt64 || change.Recorded != 1 {
		t.Errorf("the last call in time = %+v, %+v, %v, want a deadline of 2^63-1", next, change, err)
	}
}

// list is a rolling list and the chunks of it.
type list struct {
	t      testing.TB
	s      limit.RollingState
	r      limit.Rolling
	now    int64
	disk   disk
	writes int // runs that have been written, in the state and in chunks
}

func newList(t testing.TB, r limit.Rolling) *list {
	return &list{t: t, r: r, now: start}
}

// allow makes a call of Allow.
func (l *list) allow() limit.Admission {
	next, a, change, err := l.s.Allow(l.now, l.r, l.disk.read)
	if err != nil {
		l.t.Fatalf("at %d: Allow fails with %v", l.now, err)
	}
	l.take(next, change)
	return a
}

func (l *list) increment(amount int64) int64 {
	next, total, change, err := l.s.Increment(l.now, l.r, amount, l.disk.read)
	if err != nil {
		l.t.Fatalf("at %d: Increment(%d) fails with %v", l.now, amount, err)
	}
	l.take(next, change)
	return total
}

func (l *list) take(next limit.RollingState, change limit.Change) {
	l.s = next
	if change.Recorded == 0 {
		return
	}
	l.writes += len(next.Runs)
	if change.Seal != nil {
		l.writes += len(change.Seal.Runs)
	}
	if err := l.disk.apply(change); err != nil {
		l.t.Fatalf("at %d: %v", l.now, err)
	}
}

// fill makes n calls that must be allowed, step ns apart.
func (l *list) fill(n int, step int64) {
	for range n {
		l.now += step
		if a := l.allow(); !a.Allowed {
			l.t.Fatalf("at %d: Allow = %+v, want it allowed", l.now, a)
		}
	}
}

// TestRollingLong compares lists of very different lengths: what a call reads
// and writes is the same.
func TestRollingLong(t *testing.T) {
	for _, n := range []int{100, 10_000, 1_000_000} {
		for _, pause := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d,pause=%t", n, pause), func(t *testing.T) {
				l := newList(t, limit.Rolling{Limit: int64(n), Window: time.Duration(n) * 1000, Pause: pause})
				l.fill(n, 1000)
				if err := l.disk.check(l.s); err != nil {
					t.Fatal(err)
				}
				if l.disk.reads > 0 {
					t.Errorf("%d reads while the list grew, want none", l.disk.reads)
				}
				if got, want := len(l.disk.chunks), (n-limit.MaxRuns+49)/50; got != want {
					t.Errorf("%d chunks, want %d", got, want)
				}

				// One event goes as the next one comes, with denials in between.
				const rounds = 10_000
				l.writes = 0
				for i := range int64(rounds) {
					l.now += 500
					if a := l.allow(); !pause && (a.Allowed || a.Count != int64(n) || a.Wait != 500) {
						t.Fatalf("at %d: Allow = %+v, want it denied for 500 ns", l.now, a)
					}
					l.now += 500
					a := l.allow()
					if !pause && (!a.Allowed || a.Count != int64(n) || a.Wait != 1000) {
						t.Fatalf("at %d: Allow = %+v, want it allowed", l.now, a)
					}
					if pause && (a.Allowed || a.Count != int64(n)+1) {
						t.Fatalf("at %d: Allow = %+v, want it denied with one more than the limit", l.now, a)
					}
					if i == rounds/2 {
						l.s = reopen(l.s)
					}
				}
				if err := l.disk.check(l.s); err != nil {
					t.Fatal(err)
				}
				if most := 4 + 2*rounds/50; l.disk.reads > most {
					t.Errorf("%d calls read %d chunks, want at most %d", 2*rounds, l.disk.reads, most)
				}
				if most := 110 * (rounds + 2); l.writes > most {
					t.Errorf("%d calls wrote %d runs, want at most %d", 2*rounds, l.writes, most)
				}
			})
		}
	}
}

// TestRollingReads makes calls on a list of a million events that have to look
// anywhere in it.
func TestRollingReads(t *testing.T) {
	const n = 1_000_000
	l := newList(t, limit.Rolling{Limit: n, Window: n * 1000})
	l.fill(n, 1000)
	l.disk.reads = 0
	end := l.now + int64(l.r.Window)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		// At an instant at which live events are left, none of which is counted
		// for another reason than its stamp.
		live := 1 + rng.Int64N(n)
		l.disk.reads = 0
		count, err := reopen(l.s).Peek(end-live*1000, l.r, l.disk.read)
		if count != live || err != nil || l.disk.reads > 22 {
			t.Fatalf("Peek = %d, %v after %d reads, want %d after at most 22", count, err, l.disk.reads, live)
		}
		l.disk.reads = 0
		r := limit.Rolling{Limit: 1 + rng.Int64N(n), Window: l.r.Window}
		wait, err := reopen(l.s).Wait(l.now, r, l.disk.read)
		if want := time.Duration(n-r.Limit+1) * 1000; wait != want || err != nil || l.disk.reads > 2 {
			t.Fatalf("Wait with %+v = %d, %v after %d reads, want %d after at most 2", r, wait, err, l.disk.reads, want)
		}
	}

	// What one call has read the next one knows.
	l.disk.reads = 0
	l.s = reopen(l.s)
	for range 10 {
		l.allow()
	}
	if l.disk.reads != 1 {
		t.Errorf("10 denials read %d chunks, want 1", l.disk.reads)
	}

	// When denials let time pass, the chunks go by one by one.
	l.disk.reads = 0
	r := limit.Rolling{Limit: 10, Window: l.r.Window}
	for live := int64(n - 1); live >= 10; live-- {
		next, a, change, err := l.s.Allow(end-live*1000, r, l.disk.read)
		if a.Allowed || a.Count != live || change.Recorded > 0 || err != nil {
			t.Fatalf("Allow with %d live = %+v, %+v, %v, want it denied", live, a, change, err)
		}
		l.s = next
	}
	if most := n/50 + 2; l.disk.reads > most {
		t.Errorf("%d reads while time passed, want at most %d", l.disk.reads, most)
	}

	// The call that records at last drops them all.
	next, a, change, err := l.s.Allow(end-9000, r, l.disk.read)
	if !a.Allowed || a.Count != 10 || err != nil || change.Dead != l.s.Chunks() || !next.Chunks().Empty() {
		t.Errorf("Allow = %+v, %+v, %v, want all chunks of %+v dead", a, change, err, l.s.Chunks())
	}
}

// TestRollingAnew has a list begin anew: nothing that was known of its chunks
// is taken for true of the new ones.
func TestRollingAnew(t *testing.T) {
	for _, wait := range []int64{1000, 2000} { // the list is empty; it is over, too
		l := newList(t, limit.Rolling{Limit: 300, Window: 1000})
		less := limit.Rolling{Limit: 160, Window: 1000}
		for range 2 {
			l.fill(300, 3)
			next, a, _, err := l.s.Allow(l.now, less, l.disk.read)
			if want := time.Duration(1000 - 159*3); a.Wait != want || err != nil {
				t.Fatalf("Allow with %+v = %+v, %v, want a wait of %d", less, a, err, want)
			}
			l.s = next
			l.now += wait
		}
	}
}

// TestRollingSpans remembers every event and counts those in every span of a
// window: they are at most the limit, or one more with Pause.
func TestRollingSpans(t *testing.T) {
	type event struct{ at, n int64 }
	tight := 0
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 0))
		l := newList(t, limit.Rolling{
			Limit:  1 + rng.Int64N(300),
			Window: time.Duration(1 + rng.Int64N(3000)),
			Pause:  seed%2 == 1,
		})
		most := l.r.Limit
		if l.r.Pause {
			most++
		}
		var admitted []event
		for range 500 {
			l.now += rng.Int64N(2 + 2*int64(l.r.Window)/l.r.Limit)
			before := l.s
			if rng.IntN(2) == 0 {
				l.allow()
			} else {
				l.increment(rng.Int64N(1 + rng.Int64N(most+1)))
			}
			if n := l.s.Next - before.Next; n > 0 {
				admitted = append(admitted, event{l.now, n})
			} else if l.s.Next < before.Next {
				admitted = append(admitted, event{l.now, l.s.Next})
			}
		}
		for i, first := range admitted {
			sum := int64(0)
			for _, last := range admitted[i:] {
				if last.at-first.at >= int64(l.r.Window) {
					break
				}
				sum += last.n
			}
			if sum > most {
				t.Fatalf("seed %d: %+v let %d pass in the window from %d, want at most %d", seed, l.r, sum, first.at, most)
			}
			if sum == most {
				tight++
			}
		}
	}
	if tight < 1000 {
		t.Errorf("%d windows reached the bound, want 1000 or more", tight)
	}
}

// TestRollingPause lets callers come at an even pace: with Pause one that comes
// more often than the limit is kept out once it has failed, and one that slows
// down to it is soon let in for good.
func TestRollingPause(t *testing.T) {
	for n := int64(1); n <= 120; n += 7 {
		l := newList(t, limit.Rolling{Limit: n, Window: time.Duration(n * 1000), Pause: true})
		l.fill(int(n), 999)
		for pace := int64(999); pace > 400; pace -= 50 {
			for range 5 * n {
				l.now += pace
				if a := l.allow(); a.Allowed {
					t.Fatalf("limit %d: Allow = %+v for a caller that comes each %d of %d ns", n, a, pace, l.r.Window)
				}
			}
		}
		for i := range 5 * n {
			l.now += 1000
			if a := l.allow(); !a.Allowed && i >= 3*n {
				t.Fatalf("limit %d: Allow = %+v for a caller that slowed down %d calls ago", n, a, i)
			}
		}
	}
}

// TestRollingLargest counts as far as integers go.
func TestRollingLargest(t *testing.T) {
	r := limit.Rolling{Limit: limit.MaxLimit, Window: limit.MaxWindow, Pause: true}
	l := newList(t, r)
	for _, test := range []struct{ amount, want, count int64 }{
		{limit.MaxLimit - 1, limit.MaxLimit - 1, limit.MaxLimit - 1},
		{0, limit.MaxLimit - 1, limit.MaxLimit - 1},
		{1, limit.MaxLimit, limit.MaxLimit},
		{0, limit.MaxLimit, limit.MaxLimit},
		{limit.MaxLimit, limit.MaxLimit + 2, limit.MaxLimit + 1},
		{limit.MaxLimit, limit.MaxLimit + 2, limit.MaxLimit + 1},
	} {
		total := l.increment(test.amount)
		count, err := l.s.Peek(l.now, r, nil)
		if total != test.want || count != test.count || err != nil || !l.s.Valid() {
			t.Errorf("Increment(%d) = %d with %d live, %v, want %d with %d", test.amount, total, count, err, test.want, test.count)
		}
	}
	if a := l.allow(); a != (limit.Admission{Count: limit.MaxLimit + 1, Limit: limit.MaxLimit, Wait: limit.MaxWindow}) {
		t.Errorf("Allow = %+v, want it denied for ten years", a)
	}
	for _, test := range []struct {
		limit, amount, want int64
		wait                time.Duration
	}{
		{1, limit.MaxLimit, 2, limit.MaxWindow},
		{0, limit.MaxLimit, 1, limit.Never},
		{math.MinInt64, limit.MaxLimit, 1, limit.Never},
		{math.MinInt64, 0, 1, limit.Never},
	} {
		l.r = limit.Rolling{Limit: test.limit, Window: limit.MaxWindow}
		total := l.increment(test.amount)
		wait, err := l.s.Wait(l.now, l.r, nil)
		if total != test.want || wait != test.wait || err != nil {
			t.Errorf("Increment(%d) with limit %d = %d, Wait = %d, %v, want %d, %d", test.amount, test.limit, total, wait, err, test.want, test.wait)
		}
	}
}

// TestRollingOrdinals lets more events pass than an int64 counts, with one left
// at any time. When the list is empty for once it counts from 0 again.
func TestRollingOrdinals(t *testing.T) {
	l := newList(t, limit.Rolling{Limit: limit.MaxLimit, Window: 1000, Pause: true})
	l.increment(limit.MaxLimit - 5)
	rounds := int64(1)
	for ; ; rounds++ {
		l.now += 500
		l.increment(1)
		l.now += 500
		if l.s.Next > math.MaxInt64-limit.MaxLimit {
			break
		}
		if got := l.increment(limit.MaxLimit); got != limit.MaxLimit+1 {
			t.Fatalf("Increment in round %d = %d, want %d", rounds, got, limit.MaxLimit+1)
		}
	}
	if rounds != 1024 {
		t.Errorf("%d rounds, want 1024", rounds)
	}
	next, total, change, err := l.s.Increment(l.now, l.r, limit.MaxLimit, nil)
	if !errors.Is(err, limit.ErrOutOfRange) || total != 0 || change.Recorded != 0 || !sameRecord(next, l.s) {
		t.Errorf("Increment past 2^63-1 = %d, %+v, %v, want ErrOutOfRange", total, change, err)
	}
	room := math.MaxInt64 - l.s.Next
	if got := l.increment(room); got != room+1 || l.s.Next != math.MaxInt64 || !l.s.Valid() {
		t.Errorf("Increment up to 2^63-1 = %d, want %d", got, room+1)
	}
	if _, _, _, err := l.s.Allow(l.now, l.r, nil); !errors.Is(err, limit.ErrOutOfRange) {
		t.Errorf("Allow past 2^63-1 = %v, want ErrOutOfRange", err)
	}
	if count, err := l.s.Peek(l.now, l.r, nil); count != room+1 || err != nil {
		t.Errorf("Peek = %d, %v, want %d", count, err, room+1)
	}
	l.r.Window = 1
	l.now++
	if a := l.allow(); !a.Allowed || l.s.Next != 1 || l.s.First != 0 {
		t.Errorf("Allow on a list that is empty = %+v and goes to %+v, want it to start anew", a, l.s)
	}
}

// TestRollingForgets has a call with a shorter window forget, as none does that
// records nothing.
func TestRollingForgets(t *testing.T) {
	short := limit.Rolling{Limit: 1000, Window: 100}
	for _, n := range []int{50, 99, 100, 101, 300} {
		l := newList(t, limit.Rolling{Limit: 1000, Window: time.Second})
		l.fill(n, 1)
		for _, read := range []func() error{
			func() error { _, err := l.s.Peek(l.now+60, short, l.disk.read); return err },
			func() error { _, err := l.s.Wait(l.now+60, short, l.disk.read); return err },
			func() error { _, _, _, err := l.s.Increment(l.now+60, short, 0, l.disk.read); return err },
			func() error {
				_, _, _, err := l.s.Allow(l.now+60, limit.Rolling{Limit: -1, Window: 100}, l.disk.read)
				return err
			},
		} {
			if err := read(); err != nil {
				t.Fatal(err)
			}
			if count, err := l.s.Peek(l.now, l.r, l.disk.read); count != int64(n) || err != nil {
				t.Errorf("%d events: Peek = %d, %v after a call that recorded nothing", n, count, err)
			}
		}
		kept := min(int64(n), 40)
		wide := l.r
		l.now += 60
		l.r = short
		l.allow()
		if err := l.disk.check(l.s); err != nil {
			t.Errorf("%d events: %v", n, err)
		}
		if count, err := l.s.Peek(l.now, wide, l.disk.read); count != kept+1 || err != nil {
			t.Errorf("%d events: Peek = %d, %v after a call with a short window, want %d", n, count, err, kept+1)
		}
		if want := l.now + 100; l.s.Deadline != want {
			t.Errorf("%d events: deadline %d, want %d", n, l.s.Deadline, want)
		}
		// The wait ends with the list, however long the window asked about.
		wait, err := l.s.Wait(l.now, limit.Rolling{Limit: 1, Window: time.Hour}, l.disk.read)
		if wait != 100 || err != nil {
			t.Errorf("%d events: Wait = %d, %v, want the 100 ns that the list lives", n, wait, err)
		}
	}
}

// TestRollingDropped drops next states: the state that they were made from is
// as good as before.
func TestRollingDropped(t *testing.T) {
	const n = 400
	l := newList(t, limit.Rolling{Limit: n, Window: time.Hour})
	plain := newList(t, l.r)
	for i := range int64(n) {
		for range 3 {
			if _, a, _, err := l.s.Allow(l.now+7, l.r, l.disk.read); a.Count != i+1 || err != nil {
				t.Fatalf("Allow = %+v, %v, want it the call number %d", a, err, i+1)
			}
		}
		l.fill(1, 10)
		plain.fill(1, 10)
		if !sameRecord(l.s, plain.s) {
			t.Fatalf("with dropped states between: %+v, want %+v", l.s, plain.s)
		}
	}
	if got, want := l.disk.stamps(l.s, 1), plain.disk.stamps(plain.s, 1); len(got) != n || !slices.Equal(got, want) {
		t.Errorf("with dropped states between: %v, want %v", got, want)
	}
}

// rollingLists are full lists of different lengths.
func rollingLists(tb testing.TB) []*list {
	var lists []*list
	for _, n := range []int{5, 100, 10_000, 1_000_000} {
		l := newList(tb, limit.Rolling{Limit: int64(n), Window: time.Duration(n) * 1000})
		l.fill(n, 1000)
		lists = append(lists, l)
	}
	return lists
}

func TestRollingAllocs(t *testing.T) {
	for _, l := range rollingLists(t) {
		if allocs := testing.AllocsPerRun(100, func() { l.allow() }); allocs != 0 {
			t.Errorf("limit %d: %v allocations for a denial, want 0", l.r.Limit, allocs)
		}
		// A recording call makes room for its successors too: for a hundred of
		// them, or as many as the list is long, and a chunk for fifty.
		most := max(10.0, 1000/float64(l.r.Limit))
		allocs := testing.AllocsPerRun(10, func() {
			for range 100 {
				l.now += 1000
				l.allow()
			}
		})
		if allocs > most {
			t.Errorf("limit %d: %v allocations for 100 calls, want at most %v", l.r.Limit, allocs, most)
		}
	}
}

func BenchmarkRollingAllow(b *testing.B) {
	for _, l := range rollingLists(b) {
		b.Run(fmt.Sprintf("denied/%d", l.r.Limit), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				l.s.Allow(l.now, l.r, l.disk.read)
			}
		})
		b.Run(fmt.Sprintf("allowed/%d", l.r.Limit), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				l.now += 1000
				l.allow()
			}
		})
	}
}
