package commands

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gabiondb/gabion/commands/internal/resp"
)

func commandCommands() []*command {
	names := []argument{{name: "command-name", kind: "string", optional: true, multiple: true}}
	call := []argument{
		{name: "command", kind: "string"},
		{name: "arg", kind: "string", optional: true, multiple: true},
	}
	return []*command{{
		name: "command", arity: -1, run: runCommand, acl: catConnection,
		tips:    []string{"nondeterministic_output_order"},
		summary: "Tells about all commands",
		group:   "server", complexity: "O(N) where N is the number of commands",
		subcommands: []*command{
			{
				name: "command|count", arity: 2, run: runCommandCount, acl: catConnection,
				summary: "Counts the commands",
				group:   "server", complexity: "O(1)",
			},
			{
				name: "command|info", arity: -2, run: runCommandInfo, acl: catConnection,
				tips:    []string{"nondeterministic_output_order"},
				summary: "Tells how some commands are called, or all",
				group:   "server", complexity: "O(N) where N is the number of commands asked for", arguments: names,
			},
			{
				name: "command|docs", arity: -2, run: runCommandDocs, acl: catConnection,
				tips:    []string{"nondeterministic_output_order"},
				summary: "Tells what some commands do, or all",
				group:   "server", complexity: "O(N) where N is the number of commands asked for", arguments: names,
			},
			{
				name: "command|list", arity: -2, run: runCommandList, acl: catConnection,
				tips:    []string{"nondeterministic_output_order"},
				summary: "Lists the names of all commands, or of some",
				group:   "server", complexity: "O(N) where N is the number of commands",
				arguments: []argument{{name: "filterby", kind: "oneof", token: "FILTERBY", optional: true, arguments: []argument{
					{name: "module-name", kind: "string", token: "MODULE"},
					{name: "category", kind: "string", token: "ACLCAT"},
					{name: "pattern", kind: "pattern", token: "PATTERN"},
				}}},
			},
			{
				name: "command|getkeys", arity: -3, run: runCommandGetKeys, acl: catConnection,
				summary: "Tells which arguments of a call are keys",
				group:   "server", complexity: "O(N) where N is the number of arguments", arguments: call,
			},
			{
				name: "command|getkeysandflags", arity: -3, run: runCommandGetKeysAndFlags, acl: catConnection,
				summary: "Tells which arguments of a call are keys, and what is done with them",
				group:   "server", complexity: "O(N) where N is the number of arguments", arguments: call,
			},
		},
	}}
}

func runCommand(s *session, _ [][]byte) error {
	s.out = resp.AppendArrayLen(s.out, len(s.srv.table.commands))
	for _, c := range s.srv.table.commands {
		s.appendInfo(c)
	}
	return nil
}

func runCommandCount(s *session, _ [][]byte) error {
	s.out = resp.AppendInt(s.out, int64(len(s.srv.table.commands)))
	return nil
}

func runCommandInfo(s *session, args [][]byte) error {
	if len(args) == 2 {
		return runCommand(s, args)
	}
	s.out = resp.AppendArrayLen(s.out, len(args)-2)
	for _, name := range args[2:] {
		if c := s.srv.table.get(name, nil); c != nil {
			s.appendInfo(c)
		} else {
			s.out = resp.AppendNull(s.out, s.version)
		}
	}
	return nil
}

func runCommandDocs(s *session, args [][]byte) error {
	commands := s.srv.table.commands
	if len(args) > 2 {
		commands = nil
		for _, name := range args[2:] {
			if c := s.srv.table.get(name, nil); c != nil && !slices.Contains(commands, c) {
				commands = append(commands, c)
			}
		}
	}
	s.out = resp.AppendMapLen(s.out, s.version, len(commands))
	for _, c := range commands {
		s.out = resp.AppendBulk(s.out, c.name)
		s.appendDocs(c)
	}
	return nil
}

func runCommandList(s *session, args [][]byte) error {
	pick := func(*command) bool { return true }
	switch options := args[2:]; {
	case len(options) == 0:
	case len(options) == 3 && equalFold(options[0], "filterby"):
		by, value := options[1], options[2]
		switch {
		case equalFold(by, "module"):
			pick = func(*command) bool { return false }
		case equalFold(by, "aclcat"):
			pick = func(c *command) bool {
				for _, name := range names(c.categories(), categoryNames[:]) {
					if equalFold(value, name[1:]) {
						return true
					}
				}
				return false
			}
		case equalFold(by, "pattern"):
			pattern := []byte(strings.ToLower(string(value)))
			pick = func(c *command) bool { return globMatch(pattern, []byte(c.name)) }
		default:
			return errSyntax
		}
	default:
		return errSyntax
	}
	var list []string
	for _, c := range s.srv.table.all() {
		if pick(c) {
			list = append(list, c.name)
		}
	}
	s.appendStrings(list)
	return nil
}

func runCommandGetKeys(s *session, args [][]byte) error {
	_, found, err := s.keysOf(args[2:])
	if err != nil {
		return err
	}
	s.out = resp.AppendArrayLen(s.out, len(found))
	for _, key := range found {
		s.out = resp.AppendBulk(s.out, key)
	}
	return nil
}

func runCommandGetKeysAndFlags(s *session, args [][]byte) error {
	c, found, err := s.keysOf(args[2:])
	if err != nil {
		return err
	}
	s.out = resp.AppendArrayLen(s.out, len(found))
	for _, key := range found {
		s.out = resp.AppendArrayLen(s.out, 2)
		s.out = resp.AppendBulk(s.out, key)
		s.appendSet(c.keys.flags)
	}
	return nil
}

// keysOf returns the keys in a call of a command.
func (s *session) keysOf(args [][]byte) (*command, [][]byte, error) {
	c := s.srv.table.get(args[0], nil)
	switch {
	case c == nil || c.parent != nil:
		return nil, nil, Error("ERR Invalid command specified")
	case c.keys.first == 0:
		return nil, nil, Error("ERR The command has no key arguments")
	case !c.takes(len(args)):
		return nil, nil, Error("ERR Invalid number of arguments specified for command")
	}
	return c, c.keys.of(args), nil
}

// appendInfo appends the reply of COMMAND INFO for c.
func (s *session) appendInfo(c *command) {
	s.out = resp.AppendArrayLen(s.out, 10)
	s.out = resp.AppendBulk(s.out, c.name)
	s.out = resp.AppendInt(s.out, int64(c.arity))
	s.appendSet(names(c.flags, flagNames[:]))
	s.out = resp.AppendInt(s.out, int64(c.keys.first))
	s.out = resp.AppendInt(s.out, int64(c.keys.last))
	s.out = resp.AppendInt(s.out, int64(c.keys.step))
	s.appendSet(names(c.categories(), categoryNames[:]))
	s.out = resp.AppendSetLen(s.out, s.version, len(c.tips))
	for _, tip := range c.tips {
		s.out = resp.AppendBulk(s.out, tip)
	}
	s.appendKeySpecs(c)
	s.out = resp.AppendSetLen(s.out, s.version, len(c.subcommands))
	for _, sub := range c.subcommands {
		s.appendInfo(sub)
	}
}

// appendKeySpecs appends where the keys of c are, in the form that Redis has for
// commands that are harder to tell it for.
func (s *session) appendKeySpecs(c *command) {
	if c.keys.first == 0 {
		s.out = resp.AppendSetLen(s.out, s.version, 0)
		return
	}
	last := c.keys.last
	if last > 0 {
		last -= c.keys.first // counts from the first key
	}
	s.out = resp.AppendSetLen(s.out, s.version, 1)
	s.appendMap(3)
	s.out = resp.AppendBulk(s.out, "flags")
	s.appendSet(c.keys.flags)
	s.out = resp.AppendBulk(s.out, "begin_search")
	s.appendMap(2)
	s.appendPair("type", "index")
	s.out = resp.AppendBulk(s.out, "spec")
	s.appendMap(1)
	s.out = resp.AppendBulk(s.out, "index")
	s.out = resp.AppendInt(s.out, int64(c.keys.first))
	s.out = resp.AppendBulk(s.out, "find_keys")
	s.appendMap(2)
	s.appendPair("type", "range")
	s.out = resp.AppendBulk(s.out, "spec")
	s.appendMap(3)
	s.out = resp.AppendBulk(s.out, "lastkey")
	s.out = resp.AppendInt(s.out, int64(last))
	s.out = resp.AppendBulk(s.out, "keystep")
	s.out = resp.AppendInt(s.out, int64(c.keys.step))
	s.out = resp.AppendBulk(s.out, "limit")
	s.out = resp.AppendInt(s.out, 0)
}

// appendDocs appends the reply of COMMAND DOCS for c.
func (s *session) appendDocs(c *command) {
	n := 4
	if len(c.arguments) > 0 {
		n++
	}
	if len(c.subcommands) > 0 {
		n++
	}
	s.appendMap(n)
	s.appendPair("summary", c.summary)
	s.appendPair("since", since)
	s.appendPair("group", c.group)
	s.appendPair("complexity", c.complexity)
	if len(c.arguments) > 0 {
		s.out = resp.AppendBulk(s.out, "arguments")
		s.appendArguments(c.arguments)
	}
	if len(c.subcommands) > 0 {
		s.out = resp.AppendBulk(s.out, "subcommands")
		s.appendMap(len(c.subcommands))
		for _, sub := range c.subcommands {
			s.out = resp.AppendBulk(s.out, sub.name)
			s.appendDocs(sub)
		}
	}
}

func (s *session) appendArguments(arguments []argument) {
	s.out = resp.AppendArrayLen(s.out, len(arguments))
	for _, a := range arguments {
		var flags []string
		if a.optional {
			flags = append(flags, "optional")
		}
		if a.multiple {
			flags = append(flags, "multiple")
		}
		n := 2
		for _, there := range []bool{a.kind == "key", a.token != "", flags != nil, a.arguments != nil} {
			if there {
				n++
			}
		}
		s.appendMap(n)
		s.appendPair("name", a.name)
		s.appendPair("type", a.kind)
		if a.kind == "key" {
			s.out = resp.AppendBulk(s.out, "key_spec_index")
			s.out = resp.AppendInt(s.out, 0)
		}
		if a.token != "" {
			s.appendPair("token", a.token)
		}
		if flags != nil {
			s.out = resp.AppendBulk(s.out, "flags")
			s.appendSet(flags)
		}
		if a.arguments != nil {
			s.out = resp.AppendBulk(s.out, "arguments")
			s.appendArguments(a.arguments)
		}
	}
}

func (s *session) appendMap(pairs int) { s.out = resp.AppendMapLen(s.out, s.version, pairs) }

func (s *session) appendPair(key, value string) {
	s.out = resp.AppendBulk(s.out, key)
	s.out = resp.AppendBulk(s.out, value)
}

// appendSet appends words, none of which has an end of line in it, as a set.
func (s *session) appendSet(words []string) {
	s.out = resp.AppendSetLen(s.out, s.version, len(words))
	for _, word := range words {
		s.out = resp.AppendSimple(s.out, word)
	}
}

func (s *session) appendStrings(list []string) {
	s.out = resp.AppendArrayLen(s.out, len(list))
	for _, text := range list {
		s.out = resp.AppendBulk(s.out, text)
	}
}

// helpCommand returns the subcommand that tells about the others of c.
func helpCommand(c *command) *command {
	return &command{
		name: c.name + "|help", arity: 2, acl: c.acl,
		summary: "Lists the subcommands",
		group:   c.group, complexity: "O(1)",
		run: func(s *session, _ [][]byte) error {
			lines := []string{fmt.Sprintf("%s <subcommand> [<arg> [value] [opt] ...]. Subcommands are:", strings.ToUpper(c.name))}
			for _, sub := range c.subcommands {
				_, name, _ := strings.Cut(sub.name, "|")
				lines = append(lines, strings.ToUpper(name), "    "+sub.summary+".")
			}
			s.out = resp.AppendArrayLen(s.out, len(lines))
			for _, line := range lines {
				s.out = resp.AppendSimple(s.out, line)
			}
			return nil
		},
	}
}
