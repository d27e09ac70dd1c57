package commands

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	"github.com/gabiondb/gabion/commands/internal/resp"
)

func clientCommands() []*command {
	onOff := []argument{{name: "enabled", kind: "oneof", arguments: []argument{
		{name: "on", kind: "pure-token", token: "ON"},
		{name: "off", kind: "pure-token", token: "OFF"},
	}}}
	return []*command{{
		name: "client", arity: -2,
		summary: "A container for commands about connections",
		group:   "connection", complexity: "Depends on subcommand.",
		subcommands: []*command{
			{
				name: "client|id", arity: 2, run: runClientID, acl: catConnection,
				summary: "Tells the number of the connection",
				group:   "connection", complexity: "O(1)",
			},
			{
				name: "client|getname", arity: 2, run: runClientGetName, acl: catConnection,
				summary: "Tells the name of the connection",
				group:   "connection", complexity: "O(1)",
			},
			{
				name: "client|setname", arity: 3, run: runClientSetName, acl: catConnection,
				summary: "Gives the connection a name",
				group:   "connection", complexity: "O(1)",
				arguments: []argument{{name: "connection-name", kind: "string"}},
			},
			{
				name: "client|setinfo", arity: 4, run: runClientSetInfo, acl: catConnection,
				summary: "Tells the server about the library that the client uses",
				group:   "connection", complexity: "O(1)",
				arguments: []argument{{name: "attr", kind: "oneof", arguments: []argument{
					{name: "libname", kind: "string", token: "LIB-NAME"},
					{name: "libver", kind: "string", token: "LIB-VER"},
				}}},
			},
			{
				name: "client|info", arity: 2, run: runClientInfo, acl: catConnection,
				tips:    []string{"nondeterministic_output"},
				summary: "Tells about the connection",
				group:   "connection", complexity: "O(1)",
			},
			{
				name: "client|list", arity: -2, run: runClientList, flags: admin, acl: catConnection,
				tips:    []string{"nondeterministic_output"},
				summary: "Tells about all connections",
				group:   "connection", complexity: "O(N) where N is the number of connections",
				arguments: []argument{
					{name: "client-type", kind: "oneof", token: "TYPE", optional: true, arguments: []argument{
						{name: "normal", kind: "pure-token", token: "NORMAL"},
						{name: "master", kind: "pure-token", token: "MASTER"},
						{name: "replica", kind: "pure-token", token: "REPLICA"},
						{name: "pubsub", kind: "pure-token", token: "PUBSUB"},
					}},
					{name: "client-id", kind: "integer", token: "ID", optional: true, multiple: true},
				},
			},
			{
				name: "client|no-evict", arity: 3, run: runClientSwitch, flags: admin, acl: catConnection,
				summary: "Does nothing: connections are not evicted",
				group:   "connection", complexity: "O(1)", arguments: onOff,
			},
			{
				name: "client|no-touch", arity: 3, run: runClientSwitch, acl: catConnection,
				summary: "Does nothing: reading a key does not keep it alive",
				group:   "connection", complexity: "O(1)", arguments: onOff,
			},
		},
	}}
}

// maxClientName is the length of the longest name of a connection or a library, in
// bytes. They are kept as long as the connection is there.
const maxClientName = 1024

// checkName tells why a connection can't have that name, which errors call what.
// It can be printable ASCII without blanks, or nothing at all.
func checkName(what string, name []byte) error {
	if len(name) > maxClientName {
		return Error(fmt.Sprintf("ERR %s cannot be longer than %d bytes.", what, maxClientName))
	}
	for _, c := range name {
		if c < '!' || c > '~' {
			return Error(fmt.Sprintf("ERR %s cannot contain spaces, newlines or special characters.", what))
		}
	}
	return nil
}

const clientNames = "Client names" // what errors call the name of a connection

func (s *session) setName(name string) {
	s.mu.Lock()
	s.name = name
	s.mu.Unlock()
}

func runClientID(s *session, _ [][]byte) error {
	s.out = resp.AppendInt(s.out, s.id)
	return nil
}

func runClientGetName(s *session, _ [][]byte) error {
	if s.name == "" {
		s.out = resp.AppendNull(s.out, s.version)
		return nil
	}
	s.out = resp.AppendBulk(s.out, s.name)
	return nil
}

func runClientSetName(s *session, args [][]byte) error {
	if err := checkName(clientNames, args[2]); err != nil {
		return err
	}
	s.setName(string(args[2]))
	s.ok()
	return nil
}

func runClientSetInfo(s *session, args [][]byte) error {
	var field *string
	switch attr := args[2]; {
	case equalFold(attr, "lib-name"):
		field = &s.library
	case equalFold(attr, "lib-ver"):
		field = &s.libVer
	default:
		return Error(fmt.Sprintf("ERR Unrecognized option '%.128s'", attr))
	}
	if err := checkName(string(bytes.ToLower(args[2])), args[3]); err != nil {
		return err
	}
	s.mu.Lock()
	*field = string(args[3])
	s.mu.Unlock()
	s.ok()
	return nil
}

func runClientSwitch(s *session, args [][]byte) error {
	if !equalFold(args[2], "on") && !equalFold(args[2], "off") {
		return errSyntax
	}
	s.ok()
	return nil
}

func runClientInfo(s *session, _ [][]byte) error {
	s.out = resp.AppendVerbatim(s.out, s.version, s.client.appendLine(nil, s.srv.uptime()))
	return nil
}

func runClientList(s *session, args [][]byte) error {
	var only map[int64]bool // the numbers asked for; nil: all
	switch options := args[2:]; {
	case len(options) == 0:
	case len(options) == 2 && equalFold(options[0], "type"):
		switch kind := options[1]; {
		case equalFold(kind, "normal"):
		case equalFold(kind, "master"), equalFold(kind, "slave"), equalFold(kind, "replica"), equalFold(kind, "pubsub"):
			only = map[int64]bool{}
		default:
			return Error(fmt.Sprintf("ERR Unknown client type '%.128s'", kind))
		}
	case len(options) >= 2 && equalFold(options[0], "id"):
		only = map[int64]bool{}
		for _, arg := range options[1:] {
			id, err := parseInt(arg)
			if err != nil || id == 0 {
				return Error("ERR Invalid client ID")
			}
			only[id] = true
		}
	default:
		return errSyntax
	}
	var list []byte
	for _, c := range s.srv.clients() {
		if only == nil || only[c.id] {
			list = c.appendLine(list, s.srv.uptime())
		}
	}
	s.out = resp.AppendVerbatim(s.out, s.version, list)
	return nil
}

// appendLine appends what CLIENT LIST says of c. now is the time since the
// server's start.
func (c *client) appendLine(b []byte, now time.Duration) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := "NULL"
	if cmd := c.last.Load(); cmd != nil {
		last = cmd.name
	}
	field := func(name, value string) {
		b = append(b, name...)
		b = append(b, '=')
		b = append(b, value...)
		b = append(b, ' ')
	}
	number := func(name string, n int64) { field(name, strconv.FormatInt(n, 10)) }
	number("id", c.id)
	field("addr", c.addr)
	field("laddr", c.laddr)
	field("name", c.name)
	number("age", int64((now-c.since)/time.Second))
	number("idle", int64((now-time.Duration(c.active.Load()))/time.Second))
	field("flags", "N")
	number("db", 0)
	field("cmd", last)
	field("user", "default")
	number("resp", int64(c.protocol))
	field("lib-name", c.library)
	field("lib-ver", c.libVer)
	b[len(b)-1] = '\n'
	return b
}
