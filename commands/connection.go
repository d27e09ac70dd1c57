package commands

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"

	"github.com/gabiondb/gabion/commands/internal/resp"
)

// compatible is the version of Redis whose protocol and replies we follow. It
// is what clients are told that ask for a version of Redis.
const compatible = "7.2.0"

func connectionCommands() []*command {
	return []*command{
		{
			name: "ping", arity: -1, most: 2, run: runPing,
			flags: fast, acl: catConnection,
			tips:    []string{"request_policy:all_shards", "response_policy:all_succeeded"},
			summary: "Answers PONG, or the message",
			group:   "connection", complexity: "O(1)",
			arguments: []argument{{name: "message", kind: "string", optional: true}},
		},
		{
			name: "echo", arity: 2, run: runEcho,
			flags: fast, acl: catConnection,
			summary: "Answers the message",
			group:   "connection", complexity: "O(1)",
			arguments: []argument{{name: "message", kind: "string"}},
		},
		{
			name: "quit", arity: -1, run: runQuit,
			flags: fast | noAuth, acl: catConnection,
			summary: "Closes the connection",
			group:   "connection", complexity: "O(1)",
		},
		{
			name: "reset", arity: 1, run: runReset,
			flags: fast | noAuth, acl: catConnection,
			summary: "Makes the connection as if it were new",
			group:   "connection", complexity: "O(1)",
		},
		{
			name: "select", arity: 2, run: runSelect,
			flags: fast, acl: catConnection,
			summary: "Chooses the database, of which there is one: 0",
			group:   "connection", complexity: "O(1)",
			arguments: []argument{{name: "index", kind: "integer"}},
		},
		{
			name: "hello", arity: -1, run: runHello,
			flags: fast | noAuth, acl: catConnection,
			summary: "Chooses the version of the protocol, and tells about the server",
			group:   "connection", complexity: "O(1)",
			arguments: []argument{{name: "arguments", kind: "block", optional: true, arguments: []argument{
				{name: "protover", kind: "integer"},
				{name: "username_password", kind: "block", token: "AUTH", optional: true, arguments: []argument{
					{name: "username", kind: "string"},
					{name: "password", kind: "string"},
				}},
				{name: "clientname", kind: "string", token: "SETNAME", optional: true},
			}}},
		},
		{
			name: "auth", arity: -2, run: runAuth,
			flags: fast | noAuth, acl: catConnection,
			summary: "Proves that the client knows the password",
			group:   "connection", complexity: "O(1)",
			arguments: []argument{
				{name: "username", kind: "string", optional: true},
				{name: "password", kind: "string"},
			},
		},
	}
}

func runPing(s *session, args [][]byte) error {
	if len(args) == 2 {
		s.out = resp.AppendBulk(s.out, args[1])
		return nil
	}
	s.out = resp.AppendSimple(s.out, "PONG")
	return nil
}

func runEcho(s *session, args [][]byte) error {
	s.out = resp.AppendBulk(s.out, args[1])
	return nil
}

func runQuit(s *session, _ [][]byte) error {
	s.closing = true
	s.ok()
	return nil
}

func runReset(s *session, _ [][]byte) error {
	s.authed = s.srv.password == nil
	s.setName("")
	s.setVersion(resp.RESP2)
	s.out = resp.AppendSimple(s.out, "RESET")
	return nil
}

func runSelect(s *session, args [][]byte) error {
	index, err := parseSigned(args[1])
	if err != nil {
		return err
	}
	if index != 0 {
		return Error("ERR DB index is out of range")
	}
	s.ok()
	return nil
}

func runAuth(s *session, args [][]byte) error {
	switch len(args) {
	case 2:
		if s.srv.password == nil {
			return Error("ERR AUTH <password> called without any password configured for the default user. " +
				"Are you sure your configuration is correct?")
		}
		if err := s.authenticate([]byte("default"), args[1]); err != nil {
			return err
		}
	case 3:
		if err := s.authenticate(args[1], args[2]); err != nil {
			return err
		}
	default:
		return errSyntax
	}
	s.ok()
	return nil
}

// authenticate checks a password, in a time that doesn't tell how much of it is
// right. There is one user, default.
func (s *session) authenticate(user, password []byte) error {
	if string(user) != "default" || s.srv.password != nil && !s.srv.password.is(password) {
		s.srv.stats.authFailures.Add(1)
		return errWrongPass
	}
	s.authed = true
	return nil
}

// password is the hash of a password.
type password [sha256.Size]byte

// newPassword returns nil for an empty password: there is none.
func newPassword(text string) *password {
	if text == "" {
		return nil
	}
	p := password(sha256.Sum256([]byte(text)))
	return &p
}

func (p *password) is(text []byte) bool {
	sum := sha256.Sum256(text)
	return subtle.ConstantTimeCompare(p[:], sum[:]) == 1
}

func runHello(s *session, args [][]byte) error {
	version := s.version
	if len(args) > 1 {
		n, err := parseInt(args[1])
		if err != nil {
			return Error("ERR Protocol version is not an integer or out of range")
		}
		if n != 2 && n != 3 {
			return Error("NOPROTO unsupported protocol version")
		}
		version = resp.Version(n)
	}

	var user, pass, name []byte
	for options := args[min(2, len(args)):]; len(options) > 0; {
		switch {
		case equalFold(options[0], "auth") && len(options) > 2:
			user, pass = options[1], options[2]
			options = options[3:]
		case equalFold(options[0], "setname") && len(options) > 1:
			name = options[1]
			if err := checkName(clientNames, name); err != nil {
				return err
			}
			options = options[2:]
		default:
			return Error(fmt.Sprintf("ERR Syntax error in HELLO option '%.128s'", options[0]))
		}
	}
	if user != nil {
		if err := s.authenticate(user, pass); err != nil {
			return err
		}
	}
	if !s.authed {
		return Error("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> " +
			"AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time")
	}
	if name != nil {
		s.setName(string(name))
	}
	s.setVersion(version)

	out := resp.AppendMapLen(s.out, version, 7)
	out = resp.AppendBulk(out, "server")
	out = resp.AppendBulk(out, "redis")
	out = resp.AppendBulk(out, "version")
	out = resp.AppendBulk(out, compatible)
	out = resp.AppendBulk(out, "proto")
	out = resp.AppendInt(out, int64(version))
	out = resp.AppendBulk(out, "id")
	out = resp.AppendInt(out, s.id)
	out = resp.AppendBulk(out, "mode")
	out = resp.AppendBulk(out, "standalone")
	out = resp.AppendBulk(out, "role")
	out = resp.AppendBulk(out, "master")
	out = resp.AppendBulk(out, "modules")
	s.out = resp.AppendArrayLen(out, 0)
	return nil
}
