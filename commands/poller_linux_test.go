package commands_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/commands"
	"github.com/gabiondb/gabion/engine"
)

// polled returns a connection that a poller has: when it has asked for enough, one
// by one, the next request can only be answered by a poller.
func (f *fixture) polled() *wire {
	f.t.Helper()
	c := f.dial()
	c.poll()
	return c
}

func (w *wire) poll() {
	w.t.Helper()
	for range commands.EnoughPolled + 1 {
		if got := w.ask(words("EXISTS nothing")); got != ":0\r\n" {
			w.t.Fatalf("EXISTS = %q", got)
		}
	}
}

// Connections that ask for one thing at a time have no goroutines.
func TestPolledConnectionsHaveNoGoroutines(t *testing.T) {
	f := serve(t, commands.Config{})
	f.polled()
	before := runtime.NumGoroutine()
	const n = 300 // more than a turn is for
	var all []*wire
	for range n {
		all = append(all, f.polled())
	}
	eventually(t, "their goroutines end", func() bool { return runtime.NumGoroutine() <= before })
	for round := range 3 {
		for i, c := range all {
			c.send(words(fmt.Sprintf("CL.THROTTLE k%d 9 1 1", i)))
		}
		for _, c := range all {
			c.expect(ints(0, 10, int64(9-round), -1, int64(round+1)))
		}
	}
	watch := f.dial()
	if got := connected(watch); got != n+2 {
		t.Errorf("%d clients are connected, want %d", got, n+2)
	}
	eventually(t, "late turns are over", func() bool { return runtime.NumGoroutine() <= before+1 })
	for _, c := range all {
		c.Close()
	}
	eventually(t, "they are gone", func() bool { return connected(watch) == 2 })
}

// Whatever comes after a request that a poller has answered is answered as on a
// connection that has never seen one, and the next single request again.
func TestAfterAPolledRequest(t *testing.T) {
	f := serve(t, commands.Config{})
	never := f.pipe()
	never.ask(words("CL.THROTTLE k 9 1 100"))
	for name, s := range map[string]string{
		"look":                   words("CL.PROBE k 9 1 100 3"),
		"no charge":              words("CL.THROTTLE k 9 1 100 0"),
		"refused by the engine":  words("QUOTA.PEEK k 5 60000"),
		"refused for its key":    request("EXISTS", ""),
		"run":                    words("PING"),
		"inline":                 "EXISTS k\r\n",
		"inline with quotes":     "\"\\x45XISTS\" 'k'\r\n",
		"after empty ones":       "\r\n*0\r\n" + words("EXISTS k"),
		"pipeline":               words("EXISTS k") + words("PING") + words("CL.PROBE k 9 1 100 3"),
		"many keys":              words("EXISTS" + strings.Repeat(" k", 1000)),
		"several":                words("CL.MPROBE ALL 3 a 1 1 1 1 b 1 1 1 1 k 9 1 100 9"),
		"long key":               request("EXISTS", strings.Repeat("k", 4096)),
		"unknown":                words("NOTHING"),
		"wrong arity":            words("EXISTS"),
		"wrong argument":         words("CL.PROBE k x 1 1"),
		"wrong argument in many": words("CL.MPROBE ALL 2 a 1 1 1 1 b 1 1 1 x"),
		"subcommand":             words("CLIENT GETNAME"),
	} {
		t.Run(name, func(t *testing.T) {
			c := f.polled()
			want := never.ask(s)
			for range 2 {
				if got := c.ask(s); got != want {
					t.Errorf("%q, want %q", got, want)
				}
				c.poll()
			}
		})
	}
	for name, s := range map[string]string{
		"half a request": words("EXISTS k"),
		"and a pipeline": words("EXISTS k") + words("ECHO hello") + words("EXISTS k"),
	} {
		t.Run(name, func(t *testing.T) {
			want := never.ask(s)
			for i := range s {
				c := f.polled()
				c.send(s[:i])
				connected(f.polled()) // most likely the server has read it
				c.send(s[i:])
				c.expect(want)
				c.Close()
			}
		})
	}
	t.Run("the end", func(t *testing.T) {
		c := f.polled()
		c.send(words("EXISTS k"))
		c.Conn.(*net.TCPConn).CloseWrite()
		if got := c.rest(); got != ":1\r\n" {
			t.Errorf("%q, want the reply and the end", got)
		}
	})
	t.Run("another version", func(t *testing.T) {
		c := f.polled()
		c.ask(words("HELLO 3"))
		c.poll()
		for range 2 {
			if got, want := c.ask(words("ROLLING.WAIT k 1 1000")), never.ask(words("HELLO 3")+words("ROLLING.WAIT k 1 1000")); !strings.HasSuffix(want, got) {
				t.Errorf("%q, want it at the end of %q", got, want)
			}
		}
	})
	t.Run("a protocol error", func(t *testing.T) {
		c := f.polled()
		c.send("*x\r\n")
		if got, want := c.rest(), "-ERR Protocol error: invalid multibulk length\r\n"; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

// A client that has been answered by a poller may send single requests and read
// none of the replies, for as long as there is memory.
func TestPolledRepliesLeftUnread(t *testing.T) {
	f := serve(t, commands.Config{})
	small := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) { syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, 1) })
	}}
	ln, err := small.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- f.server.Serve(ln) }()
	t.Cleanup(func() {
		ln.Close()
		<-served
	})
	dialer := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		return raw.Control(func(fd uintptr) { syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 1) })
	}}
	nc, err := dialer.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c, watch := f.wire(nc), f.polled()
	c.poll()
	const limit = 1_000_000_000
	n := 0
	for ; buffers(watch) == 0; n++ {
		if n == 100_000 {
			t.Fatalf("the socket took %d replies", n)
		}
		c.send(words(fmt.Sprintf("CL.THROTTLE k %d 1 1", limit-1)))
		eventually(t, "it is decided", func() bool {
			return strings.HasPrefix(watch.ask(words(fmt.Sprintf("CL.PROBE k %d 1 1 0", limit-1))), fmt.Sprintf("*5\r\n:0\r\n:%d\r\n:%d\r\n", limit, limit-1-n))
		})
	}
	for i := range n {
		c.expect(ints(0, limit, limit-1-int64(i), -1, int64(i+1)))
	}
	released(watch)
	c.poll()
}

// slowDisk is a file system whose syncs wait while it is stopped.
type slowDisk struct {
	vfs.FS
	gate    sync.RWMutex // locked while it is stopped
	waiting atomic.Int32
}

func (d *slowDisk) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.Create(name, category)
	return slowFile{f, d}, err
}

func (d *slowDisk) ReuseForWrite(from, to string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := d.FS.ReuseForWrite(from, to, category)
	return slowFile{f, d}, err
}

func (d *slowDisk) wait() {
	d.waiting.Add(1)
	d.gate.RLock()
	defer d.gate.RUnlock()
	d.waiting.Add(-1)
}

type slowFile struct {
	vfs.File
	disk *slowDisk
}

func (f slowFile) Sync() error     { f.disk.wait(); return f.File.Sync() }
func (f slowFile) SyncData() error { f.disk.wait(); return f.File.SyncData() }
func (f slowFile) SyncTo(n int64) (bool, error) {
	f.disk.wait()
	return f.File.SyncTo(n)
}

// While the disk keeps some waiting, who needs nothing of it is answered, be there
// few of them or many; and afterwards they are, each once.
func TestSlowDiskKeepsOnlyWritersWaiting(t *testing.T) {
	disk := &slowDisk{FS: vfs.NewMem()}
	f := serveStore(t, commands.Config{}, engine.Options{FS: disk})
	denied := f.polled()
	denied.ask(words("CL.THROTTLE denied 0 1 1000"))
	var writers []*wire
	for range 60 {
		writers = append(writers, f.polled())
	}
	goroutines := runtime.NumGoroutine()
	for round := range 3 {
		disk.gate.Lock()
		for i, c := range writers {
			c.send(words(fmt.Sprintf("CL.THROTTLE k%d 9 1 1", i)))
			if i == 0 {
				eventually(t, "the disk is asked", func() bool { return disk.waiting.Load() > 0 })
			}
			// It may be in the same turn, in another one, or in none if enough are late.
			if got, want := denied.ask(words("CL.THROTTLE denied 0 1 1000")), ints(1, 1, 0, 1000, 1000); got != want {
				t.Fatalf("CL.THROTTLE = %q, want %q", got, want)
			}
			if got := f.server.LateTurns(); got > commands.MaxLate {
				t.Errorf("%d turns are late, want no more than %d", got, commands.MaxLate)
			}
		}
		late := f.dial()
		if got := connected(late); got < len(writers) {
			t.Errorf("%d clients are connected", got)
		}
		late.Close()
		for _, c := range writers {
			c.SetReadDeadline(time.Now().Add(time.Millisecond))
			if b, err := c.r.Peek(1); err == nil {
				t.Fatalf("%q was answered before the disk", b)
			}
			c.SetReadDeadline(time.Now().Add(patience))
		}
		disk.gate.Unlock()
		for _, c := range writers {
			c.expect(ints(0, 10, int64(9-round), -1, int64(round+1)))
		}
	}
	eventually(t, "no turn is late", func() bool { return f.server.LateTurns() == 0 })
	for _, c := range append(writers, denied) {
		c.poll()
	}
	eventually(t, "pollers have the connections again", func() bool { return runtime.NumGoroutine() <= goroutines })
}

// What INFO and CLIENT LIST tell does not depend on who has a connection.
func TestPolledRequestsAreCounted(t *testing.T) {
	f := serve(t, commands.Config{})
	c := f.polled()
	polled := func() (p commands.Polled) {
		eventually(t, "a poller has it", func() (ok bool) {
			p, ok = f.server.Polled()
			return ok
		})
		return p
	}
	before := polled()
	request := words("PTTL nothing")
	reply := c.ask(request)
	const asked = commands.EnoughPolled + 1
	received := uint64(asked*len(words("EXISTS nothing")) + len(request))
	sent := uint64(asked*len(":0\r\n") + len(reply))
	eventually(t, "the reply is counted", func() bool { return polled().Sent == sent })
	after := polled()
	if after.Active <= before.Active {
		t.Errorf("it was active at %d, and then at %d", before.Active, after.Active)
	}
	if after.Received != received {
		t.Errorf("%d bytes were received, want %d", after.Received, received)
	}
	if after.Last != "pttl" {
		t.Errorf("its last command is %q, want pttl", after.Last)
	}
	if got := c.ask(words("INFO commandstats")); !strings.Contains(got, "cmdstat_pttl:calls=1,") {
		t.Errorf("INFO commandstats = %q, want a call of pttl", got)
	}
}

// A server may be shut down twice, and touches nothing then that is not its own.
func TestShutdownTwice(t *testing.T) {
	f := serve(t, commands.Config{})
	c := f.polled()
	c.Close()
	ctx := context.Background()
	if err := f.server.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	var files []*os.File
	for range 10 { // with the numbers that the poller had
		file, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		files = append(files, file)
	}
	if err := f.server.Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if info, err := file.Stat(); err != nil || info.Size() > 0 {
			t.Errorf("a file that is not the server's has %d bytes, %v", info.Size(), err)
		}
	}
}

// A server that shuts down answers what a late turn has read, and closes; or it
// is overdue, and closes without.
func TestShutdownOfPolled(t *testing.T) {
	for _, overdue := range []bool{false, true} {
		t.Run(fmt.Sprintf("overdue=%t", overdue), func(t *testing.T) {
			disk := &slowDisk{FS: vfs.NewMem()}
			f := serveStore(t, commands.Config{}, engine.Options{FS: disk})
			idle, asks, busy := f.polled(), f.polled(), f.polled()
			disk.gate.Lock()
			busy.send(words("CL.THROTTLE k 9 1 1"))
			eventually(t, "the disk is asked", func() bool { return disk.waiting.Load() > 0 })
			asks.ask(words("PING"))
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- f.server.Shutdown(ctx) }()
			for _, c := range []*wire{idle, asks} {
				if got := c.rest(); got != "" {
					t.Errorf("an idle client got %q", got)
				}
				c.Close()
			}
			if overdue {
				cancel()
				if err := <-done; !errors.Is(err, context.Canceled) {
					t.Errorf("Shutdown() = %v", err)
				}
				if got := busy.rest(); got != "" {
					t.Errorf("the busy client got %q, want the end", got)
				}
				disk.gate.Unlock()
				return
			}
			disk.gate.Unlock()
			if got, want := busy.rest(), ints(0, 10, 9, -1, 1); got != want {
				t.Errorf("the busy client got %q, want %q", got, want)
			}
			busy.Close()
			if err := <-done; err != nil {
				t.Errorf("Shutdown() = %v", err)
			}
		})
	}
}

func TestPolledIdleTimeout(t *testing.T) {
	f := serve(t, commands.Config{IdleTimeout: 2 * time.Second})
	c := f.polled()
	if got := c.rest(); got != "" {
		t.Errorf("%q", got)
	}
	eventually(t, "nobody is left", func() bool {
		c := f.dial()
		defer c.Close()
		return connected(c) == 1
	})
}
