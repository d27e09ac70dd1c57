package resp_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math/big"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/gabiondb/gabion/commands/internal/resp"
)

func read(s string) (any, error) {
	return resp.ReadReply(bufio.NewReader(strings.NewReader(s)))
}

func TestReadReply(t *testing.T) {
	huge, _ := new(big.Int).SetString("123456789012345678901234567890", 10)
	tests := []struct {
		reply string
		want  any
	}{
		{"+OK\r\n", "OK"},
		{"-ERR no\r\n", resp.Error("ERR no")},
		{":-9223372036854775808\r\n", int64(-1 << 63)},
		{"$2\r\nhi\r\n", "hi"},
		{"$0\r\n\r\n", ""},
		{"$4\r\n\r\n\r\n\r\n", "\r\n\r\n"},
		{"$-1\r\n", nil},
		{"*-1\r\n", nil},
		{"_\r\n", nil},
		{"#t\r\n", true},
		{"#f\r\n", false},
		{",1.5\r\n", 1.5},
		{"(123456789012345678901234567890\r\n", huge},
		{"!6\r\nERR no\r\n", resp.Error("ERR no")},
		{"=6\r\ntxt:hi\r\n", "hi"},
		{"*0\r\n", []any{}},
		{"*3\r\n:1\r\n$-1\r\n*1\r\n-ERR no\r\n", []any{int64(1), nil, []any{resp.Error("ERR no")}}},
		{"%2\r\n+a\r\n:1\r\n+b\r\n:2\r\n", []any{"a", int64(1), "b", int64(2)}},
		{"~1\r\n+a\r\n", []any{"a"}},
		{">1\r\n+a\r\n", []any{"a"}},
		{"|1\r\n+ttl\r\n:9\r\n+a\r\n", "a"},
	}
	for _, tt := range tests {
		got, err := read(tt.reply)
		if err != nil || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("ReadReply(%q) = %#v, %v, want %#v", tt.reply, got, err, tt.want)
		}
		for n := range len(tt.reply) {
			want := io.ErrUnexpectedEOF
			if n == 0 {
				want = io.EOF
			}
			if _, err := read(tt.reply[:n]); err != want {
				t.Errorf("ReadReply(%q): %v, want %v", tt.reply[:n], err, want)
			}
		}
	}
}

func TestReadReplyErrors(t *testing.T) {
	for _, reply := range []string{
		"\r\n", "x\r\n", ":\r\n", ":1a\r\n", ":9223372036854775808\r\n", "+OK\n", "_x\r\n", "#x\r\n", ",x\r\n", "(x\r\n",
		"$\r\n", "$-2\r\n", "$01\r\n", "$9223372036854775807\r\n", "$1\r\nabc", "*9223372036854775807\r\n", "*-2\r\n",
		"$67108865\r\n", "*67108865\r\n", "=2\r\nhi\r\n", "|x\r\n",
		strings.Repeat("*1\r\n", 100) + ":1\r\n",
		strings.Repeat("|0\r\n", 100) + ":1\r\n",
		"+" + strings.Repeat("x", 1<<20) + "\r\n",
		"*3\r\n" + strings.Repeat("$30000000\r\n"+strings.Repeat("x", 30000000)+"\r\n", 3),
	} {
		if got, err := read(reply); !errors.Is(err, resp.ErrReply) {
			t.Errorf("ReadReply(%.40q) = %v, %v, want ErrReply", reply, got, err)
		}
	}
}

// A reply that only claims to be large must not take memory for it.
func TestReadReplyAllocatesWhatArrives(t *testing.T) {
	for _, reply := range []string{"$60000000\r\nx", "*60000000\r\n:1\r\n"} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := read(reply); err != io.ErrUnexpectedEOF {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		allocated := after.TotalAlloc - before.TotalAlloc
		if allocated > 1<<20 {
			t.Errorf("ReadReply(%q) allocated %d bytes", reply, allocated)
		}
	}
}

func TestAppend(t *testing.T) {
	tests := []struct {
		name string
		got  []byte
		want string
	}{
		{"int", resp.AppendInt(nil, -42), ":-42\r\n"},
		{"bulk", resp.AppendBulk(nil, "a\r\nb"), "$4\r\na\r\nb\r\n"},
		{"bulk of bytes", resp.AppendBulk(nil, []byte("hi")), "$2\r\nhi\r\n"},
		{"simple", resp.AppendSimple(nil, "OK"), "+OK\r\n"},
		{"error", resp.AppendError(nil, "ERR a\r\nb"), "-ERR a  b\r\n"},
		{"array", resp.AppendArrayLen(nil, 2), "*2\r\n"},
		{"map, RESP2", resp.AppendMapLen(nil, resp.RESP2, 2), "*4\r\n"},
		{"map, RESP3", resp.AppendMapLen(nil, resp.RESP3, 2), "%2\r\n"},
		{"set, RESP2", resp.AppendSetLen(nil, resp.RESP2, 2), "*2\r\n"},
		{"set, RESP3", resp.AppendSetLen(nil, resp.RESP3, 2), "~2\r\n"},
		{"null, RESP2", resp.AppendNull(nil, resp.RESP2), "$-1\r\n"},
		{"null, RESP3", resp.AppendNull(nil, resp.RESP3), "_\r\n"},
		{"verbatim, RESP2", resp.AppendVerbatim(nil, resp.RESP2, []byte("hi")), "$2\r\nhi\r\n"},
		{"verbatim, RESP3", resp.AppendVerbatim(nil, resp.RESP3, []byte("hi")), "=6\r\ntxt:hi\r\n"},
		{"request", resp.AppendRequest(nil, "GET", "k"), "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"},
	}
	for _, tt := range tests {
		if string(tt.got) != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, tt.got, tt.want)
		}
	}
}

func FuzzReadReply(f *testing.F) {
	for _, reply := range []string{
		"*3\r\n:1\r\n$-1\r\n*1\r\n-ERR no\r\n", "%1\r\n+a\r\n=6\r\ntxt:hi\r\n", "|1\r\n+a\r\n#t\r\n,1.5\r\n", "$60000000\r\nx",
	} {
		f.Add([]byte(reply))
	}
	f.Fuzz(func(t *testing.T, reply []byte) {
		r := bufio.NewReader(bytes.NewReader(reply))
		for {
			v, err := resp.ReadReply(r)
			if err != nil {
				if err != io.EOF && err != io.ErrUnexpectedEOF && !errors.Is(err, resp.ErrReply) {
					t.Fatalf("an error of another kind: %v", err)
				}
				return
			}
			// What was read in RESP2 reads the same when it is written again.
			again, ok := encode(nil, v)
			if !ok {
				continue
			}
			if got, err := read(string(again)); err != nil || !reflect.DeepEqual(got, v) {
				t.Fatalf("%#v was written as %q and read as %#v, %v", v, again, got, err)
			}
		}
	})
}

func encode(b []byte, v any) ([]byte, bool) {
	switch v := v.(type) {
	case nil:
		return resp.AppendNull(b, resp.RESP2), true
	case int64:
		return resp.AppendInt(b, v), true
	case string:
		return resp.AppendBulk(b, v), true
	case []any:
		b = resp.AppendArrayLen(b, len(v))
		for _, e := range v {
			var ok bool
			if b, ok = encode(b, e); !ok {
				return b, false
			}
		}
		return b, true
	}
	return b, false
}
