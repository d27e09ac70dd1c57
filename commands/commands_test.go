package commands_test

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gabiondb/gabion/commands"
	"github.com/gabiondb/gabion/engine"
)

// script is requests, of words between blanks unless they are bytes, and their
// replies.
type script []struct{ request, want string }

func (s script) play(t *testing.T, c *wire) {
	t.Helper()
	for _, step := range s {
		raw := step.request
		if !strings.HasSuffix(raw, "\r\n") {
			raw = words(raw)
		}
		if got := c.ask(raw); got != step.want {
			t.Errorf("%.60s:\n got %q\nwant %q", step.request, got, step.want)
		}
	}
}

const (
	notInteger = "-ERR value is not an integer or out of range\r\n"
	badKey     = "-ERR key is not 1 to 4096 bytes long\r\n"
)

func TestThrottleArguments(t *testing.T) {
	f := serve(t, commands.Config{})
	big := strings.Repeat("k", engine.MaxKeyLen)
	script{
		{"CL.THROTTLE", "-ERR wrong number of arguments for 'cl.throttle' command\r\n"},
		{"CL.THROTTLE k 1 2", "-ERR wrong number of arguments for 'cl.throttle' command\r\n"},
		{"CL.THROTTLE k 1 2 3 4 5", "-ERR wrong number of arguments for 'cl.throttle' command\r\n"},
		{"CL.PROBE k 1 2", "-ERR wrong number of arguments for 'cl.probe' command\r\n"},
		{"CL.THROTTLE k x 2 3", notInteger},
		{"CL.THROTTLE k -1 2 3", notInteger},
		{"CL.THROTTLE k +1 2 3", notInteger},
		{"CL.THROTTLE k 01 2 3", notInteger},
		{"CL.THROTTLE k 1.0 2 3", notInteger},
		{request("CL.THROTTLE", "k", "", "2", "3"), notInteger},
		{request("CL.THROTTLE", "k", " 1", "2", "3"), notInteger},
		{"CL.THROTTLE k 9223372036854775807 2 3", notInteger},
		{"CL.THROTTLE k 1 9223372036854775808 3", notInteger},
		{"CL.THROTTLE k 1 2 9223372037", notInteger},
		{"CL.THROTTLE k 1 2 3 -1", notInteger},
		{"CL.THROTTLE k 1 2 3 18446744073709551616", notInteger},
		{"CL.THROTTLE k 1 0 3", "-ERR zero rates are not supported\r\n"},
		{"CL.THROTTLE k 1 2 0", "-ERR zero rates are not supported\r\n"},
		{"CL.PROBE k 1 0 3", "-ERR zero rates are not supported\r\n"},
		{request("CL.THROTTLE", "", "1", "2", "3"), badKey},
		{request("CL.PROBE", big+"k", "1", "2", "3"), badKey},
		{"DBSIZE", ":0\r\n"},
		{"CL.PROBE k 9223372036854775806 9223372036854775807 7000000000 9223372036854775807",
			ints(0, math.MaxInt64, 0, -1, 7000000000)},
		{"CL.PROBE k 9223372036854775806 1 9223372036 9223372036854775807",
			"-ERR value is out of range, its result can't be stored\r\n"},
		{"cl.Throttle " + big + " 1 2 3", ints(0, 2, 1, -1, 2)},
		{"EXISTS " + big, ":1\r\n"},
	}.play(t, f.dial())
}

func TestKeys(t *testing.T) {
	f := serve(t, commands.Config{})
	c := f.dial()
	script{
		{"TYPE a", "+none\r\n"},
		{"TTL a", ":-2\r\n"}, {"PTTL a", ":-2\r\n"}, {"EXPIRETIME a", ":-2\r\n"}, {"PEXPIRETIME a", ":-2\r\n"},
		{"CL.THROTTLE a 4 3 10", ints(0, 5, 4, -1, 4)}, // the key lives 10/3 s
		{"TYPE a", "+gcra\r\n"},
		{"TTL a", ":4\r\n"}, {"PTTL a", ":3334\r\n"}, {"EXPIRETIME a", ":1800000004\r\n"}, {"PEXPIRETIME a", ":1800000003334\r\n"},
		{"CL.THROTTLE b 4 3 10", ints(0, 5, 4, -1, 4)},
		{"EXISTS a b c a", ":3\r\n"},
		{"DEL a c a", ":1\r\n"},
		{"EXISTS a b", ":1\r\n"},
		{"UNLINK b", ":1\r\n"},
		{"EXISTS b", ":0\r\n"},
		{"CL.THROTTLE a 4 3 10", ints(0, 5, 4, -1, 4)},
		{request("DEL", "a", ""), badKey},
		{request("EXISTS", "a", strings.Repeat("k", engine.MaxKeyLen+1)), badKey},
		{"EXISTS a", ":1\r\n"},
		{"DEL", "-ERR wrong number of arguments for 'del' command\r\n"},
		{"TTL a b", "-ERR wrong number of arguments for 'ttl' command\r\n"},
	}.play(t, c)

	f.set(10*time.Second/3 - 1)
	script{{"TTL a", ":1\r\n"}, {"PTTL a", ":1\r\n"}, {"EXISTS a", ":1\r\n"}}.play(t, c)
	f.set(10*time.Second/3 + 1)
	script{{"TTL a", ":-2\r\n"}, {"TYPE a", "+none\r\n"}, {"EXISTS a", ":0\r\n"}, {"DEL a", ":0\r\n"}}.play(t, c)
}

func TestBinaryKeys(t *testing.T) {
	f := serve(t, commands.Config{})
	c := f.dial()
	for _, key := range []string{"\x00", "\r\n", "\xff\xfe\xfd", "a\x00b", "*1\r\n$4\r\nPING\r\n", " "} {
		script{
			{request("CL.THROTTLE", key, "4", "1", "10"), ints(0, 5, 4, -1, 10)},
			{request("KEYS", "*"), fmt.Sprintf("*1\r\n$%d\r\n%s\r\n", len(key), key)},
			{request("SCAN", "0", "COUNT", "100"), fmt.Sprintf("*2\r\n$1\r\n0\r\n*1\r\n$%d\r\n%s\r\n", len(key), key)},
			{request("DEL", key), ":1\r\n"},
		}.play(t, c)
	}
}

// A pipeline answers in order, and each command sees what came before it,
// whether it is an operation on a key or one that reads them all.
func TestPipelineOrder(t *testing.T) {
	f := serve(t, commands.Config{})
	script := script{
		{"CL.PROBE k 4 1 10", ints(0, 5, 4, -1, 10)},
		{"CL.THROTTLE k 4 1 10 2", ints(0, 5, 3, -1, 20)},
		{"CL.PROBE k 4 1 10", ints(0, 5, 2, -1, 30)},
		{"PING", "+PONG\r\n"},
		{"DBSIZE", ":1\r\n"},
		{"CL.THROTTLE l 4 1 10", ints(0, 5, 4, -1, 10)},
		{"EXISTS k l m", ":2\r\n"},
		{"CL.THROTTLE k x 1 10", notInteger},
		{"SCAN 0 MATCH l", "*2\r\n$1\r\n0\r\n*1\r\n$1\r\nl\r\n"},
		{"DEL k m", ":1\r\n"},
		{"CL.PROBE k 4 1 10", ints(0, 5, 4, -1, 10)},
		{"NOSUCH", "-ERR unknown command 'NOSUCH', with args beginning with: \r\n"},
		{"FLUSHALL", "+OK\r\n"},
		{"CL.THROTTLE l 4 1 10", ints(0, 5, 4, -1, 10)},
		{"KEYS *", "*1\r\n$1\r\nl\r\n"},
		{"TYPE l", "+gcra\r\n"},
	}
	var requests, want strings.Builder
	for _, step := range script {
		requests.WriteString(words(step.request))
		want.WriteString(step.want)
	}
	c := f.dial()
	if got := c.ask(requests.String()); got != want.String() {
		t.Errorf("\n got %q\nwant %q", got, want.String())
	}
}

func TestScan(t *testing.T) {
	f := serve(t, commands.Config{})
	c := f.dial()
	const n = 12_000
	var fill strings.Builder
	for i := range n {
		fill.WriteString(request("CL.THROTTLE", fmt.Sprintf("key:%d", i), "4", "1", "10"))
	}
	c.ask(fill.String())

	local := commands.NewLocal(f.limiter)
	scan := func(options ...string) (keys map[string]int, calls int) {
		keys = make(map[string]int)
		for cursor := "0"; ; {
			reply, err := local.Do(append([]string{"SCAN", cursor}, options...)...)
			if err != nil {
				t.Fatal(err)
			}
			calls++
			for _, key := range reply.([]any)[1].([]any) {
				keys[key.(string)]++
			}
			if cursor = reply.([]any)[0].(string); cursor == "0" {
				return keys, calls
			}
		}
	}
	for _, tt := range []struct {
		options string
		keys    int
		calls   int // at least
	}{
		{"", n, n / 30},
		{"COUNT 1", n, n / 30},
		{"COUNT 100", n, n / 300},
		{"COUNT 1000000", n, 2},
		{"MATCH * TYPE gcra", n, n / 30},
		{"MATCH key:12?", 10, n / 30},
		{"COUNT 500 MATCH key:[12]*5", 0, 2}, // counted below
		{"TYPE quota", 0, n / 30},
		{"TYPE string COUNT 1000", 0, 2},
	} {
		want := tt.keys
		if strings.Contains(tt.options, "[12]") {
			for i := range n {
				if s := strconv.Itoa(i); len(s) > 1 && strings.ContainsAny(s[:1], "12") && strings.HasSuffix(s, "5") {
					want++
				}
			}
		}
		keys, calls := scan(strings.Fields(tt.options)...)
		if len(keys) != want || calls < tt.calls {
			t.Errorf("SCAN %s: %d keys in %d calls, want %d in at least %d", tt.options, len(keys), calls, want, tt.calls)
		}
		for key, times := range keys {
			if times != 1 {
				t.Errorf("SCAN %s: %s came %d times", tt.options, key, times)
			}
		}
	}

	script{
		{"DBSIZE", ":12000\r\n"},
		{"SCAN", "-ERR wrong number of arguments for 'scan' command\r\n"},
		{"SCAN x", "-ERR invalid cursor\r\n"},
		{"SCAN -1", "-ERR invalid cursor\r\n"},
		{"SCAN 65536", "-ERR invalid cursor\r\n"},
		{"SCAN 18446744073709551616", "-ERR invalid cursor\r\n"},
		{"SCAN 0 COUNT", "-ERR syntax error\r\n"},
		{"SCAN 0 COUNT 0", "-ERR syntax error\r\n"},
		{"SCAN 0 COUNT x", notInteger},
		{"SCAN 0 FOO 1", "-ERR syntax error\r\n"},
		{"KEYS key:1?", "*10\r\n$6\r\nkey:10\r\n"},
		{"KEYS nothing", "*0\r\n"},
		{"FLUSHALL FOO", "-ERR syntax error\r\n"},
		{"FLUSHALL ASYNC SYNC", "-ERR syntax error\r\n"},
		{"DBSIZE", ":12000\r\n"},
		{"FLUSHDB async", "+OK\r\n"},
		{"DBSIZE", ":0\r\n"},
		{"FLUSHALL SYNC", "+OK\r\n"},
	}[:].playPrefix(t, c)
}

// playPrefix plays steps of which only the beginning of the array's order is
// known: an array reply is compared by its length.
func (s script) playPrefix(t *testing.T, c *wire) {
	t.Helper()
	for _, step := range s {
		got, want := c.ask(words(step.request)), step.want
		if strings.HasPrefix(want, "*") {
			got, _, _ = strings.Cut(got, "\r\n")
			want, _, _ = strings.Cut(want, "\r\n")
		}
		if got != want {
			t.Errorf("%s:\n got %q\nwant %q", step.request, got, want)
		}
	}
}

// Keys can be long, so it takes fewer of them to fill a reply.
func TestScanAndKeysAreBounded(t *testing.T) {
	f := serve(t, commands.Config{})
	c := f.dial()
	var fill strings.Builder
	const n = 600
	for i := range n {
		fill.WriteString(request("CL.THROTTLE", fmt.Sprintf("%04d", i)+strings.Repeat("k", engine.MaxKeyLen-4), "4", "1", "10"))
	}
	c.ask(fill.String())

	if got, want := c.ask(words("KEYS *")), "-ERR the reply would be larger than 1048576 bytes, use SCAN\r\n"; got != want {
		t.Errorf("KEYS * = %.200q, want %q", got, want)
	}
	if got := c.ask(words("KEYS 000*")); !strings.HasPrefix(got, "*10\r\n") {
		t.Errorf("KEYS 000* = %.200q, want 10 keys", got)
	}
	if got := c.ask(words("SCAN 0 COUNT 10000")); len(got) > 2<<20 || strings.HasPrefix(got, "*2\r\n$1\r\n0\r\n") {
		t.Errorf("SCAN 0 COUNT 10000 = %.40q, %d bytes, want a part", got, len(got))
	}
}
