package engine_test

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine"
)

// borrowedStores are options that an application may have opened its store with.
var borrowedStores = map[string]func(*pebble.Options){
	"plain":         func(*pebble.Options) {},
	"oldest format": func(o *pebble.Options) { o.FormatMajorVersion = pebble.FormatMinSupported },
	"small": func(o *pebble.Options) {
		o.FormatMajorVersion = pebble.FormatNewest
		o.Comparer = splitBy("behind a slash", func(key []byte) int {
			if n := bytes.IndexByte(key, '/'); n >= 0 {
				return n + 1
			}
			return len(key)
		})
		o.MemTableSize = 64 << 10
		o.L0CompactionThreshold = 1
		for i := range o.Levels {
			o.Levels[i].BlockSize = 256
			o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		}
		for i := range o.TargetFileSizes {
			o.TargetFileSizes[i] = 16 << 10
		}
	},
	"separated values": func(o *pebble.Options) {
		o.FormatMajorVersion = pebble.FormatNewest
		o.MemTableSize = 256 << 10
		o.Experimental.ValueSeparationPolicy = func() pebble.ValueSeparationPolicy {
			return pebble.ValueSeparationPolicy{Enabled: true, MinimumSize: 8, MaxBlobReferenceDepth: 4}
		}
	},
}

// TestBorrowedStore has two limiters live in the store of an application. They must
// answer like their models, and purge what is over, by their sidecars alone.
func TestBorrowedStore(t *testing.T) {
	for name, set := range borrowedStores {
		if testing.Short() && name != "small" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			opts := new(pebble.Options)
			set(opts)
			db := openLender(t, opts)
			borrowers := []*borrower{newBorrower(t, db, "limits/", 1), newBorrower(t, db, "\xff\xfe", 2)}
			for step := range 600 {
				for _, b := range borrowers {
					b.step(t, step)
				}
			}
			purged := uint64(0)
			for _, b := range borrowers {
				purged += b.finish(t)
			}
			if purged < 100 {
				t.Errorf("%d records were purged, want 100 or more", purged)
			}
			must(t, func() error { return db.CheckLevels(nil) }, db.Close)
		})
	}
}

// borrower is a limiter in the store of somebody else, and its model.
type borrower struct {
	*trace
	db     *pebble.DB
	prefix string
	l      *engine.Limiter
	purged uint64
}

func newBorrower(t *testing.T, db *pebble.DB, prefix string, seed uint64) *borrower {
	t.Helper()
	b := &borrower{trace: newTrace(seed), db: db, prefix: prefix}
	b.open(t)
	return b
}

func (b *borrower) open(t *testing.T) {
	t.Helper()
	l, err := engine.New(b.db, &engine.Options{
		Prefix: []byte(b.prefix),
		Now:    b.clock.Now, NoPurge: true, PurgeWait: 1, CacheSize: 1, Durability: engine.Interval, SyncInterval: time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	b.l = l
}

func (b *borrower) close(t *testing.T) {
	t.Helper()
	b.purged += b.l.Metrics().Purged
	must(t, b.l.Check, b.l.Close)
}

func (b *borrower) pass(t *testing.T) {
	t.Helper()
	if err := engine.Pass(b.l); err != nil {
		t.Fatal(err)
	}
}

func (b *borrower) carryOut(t *testing.T, op engine.Op) {
	t.Helper()
	checkResult(t, op, b.l.Do([]engine.Op{op}, nil)[0], b.do(op))
}

func (b *borrower) step(t *testing.T, n int) {
	t.Helper()
	one := func(op engine.Op) { b.carryOut(t, op) }
	b.l.Now()
	b.tick()
	switch b.rng.IntN(20) {
	case 0, 1, 2:
		b.pass(t)
	case 3:
		b.rush(one)
	case 4:
		b.burst(one)
	}
	switch n % 200 {
	case 50:
		must(t, b.db.Flush)
	case 100:
		must(t, b.l.ResetAll)
		clear(b.keys)
		b.mark = b.now
	case 150:
		b.close(t)
		b.open(t)
		b.reopened()
	}
	one(b.op())
	if want := b.all(); n%100 == 0 {
		if got := scan(t, b.l, 5); !maps.Equal(got, want) {
			t.Fatalf("Scan = %v, want %v", got, want)
		}
	}
}

// finish lets all but the longest windows end, and looks at what is left once
// that has been purged. It returns how many records have been, in all.
func (b *borrower) finish(t *testing.T) uint64 {
	t.Helper()
	b.advance(2 * time.Minute)
	must(t, b.l.Sync) // what is staged is not seen by a pass
	b.pass(t)
	must(t, b.l.Sync)
	keys := b.l.Keys()
	live := b.all()
	if len(live) == 0 || len(live) == len(b.keys) {
		t.Errorf("%d of %d keys are live, want some", len(live), len(b.keys))
	}
	for key, value := range contents(t, b.db) {
		if !strings.HasPrefix(key, b.prefix) {
			continue
		}
		_, user, err := keys.ParseHead(nil, []byte(key))
		if deadline, _ := codec.DecodeDeadline([]byte(value)); err == nil {
			if st := live[string(user)]; deadline != st.Deadline.UnixNano() {
				t.Errorf("the record of %q is left until %d, and it is %+v", user, deadline, st)
			}
			continue
		}
		if deadline, user, id, err := keys.ParseRequestKey(nil, []byte(key)); err == nil {
			if deadline != live[string(user)].Deadline.UnixNano() {
				t.Errorf("the request %s of %q is left until %d", id, user, deadline)
			}
		} else if _, user, _, err := keys.ParseChunkKey(nil, []byte(key)); err == nil {
			if !live[string(user)].Exists() {
				t.Errorf("a chunk of %q is left", user)
			}
		}
	}
	b.close(t)
	return b.purged
}

// recorder is the logger of an application that goes on when Pebble would end
// the process.
type recorder struct{ fatal atomic.Int64 }

func (*recorder) Infof(string, ...any)    {}
func (*recorder) Errorf(string, ...any)   {}
func (r *recorder) Fatalf(string, ...any) { r.fatal.Add(1) }

// TestBorrowedStoreFails has the log of an application's store fail. The limiter
// says so, as one with a store of its own does, and has Pebble say it to nobody's
// logger.
func TestBorrowedStoreFails(t *testing.T) {
	checkLeaks(t)
	for name, match := range map[string]func(errorfs.Op) bool{
		"write": on("*.log", writes...),
		"sync":  on("*.log", syncs...),
	} {
		t.Run(name, func(t *testing.T) {
			log := new(recorder)
			f := &fault{match: match, n: 1, err: syscall.EIO, sticky: true}
			db, err := pebble.Open("store", &pebble.Options{FS: newHookFS(vfs.NewMem(), f.inject), Logger: log})
			if err != nil {
				t.Fatal(err)
			}
			l, err := engine.New(db, &engine.Options{Prefix: []byte("limits/")})
			if err != nil {
				t.Fatal(err)
			}
			must(t, throttle(l, "k", 1))
			f.armed.Store(true)
			for range 2 {
				if err := throttle(l, "k", 1)(); !errors.Is(err, engine.ErrStorage) || !errors.Is(err, syscall.EIO) {
					t.Errorf("Throttle = %v, want %v that wraps %v", err, engine.ErrStorage, syscall.EIO)
				}
			}
			if err := l.Close(); !errors.Is(err, engine.ErrStorage) {
				t.Errorf("Close = %v, want %v", err, engine.ErrStorage)
			}
			if n := log.fatal.Load(); n > 0 {
				t.Errorf("Pebble would have ended the process %d times", n)
			}
			_ = db.Close()
		})
	}
}

// TestLogFailsBetweenSyncs has the log of an application's store fail while nobody
// waits for it. The limiter hears of that with its next sync.
func TestLogFailsBetweenSyncs(t *testing.T) {
	f := &fault{match: on("*.log", append(slices.Clone(writes), syncs...)...), n: 1, err: syscall.EIO, sticky: true}
	db, err := pebble.Open("store", &pebble.Options{FS: newHookFS(vfs.NewMem(), f.inject), Logger: new(recorder)})
	if err != nil {
		t.Fatal(err)
	}
	l, err := engine.New(db, &engine.Options{Prefix: []byte("limits/"), Durability: engine.Interval, SyncInterval: time.Millisecond, NoPurge: true})
	if err != nil {
		t.Fatal(err)
	}
	f.armed.Store(true)
	must(t, throttle(l, "k", 1))
	<-l.Failed()
	if err := throttle(l, "k", 1)(); !errors.Is(err, engine.ErrStorage) || !errors.Is(err, syscall.EIO) {
		t.Errorf("Throttle = %v, want %v that wraps %v", err, engine.ErrStorage, syscall.EIO)
	}
	if err := l.Close(); !errors.Is(err, engine.ErrStorage) {
		t.Errorf("Close = %v, want %v", err, engine.ErrStorage)
	}
	_ = db.Close()
}
