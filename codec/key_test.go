package codec_test

import (
	"bytes"
	"cmp"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine/limit"
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
		slice := rapid.OneOf(rapid.Uint16Range(254, 258), rapid.Uint16())
		sliceA, sliceB := slice.Draw(t, "slice a"), slice.Draw(t, "slice b")
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

func ordinals() *rapid.Generator[int64] { return numbers(0, math.MaxInt64) }

func ids() *rapid.Generator[string] { return rapid.StringMatching(`[A-Za-z0-9_-]{1,64}`) }

func TestChunkKeyRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := keyspaces().Draw(t, "keyspace")
		slice, key := rapid.Uint16().Draw(t, "slice"), awkward(1).Draw(t, "key")
		ordinal := ordinals().Draw(t, "ordinal")
		before := awkward(0).Draw(t, "before")

		chunk := k.AppendChunkKey(bytes.Clone(before), slice, key, ordinal)
		if !bytes.HasPrefix(chunk, before) {
			t.Fatalf("AppendChunkKey made %x of what was in dst, %x", chunk, before)
		}
		chunk = chunk[len(before):]
		gotSlice, gotKey, gotOrdinal, err := k.ParseChunkKey(bytes.Clone(before), chunk)
		want := append(bytes.Clone(before), key...)
		if err != nil || gotSlice != slice || !bytes.Equal(gotKey, want) || gotOrdinal != ordinal {
			t.Fatalf("ParseChunkKey(%x, %x) = %d, %x, %d, %v, want %d, %x, %d",
				before, chunk, gotSlice, gotKey, gotOrdinal, err, slice, want, ordinal)
		}

		for i := range chunk {
			checkNotChunkKey(t, k, chunk[:i])
		}
		checkNotChunkKey(t, k, append(bytes.Clone(chunk), rapid.Byte().Draw(t, "trailing")))
	})
}

func checkNotChunkKey(t fataler, k codec.Keyspace, b []byte) {
	slice, key, ordinal, err := k.ParseChunkKey([]byte("dst"), b)
	if !errors.Is(err, codec.ErrCorrupt) || slice != 0 || string(key) != "dst" || ordinal != 0 {
		t.Fatalf(`ParseChunkKey("dst", %x) with prefix %x = %d, %q, %d, %v, want 0, "dst", 0, ErrCorrupt`,
			b, k.Prefix, slice, key, ordinal, err)
	}
}

func TestParseChunkKeyRefuses(t *testing.T) {
	k := codec.Keyspace{Prefix: []byte("p/")}
	for name, b := range map[string]string{
		"nothing":             "",
		"another prefix":      "q/c\x12\x34a\x00\x01\x00\x00\x00\x00\x00\x00\x00\x05",
		"another tag":         "p/h\x12\x34a\x00\x01\x00\x00\x00\x00\x00\x00\x00\x05",
		"half a slice":        "p/c\x12",
		"no key":              "p/c\x12\x34",
		"no end":              "p/c\x12\x34a",
		"empty key":           "p/c\x12\x34\x00\x01\x00\x00\x00\x00\x00\x00\x00\x05",
		"an unknown escape":   "p/c\x12\x34a\x00\x02\x00\x01\x00\x00\x00\x00\x00\x00\x00\x05",
		"no ordinal":          "p/c\x12\x34a\x00\x01",
		"half an ordinal":     "p/c\x12\x34a\x00\x01\x00\x00\x00\x05",
		"ordinal 2^63":        "p/c\x12\x34a\x00\x01\x80\x00\x00\x00\x00\x00\x00\x00",
		"ordinal 2^64-1":      "p/c\x12\x34a\x00\x01\xff\xff\xff\xff\xff\xff\xff\xff",
		"bytes after the end": "p/c\x12\x34a\x00\x01\x00\x00\x00\x00\x00\x00\x00\x05\x00",
	} {
		t.Run(name, func(t *testing.T) { checkNotChunkKey(t, k, []byte(b)) })
	}
}

func TestChunkKeyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := keyspaces().Draw(t, "keyspace")
		slice := rapid.OneOf(rapid.Uint16Range(254, 258), rapid.Uint16())
		sliceA, sliceB := slice.Draw(t, "slice a"), slice.Draw(t, "slice b")
		keyA, keyB := awkward(1).Draw(t, "key a"), awkward(1).Draw(t, "key b")
		ordinalA, ordinalB := ordinals().Draw(t, "ordinal a"), ordinals().Draw(t, "ordinal b")
		if rapid.Bool().Draw(t, "same slice") {
			sliceB = sliceA
		}
		switch rapid.IntRange(0, 2).Draw(t, "related") {
		case 1:
			keyB = append(bytes.Clone(keyA), keyB...)
		case 2:
			keyB = keyA
		}
		a, b := k.AppendChunkKey(nil, sliceA, keyA, ordinalA), k.AppendChunkKey(nil, sliceB, keyB, ordinalB)

		want := cmp.Or(cmp.Compare(sliceA, sliceB), bytes.Compare(keyA, keyB), cmp.Compare(ordinalA, ordinalB))
		if got := bytes.Compare(a, b); got != want {
			t.Fatalf("the keys of chunks %d %x %d and %d %x %d compare as %d, want %d",
				sliceA, keyA, ordinalA, sliceB, keyB, ordinalB, got, want)
		}
		if want != 0 && (bytes.HasPrefix(a, b) || bytes.HasPrefix(b, a)) {
			t.Fatalf("of the keys %x and %x of chunks one is a prefix of the other", a, b)
		}

		// The span of one list's ordinals holds those chunks and no others.
		to := max(ordinalA, ordinals().Draw(t, "to"))
		inside := sliceA == sliceB && bytes.Equal(keyA, keyB) && ordinalA <= ordinalB && ordinalB < to
		if got := within(b, a, k.AppendChunkKey(nil, sliceA, keyA, to)); got != inside {
			t.Fatalf("chunk %d %x %d is within %d..%d of %d %x: %t, want %t",
				sliceB, keyB, ordinalB, ordinalA, to, sliceA, keyA, got, inside)
		}
	})
}

func TestRequestKeyRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := keyspaces().Draw(t, "keyspace")
		deadline := numbers(1, math.MaxInt64).Draw(t, "deadline")
		key, id := awkward(1).Draw(t, "key"), ids().Draw(t, "id")
		before := awkward(0).Draw(t, "before")

		request := k.AppendRequestKey(bytes.Clone(before), deadline, key, id)
		if !bytes.HasPrefix(request, before) {
			t.Fatalf("AppendRequestKey made %x of what was in dst, %x", request, before)
		}
		request = request[len(before):]
		gotDeadline, gotKey, gotID, err := k.ParseRequestKey(bytes.Clone(before), request)
		want := append(bytes.Clone(before), key...)
		if err != nil || gotDeadline != deadline || !bytes.Equal(gotKey, want) || gotID != id {
			t.Fatalf("ParseRequestKey(%x, %x) = %d, %x, %q, %v, want %d, %x, %q",
				before, request, gotDeadline, gotKey, gotID, err, deadline, want, id)
		}

		for i := range len(request) - len(id) + 1 {
			checkNotRequestKey(t, k, request[:i])
		}
		checkNotRequestKey(t, k, append(bytes.Clone(request), "\x00\x01\xff./ :"[rapid.IntRange(0, 6).Draw(t, "trailing")]))
	})
}

func checkNotRequestKey(t fataler, k codec.Keyspace, b []byte) {
	deadline, key, id, err := k.ParseRequestKey([]byte("dst"), b)
	if !errors.Is(err, codec.ErrCorrupt) || errors.Is(err, limit.ErrInvalid) || deadline != 0 || string(key) != "dst" || id != "" {
		t.Fatalf(`ParseRequestKey("dst", %x) with prefix %x = %d, %q, %q, %v, want 0, "dst", "", ErrCorrupt`,
			b, k.Prefix, deadline, key, id, err)
	}
}

func TestParseRequestKeyRefuses(t *testing.T) {
	k := codec.Keyspace{Prefix: []byte("p/")}
	for name, b := range map[string]string{
		"nothing":           "",
		"another prefix":    "q/q\x00\x00\x00\x00\x00\x00\x00\x05a\x00\x01id",
		"another tag":       "p/c\x00\x00\x00\x00\x00\x00\x00\x05a\x00\x01id",
		"no deadline":       "p/q",
		"half a deadline":   "p/q\x00\x00\x00\x05",
		"deadline 0":        "p/q\x00\x00\x00\x00\x00\x00\x00\x00a\x00\x01id",
		"deadline 2^63":     "p/q\x80\x00\x00\x00\x00\x00\x00\x00a\x00\x01id",
		"deadline 2^64-1":   "p/q\xff\xff\xff\xff\xff\xff\xff\xffa\x00\x01id",
		"no key":            "p/q\x00\x00\x00\x00\x00\x00\x00\x05",
		"no end":            "p/q\x00\x00\x00\x00\x00\x00\x00\x05aid",
		"empty key":         "p/q\x00\x00\x00\x00\x00\x00\x00\x05\x00\x01id",
		"an unknown escape": "p/q\x00\x00\x00\x00\x00\x00\x00\x05a\x00\x02\x00\x01id",
		"no id":             "p/q\x00\x00\x00\x00\x00\x00\x00\x05a\x00\x01",
		"a blank in the id": "p/q\x00\x00\x00\x00\x00\x00\x00\x05a\x00\x01i d",
		"a zero in the id":  "p/q\x00\x00\x00\x00\x00\x00\x00\x05a\x00\x01i\x00\xffd",
		"another end":       "p/q\x00\x00\x00\x00\x00\x00\x00\x05a\x00\x01id\x00\x01",
		"an id of 65 bytes": "p/q\x00\x00\x00\x00\x00\x00\x00\x05a\x00\x01" + strings.Repeat("i", 65),
	} {
		t.Run(name, func(t *testing.T) { checkNotRequestKey(t, k, []byte(b)) })
	}
}

func TestRequestKeyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := keyspaces().Draw(t, "keyspace")
		deadlines := numbers(1, math.MaxInt64)
		deadlineA, deadlineB := deadlines.Draw(t, "deadline a"), deadlines.Draw(t, "deadline b")
		keyA, keyB := awkward(1).Draw(t, "key a"), awkward(1).Draw(t, "key b")
		idA, idB := ids().Draw(t, "id a"), ids().Draw(t, "id b")
		if rapid.Bool().Draw(t, "same deadline") {
			deadlineB = deadlineA
		}
		switch rapid.IntRange(0, 2).Draw(t, "related") {
		case 1:
			keyB = append(bytes.Clone(keyA), keyB...)
		case 2:
			keyB = keyA
		}
		a, b := k.AppendRequestKey(nil, deadlineA, keyA, idA), k.AppendRequestKey(nil, deadlineB, keyB, idB)

		want := cmp.Or(cmp.Compare(deadlineA, deadlineB), bytes.Compare(keyA, keyB), cmp.Compare(idA, idB))
		if got := bytes.Compare(a, b); got != want {
			t.Fatalf("the keys of requests %d %x %q and %d %x %q compare as %d, want %d",
				deadlineA, keyA, idA, deadlineB, keyB, idB, got, want)
		}

		lower, upper := k.RequestBounds(deadlineA, keyA)
		inside := deadlineA == deadlineB && bytes.Equal(keyA, keyB)
		if !within(a, lower, upper) || within(b, lower, upper) != inside {
			t.Fatalf("requests %x and %x are within %x to %x, of the first's window: %t, %t, want true, %t",
				a, b, lower, upper, within(a, lower, upper), within(b, lower, upper), inside)
		}

		// A window is over from its deadline on.
		start, end := k.AppendRequestStart(nil, 0), k.AppendRequestStart(nil, deadlineA+1)
		if got, want := within(b, start, end), deadlineB <= deadlineA; got != want {
			t.Fatalf("request %x with deadline %d is dead at %d: %t, want %t", b, deadlineB, deadlineA, got, want)
		}
	})
}

func TestRequestStartAtTheEnd(t *testing.T) {
	var k codec.Keyspace
	now := int64(math.MaxInt64)
	last := k.AppendRequestKey(nil, now, []byte("\xff"), "z")
	if start := k.AppendRequestStart(nil, now); bytes.Compare(last, start) < 0 {
		t.Errorf("request %x lies before %x, the start of its deadline", last, start)
	}
	if end := k.AppendRequestStart(nil, now+1); bytes.Compare(last, end) >= 0 {
		t.Errorf("request %x lies after %x, the end of what is dead at its deadline", last, end)
	}
}

func TestSidecarKeyRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := keyspaces().Draw(t, "keyspace")
		n := rapid.Uint8().Draw(t, "sidecar")
		before := awkward(0).Draw(t, "before")

		sidecar := k.AppendSidecarKey(bytes.Clone(before), n)
		if !bytes.HasPrefix(sidecar, before) {
			t.Fatalf("AppendSidecarKey made %x of what was in dst, %x", sidecar, before)
		}
		sidecar = sidecar[len(before):]
		if got, err := k.ParseSidecarKey(sidecar); err != nil || got != n {
			t.Fatalf("ParseSidecarKey(%x) = %d, %v, want %d", sidecar, got, err, n)
		}

		for i := range sidecar {
			checkNotSidecarKey(t, k, sidecar[:i])
		}
		checkNotSidecarKey(t, k, append(bytes.Clone(sidecar), rapid.Byte().Draw(t, "trailing")))
	})
}

func checkNotSidecarKey(t fataler, k codec.Keyspace, b []byte) {
	if n, err := k.ParseSidecarKey(b); !errors.Is(err, codec.ErrCorrupt) || n != 0 {
		t.Fatalf("ParseSidecarKey(%x) with prefix %x = %d, %v, want 0, ErrCorrupt", b, k.Prefix, n, err)
	}
}

func TestParseSidecarKeyRefuses(t *testing.T) {
	k := codec.Keyspace{Prefix: []byte("p/")}
	for name, b := range map[string]string{
		"nothing":        "",
		"another prefix": "q/s\x12",
		"no prefix":      "s\x12",
		"another tag":    "p/h\x12",
		"no number":      "p/s",
		"a slice":        "p/s\x12\x34",
		"an end":         "p/s\x12\x00\x01",
	} {
		t.Run(name, func(t *testing.T) { checkNotSidecarKey(t, k, []byte(b)) })
	}
}

// The keys of sidecars lie as their slices do, and none is a prefix of another.
func TestSidecarKeyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := keyspaces().Draw(t, "keyspace")
		slice := rapid.OneOf(rapid.Uint16Range(254, 258), rapid.Uint16())
		sliceA, sliceB := slice.Draw(t, "slice a"), slice.Draw(t, "slice b")
		nA, nB := uint8(sliceA/codec.SlicesPerSidecar), uint8(sliceB/codec.SlicesPerSidecar)
		a, b := k.AppendSidecarKey(nil, nA), k.AppendSidecarKey(nil, nB)

		want := cmp.Compare(sliceA>>8, sliceB>>8)
		if got := bytes.Compare(a, b); got != want {
			t.Fatalf("the keys of the sidecars of slices %04x and %04x compare as %d, want %d", sliceA, sliceB, got, want)
		}
		if want != 0 && (bytes.HasPrefix(a, b) || bytes.HasPrefix(b, a)) {
			t.Fatalf("of the keys %x and %x of sidecars one is a prefix of the other", a, b)
		}
	})
}

func TestHeadSlices(t *testing.T) {
	type span struct{ smallest, largest string }
	for _, prefix := range []string{"", "p/", "\x00h\xff", "\xff\xff"} {
		k := codec.Keyspace{Prefix: []byte(prefix)}
		for keys, want := range map[span][2]int{
			{"h\x12\x34a\x00\x01", "h\x12\x34a\x00\x01"}:    {0x1234, 0x1235},
			{"h\x12\x34a\x00\x01", "h\x56\x78b\x00\x01"}:    {0x1234, 0x5679},
			{"h\x00\x00a\x00\x01", "h\xff\xffa\x00\x01"}:    {0, codec.Slices},
			{"h\xff\xffa\x00\x01", "h\xff\xff\xff\xff\xff"}: {0xffff, codec.Slices},
			{"h\x12\x34", "h\x12\x35"}:                      {0x1234, 0x1235},
			{"h\x12\x34", "h\x12\x34\x00"}:                  {0x1234, 0x1235},
			{"h\x12\x34", "h\x12\x34"}:                      {0x1234, 0x1234},
			{"h\x12", "h\x13"}:                              {0x1200, 0x1300},
			{"h", "h"}:                                      {0, 0},
			{"h", "i"}:                                      {0, codec.Slices},
			{"", "h\x12\x34a\x00\x01"}:                      {0, 0x1235},
			{"c\x12\x34a\x00\x01", "h\x12\x34a\x00\x01"}:    {0, 0x1235},
			{"h\x12\x34a\x00\x01", "mmark"}:                 {0x1234, codec.Slices},
			{"c\x12\x34a\x00\x01", "mmark"}:                 {0, codec.Slices},
			{"c\x12\x34a\x00\x01", "c\xff\xffa\x00\x01"}:    {0, 0},
			{"i", "q"}:             {codec.Slices, codec.Slices},
			{"midentity", "s\xff"}: {codec.Slices, codec.Slices},
		} {
			smallest, largest := prefix+keys.smallest, prefix+keys.largest
			checkHeadSlices(t, k, smallest, largest, want[0], want[1])
		}
	}

	// Keys of an application, around ours and beside them.
	k := codec.Keyspace{Prefix: []byte("p/")}
	checkHeadSlices(t, k, "", "", 0, 0)
	checkHeadSlices(t, k, "a", "p", 0, 0)
	checkHeadSlices(t, k, "h\x12\x34", "h\x56\x78", 0, 0)
	checkHeadSlices(t, k, "p", "p/h\x12\x34a\x00\x01", 0, 0x1235)
	checkHeadSlices(t, k, "a", "z", 0, codec.Slices)
	checkHeadSlices(t, k, "p/h\x12\x34a\x00\x01", "p0", 0x1234, codec.Slices)
	checkHeadSlices(t, k, "p0", "p0h\x12\x34", codec.Slices, codec.Slices)
	checkHeadSlices(t, k, "z", "zz", codec.Slices, codec.Slices)
}

func checkHeadSlices(t *testing.T, k codec.Keyspace, smallest, largest string, wantFirst, wantEnd int) {
	t.Helper()
	if first, end := k.HeadSlices([]byte(smallest), []byte(largest)); first != wantFirst || end != wantEnd {
		t.Errorf("HeadSlices(%q, %q) with prefix %q = %d, %d, want %d, %d", smallest, largest, k.Prefix, first, end, wantFirst, wantEnd)
	}
}

// No head from smallest to largest is in a slice outside of first to end, and
// the first and the last of these slices reach in among those keys.
func TestHeadSlicesMissesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := keyspaces().Draw(t, "keyspace")
		near := rapid.Uint16Range(254, 258)
		keys := rapid.Custom(func(t *rapid.T) []byte {
			key := k.AppendHead(nil, near.Draw(t, "slice"), awkward(1).Draw(t, "key"))
			switch rapid.IntRange(0, 3).Draw(t, "kind") {
			case 0:
				key = key[:rapid.IntRange(0, len(key)).Draw(t, "cut")]
			case 1:
				key[rapid.IntRange(0, len(key)-1).Draw(t, "place")] += rapid.SampledFrom([]byte{1, 255}).Draw(t, "step")
			case 2:
				return awkward(0).Draw(t, "any")
			}
			return key
		})
		smallest, largest := keys.Draw(t, "smallest"), keys.Draw(t, "largest")
		if bytes.Compare(smallest, largest) > 0 {
			smallest, largest = largest, smallest
		}
		slice := near.Draw(t, "slice of a head")
		head := k.AppendHead(nil, slice, awkward(1).Draw(t, "key of a head"))

		first, end := k.HeadSlices(smallest, largest)
		if first < 0 || first > end || end > codec.Slices {
			t.Fatalf("HeadSlices(%x, %x) with prefix %x = %d, %d", smallest, largest, k.Prefix, first, end)
		}
		if bytes.Compare(smallest, head) <= 0 && bytes.Compare(head, largest) <= 0 && (int(slice) < first || int(slice) >= end) {
			t.Fatalf("HeadSlices(%x, %x) with prefix %x = %d, %d, and head %x of slice %d lies among these keys",
				smallest, largest, k.Prefix, first, end, head, slice)
		}
		if first == end {
			return
		}
		for _, s := range []int{first, end - 1} {
			from, to := k.AppendSliceStart(nil, s), k.AppendSliceStart(nil, s+1)
			if bytes.Compare(largest, from) <= 0 || bytes.Compare(to, smallest) <= 0 {
				t.Fatalf("HeadSlices(%x, %x) with prefix %x = %d, %d, and slice %d from %x to %x has none of these keys",
					smallest, largest, k.Prefix, first, end, s, from, to)
			}
		}
	})
}

func TestStateSpans(t *testing.T) {
	k := codec.Keyspace{Prefix: []byte("p/")}
	want := [][2]string{{"p/c", "p/d"}, {"p/h", "p/i"}, {"p/q", "p/r"}, {"p/s", "p/t"}}
	var got [][2]string
	for _, span := range k.StateSpans() {
		got = append(got, [2]string{string(span[0]), string(span[1])})
	}
	if !slices.Equal(got, want) {
		t.Errorf("StateSpans() = %q, want %q", got, want)
	}
}

func TestBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := keyspaces().Draw(t, "keyspace")
		slice := rapid.OneOf(rapid.SampledFrom([]uint16{0, math.MaxUint16}), rapid.Uint16()).Draw(t, "slice")
		key := awkward(1).Draw(t, "key")
		head := k.AppendHead(nil, slice, key)
		chunk := k.AppendChunkKey(nil, slice, key, ordinals().Draw(t, "ordinal"))
		request := k.AppendRequestKey(nil, numbers(1, math.MaxInt64).Draw(t, "deadline"), key, ids().Draw(t, "id"))
		sidecar := k.AppendSidecarKey(nil, rapid.Uint8().Draw(t, "sidecar"))
		meta := k.AppendMeta(nil, rapid.StringN(0, 8, -1).Draw(t, "name"))
		from, to := k.AppendSliceStart(nil, int(slice)), k.AppendSliceStart(nil, int(slice)+1)
		first, end := k.AppendSliceStart(nil, 0), k.AppendSliceStart(nil, codec.Slices)

		if !within(head, from, to) {
			t.Fatalf("head %x of slice %d is outside %x to %x", head, slice, from, to)
		}
		if !within(head, first, end) {
			t.Fatalf("head %x is outside the heads, %x to %x", head, first, end)
		}
		for _, key := range [][]byte{chunk, request, sidecar, meta} {
			if within(key, first, end) {
				t.Fatalf("key %x is inside the heads, %x to %x", key, first, end)
			}
		}
		for _, c := range []struct {
			key  []byte
			want []bool
		}{
			{chunk, []bool{true, false, false, false}},
			{head, []bool{false, true, false, false}},
			{request, []bool{false, false, true, false}},
			{sidecar, []bool{false, false, false, true}},
			{meta, []bool{false, false, false, false}},
		} {
			var got []bool
			for _, span := range k.StateSpans() {
				got = append(got, within(c.key, span[0], span[1]))
			}
			if !slices.Equal(got, c.want) {
				t.Fatalf("key %x is within the spans of state %x: %v, want %v", c.key, k.StateSpans(), got, c.want)
			}
		}

		lower, upper := k.Bounds()
		for _, key := range [][]byte{head, chunk, request, sidecar, meta, first, end} {
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

func FuzzParseKey(f *testing.F) {
	for _, e := range examples(f, "testdata/v1.txt") {
		switch v := e.value.(type) {
		case head:
			f.Add([]byte(v.prefix), e.bytes)
		case chunkKey:
			f.Add([]byte(v.prefix), e.bytes)
		case requestKey:
			f.Add([]byte(v.prefix), e.bytes)
		case sidecarKey:
			f.Add([]byte(v.prefix), e.bytes)
		}
	}
	f.Add([]byte{}, []byte("h\x00\x00\x00\xff\x00\xff\x00\x01"))
	f.Add([]byte("h"), []byte("hh\x00\x00\x00\x01"))
	f.Fuzz(func(t *testing.T, prefix, b []byte) {
		k := codec.Keyspace{Prefix: prefix}
		var found [][]byte
		if slice, key, err := k.ParseHead(nil, b); err != nil {
			checkNotHead(t, k, b)
		} else {
			found = append(found, k.AppendHead(nil, slice, key))
		}
		if slice, key, ordinal, err := k.ParseChunkKey(nil, b); err != nil {
			checkNotChunkKey(t, k, b)
		} else {
			found = append(found, k.AppendChunkKey(nil, slice, key, ordinal))
		}
		if deadline, key, id, err := k.ParseRequestKey(nil, b); err != nil {
			checkNotRequestKey(t, k, b)
		} else {
			found = append(found, k.AppendRequestKey(nil, deadline, key, id))
		}
		if n, err := k.ParseSidecarKey(b); err != nil {
			checkNotSidecarKey(t, k, b)
		} else {
			found = append(found, k.AppendSidecarKey(nil, n))
		}
		if len(found) > 1 || len(found) == 1 && !bytes.Equal(found[0], b) {
			t.Fatalf("key %x with prefix %x is read as %x", b, prefix, found)
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

func BenchmarkAppendChunkKey(b *testing.B) {
	k := codec.Keyspace{Seed: 1}
	key := []byte("user:12345678901")
	var buf []byte
	for b.Loop() {
		buf = k.AppendChunkKey(buf[:0], 0x1234, key, 50)
	}
}

func BenchmarkAppendRequestKey(b *testing.B) {
	k := codec.Keyspace{Seed: 1}
	key := []byte("user:12345678901")
	var buf []byte
	for b.Loop() {
		buf = k.AppendRequestKey(buf[:0], 1_700_000_060_000_000_001, key, "order-1")
	}
}

func BenchmarkAppendSidecarKey(b *testing.B) {
	k := codec.Keyspace{Seed: 1}
	var buf []byte
	for b.Loop() {
		buf = k.AppendSidecarKey(buf[:0], 0x12)
	}
}
