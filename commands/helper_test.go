package commands_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/gabiondb/gabion/commands"
	"github.com/gabiondb/gabion/commands/internal/resp"
	"github.com/gabiondb/gabion/engine"
)

// patience bounds what a test waits for, so that one that hangs says where. It
// has nothing to do with how long anything should take.
const patience = 2 * time.Minute

// start is where the injected clock starts.
var start = time.Unix(1_800_000_000, 0)

// fixture is a server on a store in memory, with a clock that stands still.
type fixture struct {
	t        testing.TB
	inBubble bool
	limiter  *engine.Limiter
	server   *commands.Server
	addr     string
	clock    atomic.Int64
	served   chan error
}

// serving counts the servers that there are.
var serving atomic.Int32

// serve starts a server. When the test ends, it is shut down, and no goroutine
// and no file descriptor may be left of any.
func serve(t testing.TB, cfg commands.Config) *fixture {
	t.Helper()
	return serveStore(t, cfg, engine.Options{})
}

// serveStore is serve with a store that has options, but for its clock. It is in
// memory unless opts has a file system.
func serveStore(t testing.TB, cfg commands.Config, opts engine.Options) *fixture {
	t.Helper()
	before := goleak.IgnoreCurrent()
	files := openFiles()
	first := serving.Add(1) == 1
	f := &fixture{t: t, served: make(chan error, 1)}
	f.set(0)
	opts.Now = f.now
	if opts.FS == nil {
		opts.FS = vfs.NewMem()
	}
	var err error
	if f.limiter, err = engine.Open("store", &opts); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.addr = ln.Addr().String()
	f.server = commands.NewServer(f.limiter, cfg)
	go func() { f.served <- f.server.Serve(ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := f.server.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown() = %v", err)
		}
		if err := <-f.served; err != nil {
			t.Errorf("Serve() = %v", err)
		}
		if err := f.limiter.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
		if serving.Add(-1); !first {
			return // the first one ends last
		}
		goleak.VerifyNone(t, before)
		if n := openFiles(); n > files {
			t.Errorf("%d file descriptors are open, %d were before", n, files)
		}
	})
	return f
}

func (f *fixture) now() time.Time { return time.Unix(0, f.clock.Load()) }

// set moves the clock to so long after the start.
func (f *fixture) set(at time.Duration) { f.clock.Store(start.Add(at).UnixNano()) }

// openFiles counts the file descriptors of the process, where it can.
func openFiles() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries)
}

// inBubble runs a test with a server in a bubble of its own time, which passes
// only when everything in it waits. There are no sockets in a bubble, so
// connections are pipes.
func inBubble(t *testing.T, cfg commands.Config, test func(t *testing.T, f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fixture{t: t, inBubble: true}
		f.set(0)
		var err error
		// A purge would look round five times a second of a day that takes none.
		if f.limiter, err = engine.Open("store", &engine.Options{FS: vfs.NewMem(), Now: f.now, NoPurge: true}); err != nil {
			t.Fatal(err)
		}
		f.server = commands.NewServer(f.limiter, cfg)
		t.Cleanup(func() {
			if err := f.server.Shutdown(context.Background()); err != nil {
				t.Errorf("Shutdown() = %v", err)
			}
			if err := f.limiter.Close(); err != nil {
				t.Errorf("Close() = %v", err)
			}
		})
		test(t, f)
	})
}

// wire is a connection that speaks bytes.
type wire struct {
	t testing.TB
	net.Conn
	r *bufio.Reader
}

func (f *fixture) dial() *wire {
	f.t.Helper()
	c, err := net.Dial("tcp", f.addr)
	if err != nil {
		f.t.Fatal(err)
	}
	return f.wire(c)
}

func (f *fixture) wire(c net.Conn) *wire {
	f.t.Cleanup(func() { c.Close() })
	if !f.inBubble {
		c.SetDeadline(time.Now().Add(patience))
	}
	return &wire{f.t, c, bufio.NewReaderSize(c, 1<<16)}
}

// pipe returns a connection without any buffer between the two sides, so that
// what the server has sent is what the test has read.
func (f *fixture) pipe() *wire {
	f.t.Helper()
	ours, theirs := net.Pipe()
	f.accept(theirs)
	return f.wire(ours)
}

// accept has the server serve c.
func (f *fixture) accept(c net.Conn) {
	ln := &pipeListener{conns: make(chan net.Conn, 1), closed: make(chan struct{})}
	ln.conns <- c
	served := make(chan error, 1)
	go func() { served <- f.server.Serve(ln) }()
	f.t.Cleanup(func() {
		ln.Close()
		<-served
	})
}

// pipeListener accepts what is put into conns.
type pipeListener struct {
	conns  chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (ln *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-ln.conns:
		return c, nil
	case <-ln.closed:
		return nil, net.ErrClosed
	}
}

func (ln *pipeListener) Close() error {
	ln.once.Do(func() { close(ln.closed) })
	return nil
}

func (ln *pipeListener) Addr() net.Addr { return pipeAddr{} }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "pipe" }
func (pipeAddr) String() string  { return "pipe" }

func (w *wire) send(s string) {
	w.t.Helper()
	if _, err := io.WriteString(w, s); err != nil {
		w.t.Fatalf("sending %.60q: %v", s, err)
	}
}

// ask sends requests and returns the replies to them. A single request it sends
// as clients do that wait for each reply, others with one more, to know the end.
func (w *wire) ask(s string) string {
	w.t.Helper()
	var replies strings.Builder
	var parser resp.Parser
	if args, n, err := parser.Next([]byte(s)); args != nil && n == len(s) && err == nil {
		w.send(s)
		w.reply(&replies)
		return replies.String()
	}
	const mark = "that was all"
	w.send(s + request("ECHO", mark))
	end := fmt.Sprintf("$%d\r\n%s\r\n", len(mark), mark)
	for !strings.HasSuffix(replies.String(), end) {
		w.reply(&replies)
	}
	return strings.TrimSuffix(replies.String(), end)
}

// reply reads a reply into b.
func (w *wire) reply(b *strings.Builder) {
	w.t.Helper()
	line, err := w.r.ReadString('\n')
	if err != nil {
		w.t.Fatalf("%v after %q", err, b.String()+line)
	}
	b.WriteString(line)
	n, _ := strconv.Atoi(strings.TrimSpace(line[1:]))
	switch line[0] {
	case '$', '=':
		if n >= 0 {
			if _, err := io.CopyN(b, w.r, int64(n)+2); err != nil {
				w.t.Fatalf("%v after %q", err, b.String())
			}
		}
	case '%':
		n *= 2
		fallthrough
	case '*', '~', '>':
		for range n {
			w.reply(b)
		}
	}
}

// rest returns what comes until the server closes the connection.
func (w *wire) rest() string {
	w.t.Helper()
	b, err := io.ReadAll(w.r)
	if err != nil {
		w.t.Fatalf("waiting for the end: %v after %.200q", err, b)
	}
	return string(b)
}

// expect reads exactly want.
func (w *wire) expect(want string) {
	w.t.Helper()
	got := make([]byte, len(want))
	n, err := io.ReadFull(w.r, got)
	if err != nil || string(got) != want {
		w.t.Fatalf("reply %.200q, %d bytes, %v; want %.200q, %d bytes", got[:n], n, err, want, len(want))
	}
}

// request returns a request as clients send it.
func request(args ...string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, arg := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	return b.String()
}

// words returns a request from words between blanks.
func words(s string) string { return request(strings.Fields(s)...) }

// ints returns an array of integers as a reply.
func ints(n ...int64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(n))
	for _, n := range n {
		fmt.Fprintf(&b, ":%d\r\n", n)
	}
	return b.String()
}

// decisions returns the reply of several charges.
func decisions(denied, retryAfter int64, rows ...[]int64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n:%d\r\n:%d\r\n", 2+len(rows), denied, retryAfter)
	for _, row := range rows {
		b.WriteString(ints(row...))
	}
	return b.String()
}

// tool returns the path of a program that the test needs. Where it is missing,
// the test is skipped, but in CI it fails.
func tool(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("%s is not installed, and this is CI", name)
	}
	t.Skipf("%s is not installed", name)
	return ""
}

// eventually waits for something that another goroutine brings about and that
// can only be asked for.
func eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); runtime.Gosched() {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}
