package engine_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/cockroachkvs"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// openLender opens the store of an application.
func openLender(t testing.TB, opts *pebble.Options) *pebble.DB {
	t.Helper()
	opts.FS, opts.Logger = cmp.Or[vfs.FS](opts.FS, vfs.NewMem()), cmp.Or[pebble.Logger](opts.Logger, quiet{})
	db, err := pebble.Open("store", opts)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// everything returns all that lies in db, points and ranges, as it lies there.
func everything(t testing.TB, db *pebble.DB) (all []string) {
	t.Helper()
	it, err := db.NewIter(&pebble.IterOptions{KeyTypes: pebble.IterKeyTypePointsAndRanges})
	if err != nil {
		t.Fatal(err)
	}
	defer it.Close()
	for it.First(); it.Valid(); it.Next() {
		point, ranges := it.HasPointAndRange()
		if point {
			all = append(all, fmt.Sprintf("%q: %q", it.Key(), it.Value()))
		}
		if ranges && it.RangeKeyChanged() {
			lower, upper := it.RangeBounds()
			all = append(all, fmt.Sprintf("%q to %q: %q", lower, upper, it.RangeKeys()))
		}
	}
	if err := it.Error(); err != nil {
		t.Fatal(err)
	}
	return all
}

// refuse wants New to refuse opts with an error, and to leave db as it was.
func refuse(t *testing.T, db *pebble.DB, opts *engine.Options, want error) {
	t.Helper()
	before := everything(t, db)
	for range 2 {
		l, err := engine.New(db, opts)
		if !errors.Is(err, want) {
			t.Errorf("New = %v, want %v", err, want)
		}
		if err == nil {
			must(t, l.Close)
		}
	}
	if after := everything(t, db); !slices.Equal(before, after) {
		t.Errorf("the store holds %q, and held %q", after, before)
	}
}

// accept wants New to take what it has just refused in another place.
func accept(t *testing.T, db *pebble.DB, prefix string) {
	t.Helper()
	l, err := engine.New(db, &engine.Options{Prefix: []byte(prefix)})
	if err != nil {
		t.Errorf("New under %q = %v", prefix, err)
		return
	}
	must(t, throttle(l, "k", 1), l.Check, l.Close)
}

func TestNewOptions(t *testing.T) {
	db := openLender(t, &pebble.Options{})
	defer db.Close()
	long := bytes.Repeat([]byte("p"), engine.MaxPrefixLen+1)
	for _, opts := range []*engine.Options{nil, {}, {Prefix: []byte{}}, {Prefix: long}, {Prefix: []byte("p"), CacheSize: -1}} {
		refuse(t, db, opts, limit.ErrInvalid)
	}
	if l, err := engine.New(nil, &engine.Options{Prefix: []byte("p")}); l != nil || !errors.Is(err, limit.ErrInvalid) {
		t.Errorf("New = %v, %v without a store, want %v", l, err, limit.ErrInvalid)
	}
	for _, opts := range []engine.Options{{Prefix: []byte("p")}, {Events: new(engine.Events)}} {
		opts.FS = vfs.NewMem()
		if l, err := engine.Open("store", &opts); l != nil || !errors.Is(err, limit.ErrInvalid) {
			t.Errorf("Open = %v, %v, want %v", l, err, limit.ErrInvalid)
		}
		if names, _ := opts.FS.List(""); len(names) > 0 {
			t.Errorf("Open has made %q", names)
		}
	}
	accept(t, db, string(long[1:]))
}

// TestNewNotWritable asks for a limiter in stores that take no durable writes, in
// which there is none or one already.
func TestNewNotWritable(t *testing.T) {
	for _, prefix := range []string{"fresh/", "limits/"} {
		fs := vfs.NewMem()
		db := openLender(t, &pebble.Options{FS: fs})
		accept(t, db, "limits/")
		must(t, db.Close)
		opts := &engine.Options{Prefix: []byte(prefix)}
		for range 2 {
			if l, err := engine.New(db, opts); l != nil || !errors.Is(err, engine.ErrNotWritable) {
				t.Errorf("New = %v, %v in a store that is closed, want %v", l, err, engine.ErrNotWritable)
			}
		}
		for _, set := range []pebble.Options{{ReadOnly: true}, {DisableWAL: true}} {
			set.FS = fs
			db := openLender(t, &set)
			refuse(t, db, opts, engine.ErrNotWritable)
			must(t, db.Close)
		}
		db = openLender(t, &pebble.Options{FS: fs})
		accept(t, db, prefix)
		must(t, db.Close)
	}
}

// compareBy returns a comparer whose order is cmp.
func compareBy(name string, cmp func(a, b []byte) int) *pebble.Comparer {
	c := *pebble.DefaultComparer
	c.Name = name
	c.Compare = cmp
	c.Equal = func(a, b []byte) bool { return cmp(a, b) == 0 }
	c.ComparePointSuffixes, c.CompareRangeSuffixes = cmp, cmp
	c.AbbreviatedKey = func([]byte) uint64 { return 0 }
	c.Separator = func(dst, a, _ []byte) []byte { return append(dst, a...) }
	c.Successor = func(dst, a []byte) []byte { return append(dst, a...) }
	return &c
}

// splitBy returns a comparer that orders by bytes and splits as split does.
func splitBy(name string, split func(key []byte) int) *pebble.Comparer {
	c := compareBy(name, bytes.Compare)
	c.Split = split
	return c
}

// equalBy returns a comparer that orders by bytes, and takes keys for equal as
// equal does.
func equalBy(name string, equal func(a, b []byte) bool) *pebble.Comparer {
	c := compareBy(name, bytes.Compare)
	c.Equal = equal
	return c
}

// byNumbers compares digits in a key as numbers.
func byNumbers(a, b []byte) int {
	number := func(s []byte) (n, length int) {
		for length < len(s) && length < 9 && s[length] >= '0' && s[length] <= '9' {
			length++
		}
		n, _ = strconv.Atoi(string(s[:length]))
		return n, length
	}
	for len(a) > 0 && len(b) > 0 {
		m, i := number(a)
		n, j := number(b)
		if i == 0 || j == 0 {
			if a[0] != b[0] {
				return cmp.Compare(a[0], b[0])
			}
			i, j = 1, 1
		} else if m != n {
			return cmp.Compare(m, n)
		}
		a, b = a[i:], b[j:]
	}
	return cmp.Compare(len(a), len(b))
}

func fold(key []byte) []byte { return []byte(strings.ToLower(string(key))) }

// lastAt cuts a key at its last '@', as for a version behind it.
func lastAt(key []byte) int {
	if n := bytes.LastIndexByte(key, '@'); n >= 0 {
		return n
	}
	return len(key)
}

// TestNewComparer asks for limiters in stores that treat keys otherwise than their
// bytes would have it.
func TestNewComparer(t *testing.T) {
	panics := compareBy("expects four bytes", func(a, b []byte) int {
		_, _ = a[3], b[3]
		return bytes.Compare(a, b)
	})
	panics.Split = func(key []byte) int { return len(key[4:]) + 4 }
	for _, c := range []*pebble.Comparer{
		&cockroachkvs.Comparer,
		compareBy("reverse", func(a, b []byte) int { return bytes.Compare(b, a) }),
		compareBy("any case", func(a, b []byte) int { return bytes.Compare(fold(a), fold(b)) }),
		compareBy("any case, then case", func(a, b []byte) int {
			return cmp.Or(bytes.Compare(fold(a), fold(b)), bytes.Compare(a, b))
		}),
		compareBy("numbers", byNumbers),
		compareBy("length first", func(a, b []byte) int { return cmp.Or(cmp.Compare(len(a), len(b)), bytes.Compare(a, b)) }),
		compareBy("signed bytes", func(a, b []byte) int {
			return slices.CompareFunc(a, b, func(x, y byte) int { return cmp.Compare(int8(x), int8(y)) })
		}),
		compareBy("C strings", func(a, b []byte) int {
			a, _, _ = bytes.Cut(a, []byte{0})
			b, _, _ = bytes.Cut(b, []byte{0})
			return bytes.Compare(a, b)
		}),
		compareBy("the first kilobyte", func(a, b []byte) int {
			return bytes.Compare(a[:min(len(a), 1024)], b[:min(len(b), 1024)])
		}),
		compareBy("newest version first", func(a, b []byte) int {
			m, n := lastAt(a), lastAt(b)
			return cmp.Or(bytes.Compare(a[:m], b[:n]), bytes.Compare(b[n:], a[m:]))
		}),
		compareBy("last eight bytes descend", func(a, b []byte) int {
			m, n := max(len(a)-8, 0), max(len(b)-8, 0)
			return cmp.Or(bytes.Compare(a[:m], b[:n]), bytes.Compare(b[n:], a[m:]))
		}),
		panics,
		equalBy("equal in any case", bytes.EqualFold),
		equalBy("equal by length", func(a, b []byte) bool { return len(a) == len(b) }),
		equalBy("equal but for the last byte", func(a, b []byte) bool {
			return len(a) == len(b) && len(a) > 0 && bytes.Equal(a[:len(a)-1], b[:len(b)-1])
		}),
		equalBy("equal in the first kilobyte", func(a, b []byte) bool {
			return bytes.Equal(a[:min(len(a), 1024)], b[:min(len(b), 1024)])
		}),
		equalBy("equal but for blanks at the end", func(a, b []byte) bool {
			return bytes.Equal(bytes.ReplaceAll(a, []byte(" \x00\x01"), []byte("\x00\x01")), bytes.ReplaceAll(b, []byte(" \x00\x01"), []byte("\x00\x01")))
		}),
		// The first parts of keys that these split are not in the order of the keys.
		splitBy("last @", lastAt),
		splitBy("first slash", func(key []byte) int {
			if n := bytes.IndexByte(key[min(len(key), len("limits/")):], '/'); n >= 0 {
				return len("limits/") + n
			}
			return len(key)
		}),
		splitBy("last eight bytes", func(key []byte) int { return max(len(key)-8, 0) }),
		splitBy("length at the end", func(key []byte) int {
			if len(key) == 0 {
				return 0
			}
			return max(len(key)-int(key[len(key)-1]), 0)
		}),
	} {
		t.Run(c.Name, func(t *testing.T) {
			db := openLender(t, &pebble.Options{Comparer: c})
			defer db.Close()
			// It is a store that the application can use, with keys that suit it.
			if err := db.Set([]byte("application"), []byte("v"), pebble.Sync); c != &cockroachkvs.Comparer && err != nil {
				t.Fatal(err)
			}
			refuse(t, db, &engine.Options{Prefix: []byte("limits/")}, engine.ErrComparer)
		})
	}
}

// TestNewForeign asks for prefixes under which there is something else.
func TestNewForeign(t *testing.T) {
	tables := map[string]func(b *pebble.Batch) error{
		"at the prefix":       func(b *pebble.Batch) error { return b.Set([]byte("limits/"), nil, nil) },
		"before the tags":     func(b *pebble.Batch) error { return b.Set([]byte("limits/a"), nil, nil) },
		"between the tags":    func(b *pebble.Batch) error { return b.Set([]byte("limits/i"), nil, nil) },
		"behind the last tag": func(b *pebble.Batch) error { return b.Set([]byte("limits/t"), nil, nil) },
		"among the metas":     func(b *pebble.Batch) error { return b.Set([]byte("limits/mine"), nil, nil) },
		"at the end":          func(b *pebble.Batch) error { return b.Set([]byte("limits/\xff\xff\xff"), nil, nil) },
		"range key": func(b *pebble.Batch) error {
			return b.RangeKeySet([]byte("limits/i"), []byte("limits/j"), nil, nil, nil)
		},
		"range key around": func(b *pebble.Batch) error { return b.RangeKeySet([]byte("a"), []byte("z"), nil, nil, nil) },
	}
	for name, put := range tables {
		for _, used := range []bool{false, true} {
			if used && strings.HasPrefix(name, "a ") {
				continue // it would be taken for the limiter's
			}
			t.Run(fmt.Sprintf("%s/used=%t", name, used), func(t *testing.T) {
				db := openLender(t, &pebble.Options{})
				defer db.Close()
				if used {
					accept(t, db, "limits/")
				}
				b := db.NewBatch()
				if err := errors.Join(put(b), b.Commit(pebble.Sync)); err != nil {
					t.Fatal(err)
				}
				refuse(t, db, &engine.Options{Prefix: []byte("limits/")}, engine.ErrForeign)
				if name != "range key around" {
					accept(t, db, "limits.")
				}
			})
		}
	}
}

// TestNewIdentity damages the identity of a limiter, and has a newer version of
// gabion write it.
func TestNewIdentity(t *testing.T) {
	keys := codec.Keyspace{Prefix: []byte("limits/")}
	identity := keys.AppendMeta(nil, codec.MetaIdentity)
	newer := codec.AppendIdentity(nil, codec.Identity{Format: codec.Format + 1, Seed: 1})
	for value, want := range map[string]error{
		"":                         engine.ErrForeign,
		"x":                        engine.ErrNewerFormat,
		string(newer):              engine.ErrNewerFormat,
		string(newer[:3]):          engine.ErrForeign,
		string(newer) + "trailing": engine.ErrForeign,
	} {
		db := openLender(t, &pebble.Options{})
		accept(t, db, "limits/")
		// The newer one may have keys that this one does not know.
		must(t, func() error { return db.Set(identity, []byte(value), nil) })
		if want == engine.ErrNewerFormat {
			must(t, func() error { return db.Set([]byte("limits/new"), nil, nil) })
		}
		refuse(t, db, &engine.Options{Prefix: []byte("limits/")}, want)
		if want == engine.ErrNewerFormat {
			refuse(t, db, &engine.Options{Prefix: []byte("limits/h")}, engine.ErrForeign)
		}
		accept(t, db, "others/")
		must(t, db.Close)
	}
}

// TestNewInUse asks for prefixes that overlap those of others, be they open or not.
func TestNewInUse(t *testing.T) {
	db, other := openLender(t, &pebble.Options{}), openLender(t, &pebble.Options{})
	defer db.Close()
	defer other.Close()
	l, err := engine.New(db, &engine.Options{Prefix: []byte("limits/")})
	if err != nil {
		t.Fatal(err)
	}
	overlapping := []string{"l", "limits", "limits/h", "limits/m", "limits/x"}
	for _, prefix := range append(overlapping, "limits/") {
		refuse(t, db, &engine.Options{Prefix: []byte(prefix)}, engine.ErrInUse)
		accept(t, other, prefix+"!")
	}
	accept(t, db, "limits0")
	accept(t, db, "limit.")
	must(t, throttle(l, "k", 1), l.Check, l.Close)
	for _, prefix := range overlapping {
		refuse(t, db, &engine.Options{Prefix: []byte(prefix)}, engine.ErrForeign)
	}
	accept(t, db, "limits/")
	accept(t, db, "limits0")
}

// TestNewTogether has many ask for one prefix at once, of which one gets it.
func TestNewTogether(t *testing.T) {
	db := openLender(t, &pebble.Options{})
	defer db.Close()
	for range 10 {
		var got sync.Map
		var n atomic.Int64
		var running sync.WaitGroup
		for range 8 {
			running.Go(func() {
				l, err := engine.New(db, &engine.Options{Prefix: []byte("limits/")})
				if err == nil {
					n.Add(1)
					got.Store(l, true)
				} else if !errors.Is(err, engine.ErrInUse) {
					t.Errorf("New = %v, want %v", err, engine.ErrInUse)
				}
			})
		}
		running.Wait()
		if n.Load() != 1 {
			t.Fatalf("%d got the prefix, want 1", n.Load())
		}
		for l := range maps.Collect(got.Range) {
			must(t, throttle(l.(*engine.Limiter), "k", 1), l.(*engine.Limiter).Close)
		}
	}
}
