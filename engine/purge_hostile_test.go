package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// TestPurgeHeedsItsContextDuringAPass asks for a purge while one in the
// background goes at the slowest pace. It returns when its context ends, and
// Close ends both.
func TestPurgeHeedsItsContextDuringAPass(t *testing.T) {
	clock := newManualClock(epoch)
	l := open(t, "store", engine.Options{Now: clock.Now, PurgePace: 1, Durability: engine.Never})
	for i := range 20_000 {
		must(t, hours(l, string(nth(i)), 1))
	}
	flush(t, l)
	clock.Advance(2 * time.Hour)
	for l.Metrics().Purged == 0 { // a test that waits for ever fails, too
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := l.Purge(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Purge = %v, want %v", err, context.DeadlineExceeded)
	}
	waiting := make(chan error, 1)
	go func() { waiting <- l.Purge(t.Context()) }()
	must(t, l.Close)
	if err := <-waiting; err != nil && !errors.Is(err, engine.ErrClosed) {
		t.Errorf("Purge = %v while the limiter was closed", err)
	}
}

// TestSidecarsLostInACleanStore takes away the sidecars of a store that was
// closed in good order. Passes make them anew.
func TestSidecarsLostInACleanStore(t *testing.T) {
	clock := newManualClock(epoch)
	opts := engine.Options{Now: clock.Now, NoPurge: true, FS: vfs.NewMem()}
	l := open(t, "store", opts)
	for i := range 2000 {
		must(t, hours(l, string(nth(i)), 1))
	}
	keys := l.Keys()
	must(t, l.Close)
	edit(t, opts.FS, "store", func(db *pebble.DB) error {
		lower, upper := keys.SidecarBounds()
		return db.DeleteRange(lower, upper, pebble.Sync)
	})
	clock.Advance(2 * time.Hour)
	l = open(t, "store", opts)
	for range 300 {
		if err := engine.Pass(l); err != nil {
			t.Fatal(err)
		}
	}
	must(t, l.Sync) // a pass does not wait for what it has staged
	if n := len(records(t, l)); n != 0 {
		t.Errorf("%d expired records are left", n)
	}
}

// TestPurgeForeignHeads has records among the heads under keys that are none.
// They stay, and no pass comes back for them all the time.
func TestPurgeForeignHeads(t *testing.T) {
	clock := newManualClock(epoch)
	l, err := engine.Open("store", &engine.Options{FS: vfs.NewMem(), Now: clock.Now, NoPurge: true})
	if err != nil {
		t.Fatal(err)
	}
	name := keysOf(t, l, 5, 1)[0]
	must(t, hours(l, name, 1))
	flush(t, l)
	keys := l.Keys()
	slice := keys.Slice([]byte(name))
	value := []byte(contents(t, l.DB())[string(keys.AppendHead(nil, slice, []byte(name)))])
	const foreign = 100
	for i := range foreign {
		bad := append(keys.AppendSliceStart(nil, int(slice)), 'x', 0, 0x77, byte(i)) // an escape that is none
		if err := l.DB().Set(bad, value, pebble.Sync); err != nil {
			t.Fatal(err)
		}
	}
	clock.Advance(2 * time.Hour)
	purge(t, l)
	n := 0
	for key := range contents(t, l.DB()) {
		if strings.HasPrefix(key, string(keys.AppendSliceStart(nil, int(slice)))) {
			n++
		}
	}
	if n != foreign {
		t.Errorf("%d records are left, want the %d foreign ones", n, foreign)
	}
	passes := l.Metrics().PurgePasses
	for range 50 {
		if err := engine.Pass(l); err != nil {
			t.Fatal(err)
		}
	}
	if n := l.Metrics().PurgePasses - passes; n != 0 {
		t.Errorf("%d passes over what can't be purged", n)
	}
	must(t, l.Close)
}

// TestManyQuotasEndTogether has many windows of few requests end at one instant,
// and purges just before it, and behind it.
func TestManyQuotasEndTogether(t *testing.T) {
	clock := newManualClock(epoch)
	l := open(t, "store", engine.Options{Now: clock.Now, NoPurge: true, Durability: engine.Never})
	q := limit.Quota{Limit: 1000, Window: time.Hour}
	take := func(i int) limit.Grant {
		t.Helper()
		g, err := l.TakeQuota(nth(i), "id", q, 1)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	const keys = 20_000
	for i := range keys {
		take(i)
	}
	clock.Advance(time.Hour - 1)
	purge(t, l)
	for i := 0; i < keys; i += 97 {
		if g := take(i); !g.Replay {
			t.Fatalf("a retry of key %d in its window is answered %+v", i, g)
		}
	}
	clock.Advance(1)
	for _, replay := range []bool{false, true} { // the window opens anew before the purge
		if g := take(3); g.Replay != replay || g.Used != 1 {
			t.Errorf("the request is answered %+v, want replay %t", g, replay)
		}
		purge(t, l)
	}
	if n := len(records(t, l)); n != 1 {
		t.Errorf("%d records are left, want 1", n)
	}
}

// TestRetriesAtTheEndOfAWindow sends the same few requests again and again, over
// short windows, while the purge works as hard as it can. In no window is more
// spent than by one of each.
func TestRetriesAtTheEndOfAWindow(t *testing.T) {
	const callers, rounds, keys, ids = 8, 20_000, 40, 6
	l := open(t, "store", engine.Options{PurgeWait: 1, Durability: engine.Interval, CacheSize: 1, SyncInterval: time.Millisecond})
	stop := make(chan struct{})
	var purging, calling sync.WaitGroup
	purging.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := l.Purge(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	for w := range callers {
		calling.Go(func() {
			for i := range rounds {
				n := (w + 7*i) % keys
				q := limit.Quota{Limit: 1000, Window: time.Duration(5+n) * time.Millisecond}
				g, err := l.TakeQuota(nth(n), fmt.Sprint("id", (w+7*i)%ids), q, 1)
				if err != nil || g.Used > ids {
					t.Errorf("key %d is answered %+v, %v, and %d requests use it", n, g, err, ids)
					return
				}
			}
		})
	}
	calling.Wait()
	close(stop)
	purging.Wait()
}

// TestIdleStoreLosesItsGarbage has long lists expire and nothing else happen.
// The range tombstones that end them must not stay above the tables that they
// empty.
func TestIdleStoreLosesItsGarbage(t *testing.T) {
	if testing.Short() {
		t.Skip("two million events")
	}
	synctest.Test(t, func(t *testing.T) {
		clock := newManualClock(epoch)
		l := open(t, "store", engine.Options{Now: clock.Now, Durability: engine.Never, SyncInterval: time.Hour})
		ops := make([]engine.Op, 1000)
		for range 2000 {
			for i := range ops {
				clock.Advance(time.Microsecond)
				ops[i] = engine.Op{Verb: engine.OpAllow, Key: nth(i % 2), Rolling: limit.Rolling{Limit: 1 << 30, Window: time.Hour}}
				if r := l.Do(ops[i:i+1], nil)[0]; r.Err != nil {
					t.Fatal(r.Err)
				}
			}
		}
		compact(t, l)
		before := l.Metrics().TableBytes
		clock.Advance(2 * time.Hour)
		time.Sleep(time.Minute)
		m := l.Metrics()
		if m.Purged != 2 || before < 512<<10 || m.TableBytes >= 64<<10 {
			t.Errorf("%d lists were purged; the tables had %d bytes, and %d a minute later:\n%v", m.Purged, before, m.TableBytes, l.DB().Metrics())
		}
	})
}
