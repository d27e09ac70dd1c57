package commands

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gabiondb/gabion/commands/internal/resp"
	"github.com/gabiondb/gabion/engine"
)

// Config holds the settings of a Server. The zero value is that of a server
// for everybody who can reach it.
type Config struct {
	// Password is what clients must give before anything else is done for
	// them. If it is empty, they need none.
	Password string

	// MaxClients is the number of connections above which a new one gets an
	// error and is closed. The default is 10,000.
	MaxClients int

	// IdleTimeout closes a connection that has sent nothing for so long. The
	// default is never to do so.
	IdleTimeout time.Duration

	// WriteTimeout closes a connection that has taken none of its replies for
	// so long, or has sent nothing more of a request that it has begun. The
	// default is 60 s.
	WriteTimeout time.Duration

	// MaxBuffers bounds the memory, in bytes, that all connections together
	// may take for large requests and for replies that wait to be read. A
	// connection that would exceed it gets an error and is closed. The default
	// is 256 MiB.
	MaxBuffers int64

	// BackupDir is the directory that BACKUP makes copies of the store in. If it
	// is empty, there is no BACKUP.
	BackupDir string

	// Ballast is how many bytes of the heap nobody touches, so that they take no
	// memory. INFO leaves them out.
	Ballast int64

	// Logger is told what an operator should know. The default discards.
	Logger *slog.Logger

	// Version is the version of gabion that INFO tells.
	Version string
}

// Server serves a limiter to clients of Redis. Its methods are safe for
// concurrent use.
type Server struct {
	limiter  *engine.Limiter
	cfg      Config
	log      *slog.Logger
	password *password
	table    *table
	started  time.Time
	scans    chan struct{} // holds a token for each command that reads through the keys
	large    chan struct{} // holds a token for each large run
	backup   sync.Mutex    // held while one is made

	ctx    context.Context // ends when what takes long is to be given up
	giveUp context.CancelFunc

	lastID   atomic.Int64
	buffered atomic.Int64 // bytes, of cfg.MaxBuffers
	stats    struct {
		connections, refused, received, sent, authFailures, protocolErrors, panics atomic.Uint64
	}

	conns sync.WaitGroup // connections, and goroutines of pollers

	mu        sync.Mutex // guards what follows
	closing   bool
	listeners map[net.Listener]struct{}
	open      map[*conn]struct{}
	pollers   []*poller
}

// NewServer returns a server for l, which stays the caller's to close, after
// Shutdown.
func NewServer(l *engine.Limiter, cfg Config) *Server {
	cfg.MaxClients = cmp.Or(cfg.MaxClients, 10_000)
	cfg.WriteTimeout = cmp.Or(cfg.WriteTimeout, 60*time.Second)
	cfg.MaxBuffers = cmp.Or(cfg.MaxBuffers, 256<<20)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	ctx, giveUp := context.WithCancel(context.Background())
	return &Server{
		ctx:       ctx,
		giveUp:    giveUp,
		limiter:   l,
		cfg:       cfg,
		log:       cfg.Logger,
		password:  newPassword(cfg.Password),
		table:     newTable(),
		started:   time.Now(),
		scans:     make(chan struct{}, maxScans()),
		large:     make(chan struct{}, maxLarge),
		listeners: make(map[net.Listener]struct{}),
		open:      make(map[*conn]struct{}),
	}
}

// Serve accepts connections from ln and serves them, until Shutdown is called,
// whereupon it returns nil, or until ln fails for good. It closes ln. The
// connections outlive Serve: Shutdown waits for them. On Linux, a *net.TCPConn or
// *net.UnixConn that ln returns may be closed while the server goes on with its
// socket.
func (s *Server) Serve(ln net.Listener) error {
	defer ln.Close()
	s.mu.Lock()
	if s.closing {
		s.mu.Unlock()
		return nil
	}
	s.listeners[ln] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.listeners, ln)
		s.mu.Unlock()
	}()

	var delay time.Duration // before accepting again, after an error
	for {
		nc, err := ln.Accept()
		if err == nil {
			delay = 0
			s.accept(nc)
			continue
		}
		s.mu.Lock()
		closing := s.closing
		s.mu.Unlock()
		if closing {
			return nil
		}
		if errors.Is(err, net.ErrClosed) {
			return err
		}
		// Most likely too many files are open. It passes when some are closed.
		delay = min(max(2*delay, 5*time.Millisecond), time.Second)
		s.log.Error("cannot accept a connection", "error", err, "retry_in", delay)
		time.Sleep(delay)
	}
}

// accept serves nc, or refuses to.
func (s *Server) accept(nc net.Conn) {
	s.stats.connections.Add(1)
	c := newConn(s, nc)
	s.mu.Lock()
	closing, full := s.closing, len(s.open) >= s.cfg.MaxClients
	if !closing && !full {
		s.open[c] = struct{}{}
		s.conns.Add(1)
	}
	s.mu.Unlock()
	switch {
	case closing:
		nc.Close()
	case full:
		s.stats.refused.Add(1)
		// The socket's buffer is empty, so this doesn't wait.
		nc.SetWriteDeadline(time.Now().Add(time.Second))
		nc.Write(resp.AppendError(nil, string(errClients)))
		nc.Close()
	default:
		c.makeBuffer()
		go s.serve(c)
	}
}

// serve serves c to its end, or until a poller does. A panic is a bug, but one
// that should cost no more than the connection that has met it.
func (s *Server) serve(c *conn) {
	polled := false
	defer func() {
		if v := recover(); v != nil {
			s.panicked(c.addr, v)
		}
		if !polled {
			s.end(c)
		}
	}()
	polled = c.serve()
}

// panicked tells of a panic that the client has met. It is called where the panic
// is recovered from.
func (s *Server) panicked(client string, v any) {
	s.stats.panics.Add(1)
	s.log.Error("a connection panicked", "client", client, "panic", v, "stack", string(debug.Stack()))
}

// end ends c, which nobody serves any more.
func (s *Server) end(c *conn) {
	s.mu.Lock()
	delete(s.open, c)
	s.mu.Unlock()
	c.close()
	s.conns.Done()
}

// Shutdown stops accepting connections, answers the requests that were read,
// sends the replies, closes the connections and returns. When ctx is done
// first, it closes the connections as they are and returns the error of ctx;
// what is in the hands of the engine then is not waited for, and a backup is
// given up.
func (s *Server) Shutdown(ctx context.Context) error {
	defer s.giveUp()
	s.mu.Lock()
	s.closing = true
	for ln := range s.listeners {
		ln.Close()
	}
	for c := range s.open {
		c.stop()
	}
	for _, p := range s.pollers {
		p.wake()
	}
	s.mu.Unlock()

	done := make(chan struct{})
	go func() {
		s.conns.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	for c := range s.open {
		c.abort()
	}
	s.mu.Unlock()
	return ctx.Err()
}

// reserve takes n bytes of the memory that all connections share, and tells
// whether there was room.
func (s *Server) reserve(n int) bool {
	if s.buffered.Add(int64(n)) <= s.cfg.MaxBuffers {
		return true
	}
	s.buffered.Add(int64(-n))
	return false
}

// release gives back what reserve took.
func (s *Server) release(n int) { s.buffered.Add(int64(-n)) }

// uptime returns the time since the server's start.
func (s *Server) uptime() time.Duration { return time.Since(s.started) }

// clients returns those that are connected, in the order in which they came.
func (s *Server) clients() []*client {
	s.mu.Lock()
	list := make([]*client, 0, len(s.open))
	for c := range s.open {
		list = append(list, &c.client)
	}
	s.mu.Unlock()
	slices.SortFunc(list, func(a, b *client) int { return cmp.Compare(a.id, b.id) })
	return list
}

// address returns where the server listens, or nil.
func (s *Server) address() net.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ln := range s.listeners {
		return ln.Addr()
	}
	return nil
}

// newSession returns the state of a client that has just come.
func (s *Server) newSession(addr, laddr string) *session {
	session := &session{
		client: client{
			id:       s.lastID.Add(1),
			addr:     addr,
			laddr:    laddr,
			since:    s.uptime(),
			protocol: resp.RESP2,
		},
		srv:     s,
		version: resp.RESP2,
		authed:  s.password == nil,
	}
	session.active.Store(int64(session.since))
	return session
}
