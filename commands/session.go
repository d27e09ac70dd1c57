package commands

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/gabiondb/gabion/commands/internal/resp"
	"github.com/gabiondb/gabion/engine"
)

const (
	// maxRun is the most operations of a run. Before it could have more it is
	// handed to the engine, though more requests of the pipeline are there.
	maxRun = 1024

	// smallRun is the number of operations above which a run is large, and
	// maxLarge how many large runs there are at once. More wait for their turn:
	// else every connection could take a third of a mebibyte, whatever it has
	// room to send. That many are far more than one sync of the disk is worth.
	smallRun = 32
	maxLarge = 64

	// maxReplies is the size, in bytes, of the replies at which they are sent
	// before another request is looked at. A single reply may exceed it.
	maxReplies = 256 << 10
)

// session is what the server knows of a client: the state that its commands
// change, and the requests that are under way. Only who has the connection in
// hand uses it, but for what client guards.
type session struct {
	client
	srv *Server

	version resp.Version
	authed  bool // or there is no password
	closing bool // no more requests: the connection is closed when all is answered

	*run
}

// run is the requests of a pipeline on their way. The operations of all its
// commands go to the engine together.
type run struct {
	out     []byte // replies that have not been sent
	ops     []engine.Op
	results []engine.Result
	calls   []call // the commands that ops belong to, in order
	large   *large // what ops and results are in; nil: memory of the run's own
}

// large is the memory of a large run. Only who holds a token of Server.large
// has one.
type large struct {
	ops     []engine.Op
	results []engine.Result
}

var larges = sync.Pool{New: func() any {
	return &large{make([]engine.Op, 0, maxRun), make([]engine.Result, 0, maxRun)}
}}

type call struct {
	command *command
	ops     int // how many of them
}

// runs keeps the memory of runs while their connections have nothing to do.
var runs = sync.Pool{New: func() any { return new(run) }}

// release gives the memory back, unless it has grown beyond what most need.
func (r *run) release() {
	if cap(r.out) <= 2*maxReplies {
		runs.Put(r)
	}
}

// client is what CLIENT LIST tells of a session.
type client struct {
	id          int64
	addr, laddr string
	since       time.Duration // when it came, as time since the server's start
	active      atomic.Int64  // when it last sent something, likewise
	last        atomic.Pointer[command]

	mu       sync.Mutex // guards what follows: others read it
	name     string
	library  string // that it uses
	libVer   string
	protocol resp.Version
}

// do carries out a request, or puts its operations into the run. The arguments
// must stay as they are until settle is called.
func (s *session) do(args [][]byte) {
	c, err := s.srv.table.find(args)
	if err != nil {
		if isHTTP(args[0]) {
			s.srv.log.Warn("closed a connection that speaks HTTP, somebody may be using a browser to reach this server",
				"client", s.addr)
			s.closing = true
			return
		}
		s.fail(nil, err)
		return
	}
	if !s.authed && c.flags&noAuth == 0 {
		c.rejected.Add(1)
		s.fail(nil, errNoAuth)
		return
	}
	s.last.Store(c)
	c.calls.Add(1)
	if c.plan != nil {
		// A command has an operation for each key at most. Those that go
		// together are planned by one, and so are in one run.
		most := len(args) / c.keys.step
		if len(s.ops)+most > maxRun {
			s.settle()
		}
		if len(s.ops)+most > smallRun {
			s.enlarge()
		}
		before := len(s.ops)
		ops, err := c.plan(s.ops, args)
		if err != nil {
			s.fail(c, err)
			return
		}
		s.ops = ops
		s.calls = append(s.calls, call{c, len(ops) - before})
		return
	}
	s.settle()
	if err := c.run(s, args); err != nil {
		s.fail(c, err)
	}
}

// settle has the engine carry out the operations that have gathered, and
// replies to their commands.
func (s *session) settle() {
	if len(s.calls) == 0 {
		s.shrink() // a long command may have been refused
		return
	}
	s.results = s.srv.limiter.Do(s.ops, s.results[:0])
	results := s.results
	for _, call := range s.calls {
		s.reply(call, results[:call.ops])
		results = results[call.ops:]
	}
	clear(s.ops) // of their keys, which are slices of the connection's buffer
	s.ops, s.calls = s.ops[:0], s.calls[:0]
	s.shrink()
}

// reply replies to a call with the results of its operations.
func (s *session) reply(call call, results []engine.Result) {
	if err := firstError(results); err != nil {
		call.command.failed.Add(1)
		s.out = resp.AppendError(s.out, string(call.command.inWords(err)))
		return
	}
	call.command.reply(s, results)
}

// enlarge makes the run a large one. It waits until there may be another.
func (s *session) enlarge() {
	if s.large != nil {
		return
	}
	s.srv.large <- struct{}{}
	s.large = larges.Get().(*large)
	own := s.ops
	s.ops, s.results = append(s.large.ops, own...), s.large.results
	clear(own)
}

// shrink makes the run, which has no operations, a small one again.
func (s *session) shrink() {
	if s.run == nil || s.large == nil {
		return
	}
	if cap(s.ops) <= 2*maxRun {
		s.large.ops, s.large.results = s.ops[:0], s.results[:0]
		larges.Put(s.large)
	}
	s.ops, s.results, s.large = nil, nil, nil
	<-s.srv.large
}

func firstError(results []engine.Result) error {
	for i := range results {
		if err := results[i].Err; err != nil {
			return err
		}
	}
	return nil
}

// fail replies with err, after all that came before it. c is nil if no command
// was called.
func (s *session) fail(c *command, err error) {
	s.settle()
	if c != nil {
		c.failed.Add(1)
	}
	s.out = resp.AppendError(s.out, string(c.inWords(err)))
}

func (s *session) ok() { s.out = resp.AppendSimple(s.out, "OK") }

// setVersion changes the version of the protocol, for the replies from here on.
func (s *session) setVersion(v resp.Version) {
	s.version = v
	s.mu.Lock()
	s.protocol = v
	s.mu.Unlock()
}

// isHTTP tells whether a request that is no command begins like the head of an
// HTTP request that a browser may be made to send. Redis closes such
// connections too.
func isHTTP(name []byte) bool {
	return equalFold(name, "post") || equalFold(name, "host:")
}
