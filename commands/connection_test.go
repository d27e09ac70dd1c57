package commands_test

import (
	"fmt"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gabiondb/gabion/commands"
)

func TestConnectionCommands(t *testing.T) {
	f := serve(t, commands.Config{})
	f.set(1500 * time.Millisecond)
	long := strings.Repeat("x", 200)
	script{
		{"PING", "+PONG\r\n"},
		{"ping hello", "$5\r\nhello\r\n"},
		{"PING a b", "-ERR wrong number of arguments for 'ping' command\r\n"},
		{"ECHO hello", "$5\r\nhello\r\n"},
		{"ECHO", "-ERR wrong number of arguments for 'echo' command\r\n"},
		{"SELECT 0", "+OK\r\n"},
		{"SELECT 1", "-ERR DB index is out of range\r\n"},
		{"SELECT x", notInteger},
		{"TIME", "*2\r\n$10\r\n1800000001\r\n$6\r\n500000\r\n"},
		{"foo", "-ERR unknown command 'foo', with args beginning with: \r\n"},
		{"foo a b", "-ERR unknown command 'foo', with args beginning with: 'a' 'b' \r\n"},
		{"foo " + long, "-ERR unknown command 'foo', with args beginning with: '" + long[:128] + "' \r\n"},
		{long, "-ERR unknown command '" + long[:128] + "', with args beginning with: \r\n"},
		{request("a\r\nb"), "-ERR unknown command 'a  b', with args beginning with: \r\n"},
		{"client|id", "-ERR unknown command 'client|id', with args beginning with: \r\n"},
		{"CLIENT", "-ERR wrong number of arguments for 'client' command\r\n"},
		{"CLIENT FOO", "-ERR unknown subcommand 'FOO'. Try CLIENT HELP.\r\n"},
		{"CLIENT ID", ":1\r\n"},
		{"CLIENT ID x", "-ERR wrong number of arguments for 'client|id' command\r\n"},
		{"CLIENT GETNAME", "$-1\r\n"},
		{request("CLIENT", "SETNAME", "a b"), "-ERR Client names cannot contain spaces, newlines or special characters.\r\n"},
		{request("CLIENT", "SETNAME", strings.Repeat("x", 1025)), "-ERR Client names cannot be longer than 1024 bytes.\r\n"},
		{request("CLIENT", "SETNAME", strings.Repeat("x", 1024)), "+OK\r\n"},
		{"CLIENT SETNAME joe", "+OK\r\n"},
		{"CLIENT GETNAME", "$3\r\njoe\r\n"},
		{request("CLIENT", "SETNAME", ""), "+OK\r\n"},
		{"CLIENT GETNAME", "$-1\r\n"},
		{"CLIENT SETINFO LIB-NAME lib(go1.26)", "+OK\r\n"},
		{"CLIENT SETINFO lib-ver 1.2", "+OK\r\n"},
		{request("CLIENT", "SETINFO", "lib-ver", "1 2"), "-ERR lib-ver cannot contain spaces, newlines or special characters.\r\n"},
		{request("CLIENT", "SETINFO", "LIB-VER", strings.Repeat("1", 1025)), "-ERR lib-ver cannot be longer than 1024 bytes.\r\n"},
		{"CLIENT SETINFO foo bar", "-ERR Unrecognized option 'foo'\r\n"},
		{"CLIENT NO-EVICT on", "+OK\r\n"},
		{"CLIENT NO-TOUCH OFF", "+OK\r\n"},
		{"CLIENT NO-TOUCH maybe", "-ERR syntax error\r\n"},
		{"CLIENT LIST TYPE master", "$0\r\n\r\n"},
		{"CLIENT LIST TYPE foo", "-ERR Unknown client type 'foo'\r\n"},
		{"CLIENT LIST ID 99", "$0\r\n\r\n"},
		{"CLIENT LIST ID x", "-ERR Invalid client ID\r\n"},
		{"CLIENT LIST FOO", "-ERR syntax error\r\n"},
		{"AUTH x", "-ERR AUTH <password> called without any password configured for the default user. " +
			"Are you sure your configuration is correct?\r\n"},
		{"AUTH default x", "+OK\r\n"},
		{"AUTH joe x", "-WRONGPASS invalid username-password pair or user is disabled.\r\n"},
		{"AUTH a b c", "-ERR syntax error\r\n"},
		{"HELLO 4", "-NOPROTO unsupported protocol version\r\n"},
		{"HELLO x", "-ERR Protocol version is not an integer or out of range\r\n"},
		{"HELLO 3 foo", "-ERR Syntax error in HELLO option 'foo'\r\n"},
		{"HELLO 3 AUTH joe", "-ERR Syntax error in HELLO option 'AUTH'\r\n"},
		{"HELLO 3 AUTH joe x", "-WRONGPASS invalid username-password pair or user is disabled.\r\n"},
		{request("HELLO", "3", "SETNAME", "a b"), "-ERR Client names cannot contain spaces, newlines or special characters.\r\n"},
		{request("HELLO", "3", "SETNAME", strings.Repeat("x", 1025)), "-ERR Client names cannot be longer than 1024 bytes.\r\n"},
		{"CLIENT GETNAME", "$-1\r\n"}, // still RESP2
		{"CONFIG GET maxcl* save", "*4\r\n$10\r\nmaxclients\r\n$5\r\n10000\r\n$4\r\nsave\r\n$0\r\n\r\n"},
		{"CONFIG GET nothing", "*0\r\n"},
		{"CONFIG SET a b", "-ERR unknown subcommand 'SET'. Try CONFIG HELP.\r\n"},
		{"CONFIG GET", "-ERR wrong number of arguments for 'config|get' command\r\n"},
	}.play(t, f.dial())
}

func TestInlineCommands(t *testing.T) {
	f := serve(t, commands.Config{})
	script{
		{"PING\r\n", "+PONG\r\n"},
		{"\r\n   \r\n*0\r\n*-1\r\nPING\r\n", "+PONG\r\n"},
		{"CL.THROTTLE \"a key\\x00\" 4 1 10\r\n", ints(0, 5, 4, -1, 10)},
		{"EXISTS 'a key' \"a key\\x00\"\r\n", ":1\r\n"},
	}.play(t, f.dial())
}

const (
	hello2 = "*14\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n7.2.0\r\n$5\r\nproto\r\n:2\r\n$2\r\nid\r\n:%d\r\n" +
		"$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n"
	hello3 = "%%7\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nversion\r\n$5\r\n7.2.0\r\n$5\r\nproto\r\n:3\r\n$2\r\nid\r\n:%d\r\n" +
		"$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n$7\r\nmodules\r\n*0\r\n"
)

func TestHello(t *testing.T) {
	f := serve(t, commands.Config{})
	script{
		{"HELLO", fmt.Sprintf(hello2, 1)},
		{"HELLO 3 SETNAME joe", fmt.Sprintf(hello3, 1)},
		{"CLIENT GETNAME", "$3\r\njoe\r\n"},
		{"CLIENT SETNAME", "-ERR wrong number of arguments for 'client|setname' command\r\n"},
		{"CL.THROTTLE k 4 1 10", ints(0, 5, 4, -1, 10)},
		{"CONFIG GET save", "%1\r\n$4\r\nsave\r\n$0\r\n\r\n"},
		{"COMMAND INFO nosuch", "*1\r\n_\r\n"},
		{"HELLO", fmt.Sprintf(hello3, 1)},
		{"RESET", "+RESET\r\n"},
		{"CLIENT GETNAME", "$-1\r\n"},
		{"HELLO 2", fmt.Sprintf(hello2, 1)},
	}.play(t, f.dial())
}

func TestAuth(t *testing.T) {
	f := serve(t, commands.Config{Password: "open sesame"})
	const noAuth = "-NOAUTH Authentication required.\r\n"
	const wrong = "-WRONGPASS invalid username-password pair or user is disabled.\r\n"
	c := f.dial()
	// ECHO needs authentication too, so these can't be asked in the usual way.
	for _, step := range (script{
		{"PING", noAuth},
		{"CL.THROTTLE k 4 1 10", noAuth},
		{"CLIENT SETNAME x", noAuth},
		{"NOSUCH", "-ERR unknown command 'NOSUCH', with args beginning with: \r\n"},
		{"GET", "-ERR unknown command 'GET', with args beginning with: \r\n"},
		{"ECHO", "-ERR wrong number of arguments for 'echo' command\r\n"},
		{"HELLO 3", "-NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> " +
			"AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time\r\n"},
		{"AUTH open", wrong},
		{"AUTH default open", wrong},
		{request("AUTH", "joe", "open sesame"), wrong},
		{request("AUTH", "open sesame"), "+OK\r\n"},
		{"PING", "+PONG\r\n"},
		{"AUTH open", wrong},
		{"PING", "+PONG\r\n"}, // Redis keeps who was authenticated, too
		{"RESET", "+RESET\r\n"},
		{"PING", noAuth},
		{request("HELLO", "3", "AUTH", "default", "open sesame", "SETNAME", "joe"), fmt.Sprintf(hello3, 1)},
		{"CLIENT GETNAME", "$3\r\njoe\r\n"},
	}) {
		raw := step.request
		if !strings.HasSuffix(raw, "\r\n") {
			raw = words(raw)
		}
		c.send(raw)
		c.expect(step.want)
	}

	// Somebody who has not authenticated gets little room.
	for _, tt := range [][2]string{
		{"*11\r\n", "-ERR Protocol error: unauthenticated multibulk length\r\n"},
		{"*2\r\n$4\r\nAUTH\r\n$16385\r\n", "-ERR Protocol error: unauthenticated bulk length\r\n"},
	} {
		c := f.dial()
		c.send(tt[0])
		if got := c.rest(); got != tt[1] {
			t.Errorf("%q: %q, want %q", tt[0], got, tt[1])
		}
	}
	c.send(request("ECHO", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10"))
	c.expect("-ERR wrong number of arguments for 'echo' command\r\n")
}

func TestQuit(t *testing.T) {
	f := serve(t, commands.Config{})
	c := f.dial()
	c.send(words("CL.THROTTLE k 4 1 10") + words("QUIT") + words("PING"))
	if got, want := c.rest(), ints(0, 5, 4, -1, 10)+"+OK\r\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestClosesHTTP(t *testing.T) {
	f := serve(t, commands.Config{})
	for _, head := range []string{
		"POST / HTTP/1.1\r\nHost: localhost\r\n\r\nCL.THROTTLE k 4 1 10\r\n",
		"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nCL.THROTTLE k 4 1 10\r\n",
	} {
		c := f.dial()
		c.send(head)
		if got := c.rest(); strings.Contains(got, "*5") {
			t.Errorf("%.20q: %q", head, got)
		}
	}
	script{{"DBSIZE", ":0\r\n"}}.play(t, f.dial())
}

func TestClientList(t *testing.T) {
	f := serve(t, commands.Config{})
	a, b := f.dial(), f.dial()
	a.ask(words("CLIENT SETNAME first") + words("CLIENT SETINFO LIB-NAME lib") + words("CLIENT SETINFO LIB-VER 1.2"))
	b.ask(words("HELLO 3") + words("CL.PROBE k 1 1 1"))
	list := b.ask(words("CLIENT LIST"))
	line := `id=%d addr=127\.0\.0\.1:\d+ laddr=` + regexp.QuoteMeta(f.addr) +
		` name=%s age=\d+ idle=\d+ flags=N db=0 cmd=%s user=default resp=%d lib-name=%s lib-ver=%s\n`
	want := `^=\d+\r\ntxt:` + fmt.Sprintf(line, 1, "first", "echo", 2, "lib", `1\.2`) +
		fmt.Sprintf(line, 2, "", `client\|list`, 3, "", "") + "\r\n$"
	if !regexp.MustCompile(want).MatchString(list) {
		t.Errorf("CLIENT LIST:\n%s\nwant it to match\n%s", list, want)
	}
	if got := a.ask(words("CLIENT LIST ID 2")); !strings.Contains(got, "id=2 ") || strings.Contains(got, "id=1 ") {
		t.Errorf("CLIENT LIST ID 2 = %q", got)
	}
	if got := a.ask(words("CLIENT INFO")); !strings.Contains(got, "id=1 ") || strings.Contains(got, "id=2 ") {
		t.Errorf("CLIENT INFO = %q", got)
	}
	b.send(words("QUIT"))
	b.rest()
	b.Close()
	eventually(t, "the list forgets a client that has gone", func() bool {
		return !strings.Contains(a.ask(words("CLIENT LIST")), "id=2 ")
	})
}

func TestInfo(t *testing.T) {
	f := serve(t, commands.Config{Version: "1.2.3"})
	c := f.dial()
	c.ask(words("CL.THROTTLE a 4 1 10") + words("CL.THROTTLE b 4 1 10") + words("CL.THROTTLE b x") + words("CL.THROTTLE b 1 0 1") + words("AUTH x y"))
	all := c.ask(words("INFO everything"))
	value := func(name string) string {
		t.Helper()
		_, rest, ok := strings.Cut(all, "\r\n"+name+":")
		if !ok {
			t.Errorf("INFO doesn't tell %s", name)
			return ""
		}
		v, _, _ := strings.Cut(rest, "\r\n")
		return v
	}
	_, port, _ := strings.Cut(f.addr, ":")
	for name, want := range map[string]string{
		"redis_version":              "7.2.0",
		"gabion_version":             "1.2.3",
		"tcp_port":                   port,
		"connected_clients":          "1",
		"maxclients":                 "10000",
		"loading":                    "0",
		"role":                       "master",
		"total_connections_received": "1",
		"rejected_connections":       "0",
		"acl_access_denied_auth":     "1",
		"protocol_errors":            "0",
		"connection_panics":          "0",
		"client_buffers_bytes":       "0",
		"server_time_usec":           "1800000000000000",
		"cmdstat_cl.throttle":        "calls=3,rejected_calls=1,failed_calls=1",
		"db0":                        "keys=2,expires=2,avg_ttl=0,estimate=1",
	} {
		if got := value(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	// Three THROTTLE, AUTH, the ECHO of ask, and INFO.
	if n, _ := strconv.Atoi(value("total_commands_processed")); n != 6 {
		t.Errorf("total_commands_processed is %d, want 6", n)
	}
	for _, name := range []string{"used_memory", "disk_bytes", "commit_rounds", "total_net_input_bytes", "total_net_output_bytes"} {
		if _, err := strconv.ParseUint(value(name), 10, 64); err != nil {
			t.Errorf("%s is no number: %v", name, err)
		}
	}

	script{
		{"INFO nosuch", "$0\r\n\r\n"},
		{"INFO keyspace", "$55\r\n# Keyspace\r\ndb0:keys=2,expires=2,avg_ttl=0,estimate=1\r\n\r\n"},
		{"INFO Replication", "$48\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n\r\n"},
	}.play(t, c)
	if got := c.ask(words("INFO")); strings.Contains(got, "# Commandstats") || !strings.Contains(got, "# Server") || !strings.Contains(got, "# Keyspace") {
		t.Errorf("INFO = %q", got)
	}
}

// What INFO says of memory does without a ballast.
func TestInfoLeavesOutBallast(t *testing.T) {
	used := func(ballast int64) int {
		return serve(t, commands.Config{Ballast: ballast}).dial().figure("memory", "used_memory")
	}
	const size = 128 << 20
	ballast := make([]byte, size)
	if with, without := used(size), used(0); with < 0 || without-with < size/2 {
		t.Errorf("%d bytes are used besides a ballast of %d, and %d with it", with, size, without)
	}
	runtime.KeepAlive(ballast)
}
