package codec_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/gabiondb/gabion/codec"
	"pgregory.net/rapid"
)

func TestIdentityAgainstLibrary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		id := codec.Identity{Format: rapid.Uint64().Draw(t, "format"), Seed: rapid.Uint64().Draw(t, "seed")}
		f := []any{"gabion", id.Format, id.Seed}
		value := codec.AppendIdentity([]byte("dst"), id)
		if string(value[:3]) != "dst" {
			t.Fatalf("AppendIdentity made %x of what was in dst", value)
		}
		value = value[3:]

		if got := fmt.Sprint(decode(t, value)); got != fmt.Sprint(f) {
			t.Fatalf("the library reads %s in the value of %+v, want %v", got, id, f)
		}
		checkIdentity(t, value, id)
		checkIdentity(t, encode(t, f, false), id)
		checkIdentity(t, encode(t, append(f, tail().Draw(t, "tail")), true), id)
		for i := range value {
			checkNotIdentity(t, value[:i], codec.ErrCorrupt)
		}
		checkNotIdentity(t, append(value, 0), codec.ErrCorrupt)
	})
}

func checkIdentity(t fataler, b []byte, want codec.Identity) {
	if got, err := codec.DecodeIdentity(b); err != nil || got != want {
		t.Fatalf("DecodeIdentity(%x) = %+v, %v, want %+v", b, got, err, want)
	}
}

func checkNotIdentity(t fataler, b []byte, want error) {
	if got, err := codec.DecodeIdentity(b); !errors.Is(err, want) || got != (codec.Identity{}) {
		t.Fatalf("DecodeIdentity(%x) = %+v, %v, want no identity, %v", b, got, err, want)
	}
}

func TestDecodeIdentityRefuses(t *testing.T) {
	for name, f := range map[string][]any{
		"no array":         nil,
		"no fields":        {},
		"another writer":   {"gabio!", 1, 2},
		"a longer writer":  {"gabions", 1, 2},
		"writer nil":       {nil, 1, 2},
		"writer not text":  {[]byte("gabion"), 1, 2},
		"writer a number":  {6, 1, 2},
		"no format":        {"gabion"},
		"format nil":       {"gabion", nil, 2},
		"format negative":  {"gabion", -1, 2},
		"format a float":   {"gabion", 1.0, 2},
		"no seed":          {"gabion", 1},
		"seed nil":         {"gabion", 1, nil},
		"seed negative":    {"gabion", 1, int64(math.MinInt64)},
		"seed is a string": {"gabion", 1, "2"},
	} {
		t.Run(name, func(t *testing.T) { checkNotIdentity(t, encode(t, f, true), codec.ErrCorrupt) })
	}
	value := codec.AppendIdentity(nil, codec.Identity{Format: codec.Format, Seed: 2})
	value[0]++
	checkNotIdentity(t, value, codec.ErrVersion)
}

func TestMarkAgainstLibrary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := codec.Mark{Now: numbers(0, math.MaxInt64).Draw(t, "now"), Clean: rapid.Bool().Draw(t, "clean")}
		f, place := []any{m.Now}, []any{m.Now, 0}
		if m.Clean {
			f, place = []any{m.Now, 1}, []any{m.Now, 1}
		}
		value := codec.AppendMark([]byte("dst"), m)
		if string(value[:3]) != "dst" {
			t.Fatalf("AppendMark made %x of what was in dst", value)
		}
		value = value[3:]

		if want := encode(t, f, true); !bytes.Equal(value, want) {
			t.Fatalf("AppendMark(%+v) = %x, the library writes %x", m, value, want)
		}
		checkMark(t, value, m)
		checkMark(t, encode(t, f, false), m)
		checkMark(t, encode(t, append(place, tail().Draw(t, "tail")), true), m)
		for i := range value {
			checkNotMark(t, value[:i], codec.ErrCorrupt)
		}
		checkNotMark(t, append(value, 0), codec.ErrCorrupt)
	})
}

func checkMark(t fataler, b []byte, want codec.Mark) {
	if got, err := codec.DecodeMark(b); err != nil || got != want {
		t.Fatalf("DecodeMark(%x) = %+v, %v, want %+v", b, got, err, want)
	}
}

func checkNotMark(t fataler, b []byte, want error) {
	if got, err := codec.DecodeMark(b); !errors.Is(err, want) || got != (codec.Mark{}) {
		t.Fatalf("DecodeMark(%x) = %+v, %v, want no mark, %v", b, got, err, want)
	}
}

func TestDecodeMarkRefuses(t *testing.T) {
	for name, f := range map[string][]any{
		"no array":              nil,
		"no fields":             {},
		"nil":                   {nil},
		"negative":              {-1},
		"2^63":                  {uint64(1 << 63)},
		"a float":               {1.0},
		"a string":              {"1"},
		"clean nil":             {5, nil},
		"clean a boolean":       {5, true},
		"clean negative":        {5, -1},
		"clean 2":               {5, 2},
		"clean 257":             {5, 257},
		"clean 0 for no reason": {5, 0},
		"clean 2, and more":     {5, 2, "later"},
		"clean nil, and more":   {5, nil, "later"},
		"clean, now nil":        {nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			checkNotMark(t, encode(t, f, true), codec.ErrCorrupt)
			checkNotMark(t, encode(t, f, false), codec.ErrCorrupt)
		})
	}
	checkNotMark(t, []byte{codec.Version + 1, 0x91, 5}, codec.ErrVersion)
}

func TestAppendMarkRefuses(t *testing.T) {
	for _, m := range []codec.Mark{{Now: -1}, {Now: math.MinInt64, Clean: true}} {
		checkPanic(t, fmt.Sprintf("AppendMark(%+v)", m), func() { codec.AppendMark(nil, m) })
	}
}

func BenchmarkAppendMark(b *testing.B) {
	var buf []byte
	for b.Loop() {
		buf = codec.AppendMark(buf[:0], codec.Mark{Now: 1_700_000_000_000_000_001})
	}
}
