package engine_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
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
		good := limit.PerDay(10)
		charge(t, l, 0, 1, good)

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
			{engine.Op{Verb: engine.OpReset + 1, Key: nth(0)}, engine.ErrInvalidVerb},
			{engine.Op{Verb: math.MaxUint8, Key: nth(0)}, engine.ErrInvalidVerb},
		}
		for _, verb := range []engine.Verb{engine.OpThrottle, engine.OpProbe, engine.OpStat, engine.OpReset} {
			for _, key := range [][]byte{nil, {}, long} {
				wrongs = append(wrongs, wrong{engine.Op{Verb: verb, Key: key, Rate: good, N: 1}, engine.ErrInvalidKey})
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
				if !errors.Is(got.Err, w.want) || got.Decision != (limit.Decision{}) || got.Stat != (engine.Stat{}) {
					t.Errorf("%+.40v = %+v, want %v and nothing else", w.op, got, w.want)
				}
				if w.op.Verb != engine.OpProbe && w.op.Verb != engine.OpStat {
					continue
				}
				err := l.View(func(v *engine.View) (err error) {
					if w.op.Verb == engine.OpProbe {
						_, err = v.Probe(w.op.Key, w.op.Rate, w.op.N)
					} else {
						_, err = v.Stat(w.op.Key)
					}
					return err
				})
				if !errors.Is(err, w.want) {
					t.Errorf("in a View: %+.40v: %v, want %v", w.op, err, w.want)
				}
			}
		})
		if d, err := l.Probe(nth(0), good, 0); d.Remaining != 9 || err != nil {
			t.Errorf("Probe = %+v, %v, want 9 remaining", d, err)
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
			minute := engine.Stat{Kind: limit.GCRA, Deadline: epoch.Add(time.Minute), TTL: time.Minute}
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
