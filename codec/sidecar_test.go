package codec_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"testing"

	"github.com/gabiondb/gabion/codec"
	"pgregory.net/rapid"
)

// maxCount is the largest count of a bucket.
const maxCount = 1 << 47

// crowded returns a sidecar with a thousand heads in each of the first n
// buckets.
func crowded(n int) codec.Sidecar {
	s := codec.Sidecar{Since: 1_700_000_000_000_000_001}
	for i := range n {
		s.Counts[i] = 1000
	}
	return s
}

// sidecars draws every sidecar that has a value.
func sidecars() *rapid.Generator[codec.Sidecar] {
	return rapid.Custom(func(t *rapid.T) codec.Sidecar {
		s := codec.Sidecar{Since: numbers(0, math.MaxInt64).Draw(t, "since")}
		if rapid.Bool().Draw(t, "full") {
			for i := range s.Counts {
				s.Counts[i] = 1
			}
		}
		for _, bucket := range rapid.SliceOf(rapid.IntRange(0, codec.SidecarBuckets-1)).Draw(t, "buckets") {
			s.Counts[bucket] = numbers(1, maxCount).Draw(t, "count")
		}
		return s
	})
}

// spellBuckets writes counts as FORMAT.md has it.
func spellBuckets(counts []int64) []byte {
	b := []byte{}
	next := 0
	for i, n := range counts {
		if n > 0 {
			b = slices.Concat(b, uvarint(uint64(i-next)), uvarint(uint64(n)))
			next = i + 1
		}
	}
	return b
}

// bucketOf returns the bucket of a deadline, by the formula in FORMAT.md.
func bucketOf(since, deadline int64) int {
	if deadline <= since {
		return 0
	}
	u := uint64(deadline-since) >> 26
	if u < 4 {
		return int(u)
	}
	e := bits.Len64(u) - 3
	return 4*(e+1) + int(u>>e) - 4
}

// The formulas in FORMAT.md agree, and lead to SidecarBuckets buckets.
func TestSidecarBuckets(t *testing.T) {
	for i := range codec.SidecarBuckets {
		begin := int64(i) << 26
		if i >= 4 {
			begin = int64(4+i%4) << (i/4 - 1) << 26
		}
		if got := bucketOf(0, begin); got != i {
			t.Errorf("%d ns after since is in bucket %d, want the first of %d", begin, got, i)
		}
		if got := bucketOf(0, begin-1); i > 0 && got != i-1 {
			t.Errorf("%d ns after since is in bucket %d, want the last of %d", begin-1, got, i-1)
		}
	}
	for _, c := range []struct {
		since, deadline int64
		want            int
	}{
		{1 << 26, 2<<26 - 1, 0},
		{1 << 26, 2 << 26, 1},
		{0, math.MaxInt64, codec.SidecarBuckets - 1},
		{math.MaxInt64, 1, 0},
		{math.MaxInt64 - 1, math.MaxInt64, 0},
	} {
		if got := bucketOf(c.since, c.deadline); got != c.want {
			t.Errorf("deadline %d is in bucket %d after %d, want %d", c.deadline, got, c.since, c.want)
		}
	}
}

func TestSidecarAgainstLibrary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := sidecars().Draw(t, "sidecar")
		f := []any{uint64(s.Since), spellBuckets(s.Counts[:])}
		before := awkward(0).Draw(t, "before")
		value := codec.AppendSidecar(bytes.Clone(before), &s)
		if !bytes.HasPrefix(value, before) {
			t.Fatalf("AppendSidecar made %x of what was in dst, %x", value, before)
		}
		value = value[len(before):]

		if want := encode(t, f, true); !bytes.Equal(value, want) {
			t.Fatalf("AppendSidecar(%+v) = %x, the library writes %x", s, value, want)
		}
		if got, want := fmt.Sprint(decode(t, value)), fmt.Sprint(f); got != want {
			t.Fatalf("the library reads %s in the value of %+v, want %s", got, s, want)
		}
		checkSidecar(t, value, s)
		checkSidecar(t, encode(t, f, false), s)
		checkSidecar(t, encode(t, append(f, tail().Draw(t, "tail")), true), s)
		for i := range value {
			checkNotSidecar(t, value[:i], codec.ErrCorrupt)
		}
		checkNotSidecar(t, append(value, 0), codec.ErrCorrupt)
	})
}

func checkSidecar(t fataler, b []byte, want codec.Sidecar) {
	if got, err := codec.DecodeSidecar(b); err != nil || got != want {
		t.Fatalf("DecodeSidecar(%x) = %+v, %v, want %+v", b, got, err, want)
	}
}

func checkNotSidecar(t fataler, b []byte, want error) {
	if got, err := codec.DecodeSidecar(b); !errors.Is(err, want) || got != (codec.Sidecar{}) {
		t.Fatalf("DecodeSidecar(%x) = %+v, %v, want no sidecar, %v", b, got, err, want)
	}
}

// What counts go wrong by never makes a value that can't be read.
func TestSidecarCounts(t *testing.T) {
	for _, c := range []struct{ count, want int64 }{
		{math.MinInt64, 0},
		{-1, 0},
		{0, 0},
		{1, 1},
		{maxCount - 1, maxCount - 1},
		{maxCount, maxCount},
		{maxCount + 1, maxCount},
		{math.MaxInt64, maxCount},
	} {
		s, want := codec.Sidecar{Since: 5}, codec.Sidecar{Since: 5}
		for i := range s.Counts {
			s.Counts[i], want.Counts[i] = c.count, c.want
		}
		value := codec.AppendSidecar(nil, &s)
		checkSidecar(t, value, want)
		if got := codec.AppendSidecar(nil, &want); !bytes.Equal(got, value) {
			t.Errorf("counts of %d are written as %x, and as %x once they were read", c.count, value, got)
		}

		s, want = crowded(4), crowded(4) // one wrong count among others
		s.Counts[2], want.Counts[2] = c.count, c.want
		checkSidecar(t, codec.AppendSidecar(nil, &s), want)
	}
	if got, most := int64(maxCount), int64(math.MaxInt64/(codec.SidecarBuckets*codec.Sidecars)); got > most {
		t.Errorf("a bucket counts up to %d, and the sum of a store's fits up to %d", got, most)
	}
}

func TestDecodeSidecarRefuses(t *testing.T) {
	const last = codec.SidecarBuckets - 1
	one := []byte{0, 1}
	want := codec.Sidecar{Since: 5}
	checkSidecar(t, encode(t, []any{5, []byte{}}, true), want)
	want.Counts[last] = maxCount
	checkSidecar(t, encode(t, []any{5, slices.Concat(uvarint(last), uvarint(maxCount))}, true), want)
	for name, f := range map[string][]any{
		"no array":                 nil,
		"no fields":                {},
		"no buckets":               {5},
		"since nil":                {nil, one},
		"since negative":           {-5, one},
		"since 2^63":               {uint64(1 << 63), one},
		"since a float":            {5.0, one},
		"buckets nil":              {5, nil},
		"buckets a string":         {5, string(one)},
		"buckets an array":         {5, []int{0, 1}},
		"buckets a number":         {5, 1},
		"no count":                 {5, []byte{0}},
		"no second count":          {5, []byte{0, 1, 0}},
		"count 0":                  {5, []byte{0, 0}},
		"a second count of 0":      {5, []byte{0, 1, 0, 0}},
		"count 2^47 and 1":         {5, slices.Concat([]byte{0}, uvarint(maxCount+1))},
		"count 2^63":               {5, slices.Concat([]byte{0}, uvarint(1<<63))},
		"count 2^64-1":             {5, slices.Concat([]byte{0}, uvarint(math.MaxUint64))},
		"count of 65 bits":         {5, slices.Concat([]byte{0}, bytes.Repeat([]byte{0x80}, 9), []byte{2})},
		"count at length":          {5, []byte{0, 0x81, 0}},
		"half a count":             {5, []byte{0, 0x81}},
		"bucket at length":         {5, []byte{0x80, 0, 1}},
		"half a bucket":            {5, []byte{0x81}},
		"bucket 144":               {5, slices.Concat(uvarint(last+1), []byte{1})},
		"bucket 2^64-1":            {5, slices.Concat(uvarint(math.MaxUint64), []byte{1})},
		"bucket of 65 bits":        {5, slices.Concat(bytes.Repeat([]byte{0x80}, 9), []byte{2, 1})},
		"one after the last":       {5, slices.Concat(uvarint(last), []byte{1, 0, 1})},
		"buckets that wrap around": {5, slices.Concat([]byte{3, 1}, uvarint(math.MaxUint64-2), []byte{1})},
		"145 buckets":              {5, bytes.Repeat(one, last+2)},
		"a thousand buckets":       {5, bytes.Repeat(one, 1000)},
		"count 0, and more":        {5, []byte{0, 0}, "later"},
	} {
		t.Run(name, func(t *testing.T) {
			checkNotSidecar(t, encode(t, f, true), codec.ErrCorrupt)
			checkNotSidecar(t, encode(t, f, false), codec.ErrCorrupt)
		})
	}
	checkNotSidecar(t, []byte{codec.Version + 1, 0x92, 5, 0xc4, 2, 0, 1}, codec.ErrVersion)
}

func TestAppendSidecarRefuses(t *testing.T) {
	for _, since := range []int64{-1, math.MinInt64} {
		checkPanic(t, fmt.Sprintf("AppendSidecar since %d", since), func() {
			codec.AppendSidecar(nil, &codec.Sidecar{Since: since})
		})
	}
}

// The sizes that FORMAT.md gives.
func TestSidecarSizes(t *testing.T) {
	longest := codec.Sidecar{Since: math.MaxInt64}
	for i := range longest.Counts {
		longest.Counts[i] = math.MaxInt64
	}
	for _, c := range []struct {
		sidecar codec.Sidecar
		want    int
	}{
		{crowded(0), 13}, {crowded(1), 16}, {crowded(10), 43}, {crowded(50), 163}, {crowded(144), 446}, {longest, 1166},
	} {
		if got := len(codec.AppendSidecar(nil, &c.sidecar)); got != c.want {
			t.Errorf("%v takes %d bytes, want %d", c.sidecar, got, c.want)
		}
	}
}

func FuzzDecodeSidecar(f *testing.F) {
	for _, e := range examples(f, "testdata/v1.txt") {
		if _, ok := e.value.(codec.Sidecar); ok {
			f.Add(e.bytes)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := codec.DecodeSidecar(b)
		if err != nil {
			if !errors.Is(err, codec.ErrCorrupt) && !errors.Is(err, codec.ErrVersion) {
				t.Fatalf("DecodeSidecar(%x): %v", b, err)
			}
			return
		}
		if s.Since < 0 || slices.Min(s.Counts[:]) < 0 || slices.Max(s.Counts[:]) > maxCount {
			t.Fatalf("DecodeSidecar(%x) = %+v, which is out of range", b, s)
		}
		value := codec.AppendSidecar(nil, &s)
		checkSidecar(t, value, s)
		if len(value) > len(b) {
			t.Fatalf("the value of %+v has %d bytes, and %x has %d", s, len(value), b, len(b))
		}
	})
}

func BenchmarkAppendSidecar(b *testing.B) {
	s := crowded(50)
	var buf []byte
	for b.Loop() {
		buf = codec.AppendSidecar(buf[:0], &s)
	}
}

func BenchmarkDecodeSidecar(b *testing.B) {
	s := crowded(50)
	value := codec.AppendSidecar(nil, &s)
	for b.Loop() {
		codec.DecodeSidecar(value)
	}
}
