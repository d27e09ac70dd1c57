package commands

import (
	"fmt"
	"strings"
	"sync/atomic"

	"github.com/gabiondb/gabion/engine"
)

// command is an entry of the table: how a command is called, what it does, and
// what COMMAND tells about it.
//
// It does one of three things. One with a plan is a sequence of operations on
// keys; those of a whole pipeline are handed to the engine together. One with
// run does the rest, after everything that came before it in its pipeline has
// been carried out. One with subcommands may have a run for the case that none
// is named.
type command struct {
	name  string // lower case; that of a subcommand includes its parent's: client|id
	arity int    // the number of arguments, with the name; if negative, the least
	most  int    // the largest number of arguments; 0 if arity says it or there is none

	plan  func(ops []engine.Op, args [][]byte) ([]engine.Op, error)
	reply func(s *session, results []engine.Result) // results of plan's ops, none of them an error
	run   func(s *session, args [][]byte) error

	// wireError puts into words what went wrong, where a command has others
	// than most.
	wireError func(error) Error

	flags flags
	keys  keys
	acl   category // beyond what the flags imply
	tips  []string

	summary    string
	group      string
	complexity string
	arguments  []argument

	subcommands []*command
	parent      *command // of a subcommand

	calls    atomic.Uint64
	failed   atomic.Uint64 // calls that were answered with an error
	rejected atomic.Uint64 // not even called: wrong arity, or not authenticated
}

// since is the version that every command has been there from.
const since = "0.1.0"

type flags uint8

const (
	write flags = 1 << iota
	readonly
	admin
	fast
	noAuth // works before AUTH
)

var flagNames = [...]string{"write", "readonly", "admin", "fast", "no_auth"}

// category is a set of ACL categories, in the order in which Redis lists them.
type category uint16

const (
	catKeyspace category = 1 << iota
	catRead
	catWrite
	catAdmin
	catFast
	catSlow
	catDangerous
	catConnection
	catThrottle // this and the next are not Redis's
	catQuota
	catRolling
)

var categoryNames = [...]string{
	"@keyspace", "@read", "@write", "@admin", "@fast", "@slow", "@dangerous", "@connection", "@throttle", "@quota",
	"@rolling",
}

// categories returns the categories of c: its own and those that its flags
// imply.
func (c *command) categories() category {
	cats := c.acl
	if c.flags&write != 0 {
		cats |= catWrite
	}
	if c.flags&readonly != 0 {
		cats |= catRead
	}
	if c.flags&admin != 0 {
		cats |= catAdmin | catDangerous
	}
	if c.flags&fast != 0 {
		return cats | catFast
	}
	return cats | catSlow
}

// keys tells where the keys are among the arguments. The zero value says that
// there are none.
type keys struct {
	first int      // index of the first; 0 if there is none
	last  int      // no key is beyond this index; if negative, from the end
	step  int      // from one to the next
	flags []string // what is done with them
}

// of returns the keys among args.
func (k keys) of(args [][]byte) (found [][]byte) {
	if k.first == 0 {
		return nil
	}
	last := k.last
	if last < 0 {
		last += len(args)
	}
	for i := k.first; i <= last; i += k.step {
		found = append(found, args[i])
	}
	return found
}

var (
	oneKey     = keys{first: 1, last: 1, step: 1, flags: []string{"RO", "access"}}
	updatedKey = keys{first: 1, last: 1, step: 1, flags: []string{"RW", "access", "update"}}
)

// argument describes an argument for COMMAND DOCS.
type argument struct {
	name      string
	kind      string // key, string, integer, pattern, oneof, pure-token or block
	token     string // the word that comes before it, or that it is
	optional  bool
	multiple  bool
	arguments []argument // of a oneof or a block
}

// table is the commands that a server knows, and what it has counted of them.
type table struct {
	commands []*command
	byName   map[string]*command // with subcommands
}

func newTable() *table {
	t := &table{byName: make(map[string]*command)}
	for _, family := range [][]*command{
		throttleCommands(), severalCommands(), quotaCommands(), rollingCommands(), keyCommands(), keyspaceCommands(), connectionCommands(),
		clientCommands(), commandCommands(), serverCommands(),
	} {
		t.commands = append(t.commands, family...)
	}
	for _, c := range t.commands {
		t.byName[c.name] = c
		if c.subcommands != nil {
			c.subcommands = append(c.subcommands, helpCommand(c))
		}
		for _, sub := range c.subcommands {
			sub.parent = c
			t.byName[sub.name] = sub
		}
	}
	return t
}

// all returns the commands, each with its subcommands after it.
func (t *table) all() []*command {
	var all []*command
	for _, c := range t.commands {
		all = append(all, c)
		all = append(all, c.subcommands...)
	}
	return all
}

// maxName is no shorter than the longest name in the table.
const maxName = 32

// get returns the command of that name, or of that name and subcommand, in any
// case. It returns nil if there is none.
func (t *table) get(name, subcommand []byte) *command {
	var buf [maxName]byte
	if len(name)+len(subcommand) >= len(buf) {
		return nil
	}
	b := append(buf[:0], name...)
	if subcommand != nil {
		b = append(b, '|')
		b = append(b, subcommand...)
	}
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c | 0x20
		}
	}
	return t.byName[string(b)]
}

// find returns the command that args call, subcommand or not. The arguments
// are as many as it takes.
func (t *table) find(args [][]byte) (*command, error) {
	c := t.get(args[0], nil)
	if c == nil || c.parent != nil {
		return nil, errUnknownCommand(args)
	}
	if c.subcommands != nil && len(args) > 1 {
		parent := c
		if c = t.get(args[0], args[1]); c == nil {
			parent.rejected.Add(1)
			return nil, Error(fmt.Sprintf("ERR unknown subcommand '%.128s'. Try %s HELP.", args[1], strings.ToUpper(parent.name)))
		}
	}
	if !c.takes(len(args)) {
		c.rejected.Add(1)
		return nil, errArity(c)
	}
	return c, nil
}

// takes tells whether c may have n arguments.
func (c *command) takes(n int) bool {
	if c.arity < 0 {
		return n >= -c.arity && (c.most == 0 || n <= c.most)
	}
	return n == c.arity
}

func errArity(c *command) Error {
	return Error("ERR wrong number of arguments for '" + c.name + "' command")
}

func errUnknownCommand(args [][]byte) Error {
	const room = 128
	var list strings.Builder
	for _, arg := range args[1:] {
		if list.Len() >= room {
			break
		}
		fmt.Fprintf(&list, "'%.*s' ", room-list.Len(), arg)
	}
	return Error(fmt.Sprintf("ERR unknown command '%.*s', with args beginning with: %s", room, args[0], list.String()))
}

// names returns those of all that are in the set.
func names[S ~uint8 | ~uint16](set S, all []string) []string {
	var list []string
	for i, name := range all {
		if set&(1<<i) != 0 {
			list = append(list, name)
		}
	}
	return list
}
