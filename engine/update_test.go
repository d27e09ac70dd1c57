package engine_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// openApp opens the store of an application, and a limiter in it. When the test
// ends both are closed, the limiter as open closes it.
func openApp(t testing.TB, fs vfs.FS, opts engine.Options) (*pebble.DB, *engine.Limiter) {
	t.Helper()
	db, err := pebble.Open("app", &pebble.Options{FS: fs, Logger: quiet{}, FormatMajorVersion: pebble.FormatNewest})
	if err != nil {
		t.Fatal(err)
	}
	opts.Prefix = []byte("limits/")
	l, err := engine.New(db, &opts)
	if err != nil {
		t.Fatal(errors.Join(err, db.Close()))
	}
	t.Cleanup(func() {
		closeChecked(t, l)
		if err := db.Close(); err != nil && l.Failure() == nil {
			t.Errorf("close the store: %v", err)
		}
	})
	return db, l
}

// rowsOf returns what is in db and belongs to no limiter.
func rowsOf(t testing.TB, db pebble.Reader) map[string]string {
	t.Helper()
	rows := contents(t, db)
	maps.DeleteFunc(rows, func(key, _ string) bool { return strings.HasPrefix(key, "limits/") })
	return rows
}

// endings are the ways in which the function of a transaction can end that is not
// to be carried out. Each calls Update with fn, which it has end so.
var endings = []struct {
	name string
	end  func(t *testing.T, l *engine.Limiter, fn func(*engine.Tx))
}{
	{"an error", func(t *testing.T, l *engine.Limiter, fn func(*engine.Tx)) {
		enough := errors.New("enough")
		err := l.Update(func(tx *engine.Tx) error {
			fn(tx)
			return enough
		})
		if err != enough {
			t.Errorf("Update = %v, want the error of its function", err)
		}
	}},
	{"a panic", func(t *testing.T, l *engine.Limiter, fn func(*engine.Tx)) {
		defer func() {
			if r := recover(); r != "enough" {
				t.Errorf("Update panics with %v, want what its function has", r)
			}
		}()
		_ = l.Update(func(tx *engine.Tx) error {
			fn(tx)
			panic("enough")
		})
	}},
	{"the end of its goroutine", func(t *testing.T, l *engine.Limiter, fn func(*engine.Tx)) {
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = l.Update(func(tx *engine.Tx) error {
				fn(tx)
				runtime.Goexit()
				return nil
			})
			t.Error("Update returns to a goroutine that has ended")
		})
		wg.Wait()
	}},
}

// TestUpdateModel carries out traces in transactions, some of which are aborted
// first. All are to answer as the model does, and of those that were aborted
// nothing is left, in the store to the byte, in the caches and in the sidecars.
func TestUpdateModel(t *testing.T) {
	seed := newSeed(t)
	seen := map[string]int{}
	steps := 200
	if testing.Short() {
		steps = 20
	}
	for _, d := range durabilities {
		for _, cacheSize := range []int64{0, 1} {
			for _, purge := range []bool{false, true} {
				t.Run(fmt.Sprintf("%v cache %d purge %t", d, cacheSize, purge), func(t *testing.T) {
					seed++
					u := &updateModel{t: t, trace: newTrace(seed), purge: purge}
					u.l = open(t, "store", engine.Options{
						Durability: d, SyncInterval: time.Millisecond, CacheSize: cacheSize,
						NoPurge: !purge, PurgeWait: 1, Now: u.clock.Now,
					})
					u.run(steps)
					for name, n := range u.seen {
						seen[name] += n
					}
				})
			}
		}
	}
	for _, name := range []string{"accepted", "replay", "quota denied", "quota refund", "list denied", "long list", "verb 13 passes", "verb 13 denies", "aborted"} {
		if seen[name] < 5 && !testing.Short() {
			t.Errorf("%q came up %d times in %v, want 5 or more", name, seen[name], seen)
		}
	}
}

type updateModel struct {
	*trace
	t     *testing.T
	l     *engine.Limiter
	purge bool // goes on all the time
}

func (u *updateModel) run(steps int) {
	one := func(op engine.Op) { u.update(op) }
	for range steps {
		u.l.Now() // or what it hasn't seen of the wall, before that goes back, it can't know
		u.tick()
		switch u.rng.IntN(40) {
		case 0:
			u.burst(one)
		case 1:
			u.rush(one)
		case 2:
			flush(u.t, u.l)
		case 3:
			must(u.t, u.l.Check)
		case 4:
			op := u.op()
			checkResult(u.t, op, u.l.Do([]engine.Op{op}, nil)[0], u.do(op))
		}
		var ops []engine.Op
		for range 1 + u.rng.IntN(8) {
			if u.rng.IntN(4) == 0 {
				ops = append(ops, u.group()...)
			} else {
				ops = append(ops, u.op())
			}
		}
		u.update(ops...)
		if u.t.Failed() {
			return
		}
	}
}

// update carries out ops in a transaction. At times one that is aborted has done
// so before.
func (u *updateModel) update(ops ...engine.Op) {
	u.t.Helper()
	if u.rng.IntN(3) == 0 && (len(ops) > 1 || u.rng.IntN(6) == 0) {
		u.abort(ops...)
	}
	runs := 0
	err := u.l.Update(func(tx *engine.Tx) error {
		runs++
		u.carryOut(tx, ops...)
		return nil
	})
	if err != nil || runs != 1 {
		u.t.Fatalf("Update = %v after its function has run %d times, want no error, and once", err, runs)
	}
}

// carryOut carries out ops in tx. The clock that goes on meanwhile is not tx's.
func (u *updateModel) carryOut(tx *engine.Tx, ops ...engine.Op) {
	u.t.Helper()
	want := u.model.carryOut(ops...)
	now := u.now
	if u.rng.IntN(4) == 0 {
		u.advance(time.Duration(u.rng.Int64N(int64(time.Second))))
	}
	for i, got := range tx.Do(ops, nil) {
		checkResult(u.t, ops[i], got, want[i])
	}
	if got := tx.Now().UnixNano(); got != now {
		u.t.Errorf("the transaction is at %d, want %d", got, now)
	}
}

func (u *updateModel) abort(ops ...engine.Op) {
	u.t.Helper()
	must(u.t, u.l.Sync)
	before, saved := contents(u.t, u.l.DB()), u.model
	u.model.keys = maps.Clone(saved.keys)
	endings[u.rng.IntN(len(endings))].end(u.t, u.l, func(tx *engine.Tx) { u.carryOut(tx, ops...) })
	u.keys, u.mark = saved.keys, saved.mark
	u.seen["aborted"]++
	if !u.purge {
		must(u.t, u.l.Sync)
		if after := contents(u.t, u.l.DB()); !maps.Equal(after, before) {
			u.t.Fatalf("a transaction that was aborted has left %q of %q", after, before)
		}
	}
	if u.rng.IntN(8) == 0 {
		must(u.t, u.l.Check)
	}
	for n := range traceKeys {
		looks := append(looksAt(n),
			engine.Op{Verb: engine.OpThrottle, Key: keyOf(n), Rate: traceRates[n%7]}, // of nothing, on what is cached
			engine.Op{Verb: engine.OpIncrement, Key: keyOf(n), Rolling: traceLists[n%7]})
		for i, got := range u.l.Do(looks, nil) {
			checkResult(u.t, looks[i], got, u.do(looks[i]))
		}
	}
}

// TestUpdateAborted aborts transactions that have changed all that there is, and
// has their operations carried out afterwards, as if they were new.
func TestUpdateAborted(t *testing.T) {
	for _, ending := range endings {
		for _, cacheSize := range []int64{0, 1} {
			t.Run(fmt.Sprintf("%s cache %d", ending.name, cacheSize), func(t *testing.T) {
				clock := newManualClock(epoch)
				fs := vfs.NewMem()
				db, l := openApp(t, fs, engine.Options{Now: clock.Now, CacheSize: cacheSize, NoPurge: true})
				quota, list := []byte("quota"), []byte("list")
				must(t, throttle(l, "rate", 3), throttle(l, "forgotten", 4))
				take(t, l, quota, 0, 300)
				record(t, l, clock, list, 3*limit.MaxRuns)
				must(t, l.Sync, func() error { return db.Set([]byte("row"), []byte("old"), pebble.Sync) })
				before := contents(t, db)
				everything := func(tx *engine.Tx) (results []engine.Result) {
					ops := []engine.Op{
						{Verb: engine.OpThrottle, Key: []byte("rate"), Rate: bucket(10), N: 2},
						{Verb: engine.OpThrottle, Key: []byte("new"), Rate: bucket(10), N: 2},
						{Verb: engine.OpRefund, Key: []byte("rate"), Rate: bucket(10), N: 1},
						{Verb: engine.OpReset, Key: []byte("forgotten")},
						{Verb: engine.OpRefundQuota, Key: quota, ID: "0"},
						{Verb: engine.OpReset, Key: quota},
						{Verb: engine.OpTakeQuota, Key: quota, ID: "1", Quota: limit.Quota{Limit: 1000, Window: time.Hour}, N: 7},
						{Verb: engine.OpAllow, Key: list, Rolling: limit.Rolling{Limit: 1000, Window: time.Microsecond}},
						{Verb: engine.OpReset, Key: list},
						{Verb: engine.OpThrottle, Key: list, Rate: bucket(10), N: 1},
					}
					ops = append(ops, allOf(rated("one", 1), rated("new", 1), rated("rate", 1))...)
					return tx.Do(ops, nil)
				}
				var first []engine.Result
				ending.end(t, l, func(tx *engine.Tx) {
					first = everything(tx)
					b := tx.Batch()
					_ = b.Set([]byte("row"), []byte("new"), nil)
					_ = b.DeleteRange([]byte("a"), []byte("b"), nil)
				})
				for _, id := range []string{"0", "1", "299"} {
					g, err := l.TakeQuota(quota, id, limit.Quota{Limit: 1000, Window: time.Hour}, 1)
					if !g.Replay || err != nil {
						t.Errorf("TakeQuota(%q) = %+v, %v, want the answer of before", id, g, err)
					}
				}
				must(t, l.Sync)
				if after := contents(t, db); !maps.Equal(after, before) {
					t.Errorf("the store has %q, and had %q", after, before)
				}
				must(t, l.Check)
				err := l.Update(func(tx *engine.Tx) error {
					for i, r := range everything(tx) {
						if !sameAnswer(r, first[i]) || r.Err != nil || first[i].Err != nil {
							t.Errorf("operation %d = %+v, and was %+v when it was aborted", i, r, first[i])
						}
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestUpdateLooks: what looks in a transaction changes nothing.
func TestUpdateLooks(t *testing.T) {
	l := open(t, "store", engine.Options{Now: func() time.Time { return epoch }})
	charge := engine.Charge{Key: []byte("k"), Rate: bucket(10), N: 3}
	before := contents(t, l.DB())
	err := l.Update(func(tx *engine.Tx) error {
		for range 2 {
			for _, probe := range []func(...engine.Charge) (limit.Decisions, error){tx.ProbeAll, tx.ProbeEach} {
				ds, err := probe(charge, charge)
				if err != nil || ds[0].Remaining != 7 || ds[1].Remaining != 4 {
					t.Errorf("a probe of several = %+v, %v, want 7 and 4 left", ds, err)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if after := contents(t, l.DB()); !maps.Equal(after, before) {
		t.Errorf("the store has %q, and had %q", after, before)
	}
}

// TestUpdateMethods: the methods of a transaction are its operations.
func TestUpdateMethods(t *testing.T) {
	l := open(t, "store", engine.Options{Now: func() time.Time { return epoch }})
	key, quota, list := []byte("key"), []byte("quota"), []byte("list")
	q, w := limit.Quota{Limit: 9, Window: time.Hour}, limit.Rolling{Limit: 2, Window: time.Hour}
	charge := engine.Charge{Key: key, Rate: bucket(10), N: 1}
	err := l.Update(func(tx *engine.Tx) error {
		want := func(name string, want int64) func(got int64, err error) {
			return func(got int64, err error) {
				t.Helper()
				if got != want || err != nil {
					t.Errorf("%s = %d, %v, want %d", name, got, err, want)
				}
			}
		}
		left := func(d limit.Decision, err error) (int64, error) { return d.Remaining, err }
		last := func(ds limit.Decisions, err error) (int64, error) { return ds[len(ds)-1].Remaining, err }
		used := func(g limit.Grant, err error) (int64, error) { return g.Used, err }
		want("Throttle", 7)(left(tx.Throttle(key, bucket(10), 3)))
		want("Probe", 6)(left(tx.Probe(key, bucket(10), 1)))
		want("Refund", 9)(left(tx.Refund(key, bucket(10), 2)))
		want("ThrottleAll", 7)(last(tx.ThrottleAll(charge, charge)))
		want("ThrottleEach", 5)(last(tx.ThrottleEach(charge, charge)))
		want("ProbeAll", 3)(last(tx.ProbeAll(charge, charge)))
		want("ProbeEach", 3)(last(tx.ProbeEach(charge, charge)))
		want("TakeQuota", 4)(used(tx.TakeQuota(quota, "a", q, 4)))
		want("ProbeQuota", 6)(used(tx.ProbeQuota(quota, "b", q, 2)))
		u, err := tx.Quota(quota)
		want("Quota", 4)(u.Used, err)
		f, err := tx.RefundQuota(quota, "a")
		want("RefundQuota", 4)(f.Cost, err)
		a, err := tx.Allow(list, w)
		want("Allow", 1)(a.Count, err)
		want("Increment", 3)(tx.Increment(list, w, 2))
		want("Peek", 2)(tx.Peek(list, w))
		d, err := tx.Wait(list, w)
		want("Wait", int64(time.Hour))(int64(d), err)
		s, err := tx.Stat(list)
		want("Stat", int64(limit.KindRolling))(int64(s.Kind), err)
		if found, err := tx.Reset(list); !found || err != nil {
			t.Errorf("Reset = %t, %v, want true", found, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if d, err := l.Probe(key, bucket(10), 0); d.Remaining != 5 || err != nil {
		t.Errorf("Probe = %+v, %v, want 5 left", d, err)
	}
}

// TestUpdateErrors: an error of an operation has changed nothing, and does not end
// the transaction.
func TestUpdateErrors(t *testing.T) {
	l := open(t, "store", engine.Options{Now: func() time.Time { return epoch }})
	key := []byte("key")
	var kept *engine.Tx
	err := l.Update(func(tx *engine.Tx) error {
		kept = tx
		if _, err := tx.Throttle(key, bucket(10), 1); err != nil {
			return err
		}
		for _, test := range []struct {
			op   engine.Op
			want error
		}{
			{engine.Op{Verb: engine.OpAllow, Key: key, Rolling: limit.Rolling{Limit: 1, Window: 1}}, engine.ErrWrongKind},
			{engine.Op{Verb: engine.OpRefundQuota, Key: key, ID: "id"}, engine.ErrWrongKind},
			{engine.Op{Key: key}, limit.ErrInvalid},
			{engine.Op{Rate: bucket(10), N: 1}, engine.ErrInvalidKey},
			{engine.Op{Verb: 200, Key: key}, engine.ErrInvalidVerb},
			{engine.Op{Verb: engine.OpThrottleAll, Key: key, Rate: bucket(10), N: 1, With: 1}, limit.ErrInvalid},
		} {
			if r := tx.Do([]engine.Op{test.op}, nil)[0]; !errors.Is(r.Err, test.want) {
				t.Errorf("%+v = %+v, want %v", test.op, r, test.want)
			}
		}
		if _, err := tx.ThrottleAll(); !errors.Is(err, limit.ErrInvalid) {
			t.Errorf("ThrottleAll() = %v, want %v", err, limit.ErrInvalid)
		}
		d, err := tx.Throttle(key, bucket(10), 10)
		if d.Allowed || err != nil {
			t.Errorf("Throttle = %+v, %v, want a denial", d, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	if d, err := l.Probe(key, bucket(10), 0); d.Remaining != 9 || err != nil {
		t.Errorf("Probe = %+v, %v, want 9 left", d, err)
	}
	for name, call := range map[string]func() error{
		"Throttle":    func() error { _, err := kept.Throttle(key, bucket(10), 1); return err },
		"Probe":       func() error { _, err := kept.Probe(key, bucket(10), 1); return err },
		"ThrottleAll": func() error { _, err := kept.ThrottleAll(engine.Charge{Key: key, Rate: bucket(10), N: 1}); return err },
		"Do":          func() error { return kept.Do([]engine.Op{{Verb: engine.OpReset, Key: key}}, nil)[0].Err },
	} {
		if err := call(); err != engine.ErrTxOver {
			t.Errorf("%s of a transaction that is over = %v, want %v", name, err, engine.ErrTxOver)
		}
	}
	must(t, l.Close)
	if err := l.Update(func(*engine.Tx) error { return errors.New("it has run") }); err != engine.ErrClosed {
		t.Errorf("Update = %v, want %v", err, engine.ErrClosed)
	}
}

// TestUpdateTooLarge asks more of a transaction than it may hold.
func TestUpdateTooLarge(t *testing.T) {
	l := open(t, "store", engine.Options{Now: func() time.Time { return epoch }})
	ops := slices.Repeat([]engine.Op{{Key: []byte("key"), Rate: bucket(1 << 20), N: 1}}, engine.MaxTxOps)
	for _, more := range []int{0, 1} {
		err := l.Update(func(tx *engine.Tx) error {
			for i, r := range tx.Do(ops, nil) {
				if r.Err != nil {
					t.Fatalf("operation %d: %v", i, r.Err)
				}
			}
			for range more {
				if _, err := tx.Probe([]byte("key"), bucket(10), 1); err != engine.ErrTxTooLarge {
					t.Errorf("Probe = %v, want %v", err, engine.ErrTxTooLarge)
				}
			}
			return nil // it need not mind
		})
		if want := []error{nil, engine.ErrTxTooLarge}[more]; err != want {
			t.Errorf("Update of %d operations = %v, want %v", len(ops)+more, err, want)
		}
		if d, err := l.Probe([]byte("key"), bucket(1<<20), 0); d.Remaining != 1<<20-engine.MaxTxOps || err != nil {
			t.Errorf("Probe = %+v, %v, want %d used", d, err, engine.MaxTxOps)
		}
	}
}

// TestUpdateBatch reads and writes rows of an application, among which there are
// limits.
func TestUpdateBatch(t *testing.T) {
	fs := vfs.NewCrashableMem()
	db, l := openApp(t, fs, engine.Options{Now: tickingClock()})
	for _, key := range []string{"a", "b", "c", "d", "e"} {
		must(t, func() error { return db.Set([]byte(key), []byte("old"), pebble.NoSync) })
	}
	want := map[string]string{"a": "new", "e": "older"}
	rows := 64 // of 1 MiB
	if testing.Short() {
		rows = 8
	}
	for i := range rows {
		big := make([]byte, 1<<20)
		rand.NewChaCha8([32]byte{byte(i)}).Read(big)
		want[string(nth(i))] = string(big)
	}
	err := l.Update(func(tx *engine.Tx) error {
		if _, err := tx.Throttle([]byte("k"), bucket(10), 4); err != nil {
			return err
		}
		b := tx.Batch()
		must(t,
			func() error { return b.Set([]byte("a"), []byte("new"), nil) },
			func() error { return b.Delete([]byte("b"), nil) },
			func() error { return b.SingleDelete([]byte("c"), nil) },
			func() error { return b.DeleteRange([]byte("d"), []byte("da"), nil) },
			func() error { return b.Merge([]byte("e"), []byte("er"), nil) },
			func() error { return b.LogData([]byte("limits/ in a log record are nobody's key"), nil) },
			func() error { return b.RangeKeySet([]byte("r"), []byte("s"), nil, []byte("v"), nil) },
			func() error { return b.RangeKeyUnset([]byte("r"), []byte("ra"), nil, nil) },
			func() error { return b.RangeKeyDelete([]byte("rb"), []byte("rc"), nil) },
			func() error { return b.DeleteSized([]byte("gone"), 10, nil) },
		)
		for key, value := range want {
			if len(value) > 1000 {
				must(t, func() error { return b.Set([]byte(key), []byte(value), nil) })
			}
		}
		if tx.Batch() != b {
			t.Error("Batch returns another")
		}
		if got := rowsOf(t, b); !maps.Equal(got, want) {
			t.Errorf("the batch reads %d rows, want %d", len(got), len(want))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	left, l2 := openApp(t, fs.CrashClone(vfs.CrashCloneCfg{}), engine.Options{Now: tickingClock()})
	for name, db := range map[string]*pebble.DB{"the store": db, "what a power cut leaves": left} {
		if got := rowsOf(t, db); !maps.Equal(got, want) {
			t.Errorf("%s has %d rows, want %d", name, len(got), len(want))
		}
	}
	for _, l := range []*engine.Limiter{l, l2} {
		if d, err := l.Probe([]byte("k"), bucket(10), 0); d.Remaining != 6 || err != nil {
			t.Errorf("Probe = %+v, %v, want 6 left", d, err)
		}
	}
}

// TestUpdateReserved puts into the batch of a transaction what lies in the keys of
// limiters, and right beside them.
func TestUpdateReserved(t *testing.T) {
	db, l := openApp(t, vfs.NewMem(), engine.Options{Now: tickingClock()})
	other, err := engine.New(db, &engine.Options{Prefix: []byte("x\xff"), Now: tickingClock()})
	if err != nil {
		t.Fatal(err)
	}
	defer closeChecked(t, other)
	must(t, throttle(l, "k", 1), throttle(other, "k", 1))
	type points struct {
		key string
		ok  bool
	}
	for _, p := range []points{
		{"limits", true}, {"limits.\xff\xff", true}, {"limits/", false}, {"limits/h", false}, {"limits/\xff\xff\xff", false}, {"limits0", true},
		{"x\xfe\xff", true}, {"x\xff", false}, {"x\xff\xff", false}, {"y", true}, {"", true}, {"\xff\xff", true},
	} {
		key := []byte(p.key)
		for name, write := range map[string]func(b *pebble.Batch) error{
			"Set":          func(b *pebble.Batch) error { return b.Set(key, nil, nil) },
			"Delete":       func(b *pebble.Batch) error { return b.Delete(key, nil) },
			"SingleDelete": func(b *pebble.Batch) error { return b.SingleDelete(key, nil) },
			"DeleteSized":  func(b *pebble.Batch) error { return b.DeleteSized(key, 1, nil) },
			"Merge":        func(b *pebble.Batch) error { return b.Merge(key, nil, nil) },
		} {
			checkReserved(t, l, fmt.Sprintf("%s(%q)", name, key), write, p.ok)
		}
	}
	for _, r := range []struct {
		start, end string
		ok         bool
	}{
		{"a", "limits", true}, {"a", "limits/", true}, {"a", "limits/\x00", false}, {"a", "m", false}, {"a", "z", false},
		{"limits/", "limits/h", false}, {"limits/q", "limits0", false}, {"limits/\xff\xff", "m", false}, {"limits0", "m", true},
		{"m", "x\xff", true}, {"m", "x\xff\x00", false}, {"x\xff\xff\xff", "y", false}, {"y", "z", true}, {"limits0", "x\xff", true},
	} {
		start, end := []byte(r.start), []byte(r.end)
		for name, write := range map[string]func(b *pebble.Batch) error{
			"DeleteRange":    func(b *pebble.Batch) error { return b.DeleteRange(start, end, nil) },
			"RangeKeySet":    func(b *pebble.Batch) error { return b.RangeKeySet(start, end, nil, []byte("v"), nil) },
			"RangeKeyUnset":  func(b *pebble.Batch) error { return b.RangeKeyUnset(start, end, nil, nil) },
			"RangeKeyDelete": func(b *pebble.Batch) error { return b.RangeKeyDelete(start, end, nil) },
		} {
			checkReserved(t, l, fmt.Sprintf("%s(%q, %q)", name, start, end), write, r.ok)
		}
	}

	own := open(t, "store", engine.Options{Now: tickingClock()})
	checkReserved(t, own, "Set in a store of the limiter's own", func(b *pebble.Batch) error { return b.Set([]byte("a"), nil, nil) }, false)
}

// checkReserved has a transaction charge, and write, and holds what comes of it
// against whether it may.
func checkReserved(t *testing.T, l *engine.Limiter, what string, write func(*pebble.Batch) error, ok bool) {
	t.Helper()
	must(t, l.Sync)
	before := contents(t, l.DB())
	err := l.Update(func(tx *engine.Tx) error {
		// What is refused may come last, or among others.
		b := tx.Batch()
		_ = b.LogData([]byte("limits/"), nil)
		if err := write(b); err != nil {
			return err
		}
		_ = b.LogData([]byte("more"), nil)
		_, err := tx.Throttle([]byte("charged"), bucket(1<<20), 1)
		return err
	})
	must(t, l.Sync)
	after := contents(t, l.DB())
	switch {
	case ok && (err != nil || maps.Equal(after, before)):
		t.Errorf("Update with %s = %v, want no error, and it written", what, err)
	case !ok && !errors.Is(err, engine.ErrReservedKey):
		t.Errorf("Update with %s = %v, want %v", what, err, engine.ErrReservedKey)
	case !ok && !maps.Equal(after, before):
		t.Errorf("Update with %s, which was refused, has changed the store", what)
	}
}

// TestUpdateCommitted has the function of a transaction commit the batch itself,
// one that fits into a memtable and one that does not, and close it as one does.
func TestUpdateCommitted(t *testing.T) {
	for _, size := range []int{0, 8 << 20} {
		for _, closed := range []bool{false, true} {
			db, l := openApp(t, vfs.NewMem(), engine.Options{Now: tickingClock()})
			err := l.Update(func(tx *engine.Tx) error {
				if _, err := tx.Throttle([]byte("k"), bucket(10), 4); err != nil {
					return err
				}
				b := tx.Batch()
				if closed {
					defer b.Close()
				}
				_ = b.Set([]byte("row"), make([]byte, size), nil)
				return b.Commit(pebble.Sync)
			})
			if err != engine.ErrTxCommitted {
				t.Errorf("Update = %v, want %v", err, engine.ErrTxCommitted)
			}
			if d, err := l.Probe([]byte("k"), bucket(10), 0); d.Remaining != 10 || err != nil {
				t.Errorf("Probe = %+v, %v, want nothing charged", d, err)
			}
			if rows := rowsOf(t, db); len(rows) != 1 {
				t.Errorf("the store has %d rows, want the one that was committed", len(rows))
			}
		}
	}
}

// TestUpdateCommitsNothing has the function commit the batch before there is
// anything in it, which is no harm.
func TestUpdateCommitsNothing(t *testing.T) {
	_, l := openApp(t, vfs.NewMem(), engine.Options{Now: tickingClock()})
	for range 2 {
		err := l.Update(func(tx *engine.Tx) error {
			_, err := tx.Throttle([]byte("k"), bucket(10), 2)
			return errors.Join(err, tx.Batch().Commit(pebble.Sync))
		})
		if err != nil {
			t.Errorf("Update = %v", err)
		}
	}
	if d, err := l.Probe([]byte("k"), bucket(10), 0); d.Remaining != 6 || err != nil {
		t.Errorf("Probe = %+v, %v, want 4 charged", d, err)
	}
}

// TestUpdateClosed has functions close the batch, as one does with batches, and
// others draw batches from Pebble's pool meanwhile.
func TestUpdateClosed(t *testing.T) {
	db, l := openApp(t, vfs.NewMem(), engine.Options{Now: tickingClock()})
	const n = 50
	for i := range n {
		var drawn []*pebble.Batch
		err := l.Update(func(tx *engine.Tx) error {
			b := tx.Batch()
			defer func() {
				b.Close()
				for range 8 {
					other := db.NewIndexedBatch()
					_ = other.Set([]byte("another's"), nil, nil)
					drawn = append(drawn, other)
				}
			}()
			if _, err := tx.Throttle([]byte("k"), bucket(1<<20), 1); err != nil {
				return err
			}
			return b.Set(fmt.Appendf(nil, "row-%d", i), nil, nil)
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, other := range drawn {
			if count := other.Count(); count != 1 {
				t.Fatalf("somebody else's batch has %d records, want its own", count)
			}
			other.Close()
		}
	}
	rows := rowsOf(t, db)
	if d, err := l.Probe([]byte("k"), bucket(1<<20), 0); d.Remaining != 1<<20-n || len(rows) != n || err != nil {
		t.Errorf("%d rows and %d charges, %v, want %d of each", len(rows), 1<<20-d.Remaining, err, n)
	}
}

// TestUpdateBringsItsMark writes a row, and nothing else, in a transaction that has
// looked at the clock. What the row says of the time is not after what the clock
// says when the wall has gone back.
func TestUpdateBringsItsMark(t *testing.T) {
	for _, end := range []string{"a power cut", "Close"} {
		t.Run(end, func(t *testing.T) {
			clock, fs := newManualClock(epoch), vfs.NewCrashableMem()
			_, l := openApp(t, fs, engine.Options{Now: clock.Now, NoPurge: true})
			must(t, throttle(l, "k", 1))
			clock.Advance(time.Minute)
			err := l.Update(func(tx *engine.Tx) error { return tx.Batch().Set([]byte("row"), nil, nil) })
			if err != nil {
				t.Fatal(err)
			}
			if end == "Close" {
				must(t, l.Close)
			}
			_, l = openApp(t, fs.CrashClone(vfs.CrashCloneCfg{}), engine.Options{Now: func() time.Time { return epoch }})
			if got, want := l.Now(), clock.Now(); got.Before(want) {
				t.Errorf("the clock is %v behind the transaction", want.Sub(got))
			}
		})
	}
}

// TestUpdateWaitsForTheDisk holds a charge back between becoming visible and
// becoming durable. No transaction that rests on it ends meanwhile, be it carried
// out or aborted; one that rests on nothing that is not on disk does, also where
// it has staged what is never going to be.
func TestUpdateWaitsForTheDisk(t *testing.T) {
	aborted := errors.New("aborted")
	key := []byte("k")
	deny := func(tx *engine.Tx) error { _, err := tx.Throttle(key, bucket(10), 10); return err }
	waiting := map[string]struct {
		fn   func(*engine.Tx) error
		want error
	}{
		"denial":          {deny, nil},
		"denial, aborted": {func(tx *engine.Tx) error { _ = deny(tx); return aborted }, aborted},
		"probe, aborted": {func(tx *engine.Tx) error {
			_, _ = tx.Probe(key, bucket(10), 1)
			return aborted
		}, aborted},
		"charge, aborted": {func(tx *engine.Tx) error {
			_, _ = tx.Throttle(key, bucket(10), 1)
			return aborted
		}, aborted},
		"denial after a charge, aborted": {func(tx *engine.Tx) error {
			_, _ = tx.Throttle(key, bucket(10), 1)
			_ = deny(tx)
			return aborted
		}, aborted},
		"several, aborted": {func(tx *engine.Tx) error {
			_, _ = tx.ThrottleAll(engine.Charge{Key: key, Rate: bucket(10), N: 1}, engine.Charge{Key: []byte("idle"), Rate: bucket(10), N: 1})
			return aborted
		}, aborted},
		"charge of another key": {func(tx *engine.Tx) error { _, err := tx.Throttle([]byte("other"), bucket(10), 1); return err }, nil},
		"absent key, aborted":   {func(tx *engine.Tx) error { _, _ = tx.Stat([]byte("absent")); return aborted }, aborted},
		"denial on an idle key": {func(tx *engine.Tx) error { _, err := tx.Throttle([]byte("idle"), bucket(10), 1); return err }, nil},
		"a refused row":         {func(tx *engine.Tx) error { return tx.Batch().Set([]byte("row"), nil, nil) }, engine.ErrReservedKey},
		// The function may have read what nobody knows of.
		"nothing, aborted": {func(tx *engine.Tx) error { return aborted }, aborted},
		"an empty batch":   {func(tx *engine.Tx) error { tx.Batch(); return nil }, nil},
	}
	for name, test := range waiting {
		t.Run(name, func(t *testing.T) {
			inBubble(t, engine.Options{Now: tickingClock(), NoPurge: true}, func(t *testing.T, l *engine.Limiter, d *slowDisk) {
				must(t, throttle(l, "k", 1), throttle(l, "idle", 10))
				d.hold()
				var p pending
				p.start("charge", throttle(l, "k", 2))
				p.start(name, func() error { return l.Update(test.fn) })
				p.want(t, "charge", name)
				d.release()
				p.calls.Wait()
				if got := p.returned[name]; !errors.Is(got, test.want) {
					t.Errorf("Update = %v, want %v", got, test.want)
				}
			})
		})
	}
	// Where nothing is on its way nobody is to wait for a round that does not come.
	for name, test := range waiting {
		t.Run(name+", alone", func(t *testing.T) {
			inBubble(t, engine.Options{Now: tickingClock(), NoPurge: true}, func(t *testing.T, l *engine.Limiter, d *slowDisk) {
				must(t, throttle(l, "k", 1), throttle(l, "idle", 10))
				var p pending
				p.start(name, func() error { return l.Update(test.fn) })
				p.want(t)
			})
		})
	}
}

// TestUpdateDurability: under each durability the rows and decisions of a
// transaction are there when it returns, and on disk together, when that promises
// it.
func TestUpdateDurability(t *testing.T) {
	for _, durability := range durabilities {
		t.Run(durability.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fs := vfs.NewCrashableMem()
				db, l := openApp(t, fs, engine.Options{Durability: durability, SyncInterval: 10 * time.Millisecond, Now: tickingClock(), NoPurge: true})
				onDisk := func(want int) {
					t.Helper()
					db, l := openApp(t, fs.CrashClone(vfs.CrashCloneCfg{}), engine.Options{Now: tickingClock(), NoPurge: true})
					d, err := l.Probe([]byte("k"), bucket(10), 0)
					if err != nil || int(d.Remaining) != 10-want || len(rowsOf(t, db)) != want {
						t.Errorf("%d left, %v, and %q on disk, want %d of each", d.Remaining, err, rowsOf(t, db), want)
					}
				}
				for i := range 3 {
					err := l.Update(func(tx *engine.Tx) error {
						_, err := tx.Throttle([]byte("k"), bucket(10), 1)
						return errors.Join(err, tx.Batch().Set(nth(i), nil, nil))
					})
					if err != nil {
						t.Fatal(err)
					}
					if s, err := l.Stat([]byte("k")); usedOf(s) != int64(i+1) || len(rowsOf(t, db)) != i+1 || err != nil {
						t.Errorf("%d used, %v, and %q, want %d of each", usedOf(s), err, rowsOf(t, db), i+1)
					}
					if durability == engine.Always {
						onDisk(i + 1)
					}
				}
				switch durability {
				case engine.Interval:
					time.Sleep(time.Second)
				case engine.Never:
					time.Sleep(time.Second)
					onDisk(0)
					must(t, l.Sync)
				}
				onDisk(3)
			})
		})
	}
}

// TestUpdateFault has the log fail under transactions. They say so, nothing is
// answered from then on, and what is on disk is all or nothing of each. (Without
// syncs Pebble panics behind a log that has failed.)
func TestUpdateFault(t *testing.T) {
	checkLeaks(t)
	for name, match := range map[string]func(errorfs.Op) bool{"write": on("*.log", writes...), "sync": on("*.log", syncs...)} {
		t.Run(name, func(t *testing.T) {
			f := &fault{match: match, n: 5, err: syscall.EIO, sticky: true}
			fs := vfs.NewCrashableMem()
			db, err := pebble.Open("app", &pebble.Options{FS: newHookFS(fs, f.inject), Logger: new(recorder)})
			if err != nil {
				t.Fatal(err)
			}
			l, err := engine.New(db, &engine.Options{Prefix: []byte("limits/"), Now: tickingClock()})
			if err != nil {
				t.Fatal(err)
			}
			f.armed.Store(true)
			acknowledged := 0
			for {
				err := l.Update(func(tx *engine.Tx) error {
					_, err := tx.Throttle([]byte("k"), bucket(1<<20), 1)
					return errors.Join(err, tx.Batch().Set(nth(acknowledged), bytes.Repeat([]byte("v"), 10_000), nil))
				})
				if err != nil {
					if !errors.Is(err, engine.ErrStorage) || !errors.Is(err, syscall.EIO) {
						t.Errorf("Update = %v, want %v that wraps %v", err, engine.ErrStorage, syscall.EIO)
					}
					break
				}
				acknowledged++
			}
			if err := l.Update(func(*engine.Tx) error { t.Error("a transaction runs after the failure"); return nil }); !errors.Is(err, engine.ErrStorage) {
				t.Errorf("Update = %v, want %v", err, engine.ErrStorage)
			}
			if err := l.Close(); !errors.Is(err, engine.ErrStorage) {
				t.Errorf("Close = %v, want %v", err, engine.ErrStorage)
			}
			_ = db.Close()
			for _, percent := range []int{0, 100} {
				db, l := openApp(t, fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(0, 0))}), engine.Options{Now: tickingClock()})
				d, err := l.Probe([]byte("k"), bucket(1<<20), 0)
				used := 1<<20 - int(d.Remaining)
				if rows := len(rowsOf(t, db)); err != nil || used != rows || used < acknowledged || acknowledged == 0 {
					t.Errorf("%d rows and %d used, %v, of %d that were acknowledged", rows, used, err, acknowledged)
				}
			}
		})
	}
}

// TestUpdateBesideOthers has transactions go on, some of them aborted, beside all
// else that there is.
func TestUpdateBesideOthers(t *testing.T) {
	checkLeaks(t)
	for _, durability := range durabilities {
		t.Run(durability.String(), func(t *testing.T) {
			fs := vfs.NewMem()
			clock := newManualClock(epoch)
			db, l := openApp(t, fs, engine.Options{Durability: durability, SyncInterval: time.Millisecond, Now: clock.Now, CacheSize: 1, PurgeWait: 1})
			var charged, others atomic.Int64
			var wg, writers sync.WaitGroup
			stop := make(chan struct{})
			until := func(call func() error) {
				wg.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						if err := call(); err != nil {
							t.Error(err)
							return
						}
						runtime.Gosched()
					}
				})
			}
			until(l.Sync)
			until(func() error { return l.Purge(t.Context()) })
			until(func() error { _, err := l.Scan(0, 10, func([]byte, engine.Stat) {}); return err })
			until(func() error {
				return l.View(func(v *engine.View) error {
					// Both are charged by one transaction, always.
					a, err := v.Stat([]byte("a"))
					b, err2 := v.Stat([]byte("b"))
					if usedOf(a) != usedOf(b) {
						t.Errorf("a has %d used, and b %d", usedOf(a), usedOf(b))
					}
					return errors.Join(err, err2)
				})
			})
			until(func() error {
				others.Add(1)
				_, err := l.Throttle([]byte("other"), bucket(1<<40), 1)
				return err
			})
			until(func() error {
				clock.Advance(1)
				_, err := l.Throttle(nth(int(others.Load())), limit.Rate{Burst: 1, Count: 1, Period: 1}, 1)
				return err
			})
			for w := range 4 {
				writers.Go(func() {
					for i := range 100 {
						abort := i%3 == 0
						err := l.Update(func(tx *engine.Tx) error {
							for _, key := range []string{"a", "b"} {
								if d, err := tx.Throttle([]byte(key), bucket(1<<30), 1); err != nil || !d.Allowed {
									t.Errorf("Throttle = %+v, %v", d, err)
								}
							}
							_ = tx.Batch().Set(fmt.Appendf(nil, "row %d %d", w, i), nil, nil)
							if abort {
								return errors.ErrUnsupported
							}
							charged.Add(1)
							return nil
						})
						if abort != (err == errors.ErrUnsupported) || !abort && err != nil {
							t.Errorf("Update = %v", err)
						}
					}
				})
			}
			writers.Wait()
			close(stop)
			wg.Wait()
			s, err := l.Stat([]byte("a"))
			if n := charged.Load(); usedOf(s) != n || err != nil || len(rowsOf(t, db)) != int(n) {
				t.Errorf("%d used, %v, and %d rows, want %d", usedOf(s), err, len(rowsOf(t, db)), n)
			}
			if o, err := l.Stat([]byte("other")); usedOf(o) != others.Load() || err != nil {
				t.Errorf("%d used, %v, want %d", usedOf(o), err, others.Load())
			}

			// ResetAll takes all of a transaction or nothing, and Close waits for it.
			for range 20 {
				var both sync.WaitGroup
				both.Go(func() {
					if err := l.ResetAll(); err != nil {
						t.Error(err)
					}
				})
				both.Go(func() {
					err := l.Update(func(tx *engine.Tx) error {
						return errors.Join(tx.Do([]engine.Op{rated("a", 1), rated("b", 1)}, nil)[1].Err)
					})
					if err != nil {
						t.Error(err)
					}
				})
				both.Wait()
				a, _ := l.Stat([]byte("a"))
				b, _ := l.Stat([]byte("b"))
				if usedOf(a) != usedOf(b) {
					t.Errorf("a has %d used, and b %d", usedOf(a), usedOf(b))
				}
			}
			must(t, l.Check)
			running, closed := make(chan struct{}), make(chan error)
			ran := make(chan error)
			go func() {
				ran <- l.Update(func(tx *engine.Tx) error {
					close(running)
					for range 100 {
						runtime.Gosched()
					}
					return tx.Do([]engine.Op{rated("last", 1)}, nil)[0].Err
				})
			}()
			<-running
			go func() { closed <- l.Close() }()
			if err := errors.Join(<-ran, <-closed); err != nil {
				t.Error(err)
			}
			l, err = engine.New(db, &engine.Options{Prefix: []byte("limits/"), Now: clock.Now})
			if err != nil {
				t.Fatal(err)
			}
			defer closeChecked(t, l)
			if s, err := l.Stat([]byte("last")); !s.Exists() || err != nil {
				t.Errorf("what a transaction has charged while Close waited is lost: %v", err)
			}
		})
	}
}

// TestUpdateOldFormat puts what an old format does not have into a transaction.
func TestUpdateOldFormat(t *testing.T) {
	db, err := pebble.Open("app", &pebble.Options{FS: vfs.NewMem(), Logger: quiet{}, FormatMajorVersion: pebble.FormatMinSupported})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	l, err := engine.New(db, &engine.Options{Prefix: []byte("limits/")})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	before := contents(t, db)
	err = l.Update(func(tx *engine.Tx) error {
		_, err := tx.Throttle([]byte("k"), bucket(10), 1)
		return errors.Join(err, tx.Batch().DeleteSized([]byte("row"), 10, nil))
	})
	if err == nil || errors.Is(err, engine.ErrStorage) || !maps.Equal(contents(t, db), before) {
		t.Errorf("Update with DeleteSized = %v, want it refused", err)
	}
	must(t, throttle(l, "k", 1))
}
