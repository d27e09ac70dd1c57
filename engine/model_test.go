package engine_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// model is what a limiter must be like: a map of what its keys hold.
type model struct {
	now  int64
	mark int64 // the now of the newest change
	keys map[string]*modelKey
	seen map[string]int // what has come up, and how often
}

// do carries out op and returns what a limiter must answer.
func (m *model) do(op engine.Op) (want engine.Result) {
	key := string(op.Key)
	before := m.keys[key]
	next, want := before.do(m.now, op)
	m.note(op, want, before, next)
	switch {
	case next == before:
		return want
	case next == nil:
		delete(m.keys, key)
	default:
		m.keys[key] = next
	}
	m.mark = m.now
	return want
}

// carryOut carries out ops, of which some may go together, and returns what a
// limiter must answer.
func (m *model) carryOut(ops ...engine.Op) (want []engine.Result) {
	for len(ops) > 0 {
		n := 1 + ops[0].With
		if ops[0].Verb < engine.OpThrottleAll {
			want = append(want, m.do(ops[0]))
		} else {
			next, results := together(m.now, m.keys, ops[:n])
			m.noteTogether(ops[0].Verb, results)
			if !maps.Equal(next, m.keys) {
				m.mark = m.now
			}
			m.keys = next
			want = append(want, results...)
		}
		ops = ops[n:]
	}
	return want
}

func (m *model) noteTogether(verb engine.Verb, want []engine.Result) {
	denied := 0
	for _, r := range want {
		if !r.Decision.Allowed {
			denied++
		}
	}
	switch {
	case want[0].Err != nil || len(want) == 1:
	case denied == 0:
		m.seen[fmt.Sprintf("verb %d passes", verb)]++
	default:
		m.seen[fmt.Sprintf("verb %d denies", verb)]++
	}
}

// note counts what comes up.
func (m *model) note(op engine.Op, want engine.Result, before, next *modelKey) {
	if before.long() && !before.stat(m.now).Exists() && next != before {
		m.seen["long list replaced"]++
	}
	switch {
	case want.Err != nil:
	case op.Verb == engine.OpRefund && next != before:
		m.seen["refund"]++
	case op.Verb == engine.OpRefundQuota && want.Refund.Replay:
		m.seen["quota refund replayed"]++
	case op.Verb == engine.OpRefundQuota && want.Refund.Refunded:
		m.seen["quota refund"]++
	case op.Verb == engine.OpTakeQuota && want.Grant.Replay:
		m.seen["replay"]++
	case op.Verb == engine.OpTakeQuota && want.Grant.Accepted:
		m.seen["accepted"]++
	case op.Verb == engine.OpTakeQuota:
		m.seen["quota denied"]++
	case op.Verb == engine.OpAllow || op.Verb == engine.OpIncrement && op.N > 0:
		if next == before {
			m.seen["list denied"]++
		} else if next.long() {
			m.seen["long list"]++
		}
	}
}

func (m *model) stat(key string) engine.Stat { return m.keys[key].stat(m.now) }

// all returns all keys that have not expired.
func (m *model) all() map[string]engine.Stat {
	all := map[string]engine.Stat{}
	for key := range m.keys {
		if st := m.stat(key); st.Exists() {
			all[key] = st
		}
	}
	return all
}

// trace makes up what happens to a limiter, and keeps a model of it.
type trace struct {
	model
	rng   *rand.Rand
	clock *manualClock
}

func newTrace(seed uint64) *trace {
	return &trace{
		model: model{now: epoch.UnixNano(), keys: map[string]*modelKey{}, seen: map[string]int{}},
		rng:   rand.New(rand.NewPCG(seed, 0)),
		clock: newManualClock(epoch),
	}
}

// Policies that meet on the same keys. The first seven of each have keys of
// their own, the others are rare, and some of them wrong.
var (
	// Counts that divide nothing, a single event, a byte rate, and one that
	// soon leaves time behind.
	traceRates = []limit.Rate{
		{Burst: 4, Count: 1, Period: 10 * time.Second},
		{Burst: 2, Count: 3, Period: time.Second},
		{Burst: 6, Count: 7, Period: time.Second},
		{Burst: 0, Count: 1, Period: time.Minute},
		{Burst: 99, Count: 100, Period: time.Millisecond},
		{Burst: 3_000_000_000, Count: 700_000_000, Period: time.Second},
		{Burst: 1 << 40, Count: 1, Period: math.MaxInt64 / 3},
		{Burst: 0, Count: 0, Period: time.Second},
	}
	traceQuotas = []limit.Quota{
		{Limit: 5, Window: time.Second},
		{Limit: 5, Window: time.Microsecond},
		{Limit: 30, Window: 10 * time.Second},
		{Limit: 20, Window: 300 * time.Millisecond},
		{Limit: 1, Window: time.Second},
		{Limit: 40, Window: 24 * time.Hour},
		{Limit: 10_000, Window: time.Minute},
		{Limit: 10_001, Window: time.Minute},
		{Limit: 0, Window: time.Minute},
		{Limit: math.MinInt64, Window: time.Minute},
		{Limit: math.MaxInt64, Window: time.Minute},
		{Limit: 5, Window: 24*time.Hour + 1},
		{Limit: 5, Window: 0},
		{Limit: 5, Window: -1},
	}
	traceLists = []limit.Rolling{
		{Limit: 300, Window: 10 * time.Second},
		{Limit: 150, Window: time.Second, Pause: true},
		{Limit: 1000, Window: time.Second},
		{Limit: 5, Window: 300 * time.Millisecond},
		{Limit: 3, Window: 300 * time.Millisecond, Pause: true},
		{Limit: 120, Window: 100 * time.Millisecond},
		{Limit: 400, Window: time.Hour},
		{Limit: 1, Window: 1},
		{Limit: 0, Window: time.Second, Pause: true},
		{Limit: math.MinInt64, Window: time.Second},
		{Limit: limit.MaxLimit, Window: time.Second, Pause: true},
		{Limit: limit.MaxLimit + 1, Window: time.Second},
		{Limit: 5, Window: 24*time.Hour + 1},
		{Limit: 5, Window: 0},
		{Limit: 5, Window: -1},
	}
)

// traceKeys is how many keys there are: a half for rates, a quarter each for
// quotas and lists.
const traceKeys = 28

// keyOf returns a key, in which there is what a layout might take for its own.
func keyOf(n int) []byte { return fmt.Appendf(nil, "\x00%d\xff\x00\x01", n) }

// pick returns the policy that key n has of its own, or at times another.
func pick[P any](tr *trace, policies []P, n int) P {
	if tr.rng.IntN(8) == 0 {
		return policies[tr.rng.IntN(len(policies))]
	}
	return policies[n%7]
}

// op makes up an operation on one of the keys, at times one that the key is
// not for.
func (tr *trace) op() engine.Op {
	n := tr.rng.IntN(traceKeys)
	op := engine.Op{Key: keyOf(n)}
	switch m := tr.rng.IntN(20); {
	case m == 0:
		op.Verb = engine.OpReset
		return op
	case m < 3:
		op.Verb = engine.OpStat
		return op
	}
	kind := n % 4
	if tr.rng.IntN(10) == 0 {
		kind = tr.rng.IntN(4)
	}
	look := tr.rng.IntN(3) == 0
	switch kind {
	case 0, 1:
		tr.throttle(&op, n, look)
	case 2:
		tr.takeQuota(&op, n, look)
	case 3:
		tr.roll(&op, n, look)
	}
	return op
}

func (tr *trace) throttle(op *engine.Op, n int, look bool) {
	op.Rate = pick(tr, traceRates, n)
	switch tr.rng.IntN(6) {
	case 0:
		op.N = op.Rate.Burst + tr.rng.Int64N(3) // around the limit
	case 1:
		op.N = []int64{0, math.MaxInt64, -1}[tr.rng.IntN(3)]
	default:
		op.N = 1 + tr.rng.Int64N(3)
	}
	if look {
		op.Verb = engine.OpProbe
	} else if tr.rng.IntN(6) == 0 {
		op.Verb = engine.OpRefund
	}
}

// group makes up operations on rates that go together.
func (tr *trace) group() []engine.Op {
	ops := make([]engine.Op, 1+tr.rng.IntN(5))
	verb := engine.OpThrottleAll + engine.Verb(tr.rng.IntN(4))
	for i := range ops {
		n := 4*tr.rng.IntN(traceKeys/4) + tr.rng.IntN(2)
		if tr.rng.IntN(100) == 0 {
			n = tr.rng.IntN(traceKeys)
		}
		ops[i] = engine.Op{Verb: verb, Key: keyOf(n), Rate: traceRates[n%7], N: tr.rng.Int64N(3)}
		if tr.rng.IntN(40) == 0 {
			tr.throttle(&ops[i], n, false)
			ops[i].Verb = verb
		}
	}
	ops[0].With = len(ops) - 1
	return ops
}

func (tr *trace) takeQuota(op *engine.Op, n int, look bool) {
	op.Quota = pick(tr, traceQuotas, n)
	op.ID = fmt.Sprint("id-", tr.rng.IntN(20))
	op.N = 1 + int64(len(op.ID)+n)%3 // an id has a cost of its own, mostly
	switch tr.rng.IntN(30) {
	case 0:
		op.ID = []string{"", strings.Repeat("x", 65), "a b"}[tr.rng.IntN(3)]
	case 1:
		op.N = []int64{0, -1, math.MinInt64, math.MaxInt64}[tr.rng.IntN(4)]
	case 2, 3:
		op.N = op.Quota.Limit + tr.rng.Int64N(3) - 1 // around the limit
	case 4, 5:
		op.N++
	}
	switch {
	case !look && tr.rng.IntN(6) == 0:
		*op = engine.Op{Verb: engine.OpRefundQuota, Key: op.Key, ID: op.ID}
	case !look:
		op.Verb = engine.OpTakeQuota
	case tr.rng.IntN(2) == 0:
		op.Verb = engine.OpProbeQuota
	default:
		*op = engine.Op{Verb: engine.OpQuota, Key: op.Key}
	}
}

func (tr *trace) roll(op *engine.Op, n int, look bool) {
	op.Rolling = pick(tr, traceLists, n)
	switch {
	case look && tr.rng.IntN(2) == 0:
		op.Verb = engine.OpPeek
	case look:
		op.Verb = engine.OpWait
	case tr.rng.IntN(2) == 0:
		op.Verb = engine.OpAllow
	default:
		op.Verb, op.N = engine.OpIncrement, tr.rng.Int64N(5)
		if tr.rng.IntN(10) == 0 {
			op.N = []int64{-1, limit.MaxLimit + 1, 500}[tr.rng.IntN(3)]
		}
	}
}

// tick moves the wall clock: often not at all, at times to the very deadline
// of a key or the end of its wait or one before, at times back.
func (tr *trace) tick() {
	var d time.Duration
	n := tr.rng.IntN(traceKeys)
	switch tr.rng.IntN(8) {
	case 0:
		d = time.Duration(tr.rng.Int64N(int64(time.Second)))
	case 1:
		d = time.Duration(tr.rng.Int64N(int64(time.Microsecond)))
	case 2:
		if tr.rng.IntN(4) > 0 {
			break
		}
		if left := tr.stat(string(keyOf(n))).TTL; left > 0 && left < time.Hour {
			d = left - time.Duration(tr.rng.Int64N(2))
		}
	case 3:
		if tr.rng.IntN(10) == 0 {
			d = time.Duration(tr.rng.Int64N(int64(20*time.Second))) - 10*time.Second
		}
	case 4:
		wait := tr.do(engine.Op{Verb: engine.OpWait, Key: keyOf(n), Rolling: traceLists[n%7]})
		if w := wait.Admission.Wait; w > 0 && w < 20*time.Second {
			d = w - time.Duration(tr.rng.Int64N(2))
		}
	}
	tr.advance(d)
}

func (tr *trace) advance(d time.Duration) {
	tr.clock.Advance(d)
	tr.now = max(tr.now, tr.clock.Now().UnixNano())
}

// rush has do carry out a row of operations on one quota, which is at times
// deleted and opened anew at the same instant, with the same end.
func (tr *trace) rush(do func(engine.Op)) {
	n := 4*tr.rng.IntN(traceKeys/4) + 2
	for range 20 + tr.rng.IntN(100) {
		if tr.rng.IntN(10) == 0 {
			tr.advance(time.Duration(tr.rng.Int64N(1 + int64(traceQuotas[n%7].Window)/20)))
		}
		op := engine.Op{Key: keyOf(n)}
		if tr.takeQuota(&op, n, tr.rng.IntN(5) == 0); tr.rng.IntN(20) == 0 {
			op = engine.Op{Verb: engine.OpReset, Key: op.Key}
		}
		do(op)
	}
}

// burst has do carry out a long row of operations on one list, which moves on
// in small steps and is at times deleted and started anew at the same instant.
// In the end it may expire, and the key be used for something else.
func (tr *trace) burst(do func(engine.Op)) {
	n := 4*tr.rng.IntN(traceKeys/4) + 3
	w := traceLists[n%7]
	step := 1 + int64(w.Window)/w.Limit>>tr.rng.IntN(20)
	for range 100 + tr.rng.IntN(400) {
		if tr.rng.IntN(4) > 0 {
			tr.advance(time.Duration(1 + tr.rng.Int64N(step)))
		}
		op := engine.Op{Verb: engine.OpAllow, Key: keyOf(n), Rolling: w}
		switch tr.rng.IntN(300) {
		case 0:
			op = engine.Op{Verb: engine.OpReset, Key: op.Key}
		case 1, 2, 3, 4, 5, 6, 7, 8, 9:
			tr.roll(&op, n, true)
		case 10, 11, 12:
			op.Rolling.Window = time.Duration(1 + tr.rng.Int64N(int64(2*w.Window)))
		case 13, 14, 15:
			op.Rolling.Limit = 1 + tr.rng.Int64N(2*w.Limit)
		case 16, 17, 18:
			op.Rolling.Pause = !w.Pause
		case 19, 20, 21:
			op.Verb, op.N = engine.OpIncrement, tr.rng.Int64N(4)
		}
		do(op)
	}
	if left := tr.stat(string(keyOf(n))).TTL; left < time.Minute && tr.rng.IntN(2) == 0 {
		tr.advance(left)
		op := engine.Op{Key: keyOf(n)}
		switch tr.rng.IntN(3) {
		case 0:
			tr.throttle(&op, n, false)
		case 1:
			tr.takeQuota(&op, n, false)
		case 2:
			tr.roll(&op, n, false)
		}
		do(op)
	}
}

// reopened is to be told that the limiter was.
func (tr *trace) reopened() {
	tr.now = max(tr.mark, tr.clock.Now().UnixNano())
}

// checkResult compares all that a Result shows.
func checkResult(t *testing.T, op engine.Op, got, want engine.Result) {
	t.Helper()
	if !sameAnswer(got, want) || !sameError(got.Err, want.Err) {
		t.Fatalf("%+v = %+v, want %+v", op, got, want)
	}
}

// sameAnswer tells whether two results agree in all but their errors.
func sameAnswer(a, b engine.Result) bool {
	return a.Decision == b.Decision && a.Grant == b.Grant && a.Quota == b.Quota &&
		a.Admission == b.Admission && a.Total == b.Total && a.Stat == b.Stat && a.Refund == b.Refund
}

// sameError tells whether err is want, wraps it or says the same.
func sameError(err, want error) bool {
	return errors.Is(err, want) || err != nil && want != nil && err.Error() == want.Error()
}

// looks tells whether an operation changes nothing.
func looks(v engine.Verb) bool {
	switch v {
	case engine.OpProbe, engine.OpProbeQuota, engine.OpQuota, engine.OpPeek, engine.OpWait, engine.OpStat, engine.OpProbeAll, engine.OpProbeEach:
		return true
	}
	return false
}

func TestModel(t *testing.T) {
	seen := map[string]int{}
	for _, d := range []engine.Durability{engine.Always, engine.Interval, engine.Never} {
		t.Run(d.String(), func(t *testing.T) {
			for seed := range uint64(2) {
				t.Run(fmt.Sprint(seed), func(t *testing.T) { runModel(t, d, purgeOff, seed, seen) })
			}
		})
	}
	for _, name := range []string{
		"accepted", "replay", "quota denied", "list denied", "long list", "long list replaced",
		"refund", "quota refund", "quota refund replayed",
		"verb 13 passes", "verb 14 passes", "verb 15 passes", "verb 16 passes",
		"verb 13 denies", "verb 14 denies", "verb 15 denies", "verb 16 denies",
		limit.ErrOutOfRange.Error() + ": the arrival time would pass 2^63-1 ns", limit.ErrRefunded.Error(),
		engine.ErrWrongKind.Error(), limit.ErrInvalid.Error(), limit.ErrConflict.Error(), limit.ErrPolicyChanged.Error(),
	} {
		if seen[name] < 20 {
			t.Errorf("%q came up %d times in %v, want 20 or more", name, seen[name], seen)
		}
	}
}

// TestPurgeIsNeutral replays traces with the purge at work all the while, with
// one after each operation that meets the next operation in the middle, and
// with reopened stores and power cuts in between. All are to answer like the
// model, which never forgets what has expired.
func TestPurgeIsNeutral(t *testing.T) {
	seen := map[string]int{}
	seeds := uint64(2)
	if testing.Short() {
		seeds = 1
	}
	for name, p := range map[string]purging{"on": purgeOn, "each step": purgeEachStep} {
		for _, d := range []engine.Durability{engine.Always, engine.Interval} {
			for seed := range seeds {
				t.Run(fmt.Sprintf("%s/%s/%d", name, d, seed), func(t *testing.T) { runModel(t, d, p, seed, seen) })
			}
		}
	}
	for _, name := range []string{"purged", "power cut", "operation between look and turn"} {
		if seen[name] < 20 {
			t.Errorf("%q came up %d times in %v, want 20 or more", name, seen[name], seen)
		}
	}
}

// purging is when a store purges in a trace.
type purging int

const (
	purgeOff purging = iota
	purgeOn
	purgeEachStep
)

func runModel(t *testing.T, d engine.Durability, purging purging, seed uint64, seen map[string]int) {
	tr := newTrace(seed)
	fs := vfs.NewCrashableMem()
	opts := engine.Options{
		Durability:   d,
		SyncInterval: time.Millisecond,
		NoPurge:      purging != purgeOn,
		PurgeWait:    1,
		Now:          tr.clock.Now,
		FS:           fs,
	}
	if seed%2 == 0 {
		opts.CacheSize = 1 // an entry for each shard
	}
	if d == engine.Never {
		opts.SyncInterval = time.Hour // only what somebody waits for is written
	}
	l := open(t, "store", opts)
	carryOut := func(ops ...engine.Op) {
		t.Helper()
		want := tr.carryOut(ops...)
		for i, got := range l.Do(ops, nil) {
			checkResult(t, ops[i], got, want[i])
			if want[i].Err != nil {
				tr.seen[want[i].Err.Error()]++
			}
		}
	}
	// middle is carried out between the next look of a purge and its turn.
	var middle []engine.Op
	steps := rand.New(rand.NewPCG(seed, 1)) // of its own, so that the trace stays the same
	purge := func() {
		t.Helper()
		l.OnLook(func() {
			if len(middle) > 0 {
				tr.seen["operation between look and turn"]++
			}
			ops := middle
			middle = nil
			carryOut(ops...)
		})
		if err := l.Purge(t.Context()); err != nil {
			t.Fatal(err)
		}
		l.OnLook(nil)
	}
	do := func(ops ...engine.Op) {
		t.Helper()
		if purging == purgeEachStep && steps.IntN(2) == 0 {
			middle = ops
			purge()
			ops, middle = middle, nil // unless there was nothing to look at
		}
		carryOut(ops...)
		if purging == purgeEachStep || purging == purgeOn && steps.IntN(50) == 0 {
			purge()
		}
	}
	resetAll := func() {
		t.Helper()
		if err := l.ResetAll(); err != nil {
			t.Fatal(err)
		}
		clear(tr.keys)
		tr.mark = tr.now
	}
	one := func(op engine.Op) {
		t.Helper()
		if tr.rng.IntN(300) == 0 {
			resetAll()
		}
		do(op)
	}
	for range 2000 {
		l.Now() // or what it hasn't seen of the wall, before that goes back, it can't know
		tr.tick()
		switch tr.rng.IntN(200) {
		case 0, 1:
			if purging != purgeOff {
				// The mark is then the same whatever was purged.
				carryOut(engine.Op{Verb: engine.OpThrottle, Key: []byte("pin"), Rate: limit.Rate{Burst: 1 << 40, Count: 1, Period: 1}, N: 1})
				tr.seen["purged"] += int(l.Metrics().Purged)
			}
			if purging != purgeOff && steps.IntN(2) == 0 {
				tr.seen["power cut"]++
				must(t, l.Sync)
				fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: steps.IntN(2) * 100, RNG: steps})
				opts.FS = fs
			}
			l = reopen(t, l, "store", opts)
			tr.reopened()
		case 2:
			flush(t, l)
		case 3:
			compact(t, l)
		case 4:
			resetAll()
		case 5, 6:
			want := tr.all()
			if got := scan(t, l, 1+tr.rng.IntN(10)); !maps.Equal(got, want) {
				t.Fatalf("Scan = %v, want %v", got, want)
			}
			if n, err := l.Len(); n != int64(len(want)) || err != nil {
				t.Fatalf("Len = %d, %v, want %d", n, err, len(want))
			}
		case 7:
			if err := l.Sync(); err != nil {
				t.Fatal(err)
			}
			// A purge brings its own mark.
			if got := storedMark(t, l); got != tr.mark && (purging == purgeOff || got < tr.mark || got > tr.now) {
				t.Fatalf("the mark is %d, want %d, and the time is %d", got, tr.mark, tr.now)
			}
		case 8, 9, 10, 11, 12:
			tr.burst(one)
		case 13, 14, 15, 16, 17:
			tr.rush(one)
		case 18:
			if err := l.Check(); err != nil {
				t.Fatal(err)
			}
		}
		var ops, some []engine.Op // some of those that look
		for range 1 + tr.rng.IntN(4) {
			next := []engine.Op{tr.op()}
			if tr.rng.IntN(5) == 0 {
				next = tr.group()
			}
			if ops = append(ops, next...); looks(next[0].Verb) {
				some = append(some, next...)
			}
		}
		do(ops...)
		if tr.rng.IntN(4) > 0 {
			continue // to look would have written what is staged
		}
		want := tr.carryOut(some...)
		for i, got := range viewed(t, l, some) {
			checkResult(t, some[i], got, want[i])
		}
		key := ops[0].Key
		if got, err := l.TTL(key); got != tr.stat(string(key)).TTL || err != nil {
			t.Fatalf("TTL(%q) = %v, %v, want %v", key, got, err, tr.stat(string(key)).TTL)
		}
	}
	for name, n := range tr.seen {
		seen[name] += n
	}
}

// viewed carries out operations that look, in one view.
func viewed(t *testing.T, l *engine.Limiter, ops []engine.Op) (results []engine.Result) {
	t.Helper()
	err := l.View(func(v *engine.View) error {
		for i, op := range ops {
			var r engine.Result
			switch op.Verb {
			case engine.OpProbeAll, engine.OpProbeEach:
				if len(results) > i {
					continue // it went together with one before
				}
				probe := v.ProbeAll
				if op.Verb == engine.OpProbeEach {
					probe = v.ProbeEach
				}
				results = append(results, resultsOf(probe, ops[i:i+1+op.With])...)
				continue
			case engine.OpProbe:
				r.Decision, r.Err = v.Probe(op.Key, op.Rate, op.N)
			case engine.OpProbeQuota:
				r.Grant, r.Err = v.ProbeQuota(op.Key, op.ID, op.Quota, op.N)
			case engine.OpQuota:
				r.Quota, r.Err = v.Quota(op.Key)
			case engine.OpPeek:
				r.Admission.Count, r.Err = v.Peek(op.Key, op.Rolling)
			case engine.OpWait:
				r.Admission.Wait, r.Err = v.Wait(op.Key, op.Rolling)
			case engine.OpStat:
				r.Stat, r.Err = v.Stat(op.Key)
			}
			results = append(results, r)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return results
}

// resultsOf returns what call answers to ops, which go together.
func resultsOf(call func(...engine.Charge) (limit.Decisions, error), ops []engine.Op) []engine.Result {
	charges := make([]engine.Charge, len(ops))
	for i, op := range ops {
		charges[i] = engine.Charge{Key: op.Key, Rate: op.Rate, N: op.N}
	}
	decisions, err := call(charges...)
	results := make([]engine.Result, len(ops))
	for i := range results {
		if results[i].Err = err; err == nil {
			results[i].Decision = decisions[i]
		}
	}
	return results
}

// scan returns all that Scan visits, about count keys at a time, and fails if
// it visits a key twice.
func scan(t testing.TB, l *engine.Limiter, count int) map[string]engine.Stat {
	t.Helper()
	all := map[string]engine.Stat{}
	for cursor, first := 0, true; first || cursor != 0; first = false {
		next, err := l.Scan(cursor, count, func(key []byte, s engine.Stat) {
			if _, twice := all[string(key)]; twice {
				t.Errorf("Scan visits %q twice", key)
			}
			all[string(key)] = s
		})
		if err != nil {
			t.Fatalf("Scan(%d, %d): %v", cursor, count, err)
		}
		if next != 0 && next <= cursor {
			t.Fatalf("Scan(%d, %d) = %d: it does not move on", cursor, count, next)
		}
		cursor = next
	}
	return all
}

// TestSeam gives the same operations at the same times to two stores, one of
// which is left alone while the other is flushed, compacted and reopened, has
// next to no cache and another seed. They must answer alike and end alike.
func TestSeam(t *testing.T) {
	tr := newTrace(1)
	calm := engine.Options{Now: tr.clock.Now, FS: vfs.NewMem()}
	restless := calm
	restless.FS, restless.CacheSize, restless.Durability = vfs.NewMem(), 1, engine.Never
	a, b := open(t, "store", calm), open(t, "store", restless)
	do := func(op engine.Op) {
		t.Helper()
		checkResult(t, op, b.Do([]engine.Op{op}, nil)[0], a.Do([]engine.Op{op}, nil)[0])
		tr.do(op)
	}
	chunks, requests := 0, 0
	for range 3000 {
		// A reopened limiter forgets how far it saw the wall go, and the calm
		// one does not, so here the wall does not go back.
		before := tr.clock.Now()
		if tr.tick(); tr.clock.Now().Before(before) {
			tr.clock.Set(before)
		}
		switch tr.rng.IntN(100) {
		case 0:
			b = reopen(t, b, "store", restless)
		case 1:
			flush(t, b)
		case 2:
			compact(t, b)
		case 3, 4:
			tr.burst(do)
			tr.rush(do)
			got, want := liveRecords(t, b), liveRecords(t, a)
			if !maps.Equal(got, want) {
				t.Fatalf("records = %q, want %q", got, want)
			}
			for name := range want {
				if strings.HasPrefix(name, "chunk") {
					chunks++
				} else if strings.HasPrefix(name, "request") {
					requests++
				}
			}
		}
		do(tr.op())
	}
	if got, want := scan(t, b, 10), scan(t, a, 10); !maps.Equal(got, want) || len(want) == 0 {
		t.Errorf("Scan = %v, want %v", got, want)
	}
	if chunks == 0 || requests == 0 {
		t.Errorf("%d chunks and %d requests have been compared, want some", chunks, requests)
	}
}

// liveRecords returns all that the store of l says of keys that have not
// expired, by names that don't depend on its seed.
func liveRecords(t *testing.T, l *engine.Limiter) map[string]string {
	t.Helper()
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	keys, now := codec.Keyspace{}, l.Now().UnixNano()
	all := map[string]string{}
	live := map[string]limit.Kind{}
	lists := map[string]string{} // by names of chunks
	for key, value := range contents(t, l.DB()) {
		if _, user, err := keys.ParseHead(nil, []byte(key)); err == nil {
			if s, err := codec.DecodeState([]byte(value)); err != nil {
				t.Fatal(err)
			} else if s.Deadline() > now {
				all[fmt.Sprintf("head %q", user)] = value
				live[string(user)] = s.Kind
			}
		} else if deadline, user, id, err := keys.ParseRequestKey(nil, []byte(key)); err == nil {
			if deadline > now {
				all[fmt.Sprintf("request %q %d %s", user, deadline, id)] = value
			}
		} else if _, user, ordinal, err := keys.ParseChunkKey(nil, []byte(key)); err == nil {
			name := fmt.Sprintf("chunk %q %d", user, ordinal)
			all[name], lists[name] = value, string(user)
		}
	}
	for name, user := range lists {
		if live[user] != limit.KindRolling {
			delete(all, name)
		}
	}
	return all
}
