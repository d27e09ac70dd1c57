package engine_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

func TestKeys(t *testing.T) {
	clock := newManualClock(epoch)
	l := open(t, "store", engine.Options{Now: clock.Now, CacheSize: 1})
	rate := limit.PerDay(100)
	keys := []string{
		"a", "a\x00", "a\x00\x00", "a\x00\x01", "a\x00\xff", "a\x00\xff\x00\x01", "a\x01", "a\xff", "b",
		"\x00", "\x00\x00", "\x00\x01", "\x00\xff", "\x01", "\xff", "\xff\xff", "h\x00\x00a\x00\x01", "mmark",
		string(bytes.Repeat([]byte{'k'}, engine.MaxKeyLen)),
		string(bytes.Repeat([]byte{0}, engine.MaxKeyLen)),
		string(bytes.Repeat([]byte{0xff}, engine.MaxKeyLen)),
	}
	for i, key := range keys {
		if d, err := l.Throttle([]byte(key), rate, int64(i+1)); !d.Allowed || err != nil {
			t.Errorf("Throttle(%q) = %+v, %v", key, d, err)
		}
	}
	for i, key := range keys {
		if d, err := l.Probe([]byte(key), rate, 0); d.Remaining != int64(99-i) || err != nil {
			t.Errorf("Probe(%q) = %+v, %v, want %d remaining", key, d, err, 99-i)
		}
		if d, err := l.Throttle([]byte(key), rate, 0); d.Remaining != int64(99-i) || err != nil {
			t.Errorf("Throttle(%q, 0) = %+v, %v, want %d remaining", key, d, err, 99-i)
		}
	}
	visited := scan(t, l, 3)
	for _, key := range keys {
		if _, ok := visited[key]; !ok {
			t.Errorf("Scan does not visit %q", key)
		}
	}
	if len(visited) != len(keys) {
		t.Errorf("Scan visits %d keys, want %d", len(visited), len(keys))
	}
}

// TestErrors has every operation go wrong that can. None may write a byte.
func TestErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newWatchedFS()
		clock := newManualClock(epoch)
		l := open(t, "store", engine.Options{FS: fs, Now: clock.Now})
		good, quota, list := limit.PerDay(10), limit.Quota{Limit: 10, Window: time.Hour}, limit.Rolling{Limit: 10, Window: time.Hour}
		charge(t, l, 0, 1, good)
		if g, err := l.TakeQuota(nth(2), "id", quota, 3); !g.Accepted || err != nil {
			t.Fatal(g, err)
		}
		if a, err := l.Allow(nth(3), list); !a.Allowed || err != nil {
			t.Fatal(a, err)
		}

		long := bytes.Repeat([]byte{'k'}, engine.MaxKeyLen+1)
		rates := map[string]limit.Rate{
			"negative burst":  {Burst: -1, Count: 1, Period: time.Second},
			"largest burst":   {Burst: math.MaxInt64, Count: 1, Period: time.Second},
			"no count":        {Burst: 1, Count: 0, Period: time.Second},
			"negative count":  {Burst: 1, Count: math.MinInt64, Period: time.Second},
			"no period":       {Burst: 1, Count: 1, Period: 0},
			"negative period": {Burst: 1, Count: 1, Period: -1},
		}
		type wrong struct {
			op   engine.Op
			want error
		}
		wrongs := []wrong{
			{engine.Op{Verb: engine.OpProbeEach + 1, Key: nth(0)}, engine.ErrInvalidVerb},
			{engine.Op{Verb: math.MaxUint8, Key: nth(0)}, engine.ErrInvalidVerb},
		}
		for verb := engine.OpThrottle; verb <= engine.OpReset; verb++ {
			for _, key := range [][]byte{nil, {}, long} {
				op := engine.Op{Verb: verb, Key: key, Rate: good, Quota: quota, Rolling: list, ID: "id", N: 1}
				wrongs = append(wrongs, wrong{op, engine.ErrInvalidKey})
			}
		}
		// What holds something of another kind.
		for i, verbs := range map[int][]engine.Verb{
			0: {engine.OpTakeQuota, engine.OpProbeQuota, engine.OpQuota, engine.OpAllow, engine.OpIncrement, engine.OpPeek, engine.OpWait},
			2: {engine.OpThrottle, engine.OpProbe, engine.OpAllow, engine.OpIncrement, engine.OpPeek, engine.OpWait},
			3: {engine.OpThrottle, engine.OpProbe, engine.OpTakeQuota, engine.OpProbeQuota, engine.OpQuota},
		} {
			for _, verb := range verbs {
				op := engine.Op{Verb: verb, Key: nth(i), Rate: good, Quota: quota, Rolling: list, ID: "id", N: 1}
				wrongs = append(wrongs, wrong{op, engine.ErrWrongKind})
			}
		}
		// Arguments come before kinds, and kinds before all else.
		for i := range 5 {
			for _, verb := range []engine.Verb{engine.OpTakeQuota, engine.OpProbeQuota} {
				op := engine.Op{Verb: verb, Key: nth(i), Quota: quota, ID: "id", N: 3}
				for _, id := range []string{"", strings.Repeat("x", 65), "a b", "a.b", "a/b", "\x00", "é", "a\n"} {
					bad := op
					bad.ID = id
					wrongs = append(wrongs, wrong{bad, limit.ErrInvalid})
				}
				for _, cost := range []int64{0, -1, math.MinInt64, 11, math.MaxInt64} {
					bad := op
					bad.N = cost
					wrongs = append(wrongs, wrong{bad, limit.ErrInvalid})
				}
				for _, q := range []limit.Quota{
					{Limit: 0, Window: time.Hour}, {Limit: -1, Window: time.Hour}, {Limit: math.MinInt64, Window: time.Hour},
					{Limit: 10_001, Window: time.Hour}, {Limit: math.MaxInt64, Window: time.Hour},
					{Limit: 10, Window: 0}, {Limit: 10, Window: -1}, {Limit: 10, Window: 24*time.Hour + 1}, {Limit: 10, Window: math.MaxInt64},
				} {
					bad := op
					bad.Quota = q
					wrongs = append(wrongs, wrong{bad, limit.ErrInvalid})
				}
				if i == 2 {
					bad := op
					bad.N = 4
					wrongs = append(wrongs, wrong{bad, limit.ErrConflict})
					bad.Quota.Limit++
					wrongs = append(wrongs, wrong{bad, limit.ErrPolicyChanged})
					bad.Quota, bad.ID = limit.Quota{Limit: 10, Window: time.Minute}, "other"
					wrongs = append(wrongs, wrong{bad, limit.ErrPolicyChanged})
				}
			}
			for _, verb := range []engine.Verb{engine.OpAllow, engine.OpIncrement, engine.OpPeek, engine.OpWait} {
				op := engine.Op{Verb: verb, Key: nth(i), Rolling: list, N: 1}
				for _, w := range []limit.Rolling{
					{Limit: limit.MaxLimit + 1, Window: time.Hour}, {Limit: math.MaxInt64, Window: time.Hour, Pause: true},
					{Limit: 10, Window: 0}, {Limit: 10, Window: -1}, {Limit: 10, Window: 24*time.Hour + 1}, {Limit: 10, Window: math.MaxInt64},
				} {
					bad := op
					bad.Rolling = w
					wrongs = append(wrongs, wrong{bad, limit.ErrInvalid})
				}
			}
			for _, amount := range []int64{-1, math.MinInt64, limit.MaxLimit + 1, math.MaxInt64} {
				op := engine.Op{Verb: engine.OpIncrement, Key: nth(i), Rolling: list, N: amount}
				wrongs = append(wrongs, wrong{op, limit.ErrInvalid})
			}
		}
		for _, verb := range []engine.Verb{engine.OpThrottle, engine.OpProbe} {
			for _, key := range [][]byte{nth(0), nth(1)} {
				for _, r := range rates {
					wrongs = append(wrongs, wrong{engine.Op{Verb: verb, Key: key, Rate: r, N: 1}, limit.ErrInvalid})
				}
				endless := limit.Rate{Burst: 1, Count: 1, Period: math.MaxInt64}
				wrongs = append(wrongs,
					wrong{engine.Op{Verb: verb, Key: key, Rate: good, N: -1}, limit.ErrInvalid},
					wrong{engine.Op{Verb: verb, Key: key, Rate: good, N: math.MinInt64}, limit.ErrInvalid},
					wrong{engine.Op{Verb: verb, Key: key, Rate: endless, N: 1}, limit.ErrOutOfRange})
			}
		}
		fs.quietly(t, l, func() {
			var ops []engine.Op
			for _, w := range wrongs {
				ops = append(ops, w.op)
			}
			for i, got := range l.Do(ops, nil) {
				w := wrongs[i]
				if !errors.Is(got.Err, w.want) || !sameAnswer(got, engine.Result{}) {
					t.Errorf("%+.40v = %+v, want %v and nothing else", w.op, got, w.want)
				}
				if !looks(w.op.Verb) {
					continue
				}
				if got := viewed(t, l, []engine.Op{w.op})[0]; !errors.Is(got.Err, w.want) || !sameAnswer(got, engine.Result{}) {
					t.Errorf("in a View: %+.40v: %+v, want %v and nothing else", w.op, got, w.want)
				}
			}
		})
		if d, err := l.Probe(nth(0), good, 0); d.Remaining != 9 || err != nil {
			t.Errorf("Probe = %+v, %v, want 9 remaining", d, err)
		}
		if u, err := l.Quota(nth(2)); u.Quota != quota || u.Used != 3 || err != nil {
			t.Errorf("Quota = %+v, %v, want 3 used of %+v", u, err, quota)
		}
		if n, err := l.Peek(nth(3), list); n != 1 || err != nil {
			t.Errorf("Peek = %d, %v, want 1", n, err)
		}
	})
}

// TestDo mixes what goes well and what does not in one pipeline, whose results
// go behind others, into memory that held others.
func TestDo(t *testing.T) {
	for _, d := range []engine.Durability{engine.Always, engine.Interval, engine.Never} {
		t.Run(d.String(), func(t *testing.T) {
			clock := newManualClock(epoch)
			l := open(t, "store", engine.Options{Durability: d, Now: clock.Now, SyncInterval: time.Hour})
			a, b := []byte("a"), []byte("b")
			rate := limit.Rate{Burst: 1, Count: 1, Period: time.Minute}
			minute := engine.Stat{Kind: limit.KindGCRA, Deadline: epoch.Add(time.Minute), TTL: time.Minute}
			steps := []struct {
				op   engine.Op
				want engine.Result
			}{
				{engine.Op{Verb: engine.OpProbe, Key: a, Rate: rate, N: 2}, engine.Result{Decision: limit.Decision{Allowed: true, Limit: 2, ResetAfter: 2 * time.Minute}}},
				{engine.Op{Key: a, Rate: rate, N: 1}, engine.Result{Decision: limit.Decision{Allowed: true, Limit: 2, Remaining: 1, ResetAfter: time.Minute}}},
				{engine.Op{Verb: engine.OpStat, Key: a}, engine.Result{Stat: minute}},
				{engine.Op{Key: nil, Rate: rate, N: 1}, engine.Result{Err: engine.ErrInvalidKey}},
				{engine.Op{Verb: engine.OpProbe, Key: a, Rate: rate, N: 2}, engine.Result{Decision: limit.Decision{Limit: 2, Remaining: 1, RetryAfter: time.Minute, ResetAfter: time.Minute}}},
				{engine.Op{Key: b, Rate: rate, N: 2}, engine.Result{Decision: limit.Decision{Allowed: true, Limit: 2, ResetAfter: 2 * time.Minute}}},
				{engine.Op{Key: b, Rate: rate, N: 1}, engine.Result{Decision: limit.Decision{Limit: 2, RetryAfter: time.Minute, ResetAfter: 2 * time.Minute}}},
				{engine.Op{Verb: engine.OpReset, Key: a}, engine.Result{Stat: minute}},
				{engine.Op{Verb: engine.OpReset, Key: a}, engine.Result{}},
				{engine.Op{Verb: engine.OpStat, Key: a}, engine.Result{}},
				{engine.Op{Verb: 99, Key: a}, engine.Result{Err: engine.ErrInvalidVerb}},
				{engine.Op{Key: a, Rate: rate, N: 3}, engine.Result{Decision: limit.Decision{Limit: 2, Remaining: 2, RetryAfter: limit.Never}}},
			}
			var ops []engine.Op
			for _, s := range steps {
				ops = append(ops, s.op)
			}
			stale := engine.Result{Decision: limit.Decision{Limit: 77}, Stat: engine.Stat{TTL: 77}, Err: errors.New("stale")}
			dst := slices.Repeat([]engine.Result{stale}, len(steps)+2)
			got := l.Do(ops, dst[:2])
			if len(got) != len(dst) || &got[0] != &dst[0] {
				t.Errorf("Do has not appended %d results in place", len(steps))
			}
			for _, r := range got[:2] {
				checkResult(t, engine.Op{}, r, stale)
			}
			for i, s := range steps {
				checkResult(t, s.op, got[2+i], s.want)
			}
			if got := l.Do(nil, dst[:1]); len(got) != 1 {
				t.Errorf("Do of nothing has appended %d results", len(got)-1)
			}
		})
	}
}

// DoEach tells first what does not wait for the disk, and everything once.
func TestDoEach(t *testing.T) {
	inBubble(t, engine.Options{Now: func() time.Time { return epoch }}, func(t *testing.T, l *engine.Limiter, d *slowDisk) {
		rate := limit.PerHour(10)
		charge := func(key string, n int64) engine.Op {
			return engine.Op{Verb: engine.OpThrottle, Key: []byte(key), Rate: rate, N: n}
		}
		ops := []engine.Op{charge("new", 1), charge("used up", 1), charge("", 1), charge("new", 10), charge("used up", 1)}
		if _, err := l.Throttle([]byte("used up"), rate, 10); err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var told []int // mu guards it
		tell := func(i int) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, i)
		}
		wantTold := func(want ...int) {
			t.Helper()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(told, want) {
				t.Errorf("%d are told, want %d", told, want)
			}
		}
		results := make([]engine.Result, 0, len(ops))
		do := func() error {
			results = l.DoEach(ops, results[:0], func(i int, r *engine.Result) {
				if r != &results[:len(ops)][i] {
					t.Errorf("result %d is not where it is returned", i)
				}
				tell(i)
			})
			return nil
		}
		for _, broken := range []error{nil, errors.New("broken")} {
			gate := d.hold()
			var calls pending
			told = nil
			calls.start("DoEach", do)
			calls.want(t, "DoEach")
			wantTold(1, 2, 4)
			gate <- broken
			d.release()
			calls.calls.Wait()
			wantTold(1, 2, 4, 0, 3)
			for i, r := range results {
				want := map[int]error{2: engine.ErrInvalidKey}[i]
				if broken != nil && (i == 0 || i == 3) {
					want = engine.ErrStorage
				}
				if !errors.Is(r.Err, want) || want == nil && r.Decision.Allowed != (i == 0) {
					t.Errorf("result %d is %+v, want the error %v", i, r, want)
				}
			}
		}
		l.Close()
		told = nil
		do()
		wantTold(0, 1, 2, 3, 4)
		if err := results[0].Err; !errors.Is(err, engine.ErrClosed) {
			t.Errorf("a limiter that is closed says %v", err)
		}
	})
}

// TestDoKeepsNoKey changes the bytes of keys after the calls.
func TestDoKeepsNoKey(t *testing.T) {
	clock := newManualClock(epoch)
	l := open(t, "store", engine.Options{Durability: engine.Never, SyncInterval: time.Hour, Now: clock.Now})
	key := make([]byte, 4)
	for i := range 100 {
		copy(key, fmt.Sprintf("%04d", i))
		if _, err := l.Throttle(key, limit.PerDay(2), 1); err != nil {
			t.Fatal(err)
		}
	}
	copy(key, "gone")
	visited := scan(t, l, 10)
	for i := range 100 {
		if !visited[fmt.Sprintf("%04d", i)].Exists() {
			t.Errorf("key %04d is not there", i)
		}
	}
}

// TestReset forgets keys in tables, in memory and in the open round, and keeps
// them forgotten.
func TestReset(t *testing.T) {
	clock := newManualClock(epoch)
	opts := engine.Options{Durability: engine.Interval, SyncInterval: time.Hour, Now: clock.Now, FS: newWatchedFS()}
	l := open(t, "store", opts)
	rate := limit.PerDay(2)
	charge(t, l, 0, 1, rate)
	flush(t, l)
	charge(t, l, 1, 2, rate)
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	charge(t, l, 2, 4, rate)
	for _, i := range []int{0, 1, 2, 4} { // the last of which never was
		want := i < 4
		for range 2 {
			if got, err := l.Reset(nth(i)); got != want || err != nil {
				t.Errorf("Reset(%q) = %t, %v, want %t", nth(i), got, err, want)
			}
			want = false
		}
		if d, err := l.Probe(nth(i), rate, 0); d.Remaining != 2 || err != nil {
			t.Errorf("Probe(%q) = %+v, %v, want it whole", nth(i), d, err)
		}
	}
	l = reopen(t, l, "store", opts)
	if got := scan(t, l, 10); len(got) != 1 || !got[string(nth(3))].Exists() {
		t.Errorf("Scan = %v, want %q alone", got, nth(3))
	}
}

// TestPanicLetsGoOfTheTurn has the clock panic in a turn.
func TestPanicLetsGoOfTheTurn(t *testing.T) {
	armed := false
	l := open(t, "store", engine.Options{NoPurge: true, Now: func() time.Time {
		if armed {
			armed = false
			panic("no clock")
		}
		return epoch
	}})
	rate := limit.PerDay(10)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("Do did not panic")
			}
		}()
		armed = true
		l.Do([]engine.Op{{Key: []byte("a"), Rate: rate, N: 1}}, nil)
	}()
	if !l.TurnsFree() {
		t.Fatal("a turn is still held")
	}
	if d, err := l.Throttle([]byte("a"), rate, 1); !d.Allowed || err != nil {
		t.Errorf("Throttle = %+v, %v behind the panic", d, err)
	}
}

// TestInstantsOfAPipeline has a clock that goes on by a millisecond with each reading.
// Charges and refunds in a row on one key are made at one instant, as many of them as
// a turn is held for; those on other keys, also of the same shard, are not.
func TestInstantsOfAPipeline(t *testing.T) {
	var readings atomic.Int64
	l := open(t, "store", engine.Options{Durability: engine.Never, SyncInterval: time.Hour, NoPurge: true, Now: func() time.Time {
		return epoch.Add(time.Duration(readings.Add(1)) * time.Millisecond)
	}})
	rate := limit.Rate{Burst: 1000, Count: 1, Period: time.Hour}
	neighbour := "f"
	for shard := func(key string) uint16 { return l.Keys().Slice([]byte(key)) >> 10 }; shard(neighbour) != shard("e"); {
		neighbour += "f"
	}
	for _, test := range []struct {
		name  string
		verbs []engine.Verb
		keys  []string
		want  []int // the reading of each, from that of the key's first on
	}{
		{"one key", []engine.Verb{engine.OpThrottle, engine.OpThrottle, engine.OpRefund, engine.OpThrottle}, []string{"a"}, []int{0, 0, 0, 0}},
		{"many times", make([]engine.Verb, 257), []string{"b"}, slices.Concat(make([]int, 128), slices.Repeat([]int{1}, 128), []int{2})},
		{"keys in turn", make([]engine.Verb, 4), []string{"c", "d"}, []int{0, 0, 2, 2}},
		{"keys of a shard in turn", make([]engine.Verb, 4), []string{"e", neighbour}, []int{0, 0, 2, 2}},
		{"a look between", []engine.Verb{engine.OpThrottle, engine.OpProbe, engine.OpThrottle}, []string{"g"}, []int{0, 1, 2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var ops []engine.Op
			for i, v := range test.verbs {
				ops = append(ops, engine.Op{Verb: v, Key: []byte(test.keys[i%len(test.keys)]), Rate: rate, N: 1})
			}
			hits := l.Metrics().CacheHits
			charged := map[string]int{}
			for i, r := range l.Do(ops, nil) {
				key, n := string(ops[i].Key), 1
				switch ops[i].Verb {
				case engine.OpThrottle:
					charged[key]++
					n = 0
				case engine.OpRefund:
					charged[key]--
					n = 0
				}
				since := time.Duration(charged[key]+n)*rate.Period - r.Decision.ResetAfter
				if want := time.Duration(test.want[i]) * time.Millisecond; r.Err != nil || since != want {
					t.Errorf("operation %d is made %v after the first on its key, %v, want %v", i, since, r.Err, want)
				}
			}
			hits = l.Metrics().CacheHits - hits
			want := 0
			for _, v := range test.verbs {
				if v != engine.OpProbe {
					want++
				}
			}
			if want -= len(test.keys); int(hits) != want {
				t.Errorf("%d operations found their key in the cache, want %d", hits, want)
			}
		})
	}
}
