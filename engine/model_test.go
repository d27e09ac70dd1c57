package engine_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// model is what a limiter must be like: a map and the pure decisions. It keeps
// expired states, which must make no difference.
type model struct {
	now    int64
	mark   int64 // the now of the newest change
	states map[string]limit.GCRAState
}

// do carries out op and returns what a limiter must answer.
func (m *model) do(op engine.Op) (want engine.Result) {
	key := string(op.Key)
	state := m.states[key]
	switch op.Verb {
	case engine.OpThrottle, engine.OpProbe:
		var next limit.GCRAState
		next, want.Decision, want.Err = state.Take(m.now, op.Rate, op.N)
		if op.Verb == engine.OpThrottle && want.Decision.Allowed && op.N > 0 {
			m.states[key], m.mark = next, m.now
		}
	case engine.OpStat:
		want.Stat = m.stat(state)
	case engine.OpReset:
		if want.Stat = m.stat(state); want.Stat.Exists() {
			m.mark = m.now
		}
		delete(m.states, key)
	}
	return want
}

func (m *model) stat(s limit.GCRAState) engine.Stat {
	if s.Deadline <= m.now {
		return engine.Stat{}
	}
	return engine.Stat{Kind: limit.GCRA, Deadline: time.Unix(0, s.Deadline), TTL: time.Duration(s.Deadline - m.now)}
}

// live returns all keys that have not expired.
func (m *model) live() map[string]engine.Stat {
	all := map[string]engine.Stat{}
	for key, s := range m.states {
		if st := m.stat(s); st.Exists() {
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
		model: model{now: epoch.UnixNano(), states: map[string]limit.GCRAState{}},
		rng:   rand.New(rand.NewPCG(seed, 0)),
		clock: newManualClock(epoch),
	}
}

// traceRates are policies that meet on the same keys: with counts that divide
// nothing, a single event, a byte rate, and one that soon leaves time behind.
// The first seven have keys of their own.
var traceRates = []limit.Rate{
	{Burst: 4, Count: 1, Period: 10 * time.Second},
	{Burst: 2, Count: 3, Period: time.Second},
	{Burst: 6, Count: 7, Period: time.Second},
	{Burst: 0, Count: 1, Period: time.Minute},
	{Burst: 99, Count: 100, Period: time.Millisecond},
	{Burst: 3_000_000_000, Count: 700_000_000, Period: time.Second},
	{Burst: 1 << 40, Count: 1, Period: math.MaxInt64 / 3},
	{Burst: 0, Count: 0, Period: time.Second}, // invalid, and nobody's own
}

// op makes up an operation on one of 28 keys. Each has a policy of
// its own, and at times meets another.
func (tr *trace) op() engine.Op {
	n := tr.rng.IntN(28)
	// The keys have in them what a layout might take for its own.
	op := engine.Op{Key: fmt.Appendf(nil, "\x00%d\xff\x00\x01", n)}
	if op.Rate = traceRates[n%7]; tr.rng.IntN(8) == 0 {
		op.Rate = traceRates[tr.rng.IntN(len(traceRates))]
	}
	switch tr.rng.IntN(6) {
	case 0:
		op.N = op.Rate.Burst + tr.rng.Int64N(3) // around the limit
	case 1:
		op.N = []int64{0, math.MaxInt64, -1}[tr.rng.IntN(3)]
	default:
		op.N = 1 + tr.rng.Int64N(3)
	}
	switch n := tr.rng.IntN(20); {
	case n < 10:
		op.Verb = engine.OpThrottle
	case n < 16:
		op.Verb = engine.OpProbe
	case n < 19:
		op.Verb = engine.OpStat
	default:
		op.Verb = engine.OpReset
	}
	return op
}

// tick moves the wall clock: often not at all, at times to the very deadline
// of a key or one before, at times back.
func (tr *trace) tick() {
	var d time.Duration
	switch tr.rng.IntN(8) {
	case 0:
		d = time.Duration(tr.rng.Int64N(int64(time.Second)))
	case 1:
		d = time.Duration(tr.rng.Int64N(int64(time.Microsecond)))
	case 2:
		key := tr.op().Key
		if tr.rng.IntN(4) > 0 {
			break
		}
		if left := tr.states[string(key)].Deadline - tr.now; left > 0 && left < int64(time.Hour) {
			d = time.Duration(left - tr.rng.Int64N(2))
		}
	case 3:
		if tr.rng.IntN(10) == 0 {
			d = time.Duration(tr.rng.Int64N(int64(20*time.Second))) - 10*time.Second
		}
	}
	tr.clock.Advance(d)
	tr.now = max(tr.now, tr.clock.Now().UnixNano())
}

// reopened is to be told that the limiter was.
func (tr *trace) reopened() {
	tr.now = max(tr.mark, tr.clock.Now().UnixNano())
}

// checkResult compares all that a Result shows.
func checkResult(t *testing.T, op engine.Op, got, want engine.Result) {
	t.Helper()
	if got.Decision != want.Decision || got.Stat != want.Stat || fmt.Sprint(got.Err) != fmt.Sprint(want.Err) {
		t.Fatalf("%+v = %+v, want %+v", op, got, want)
	}
}

func TestModel(t *testing.T) {
	for _, d := range []engine.Durability{engine.Always, engine.Interval, engine.Never} {
		t.Run(d.String(), func(t *testing.T) {
			for seed := range uint64(2) {
				t.Run(fmt.Sprint(seed), func(t *testing.T) { runModel(t, d, seed) })
			}
		})
	}
}

func runModel(t *testing.T, d engine.Durability, seed uint64) {
	tr := newTrace(seed)
	opts := engine.Options{
		Durability:   d,
		SyncInterval: time.Millisecond,
		CacheSize:    1, // an entry for each shard
		Now:          tr.clock.Now,
		FS:           vfs.NewMem(),
	}
	l := open(t, "store", opts)
	for range 2000 {
		tr.tick()
		switch tr.rng.IntN(200) {
		case 0, 1:
			l = reopen(t, l, "store", opts)
			tr.reopened()
		case 2:
			flush(t, l)
		case 3:
			compact(t, l)
		case 4:
			if err := l.ResetAll(); err != nil {
				t.Fatal(err)
			}
			clear(tr.states)
			tr.mark = tr.now
		case 5, 6:
			want := tr.live()
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
			if got := storedMark(t, l); got != tr.mark {
				t.Fatalf("the mark is %d, want %d", got, tr.mark)
			}
		}
		ops := make([]engine.Op, 1+tr.rng.IntN(4))
		for i := range ops {
			ops[i] = tr.op()
		}
		for i, got := range l.Do(ops, nil) {
			checkResult(t, ops[i], got, tr.do(ops[i]))
		}
		key := ops[0].Key
		if got, err := l.TTL(key); got != tr.stat(tr.states[string(key)]).TTL || err != nil {
			t.Fatalf("TTL(%q) = %v, %v, want %v", key, got, err, tr.stat(tr.states[string(key)]).TTL)
		}
	}
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
		}
		op := tr.op()
		checkResult(t, op, b.Do([]engine.Op{op}, nil)[0], a.Do([]engine.Op{op}, nil)[0])
		tr.do(op)
	}
	if got, want := scan(t, b, 10), scan(t, a, 10); !maps.Equal(got, want) || len(want) == 0 {
		t.Errorf("Scan = %v, want %v", got, want)
	}
	got, want := liveRecords(t, b), liveRecords(t, a)
	if !maps.Equal(got, want) || len(want) == 0 {
		t.Errorf("records = %q, want %q", got, want)
	}
}

// liveRecords returns the records of the keys of l that have not expired.
func liveRecords(t *testing.T, l *engine.Limiter) map[string]string {
	t.Helper()
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	all := records(t, l)
	maps.DeleteFunc(all, func(_, record string) bool {
		s, err := codec.DecodeState([]byte(record))
		return err == nil && s.Deadline() <= l.Now().UnixNano()
	})
	return all
}
