package engine_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// checkTime is when the stores of these tests are checked. What they hold was
// written in the seconds after epoch, and some of it has expired since.
var checkTime = epoch.Add(30 * time.Minute)

func atCheckTime() time.Time { return checkTime }

// The keys of a checkable store.
var (
	openQuota = []byte("open\x00quota") // 10 requests
	overQuota = []byte("over")          // 5 requests
	longList  = []byte("long\x00list")  // 400 events
	shortList = []byte("short")         // 3 events
	goneList  = []byte("gone")          // 400 events, all expired
)

// newCheckable makes a store of all kinds, long and short, live and expired, and
// closes it. It has no sidecars.
func newCheckable(t *testing.T, fs vfs.FS) {
	t.Helper()
	clock := newManualClock(epoch)
	l := open(t, "store", engine.Options{FS: fs, Now: clock.Now})
	charge(t, l, 0, 50, limit.PerDay(10))
	charge(t, l, 50, 70, limit.PerSecond(10))
	take(t, l, openQuota, 0, 10)
	for i := range 5 {
		if g, err := l.TakeQuota(overQuota, fmt.Sprint(i), limit.Quota{Limit: 5, Window: time.Minute}, 1); !g.Accepted || err != nil {
			t.Fatalf("TakeQuota = %+v, %v", g, err)
		}
	}
	record(t, l, clock, longList, 400)
	record(t, l, clock, shortList, 3)
	for range 400 {
		clock.Advance(time.Millisecond)
		if a, err := l.Allow(goneList, limit.Rolling{Limit: 1000, Window: time.Minute}); !a.Allowed || err != nil {
			t.Fatalf("Allow = %+v, %v", a, err)
		}
	}
	closeChecked(t, l)
	edit(t, fs, "store", func(db *pebble.DB) error {
		return errors.Join(
			db.DeleteRange([]byte("s"), []byte("t"), pebble.Sync),
			db.Set([]byte(metaKey(codec.MetaMark)), codec.AppendMark(nil, codec.Mark{Now: clock.Now().UnixNano()}), pebble.Sync))
	})
}

// check checks the store of newCheckable.
func check(t *testing.T, fs vfs.FS, now time.Time) engine.Report {
	t.Helper()
	r, err := engine.Check("store", &engine.Options{FS: fs, Now: func() time.Time { return now }}, nil)
	if err != nil {
		t.Fatalf("Check: %v", err)
	}
	if int64(len(r.Damage)) != min(r.Damaged, engine.MaxDamage) {
		t.Errorf("%d damages are named, of %d", len(r.Damage), r.Damaged)
	}
	return r
}

func TestCheck(t *testing.T) {
	fs := vfs.NewMem()
	newCheckable(t, fs)
	r := check(t, fs, checkTime)
	for _, d := range r.Damage {
		t.Errorf("damage: %q %s", d.Key, d.What)
	}
	all := int64(0)
	edit(t, fs, "store", func(db *pebble.DB) error {
		for key, value := range contents(t, db) {
			all += int64(len(key) + len(value))
		}
		return nil
	})
	want := engine.Report{
		Format:          codec.Format,
		Mark:            epoch.Add(803 * time.Millisecond),
		Now:             checkTime,
		GCRA:            engine.Count{Live: 50, Expired: 20},
		Quota:           engine.Count{Live: 1, Expired: 1},
		Rolling:         engine.Count{Live: 2, Expired: 1},
		Requests:        engine.Count{Live: 10, Expired: 5},
		Chunks:          12,
		MissingSidecars: r.MissingSidecars,
		Bytes:           all,
	}
	if got, want := fmt.Sprintf("%+v", r), fmt.Sprintf("%+v", want); got != want {
		t.Errorf("Check = %s, want %s", got, want)
	}

	// A clock behind the mark is not believed.
	if r := check(t, fs, epoch); !r.Now.Equal(want.Mark) {
		t.Errorf("Check judges by %v, want the mark %v", r.Now, want.Mark)
	}
	// What is over may be gone.
	edit(t, fs, "store", func(db *pebble.DB) error {
		keys := codec.Keyspace{}
		return db.DeleteRange(keys.AppendRequestStart(nil, 0), keys.AppendRequestStart(nil, checkTime.UnixNano()+1), pebble.Sync)
	})
	if r := check(t, fs, checkTime); r.Damaged != 0 || r.Requests.Expired != 0 || r.Requests.Live != 10 {
		t.Errorf("without requests that are over, Check = %+v", r)
	}
}

// damaged is a store that is being damaged.
type damaged struct {
	t    *testing.T
	db   *pebble.DB
	keys codec.Keyspace
}

// tamper changes the store of newCheckable.
func tamper(t *testing.T, fs vfs.FS, change func(*damaged)) {
	t.Helper()
	edit(t, fs, "store", func(db *pebble.DB) error {
		id, err := codec.DecodeIdentity([]byte(contents(t, db)[metaKey(codec.MetaIdentity)]))
		if err != nil {
			return err
		}
		change(&damaged{t, db, codec.Keyspace{Seed: id.Seed}})
		return nil
	})
}

// head returns the key of the head of key, and what it holds.
func (d *damaged) head(key []byte) ([]byte, limit.State) {
	d.t.Helper()
	head := d.keys.AppendHead(nil, d.keys.Slice(key), key)
	state, err := codec.DecodeState([]byte(contents(d.t, d.db)[string(head)]))
	if err != nil {
		d.t.Fatalf("the record of %q: %v", key, err)
	}
	return head, state
}

// chunks returns the keys of the chunks of key's list, oldest first.
func (d *damaged) chunks(key []byte) (chunks []string) {
	d.t.Helper()
	for chunk := range contents(d.t, d.db) {
		if _, user, _, err := d.keys.ParseChunkKey(nil, []byte(chunk)); err == nil && bytes.Equal(user, key) {
			chunks = append(chunks, chunk)
		}
	}
	if len(chunks) < 3 {
		d.t.Fatalf("%q has %d chunks", key, len(chunks))
	}
	slices.Sort(chunks)
	return chunks
}

// requests returns the keys of the requests of key's quota.
func (d *damaged) requests(key []byte) (requests []string) {
	d.t.Helper()
	for request := range contents(d.t, d.db) {
		if _, user, _, err := d.keys.ParseRequestKey(nil, []byte(request)); err == nil && bytes.Equal(user, key) {
			requests = append(requests, request)
		}
	}
	if len(requests) == 0 {
		d.t.Fatalf("%q has no requests", key)
	}
	slices.Sort(requests)
	return requests
}

// refund refunds the first n requests of key's quota, which is no damage.
func (d *damaged) refund(key []byte, n int) {
	d.t.Helper()
	head, s := d.head(key)
	for _, request := range d.requests(key)[:n] {
		earlier, err := codec.DecodeRequest(d.get(request))
		if err != nil {
			d.t.Fatal(err)
		}
		next, r := s.Quota.Refund(epoch.UnixNano(), earlier)
		if !r.Refunded || r.Replay {
			d.t.Fatalf("Refund of %+v = %+v", earlier, r)
		}
		s.Quota = next
		d.set(request, codec.AppendRequest(nil, limit.Request{Cost: r.Cost, Used: r.Used, Refunded: true}))
	}
	d.set(string(head), codec.AppendState(nil, s))
}

func (d *damaged) get(key string) []byte { return []byte(contents(d.t, d.db)[key]) }

func (d *damaged) set(key string, value []byte) {
	d.t.Helper()
	if err := d.db.Set([]byte(key), value, pebble.Sync); err != nil {
		d.t.Fatal(err)
	}
}

func (d *damaged) delete(keys ...string) {
	d.t.Helper()
	for _, key := range keys {
		if err := d.db.Delete([]byte(key), pebble.Sync); err != nil {
			d.t.Fatal(err)
		}
	}
}

// move renames a key.
func (d *damaged) move(from string, to []byte) {
	d.t.Helper()
	d.set(string(to), d.get(from))
	d.delete(from)
}

// TestCheckDamage has each kind of damage found and named, and nothing else.
// What can be mended is then mended as the report says.
func TestCheckDamage(t *testing.T) {
	const restore, reset, none = engine.RemedyRestore, engine.RemedyReset, engine.RemedyNone
	junk := []byte{codec.Version, 0x91, 0xc0}
	for _, c := range []struct {
		name   string
		damage func(*damaged)
		key    []byte // of the one damage
		what   string // is in it
		remedy engine.Remedy
	}{
		{"a record is junk", func(d *damaged) {
			head, _ := d.head(nth(3))
			d.set(string(head), junk)
		}, nth(3), "its record can't be read: codec: corrupt", reset},
		{"a record is empty", func(d *damaged) {
			head, _ := d.head(nth(3))
			d.set(string(head), nil)
		}, nth(3), "its record can't be read: codec: corrupt", reset},
		{"a record of another version", func(d *damaged) {
			head, _ := d.head(nth(3))
			d.set(string(head), []byte{codec.Version + 1, 0x90})
		}, nth(3), "its record can't be read: codec: unknown version", reset},
		{"the record of a long list is junk", func(d *damaged) {
			head, _ := d.head(longList)
			d.set(string(head), junk)
		}, longList, "its record can't be read", reset},
		{"a record in another slice", func(d *damaged) {
			head, _ := d.head(nth(3))
			d.move(string(head), d.keys.AppendHead(nil, d.keys.Slice(nth(3))^1, nth(3)))
		}, nth(3), "its record lies in slice", restore},
		{"a quota in another slice", func(d *damaged) {
			head, _ := d.head(overQuota)
			d.move(string(head), d.keys.AppendHead(nil, d.keys.Slice(overQuota)^1, overQuota))
		}, overQuota, "its record lies in slice", restore},
		{"a head without an end", func(d *damaged) {
			d.set("h\x12\x34key", junk)
		}, nil, "has no end", restore},

		{"a quota has spent more", func(d *damaged) {
			head, s := d.head(openQuota)
			s.Quota.Used++
			d.set(string(head), codec.AppendState(nil, s))
		}, openQuota, "its requests have spent 10, and its record says 11", reset},
		{"a request is missing", func(d *damaged) {
			d.delete(d.requests(openQuota)[3])
		}, openQuota, "its requests have spent 9, and its record says 10", reset},
		{"all requests are missing", func(d *damaged) {
			d.delete(d.requests(openQuota)...)
		}, openQuota, "it has spent 10, and the records of its requests are missing", reset},
		{"a request is junk", func(d *damaged) {
			d.set(d.requests(openQuota)[3], junk)
		}, openQuota, "the record of a request in its window up to 2023-11-14T23:13:20Z can't be read", reset},
		{"a request of a window that is over is junk", func(d *damaged) {
			d.set(d.requests(overQuota)[3], junk)
		}, overQuota, "the record of a request in its window up to 2023-11-14T22:14:20Z can't be read", none},
		{"a quota has been refunded", func(d *damaged) {
			head, s := d.head(openQuota)
			s.Quota.Used--
			d.set(string(head), codec.AppendState(nil, s))
		}, openQuota, "its requests have spent 10, and its record says 9", reset},
		{"a request has been refunded", func(d *damaged) {
			head, s := d.head(openQuota)
			d.refund(openQuota, 1)
			d.set(string(head), codec.AppendState(nil, s))
		}, openQuota, "its requests have spent 9, and its record says 10", reset},
		{"all requests have been refunded", func(d *damaged) {
			head, s := d.head(openQuota)
			d.refund(openQuota, 10)
			d.set(string(head), codec.AppendState(nil, s))
		}, openQuota, "its requests have spent 0, and its record says 10", reset},
		{"a quota has been refunded altogether", func(d *damaged) {
			head, s := d.head(openQuota)
			s.Quota.Used = 0
			d.set(string(head), codec.AppendState(nil, s))
		}, openQuota, "its requests have spent 10, and its record says 0", reset},
		{"a request beside refunded ones is missing", func(d *damaged) {
			d.refund(openQuota, 4)
			d.delete(d.requests(openQuota)[4])
		}, openQuota, "its requests have spent 5, and its record says 6", reset},
		{"all requests are missing, and refunded", func(d *damaged) {
			d.refund(openQuota, 10)
			d.delete(d.requests(openQuota)...)
		}, openQuota, "it has spent 0, and the records of its requests are missing", reset},
		{"an open quota is missing, and refunded", func(d *damaged) {
			head, _ := d.head(openQuota)
			d.refund(openQuota, 10)
			d.delete(string(head))
		}, openQuota, "it has requests in a window up to 2023-11-14T23:13:20Z that its record does not know", none},
		{"an open quota is missing", func(d *damaged) {
			head, _ := d.head(openQuota)
			d.delete(string(head))
		}, openQuota, "it has requests in a window up to 2023-11-14T23:13:20Z that its record does not know", none},
		{"a request without an id", func(d *damaged) {
			lower, _ := d.keys.RequestBounds(1, openQuota)
			d.set(string(lower), junk)
		}, nil, "has no request id", restore},

		{"the first chunk is missing", func(d *damaged) {
			d.delete(d.chunks(longList)[0])
		}, longList, "its chunks hold the events 50 to 299, not 0 to 299", reset},
		{"a chunk is missing", func(d *damaged) {
			d.delete(d.chunks(longList)[2])
		}, longList, "its chunk from event 150 on follows one that ends before event 100", reset},
		{"the last chunk is missing", func(d *damaged) {
			d.delete(d.chunks(longList)[5])
		}, longList, "its chunks hold the events 0 to 249, not 0 to 299", reset},
		{"all chunks are missing", func(d *damaged) {
			d.delete(d.chunks(longList)...)
		}, longList, "the chunks of its events 0 to 299 are missing", reset},
		{"a chunk of an expired list is missing", func(d *damaged) {
			d.delete(d.chunks(goneList)[2])
		}, goneList, "its chunk from event 150 on follows one that ends before event 100", none},
		{"a chunk is junk", func(d *damaged) {
			d.set(d.chunks(longList)[2], junk)
		}, longList, "its chunk from event 100 on can't be read", reset},
		{"the last chunk is junk", func(d *damaged) {
			d.set(d.chunks(longList)[5], junk)
		}, longList, "its chunk from event 250 on can't be read", reset},
		{"a chunk lies under another ordinal", func(d *damaged) {
			d.move(d.chunks(longList)[2], d.keys.AppendChunkKey(nil, d.keys.Slice(longList), longList, 101))
		}, longList, "its chunk from event 101 on begins with event 100", reset},
		{"a chunk ends at another instant", func(d *damaged) {
			key := d.chunks(longList)[2]
			c, err := codec.DecodeChunk(d.get(key))
			if err != nil {
				d.t.Fatal(err)
			}
			c.After--
			d.set(key, codec.AppendChunk(nil, c))
		}, longList, "its chunk from event 150 on begins at", reset},
		{"the last chunk ends at another instant", func(d *damaged) {
			key := d.chunks(longList)[5]
			c, err := codec.DecodeChunk(d.get(key))
			if err != nil {
				d.t.Fatal(err)
			}
			c.After--
			d.set(key, codec.AppendChunk(nil, c))
		}, longList, "its chunks end before", reset},
		{"a list has one chunk too many", func(d *damaged) {
			head, s := d.head(longList)
			s.Rolling.Front = 50
			s.Rolling.First = 50
			d.set(string(head), codec.AppendState(nil, s))
		}, longList, "its chunks hold the events 0 to 299, not 50 to 299", restore},
		{"a short list has chunks", func(d *damaged) {
			key := d.chunks(longList)[2]
			d.set(string(d.keys.AppendChunkKey(nil, d.keys.Slice(shortList), shortList, 100)), d.get(key))
		}, shortList, "it has chunks for the events 100 to 149, and its record knows of none", restore},
		{"a list is missing", func(d *damaged) {
			head, _ := d.head(longList)
			d.delete(string(head))
		}, longList, "it has chunks of a rolling list that is not there, for events 0 to 299", restore},
		{"a list has become a rate", func(d *damaged) {
			head, _ := d.head(longList)
			_, s := d.head(nth(3))
			d.set(string(head), codec.AppendState(nil, s))
		}, longList, "it has chunks of a rolling list and holds none", restore},
		{"a chunk in another slice", func(d *damaged) {
			d.set(string(d.keys.AppendChunkKey(nil, d.keys.Slice(longList)^1, longList, 100)), d.get(d.chunks(longList)[2]))
		}, longList, "it has chunks of a rolling list in slice", restore},
		{"a chunk behind all heads", func(d *damaged) {
			key := append([]byte("c\xff\xff"), "\xff\x00\x01\x00\x00\x00\x00\x00\x00\x00\x64"...)
			d.set(string(key), d.get(d.chunks(longList)[2]))
		}, []byte("\xff"), "it has chunks of a rolling list", restore},
		{"a chunk without an ordinal", func(d *damaged) {
			d.set("c\x12\x34key\x00\x01", junk)
		}, nil, "has no ordinal", restore},

		{"a key before all tags", func(d *damaged) { d.set("a", nil) }, nil, "the store has a key that gabion does not write: 61", restore},
		{"a key between the tags", func(d *damaged) { d.set("i", nil) }, nil, "the store has a key that gabion does not write: 69", restore},
		{"a key behind all tags", func(d *damaged) { d.set("\xff", nil) }, nil, "the store has a key that gabion does not write: ff", restore},
		{"an unknown meta value", func(d *damaged) { d.set(metaKey("x"), nil) }, nil, "the store has a key that gabion does not write: 6d78", restore},
		{"the mark is junk", func(d *damaged) { d.set(metaKey(codec.MetaMark), junk) }, nil, "the mark can't be read", restore},

		{"a sidecar without a number", func(d *damaged) { d.set("s", nil) }, nil, "is not that of a sidecar", restore},
		{"a sidecar is junk", func(d *damaged) { d.set("s\x07", junk) }, nil, "sidecar 7 can't be read", none},
	} {
		t.Run(c.name, func(t *testing.T) {
			fs := vfs.NewMem()
			newCheckable(t, fs)
			tamper(t, fs, c.damage)
			r := check(t, fs, checkTime)
			if len(r.Damage) != 1 {
				t.Fatalf("Check finds %+v, want one damage", r.Damage)
			}
			got := r.Damage[0]
			if !bytes.Equal(got.Key, c.key) || !strings.Contains(got.What, c.what) {
				t.Errorf("Check names %q: %s; want %q: %s", got.Key, got.What, c.key, c.what)
			}
			if got.Remedy != c.remedy {
				t.Errorf("the remedy for %q is %v, want %v", got.What, got.Remedy, c.remedy)
			}
			if got.Remedy != reset || t.Failed() {
				return
			}
			l, err := engine.Open("store", &engine.Options{FS: fs, Now: atCheckTime})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.Reset(c.key); err != nil {
				t.Errorf("Reset: %v", err)
			}
			if err := l.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
			if r := check(t, fs, checkTime); r.Damaged != 0 {
				t.Errorf("after Reset Check finds %+v", r.Damage)
			}
		})
	}
}

// TestCheckRefunded checks quotas of which something has been refunded, and
// everything.
func TestCheckRefunded(t *testing.T) {
	for _, n := range []int{1, 9, 10} {
		fs := vfs.NewMem()
		newCheckable(t, fs)
		tamper(t, fs, func(d *damaged) {
			d.refund(openQuota, n)
			d.refund(overQuota, n/2)
		})
		if r := check(t, fs, checkTime); r.Damaged != 0 || r.Requests.Live != 10 || r.Quota.Live != 1 {
			t.Errorf("with %d requests refunded Check = %+v, want no damage", n, r)
		}
	}
}

// TestCheckOrphansOfWindow has the requests of a window that has lost its record
// found, and no longer once it is over.
func TestCheckOrphansOfWindow(t *testing.T) {
	fs := vfs.NewMem()
	newCheckable(t, fs)
	tamper(t, fs, func(d *damaged) {
		head, _ := d.head(openQuota)
		d.delete(string(head))
	})
	if r := check(t, fs, checkTime); r.Damaged != 1 {
		t.Errorf("Check finds %+v, want one damage", r.Damage)
	}
	if r := check(t, fs, epoch.Add(time.Hour)); r.Damaged != 0 {
		t.Errorf("when the window is over Check finds %+v", r.Damage)
	}
}

// TestCheckManyDamages counts more damages than are named.
func TestCheckManyDamages(t *testing.T) {
	const n = engine.MaxDamage + 10
	fs := vfs.NewMem()
	newCheckable(t, fs)
	edit(t, fs, "store", func(db *pebble.DB) error {
		var errs []error
		for i := range n {
			errs = append(errs, db.Set(fmt.Appendf(nil, "x%d", i), nil, pebble.Sync))
		}
		return errors.Join(errs...)
	})
	if r := check(t, fs, checkTime); r.Damaged != n || len(r.Damage) != engine.MaxDamage {
		t.Errorf("Check counts %d damages and names %d, want %d and %d", r.Damaged, len(r.Damage), n, engine.MaxDamage)
	}
}

// bucketOf is how FORMAT.md tells the bucket of a deadline: each begins at a
// distance, in units of 2^26 ns, that is four to seven times a power of two.
func bucketOf(since, deadline int64) (bucket int) {
	distance := max(deadline-since, 0)
	for b := range codec.SidecarBuckets {
		begin := int64(b)
		if b >= 4 {
			begin = int64(4+b%4) << (b/4 - 1)
		}
		if distance >= begin<<26 {
			bucket = b
		}
	}
	return bucket
}

// TestCheckSidecars checks sidecars that are right and wrong, in a store that
// was closed with them up to date, and in one that was not.
func TestCheckSidecars(t *testing.T) {
	for _, c := range []struct {
		name           string
		change         func(all map[uint8]*codec.Sidecar)
		stale, missing int64
	}{
		{"right", func(map[uint8]*codec.Sidecar) {}, 0, 0},
		{"one deadline too many", func(all map[uint8]*codec.Sidecar) { all[first(all)].Counts[99]++ }, 1, 0},
		{"one in another bucket", func(all map[uint8]*codec.Sidecar) {
			s := all[first(all)]
			b := slices.IndexFunc(s.Counts[:], func(n int64) bool { return n > 0 })
			s.Counts[b]--
			s.Counts[b+1]++
		}, 1, 0},
		{"another since", func(all map[uint8]*codec.Sidecar) { all[first(all)].Since -= int64(time.Hour) }, 1, 0},
		{"one missing", func(all map[uint8]*codec.Sidecar) { delete(all, first(all)) }, 0, 1},
		{"one of nothing", func(all map[uint8]*codec.Sidecar) {
			for n := range uint8(255) {
				if all[n] == nil {
					all[n] = new(codec.Sidecar)
					return
				}
			}
		}, 0, 0},
		{"one of what is not there", func(all map[uint8]*codec.Sidecar) {
			for n := range uint8(255) {
				if all[n] == nil {
					all[n] = new(codec.Sidecar)
					all[n].Counts[3] = 1
					return
				}
			}
		}, 1, 0},
	} {
		for _, clean := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/clean=%t", c.name, clean), func(t *testing.T) {
				fs := vfs.NewMem()
				newCheckable(t, fs)
				all := make(map[uint8]*codec.Sidecar)
				edit(t, fs, "store", func(db *pebble.DB) error {
					keys := codec.Keyspace{}
					for head, record := range contents(t, db) {
						slice, _, err := keys.ParseHead(nil, []byte(head))
						if err != nil {
							continue
						}
						deadline, err := codec.DecodeDeadline([]byte(record))
						if err != nil {
							return err
						}
						n := uint8(slice / codec.SlicesPerSidecar)
						if all[n] == nil {
							all[n] = &codec.Sidecar{Since: epoch.Add(2 * time.Second).UnixNano()}
						}
						all[n].Counts[bucketOf(all[n].Since, deadline)]++
					}
					c.change(all)
					for n, s := range all {
						if err := db.Set(keys.AppendSidecarKey(nil, n), codec.AppendSidecar(nil, s), pebble.Sync); err != nil {
							return err
						}
					}
					mark := codec.Mark{Now: epoch.Add(time.Second).UnixNano(), Clean: clean}
					return db.Set([]byte(metaKey(codec.MetaMark)), codec.AppendMark(nil, mark), pebble.Sync)
				})
				r := check(t, fs, checkTime)
				if r.Clean != clean || r.Sidecars != int64(len(all)) || r.StaleSidecars != c.stale || r.MissingSidecars != c.missing {
					t.Errorf("Check finds %d sidecars, %d stale, %d missing, clean %t; want %d, %d, %d, %t",
						r.Sidecars, r.StaleSidecars, r.MissingSidecars, r.Clean, len(all), c.stale, c.missing, clean)
				}
				want := int64(0)
				if clean {
					want = c.stale + c.missing
				}
				if r.Damaged != want {
					t.Errorf("Check finds %+v, want %d damages", r.Damage, want)
				}
			})
		}
	}
}

func first(all map[uint8]*codec.Sidecar) uint8 { return slices.Min(slices.Collect(maps.Keys(all))) }

// TestCheckUnflushed checks stores whose newest changes are in the log alone, and
// compares all files before and after.
func TestCheckUnflushed(t *testing.T) {
	crashable := vfs.NewCrashableMem()
	clock := newManualClock(epoch)
	l := open(t, "store", engine.Options{FS: crashable, Now: clock.Now})
	charge(t, l, 0, 1000, limit.PerDay(10))
	flush(t, l)
	record(t, l, clock, longList, 400)
	take(t, l, openQuota, 0, 10)
	killed := crashable.CrashClone(vfs.CrashCloneCfg{})
	closeChecked(t, l)
	for name, fs := range map[string]*vfs.MemFS{"closed": crashable, "killed": killed} {
		before := list(t, fs, "store")
		r := check(t, fs, checkTime)
		if r.Damaged != 0 || r.GCRA.Live != 1000 || r.Chunks != 6 || r.Requests.Live != 10 {
			t.Errorf("%s: Check = %+v", name, r)
		}
		after := list(t, fs, "store")
		delete(before, "LOCK")
		delete(after, "LOCK")
		if !maps.Equal(before, after) {
			t.Errorf("%s: Check has changed the files from %v to %v", name, sizes(before), sizes(after))
		}
	}
}

func sizes(files map[string]string) map[string]int {
	all := map[string]int{}
	for name, b := range files {
		all[name] = len(b)
	}
	return all
}

// TestCheckRefuses has Check refuse what is no store of ours, or not to be had,
// and leave nothing behind.
func TestCheckRefuses(t *testing.T) {
	fs := vfs.NewMem()
	opts := engine.Options{FS: fs}
	refused := func(dir string, want error) {
		t.Helper()
		others := goleak.IgnoreCurrent()
		if _, err := engine.Check(dir, &opts, nil); !errors.Is(err, want) {
			t.Errorf("Check(%q) = %v, want %v", dir, err, want)
		}
		if found := goleak.Find(others); found != nil {
			t.Errorf("Check(%q) leaves goroutines: %v", dir, found)
		}
	}
	l := open(t, "store", opts)
	charge(t, l, 0, 1, limit.PerDay(10))
	refused("store", engine.ErrInUse)
	closeChecked(t, l)
	if r, err := engine.Check("store", &opts, nil); err != nil || r.Damaged != 0 {
		t.Errorf("Check = %+v, %v", r, err)
	}

	identity := []byte(metaKey(codec.MetaIdentity))
	edit(t, fs, "store", func(db *pebble.DB) error {
		return db.Set(identity, codec.AppendIdentity(nil, codec.Identity{Format: codec.Format + 1}), pebble.Sync)
	})
	refused("store", engine.ErrNewerFormat)
	edit(t, fs, "store", func(db *pebble.DB) error { return db.Delete(identity, pebble.Sync) })
	refused("store", engine.ErrForeign)

	if err := fs.MkdirAll("empty", 0o755); err != nil {
		t.Fatal(err)
	}
	refused("empty", engine.ErrForeign)
	if names, err := fs.List("empty"); len(names) > 0 || err != nil {
		t.Errorf("Check has made %q in an empty directory", names)
	}
	if _, err := engine.Check("nowhere", &opts, nil); err == nil {
		t.Error("Check of a directory that is not there succeeds")
	}
	if _, err := fs.Stat("nowhere"); err == nil {
		t.Error("Check has made a directory")
	}
	opts.BlockCacheSize = -1
	refused("store", limit.ErrInvalid)
}

// TestCheckOnDisk checks a store in a directory of the file system, while it is
// open and when it is closed.
func TestCheckOnDisk(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, engine.Options{FS: vfs.Default})
	charge(t, l, 0, 10, limit.PerDay(10))
	if _, err := engine.Check(dir, nil, nil); !errors.Is(err, engine.ErrInUse) {
		t.Errorf("Check of a store in use: %v", err)
	}
	closeChecked(t, l)
	before := list(t, vfs.Default, dir)
	var steps []int
	r, err := engine.Check(dir, nil, func(slices int) { steps = append(steps, slices) })
	if err != nil || r.Damaged != 0 || r.GCRA.Live != 10 {
		t.Errorf("Check = %+v, %v", r, err)
	}
	if !slices.IsSorted(steps) || len(steps) != 256 || steps[255] != engine.ScanEnd {
		t.Errorf("progress was called with %v", steps)
	}
	if after := list(t, vfs.Default, dir); !maps.Equal(before, after) {
		t.Errorf("Check has changed the files from %v to %v", sizes(before), sizes(after))
	}
}

// TestCheckDamagedFiles checks stores that can't be opened: one with a bad log
// and one that lacks a table.
func TestCheckDamagedFiles(t *testing.T) {
	fs := vfs.NewMem()
	l := open(t, "store", engine.Options{FS: fs})
	charge(t, l, 0, 1000, limit.PerDay(10))
	flush(t, l)
	for logSize(t, fs) < 3*logBlock {
		charge(t, l, 0, 1000, limit.PerDay(1000))
	}
	closeChecked(t, l)

	damage(t, fs, newestLog(t, fs), 100)
	r := check(t, fs, checkTime)
	if r.Damaged != 1 || r.Format != 0 || !strings.Contains(r.Damage[0].What, path.Base(newestLog(t, fs))) || r.Damage[0].Remedy != engine.RemedyRestore {
		t.Errorf("with a bad log Check = %+v", r)
	}
	damage(t, fs, newestLog(t, fs), 100) // mends it
	if r := check(t, fs, checkTime); r.Damaged != 0 || r.GCRA.Live != 1000 {
		t.Errorf("Check = %+v", r)
	}

	names, err := fs.List("store")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".sst") {
			if err := fs.Remove(fs.PathJoin("store", name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if r := check(t, fs, checkTime); r.Damaged != 1 || r.Format != 0 || r.Damage[0].Remedy != engine.RemedyRestore {
		t.Errorf("without a table Check = %+v", r)
	}
}

// dataSize returns how many bytes the blocks of data take, which come first in
// the one table of l.
func dataSize(t *testing.T, l *engine.Limiter) int64 {
	t.Helper()
	levels, err := l.DB().SSTables(pebble.WithProperties())
	if err != nil {
		t.Fatal(err)
	}
	tables := slices.Concat(levels...)
	if len(tables) != 1 {
		t.Fatalf("the store has %d tables, want one", len(tables))
	}
	return int64(tables[0].Properties.DataSize)
}

// TestCheckFlippedBits flips bits in the one table of a store, a byte at a time.
// Each is noticed; nothing but the table is blamed for it, least of all what
// can't be told because of it; and what lies behind it is read.
func TestCheckFlippedBits(t *testing.T) {
	const rates, quotas, lists = 20_000, 2000, 250
	flips := int64(30)
	if testing.Short() {
		flips = 3
	}
	rng := rand.New(rand.NewPCG(newSeed(t), 0))
	fs := vfs.NewMem()
	clock := newManualClock(epoch)
	l := open(t, "store", engine.Options{FS: fs, Now: clock.Now})
	charge(t, l, 0, rates, limit.PerDay(10))
	for i := range quotas {
		clock.Advance(time.Millisecond)
		take(t, l, fmt.Appendf(nil, "quota:%d", i), 0, 10)
	}
	for range 310 {
		clock.Advance(time.Millisecond)
		var ops []engine.Op
		for i := range lists {
			ops = append(ops, engine.Op{Verb: engine.OpAllow, Key: fmt.Appendf(nil, "list:%d", i), Rolling: limit.Rolling{Limit: 1000, Window: time.Hour}})
		}
		l.Do(ops, nil)
	}
	compact(t, l)
	data := dataSize(t, l)
	closeChecked(t, l)
	whole := check(t, fs, checkTime)
	if whole.Damaged != 0 || whole.GCRA.Live != rates || whole.Requests.Live != 10*quotas || whole.Chunks != 5*lists {
		t.Fatalf("Check = %+v", whole)
	}

	names, err := fs.List("store")
	if err != nil {
		t.Fatal(err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasSuffix(name, ".sst") })
	if len(names) != 1 {
		t.Fatalf("the store has the tables %q, want one", names)
	}
	table := fs.PathJoin("store", names[0])
	info, err := fs.Stat(table)
	if err != nil {
		t.Fatal(err)
	}
	partly := map[string]int{}                                                 // flips after which a part can't be read, by what it is of
	places := []int64{info.Size() / 400, info.Size() / 200, info.Size() / 100} // in the chunks, which are few
	for i := range flips {
		part := info.Size() / flips
		places = append(places, i*part+rng.Int64N(part))
	}
	for _, at := range places {
		damage(t, fs, table, at)
		r := check(t, fs, checkTime)
		damage(t, fs, table, at) // mends it
		if r.Damaged == 0 {
			t.Errorf("byte %d of %d damaged, and Check finds nothing", at, info.Size())
		}
		for _, d := range r.Damage {
			if d.Key != nil || d.Remedy != engine.RemedyRestore || !strings.Contains(d.What, "can't be read") {
				t.Errorf("byte %d of %d damaged, and Check finds %q: %s", at, info.Size(), d.Key, d.What)
			}
		}
		for name, part := range map[string]struct{ got, all, least int64 }{
			"rates":    {r.GCRA.Live, rates, rates * 9 / 10},
			"quotas":   {r.Quota.Live, quotas, quotas * 9 / 10},
			"requests": {r.Requests.Live, whole.Requests.Live, whole.Requests.Live * 9 / 10},
			"chunks":   {r.Chunks, whole.Chunks, whole.Chunks / 2},
		} {
			few := part.got < part.least && part.got > 0 && at < data // a block of the index takes all that it leads to
			if part.got > part.all || few {
				t.Errorf("byte %d of %d damaged, and Check counts %d %s of %d", at, info.Size(), part.got, name, part.all)
			}
			if part.got < part.all && part.got > 0 {
				partly[name]++
			}
		}
	}
	if testing.Short() {
		return // too few to have hit each
	}
	if partly["rates"] == 0 || partly["requests"] == 0 || partly["chunks"] == 0 {
		t.Errorf("so many damages were to parts: %v", partly)
	}
}
