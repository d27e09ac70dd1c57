package engine_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// TestPurgeMeetsCalls has a key that is over changed between the look that found
// it so and the turn that would delete it: with its change staged or applied,
// and with its state in the cache or not.
func TestPurgeMeetsCalls(t *testing.T) {
	changes := map[string]struct {
		change func(t *testing.T, l *engine.Limiter, clock *manualClock, key string)
		gone   bool
	}{
		"nothing":   {func(*testing.T, *engine.Limiter, *manualClock, string) {}, true},
		"looked at": {func(t *testing.T, l *engine.Limiter, _ *manualClock, key string) { must(t, hours(l, key, 0)) }, true},
		"refreshed": {func(t *testing.T, l *engine.Limiter, _ *manualClock, key string) { must(t, hours(l, key, 5)) }, false},
		"made and deleted": {func(t *testing.T, l *engine.Limiter, _ *manualClock, key string) {
			must(t, hours(l, key, 5))
			if found, err := l.Reset([]byte(key)); !found || err != nil {
				t.Errorf("Reset = %t, %v", found, err)
			}
		}, true},
		"made a quota": {func(t *testing.T, l *engine.Limiter, _ *manualClock, key string) { take(t, l, []byte(key), 0, 5) }, false},
		"made a list": {func(t *testing.T, l *engine.Limiter, clock *manualClock, key string) {
			record(t, l, clock, []byte(key), 300)
		}, false},
		"deleted and made a quota": {func(t *testing.T, l *engine.Limiter, _ *manualClock, key string) {
			must(t, hours(l, key, 5))
			if found, err := l.Reset([]byte(key)); !found || err != nil {
				t.Errorf("Reset = %t, %v", found, err)
			}
			take(t, l, []byte(key), 0, 5)
		}, false},
	}
	kinds := map[string]func(t *testing.T, l *engine.Limiter, clock *manualClock, key string){
		"gcra":  func(t *testing.T, l *engine.Limiter, _ *manualClock, key string) { must(t, hours(l, key, 1)) },
		"quota": func(t *testing.T, l *engine.Limiter, _ *manualClock, key string) { take(t, l, []byte(key), 0, 5) },
		"rolling": func(t *testing.T, l *engine.Limiter, clock *manualClock, key string) {
			record(t, l, clock, []byte(key), 500)
		},
	}
	for kind, fill := range kinds {
		for name, c := range changes {
			for _, then := range []string{"staged", "applied", "evicted"} {
				t.Run(fmt.Sprintf("%s %s, %s", kind, name, then), func(t *testing.T) {
					clock := newManualClock(epoch)
					opts := engine.Options{
						FS: vfs.NewMem(), NoPurge: true, Now: clock.Now,
						Durability: engine.Interval, SyncInterval: time.Hour, CacheSize: 1,
					}
					l := open(t, "store", opts)
					keys := keysOf(t, l, 7, 4)
					key, beside, other := keys[0], keys[1], keys[2]
					fill(t, l, clock, key)
					must(t, hours(l, beside, 1), hours(l, other, 50), l.Sync)
					clock.Set(epoch.Add(2 * time.Hour))
					looks := 0
					var want []engine.Result
					look := lookingAt([][]byte{[]byte(key), []byte(beside), []byte(other)})
					l.OnLook(func() {
						if looks++; looks > 1 {
							return
						}
						c.change(t, l, clock, key)
						switch then {
						case "applied":
							must(t, l.Sync)
						case "evicted":
							must(t, l.Sync, hours(l, other, 1), l.Sync, hours(l, keys[3], 50))
						}
						if then != "staged" { // to probe would write it
							want = l.Do(look, nil)
						}
					})
					purge(t, l)
					l.OnLook(nil)
					if then == "staged" {
						want = l.Do(look, nil)
					}
					must(t, l.Sync)
					left := []string{other}
					if !c.gone {
						left = append(left, key)
					}
					if then == "evicted" {
						left = append(left, keys[3])
					}
					slices.Sort(left)
					wantRecords(t, l, left...)
					for i, op := range look {
						checkResult(t, op, l.Do([]engine.Op{op}, nil)[0], want[i])
					}
					if err := l.Check(); err != nil {
						t.Error(err)
					}
					purged := uint64(1) // what is beside it
					if name == "nothing" || name == "looked at" {
						purged++
					}
					if m := l.Metrics(); looks == 0 || m.Records != int64(len(left)) || m.Purged != purged {
						t.Errorf("%d looks, %d records, and %d purged, want some, %d and %d", looks, m.Records, m.Purged, len(left), purged)
					}
					l = reopen(t, l, "store", opts)
					for i, op := range look {
						checkResult(t, op, l.Do([]engine.Op{op}, nil)[0], want[i])
					}
				})
			}
		}
	}
}

// TestPurgedBeforeItShows uses keys whose end is staged, and that the store
// still shows, with next to no cache. They are over, and begin anew without
// anything of their former lives.
func TestPurgedBeforeItShows(t *testing.T) {
	clock := newManualClock(epoch)
	opts := engine.Options{Now: clock.Now, PurgeWait: 1, Durability: engine.Interval, SyncInterval: 24 * time.Hour, CacheSize: 1}
	inBubble(t, opts, func(t *testing.T, l *engine.Limiter, _ *slowDisk) {
		keys := keysOf(t, l, 7, 6)
		rate, quota, long, again := keys[0], keys[1], keys[2], keys[3]
		must(t, hours(l, rate, 1), hours(l, again, 1))
		take(t, l, []byte(quota), 0, 5)
		record(t, l, clock, []byte(long), 1000)
		must(t, l.Sync)
		clock.Advance(90 * time.Minute)
		time.Sleep(time.Second)
		synctest.Wait()
		if m := l.Metrics(); m.Purged != 4 || len(records(t, l)) != 4 {
			t.Fatalf("%d records purged and %d left, want 4 staged and all there", m.Purged, len(records(t, l)))
		}
		for range 2 { // each evicts the others
			for _, key := range []string{rate, quota, again} {
				must(t, throttle(l, key, 0))
			}
		}
		must(t, hours(l, rate, 3))
		take(t, l, []byte(quota), 0, 3)
		record(t, l, clock, []byte(long), 160)
		record(t, l, clock, []byte(again), 160) // another kind
		if n, err := l.Peek([]byte(long), limit.Rolling{Limit: 100_000, Window: time.Hour}); n != 160 || err != nil {
			t.Errorf("Peek = %d, %v, want 160", n, err)
		}
		must(t, l.Sync)
		wantRecords(t, l, rate, quota, long, again)
		chunks := 0
		for key := range contents(t, l.DB()) {
			if _, _, _, err := (codec.Keyspace{}).ParseChunkKey(nil, []byte(key)); err == nil {
				chunks++
			}
		}
		if chunks != 4 {
			t.Errorf("%d chunks are left, want the 2 of each new list", chunks)
		}
		if err := l.Check(); err != nil {
			t.Error(err)
		}
		if m := l.Metrics(); m.Purged != 4 || m.Records != 4 {
			t.Errorf("%d records purged and %d left, want 4 and 4", m.Purged, m.Records)
		}
	})
}

// TestPurgedTwice has a second pass come over slices in which the end of a head
// is staged and not applied.
func TestPurgedTwice(t *testing.T) {
	for _, size := range []int64{1, 1 << 20} {
		for _, anew := range []bool{false, true} {
			clock := newManualClock(epoch)
			opts := engine.Options{Now: clock.Now, PurgeWait: 1, Durability: engine.Interval, SyncInterval: 24 * time.Hour, CacheSize: size}
			inBubble(t, opts, func(t *testing.T, l *engine.Limiter, _ *slowDisk) {
				keys := keysOf(t, l, 7, 4)
				must(t, hours(l, keys[0], 1), hours(l, keys[1], 2), hours(l, keys[2], 50), l.Sync)
				want := []string{keys[2]}
				for i := range 2 {
					clock.Advance(90 * time.Minute)
					time.Sleep(time.Second)
					synctest.Wait()
					if i == 0 {
						if m := l.Metrics(); m.Purged != 1 || len(records(t, l)) != 3 {
							t.Fatalf("%d records purged and %d left, want 1 staged and all there", m.Purged, len(records(t, l)))
						}
						must(t, throttle(l, keys[3], 0))
						if anew {
							must(t, hours(l, keys[0], 50))
							want = append(want, keys[0])
						}
					}
				}
				must(t, l.Sync)
				wantRecords(t, l, want...)
				if m := l.Metrics(); m.Purged != 2 || m.Records != int64(len(want)) {
					t.Errorf("%d records purged and %d left, want 2 and %d", m.Purged, m.Records, len(want))
				}
				if err := l.Check(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestPurgeBeginsAnew has more heads in a few slices than a pass expects, when it
// has already staged the end of some in slices before. It goes over those again,
// and takes nothing for dead twice.
func TestPurgeBeginsAnew(t *testing.T) {
	if testing.Short() {
		t.Skip("it tries millions of keys")
	}
	const (
		expected = 10 * codec.SlicesPerSidecar // heads, so that a look is at 204 slices
		crowd    = 8300
		first    = 7 * codec.SlicesPerSidecar
	)
	clock := newManualClock(epoch)
	l := open(t, "store", engine.Options{
		FS: vfs.NewMem(), NoPurge: true, Now: clock.Now,
		Durability: engine.Interval, SyncInterval: 24 * time.Hour, CacheSize: 1,
	})
	ks := keyspaceOf(t, l)
	var early, anywhere, late [][]byte
	for i := uint64(0); len(anywhere) < expected || len(late) < crowd; i++ {
		key := binary.BigEndian.AppendUint64(nil, i)
		switch slice := int(ks.Slice(key)) - first; {
		case slice >= 205 && slice < codec.SlicesPerSidecar:
			late = append(late, key)
		case slice >= 0 && slice < 50 && len(early) < 2:
			early = append(early, key)
		case slice >= 0 && slice < 205 && len(anywhere) < expected:
			anywhere = append(anywhere, key)
		}
	}
	must(t, hours(l, string(early[0]), 1), hours(l, string(early[1]), 1))
	for _, key := range anywhere {
		must(t, hours(l, string(key), 100))
	}
	must(t, l.Sync)
	clock.Advance(2 * time.Hour)
	looks := 0
	l.OnLook(func() {
		switch looks++; looks {
		case 1: // the crowd comes after the pass was planned
			for _, key := range late {
				record := codec.AppendState(nil, limit.State{Kind: limit.KindGCRA, GCRA: limit.GCRAState{Deadline: epoch.Add(100 * time.Hour).UnixNano()}})
				if err := l.DB().Set(ks.AppendHead(nil, ks.Slice(key), key), record, pebble.NoSync); err != nil {
					t.Fatal(err)
				}
			}
		case 2: // it has begun anew
			must(t, hours(l, string(early[0]), 5))
		}
	})
	purge(t, l)
	l.OnLook(nil)
	must(t, l.Sync)
	if m := l.Metrics(); looks < 60 || m.Purged != 2 || m.Records != int64(len(anywhere)+len(late)+1) {
		t.Errorf("%d looks, %d records purged and %d left, want more than 60, 2 and %d", looks, m.Purged, m.Records, len(anywhere)+len(late)+1)
	}
	if err := l.Check(); err != nil {
		t.Error(err)
	}
}
