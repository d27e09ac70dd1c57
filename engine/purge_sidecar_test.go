package engine_test

import (
	"maps"
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

// TestSidecarsSurviveClose closes stores with something staged. When they are
// opened again the sidecars are exact, without a look at the heads.
func TestSidecarsSurviveClose(t *testing.T) {
	for _, durability := range durabilities {
		t.Run(durability.String(), func(t *testing.T) {
			clock := newManualClock(epoch)
			opts := engine.Options{FS: vfs.NewMem(), NoPurge: true, Now: clock.Now, Durability: durability, SyncInterval: time.Hour}
			l := open(t, "store", opts)
			for i := range 300 {
				must(t, hours(l, string(nth(i)), int64(1+i%2)))
			}
			if found, err := l.Reset(nth(0)); !found || err != nil {
				t.Errorf("Reset = %t, %v", found, err)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			check := func(records, expired int64) {
				t.Helper()
				l = open(t, "store", opts)
				if guesses := l.Guesses(); len(guesses) > 0 {
					t.Errorf("the sidecars %v are guesses", guesses)
				}
				if m := l.Metrics(); m.Records != records || m.Expired != expired || m.PurgePasses != 0 {
					t.Errorf("%d records, %d of them expired, after %d passes, want %d, %d and 0", m.Records, m.Expired, m.PurgePasses, records, expired)
				}
			}
			check(299, 0)
			// Not a byte is written if nothing has changed.
			before := contents(t, l.DB())
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			clock.Advance(90 * time.Minute)
			check(299, 149)
			if got := contents(t, l.DB()); !maps.Equal(got, before) {
				t.Error("a limiter that nobody has used has changed the store")
			}
			must(t, hours(l, "one more", 1))
			closeChecked(t, l)
			check(300, 149)
			purge(t, l)
			closeChecked(t, l)
			check(151, 0)
			clock.Advance(24 * time.Hour)
			purge(t, l)
			closeChecked(t, l)
			check(0, 0)
			if left := sidecarsIn(t, l); len(left) > 0 {
				t.Errorf("the sidecars %v are left of an empty store", left)
			}
		})
	}
}

// TestSidecarsAfterCrash cuts the power. The sidecars are then guesses, and
// counted anew without anybody's help.
func TestSidecarsAfterCrash(t *testing.T) {
	clock := newManualClock(epoch)
	opts := engine.Options{Now: clock.Now}
	inBubble(t, opts, func(t *testing.T, l *engine.Limiter, d *slowDisk) {
		for i := range 300 {
			must(t, hours(l, string(nth(i)), 100))
		}
		must(t, l.Close)
		opts.FS = d.MemFS
		l = open(t, "store", opts)
		for i := range 100 {
			must(t, hours(l, string(nth(300+i)), 100))
		}
		for i := range 50 {
			if found, err := l.Reset(nth(i)); !found || err != nil {
				t.Errorf("Reset = %t, %v", found, err)
			}
		}
		opts.FS = d.CrashClone(vfs.CrashCloneCfg{})
		l = open(t, "store", opts)
		if n := len(l.Guesses()); n < 200 {
			t.Errorf("%d sidecars are guesses after a crash, want nearly all", n)
		}
		must(t, hours(l, "new", 100)) // while they are
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if guesses := l.Guesses(); len(guesses) > 0 {
			t.Errorf("the sidecars %v are still guesses", guesses)
		}
		if m := l.Metrics(); m.Records != 351 || m.PurgePasses != codec.Sidecars {
			t.Errorf("%d records after %d passes, want 351 after %d", m.Records, m.PurgePasses, codec.Sidecars)
		}
	})
}

// TestDamagedSidecars changes the sidecars of a store behind its back. No answer
// differs, and in the end they are right again.
func TestDamagedSidecars(t *testing.T) {
	ks := codec.Keyspace{}
	future := codec.Sidecar{Since: epoch.Add(10_000 * time.Hour).UnixNano()}
	future.Counts[0] = 5
	many := codec.Sidecar{Since: 1}
	many.Counts[3] = 1 << 47
	each := func(change func(db *pebble.DB, n uint8) error) func(*pebble.DB) error {
		return func(db *pebble.DB) error {
			for n := range codec.Sidecars {
				if err := change(db, uint8(n)); err != nil {
					return err
				}
			}
			return nil
		}
	}
	put := func(value []byte) func(*pebble.DB) error {
		return each(func(db *pebble.DB, n uint8) error { return db.Set(ks.AppendSidecarKey(nil, n), value, nil) })
	}
	for name, c := range map[string]struct {
		change  func(*pebble.DB) error
		crashed bool // or they would be taken at their word
	}{
		"missing":       {each(func(db *pebble.DB, n uint8) error { return db.Delete(ks.AppendSidecarKey(nil, n), nil) }), true},
		"damaged":       {put([]byte{1, 0x92, 0xff}), false},
		"empty":         {put(nil), false},
		"newer":         {put([]byte{2}), false},
		"many":          {put(codec.AppendSidecar(nil, &many)), false},
		"of the future": {put(codec.AppendSidecar(nil, &future)), true},
	} {
		t.Run(name, func(t *testing.T) {
			clock := newManualClock(epoch)
			opts := engine.Options{Now: clock.Now}
			inBubble(t, opts, func(t *testing.T, l *engine.Limiter, d *slowDisk) {
				var keys [][]byte
				var long []string
				for i := range 60 {
					keys = append(keys, nth(i))
					must(t, hours(l, string(nth(i)), int64(1+2*(i%2))))
					if i%2 == 1 {
						long = append(long, string(nth(i)))
					}
				}
				clock.Advance(2 * time.Hour)
				want := l.Do(lookingAt(keys), nil)
				fs := d.CrashClone(vfs.CrashCloneCfg{})
				if !c.crashed {
					must(t, l.Close)
					fs = d.MemFS
				}
				edit(t, fs, "store", c.change)
				opts.FS = fs
				l = open(t, "store", opts)
				look := func() {
					t.Helper()
					for i, r := range l.Do(lookingAt(keys), nil) {
						checkResult(t, lookingAt(keys)[i], r, want[i])
					}
				}
				look()
				time.Sleep(2 * time.Minute)
				synctest.Wait()
				look()
				wantRecords(t, l, long...)
				if guesses := l.Guesses(); len(guesses) > 0 {
					t.Errorf("the sidecars %v are guesses", guesses)
				}
				if m := l.Metrics(); m.Records != 30 {
					t.Errorf("%d records, want 30", m.Records)
				}
				// Those that are stored are right, too, and where there are heads.
				sidecars, heads := sidecarsIn(t, l), map[int]int64{}
				for key := range records(t, l) {
					heads[int(keyspaceOf(t, l).Slice([]byte(key)))/codec.SlicesPerSidecar]++
				}
				got := map[int]int64{}
				for n, s := range sidecars {
					for _, count := range s.Counts {
						got[n] += count
					}
				}
				if !maps.Equal(got, heads) {
					t.Errorf("sidecars count %v, want %v", got, heads)
				}
			})
		})
	}
}

// TestResetAllDuringPurge forgets everything between a look and its turn, and
// begins anew. The purge does not take the new for the old.
func TestResetAllDuringPurge(t *testing.T) {
	for _, durability := range durabilities {
		clock := newManualClock(epoch)
		l := open(t, "store", engine.Options{NoPurge: true, Now: clock.Now, Durability: durability, SyncInterval: time.Hour})
		keys := keysOf(t, l, 7, 4)
		must(t, hours(l, keys[0], 1), hours(l, keys[1], 1), hours(l, keys[2], 10), hours(l, "other", 1))
		clock.Advance(time.Hour)
		looks := 0
		l.OnLook(func() {
			if looks++; looks == 1 {
				must(t, l.ResetAll, hours(l, keys[0], 3), hours(l, keys[3], 3))
			}
		})
		purge(t, l)
		l.OnLook(nil)
		must(t, l.Sync)
		wantRecords(t, l, keys[0], keys[3])
		if m := l.Metrics(); m.Records != 2 || m.Purged != 0 {
			t.Errorf("%v: %d records, and %d purged, want 2 and 0", durability, m.Records, m.Purged)
		}
		if guesses := l.Guesses(); len(guesses) > 0 {
			t.Errorf("%v: the sidecars %v are guesses", durability, guesses)
		}
		if err := l.Check(); err != nil {
			t.Errorf("%v: %v", durability, err)
		}
	}
}

// TestResetUnreadableDuringPurge forgets a key whose record can't be read while
// a purge is counting it.
func TestResetUnreadableDuringPurge(t *testing.T) {
	clock := newManualClock(epoch)
	opts := engine.Options{NoPurge: true, Now: clock.Now, FS: vfs.NewMem()}
	l := open(t, "store", opts)
	keys := keysOf(t, l, 7, 2)
	unreadable := []byte(keys[0])
	must(t, hours(l, keys[0], 10), hours(l, keys[1], 1))
	ks := keyspaceOf(t, l)
	must(t, l.Close)
	edit(t, opts.FS, "store", func(db *pebble.DB) error {
		return db.Set(ks.AppendHead(nil, ks.Slice(unreadable), unreadable), unreadableRecord(10), nil)
	})
	l = open(t, "store", opts)
	clock.Advance(time.Hour)
	looks := 0
	l.OnLook(func() {
		if looks++; looks == 1 {
			if found, err := l.Reset(unreadable); !found || err != nil {
				t.Errorf("Reset = %t, %v", found, err)
			}
		}
	})
	purge(t, l)
	l.OnLook(nil)
	wantRecords(t, l)
	if err := l.Check(); err != nil {
		t.Error(err)
	}
	purge(t, l)
	if m := l.Metrics(); looks == 0 || m.Records != 0 || len(l.Guesses()) > 0 {
		t.Errorf("%d looks, and %d records, want some and 0; the sidecars %v are guesses", looks, m.Records, l.Guesses())
	}
}

// TestPassBeforeResetUnreadable forgets a key whose record can't be read, and
// has a pass count it before the round that deletes it is cut.
func TestPassBeforeResetUnreadable(t *testing.T) {
	opts := engine.Options{Now: newManualClock(epoch).Now, Durability: engine.Interval, SyncInterval: time.Hour}
	inBubble(t, opts, func(t *testing.T, l *engine.Limiter, d *slowDisk) {
		key := keysOf(t, l, 7, 1)[0]
		must(t, hours(l, key, 10))
		ks := keyspaceOf(t, l)
		must(t, l.Close)
		edit(t, d.MemFS, "store", func(db *pebble.DB) error {
			if err := db.Set([]byte(metaKey(codec.MetaMark)), codec.AppendMark(nil, codec.Mark{Now: epoch.UnixNano()}), nil); err != nil {
				return err
			}
			return db.Set(ks.AppendHead(nil, ks.Slice([]byte(key)), []byte(key)), unreadableRecord(10), nil)
		})
		opts.FS = d.MemFS
		l = open(t, "store", opts)
		if found, err := l.Reset([]byte(key)); !found || err != nil {
			t.Errorf("Reset = %t, %v", found, err)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if m := l.Metrics(); m.Rounds != 0 || m.PurgePasses < codec.Sidecars {
			t.Fatalf("%d rounds and %d passes, want 0 and some over all", m.Rounds, m.PurgePasses)
		}
		must(t, l.Sync)
		if err := l.Check(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if m := l.Metrics(); m.Records != 0 || len(l.Guesses()) > 0 {
			t.Errorf("%d records, want 0; the sidecars %v are guesses", m.Records, l.Guesses())
		}
	})
}

// unreadableRecord returns a record that can't be read but for its deadline, so
// many hours behind epoch.
func unreadableRecord(hours int) []byte {
	deadline := epoch.Add(time.Duration(hours) * time.Hour).UnixNano()
	record := codec.AppendState(nil, limit.State{Kind: limit.KindGCRA, GCRA: limit.GCRAState{Deadline: deadline}})
	record[len(record)-1] = 99 // its kind
	return record
}

// TestFlushMakesGuessesAnew has Pebble write tables of some slices. Their
// sidecars, guesses after a crash, are counted next.
func TestFlushMakesGuessesAnew(t *testing.T) {
	clock := newManualClock(epoch)
	opts := engine.Options{Now: clock.Now}
	inBubble(t, opts, func(t *testing.T, l *engine.Limiter, d *slowDisk) {
		must(t, hours(l, keysOf(t, l, 3, 1)[0], 100)) // or the store would be as good as new
		must(t, l.Close)
		// Of an empty log and a single table Pebble makes nothing when it is
		// opened.
		edit(t, d.MemFS, "store", func(db *pebble.DB) error {
			if err := db.Set([]byte(metaKey(codec.MetaMark)), codec.AppendMark(nil, codec.Mark{Now: epoch.UnixNano()}), nil); err != nil {
				return err
			}
			if err := db.Flush(); err != nil {
				return err
			}
			return db.Compact(t.Context(), []byte{0}, []byte{0xff}, false)
		})
		opts.FS = d.MemFS
		l = open(t, "store", opts)
		time.Sleep(time.Second + 100*time.Millisecond)
		synctest.Wait()
		key := keysOf(t, l, 250, 1)[0] // near the end, so that a table with it has few other slices
		must(t, hours(l, key, 1))
		before := l.Metrics().PurgePasses
		if guesses := l.Guesses(); !slices.Contains(guesses, 250) || before > 10 {
			t.Fatalf("%d passes have left the guesses %v", before, guesses)
		}
		flush(t, l)
		synctest.Wait()
		if n := l.Metrics().PurgePasses - before; slices.Contains(l.Guesses(), 250) || n < 6 {
			t.Errorf("%d passes after tables were written, want the 6 of the slices in them or more", n)
		}
	})
}
