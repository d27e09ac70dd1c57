package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// tenant is a store of an application, with rows of its own around what a limiter
// has in it, and what has to be in those.
type tenant struct {
	t     *testing.T
	db    *pebble.DB
	opts  engine.Options
	clock *manualClock
	l     *engine.Limiter

	mu   sync.Mutex
	rows map[string]string // guarded by mu
}

// TestRowsStay has a million operations of all kinds, with expiry, purges,
// compactions and reopening, go on between 100,000 rows of an application, which
// changes some of them in transactions. All others are as they were, to the byte, and
// so is the format of the store.
func TestRowsStay(t *testing.T) {
	checkLeaks(t)
	seed, operations, rows, phases := newSeed(t), 1_000_000, 100_000, 4
	if testing.Short() {
		operations, rows, phases = 100_000, 10_000, 2
	}
	if underRace {
		operations, rows, phases = 10_000, 2_000, 1 // Pebble checks itself at every step then
	}
	events := new(engine.Events)
	listener := events.Listener()
	newest := pebble.Options{
		FormatMajorVersion: pebble.FormatNewest,
		MemTableSize:       256 << 10,
		EventListener:      &listener,
		// The first parts have 12 bytes: the prefix, and some of what is behind it.
		Comparer: splitBy("application", func(key []byte) int { return min(len(key), 12) }),
	}
	for i := range newest.Levels {
		newest.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	newest.Experimental.ValueSeparationPolicy = func() pebble.ValueSeparationPolicy {
		return pebble.ValueSeparationPolicy{Enabled: true, MinimumSize: 16, MaxBlobReferenceDepth: 4}
	}
	oldest := pebble.Options{FormatMajorVersion: pebble.FormatMinSupported, MemTableSize: 256 << 10}

	for name, opts := range map[string]*pebble.Options{"newest": &newest, "oldest": &oldest} {
		t.Run(name, func(t *testing.T) {
			n := operations * 3 / 4
			app := &tenant{t: t, db: openLender(t, opts), clock: newManualClock(epoch), rows: map[string]string{}}
			app.opts = engine.Options{
				Prefix: []byte("limits/"), Now: app.clock.Now, Durability: engine.Never, SyncInterval: time.Millisecond, PurgeWait: time.Second, CacheSize: 1 << 20,
			}
			if opts == &newest {
				app.opts.Events = events
			} else {
				n = operations - n
			}
			app.fill(rows)
			format := app.db.FormatMajorVersion()
			for phase := range phases {
				app.live(seed+uint64(phase), n/phases)
			}
			if got := app.db.FormatMajorVersion(); got != format {
				t.Errorf("the format is %v, and was %v", got, format)
			}
			must(t, func() error { return app.db.CheckLevels(nil) }, app.db.Close)
		})
	}
}

// fill puts so many rows as near to the limiter's keys as can be.
func (a *tenant) fill(rows int) {
	b := a.db.NewBatch()
	for _, tag := range "chmqs" { // where those of a limiter without a prefix would lie
		key := string(tag) + "\x00\x00k\x00\x01"
		a.rows[key] = "v"
		_ = b.Set([]byte(key), []byte("v"), nil)
	}
	neighbours := []string{"", "limits", "limits.", "limits.\xff", "limits0", "limitsm", "limit", "h\x00\x00", "\xff"}
	for i, prefix := range neighbours {
		for j := range rows/len(neighbours) + 1 {
			key, value := fmt.Sprintf("%s:%05d", prefix, j), strings.Repeat("v", i+j%50)
			a.rows[key] = value
			_ = b.Set([]byte(key), []byte(value), nil)
		}
	}
	must(a.t, func() error { return b.Commit(pebble.Sync) }, a.db.Flush)
}

// live has a limiter be opened, used, purged, compacted and closed again, and then
// wants nothing of it to be left and the rows to be as they should.
func (a *tenant) live(seed uint64, operations int) {
	t := a.t
	l, err := engine.New(a.db, &a.opts)
	if err != nil {
		t.Fatal(err)
	}
	a.l = l
	const clients = 4
	var running sync.WaitGroup
	for id := range clients {
		rng := rand.New(rand.NewPCG(seed, uint64(id)))
		running.Go(func() {
			var ops []engine.Op
			var results []engine.Result
			for left := operations / clients; left > 0; left -= len(ops) {
				ops = pipeline(rng, ops[:0], min(left, 256))
				results = l.Do(ops, results[:0])
				for i, r := range results {
					if r.Err != nil && !errors.Is(r.Err, limit.ErrConflict) && !errors.Is(r.Err, limit.ErrPolicyChanged) {
						t.Errorf("%+v = %v", ops[i], r.Err)
						return
					}
				}
				a.transact(rng, id)
				a.clock.Advance(time.Duration(rng.Int64N(int64(20 * time.Millisecond))))
			}
		})
	}
	running.Go(func() { // meanwhile
		must(t, l.ResetAll, func() error { return l.Purge(context.Background()) }, a.db.Flush, func() error { return l.Compact(context.Background(), nil) })
	})
	running.Wait()
	if m := l.Metrics(); m.Records == 0 {
		t.Error("there is nothing to purge")
	}
	must(t, l.Check)
	a.clock.Advance(time.Hour)
	must(t, l.Sync, func() error { return l.Compact(t.Context(), nil) }, l.Check, l.Close)

	all := contents(t, a.db)
	left := 0
	maps.DeleteFunc(all, func(key, _ string) bool {
		ours := strings.HasPrefix(key, "limits/")
		if ours {
			left++
		}
		return ours
	})
	if left != 2 {
		t.Errorf("%d keys of the limiter are left, want the identity and the mark", left)
	}
	if !maps.Equal(all, a.rows) {
		for key, value := range a.rows {
			if got, ok := all[key]; got != value || !ok {
				t.Errorf("the row %q is %q, want %q", key, got, value)
				break
			}
		}
		t.Errorf("there are %d rows, want %d", len(all), len(a.rows))
	}
}

// pipeline appends operations of all verbs on keys of all kinds, n of them.
func pipeline(rng *rand.Rand, ops []engine.Op, n int) []engine.Op {
	for len(ops) < n {
		op := engine.Op{
			Verb:    engine.Verb(rng.IntN(int(engine.OpProbeEach) + 1)),
			Rate:    limit.Rate{Burst: 5, Count: 10, Period: time.Second},
			Quota:   limit.Quota{Limit: 100, Window: 500 * time.Millisecond},
			Rolling: limit.Rolling{Limit: 200, Window: 400 * time.Millisecond},
			ID:      fmt.Sprint(rng.IntN(50)),
			N:       1 + rng.Int64N(3),
		}
		kind := "gcra"
		switch op.Verb {
		case engine.OpTakeQuota, engine.OpProbeQuota, engine.OpQuota, engine.OpRefundQuota:
			kind = "quota"
		case engine.OpAllow, engine.OpIncrement, engine.OpPeek, engine.OpWait:
			kind = "list"
		case engine.OpStat, engine.OpReset:
			kind = []string{"gcra", "quota", "list"}[rng.IntN(3)]
		}
		key := func() []byte { return fmt.Appendf(nil, "%s-%d", kind, rng.IntN(500)*rng.IntN(20)) }
		op.Key = key()
		if op.Verb < engine.OpThrottleAll {
			ops = append(ops, op)
			continue
		}
		together := 1 + rng.IntN(min(n-len(ops), 4))
		for i := range together {
			op.With = 0
			if i == 0 {
				op.With = together - 1
			}
			op.Key = key()
			ops = append(ops, op)
		}
	}
	return ops
}

// transact changes a row of the client's in a transaction, or does not.
func (a *tenant) transact(rng *rand.Rand, id int) {
	row := fmt.Appendf(nil, "limits.:%05d", rng.IntN(2000)*4+id)
	value := bytes.Repeat([]byte("w"), rng.IntN(100))
	put, remove := rng.IntN(2) == 0, rng.IntN(3) == 0
	err := a.l.Update(func(tx *engine.Tx) error {
		if _, err := tx.Throttle(row, limit.PerSecond(100), 1); err != nil {
			return err
		}
		b := tx.Batch()
		err := b.Set(row, value, nil)
		if remove {
			err = b.Delete(row, nil)
		}
		if !put {
			err = errAborted
		}
		return err
	})
	if put && err != nil || !put && err != errAborted {
		a.t.Errorf("Update = %v", err)
	}
	if !put {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.rows[string(row)] = string(value); remove {
		delete(a.rows, string(row))
	}
}
