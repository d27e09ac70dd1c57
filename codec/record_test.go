package codec_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"testing"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine/limit"
	"github.com/vmihailenco/msgpack/v5"
	"pgregory.net/rapid"
)

// states draws every state that has a record, most often close to the places
// where the encoding of a number changes.
func states() *rapid.Generator[limit.State] {
	return rapid.OneOf(gcraStates(), quotaStates(), rollingStates())
}

func gcraStates() *rapid.Generator[limit.State] {
	return rapid.Custom(func(t *rapid.T) limit.State {
		s := limit.State{Kind: limit.KindGCRA}
		s.GCRA.Deadline = numbers(1, math.MaxInt64).Draw(t, "deadline")
		if rapid.Bool().Draw(t, "fraction") {
			s.GCRA.Count = numbers(2, math.MaxInt64).Draw(t, "count")
			s.GCRA.Short = numbers(1, s.GCRA.Count-1).Draw(t, "short")
		}
		return s
	})
}

// numbers draws one of low..high.
func numbers(low, high int64) *rapid.Generator[int64] {
	return rapid.Custom(func(t *rapid.T) int64 {
		bits := rapid.IntRange(0, 62).Draw(t, "bits")
		n := rapid.OneOf(rapid.Int64Range(-2, 2), rapid.Int64()).Draw(t, "offset") + 1<<bits
		return max(low, min(n, high))
	})
}

// fields returns what the record of s holds, in order.
func fields(s limit.State) []any {
	f := []any{uint64(s.Deadline()), uint64(s.Kind)}
	switch s.Kind {
	case limit.KindGCRA:
		if s.GCRA.Short != 0 {
			f = append(f, uint64(s.GCRA.Short), uint64(s.GCRA.Count))
		}
	case limit.KindQuota:
		f = append(f, uint64(s.Quota.Used), uint64(s.Quota.Limit), uint64(s.Quota.Window))
	case limit.KindRolling:
		l := s.Rolling
		f = append(f, uint64(l.Front), uint64(l.First), uint64(l.Next), spell(l.Runs, l.Deadline, l.Next))
	}
	return f
}

// encode returns what the library makes of a version 1 value with fields f,
// with integers as short as they go or in their own width.
func encode(t fataler, f []any, compact bool) []byte {
	b := bytes.NewBuffer([]byte{1})
	e := msgpack.NewEncoder(b)
	e.UseCompactInts(compact)
	if err := e.Encode(f); err != nil {
		t.Fatalf("library: encode %v: %v", f, err)
	}
	return b.Bytes()
}

// decode returns the fields that the library finds in a version 1 value.
func decode(t fataler, b []byte) []any {
	if len(b) == 0 || b[0] != 1 {
		t.Fatalf("%x is not of version 1", b)
	}
	d := msgpack.NewDecoder(bytes.NewReader(b[1:]))
	f, err := d.DecodeInterfaceLoose()
	if err != nil {
		t.Fatalf("library: decode %x: %v", b, err)
	}
	if d.Buffered().(*bytes.Reader).Len() != 0 {
		t.Fatalf("library: %x goes on after its end", b)
	}
	return f.([]any)
}

func TestStateAgainstLibrary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := states().Draw(t, "state")
		before := awkward(0).Draw(t, "before")
		record := codec.AppendState(bytes.Clone(before), s)
		if !bytes.HasPrefix(record, before) {
			t.Fatalf("AppendState made %x of what was in dst, %x", record, before)
		}
		record = record[len(before):]

		if want := encode(t, fields(s), true); !bytes.Equal(record, want) {
			t.Fatalf("AppendState(%s) = %x, the library writes %x", show(s), record, want)
		}
		if got, want := fmt.Sprint(decode(t, record)), fmt.Sprint(fields(s)); got != want {
			t.Fatalf("the library reads %s in the record of %s, want %s", got, show(s), want)
		}
		checkState(t, record, s)
		checkState(t, encode(t, fields(s), false), s)
	})
}

func checkState(t fataler, b []byte, want limit.State) {
	if got, err := codec.DecodeState(b); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("DecodeState(%x) = %s, %v, want %s", b, show(got), err, show(want))
	}
	if got, err := codec.DecodeDeadline(b); err != nil || got != want.Deadline() {
		t.Fatalf("DecodeDeadline(%x) = %d, %v, want %d", b, got, err, want.Deadline())
	}
}

// show prints s with what is in its list.
func show(s limit.State) string {
	if s.Rolling == nil {
		return fmt.Sprintf("%+v", s)
	}
	return fmt.Sprintf("%v list %+v", s.Kind, *s.Rolling)
}

func checkNotState(t fataler, b []byte, want error) {
	if got, err := codec.DecodeState(b); !errors.Is(err, want) || got != (limit.State{}) {
		t.Fatalf("DecodeState(%x) = %s, %v, want no state, %v", b, show(got), err, want)
	}
}

// checkNotFields makes sure that no record has the fields f.
func checkNotFields(t *testing.T, f []any) {
	checkNotState(t, encode(t, f, true), codec.ErrCorrupt)
	checkNotState(t, encode(t, f, false), codec.ErrCorrupt)
}

func TestStateIsWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		record := codec.AppendState(nil, states().Draw(t, "state"))
		for i := range record {
			checkNotState(t, record[:i], codec.ErrCorrupt)
		}
		checkNotState(t, append(record, rapid.Byte().Draw(t, "trailing")), codec.ErrCorrupt)
	})
}

// Every integer encoding is read, also a longer one than need be.
func TestStateIntegers(t *testing.T) {
	for _, record := range []string{
		"\x01\x92\x05\x01",
		"\x01\x92\xcc\x05\xcc\x01",
		"\x01\x92\xcd\x00\x05\xcd\x00\x01",
		"\x01\x92\xce\x00\x00\x00\x05\xce\x00\x00\x00\x01",
		"\x01\x92\xcf\x00\x00\x00\x00\x00\x00\x00\x05\xcf\x00\x00\x00\x00\x00\x00\x00\x01",
		"\x01\x92\xd0\x05\xd0\x01",
		"\x01\x92\xd1\x00\x05\xd1\x00\x01",
		"\x01\x92\xd2\x00\x00\x00\x05\xd2\x00\x00\x00\x01",
		"\x01\x92\xd3\x00\x00\x00\x00\x00\x00\x00\x05\xd3\x00\x00\x00\x00\x00\x00\x00\x01",
		"\x01\xdc\x00\x02\x05\x01",
		"\x01\xdd\x00\x00\x00\x02\x05\x01",
	} {
		checkState(t, []byte(record), limit.State{Kind: limit.KindGCRA, GCRA: limit.GCRAState{Deadline: 5}})
		for i := range record {
			checkNotState(t, []byte(record[:i]), codec.ErrCorrupt)
		}
	}
}

func TestDecodeStateRefuses(t *testing.T) {
	gcra := int(limit.KindGCRA)
	for name, f := range map[string][]any{
		"no array":                  nil,
		"no fields":                 {},
		"no kind":                   {5},
		"no count":                  {5, gcra, 1},
		"deadline nil":              {nil, gcra},
		"deadline 0":                {0, gcra},
		"deadline negative":         {-1, gcra},
		"deadline 2^63":             {uint64(1 << 63), gcra},
		"deadline a float":          {5.0, gcra},
		"deadline a string":         {"5", gcra},
		"deadline a boolean":        {true, gcra},
		"deadline an array":         {[]int{5}, gcra},
		"kind nil":                  {5, nil},
		"kind none":                 {5, int(limit.KindNone)},
		"kind unknown":              {5, 99},
		"kind GCRA modulo 256":      {5, gcra + 256},
		"kind negative":             {5, -1},
		"short nil":                 {5, gcra, nil, 3},
		"short negative":            {5, gcra, -1, 3},
		"short 0":                   {5, gcra, 0, 3},
		"short the count":           {5, gcra, 3, 3},
		"short above the count":     {5, gcra, 4, 3},
		"count nil":                 {5, gcra, 1, nil},
		"count 0":                   {5, gcra, 1, 0},
		"count negative":            {5, gcra, 1, -3},
		"count 1":                   {5, gcra, 1, 1},
		"count 2^63":                {5, gcra, 1, uint64(1 << 63)},
		"count a float":             {5, gcra, 1, 3.0},
		"zeros for no reason":       {5, gcra, 0, 0},
		"zeros, short 0, and more":  {5, gcra, 0, 3, "later"},
		"zeros, count 0, and more":  {5, gcra, 1, 0, "later"},
		"deadline 0, and more":      {0, gcra, 0, 0, "later"},
		"deadline 0 and a fraction": {0, gcra, 1, 3},
	} {
		t.Run(name, func(t *testing.T) { checkNotFields(t, f) })
	}
	for name, b := range map[string]string{
		"a map":                "\x01\x81\x05\x01",
		"a number":             "\x01\x05",
		"a string":             "\x01\xa2\x05\x01",
		"a negative fixint":    "\x01\x92\xff\x01",
		"a negative int8":      "\x01\x92\xd0\xff\x01",
		"a negative int16":     "\x01\x92\xd1\xff\xff\x01",
		"a negative int32":     "\x01\x92\xd2\xff\xff\xff\xff\x01",
		"an extension":         "\x01\x92\xd4\x05\x01",
		"an unused first byte": "\x01\x92\xc1\x01",
		"a later unused byte":  "\x01\x95\x05\x01\x00\x00\xc1",
		"2^32-1 fields":        "\x01\xdd\xff\xff\xff\xff\x05\x01\x00\x00",
		"2^33-2 in a map":      "\x01\x95\x05\x01\x00\x00\xdf\xff\xff\xff\xff",
		"2^32-1 bytes":         "\x01\x95\x05\x01\x00\x00\xc6\xff\xff\xff\xff\x00",
		"version 0":            "\x00\x92\x05\x01",
	} {
		t.Run(name, func(t *testing.T) { checkNotState(t, []byte(b), codec.ErrCorrupt) })
	}
	for version := codec.Version + 1; version < 256; version++ {
		checkNotState(t, []byte{byte(version)}, codec.ErrVersion)
		checkNotState(t, []byte{byte(version), 0x92, 5, 1}, codec.ErrVersion)
	}
}

// A deadline is read also of a record whose other fields are not, or not yet,
// understood.
func TestDecodeDeadline(t *testing.T) {
	for name, f := range map[string][]any{
		"no kind":        {5},
		"kind nil":       {5, nil},
		"kind unknown":   {5, 99},
		"short negative": {5, int(limit.KindGCRA), -1, 3},
		"no quota":       {5, int(limit.KindQuota)},
		"no list":        {5, int(limit.KindRolling), 0, 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			checkNotFields(t, f)
			b := encode(t, f, true)
			if got, err := codec.DecodeDeadline(b); err != nil || got != 5 {
				t.Errorf("DecodeDeadline(%x) = %d, %v, want 5", b, got, err)
			}
		})
	}
	for _, b := range []string{"\x01\x92\x05", "\x01\x92\x05\xc1", "\x01\x91\x05\x01"} { // it reads no further
		if got, err := codec.DecodeDeadline([]byte(b)); err != nil || got != 5 {
			t.Errorf("DecodeDeadline(%x) = %d, %v, want 5", b, got, err)
		}
	}
	for name, f := range map[string][]any{
		"no array":          nil,
		"no fields":         {},
		"deadline nil":      {nil, 1},
		"deadline 0":        {0, 1},
		"deadline negative": {-1, 1},
		"deadline 2^63":     {uint64(1 << 63), 1},
		"deadline a float":  {5.0, 1},
		"deadline a string": {"5", 1},
	} {
		t.Run(name, func(t *testing.T) {
			checkNotDeadline(t, encode(t, f, true), codec.ErrCorrupt)
			checkNotDeadline(t, encode(t, f, false), codec.ErrCorrupt)
		})
	}
	for name, b := range map[string]string{
		"nothing":         "",
		"a version alone": "\x01",
		"an array alone":  "\x01\x92",
		"half a deadline": "\x01\x92\xcd\x00",
		"a map":           "\x01\x81\x05\x01",
		"version 0":       "\x00\x92\x05\x01",
	} {
		t.Run(name, func(t *testing.T) { checkNotDeadline(t, []byte(b), codec.ErrCorrupt) })
	}
	checkNotDeadline(t, []byte{codec.Version + 1, 0x92, 5, 1}, codec.ErrVersion)
}

func checkNotDeadline(t fataler, b []byte, want error) {
	if got, err := codec.DecodeDeadline(b); !errors.Is(err, want) || got != 0 {
		t.Fatalf("DecodeDeadline(%x) = %d, %v, want 0, %v", b, got, err, want)
	}
}

func TestAppendStateRefuses(t *testing.T) {
	for _, s := range []limit.State{
		{},
		{GCRA: limit.GCRAState{Deadline: 5}},
		{Kind: 99, GCRA: limit.GCRAState{Deadline: 5}},
		{Kind: limit.KindGCRA},
		{Kind: limit.KindGCRA, Quota: quota.Quota},
		{Kind: limit.KindGCRA, GCRA: limit.GCRAState{Deadline: -1}},
		{Kind: limit.KindGCRA, GCRA: limit.GCRAState{Deadline: 5, Count: 3}},
		{Kind: limit.KindGCRA, GCRA: limit.GCRAState{Deadline: 5, Short: 1}},
		{Kind: limit.KindGCRA, GCRA: limit.GCRAState{Deadline: 5, Short: -1, Count: 3}},
		{Kind: limit.KindGCRA, GCRA: limit.GCRAState{Deadline: 5, Short: 3, Count: 3}},
		{Kind: limit.KindQuota},
		{Kind: limit.KindQuota, GCRA: whole.GCRA},
		{Kind: limit.KindQuota, Quota: limit.QuotaState{Deadline: 5, Used: -1, Limit: 2, Window: 3}},
		{Kind: limit.KindQuota, Quota: limit.QuotaState{Deadline: 5, Used: 3, Limit: 2, Window: 3}},
		{Kind: limit.KindRolling},
		{Kind: limit.KindRolling, Quota: quota.Quota},
		{Kind: limit.KindRolling, Rolling: &limit.RollingState{}},
		{Kind: limit.KindRolling, Rolling: &limit.RollingState{Deadline: 5, Next: 1}},
		{Kind: limit.KindRolling, Rolling: rolling(limit.MaxRuns + 1).Rolling},
	} {
		checkPanic(t, fmt.Sprintf("AppendState(%s)", show(s)), func() { codec.AppendState(nil, s) })
	}
}

func checkPanic(t *testing.T, call string, f func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s did not panic", call)
		}
	}()
	f()
}

// tail draws a field that a later version may have added, of any type.
func tail() *rapid.Generator[any] {
	return rapid.Deferred(func() *rapid.Generator[any] {
		lengths := rapid.SampledFrom([]int{0, 1, 2, 4, 8, 15, 16, 17, 31, 32, 255, 256, 65535, 65536})
		return rapid.Custom(func(t *rapid.T) any {
			switch rapid.IntRange(0, 10).Draw(t, "type") {
			case 0:
				return nil
			case 1:
				return rapid.Bool().Draw(t, "bool")
			case 2:
				return rapid.Int64().Draw(t, "int64")
			case 3:
				return rapid.Int8().Draw(t, "int8")
			case 4:
				return rapid.Float32().Draw(t, "float32")
			case 5:
				return rapid.Float64().Draw(t, "float64")
			case 6:
				return string(make([]byte, lengths.Draw(t, "string")))
			case 7:
				return make([]byte, lengths.Draw(t, "bytes"))
			case 8:
				return extension(lengths.Draw(t, "extension"))
			case 9:
				return rapid.SliceOfN(tail(), 0, 17).Draw(t, "array")
			default:
				return rapid.MapOfN(rapid.String(), tail(), 0, 17).Draw(t, "map")
			}
		})
	})
}

// extension is a MessagePack extension of so many bytes, of a type that
// nobody registered.
type extension int

func (n extension) EncodeMsgpack(e *msgpack.Encoder) error {
	if err := e.EncodeExtHeader(42, int(n)); err != nil {
		return err
	}
	_, err := e.Writer().Write(make([]byte, n))
	return err
}

func TestTailIsSkipped(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := states().Draw(t, "state")
		f := fields(s)
		if len(f) == 2 { // a whole arrival time: zeros hold the place of a fraction
			f = append(f, uint64(0), uint64(0))
		}
		f = append(f, rapid.SliceOfN(tail(), 1, 15).Draw(t, "tail")...)
		b := encode(t, f, rapid.Bool().Draw(t, "compact"))

		checkState(t, b, s)
		checkNotState(t, b[:len(b)-1], codec.ErrCorrupt)
		checkNotState(t, b[:rapid.IntRange(0, len(b)-1).Draw(t, "cut")], codec.ErrCorrupt)
		checkNotState(t, append(b, 0), codec.ErrCorrupt)
	})
}

func TestTailMayBeDeep(t *testing.T) {
	want := limit.State{Kind: limit.KindGCRA, GCRA: limit.GCRAState{Deadline: 5}}
	for _, c := range []struct{ open, core string }{
		{"\x91", "\xc0"},
		{"\x81\x01", "\xc0"},
		{"\xdc\x00\x01", "\x90"},
		{"\xdd\x00\x00\x00\x01", "\xde\x00\x00"},
		{"\xdf\x00\x00\x00\x01\xc0", "\x80"},
	} {
		b := []byte("\x01\x95\x05\x01\x00\x00")
		b = append(b, bytes.Repeat([]byte(c.open), 1<<20)...)
		checkNotState(t, b, codec.ErrCorrupt)
		checkState(t, append(b, c.core...), want)
	}
}

func FuzzDecodeState(f *testing.F) {
	for _, e := range examples(f, "testdata/v1.txt") {
		f.Add(e.bytes)
	}
	f.Add([]byte("\x01\x96\x05\x01\x00\x00\x82\xa1x\x93\x01\xc0\xc7\x01\x2a\x00\x02\xcb\x00\x00\x00\x00\x00\x00\x00\x00\xd9\x01x"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := codec.DecodeState(b)
		if err != nil {
			if !errors.Is(err, codec.ErrCorrupt) && !errors.Is(err, codec.ErrVersion) {
				t.Fatalf("DecodeState(%x): %v", b, err)
			}
			// The deadline may be readable all the same.
			deadline, err := codec.DecodeDeadline(b)
			if (err == nil) != (deadline > 0) || err != nil && !errors.Is(err, codec.ErrCorrupt) && !errors.Is(err, codec.ErrVersion) {
				t.Fatalf("DecodeDeadline(%x) = %d, %v", b, deadline, err)
			}
			return
		}
		record := codec.AppendState(nil, s)
		checkState(t, record, s)
		if len(record) > len(b) {
			t.Fatalf("the record of %+v has %d bytes, and %x has %d", s, len(record), b, len(b))
		}

		d := msgpack.NewDecoder(bytes.NewReader(b[1:]))
		n, err := d.DecodeArrayLen()
		if err != nil {
			t.Fatalf("library: %v", err)
		}
		want := fields(s)
		for i := range min(n, len(want)) {
			var got any
			if _, ok := want[i].([]byte); ok {
				got, err = d.DecodeBytes()
			} else {
				got, err = d.DecodeUint64()
			}
			if err != nil || !reflect.DeepEqual(got, want[i]) {
				t.Fatalf("the library reads %v, %v in field %d of %x, want %v", got, err, i, b, want[i])
			}
		}

		for _, now := range []int64{1, s.Deadline() - 1, s.Deadline(), math.MaxInt64} {
			switch s.Kind {
			case limit.KindGCRA:
				checkGCRADecisions(t, s.GCRA, now)
			case limit.KindQuota:
				checkQuotaDecisions(t, s.Quota, now)
			case limit.KindRolling:
				checkRollingDecisions(t, *s.Rolling, now, limit.Rolling{Limit: 9, Window: 1e9}, nil)
			}
		}
	})
}

// checkGCRADecisions makes sure that a decision on s ends in an answer, or in
// an error that is not about s.
func checkGCRADecisions(t fataler, s limit.GCRAState, now int64) {
	for _, count := range []int64{1, 3, 1e9 + 7, math.MaxInt64} {
		r := limit.Rate{Burst: 9, Count: count, Period: 1e9}
		if _, _, err := s.Take(now, r, 1); err != nil && !errors.Is(err, limit.ErrOutOfRange) {
			t.Fatalf("Take(%d, %+v, 1) on %+v: %v", now, r, s, err)
		}
	}
}

var (
	whole    = limit.State{Kind: limit.KindGCRA, GCRA: limit.GCRAState{Deadline: 1_700_000_000_000_000_001}}
	fraction = limit.State{Kind: limit.KindGCRA, GCRA: limit.GCRAState{Deadline: 1_700_000_000_000_000_001, Short: 100, Count: 700}}
)

// benchmarkStates are states of all kinds and sizes.
var benchmarkStates = []struct {
	name  string
	state limit.State
}{
	{"whole", whole},
	{"fraction", fraction},
	{"quota", quota},
	{"list of 1", rolling(1)},
	{"list of 10", rolling(10)},
	{"list of 100", rolling(100)},
}

func BenchmarkAppendState(b *testing.B) {
	for _, c := range benchmarkStates {
		b.Run(c.name, func(b *testing.B) {
			var buf []byte
			for b.Loop() {
				buf = codec.AppendState(buf[:0], c.state)
			}
		})
	}
	b.Run("library", func(b *testing.B) {
		var w sliceWriter
		e := msgpack.NewEncoder(&w)
		for b.Loop() {
			w = append(w[:0], codec.Version)
			e.EncodeArrayLen(4)
			e.EncodeUint(uint64(fraction.GCRA.Deadline))
			e.EncodeUint(uint64(fraction.Kind))
			e.EncodeUint(uint64(fraction.GCRA.Short))
			e.EncodeUint(uint64(fraction.GCRA.Count))
		}
	})
}

// sliceWriter is the cheapest writer that the library writes to.
type sliceWriter []byte

func (w *sliceWriter) Write(b []byte) (int, error) {
	*w = append(*w, b...)
	return len(b), nil
}

func (w *sliceWriter) WriteByte(c byte) error {
	*w = append(*w, c)
	return nil
}

func BenchmarkDecodeState(b *testing.B) {
	for _, c := range benchmarkStates {
		b.Run(c.name, func(b *testing.B) {
			record := codec.AppendState(nil, c.state)
			for b.Loop() {
				codec.DecodeState(record)
			}
		})
	}
	b.Run("library", func(b *testing.B) {
		r := bytes.NewReader(nil)
		d := msgpack.NewDecoder(r)
		record := codec.AppendState(nil, fraction)
		for b.Loop() {
			r.Reset(record[1:])
			d.DecodeArrayLen()
			for range 4 {
				d.DecodeInt64()
			}
		}
	})
}

func BenchmarkDecodeDeadline(b *testing.B) {
	for _, c := range benchmarkStates {
		b.Run(c.name, func(b *testing.B) {
			record := codec.AppendState(nil, c.state)
			for b.Loop() {
				codec.DecodeDeadline(record)
			}
		})
	}
}
