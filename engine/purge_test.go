package engine_test

import (
	"context"
	"fmt"
	"maps"
	"testing"
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
			take(t, l, quota, 0, 3)
			if what == "request" { // alone
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
