package engine_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// slowlyPurged returns a limiter whose background pass is under way and takes
// very long: 60,000 expired keys, at the slowest pace.
func slowlyPurged(t *testing.T) *engine.Limiter {
	clock := newManualClock(epoch)
	// It is never closed: where Close hangs, so would the test.
	l, err := engine.Open("store", &engine.Options{FS: vfs.NewMem(), Now: clock.Now, PurgePace: 1, Durability: engine.Never})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := w; i < 60_000; i += 8 {
				if err := hours(l, string(nth(i)), 1)(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	flush(t, l)
	clock.Advance(2 * time.Hour)
	for end := time.Now().Add(30 * time.Second); l.Metrics().Purged == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no pass begins")
		}
	}
	return l
}

// TestPurgeHeedsItsContextDuringAPass calls Purge with a context that ends,
// while a slow pass is under way.
func TestPurgeHeedsItsContextDuringAPass(t *testing.T) {
	l := slowlyPurged(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- l.Purge(ctx) }()
	select {
	case err := <-done:
		if !errors.Is(err, context.DeadlineExceeded) && err != nil {
			t.Errorf("Purge = %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Errorf("Purge with a context of 100 ms has not returned after 10 s")
		closed := make(chan error, 1)
		go func() { closed <- l.Close() }()
		select {
		case <-closed:
		case <-time.After(10 * time.Second):
			t.Fatal("nor has Close, 10 s later")
		}
	}
}

// TestPurgePaceOfOne measures what a pace of one record a second deletes.
func TestPurgePaceOfOne(t *testing.T) {
	l := slowlyPurged(t)
	start := time.Now()
	first := l.Metrics().Purged
	for time.Since(start) < 15*time.Second {
		time.Sleep(time.Second)
		t.Log(time.Since(start).Round(time.Second), l.Metrics().Purged-first)
	}
	if n := l.Metrics().Purged - first; n > 300 {
		t.Errorf("%d records purged in 15 s at a pace of 1 a second", n)
	}
}

// TestPurgeHugeKeys purges keys of 4096 zero bytes and looks at the memory.
func TestPurgeHugeKeys(t *testing.T) {
	clock := newManualClock(epoch)
	dir := t.TempDir()
	l, err := engine.Open(dir, &engine.Options{Now: clock.Now, NoPurge: true, Durability: engine.Never, CacheSize: 1 << 20, BlockCacheSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer closeChecked(t, l)
	key := make([]byte, 4096)
	for i := range 30_000 {
		binary.BigEndian.PutUint32(key[4092:], uint32(i)) // mostly zeros
		must(t, hours(l, string(key), 1))
	}
	flush(t, l)
	clock.Advance(2 * time.Hour)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	var top uint64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	before := heap()
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				top = max(top, m.HeapAlloc)
			}
		}
	})
	purge(t, l)
	close(stop)
	wg.Wait()
	t.Logf("heap before %d MB, at most %d MB, after %d MB; %+v", before>>20, top>>20, heap()>>20, l.Metrics())
	if n := len(records(t, l)); n != 0 {
		t.Errorf("%d left", n)
	}
}

// TestPurgeForeignHeads puts records under keys that are no heads into the
// space of heads, expired. How often does an idle purger read their slices?
func TestPurgeForeignHeads(t *testing.T) {
	clock := newManualClock(epoch)
	var logged syncBuffer
	l := open(t, "store", engine.Options{Now: clock.Now, NoPurge: true, PurgeWait: time.Second, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	name := keysOf(t, l, 5, 1)[0]
	must(t, hours(l, name, 1))
	flush(t, l)
	keys := l.Keys()
	slice := keys.Slice([]byte(name))
	head := keys.AppendHead(nil, slice, []byte(name))
	value := []byte(contents(t, l.DB())[string(head)])
	if len(value) == 0 {
		t.Fatal("no value")
	}
	for i := range 100 {
		// behind the slice comes an escape that is none
		bad := append(keys.AppendSliceStart(nil, int(slice)), 'x', 0, 0x77, byte(i))
		if err := l.DB().Set(bad, value, pebble.Sync); err != nil {
			t.Fatal(err)
		}
	}
	flush(t, l)
	clock.Advance(2 * time.Hour)
	purge(t, l)
	m := l.Metrics()
	t.Logf("after one purge: %+v", m)
	passes := m.PurgePasses
	for range 50 {
		clock.Advance(200 * time.Millisecond)
		if err := engine.Pass(l); err != nil {
			t.Log(err)
		}
	}
	m = l.Metrics()
	t.Logf("%d passes in 10 s; %s", m.PurgePasses-passes, logged.String())
	if m.PurgePasses-passes > 12 {
		t.Errorf("%d passes in 10 s over what can't be deleted, with a wait of 1 s", m.PurgePasses-passes)
	}
	_ = l.Close()
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// TestManyQuotasEndTogether has 20,000 windows of few requests end together.
func TestManyQuotasEndTogether(t *testing.T) {
	clock := newManualClock(epoch)
	l := open(t, "store", engine.Options{Now: clock.Now, NoPurge: true, Durability: engine.Never})
	q := limit.Quota{Limit: 1000, Window: time.Hour}
	n := 20_000
	for i := range n {
		for r := range 3 {
			if _, err := l.TakeQuota(nth(i), fmt.Sprint("r", r), q, 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	clock.Advance(time.Hour - 1)
	purge(t, l)
	for i := 0; i < n; i += 97 {
		if g, err := l.TakeQuota(nth(i), "r1", q, 1); err != nil || !g.Replay {
			t.Fatalf("%d: %+v %v", i, g, err)
		}
	}
	clock.Advance(1)
	// one of them opens its window anew before the purge
	if g, err := l.TakeQuota(nth(3), "r1", q, 1); err != nil || g.Replay || g.Used != 1 {
		t.Fatalf("%+v %v", g, err)
	}
	purge(t, l)
	if g, err := l.TakeQuota(nth(3), "r1", q, 1); err != nil || !g.Replay || g.Used != 1 {
		t.Fatalf("%+v %v", g, err)
	}
	t.Logf("%+v", l.Metrics())
	if got := len(contents(t, l.DB())); got > 10 {
		t.Errorf("%d keys left in the store", got)
	}
}
