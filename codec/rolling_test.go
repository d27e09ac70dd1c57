package codec_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine/limit"
	"pgregory.net/rapid"
)

// rolling returns a list of n events, 1 ms apart, in a window of a minute.
func rolling(n int) limit.State {
	runs, newest := everyMillisecond(n)
	return limit.State{Kind: limit.KindRolling, Rolling: &limit.RollingState{
		Deadline: newest + int64(time.Minute),
		Next:     int64(n),
		Runs:     runs,
	}}
}

// sealed returns a chunk of n events, 1 ms apart as is the one after it.
func sealed(n int) *limit.Chunk {
	runs, newest := everyMillisecond(n)
	return &limit.Chunk{Runs: runs, Next: int64(n), After: newest + 1e6}
}

func everyMillisecond(n int) (runs []limit.Run, newest int64) {
	for i := range n {
		newest = 1_700_000_000_000_000_000 + int64(i)*1e6
		runs = append(runs, limit.Run{Stamp: newest, Ordinal: int64(i)})
	}
	return runs, newest
}

// rollingStates draws every list that has a record.
func rollingStates() *rapid.Generator[limit.State] {
	return rapid.Custom(func(t *rapid.T) limit.State {
		s := &limit.RollingState{
			Deadline: numbers(2, math.MaxInt64).Draw(t, "deadline"),
			Next:     numbers(1, math.MaxInt64).Draw(t, "next"),
		}
		s.Runs = drawRuns(t, s.Deadline, s.Next, int64(limit.MaxWindow), limit.MaxLimit+1)
		sealed := s.Runs[0].Ordinal
		s.First = sealed
		if room := min(sealed, limit.MaxLimit+1-(s.Next-sealed)); room > 0 && rapid.Bool().Draw(t, "sealed") {
			s.First -= numbers(1, room).Draw(t, "events in chunks")
		}
		s.Front = s.First
		if s.First < sealed {
			s.Front -= numbers(0, s.First).Draw(t, "events forgotten")
		}
		return limit.State{Kind: limit.KindRolling, Rolling: s}
	})
}

func chunks() *rapid.Generator[*limit.Chunk] {
	return rapid.Custom(func(t *rapid.T) *limit.Chunk {
		c := &limit.Chunk{
			Next:  numbers(1, math.MaxInt64).Draw(t, "next"),
			After: numbers(2, math.MaxInt64).Draw(t, "after"),
		}
		c.Runs = drawRuns(t, c.After, c.Next, math.MaxInt64, math.MaxInt64)
		return c
	})
}

// drawRuns draws runs before a stamp and an ordinal, the newest at most age
// before the stamp, and of at most so many events together.
func drawRuns(t *rapid.T, stamp, ordinal, age, events int64) []limit.Run {
	var runs []limit.Run
	bits := rapid.SampledFrom([]int{0, 20, 62}).Draw(t, "bits")
	for range rapid.OneOf(rapid.IntRange(1, 3), rapid.IntRange(1, limit.MaxRuns)).Draw(t, "runs") {
		if stamp <= 1 || ordinal == 0 || events == 0 {
			break
		}
		stamp -= numbers(1, min(stamp-1, age, 1<<bits)).Draw(t, "gap")
		n := numbers(1, min(ordinal, events, 1<<bits)).Draw(t, "events")
		ordinal -= n
		events -= n
		age = math.MaxInt64
		runs = append(runs, limit.Run{Stamp: stamp, Ordinal: ordinal})
	}
	slices.Reverse(runs)
	return runs
}

// spell writes runs as FORMAT.md has it.
func spell(runs []limit.Run, after, next int64) []byte {
	var b []byte
	ends := append(slices.Clone(runs[1:]), limit.Run{Stamp: after, Ordinal: next})
	for i, run := range runs {
		gap, events := uint64(ends[i].Stamp-run.Stamp), uint64(ends[i].Ordinal-run.Ordinal)
		if events > 1 {
			b = slices.Concat(b, uvarint(2*gap+1), uvarint(events))
		} else {
			b = slices.Concat(b, uvarint(2*gap))
		}
	}
	return b
}

// uvarint writes n digit by digit.
func uvarint(n uint64) []byte {
	var b []byte
	for digits := max(1, (bits.Len64(n)+6)/7); digits > 1; digits-- {
		b = append(b, byte(n%128)+128)
		n /= 128
	}
	return append(b, byte(n))
}

func TestDecodeRollingRefuses(t *testing.T) {
	kind := int(limit.KindRolling)
	one, two := []byte{3 << 1}, []byte{1 << 1, 2 << 1} // 3 ns before the end, and 3 and 2 ns
	far := int64(limit.MaxWindow) + 2
	hundred := bytes.Repeat([]byte{1 << 1}, limit.MaxRuns)
	for text, f := range map[string][]any{
		"rolling deadline 9 front 0 first 0 next 1 runs 0@6":                                      {9, kind, 0, 0, 1, one},
		"rolling deadline 9 front 5 first 7 next 10 runs 8@6 9@7":                                 {9, kind, 5, 7, 10, two},
		"rolling deadline 900 front 0 first 0 next 100 runs 0@800 99*1@1":                         {900, kind, 0, 0, 100, hundred},
		"rolling deadline 9 front 0 first 0 next 9007199254740992 runs 0@6":                       {9, kind, 0, 0, limit.MaxLimit + 1, slices.Concat([]byte{3<<1 | 1}, uvarint(uint64(limit.MaxLimit+1)))},
		"rolling deadline 315360000000000001 front 0 first 0 next 1 runs 0@1":                     {far - 1, kind, 0, 0, 1, uvarint(uint64(far-2) << 1)},
		"rolling deadline 9223372036854775807 front 9 first 9 next 10 runs 9@9223372036854775806": {math.MaxInt64, kind, 9, 9, 10, []byte{1 << 1}},
	} {
		checkState(t, encode(t, f, true), parseValue(t, text).(limit.State))
	}
	for name, f := range map[string][]any{
		"no front":                    {9, kind},
		"no first":                    {9, kind, 0},
		"no next":                     {9, kind, 0, 0},
		"no runs":                     {9, kind, 0, 0, 1},
		"deadline 0":                  {0, kind, 0, 0, 1, one},
		"deadline the newest stamp":   {9, kind, 0, 0, 1, []byte{0}},
		"deadline too far":            {far, kind, 0, 0, 1, uvarint(uint64(far-1) << 1)},
		"front nil":                   {9, kind, nil, 0, 1, one},
		"front negative":              {9, kind, -1, 0, 1, one},
		"front after first":           {9, kind, 8, 7, 10, two},
		"front before first alone":    {9, kind, 7, 8, 10, two},
		"first nil":                   {9, kind, 0, nil, 1, one},
		"first after the oldest run":  {9, kind, 5, 9, 10, two},
		"first at the next":           {9, kind, 1, 1, 1, one},
		"next nil":                    {9, kind, 0, 0, nil, one},
		"next 0":                      {9, kind, 0, 0, 0, one},
		"next a float":                {9, kind, 0, 0, 1.0, one},
		"next 2^63":                   {9, kind, 0, 0, uint64(1 << 63), one},
		"more events than there are":  {9, kind, 0, 0, limit.MaxLimit + 2, one},
		"runs nil":                    {9, kind, 0, 0, 1, nil},
		"runs a string":               {9, kind, 0, 0, 1, string(one)},
		"runs an array":               {9, kind, 0, 0, 1, []int{6}},
		"runs a number":               {9, kind, 0, 0, 1, 6},
		"empty runs":                  {9, kind, 0, 0, 1, []byte{}},
		"empty runs, and more":        {9, kind, 0, 0, 1, []byte{}, "later"},
		"stamp 0":                     {9, kind, 0, 0, 1, []byte{9 << 1}},
		"stamp negative":              {9, kind, 0, 0, 1, []byte{10 << 1}},
		"stamp before an earlier one": {9, kind, 0, 0, 2, []byte{2 << 1, 8 << 1}},
		"equal stamps":                {9, kind, 0, 0, 2, []byte{0, 3 << 1}},
		"ordinal negative":            {9, kind, 0, 0, 1, []byte{1 << 1, 2 << 1}},
		"too many events in a run":    {9, kind, 0, 0, 2, []byte{3<<1 | 1, 3}},
		"no number of events":         {9, kind, 0, 0, 2, []byte{3<<1 | 1}},
		"0 events":                    {9, kind, 0, 0, 1, []byte{3<<1 | 1, 0}},
		"1 event, at length":          {9, kind, 0, 0, 1, []byte{3<<1 | 1, 1}},
		"2^63 events":                 {9, kind, 0, 0, 1, slices.Concat([]byte{3<<1 | 1}, uvarint(1<<63))},
		"2^63 and 1 events":           {9, kind, 0, 0, 1, slices.Concat([]byte{2<<1 | 1}, uvarint(1<<63), []byte{1 << 1})},
		"a gap at length":             {9, kind, 0, 0, 1, []byte{3<<1 | 0x80, 0}},
		"events at length":            {9, kind, 0, 0, 2, []byte{3<<1 | 1, 0x82, 0}},
		"half a gap":                  {9, kind, 0, 0, 1, []byte{0x86}},
		"half a second gap":           {9, kind, 0, 0, 2, []byte{1 << 1, 0x84}},
		"half a number of events":     {9, kind, 0, 0, 2, []byte{3<<1 | 1, 0x82}},
		"a gap of 65 bits":            {9, kind, 0, 0, 1, append(bytes.Repeat([]byte{0x80}, 9), 2)},
		"a gap of eleven bytes":       {9, kind, 0, 0, 1, append(bytes.Repeat([]byte{0x80}, 10), 1)},
		"gaps that wrap around":       {9, kind, 0, 0, 3, slices.Concat(uvarint(math.MaxUint64-1), uvarint(math.MaxUint64-1), []byte{2 << 1})},
		"101 runs":                    {900, kind, 0, 0, 101, append(hundred, 1<<1)},
		"a thousand runs":             {9000, kind, 0, 0, 1000, bytes.Repeat(hundred, 10)},
	} {
		t.Run(name, func(t *testing.T) { checkNotFields(t, f) })
	}
}

// Every encoding of a byte string is read, also a longer one than need be.
func TestRollingByteStrings(t *testing.T) {
	want := parseValue(t, "rolling deadline 9 front 0 first 0 next 1 runs 0@6").(limit.State)
	for _, record := range []string{
		"\x01\x96\x09\x03\x00\x00\x01\xc4\x01\x06",
		"\x01\x96\x09\x03\x00\x00\x01\xc5\x00\x01\x06",
		"\x01\x96\x09\x03\x00\x00\x01\xc6\x00\x00\x00\x01\x06",
	} {
		checkState(t, []byte(record), want)
		for i := range record {
			checkNotState(t, []byte(record[:i]), codec.ErrCorrupt)
		}
	}
	for name, record := range map[string]string{
		"more bytes than there are": "\x01\x96\x09\x03\x00\x00\x01\xc4\x02\x06",
		"2^32-1 bytes":              "\x01\x96\x09\x03\x00\x00\x01\xc6\xff\xff\xff\xff\x06",
		"fewer bytes":               "\x01\x96\x09\x03\x00\x00\x01\xc4\x00\x06",
		"a str8":                    "\x01\x96\x09\x03\x00\x00\x01\xd9\x01\x06",
		"an ext8":                   "\x01\x96\x09\x03\x00\x00\x01\xc7\x01\x06\x06",
		"eight bytes of size":       "\x01\x96\x09\x03\x00\x00\x01\xc7\x00\x00\x00\x00\x00\x00\x00\x01\x06",
	} {
		t.Run(name, func(t *testing.T) { checkNotState(t, []byte(record), codec.ErrCorrupt) })
	}
}

// A few appends find room in what was decoded, of which no more is made than
// the record is long.
func TestRollingRoom(t *testing.T) {
	for n := 1; n <= limit.MaxRuns; n++ {
		s, err := codec.DecodeState(codec.AppendState(nil, rolling(n)))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := cap(s.Rolling.Runs), n+max(4, n/4); got != want {
			t.Errorf("%d runs are decoded into room for %d, want %d", n, got, want)
		}
		c, err := codec.DecodeChunk(codec.AppendChunk(nil, sealed(n)))
		if err != nil {
			t.Fatal(err)
		}
		if got := cap(c.Runs); got != n {
			t.Errorf("a chunk of %d runs is decoded into room for %d", n, got)
		}
	}
}

// The sizes that FORMAT.md gives.
func TestRollingSizes(t *testing.T) {
	for _, c := range []struct{ runs, record, chunk int }{
		{1, 23, 17}, {2, 26, 20}, {10, 50, 44}, {50, 170, 164}, {100, 321, 315},
	} {
		record, chunk := len(codec.AppendState(nil, rolling(c.runs))), len(codec.AppendChunk(nil, sealed(c.runs)))
		if record != c.record || chunk != c.chunk {
			t.Errorf("%d runs take %d bytes in a record and %d in a chunk, want %d and %d", c.runs, record, chunk, c.record, c.chunk)
		}
	}
}

func TestChunkAgainstLibrary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := chunks().Draw(t, "chunk")
		f := []any{uint64(c.Next), uint64(c.After), spell(c.Runs, c.After, c.Next)}
		value := codec.AppendChunk([]byte("dst"), c)
		if string(value[:3]) != "dst" {
			t.Fatalf("AppendChunk made %x of what was in dst", value)
		}
		value = value[3:]

		if want := encode(t, f, true); !bytes.Equal(value, want) {
			t.Fatalf("AppendChunk(%+v) = %x, the library writes %x", *c, value, want)
		}
		if got, want := fmt.Sprint(decode(t, value)), fmt.Sprint(f); got != want {
			t.Fatalf("the library reads %s in the value of %+v, want %s", got, *c, want)
		}
		checkChunk(t, value, c)
		checkChunk(t, encode(t, f, false), c)
		checkChunk(t, encode(t, append(f, tail().Draw(t, "tail")), true), c)
		for i := range value {
			checkNotChunk(t, value[:i], codec.ErrCorrupt)
		}
		checkNotChunk(t, append(value, 0), codec.ErrCorrupt)
	})
}

func checkChunk(t fataler, b []byte, want *limit.Chunk) {
	if got, err := codec.DecodeChunk(b); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("DecodeChunk(%x) = %+v, %v, want %+v", b, got, err, want)
	}
}

func checkNotChunk(t fataler, b []byte, want error) {
	if got, err := codec.DecodeChunk(b); !errors.Is(err, want) || got != nil {
		t.Fatalf("DecodeChunk(%x) = %+v, %v, want no chunk, %v", b, got, err, want)
	}
}

func TestDecodeChunkRefuses(t *testing.T) {
	one := []byte{3 << 1}
	checkChunk(t, encode(t, []any{1, 9, one}, true), &limit.Chunk{Next: 1, After: 9, Runs: parseRuns(t, "0@6")})
	for name, f := range map[string][]any{
		"no array":             nil,
		"no fields":            {},
		"no after":             {1},
		"no runs":              {1, 9},
		"next nil":             {nil, 9, one},
		"next 0":               {0, 9, one},
		"next negative":        {-1, 9, one},
		"next 2^63":            {uint64(1 << 63), 9, one},
		"after nil":            {1, nil, one},
		"after 0":              {1, 0, one},
		"after negative":       {1, -9, one},
		"after a float":        {1, 9.0, one},
		"after the only stamp": {1, 9, []byte{0}},
		"runs nil":             {1, 9, nil},
		"runs a string":        {1, 9, string(one)},
		"empty runs":           {1, 9, []byte{}},
		"stamp 0":              {1, 9, []byte{9 << 1}},
		"equal stamps":         {2, 9, []byte{0, 3 << 1}},
		"ordinal negative":     {1, 9, []byte{1 << 1, 2 << 1}},
		"1 event, at length":   {1, 9, []byte{3<<1 | 1, 1}},
		"101 runs":             {101, 900, bytes.Repeat([]byte{2}, 101)},
		"empty runs, and more": {1, 9, []byte{}, "later"},
	} {
		t.Run(name, func(t *testing.T) {
			checkNotChunk(t, encode(t, f, true), codec.ErrCorrupt)
			checkNotChunk(t, encode(t, f, false), codec.ErrCorrupt)
		})
	}
	checkNotChunk(t, []byte{codec.Version + 1, 0x93, 1, 9, 0xc4, 1, 6}, codec.ErrVersion)
}

func TestAppendChunkRefuses(t *testing.T) {
	for _, c := range []*limit.Chunk{
		{},
		{Next: 1, After: 9},
		{Next: 0, After: 9, Runs: parseRuns(t, "0@6")},
		{Next: 1, After: 6, Runs: parseRuns(t, "0@6")},
		{Next: 1, After: 9, Runs: parseRuns(t, "0@0")},
		{Next: 1, After: 9, Runs: parseRuns(t, "-1@6")},
		{Next: 2, After: 9, Runs: parseRuns(t, "0@6 1@6")},
		sealed(limit.MaxRuns + 1),
	} {
		checkPanic(t, fmt.Sprintf("AppendChunk(%+v)", *c), func() { codec.AppendChunk(nil, c) })
	}
}

// checkRollingDecisions makes sure that the calls on s, whose chunks are what
// was decoded of values, whatever they are, end in an answer or an error after
// a bounded number of reads, and that what they have changed has a record.
func checkRollingDecisions(t fataler, s limit.RollingState, now int64, r limit.Rolling, values []*limit.Chunk) {
	reads := 0
	reader := func(ordinal int64) (*limit.Chunk, error) {
		if reads++; reads > 200 {
			t.Fatalf("a decision on %+v at %d with %+v over %+v reads on and on", s, now, r, values)
		}
		for _, c := range values {
			if c.Runs[0].Ordinal <= ordinal && ordinal < c.Next {
				return c, nil
			}
		}
		if len(values) > 0 {
			return values[0], nil
		}
		return nil, limit.ErrCorrupt
	}
	check := func(call string, next limit.RollingState, change limit.Change, err error) {
		switch {
		case err == nil:
		case errors.Is(err, limit.ErrCorrupt), errors.Is(err, limit.ErrInvalid), errors.Is(err, limit.ErrOutOfRange):
		default:
			t.Fatalf("%s on %+v at %d with %+v: %v", call, s, now, r, err)
		}
		if !next.Valid() || change.Seal != nil && !change.Seal.Valid() {
			t.Fatalf("%s on %+v at %d with %+v = %+v, %+v, which is not valid", call, s, now, r, next, change)
		}
	}
	fresh := func() limit.RollingState { // states that are made of one share its memory
		s := s
		s.Runs = slices.Clone(s.Runs)
		reads = 0
		return s
	}

	next, _, change, err := fresh().Allow(now, r, reader)
	check("Allow", next, change, err)
	reads = 0
	next, _, change, err = next.Allow(max(now, now+1), r, reader)
	check("Allow twice", next, change, err)
	for _, amount := range []int64{0, 2, limit.MaxLimit} {
		next, _, change, err := fresh().Increment(now, r, amount, reader)
		check(fmt.Sprintf("Increment by %d", amount), next, change, err)
	}
	_, err = fresh().Peek(now, r, reader)
	check("Peek", s, limit.Change{}, err)
	_, err = fresh().Wait(now, r, reader)
	check("Wait", s, limit.Change{}, err)
}

func FuzzDecodeRolling(f *testing.F) {
	var records, values [][]byte
	for _, e := range examples(f, "testdata/v1.txt") {
		switch v := e.value.(type) {
		case limit.State:
			if v.Kind == limit.KindRolling {
				records = append(records, e.bytes)
			}
		case *limit.Chunk:
			values = append(values, e.bytes)
		}
	}
	for i, record := range records {
		for _, most := range []int64{1, 100, 1000} {
			f.Add(record, values[i%len(values)], values[(i+1)%len(values)], int64(1_700_000_000_100_000_000), most, int64(time.Minute), i%2 == 0)
		}
	}
	full := codec.AppendState(nil, rolling(limit.MaxRuns))
	f.Add(full, []byte{}, []byte{}, int64(1_700_000_000_100_000_000), int64(1000), int64(time.Minute), false)
	// A list of three stretches of runs, of which two are in chunks.
	list := codec.AppendState(nil, parseValue(f, "rolling deadline 1000 front 10 first 15 next 40 runs 30@500 35@600").(limit.State))
	older := codec.AppendChunk(nil, parseValue(f, "chunk next 20 after 300 runs 10@100 12@150 18@200").(*limit.Chunk))
	newer := codec.AppendChunk(nil, parseValue(f, "chunk next 30 after 500 runs 20@300 21@350 29@400").(*limit.Chunk))
	for _, now := range []int64{600, 640, 690, 740, 999, 1000} {
		for _, most := range []int64{0, 3, 15, 30} {
			f.Add(list, older, newer, now, most, int64(400), now%20 == 0)
		}
	}
	f.Fuzz(func(t *testing.T, record, a, b []byte, now, most, window int64, pause bool) {
		var values []*limit.Chunk
		for _, b := range [][]byte{a, b} {
			c, err := codec.DecodeChunk(b)
			if err != nil {
				if !errors.Is(err, codec.ErrCorrupt) && !errors.Is(err, codec.ErrVersion) {
					t.Fatalf("DecodeChunk(%x): %v", b, err)
				}
				continue
			}
			value := codec.AppendChunk(nil, c)
			checkChunk(t, value, c)
			if len(value) > len(b) {
				t.Fatalf("the value of %+v has %d bytes, and %x has %d", *c, len(value), b, len(b))
			}
			values = append(values, c)
		}
		s, err := codec.DecodeState(record)
		if err != nil || s.Kind != limit.KindRolling || now < 1 {
			return
		}
		r := limit.Rolling{Limit: most, Window: time.Duration(window), Pause: pause}
		checkRollingDecisions(t, *s.Rolling, now, r, values)
	})
}

func BenchmarkAppendChunk(b *testing.B) {
	c := sealed(50)
	var buf []byte
	for b.Loop() {
		buf = codec.AppendChunk(buf[:0], c)
	}
}

func BenchmarkDecodeChunk(b *testing.B) {
	value := codec.AppendChunk(nil, sealed(50))
	for b.Loop() {
		codec.DecodeChunk(value)
	}
}
