package resp_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gabiondb/gabion/commands/internal/resp"
)

// parse feeds stream to a Parser in pieces that end at cuts, and returns the
// requests found in it, the number of bytes they take and the error that ended
// it.
func parse(p *resp.Parser, stream string, cuts ...int) (requests [][]string, used int, err error) {
	var buf []byte
	start := 0
	for _, end := range append(cuts, len(stream)) {
		buf = append(slices.Clone(buf), stream[start:end]...) // a new address each time
		start = end
		for {
			args, n, err := p.Next(buf)
			used += n
			buf = buf[n:]
			if err != nil {
				return requests, used, err
			}
			if args == nil {
				break
			}
			request := make([]string, len(args))
			for i, arg := range args {
				request[i] = string(arg)
			}
			requests = append(requests, request)
		}
	}
	return requests, used, nil
}

func everyCut(n int) []int {
	cuts := make([]int, n)
	for i := range cuts {
		cuts[i] = i
	}
	return cuts
}

func TestParserRequests(t *testing.T) {
	long := strings.Repeat("x", 5000)
	tests := []struct {
		name, stream string
		want         [][]string
	}{
		{"multibulk", "*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\n", [][]string{{"ECHO", "hi"}}},
		{"empty argument", "*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", [][]string{{"ECHO", ""}}},
		{"binary argument", "*1\r\n$6\r\n\r\n\x00\xff$*\r\n", [][]string{{"\r\n\x00\xff$*"}}},
		{"pipeline", "*1\r\n$4\r\nPING\r\nPING\r\n*1\r\n$4\r\nPING\r\n", [][]string{{"PING"}, {"PING"}, {"PING"}}},
		{"empty requests", "\r\n*0\r\n\n*-1\r\n   \r\n*-10\r\nPING\r\n", [][]string{{"PING"}}},
		{"half", "*2\r\n$4\r\nECHO\r\n$2\r\nhi", nil},
		{"large", "*1\r\n$5000\r\n" + long + "\r\n", [][]string{{long}}},
		{"inline", "ECHO hi\r\n", [][]string{{"ECHO", "hi"}}},
		{"inline without CR", "ECHO hi\n", [][]string{{"ECHO", "hi"}}},
		{"inline blanks", " \tECHO \v\f hi  \r\n", [][]string{{"ECHO", "hi"}}},
		{"inline vertical tab in a word", "a\vb\r\n", [][]string{{"a\vb"}}},
		{"inline double quotes", `ECHO "a \"b\" \n\r\t\b\a\x41\xfF\q\\"` + "\r\n", [][]string{{"ECHO", "a \"b\" \n\r\t\b\aA\xffq\\"}}},
		{"inline bad hex", `"\xg1\x1" "\x`, nil},
		{"inline hex cut short", `"\x1"` + "\r\n", [][]string{{"x1"}}},
		{"inline single quotes", `'a "b" \n \' c'` + "\r\n", [][]string{{`a "b" \n ' c`}}},
		{"inline quotes in a word", `a"b c" d'e f'` + "\r\n", [][]string{{"ab c", "de f"}}},
		{"inline empty words", `"" ''` + "\r\n", [][]string{{"", ""}}},
		{"inline backslash outside quotes", `a\nb` + "\r\n", [][]string{{`a\nb`}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, cuts := range [][]int{nil, everyCut(len(tt.stream))} {
				var p resp.Parser
				got, used, err := parse(&p, tt.stream, cuts...)
				if err != nil || !slices.EqualFunc(got, tt.want, slices.Equal) {
					t.Fatalf("parsed %q as %.200q, %v; want %.200q", tt.stream, got, err, tt.want)
				}
				if tt.want != nil && used != len(tt.stream) {
					t.Errorf("used %d of %d bytes", used, len(tt.stream))
				}
			}
		})
	}
}

func TestParserErrors(t *testing.T) {
	digits := strings.Repeat("1", resp.MaxLine)
	tests := []struct{ name, stream, want string }{
		{"huge bulk", "*1\r\n$9223372036854775807\r\n", "invalid bulk length"},
		{"huger bulk", "*1\r\n$99999999999999999999\r\n", "invalid bulk length"},
		{"negative bulk", "*1\r\n$-1\r\n", "invalid bulk length"},
		{"least bulk", "*1\r\n$-9223372036854775808\r\n", "invalid bulk length"},
		{"bulk over the bound", "*1\r\n$1048577\r\n", "invalid bulk length"},
		{"bulk with a plus", "*1\r\n$+1\r\nx\r\n", "invalid bulk length"},
		{"bulk with a leading zero", "*1\r\n$01\r\nx\r\n", "invalid bulk length"},
		{"bulk without a length", "*1\r\n$\r\n", "invalid bulk length"},
		{"bulk longer than it says", "*1\r\n$1\r\nxyz", "invalid bulk length"},
		{"bulk header without LF", "*1\r\n$1\rx", "invalid bulk length"},
		{"huge multibulk", "*9223372036854775807\r\n", "invalid multibulk length"},
		{"huger multibulk", "*99999999999999999999\r\n", "invalid multibulk length"},
		{"multibulk over the bound", "*1025\r\n", "invalid multibulk length"},
		{"multibulk of letters", "*x\r\n", "invalid multibulk length"},
		{"minus zero", "*-0\r\n", "invalid multibulk length"},
		{"multibulk header without LF", "*1\r*", "invalid multibulk length"},
		{"no dollar", "*1\r\nfoo\r\n", "expected '$', got 'f'"},
		{"no dollar, not ASCII", "*1\r\n\xfe", "expected '$', got '\xfe'"},
		{"endless multibulk header", "*1" + digits, "too big mbulk count string"},
		{"endless bulk header", "*1\r\n$1" + digits, "too big bulk count string"},
		{"endless inline", "xx" + digits, "too big inline request"},
		{"long inline", "xx" + digits + "\r\n", "too big inline request"},
		{"many words", strings.Repeat("x ", resp.MaxArgs+1) + "\r\n", "too big inline request"},
		{"many bytes", "*3\r\n" + strings.Repeat("$400000\r\n"+strings.Repeat("x", 400000)+"\r\n", 3), "too big request"},
		{"open double quotes", "ECHO \"hi\r\n", "unbalanced quotes in request"},
		{"open single quotes", "ECHO 'hi\r\n", "unbalanced quotes in request"},
		{"escape at the end", "ECHO \"hi\\\r\n", "unbalanced quotes in request"},
		{"word after quotes", "ECHO \"a\"b\r\n", "unbalanced quotes in request"},
		{"word after single quotes", "ECHO 'a'b\r\n", "unbalanced quotes in request"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cuts := [][]int{nil}
			if len(tt.stream) < 1000 {
				cuts = append(cuts, everyCut(len(tt.stream)))
			}
			for _, cuts := range cuts {
				var p resp.Parser
				got, _, err := parse(&p, "PING\r\n"+tt.stream, cuts...)
				if len(got) != 1 {
					t.Errorf("found %d requests before the error, want 1", len(got))
				}
				var protocol resp.ProtocolError
				if !errors.As(err, &protocol) || err.Error() != "Protocol error: "+tt.want {
					t.Errorf("error is %q, want %q", err, "Protocol error: "+tt.want)
				}
			}
		})
	}
}

func TestParserBounds(t *testing.T) {
	// The largest request there may be, and the longest line.
	head := "*2\r\n$4\r\nECHO\r\n$1048550\r\n"
	payload := strings.Repeat("x", 1048550)
	request := head + payload + "\r\n"
	if len(request) > resp.MaxRequest || len(request) < resp.MaxRequest-16 {
		t.Fatalf("the request is %d bytes", len(request))
	}
	var p resp.Parser
	got, _, err := parse(&p, request)
	if err != nil || len(got) != 1 || got[0][1] != payload {
		t.Errorf("a request of %d bytes: %d requests, %v", len(request), len(got), err)
	}

	line := strings.Repeat("x", resp.MaxLine)
	if got, _, err := parse(&p, line+"\n"); err != nil || len(got) != 1 || got[0][0] != line {
		t.Errorf("a line of %d bytes: %d requests, %v", len(line), len(got), err)
	}

	many := fmt.Sprintf("*%d\r\n", resp.MaxArgs) + strings.Repeat("$1\r\nx\r\n", resp.MaxArgs)
	if got, _, err := parse(&p, many); err != nil || len(got) != 1 || len(got[0]) != resp.MaxArgs {
		t.Errorf("%d arguments: %d requests, %v", resp.MaxArgs, len(got), err)
	}
}

func TestParserStrict(t *testing.T) {
	tests := []struct{ stream, want string }{
		{"*11\r\n", "Protocol error: unauthenticated multibulk length"},
		{"*1\r\n$16385\r\n", "Protocol error: unauthenticated bulk length"},
	}
	for _, tt := range tests {
		p := resp.Parser{Strict: true}
		if _, _, err := parse(&p, tt.stream); err == nil || err.Error() != tt.want {
			t.Errorf("%q: %v, want %s", tt.stream, err, tt.want)
		}
		p = resp.Parser{}
		if _, _, err := parse(&p, tt.stream); err != nil {
			t.Errorf("%q, not strict: %v", tt.stream, err)
		}
	}
	p := resp.Parser{Strict: true}
	if got, _, err := parse(&p, "*2\r\n$4\r\nAUTH\r\n$2\r\npw\r\n"); err != nil || len(got) != 1 {
		t.Errorf("AUTH: %q, %v", got, err)
	}
}

// TestParserIsLinear gives a large request byte by byte. If each byte led to
// another look at those before it, this would take hours.
func TestParserIsLinear(t *testing.T) {
	streams := []string{
		"*1\r\n$1000000\r\n" + strings.Repeat("x", 1000000) + "\r\n",
		strings.Repeat("x", resp.MaxLine) + "\n",
		"*1000\r\n" + strings.Repeat("$1\r\nx\r\n", 1000),
	}
	for _, stream := range streams {
		buf := []byte(stream)
		var p resp.Parser
		found := 0
		for n := range len(buf) + 1 {
			args, _, err := p.Next(buf[:n])
			if err != nil {
				t.Fatal(err)
			}
			if args != nil {
				found++
			}
		}
		if found != 1 {
			t.Errorf("found %d requests, want 1", found)
		}
	}
}

func TestParserArgumentsCannotGrow(t *testing.T) {
	var p resp.Parser
	args, _, err := p.Next([]byte("*2\r\n$1\r\na\r\n$1\r\nb\r\n"))
	if err != nil {
		t.Fatal(err)
	}
	_ = append(args[0], "XXXXXXXXX"...)
	if string(args[1]) != "b" {
		t.Errorf("appending to an argument changed the next one to %q", args[1])
	}
}

func TestParserAllocations(t *testing.T) {
	stream := []byte(strings.Repeat("*6\r\n$11\r\nCL.THROTTLE\r\n$3\r\nkey\r\n$2\r\n15\r\n$2\r\n30\r\n$2\r\n60\r\n$1\r\n1\r\n", 16))
	var p resp.Parser
	var out []byte
	allocs := testing.AllocsPerRun(100, func() {
		buf := stream
		out = out[:0]
		for {
			args, n, err := p.Next(buf)
			if err != nil {
				t.Fatal(err)
			}
			if args == nil {
				break
			}
			buf = buf[n:]
			out = resp.AppendArrayLen(out, 2)
			out = resp.AppendInt(out, 1234567)
			out = resp.AppendBulk(out, args[1])
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations for 16 requests and their replies, want 0", allocs)
	}
}

func FuzzParser(f *testing.F) {
	for _, stream := range []string{
		"*2\r\n$4\r\nECHO\r\n$2\r\nhi\r\nPING\r\n",
		"*1\r\n$9223372036854775807\r\n",
		"*-1\r\n*0\r\n\r\nECHO \"a\\x41\" 'b\\'c'\r\n*1\r\nfoo",
		"ECHO \"a\"b\r\n",
	} {
		f.Add([]byte(stream), uint16(3))
	}
	f.Fuzz(func(t *testing.T, stream []byte, cut uint16) {
		var whole, bytewise, cutOnce resp.Parser
		want, used, wantErr := parse(&whole, string(stream))
		for name, cuts := range map[string][]int{
			"bytewise": everyCut(len(stream)),
			"cut":      {min(int(cut), len(stream))},
		} {
			p := &cutOnce
			if name == "bytewise" {
				p = &bytewise
			}
			got, n, err := parse(p, string(stream), cuts...)
			if !slices.EqualFunc(got, want, slices.Equal) || n != used || err != wantErr {
				t.Errorf("%s: %q, %d bytes, %v; whole: %q, %d bytes, %v", name, got, n, err, want, used, wantErr)
			}
		}

		// What was found means the same when it is said again in the plain form.
		var again []byte
		for _, args := range want {
			if len(args) == 0 {
				t.Fatal("an empty request was returned")
			}
			again = resp.AppendRequest(again, args...)
		}
		if len(again) < resp.MaxRequest {
			var p resp.Parser
			got, n, err := parse(&p, string(again))
			if err != nil || n != len(again) || !slices.EqualFunc(got, want, slices.Equal) {
				t.Errorf("said again: %q, %v; want %q", got, err, want)
			}
		}
	})
}

func BenchmarkParser(b *testing.B) {
	request := resp.AppendRequest(nil, "CL.THROTTLE", "user:12345", "15", "30", "60", "1")
	stream := bytes.Repeat(request, 16)
	var p resp.Parser
	b.SetBytes(int64(len(request)))
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		buf := stream[n%16*len(request):]
		if args, _, err := p.Next(buf); err != nil || len(args) != 6 {
			b.Fatal(strconv.Itoa(len(args)), err)
		}
	}
}

// TestParserFullRequest has a request reach the largest size while more of it
// is to come.
func TestParserFullRequest(t *testing.T) {
	bulk := resp.MaxRequest - len("*2\r\n$1048560\r\n\r\n")
	request := fmt.Appendf(nil, "*2\r\n$%d\r\n%s\r\n", bulk, strings.Repeat("x", bulk))
	request = append(request, strings.Repeat("$", resp.MaxRequest-len(request))...)
	var p resp.Parser
	if args, _, err := p.Next(request); err == nil {
		t.Errorf("Next of %d bytes of a request = %d arguments, want an error", len(request), len(args))
	}
}
