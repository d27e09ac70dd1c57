package codec_test

import (
	"bytes"
	"cmp"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/gabiondb/gabion/codec"
	"pgregory.net/rapid"
)

// awkward draws keys that are full of the bytes with which escapes are made.
func awkward(minLen int) *rapid.Generator[[]byte] {
	b := rapid.OneOf(rapid.SampledFrom([]byte{0x00, 0x01, 0xff}), rapid.Byte())
	return rapid.SliceOfN(b, minLen, 12)
}

func keyspaces() *rapid.Generator[codec.Keyspace] {
	return rapid.Custom(func(t *rapid.T) codec.Keyspace {
		return codec.Keyspace{Prefix: awkward(0).Draw(t, "prefix"), Seed: rapid.Uint64().Draw(t, "seed")}
	})
}

// The hashes are the published test vectors of XXH64.
func TestSlice(t *testing.T) {
	const long = "Call me Ishmael. Some years ago--never mind how long precisely-"
	for _, c := range []struct {
		key  string
		seed uint64
		hash uint64
	}{
		{"", 0, 0xef46db3751d8e999},
		{"a", 0, 0xd24ec4f1a98c6e5b},
		{"asdf", 0, 0x415872f599cea71e},
		{long, 0, 0x02a2e85470d6fd96},
		{"", 123, 0xe0db84de91f3e198},
		{"asdf", math.MaxUint64, 0x9a2fd8473be539b6},
		{long, 54321, 0x1736d186daf5d1cd},
	} {
		k := codec.Keyspace{Prefix: []byte("is not hashed"), Seed: c.seed}
		if got, want := k.Slice([]byte(c.key)), uint16(c.hash>>48); got != want {
			t.Errorf("Slice(%q) with seed %d = %04x, want %04x", c.key, c.seed, got, want)
		}
	}
}

func TestHeadRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := keyspaces().Draw(t, "keyspace")
		slice, key := rapid.Uint16().Draw(t, "slice"), awkward(1).Draw(t, "key")
		before := awkward(0).Draw(t, "before")

		head := k.AppendHead(bytes.Clone(before), slice, key)
		if !bytes.HasPrefix(head, before) {
			t.Fatalf("AppendHead made %x of what was in dst, %x", head, before)
		}
		head = head[len(before):]
		gotSlice, gotKey, err := k.ParseHead(bytes.Clone(before), head)
		if want := append(bytes.Clone(before), key...); err != nil || gotSlice != slice || !bytes.Equal(gotKey, want) {
			t.Fatalf("ParseHead(%x, %x) = %d, %x, %v, want %d, %x", before, head, gotSlice, gotKey, err, slice, want)
		}

		for i := range head {
			checkNotHead(t, k, head[:i])
		}
		checkNotHead(t, k, append(bytes.Clone(head), rapid.Byte().Draw(t, "trailing")))
	})
}

type fataler interface{ Fatalf(string, ...any) }

func checkNotHead(t fataler, k codec.Keyspace, b []byte) {
	slice, key, err := k.ParseHead([]byte("dst"), b)
	if !errors.Is(err, codec.ErrCorrupt) || slice != 0 || string(key) != "dst" {
		t.Fatalf(`ParseHead("dst", %x) with prefix %x = %d, %q, %v, want 0, "dst", ErrCorrupt`, b, k.Prefix, slice, key, err)
	}
}

func TestParseHeadRefuses(t *testing.T) {
	k := codec.Keyspace{Prefix: []byte("p/")}
	for name, b := range map[string]string{
		"nothing":               "",
		"another prefix":        "q/h\x12\x34a\x00\x01",
		"no prefix":             "h\x12\x34a\x00\x01",
		"another tag":           "p/m\x12\x34a\x00\x01",
		"half a slice":          "p/h\x12",
		"no key":                "p/h\x12\x34",
		"no end":                "p/h\x12\x34a",
		"half an end":           "p/h\x12\x34a\x00",
		"empty key":             "p/h\x12\x34\x00\x01",
		"escape 00":             "p/h\x12\x34a\x00\x00\x00\x01",
		"escape 02":             "p/h\x12\x34a\x00\x02b\x00\x01",
		"escape fe":             "p/h\x12\x34a\x00\xfeb\x00\x01",
		"escape ff, then 02":    "p/h\x12\x34a\x00\xffb\x00\x02\x00\x01",
		"bytes after the end":   "p/h\x12\x34a\x00\x01b",
		"another end after it":  "p/h\x12\x34a\x00\x01\x00\x01",
		"escape, then no end":   "p/h\x12\x34a\x00\xff",
		"escape, then half one": "p/h\x12\x34a\x00\xff\x00",
	} {
		t.Run(name, func(t *testing.T) { checkNotHead(t, k, []byte(b)) })
	}
}

func TestHeadOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := keyspaces().Draw(t, "keyspace")
		slices := rapid.OneOf(rapid.Uint16Range(254, 258), rapid.Uint16())
		sliceA, sliceB := slices.Draw(t, "slice a"), slices.Draw(t, "slice b")
		keyA, keyB := awkward(1).Draw(t, "key a"), awkward(1).Draw(t, "key b")
		if rapid.Bool().Draw(t, "related") {
			keyB = append(bytes.Clone(keyA), keyB...)
		}
		a, b := k.AppendHead(nil, sliceA, keyA), k.AppendHead(nil, sliceB, keyB)

		want := cmp.Or(cmp.Compare(sliceA, sliceB), bytes.Compare(keyA, keyB))
		if got := bytes.Compare(a, b); got != want {
			t.Fatalf("heads of %d %x and %d %x compare as %d, want %d", sliceA, keyA, sliceB, keyB, got, want)
		}
		if want != 0 && (bytes.HasPrefix(a, b) || bytes.HasPrefix(b, a)) {
			t.Fatalf("of the heads %x and %x one is a prefix of the other", a, b)
		}
	})
}

func TestBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := keyspaces().Draw(t, "keyspace")
		slice := rapid.OneOf(rapid.SampledFrom([]uint16{0, math.MaxUint16}), rapid.Uint16()).Draw(t, "slice")
		head := k.AppendHead(nil, slice, awkward(1).Draw(t, "key"))
		meta := k.AppendMeta(nil, rapid.StringN(0, 8, -1).Draw(t, "name"))
		from, to := k.AppendSliceStart(nil, int(slice)), k.AppendSliceStart(nil, int(slice)+1)
		first, end := k.AppendSliceStart(nil, 0), k.AppendSliceStart(nil, codec.Slices)

		if !within(head, from, to) {
			t.Fatalf("head %x of slice %d is outside %x to %x", head, slice, from, to)
		}
		if !within(head, first, end) {
			t.Fatalf("head %x is outside the heads, %x to %x", head, first, end)
		}
		if within(meta, first, end) {
			t.Fatalf("meta key %x is inside the heads, %x to %x", meta, first, end)
		}

		lower, upper := k.Bounds()
		for _, key := range [][]byte{head, meta, first, end} {
			if !within(key, lower, upper) {
				t.Fatalf("key %x is outside the bounds %x to %x", key, lower, upper)
			}
		}
		other := awkward(0).Draw(t, "other")
		if got, want := within(other, lower, upper), bytes.HasPrefix(other, k.Prefix); got != want {
			t.Fatalf("key %x is within the bounds of prefix %x: %t, want %t", other, k.Prefix, got, want)
		}
	})
}

func within(key, lower, upper []byte) bool {
	return bytes.Compare(key, lower) >= 0 && (upper == nil || bytes.Compare(key, upper) < 0)
}

func TestBoundsAtTheEnd(t *testing.T) {
	for _, c := range []struct{ prefix, lower, upper string }{
		{"", "", ""},
		{"app/", "app/", "app0"},
		{"a\xff\xff", "a\xff\xff", "b"},
		{"\xff\xff", "\xff\xff", ""},
	} {
		k := codec.Keyspace{Prefix: []byte(c.prefix)}
		lower, upper := k.Bounds()
		if string(lower) != c.lower || string(upper) != c.upper || (upper == nil) != (c.upper == "") {
			t.Errorf("Bounds of prefix %q = %q, %q, want %q, %q", c.prefix, lower, upper, c.lower, c.upper)
		}
		if string(k.Prefix) != c.prefix {
			t.Errorf("Bounds made %q of prefix %q", k.Prefix, c.prefix)
		}
	}
}

func FuzzParseHead(f *testing.F) {
	for _, e := range examples(f, "testdata/v1.txt") {
		if head, ok := e.value.(head); ok {
			f.Add([]byte(head.prefix), e.bytes)
		}
	}
	f.Add([]byte{}, []byte("h\x00\x00\x00\xff\x00\xff\x00\x01"))
	f.Add([]byte("h"), []byte("hh\x00\x00\x00\x01"))
	f.Fuzz(func(t *testing.T, prefix, b []byte) {
		k := codec.Keyspace{Prefix: prefix}
		slice, key, err := k.ParseHead(nil, b)
		if err != nil {
			checkNotHead(t, k, b)
			return
		}
		if again := k.AppendHead(nil, slice, key); !bytes.Equal(again, b) {
			t.Fatalf("ParseHead(%x) = %d, %x, whose head is %x", b, slice, key, again)
		}
	})
}

func BenchmarkSlice(b *testing.B) {
	k := codec.Keyspace{Seed: 1}
	key := []byte("user:12345678901")
	for b.Loop() {
		k.Slice(key)
	}
}

func BenchmarkAppendHead(b *testing.B) {
	k := codec.Keyspace{Seed: 1}
	for name, key := range map[string]string{
		"text":  "user:12345678901",
		"zeros": strings.Repeat("\x00", 16),
	} {
		b.Run(name, func(b *testing.B) {
			var buf []byte
			key := []byte(key)
			for b.Loop() {
				buf = k.AppendHead(buf[:0], 0x1234, key)
			}
		})
	}
}

func BenchmarkParseHead(b *testing.B) {
	k := codec.Keyspace{Seed: 1}
	for name, key := range map[string]string{
		"text":  "user:12345678901",
		"zeros": strings.Repeat("\x00", 16),
	} {
		b.Run(name, func(b *testing.B) {
			head := k.AppendHead(nil, 0x1234, []byte(key))
			var buf []byte
			for b.Loop() {
				_, buf, _ = k.ParseHead(buf[:0], head)
			}
		})
	}
}
