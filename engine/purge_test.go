package engine_test

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// purge purges l.
func purge(t testing.TB, l *engine.Limiter) {
	t.Helper()
	if err := l.Purge(t.Context()); err != nil {
		t.Fatalf("Purge: %v", err)
	}
}

// hours returns a call that charges n hours to key: it is over after those, if
// it was before.
func hours(l *engine.Limiter, key string, n int64) func() error {
	return func() error {
		d, err := l.Throttle([]byte(key), bucket(1<<20), n)
		if err == nil && !d.Allowed {
			err = fmt.Errorf("Throttle(%q) = %+v, want it allowed", key, d)
		}
		return err
	}
}

// keyspaceOf returns the keyspace of the store of l.
func keyspaceOf(t testing.TB, l *engine.Limiter) codec.Keyspace {
	t.Helper()
	id, err := codec.DecodeIdentity([]byte(contents(t, l.DB())[metaKey(codec.MetaIdentity)]))
	if err != nil {
		t.Fatal(err)
	}
	return codec.Keyspace{Seed: id.Seed}
}

// keysOf returns n keys in the slices of a sidecar.
func keysOf(t testing.TB, l *engine.Limiter, sidecar, n int) []string {
	t.Helper()
	keys := keyspaceOf(t, l)
	var found []string
	for i := 0; len(found) < n; i++ {
		if key := nth(i); int(keys.Slice(key))/codec.SlicesPerSidecar == sidecar {
			found = append(found, string(key))
		}
	}
	return found
}

// sidecarsIn returns the sidecars in the store of l, by their numbers.
func sidecarsIn(t testing.TB, l *engine.Limiter) map[int]codec.Sidecar {
	t.Helper()
	found := map[int]codec.Sidecar{}
	for key, value := range contents(t, l.DB()) {
		n, err := (codec.Keyspace{}).ParseSidecarKey([]byte(key))
		if err != nil {
			continue
		}
		s, err := codec.DecodeSidecar([]byte(value))
		if err != nil {
			t.Fatal(err)
		}
		found[int(n)] = s
	}
	return found
}

// wantRecords checks that the store of l holds the records of these keys, and
// of no others.
func wantRecords(t testing.TB, l *engine.Limiter, keys ...string) {
	t.Helper()
	want := map[string]bool{}
	for _, key := range keys {
		want[key] = true
	}
	got := map[string]bool{}
	for key := range records(t, l) {
		got[key] = true
	}
	if !maps.Equal(got, want) {
		t.Errorf("the store holds %v, want %v", got, want)
	}
}

// lookingAt returns operations on keys that don't change them.
func lookingAt(keys [][]byte) (ops []engine.Op) {
	quota := limit.Quota{Limit: 1000, Window: time.Hour}
	list := limit.Rolling{Limit: 100_000, Window: time.Hour}
	half := limit.Rolling{Limit: 100, Window: 30 * time.Minute}
	for _, key := range keys {
		ops = append(ops,
			engine.Op{Verb: engine.OpStat, Key: key},
			engine.Op{Verb: engine.OpProbe, Key: key, Rate: bucket(10), N: 1},
			engine.Op{Verb: engine.OpProbeQuota, Key: key, ID: "0", Quota: quota, N: 1},
			engine.Op{Verb: engine.OpProbeQuota, Key: key, ID: "new", Quota: quota, N: 1},
			engine.Op{Verb: engine.OpPeek, Key: key, Rolling: list},
			engine.Op{Verb: engine.OpPeek, Key: key, Rolling: half},
			engine.Op{Verb: engine.OpWait, Key: key, Rolling: half},
		)
	}
	return ops
}

// TestPurgeDeletesWhatIsOver fills a store with keys of all kinds, half of which
// expire. A purge deletes those, with all that lies beside them, and nothing
// else.
func TestPurgeDeletesWhatIsOver(t *testing.T) {
	for _, where := range []string{"memory", "tables"} {
		t.Run(where, func(t *testing.T) {
			clock := newManualClock(epoch)
			l := open(t, "store", engine.Options{NoPurge: true, Now: clock.Now, Durability: engine.Interval})
			var keys [][]byte
			fill := func(life string) {
				add := func(name string) []byte {
					keys = append(keys, []byte(life+" "+name))
					return keys[len(keys)-1]
				}
				for i := range 100 {
					must(t, hours(l, string(add(fmt.Sprint("rate ", i))), 1))
				}
				for i := range 5 {
					take(t, l, add(fmt.Sprint("quota ", i)), 0, 50)
				}
				// With an event at each instant, one in 50 takes a chunk along from the
				// 101st on.
				record(t, l, clock, add("list"), 3)
				record(t, l, clock, add("list of one chunk"), 120)
				record(t, l, clock, add("list of some chunks"), 2000)
				record(t, l, clock, add("list of many chunks"), 14_000)
			}
			fill("dead")
			again := []byte("quota of two windows")
			take(t, l, again, 0, 20)
			if where == "tables" {
				flush(t, l)
			}
			clock.Advance(61 * time.Minute)
			fill("live")
			take(t, l, again, 0, 10)
			keys = append(keys, again)
			if where == "tables" {
				flush(t, l)
			}
			must(t, l.Sync)

			want, dead := map[string]string{}, map[string]int{}
			inSidecar := map[int]int64{}
			ks, now := keyspaceOf(t, l), clock.Now().UnixNano()
			for key, value := range contents(t, l.DB()) {
				kind, over := "meta", false
				if slice, _, err := ks.ParseHead(nil, []byte(key)); err == nil {
					deadline, err := codec.DecodeDeadline([]byte(value))
					if err != nil {
						t.Fatal(err)
					}
					if kind, over = "head", deadline <= now; !over {
						inSidecar[int(slice)/codec.SlicesPerSidecar]++
					}
				} else if deadline, _, _, err := ks.ParseRequestKey(nil, []byte(key)); err == nil {
					kind, over = "request", deadline <= now
				} else if _, user, _, err := ks.ParseChunkKey(nil, []byte(key)); err == nil {
					kind, over = "chunk", string(user[:4]) == "dead"
				}
				if over {
					dead[kind]++
				} else {
					want[key] = value
				}
			}
			if wantDead := map[string]int{"head": 109, "request": 270, "chunk": 1 + 38 + 278}; !maps.Equal(dead, wantDead) {
				t.Fatalf("%v are over, want %v", dead, wantDead)
			}
			before := l.Do(lookingAt(keys), nil)

			purge(t, l)
			got := contents(t, l.DB())
			if mark := storedMark(t, l); mark != now {
				t.Errorf("the mark is %d, want %d", mark, now)
			}
			delete(want, metaKey(codec.MetaMark))
			delete(got, metaKey(codec.MetaMark))
			sidecars := sidecarsIn(t, l)
			for n, s := range sidecars {
				delete(got, string(ks.AppendSidecarKey(nil, uint8(n))))
				var sum int64
				for _, count := range s.Counts {
					sum += count
				}
				if sum != inSidecar[n] {
					t.Errorf("sidecar %d counts %d heads, want %d", n, sum, inSidecar[n])
				}
			}
			if !maps.Equal(got, want) {
				for key := range got {
					if _, ok := want[key]; !ok {
						t.Errorf("%q is left", key)
					}
				}
				for key, value := range want {
					if got[key] != value {
						t.Errorf("%q holds %x, want %x", key, got[key], value)
					}
				}
			}
			for i, op := range lookingAt(keys) {
				checkResult(t, op, l.Do([]engine.Op{op}, nil)[0], before[i])
			}
			if m := l.Metrics(); m.Purged != 109 || m.Records != 110 || m.Expired != 0 {
				t.Errorf("Metrics = %+v, want 109 purged, 110 records, and none of them expired", m)
			}

			// In the end there is nothing but meta values.
			clock.Advance(24 * time.Hour)
			purge(t, l)
			for key := range contents(t, l.DB()) {
				if key != metaKey(codec.MetaIdentity) && key != metaKey(codec.MetaMark) {
					t.Errorf("%q is left", key)
				}
			}
		})
	}
}

// TestPurgeSeesWhatIsStaged purges what has been answered and not been written
// to the store yet.
func TestPurgeSeesWhatIsStaged(t *testing.T) {
	for _, durability := range durabilities {
		clock := newManualClock(epoch)
		l := open(t, "store", engine.Options{NoPurge: true, Now: clock.Now, Durability: durability, SyncInterval: time.Hour})
		must(t, hours(l, "short", 1), hours(l, "long", 2))
		take(t, l, []byte("quota"), 0, 3)
		clock.Advance(time.Hour)
		purge(t, l)
		wantRecords(t, l, "long")
		for key := range contents(t, l.DB()) {
			if _, _, _, err := (codec.Keyspace{}).ParseRequestKey(nil, []byte(key)); err == nil {
				t.Errorf("%v: %q is left", durability, key)
			}
		}
		if m := l.Metrics(); m.Purged != 2 {
			t.Errorf("%v: %d records purged, want 2", durability, m.Purged)
		}
	}
}

// TestPurgedStaysOver cuts the power after a purge, and sets the wall clock
// back to before what was purged was over. The store is not to go back there.
func TestPurgedStaysOver(t *testing.T) {
	for _, what := range []string{"head", "request"} {
		t.Run(what, func(t *testing.T) {
			clock := newManualClock(epoch)
			fs := vfs.NewCrashableMem()
			opts := engine.Options{NoPurge: true, Now: clock.Now, FS: fs}
			l := open(t, "store", opts)
			quota := []byte("quota")
			if what == "head" {
				must(t, hours(l, "rate", 1))
			} else { // alone
				take(t, l, quota, 0, 3)
				clock.Advance(time.Hour - 1)
				if found, err := l.Reset(quota); !found || err != nil {
					t.Fatalf("Reset = %t, %v", found, err)
				}
				if err := l.DB().Set((codec.Keyspace{}).AppendRequestKey(nil, epoch.Add(time.Hour).UnixNano(), quota, "0"),
					codec.AppendRequest(nil, limit.Request{Cost: 1, Used: 1}), nil); err != nil {
					t.Fatal(err)
				}
			}
			clock.Set(epoch.Add(90 * time.Minute))
			purge(t, l)
			must(t, l.Sync)
			opts.FS = fs.CrashClone(vfs.CrashCloneCfg{})
			clock.Set(epoch.Add(time.Minute))
			l = open(t, "store", opts)
			if left := len(contents(t, l.DB())); left != 2 {
				t.Errorf("%d keys are left, want identity and mark", left)
			}
			if now, over := l.Now(), epoch.Add(time.Hour); now.Before(over) {
				t.Errorf("Now = %v, want %v or later", now, over)
			}
			if g, err := l.ProbeQuota(quota, "0", limit.Quota{Limit: 1000, Window: time.Hour}, 1); g.Replay || g.Used != 1 || err != nil {
				t.Errorf("ProbeQuota = %+v, %v, want a new window", g, err)
			}
		})
	}
}

// TestPurgeCancelled ends the context of a purge before it begins, whether
// there is anything to do or not, and in the middle of it.
func TestPurgeCancelled(t *testing.T) {
	clock := newManualClock(epoch)
	l := open(t, "store", engine.Options{NoPurge: true, Now: clock.Now})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Purge(ctx); err != context.Canceled {
		t.Errorf("Purge = %v without anything to do, want %v", err, context.Canceled)
	}
	for i := range 1000 { // in most sidecars
		must(t, hours(l, string(nth(i)), 1))
	}
	clock.Advance(time.Hour)
	if err := l.Purge(ctx); err != context.Canceled {
		t.Errorf("Purge = %v, want %v", err, context.Canceled)
	}
	ctx, cancel = context.WithCancel(t.Context())
	looks := 0
	l.OnLook(func() {
		if looks++; looks == 5 {
			cancel()
		}
	})
	if err := l.Purge(ctx); err != context.Canceled || looks != 5 {
		t.Errorf("Purge = %v after %d looks, want %v after 5", err, looks, context.Canceled)
	}
	l.OnLook(nil)
	if n := l.Metrics().Purged; n == 0 || n == 1000 {
		t.Errorf("%d records purged, want some", n)
	}
	purge(t, l)
	wantRecords(t, l)
}

// TestPurgeGoesOnAfterCancel cancels a purge that is making guesses anew. The
// background is not kept from doing so.
func TestPurgeGoesOnAfterCancel(t *testing.T) {
	clock := newManualClock(epoch)
	opts := engine.Options{Now: clock.Now, PurgeWait: time.Hour}
	inBubble(t, opts, func(t *testing.T, l *engine.Limiter, d *slowDisk) {
		must(t, hours(l, "k", 1))
		opts.FS = d.CrashClone(vfs.CrashCloneCfg{})
		l = open(t, "store", opts)
		ctx, cancel := context.WithCancel(t.Context())
		l.OnLook(cancel)
		if err := l.Purge(ctx); err != context.Canceled {
			t.Errorf("Purge = %v, want %v", err, context.Canceled)
		}
		l.OnLook(nil)
		time.Sleep(time.Minute)
		if guesses := l.Guesses(); len(guesses) > 0 {
			t.Errorf("the sidecars %v are still guesses", guesses)
		}
	})
}

// TestPurgeAfterLeap opens a store when the wall clock is two months ahead of
// it. Answers go by that clock. Nothing is deleted that would not be over within
// two days of what the store has seen, until the clock was confirmed.
func TestPurgeAfterLeap(t *testing.T) {
	const leap = 60 * 24 * time.Hour
	type step struct {
		wall time.Duration // after the epoch
		left []string
	}
	all := []string{"1h", "48h", "49h", "100h", "live"}
	for name, c := range map[string]struct {
		confirm time.Duration
		steps   []step
	}{
		"confirmed": {0, []step{
			{leap, all[2:]},
			{leap + 10*time.Minute - 1, all[2:]},
			{leap + 10*time.Minute, all[4:]},
		}},
		"uptime": {5 * time.Hour, []step{
			{leap, all[2:]},
			{leap + time.Hour - 1, all[2:]},
			{leap + time.Hour, all[3:]},
			{leap + 5*time.Hour, all[4:]},
		}},
		"stepped back": {0, []step{
			{leap, all[2:]},
			{leap + 5*time.Minute, all[2:]},
			{time.Minute, all[2:]},
			{24 * time.Hour, all[2:]},
			{leap + 6*time.Minute, all[2:]}, // it agrees again
			{leap + 16*time.Minute - 1, all[2:]},
			{leap + 16*time.Minute, all[4:]},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			clock := newManualClock(epoch)
			opts := engine.Options{FS: vfs.NewMem(), NoPurge: true, Now: clock.Now, PurgeConfirm: c.confirm}
			l := open(t, "store", opts)
			must(t, hours(l, "1h", 1), hours(l, "48h", 48), hours(l, "49h", 49), hours(l, "100h", 100), hours(l, "live", 24*90))
			clock.Set(epoch.Add(leap))
			l = reopen(t, l, "store", opts)
			now := leap
			for i, s := range c.steps {
				clock.Set(epoch.Add(s.wall))
				now = max(now, s.wall)
				purge(t, l)
				wantRecords(t, l, s.left...)
				if got := l.Now(); !got.Equal(epoch.Add(now)) {
					t.Errorf("Now = %v, want %v", got, epoch.Add(now))
				}
				if got := l.Metrics().LastPurge; i == 0 && !got.Equal(epoch.Add(now)) {
					t.Errorf("LastPurge = %v, want %v", got, epoch.Add(now))
				}
				for _, key := range all {
					if st, err := l.Stat([]byte(key)); st.Exists() != (key == "live") || err != nil {
						t.Errorf("Stat(%q) = %+v, %v", key, st, err)
					}
				}
			}
		})
	}
}

// TestPurgeLeavesNoWildMark purges under a wall clock that is far ahead, and
// sets that right. The purge alone does not have the store stay there.
func TestPurgeLeavesNoWildMark(t *testing.T) {
	clock := newManualClock(epoch)
	opts := engine.Options{FS: vfs.NewMem(), NoPurge: true, Now: clock.Now}
	l := open(t, "store", opts)
	must(t, hours(l, "1h", 1), hours(l, "100h", 100))
	clock.Set(epoch.Add(60 * 24 * time.Hour))
	l = reopen(t, l, "store", opts)
	purge(t, l)
	clock.Set(epoch.Add(time.Hour))
	l = reopen(t, l, "store", opts)
	if got, want := l.Now(), epoch.Add(48*time.Hour); !got.Equal(want) {
		t.Errorf("Now = %v, want %v", got, want)
	}
	if left, err := l.TTL([]byte("100h")); left != 52*time.Hour || err != nil {
		t.Errorf("TTL = %v, %v, want 52h", left, err)
	}
}

// TestBackground has what has expired purged without anybody's help: as soon as
// a quarter of a sidecar's heads is due, or after a while.
func TestBackground(t *testing.T) {
	for _, noPurge := range []bool{false, true} {
		clock := newManualClock(epoch)
		opts := engine.Options{Now: clock.Now, PurgeWait: time.Hour, NoPurge: noPurge}
		inBubble(t, opts, func(t *testing.T, l *engine.Limiter, _ *slowDisk) {
			many, few := keysOf(t, l, 7, 256), keysOf(t, l, 8, 256)
			for i := range 256 {
				n := int64(100)
				if i < 64 {
					n = 1
				}
				must(t, hours(l, many[i], n))
				if i == 63 {
					n = 100
				}
				must(t, hours(l, few[i], n))
			}
			take(t, l, []byte("quota"), 0, 10)
			due := func(after time.Duration, left int) {
				t.Helper()
				clock.Set(epoch.Add(after))
				time.Sleep(time.Second)
				synctest.Wait()
				if noPurge {
					left = 513
				}
				if n := len(records(t, l)); n != left {
					t.Errorf("%d records are left after %v, want %d", n, after, left)
				}
			}
			due(time.Hour-1, 513)
			due(time.Hour+10*time.Minute, 513-64)
			due(2*time.Hour+time.Minute, 513-64-63-1) // and the quota
			requests := 0
			for key := range contents(t, l.DB()) {
				if _, _, _, err := (codec.Keyspace{}).ParseRequestKey(nil, []byte(key)); err == nil {
					requests++
				}
			}
			if want := map[bool]int{true: 10}[noPurge]; requests != want {
				t.Errorf("%d requests are left, want %d", requests, want)
			}
			if m := l.Metrics(); noPurge && m.PurgePasses+m.Purged > 0 {
				t.Errorf("%d passes have purged %d records with NoPurge", m.PurgePasses, m.Purged)
			}
		})
	}
}

// TestIdleStoreIsFlushed leaves a store alone once all has expired. What is
// purged is flushed, though it was only staged when Pebble last flushed by
// itself.
func TestIdleStoreIsFlushed(t *testing.T) {
	clock := newManualClock(epoch)
	opts := engine.Options{Now: clock.Now, Durability: engine.Interval, SyncInterval: time.Hour}
	inBubble(t, opts, func(t *testing.T, l *engine.Limiter, _ *slowDisk) {
		for _, key := range keysOf(t, l, 7, 256) {
			must(t, hours(l, key, 1))
		}
		must(t, l.Sync)
		clock.Advance(2 * time.Hour)
		time.Sleep(time.Second)
		synctest.Wait()
		must(t, l.DB().Flush)
		m := l.Metrics()
		if n := len(records(t, l)); n != 256 || m.Purged != 256 {
			t.Fatalf("%d records in the store, and %d purged, want 256 that are staged", n, m.Purged)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		wantRecords(t, l)
		if n := l.Metrics().Flushes - m.Flushes; n != 1 {
			t.Errorf("%d flushes behind the last purge, want 1", n)
		}
	})
}

// TestRequestsArePurgedOnce has many requests staged for deletion long before
// the round is due. No later pass stages and counts them again.
func TestRequestsArePurgedOnce(t *testing.T) {
	clock := newManualClock(epoch)
	opts := engine.Options{Now: clock.Now, Durability: engine.Interval, SyncInterval: time.Hour}
	inBubble(t, opts, func(t *testing.T, l *engine.Limiter, _ *slowDisk) {
		take(t, l, []byte("quota"), 0, 600)
		flush(t, l)
		clock.Advance(2 * time.Hour)
		time.Sleep(300 * time.Millisecond)
		synctest.Wait()
		once := l.Metrics().PurgedBytes
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := l.Metrics().PurgedBytes; once == 0 || n != once {
			t.Errorf("%d bytes purged, and %d a while later, want the same", once, n)
		}
	})
}

func TestPurgeMetrics(t *testing.T) {
	clock := newManualClock(epoch)
	opts := engine.Options{Now: clock.Now, NoPurge: true, FS: vfs.NewMem()}
	l := open(t, "store", opts)
	check := func(when string, want engine.Metrics) {
		t.Helper()
		m := l.Metrics()
		got := engine.Metrics{
			Records: m.Records, Expired: m.Expired, Backlog: m.Backlog,
			Purged: m.Purged, PurgedBytes: m.PurgedBytes, PurgePasses: m.PurgePasses, LastPurge: m.LastPurge, OldestView: m.OldestView,
		}
		if got != want {
			t.Errorf("%s the metrics are %+v, want %+v", when, got, want)
		}
	}
	check("in the beginning", engine.Metrics{})
	many, few := keysOf(t, l, 7, 100), keysOf(t, l, 8, 10)
	for _, key := range append(many, few...) {
		must(t, hours(l, key, 1))
	}
	must(t, hours(l, "live", 1000))
	check("with live heads", engine.Metrics{Records: 111})
	// A deadline is known to a quarter of its distance.
	clock.Advance(90 * time.Minute)
	check("with expired heads", engine.Metrics{Records: 111, Expired: 110, Backlog: 110}) // those of few for how long they have been
	var size uint64
	ks := keyspaceOf(t, l)
	for key, value := range contents(t, l.DB()) {
		if _, user, err := ks.ParseHead(nil, []byte(key)); err == nil && string(user) != "live" {
			size += uint64(len(key) + len(value))
		}
	}
	purge(t, l)
	check("after a purge", engine.Metrics{Records: 1, Purged: 110, PurgedBytes: size, PurgePasses: 2, LastPurge: clock.Now()})
	err := l.View(func(*engine.View) error {
		if age := l.Metrics().OldestView; age <= 0 {
			t.Errorf("OldestView = %v in a view", age)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	check("after a view", engine.Metrics{Records: 1, Purged: 110, PurgedBytes: size, PurgePasses: 2, LastPurge: clock.Now()})
}

// TestOldestView has several views open.
func TestOldestView(t *testing.T) {
	inBubble(t, engine.Options{}, func(t *testing.T, l *engine.Limiter, _ *slowDisk) {
		var p pending
		ends := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
		for i, end := range ends {
			p.start(fmt.Sprint(i), func() error { return l.View(func(*engine.View) error { <-end; return nil }) })
			time.Sleep(time.Minute)
		}
		for i, want := range []time.Duration{2 * time.Minute, time.Minute, 0} {
			if got := l.Metrics().OldestView; got != want {
				t.Errorf("OldestView = %v with %d views closed, want %v", got, i, want)
			}
			if i < len(ends) {
				close(ends[i])
				synctest.Wait()
			}
		}
	})
}

// TestNobodyWaitsForAPurge has a purge held up between a look and its turn while
// others call. None of them waits, save for Close.
func TestNobodyWaitsForAPurge(t *testing.T) {
	clock := newManualClock(epoch)
	inBubble(t, engine.Options{Now: clock.Now, NoPurge: true}, func(t *testing.T, l *engine.Limiter, d *slowDisk) {
		dead := keysOf(t, l, 7, 2)
		must(t, hours(l, dead[0], 1), hours(l, dead[1], 1), hours(l, "live", 10))
		clock.Advance(time.Hour)
		proceed := make(chan struct{})
		l.OnLook(func() { <-proceed })
		var p pending
		p.start("purge", func() error { return l.Purge(t.Context()) })
		p.start("same shard", hours(l, dead[0], 1))
		p.start("probe", func() error { _, err := l.Probe([]byte(dead[1]), bucket(10), 1); return err })
		p.start("view", func() error { return l.View(func(*engine.View) error { return nil }) })
		p.start("len", func() error { _, err := l.Len(); return err })
		p.start("metrics", func() error { l.Metrics(); return nil })
		p.start("sync", l.Sync)
		p.want(t, "purge")
		p.start("reset all", l.ResetAll)
		p.start("close", l.Close)
		p.want(t, "purge", "close")
		close(proceed)
		synctest.Wait()
		p.want(t)
		for name, err := range p.returned {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// TestPurgeWaitsForNoView purges while a view is open, and while the disk holds
// back a charge. Only for the disk it waits, as whatever writes does.
func TestPurgeWaitsForNoView(t *testing.T) {
	clock := newManualClock(epoch)
	inBubble(t, engine.Options{Now: clock.Now, NoPurge: true}, func(t *testing.T, l *engine.Limiter, d *slowDisk) {
		must(t, hours(l, "dead", 1), hours(l, "live", 10), throttle(l, "full", 10))
		endView := make(chan struct{})
		var p pending
		p.start("view", func() error {
			return l.View(func(v *engine.View) error {
				<-endView
				if s, err := v.Stat([]byte("dead")); !s.Exists() || err != nil {
					t.Errorf("Stat = %+v, %v in a view from before the deadline", s, err)
				}
				return nil
			})
		})
		clock.Advance(time.Hour)
		p.start("purge", func() error { return l.Purge(t.Context()) })
		p.want(t, "view")
		wantRecords(t, l, "live", "full")
		clock.Advance(time.Hour)
		must(t, hours(l, "brief", 1))
		clock.Advance(time.Hour)
		d.hold()
		p.start("charge", hours(l, "live", 1))
		p.start("purge behind it", func() error { return l.Purge(t.Context()) })
		p.start("denial", throttle(l, "full", 10))
		p.want(t, "view", "charge", "purge behind it")
		d.release()
		synctest.Wait()
		p.want(t, "view")
		wantRecords(t, l, "live", "full")
		close(endView)
		p.calls.Wait()
		for name, err := range p.returned {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// TestCloseDuringPass closes a limiter whose background purge is at work, again
// and again, at any point of it.
func TestCloseDuringPass(t *testing.T) {
	checkLeaks(t)
	clock := newManualClock(epoch)
	opts := engine.Options{FS: vfs.NewMem(), Now: clock.Now, PurgeWait: 1, PurgePace: 1000}
	left := 0
	for range 5 {
		l := open(t, "store", opts)
		for i := range 2000 {
			r := l.Do([]engine.Op{{Key: nth(i), Rate: bucket(10), N: 1}}, nil)[0]
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
		looked, more := make(chan struct{}), make(chan struct{})
		var once sync.Once
		l.OnLook(func() {
			once.Do(func() { close(looked); <-more })
		})
		clock.Advance(24 * time.Hour)
		<-looked
		closed := make(chan error)
		go func() { closed <- l.Close() }()
		close(more)
		if err := <-closed; err != nil {
			t.Errorf("Close = %v", err)
		}
		l = open(t, "store", engine.Options{FS: opts.FS, Now: clock.Now, NoPurge: true})
		left += len(records(t, l))
		if err := l.Purge(t.Context()); err != nil {
			t.Error(err)
		}
		wantRecords(t, l)
		closeChecked(t, l)
		if err := l.Purge(t.Context()); err != engine.ErrClosed {
			t.Errorf("Purge = %v after Close, want %v", err, engine.ErrClosed)
		}
	}
	if left == 0 {
		t.Error("no pass was cut short")
	}
}
