package commands_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gabiondb/gabion/commands"
)

// notIntegers are no integers of the protocol, each for a reason of its own.
var notIntegers = []string{
	"", "-", "-0", "+1", "00", "01", "007", " 1", "1 ", "1.0", "1.5", ".5", "1e3", "0x1", "1_000", "1,000", "NaN", "Inf", "null", "one",
	"9223372036854775808", "18446744073709551617", "99999999999999999999999", "\x00", "1\x00", "1\r\n", "\xb2", "\uff11",
}

// trace is what a command that is refused must not change.
type trace struct {
	keys   int64
	writes uint64
}

func (f *fixture) trace() trace {
	f.t.Helper()
	if err := f.limiter.Sync(); err != nil {
		f.t.Fatal(err)
	}
	keys, err := f.limiter.Len()
	if err != nil {
		f.t.Fatal(err)
	}
	return trace{keys, f.limiter.Metrics().Writes}
}

// playInVain plays a script that must leave no trace.
func (s script) playInVain(t *testing.T, f *fixture, c *wire) {
	t.Helper()
	before := f.trace()
	s.play(t, c)
	if after := f.trace(); after != before {
		t.Errorf("keys and writes before it: %v, after it: %v", before, after)
	}
}

// withEach returns a script in which each of values, in its turn, stands for
// argument i of args, and is answered with want.
func withEach(values, args []string, i int, want string) script {
	var s script
	for _, value := range values {
		args := slices.Clone(args)
		args[i] = value
		s = append(s, struct{ request, want string }{request(args...), want})
	}
	return s
}

// state asks for everything that there is to know about the keys g, q and r,
// which are of one kind each.
func (w *wire) state() string {
	var b strings.Builder
	for _, command := range []string{
		"TYPE g", "PTTL g", "PEXPIRETIME g", "CL.PROBE g 4 1 10 0",
		"TYPE q", "PTTL q", "PEXPIRETIME q", "QUOTA.GET q", "QUOTA.PROBE q a 2 5 60000", "QUOTA.PROBE q b 1 5 60000",
		"TYPE r", "PTTL r", "PEXPIRETIME r", "ROLL.PEEK r 3 10000", "ROLL.WAIT r 2 10000",
	} {
		b.WriteString(w.ask(words(command)))
	}
	return b.String()
}

// A command on a key of another kind is an error, and leaves it as it was. So
// do arguments that are wrong, which are told first.
func TestWrongKind(t *testing.T) {
	f := serve(t, commands.Config{})
	c := f.dial()
	script{
		{"CL.THROTTLE g 4 1 10 2", ints(0, 5, 3, -1, 20)},
		{"QUOTA.TAKE q a 2 5 60000", ints(1, 2, 0)},
		{"ROLL.INCR r 3 10000 2", ":2\r\n"},
	}.play(t, c)
	f.set(time.Second)
	before := c.state()
	const wrongKind = "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"
	var s script
	for key, others := range map[string][]string{
		"g": {"QUOTA.TAKE g a 2 5 60000", "QUOTA.PROBE g a 2 5 60000", "QUOTA.GET g",
			"ROLL.ALLOW g 3 10000", "ROLL.ALLOW g 0 10000 PAUSE", "ROLL.INCR g 3 10000 0", "ROLL.INCR g 3 10000 5 PAUSE",
			"ROLL.PEEK g 3 10000", "ROLL.WAIT g 3 10000", "QUOTA.REFUND g a"},
		"q": {"CL.THROTTLE q 4 1 10", "CL.THROTTLE q 4 1 10 0", "CL.PROBE q 4 1 10",
			"ROLL.ALLOW q 3 10000", "ROLL.ALLOW q -1 10000", "ROLL.INCR q 3 10000", "ROLL.PEEK q 3 10000", "ROLL.WAIT q 3 10000",
			"CL.REFUND q 4 1 10 1", "CL.REFUND q 4 1 10 0", "CL.MTHROTTLE ALL 2 g 4 1 10 1 q 4 1 10 1", "CL.MTHROTTLE EACH 2 new 4 1 10 1 q 4 1 10 9",
			"CL.MTHROTTLE ALL 3 g 4 1 10 9 q 4 1 10 1 g 4 1 10 1", "CL.MPROBE EACH 2 q 4 1 10 0 g 4 1 10 1"},
		"r": {"CL.THROTTLE r 4 1 10", "CL.THROTTLE r 4 1 10 0", "CL.PROBE r 4 1 10 9",
			"QUOTA.TAKE r a 2 5 60000", "QUOTA.PROBE r a 2 5 60000", "QUOTA.GET r",
			"CL.REFUND r 4 1 10 9", "CL.MTHROTTLE ALL 1 r 4 1 10 0", "CL.MPROBE ALL 2 g 4 1 10 1 r 4 1 10 1", "QUOTA.REFUND r a"},
	} {
		for _, command := range others {
			s = append(s, struct{ request, want string }{command, wrongKind})
		}
		if key != "g" {
			s = append(s, script{
				{"CL.THROTTLE " + key + " 4 1 x", notInteger},
				{"CL.THROTTLE " + key + " 4 0 10", "-ERR zero rates are not supported\r\n"},
				{"CL.REFUND " + key + " 4 1 10 x", notInteger},
				{"CL.MTHROTTLE ALL 2 " + key + " 4 1 10 1 g 4 1 0 1", "-ERR zero rates are not supported\r\n"},
				{request("CL.MTHROTTLE", "EACH", "2", key, "4", "1", "10", "1", "", "4", "1", "10", "1"), badKey},
			}...)
		}
		if key != "q" {
			s = append(s, script{
				{"QUOTA.TAKE " + key + " a 6 5 60000", "-INVALID cost is outside 1..5\r\n"},
				{"QUOTA.TAKE " + key + " a 1 0 60000", "-INVALID limit is outside 1..10000\r\n"},
				{"QUOTA.PROBE " + key + " a 1 5 86400001", "-INVALID window-ms is outside 1..86400000\r\n"},
				{"QUOTA.PROBE " + key + " a.b 1 5 60000", badRequestID},
				{"QUOTA.REFUND " + key + " a.b", badRequestID},
			}...)
		}
		if key != "r" {
			s = append(s, script{
				{"ROLL.ALLOW " + key + " 3 0", notInteger},
				{"ROLL.INCR " + key + " 3 10000 9007199254740992", notInteger},
				{"ROLL.PEEK " + key + " 9007199254740992 10000", notInteger},
				{"ROLL.ALLOW " + key + " 3 10000 STOP", syntaxError},
			}...)
		}
	}
	s.playInVain(t, f, c)
	if after := c.state(); after != before {
		t.Errorf("\nbefore %q\n after %q", before, after)
	}
}

// Every command on keys works on keys of every kind.
func TestKeysOfAllKinds(t *testing.T) {
	f := serve(t, commands.Config{})
	c := f.dial()
	fill := script{
		{"CL.THROTTLE g 4 3 10", ints(0, 5, 4, -1, 4)}, // lives 10/3 s
		{"QUOTA.TAKE q a 2 5 4000", ints(1, 2, 0)},
		{"ROLL.ALLOW r 3 5001", ints(1, 1, 3, 0)},
	}
	all := script{
		{"EXISTS g q r", ":3\r\n"},
		{"DBSIZE", ":3\r\n"},
		{"TYPE g", "+gcra\r\n"},
		{"TYPE q", "+quota\r\n"},
		{"TYPE r", "+rolling\r\n"},
		{"SCAN 0 COUNT 10 TYPE gcra", found("g")},
		{"SCAN 0 COUNT 10 TYPE QUOTA", found("q")},
		{"SCAN 0 COUNT 10 TYPE rolling", found("r")},
		{"SCAN 0 COUNT 10 TYPE none", found()},
		{"SCAN 0 COUNT 10 TYPE list", found()},
		{"SCAN 0 MATCH [a-q] COUNT 10 TYPE rolling", found()},
		{"KEYS q", "*1\r\n$1\r\nq\r\n"},
	}
	gone := script{
		{"EXISTS g q r", ":0\r\n"},
		{"DBSIZE", ":0\r\n"},
		{"TYPE g", "+none\r\n"}, {"TYPE q", "+none\r\n"}, {"TYPE r", "+none\r\n"},
		{"TTL q", ":-2\r\n"}, {"PTTL r", ":-2\r\n"}, {"EXPIRETIME q", ":-2\r\n"}, {"PEXPIRETIME r", ":-2\r\n"},
		{"SCAN 0 COUNT 10", found()},
		{"KEYS *", "*0\r\n"},
		{"QUOTA.GET q", "$-1\r\n"},
		{"ROLL.PEEK r 3 5001", ":0\r\n"},
		{"DEL g q r", ":0\r\n"},
	}
	fill.play(t, c)
	all.play(t, c)
	script{
		{"TTL g", ":4\r\n"}, {"TTL q", ":4\r\n"}, {"TTL r", ":6\r\n"},
		{"PTTL g", ":3334\r\n"}, {"PTTL q", ":4000\r\n"}, {"PTTL r", ":5001\r\n"},
		{"EXPIRETIME g", ":1800000004\r\n"}, {"EXPIRETIME q", ":1800000004\r\n"}, {"EXPIRETIME r", ":1800000006\r\n"},
		{"PEXPIRETIME g", ":1800000003334\r\n"}, {"PEXPIRETIME q", ":1800000004000\r\n"}, {"PEXPIRETIME r", ":1800000005001\r\n"},
	}.playInVain(t, f, c)

	script{{"DEL q x r g", ":3\r\n"}}.play(t, c)
	gone.playInVain(t, f, c)
	fill.play(t, c) // the id is new again, the list empty
	script{{"UNLINK q r", ":2\r\n"}, {"UNLINK g q", ":1\r\n"}}.play(t, c)
	gone.playInVain(t, f, c)
	fill.play(t, c)
	script{{"FLUSHALL", "+OK\r\n"}}.play(t, c)
	gone.playInVain(t, f, c)
	fill.play(t, c)

	// Each lives to the nanosecond.
	f.set(4*time.Second - 1)
	script{
		{"TYPE g", "+none\r\n"}, {"TTL q", ":1\r\n"}, {"PTTL q", ":1\r\n"}, {"PTTL r", ":1002\r\n"}, {"DBSIZE", ":2\r\n"},
	}.playInVain(t, f, c)
	f.set(4 * time.Second)
	script{{"EXISTS q", ":0\r\n"}, {"DEL q", ":0\r\n"}, {"SCAN 0 COUNT 10", found("r")}, {"DBSIZE", ":1\r\n"}}.playInVain(t, f, c)
	f.set(5001*time.Millisecond - 1)
	script{{"EXISTS r", ":1\r\n"}, {"PTTL r", ":1\r\n"}}.playInVain(t, f, c)
	f.set(5001 * time.Millisecond)
	gone.playInVain(t, f, c)

	// A key that has expired is free for any kind.
	script{
		{"ROLL.ALLOW q 3 5001", ints(1, 1, 3, 0)},
		{"QUOTA.TAKE r a 2 5 4000", ints(1, 2, 0)},
		{"DEL q r", ":2\r\n"},
		{"CL.THROTTLE q 4 3 10", ints(0, 5, 4, -1, 4)},
		{"CL.THROTTLE r 4 3 10", ints(0, 5, 4, -1, 4)},
		{"TYPE q", "+gcra\r\n"}, {"TYPE r", "+gcra\r\n"},
	}.play(t, c)
}

// found returns the reply of a SCAN that has found keys and come to its end.
func found(keys ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*2\r\n$1\r\n0\r\n*%d\r\n", len(keys))
	for _, key := range keys {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(key), key)
	}
	return b.String()
}

// A pipeline of all kinds is answered in order, errors and all.
func TestPipelineOfAllKinds(t *testing.T) {
	f := serve(t, commands.Config{})
	s := script{
		{"QUOTA.TAKE q a 2 5 60000", ints(1, 2, 0)},
		{"QUOTA.PROBE q a 2 5 60000", ints(1, 2, 1)},
		{"ROLL.INCR r 3 10000 2", ":2\r\n"},
		{"QUOTA.TAKE q b x 5 60000", "-INVALID cost is not an integer or out of range\r\n"},
		{"ROLL.PEEK r 3 10000", ":2\r\n"},
		{"QUOTA.TAKE q a 1 5 60000", "-CONFLICT request was accepted at another cost\r\n"},
		{"QUOTA.GET q", ints(2, 5, 60000, 60000)},
		{"CL.THROTTLE r 4 1 10", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		{"TYPE r", "+rolling\r\n"},
		{"DEL q", ":1\r\n"},
		{"QUOTA.GET q", "$-1\r\n"},
		{"CL.THROTTLE q 4 1 10", ints(0, 5, 4, -1, 10)},
		{"ROLL.ALLOW r 3 10000 PAUSED", syntaxError},
		{"DBSIZE", ":2\r\n"},
		{"ROLL.WAIT r 2 10000", ":10000\r\n"},
		{"DEL r", ":1\r\n"},
		{"QUOTA.TAKE r a 2 5 60000", ints(1, 2, 0)},
		{"QUOTA.TAKE r a 2 5 60000", ints(1, 2, 1)},
		{"TYPE r", "+quota\r\n"},
		{"CL.MTHROTTLE ALL 2 q 4 1 10 2 s 4 1 10 2", decisions(0, -1, []int64{0, 5, 2, -1, 30}, []int64{0, 5, 3, -1, 20})},
		{"CL.MTHROTTLE ALL 2 q 4 1 10 2 r 4 1 10 2", "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
		{"CL.MPROBE EACH 2 q 4 1 10 2 q 4 1 10 2", decisions(1, 20, []int64{0, 5, 0, -1, 50}, []int64{1, 5, 0, 20, 50})},
		{"CL.REFUND q 4 1 10 2", ints(0, 5, 4, -1, 10)},
		{"CL.MTHROTTLE ANY 1 q 4 1 10 2", syntaxError},
		{"QUOTA.REFUND r a", ints(1, 0, 0)},
		{"QUOTA.TAKE r a 2 5 60000", "-CONFLICT request was refunded\r\n"},
		{"QUOTA.REFUND r a", ints(1, 0, 1)},
		{"CL.MTHROTTLE EACH 3 q 4 1 10 5 q 4 1 10 4 q 4 1 10 1", decisions(2, 10, []int64{1, 5, 4, 10, 10}, []int64{0, 5, 0, -1, 50}, []int64{1, 5, 0, 10, 50})},
		{"CL.REFUND q 4 1 10 9223372036854775807", ints(0, 5, 5, -1, 0)},
		{"EXISTS q s", ":1\r\n"},
	}
	var requests, want strings.Builder
	for _, step := range s {
		requests.WriteString(words(step.request))
		want.WriteString(step.want)
	}
	if got := f.dial().ask(requests.String()); got != want.String() {
		t.Errorf("\n got %q\nwant %q", got, want.String())
	}
}
