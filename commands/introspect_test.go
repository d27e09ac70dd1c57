package commands_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/gabiondb/gabion/commands"
)

// These are replies of redis-server 7.0.15, but for flags that mean nothing
// here.
const (
	pingInfo2 = "*10\r\n$4\r\nping\r\n:-1\r\n*1\r\n+fast\r\n:0\r\n:0\r\n:0\r\n*2\r\n+@fast\r\n+@connection\r\n" +
		"*2\r\n$25\r\nrequest_policy:all_shards\r\n$29\r\nresponse_policy:all_succeeded\r\n*0\r\n*0\r\n"
	delInfo3 = "*10\r\n$3\r\ndel\r\n:-2\r\n~1\r\n+write\r\n:1\r\n:-1\r\n:1\r\n~3\r\n+@keyspace\r\n+@write\r\n+@slow\r\n" +
		"~2\r\n$26\r\nrequest_policy:multi_shard\r\n$23\r\nresponse_policy:agg_sum\r\n" +
		"~1\r\n%3\r\n$5\r\nflags\r\n~2\r\n+RM\r\n+delete\r\n" +
		"$12\r\nbegin_search\r\n%2\r\n$4\r\ntype\r\n$5\r\nindex\r\n$4\r\nspec\r\n%1\r\n$5\r\nindex\r\n:1\r\n" +
		"$9\r\nfind_keys\r\n%2\r\n$4\r\ntype\r\n$5\r\nrange\r\n$4\r\nspec\r\n%3\r\n" +
		"$7\r\nlastkey\r\n:-1\r\n$7\r\nkeystep\r\n:1\r\n$5\r\nlimit\r\n:0\r\n~0\r\n"
	probeInfo2 = "*10\r\n$8\r\ncl.probe\r\n:-5\r\n*2\r\n+readonly\r\n+fast\r\n:1\r\n:1\r\n:1\r\n*3\r\n+@read\r\n+@fast\r\n+@throttle\r\n" +
		"*1\r\n$23\r\nnondeterministic_output\r\n" +
		"*1\r\n*6\r\n$5\r\nflags\r\n*2\r\n+RO\r\n+access\r\n" +
		"$12\r\nbegin_search\r\n*4\r\n$4\r\ntype\r\n$5\r\nindex\r\n$4\r\nspec\r\n*2\r\n$5\r\nindex\r\n:1\r\n" +
		"$9\r\nfind_keys\r\n*4\r\n$4\r\ntype\r\n$5\r\nrange\r\n$4\r\nspec\r\n*6\r\n" +
		"$7\r\nlastkey\r\n:0\r\n$7\r\nkeystep\r\n:1\r\n$5\r\nlimit\r\n:0\r\n*0\r\n"
	// As MSET, whose keys are two arguments apart.
	severalInfo2 = "*10\r\n$12\r\ncl.mthrottle\r\n:-8\r\n*1\r\n+write\r\n:3\r\n:-1\r\n:5\r\n*3\r\n+@write\r\n+@slow\r\n+@throttle\r\n" +
		"*1\r\n$23\r\nnondeterministic_output\r\n" +
		"*1\r\n*6\r\n$5\r\nflags\r\n*3\r\n+RW\r\n+access\r\n+update\r\n" +
		"$12\r\nbegin_search\r\n*4\r\n$4\r\ntype\r\n$5\r\nindex\r\n$4\r\nspec\r\n*2\r\n$5\r\nindex\r\n:3\r\n" +
		"$9\r\nfind_keys\r\n*4\r\n$4\r\ntype\r\n$5\r\nrange\r\n$4\r\nspec\r\n*6\r\n" +
		"$7\r\nlastkey\r\n:-1\r\n$7\r\nkeystep\r\n:5\r\n$5\r\nlimit\r\n:0\r\n*0\r\n"
	echoDocs3 = "%1\r\n$4\r\necho\r\n%5\r\n$7\r\nsummary\r\n$19\r\nAnswers the message\r\n$5\r\nsince\r\n$5\r\n0.1.0\r\n" +
		"$5\r\ngroup\r\n$10\r\nconnection\r\n$10\r\ncomplexity\r\n$4\r\nO(1)\r\n" +
		"$9\r\narguments\r\n*1\r\n%2\r\n$4\r\nname\r\n$7\r\nmessage\r\n$4\r\ntype\r\n$6\r\nstring\r\n"
	flushdbArguments = "$9\r\narguments\r\n*1\r\n*8\r\n$4\r\nname\r\n$10\r\nflush-type\r\n$4\r\ntype\r\n$5\r\noneof\r\n$5\r\nflags\r\n*1\r\n+optional\r\n" +
		"$9\r\narguments\r\n*2\r\n*6\r\n$4\r\nname\r\n$5\r\nasync\r\n$4\r\ntype\r\n$10\r\npure-token\r\n$5\r\ntoken\r\n$5\r\nASYNC\r\n" +
		"*6\r\n$4\r\nname\r\n$4\r\nsync\r\n$4\r\ntype\r\n$10\r\npure-token\r\n$5\r\ntoken\r\n$4\r\nSYNC\r\n"
)

func TestCommandReplies(t *testing.T) {
	const rates = "*5\r\n$11\r\ncl.throttle\r\n$8\r\ncl.probe\r\n$9\r\ncl.refund\r\n$12\r\ncl.mthrottle\r\n$9\r\ncl.mprobe\r\n"
	f := serve(t, commands.Config{})
	c := f.dial()
	script{
		{"COMMAND INFO ping nosuch CL.PROBE cl.mthrottle", "*4\r\n" + pingInfo2 + "$-1\r\n" + probeInfo2 + severalInfo2},
		{"COMMAND DOCS nosuch", "*0\r\n"},
		{"COMMAND GETKEYS del a b c", "*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n"},
		{"COMMAND GETKEYS cl.throttle k 1 2 3", "*1\r\n$1\r\nk\r\n"},
		{"COMMAND GETKEYS quota.take k id 1 2 3", "*1\r\n$1\r\nk\r\n"},
		{"COMMAND GETKEYSANDFLAGS roll.incr k 1 2 3 PAUSE", "*1\r\n*2\r\n$1\r\nk\r\n*3\r\n+RW\r\n+access\r\n+update\r\n"},
		{"COMMAND GETKEYSANDFLAGS unlink a b", "*2\r\n*2\r\n$1\r\na\r\n*2\r\n+RM\r\n+delete\r\n*2\r\n$1\r\nb\r\n*2\r\n+RM\r\n+delete\r\n"},
		{"COMMAND GETKEYS cl.mthrottle each 3 a 1 2 3 4 b 5 6 7 8 a 9 10 11 12", "*3\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\na\r\n"},
		{"COMMAND GETKEYSANDFLAGS cl.mprobe all 1 a 1 2 3 4", "*1\r\n*2\r\n$1\r\na\r\n*2\r\n+RO\r\n+access\r\n"},
		{"COMMAND GETKEYS cl.mthrottle all 1 a 1 2 3", "-ERR Invalid number of arguments specified for command\r\n"},
		{"COMMAND GETKEYS quota.refund k id", "*1\r\n$1\r\nk\r\n"},
		{"COMMAND GETKEYS", "-ERR wrong number of arguments for 'command|getkeys' command\r\n"},
		{"COMMAND GETKEYS nosuch a", "-ERR Invalid command specified\r\n"},
		{"COMMAND GETKEYS ping", "-ERR The command has no key arguments\r\n"},
		{"COMMAND GETKEYS del", "-ERR Invalid number of arguments specified for command\r\n"},
		{"COMMAND GETKEYS cl.throttle a b c", "-ERR Invalid number of arguments specified for command\r\n"},
		{"COMMAND GETKEYS cl.throttle 1 2 3 4 5 6", "-ERR Invalid number of arguments specified for command\r\n"},
		{"COMMAND LIST FILTERBY PATTERN CL.*", rates},
		{"COMMAND LIST FILTERBY ACLCAT throttle", rates},
		{"COMMAND LIST FILTERBY ACLCAT quota", "*4\r\n$10\r\nquota.take\r\n$11\r\nquota.probe\r\n$9\r\nquota.get\r\n$12\r\nquota.refund\r\n"},
		{"COMMAND LIST FILTERBY ACLCAT rolling", "*4\r\n$10\r\nroll.allow\r\n$9\r\nroll.incr\r\n$9\r\nroll.peek\r\n$9\r\nroll.wait\r\n"},
		{"COMMAND LIST FILTERBY ACLCAT nosuch", "*0\r\n"},
		{"COMMAND LIST FILTERBY MODULE any", "*0\r\n"},
		{"COMMAND LIST FILTERBY FOO any", "-ERR syntax error\r\n"},
		{"COMMAND LIST FOO", "-ERR syntax error\r\n"},
		{"COMMAND COUNT x", "-ERR wrong number of arguments for 'command|count' command\r\n"},
		{"CONFIG HELP", "*5\r\n+CONFIG <subcommand> [<arg> [value] [opt] ...]. Subcommands are:\r\n" +
			"+GET\r\n+    Tells the parameters that match a pattern.\r\n+HELP\r\n+    Lists the subcommands.\r\n"},
	}.play(t, c)
	if got := c.ask(words("COMMAND DOCS flushdb")); !strings.HasSuffix(got, flushdbArguments) {
		t.Errorf("COMMAND DOCS flushdb = %q, want the end %q", got, flushdbArguments)
	}

	c.ask(words("HELLO 3"))
	script{
		{"COMMAND INFO del nosuch", "*2\r\n" + delInfo3 + "_\r\n"},
		{"COMMAND DOCS nosuch echo ECHO", echoDocs3},
	}.play(t, c)
}

// COMMAND, its COUNT, INFO, DOCS and LIST must tell of the same commands, and
// these must be there.
func TestCommandsAgree(t *testing.T) {
	f := serve(t, commands.Config{})
	local := commands.NewLocal(f.limiter)
	ask := func(args ...string) any {
		t.Helper()
		reply, err := local.Do(args...)
		if err != nil {
			t.Fatalf("%s: %v", args, err)
		}
		return reply
	}
	var names, withSubcommands []string
	for _, entry := range ask("COMMAND").([]any) {
		name := entry.([]any)[0].(string)
		names = append(names, name)
		withSubcommands = append(withSubcommands, name)
		for _, sub := range entry.([]any)[9].([]any) {
			withSubcommands = append(withSubcommands, sub.([]any)[0].(string))
		}
	}
	if n := ask("COMMAND", "COUNT"); n != int64(len(names)) {
		t.Errorf("COMMAND COUNT = %v, want %d", n, len(names))
	}
	if n := len(ask("COMMAND", "INFO").([]any)); n != len(names) {
		t.Errorf("COMMAND INFO tells of %d, want %d", n, len(names))
	}
	var documented []string
	for i, v := range ask("COMMAND", "DOCS").([]any) {
		if i%2 == 0 {
			documented = append(documented, v.(string))
		}
	}
	if !slices.Equal(documented, names) {
		t.Errorf("COMMAND DOCS tells of %q, want %q", documented, names)
	}
	var listed []string
	for _, v := range ask("COMMAND", "LIST").([]any) {
		listed = append(listed, v.(string))
	}
	if !slices.Equal(listed, withSubcommands) {
		t.Errorf("COMMAND LIST = %q, want %q", listed, withSubcommands)
	}
	for _, name := range names {
		_, err := local.Do(name)
		if err != nil && strings.Contains(err.Error(), "unknown command") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
