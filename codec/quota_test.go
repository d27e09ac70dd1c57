package codec_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine/limit"
	"pgregory.net/rapid"
)

var (
	quota = limit.State{Kind: limit.KindQuota, Quota: limit.QuotaState{
		Deadline: 1_700_000_060_000_000_001,
		Used:     42,
		Limit:    1000,
		Window:   time.Minute,
	}}
	request  = limit.Request{Cost: 2, Used: 42}
	refunded = limit.Request{Cost: 2, Used: 42, Refunded: true}
)

// quotaStates draws every quota that has a record.
func quotaStates() *rapid.Generator[limit.State] {
	return rapid.Custom(func(t *rapid.T) limit.State {
		s := limit.State{Kind: limit.KindQuota}
		s.Quota.Limit = numbers(1, limit.MaxLimit).Draw(t, "limit")
		s.Quota.Used = numbers(0, s.Quota.Limit).Draw(t, "used")
		s.Quota.Window = time.Duration(numbers(1, int64(limit.MaxWindow)).Draw(t, "window"))
		s.Quota.Deadline = numbers(int64(s.Quota.Window)+1, math.MaxInt64).Draw(t, "deadline")
		return s
	})
}

// checkQuotaDecisions makes sure that a decision on s ends in an answer, or in
// an error that is not about s.
func checkQuotaDecisions(t fataler, s limit.QuotaState, now int64) {
	for _, q := range []limit.Quota{{Limit: s.Limit, Window: s.Window}, {Limit: 9, Window: 1e9}} {
		for _, earlier := range []limit.Request{{}, {Cost: 1, Used: 1}, {Cost: limit.MaxLimit, Used: limit.MaxLimit}, {Cost: 1, Used: 0, Refunded: true}} {
			next, _, err := s.Take(now, q, 1, earlier)
			if err != nil && !errors.Is(err, limit.ErrOutOfRange) && !errors.Is(err, limit.ErrPolicyChanged) && !errors.Is(err, limit.ErrConflict) {
				t.Fatalf("Take(%d, %+v, 1, %+v) on %+v: %v", now, q, earlier, s, err)
			}
			if !next.Valid() {
				t.Fatalf("Take(%d, %+v, 1, %+v) on %+v = %+v, which is not valid", now, q, earlier, s, next)
			}
			if next, _ := s.Refund(now, earlier); !next.Valid() {
				t.Fatalf("Refund(%d, %+v) on %+v = %+v, which is not valid", now, earlier, s, next)
			}
		}
	}
}

func TestDecodeQuotaRefuses(t *testing.T) {
	kind := int(limit.KindQuota)
	for name, f := range map[string][]any{
		"no used":               {9, kind},
		"no limit":              {9, kind, 2},
		"no window":             {9, kind, 2, 3},
		"deadline 0":            {0, kind, 2, 3, 4},
		"deadline the window":   {4, kind, 2, 3, 4},
		"deadline 2^63":         {uint64(1 << 63), kind, 2, 3, 4},
		"used nil":              {9, kind, nil, 3, 4},
		"used negative":         {9, kind, -1, 3, 4},
		"used above the limit":  {9, kind, 4, 3, 4},
		"limit nil":             {9, kind, 2, nil, 4},
		"limit 0":               {9, kind, 0, 0, 4},
		"limit negative":        {9, kind, 2, -3, 4},
		"limit above the most":  {9, kind, 2, limit.MaxLimit + 1, 4},
		"window nil":            {9, kind, 2, 3, nil},
		"window 0":              {9, kind, 2, 3, 0},
		"window negative":       {9, kind, 2, 3, -4},
		"window above the most": {math.MaxInt64, kind, 2, 3, int64(limit.MaxWindow) + 1},
		"window a float":        {9, kind, 2, 3, 4.0},
		"used above, and more":  {9, kind, 4, 3, 4, "later"},
	} {
		t.Run(name, func(t *testing.T) { checkNotFields(t, f) })
	}
}

// requests draws every request that has a record.
func requests() *rapid.Generator[limit.Request] {
	return rapid.Custom(func(t *rapid.T) limit.Request {
		r := limit.Request{Refunded: rapid.Bool().Draw(t, "refunded")}
		if r.Refunded {
			r.Cost = numbers(1, limit.MaxLimit).Draw(t, "cost")
			r.Used = numbers(0, limit.MaxLimit-r.Cost).Draw(t, "used")
		} else {
			r.Used = numbers(1, limit.MaxLimit).Draw(t, "used")
			r.Cost = numbers(1, r.Used).Draw(t, "cost")
		}
		return r
	})
}

func TestRequestAgainstLibrary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := requests().Draw(t, "request")
		f, place := []any{r.Cost, r.Used}, []any{r.Cost, r.Used, 0}
		if r.Refunded {
			f, place = append(f, 1), append(f, 1)
		}
		value := codec.AppendRequest([]byte("dst"), r)
		if string(value[:3]) != "dst" {
			t.Fatalf("AppendRequest made %x of what was in dst", value)
		}
		value = value[3:]

		if want := encode(t, f, true); !bytes.Equal(value, want) {
			t.Fatalf("AppendRequest(%+v) = %x, the library writes %x", r, value, want)
		}
		checkRequest(t, value, r)
		checkRequest(t, encode(t, f, false), r)
		checkRequest(t, encode(t, append(place, tail().Draw(t, "tail")), true), r)
		for i := range value {
			checkNotRequest(t, value[:i], codec.ErrCorrupt)
		}
		checkNotRequest(t, append(value, 0), codec.ErrCorrupt)
	})
}

func checkRequest(t fataler, b []byte, want limit.Request) {
	if got, err := codec.DecodeRequest(b); err != nil || got != want {
		t.Fatalf("DecodeRequest(%x) = %+v, %v, want %+v", b, got, err, want)
	}
}

func checkNotRequest(t fataler, b []byte, want error) {
	if got, err := codec.DecodeRequest(b); !errors.Is(err, want) || got != (limit.Request{}) {
		t.Fatalf("DecodeRequest(%x) = %+v, %v, want no request, %v", b, got, err, want)
	}
}

func TestDecodeRequestRefuses(t *testing.T) {
	for name, f := range map[string][]any{
		"no array":                 nil,
		"no fields":                {},
		"no used":                  {2},
		"cost nil":                 {nil, 3},
		"cost 0":                   {0, 3},
		"cost negative":            {-2, 3},
		"cost above used":          {4, 3},
		"cost a float":             {2.0, 3},
		"used nil":                 {2, nil},
		"used negative":            {2, -3},
		"used above the most":      {2, limit.MaxLimit + 1},
		"used 2^64-1":              {2, uint64(math.MaxUint64)},
		"zeros":                    {0, 0},
		"cost 0, and more":         {0, 3, 0, "later"},
		"cost above, and more":     {4, 3, 0, "later"},
		"refunded nil":             {2, 3, nil},
		"refunded a boolean":       {2, 3, true},
		"refunded negative":        {2, 3, -1},
		"refunded 2":               {2, 3, 2},
		"refunded 257":             {2, 3, 257},
		"refunded 0 for no reason": {2, 3, 0},
		"refunded 2, and more":     {2, 3, 2, "later"},
		"refunded nil, and more":   {2, 3, nil, "later"},
		"refunded, cost 0":         {0, 3, 1},
		"refunded, used nil":       {2, nil, 1},
		"refunded, above the most": {2, limit.MaxLimit - 1, 1},
		"not refunded, and used 0": {2, 0},
	} {
		t.Run(name, func(t *testing.T) {
			checkNotRequest(t, encode(t, f, true), codec.ErrCorrupt)
			checkNotRequest(t, encode(t, f, false), codec.ErrCorrupt)
		})
	}
	checkNotRequest(t, []byte{codec.Version + 1, 0x92, 2, 3}, codec.ErrVersion)
}

func TestAppendRequestRefuses(t *testing.T) {
	for _, r := range []limit.Request{{}, {Cost: 0, Used: 3}, {Cost: -1, Used: 3}, {Cost: 4, Used: 3}, {Cost: 1, Used: limit.MaxLimit + 1}, {Used: 3, Refunded: true}, {Cost: 4, Used: -1, Refunded: true}, {Cost: 2, Used: limit.MaxLimit - 1, Refunded: true}} {
		checkPanic(t, fmt.Sprintf("AppendRequest(%+v)", r), func() { codec.AppendRequest(nil, r) })
	}
}

func FuzzDecodeRequest(f *testing.F) {
	for _, e := range examples(f, "testdata/v1.txt") {
		if _, ok := e.value.(limit.Request); ok {
			f.Add(e.bytes)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := codec.DecodeRequest(b)
		if err != nil {
			if !errors.Is(err, codec.ErrCorrupt) && !errors.Is(err, codec.ErrVersion) {
				t.Fatalf("DecodeRequest(%x): %v", b, err)
			}
			return
		}
		value := codec.AppendRequest(nil, r)
		checkRequest(t, value, r)
		if len(value) > len(b) {
			t.Fatalf("the value of %+v has %d bytes, and %x has %d", r, len(value), b, len(b))
		}
	})
}

func BenchmarkAppendRequest(b *testing.B) {
	var buf []byte
	for b.Loop() {
		buf = codec.AppendRequest(buf[:0], request)
	}
}

func BenchmarkDecodeRequest(b *testing.B) {
	value := codec.AppendRequest(nil, request)
	for b.Loop() {
		codec.DecodeRequest(value)
	}
}
