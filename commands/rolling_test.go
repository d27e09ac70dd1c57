package commands_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gabiondb/gabion/commands"
	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

const syntaxError = "-ERR syntax error\r\n"

func TestRollingArguments(t *testing.T) {
	f := serve(t, commands.Config{})
	c := f.dial()
	key := strings.Repeat("k", engine.MaxKeyLen)
	for _, name := range []string{"ROLL.ALLOW", "ROLL.INCR", "ROLL.PEEK", "ROLL.WAIT"} {
		arity := "-ERR wrong number of arguments for '" + strings.ToLower(name) + "' command\r\n"
		valid := []string{name, "k", "3", "1000"}
		withEach(notIntegers, valid, 2, notInteger).playInVain(t, f, c)
		withEach([]string{"9007199254740992", "9223372036854775807", "--1", "-01", "-9223372036854775808", "- 1"},
			valid, 2, notInteger).playInVain(t, f, c)
		withEach(notIntegers, valid, 3, notInteger).playInVain(t, f, c)
		withEach([]string{"-1", "0", "86400001", "9223372036855", "18446744073710", "9223372036854775807"},
			valid, 3, notInteger).playInVain(t, f, c)
		withEach([]string{"", key + "k"}, valid, 1, badKey).playInVain(t, f, c)
		script{
			{name, arity},
			{name + " k", arity},
			{name + " k 3", arity},
			{name + " k 3 1000 1 PAUSE x", arity},
		}.playInVain(t, f, c)
	}
	amount := []string{"ROLL.INCR", "k", "3", "1000", "1"}
	withEach(notIntegers, amount, 4, notInteger).playInVain(t, f, c)
	withEach([]string{"-1", "9007199254740992", "9223372036854775807"}, amount, 4, notInteger).playInVain(t, f, c)
	script{
		{"ROLL.PEEK k 3 1000 PAUSE", "-ERR wrong number of arguments for 'roll.peek' command\r\n"},
		{"ROLL.WAIT k 3 1000 PAUSE", "-ERR wrong number of arguments for 'roll.wait' command\r\n"},
		{"ROLL.ALLOW k 3 1000 PAUSE PAUSE", "-ERR wrong number of arguments for 'roll.allow' command\r\n"},
		{"ROLL.ALLOW k 3 1000 1", syntaxError},
		{"ROLL.ALLOW k 3 1000 PAUS", syntaxError},
		{"ROLL.ALLOW k 3 1000 PAUSED", syntaxError},
		{request("ROLL.ALLOW", "k", "3", "1000", ""), syntaxError},
		{"ROLL.INCR k 3 1000 1 PAUS", syntaxError},
		{"ROLL.INCR k 3 1000 1 1", syntaxError},
		{"ROLL.INCR k 3 1000 PAUSE 1", notInteger},
		{"ROLL.INCR k 3 1000 PAUSE PAUSE", notInteger},
		{"ROLL.INCR k x 1000 1 PAUS", notInteger},
		{"DBSIZE", ":0\r\n"},
	}.playInVain(t, f, c)

	// What is just right.
	script{
		{"roll.Allow " + key + " 1 86400000 pause", ints(1, 1, 1, 86400000)},
		{"ROLL.INCR a 9007199254740991 1 9007199254740991", ":9007199254740991\r\n"},
		{"ROLL.INCR a 9007199254740991 1 1", ":9007199254740992\r\n"},
		{"ROLL.PEEK a 1 1", ":9007199254740991\r\n"},
		{"ROLL.INCR b 3 1000 PausE", ":1\r\n"},
		{"ROLL.INCR b 3 1000 5 PAUSE", ":5\r\n"}, // it holds 4
		{"ROLL.PEEK b 3 1000", ":4\r\n"},
	}.play(t, c)
}

func TestRollingCap(t *testing.T) {
	f := serveStore(t, commands.Config{}, engine.Options{RollingMaxWindow: limit.MaxWindow})
	script{
		{"ROLL.ALLOW k 1 315360000000", ints(1, 1, 1, 315360000000)},
		{"PTTL k", ":315360000000\r\n"},
		{"ROLL.ALLOW k 1 315360000001", notInteger},
	}.play(t, f.dial())
	f = serveStore(t, commands.Config{}, engine.Options{RollingMaxWindow: time.Second})
	script{
		{"ROLL.PEEK k 1 1001", notInteger},
		{"ROLL.PEEK k 1 1000", ":0\r\n"},
	}.playInVain(t, f, f.dial())
}

// A limit of 0 or less allows nothing, whatever the list holds, and records
// nothing.
func TestRollingWithoutLimit(t *testing.T) {
	f := serve(t, commands.Config{})
	c := f.dial()
	for _, key := range []string{"empty", "full"} {
		live := int64(0)
		if key == "full" {
			live = 2
			script{{"ROLL.INCR full 2 1000 2", ":2\r\n"}}.play(t, c)
		}
		for _, lim := range []int64{0, -1, -9223372036854775807} {
			policy := fmt.Sprintf(" %s %d 1000", key, lim)
			script{
				{"ROLL.ALLOW" + policy, ints(0, live, lim, -1)},
				{"ROLL.ALLOW" + policy + " PAUSE", ints(0, live, lim, -1)},
				{"ROLL.INCR" + policy, ":1\r\n"},
				{"ROLL.INCR" + policy + " 5 PAUSE", ":1\r\n"},
				{"ROLL.PEEK" + policy, fmt.Sprintf(":%d\r\n", live)},
				{"ROLL.WAIT" + policy, ":-1\r\n"},
			}.playInVain(t, f, c)
		}
	}
}

// Denials write nothing, unless PAUSE has a place for one.
func TestRollingDenials(t *testing.T) {
	f := serve(t, commands.Config{})
	c := f.dial()
	script{{"ROLL.INCR k 2 1000 5", ":3\r\n"}}.play(t, c)
	f.set(1)
	denied := script{
		{"ROLL.ALLOW k 2 1000", ints(0, 2, 2, 1000)},
		{"ROLL.INCR k 2 1000 0", ":2\r\n"},
		{"ROLL.INCR k 2 1000 9007199254740991", ":3\r\n"},
		{"ROLL.INCR k 2 1000 0 PAUSE", ":2\r\n"},
		{"ROLL.PEEK k 2 1000", ":2\r\n"},
		{"ROLL.WAIT k 2 1000", ":1000\r\n"},
		{"ROLL.WAIT k 3 1000", ":0\r\n"},
	}
	denied.playInVain(t, f, c)
	script{{"ROLL.ALLOW k 2 1000 PAUSE", ints(0, 3, 2, 1000)}}.play(t, c)
	script{
		{"ROLL.ALLOW k 2 1000 PAUSE", ints(0, 3, 2, 1000)},
		{"ROLL.INCR k 2 1000 9 PAUSE", ":4\r\n"},
		{"ROLL.PEEK k 2 1000", ":3\r\n"},
		{"ROLL.WAIT k 1 1000", ":1000\r\n"},
	}.playInVain(t, f, c)
	f.set(time.Millisecond)
	script{{"ROLL.WAIT k 1 1000", ":1000\r\n"}, {"ROLL.WAIT k 3 1000", ":999\r\n"}}.playInVain(t, f, c)
}

func TestRollingAtOnce(t *testing.T) {
	f := serve(t, commands.Config{})
	got := f.atOnce(20, func(int) []string { return strings.Fields("ROLL.ALLOW k 5 60000") })
	want := map[string]int{"[1 1 5 0]": 1, "[1 2 5 0]": 1, "[1 3 5 0]": 1, "[1 4 5 0]": 1, "[1 5 5 60000]": 1, "[0 5 5 60000]": 15}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("replies %v, want %v", got, want)
	}
	script{{"ROLL.PEEK k 5 60000", ":5\r\n"}}.play(t, f.dial())
}
