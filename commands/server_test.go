package commands_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gabiondb/gabion/commands"
)

const throttle = "*5\r\n$11\r\nCL.THROTTLE\r\n$1\r\nk\r\n$9\r\n999999999\r\n$10\r\n1000000000\r\n$1\r\n1\r\n"

func TestProtocolErrors(t *testing.T) {
	f := serve(t, commands.Config{})
	for _, tt := range [][2]string{
		{"*1\r\n$9223372036854775807\r\n", "invalid bulk length"},
		{"*1\r\n$-9223372036854775808\r\n", "invalid bulk length"},
		{"*1\r\n$1048577\r\n", "invalid bulk length"},
		{"*1\r\n$99999999999999999999999\r\n", "invalid bulk length"},
		{"*9223372036854775807\r\n", "invalid multibulk length"},
		{"*2147483647\r\n", "invalid multibulk length"},
		{"*1025\r\n", "invalid multibulk length"},
		{"*1\r\n*1\r\n*1\r\n", "expected '$', got '*'"},
		{"*1\r\nPING\r\n", "expected '$', got 'P'"},
		{"*1\r\n\rx\r\n", "expected '$', got ' '"},
		{"ECHO \"a\r\n", "unbalanced quotes in request"},
		{strings.Repeat("x", 1<<17), "too big inline request"},
		{"*" + strings.Repeat("1", 1<<17), "too big mbulk count string"},
		{"*1\r\n$" + strings.Repeat("1", 1<<17), "too big bulk count string"},
		{"*2\r\n$600000\r\n" + strings.Repeat("x", 600000) + "\r\n$600000\r\n" + strings.Repeat("x", 600000) + "\r\n", "too big request"},
	} {
		c := f.dial()
		// What was sent before is answered, what comes after is not.
		c.send(words("PING") + tt[0] + words("PING"))
		if got, want := c.rest(), "+PONG\r\n-ERR Protocol error: "+tt[1]+"\r\n"; got != want {
			t.Errorf("%.40q: %q, want %q", tt[0], got, want)
		}
	}
	if got := f.dial().ask(words("INFO stats")); !strings.Contains(got, "\r\nprotocol_errors:15\r\n") {
		t.Errorf("INFO stats = %q", got)
	}
}

func TestLargestRequest(t *testing.T) {
	f := serve(t, commands.Config{})
	c := f.dial()
	payload := strings.Repeat("x", 1<<20-64)
	for range 3 {
		if got, want := c.ask(request("ECHO", payload)), fmt.Sprintf("$%d\r\n%s\r\n", len(payload), payload); got != want {
			t.Fatalf("ECHO of %d bytes: %d bytes, %.40q", len(payload), len(got), got)
		}
	}
	keys := make([]string, 1024)
	keys[0] = "EXISTS"
	for i := range keys[1:] {
		keys[i+1] = fmt.Sprint(i)
	}
	if got := c.ask(strings.Repeat(request(keys...), 5)); got != strings.Repeat(":0\r\n", 5) {
		t.Errorf("EXISTS of 1023 keys = %q", got)
	}
	released(c)
}

func TestBytewiseSender(t *testing.T) {
	f := serve(t, commands.Config{})
	c := f.dial()
	for _, b := range []byte(throttle + "PING\r\n" + words("ECHO hello")) {
		c.send(string(b))
	}
	c.expect(ints(0, 1e9, 1e9-1, -1, 1) + "+PONG\r\n$5\r\nhello\r\n")
}

// A client may send a whole pipeline before it reads the first reply: what the
// socket can't take is kept for it.
func TestLongPipeline(t *testing.T) {
	f := serve(t, commands.Config{})
	c := f.dial()
	const n = 100_000
	sent := make(chan error, 1)
	go func() {
		_, err := io.WriteString(c, strings.Repeat(throttle, n))
		sent <- err
	}()
	for i := range n {
		c.expect(ints(0, 1e9, 1e9-1-int64(i), -1, 1))
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	released(c)
}

func TestMaxClients(t *testing.T) {
	const most = 20
	f := serve(t, commands.Config{MaxClients: most})
	var open []*wire
	for range most {
		c := f.dial()
		c.ask(words("PING"))
		open = append(open, c)
	}
	for range 5 * most {
		if got, want := f.dial().rest(), "-ERR max number of clients reached\r\n"; got != want {
			t.Fatalf("one client too many got %q, want %q", got, want)
		}
	}
	for _, c := range open {
		c.ask(words("PING"))
	}
	open[0].Close()
	eventually(t, "there is room for another", func() bool {
		c := f.dial()
		defer c.Close()
		c.send(words("PING"))
		line, _ := c.r.ReadString('\n')
		return line == "+PONG\r\n"
	})
	if got := open[1].ask(words("INFO stats")); strings.Contains(got, "\r\nrejected_connections:0\r\n") {
		t.Errorf("INFO stats = %q", got)
	}
}

func TestMaxBuffers(t *testing.T) {
	f := serve(t, commands.Config{MaxBuffers: 600 << 10})
	half := "*2\r\n$6\r\nEXISTS\r\n$500000\r\n" + strings.Repeat("x", 400_000)
	a, b := f.dial(), f.dial()
	a.send(half)
	watch := f.dial()
	eventually(t, "the first has its memory", func() bool { return buffers(watch) == 512<<10-16<<10 })
	b.send(half)
	if got, want := b.rest(), "-ERR out of buffer memory, too much is being sent or left unread\r\n"; got != want {
		t.Errorf("the second got %q, want %q", got, want)
	}
	b.Close()
	a.send(strings.Repeat("x", 100_000) + "\r\n")
	a.expect(badKey)
	eventually(t, "its memory is given back", func() bool { return buffers(watch) == 0 })
}

// Random bytes, and the beginnings of all sorts of requests, must not do more
// than end their connection.
func TestHostileBytes(t *testing.T) {
	f := serve(t, commands.Config{})
	var seed uint64 = 1
	next := func(n int) int {
		seed = seed*6364136223846793005 + 1442695040888963407
		return int(seed>>33) % n
	}
	pieces := []string{
		"*", "$", "1", "-1", "0", "\r\n", "\n", "\r", "\x00", "\"", "'", "9223372036854775807", "PING", "CL.THROTTLE",
		"*1\r\n$4\r\nPING\r\n", throttle, "*3\r\n", "$3\r\n", "SCAN 0\r\n", "HELLO 3\r\n", "QUIT", "COMMAND DOCS\r\n", " ",
	}
	for range 300 {
		c := f.dial()
		var b bytes.Buffer
		for range 1 + next(20) {
			b.WriteString(pieces[next(len(pieces))])
		}
		c.Write(b.Bytes())
		c.Conn.(*net.TCPConn).CloseWrite()
		io.Copy(io.Discard, c)
	}
	if got := f.dial().ask(words("INFO stats")); !strings.Contains(got, "\r\nconnection_panics:0\r\n") {
		t.Errorf("INFO stats = %q", got)
	}
}

func TestConcurrentClients(t *testing.T) {
	f := serve(t, commands.Config{})
	const clients, calls = 20, 200
	var wg sync.WaitGroup
	for range clients {
		wg.Go(func() {
			c := f.dial()
			for range calls {
				if got := c.ask(words("CL.THROTTLE shared 1000000 1 1000")); !strings.HasPrefix(got, "*5\r\n:0\r\n") {
					t.Errorf("%q", got)
				}
				if got := c.ask(words("CLIENT LIST") + words("INFO")); strings.HasPrefix(got, "-") {
					t.Errorf("%.100q", got)
				}
			}
		})
	}
	wg.Wait()
	want := ints(0, 1000001, 1000001-clients*calls, -1, clients*calls*1000)
	if got := f.dial().ask(words("CL.THROTTLE shared 1000000 1 1000 0")); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestShutdown(t *testing.T) {
	t.Run("idle and busy", func(t *testing.T) {
		f := serve(t, commands.Config{})
		idle, half, busy := f.dial(), f.dial(), f.pipe()
		idle.ask(words("PING"))
		half.ask(words("PING"))
		half.send("*1\r\n$4\r\nPI")

		// The busy one leaves its reply unread, so it is still unsent.
		payload := strings.Repeat("x", 1<<19)
		busy.send(request("ECHO", payload))
		eventually(t, "the reply is kept", func() bool { return buffers(idle) >= 1<<19 })

		done := make(chan error, 1)
		go func() { done <- f.server.Shutdown(context.Background()) }()
		if got := idle.rest(); got != "" {
			t.Errorf("the idle client got %q", got)
		}
		if got := half.rest(); got != "" {
			t.Errorf("the client in mid-request got %q", got)
		}
		if got, want := busy.rest(), fmt.Sprintf("$%d\r\n%s\r\n", len(payload), payload); got != want {
			t.Errorf("the busy client got %d bytes, want %d", len(got), len(want))
		}
		busy.Close()
		if err := <-done; err != nil {
			t.Errorf("Shutdown() = %v", err)
		}
		if _, err := net.Dial("tcp", f.addr); err == nil {
			t.Error("it still listens")
		}
	})

	t.Run("overdue", func(t *testing.T) {
		f := serve(t, commands.Config{})
		c := f.pipe()
		c.send(request("ECHO", strings.Repeat("x", 1<<19)))
		watch := f.dial()
		eventually(t, "the reply is kept", func() bool { return buffers(watch) >= 1<<19 })
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if err := f.server.Shutdown(ctx); err != context.Canceled {
			t.Errorf("Shutdown() = %v, want %v", err, context.Canceled)
		}
	})

	t.Run("before Serve", func(t *testing.T) {
		f := serve(t, commands.Config{})
		server := commands.NewServer(f.limiter, commands.Config{})
		if err := server.Shutdown(context.Background()); err != nil {
			t.Errorf("Shutdown() = %v", err)
		}
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if err := server.Serve(ln); err != nil {
			t.Errorf("Serve() = %v", err)
		}
		if _, err := ln.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("the listener is open: %v", err)
		}
	})
}

func TestServeReportsALostListener(t *testing.T) {
	f := serve(t, commands.Config{})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := commands.NewServer(f.limiter, commands.Config{})
	served := make(chan error)
	go func() { served <- server.Serve(ln) }()
	ln.Close()
	if err := <-served; !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve() = %v, want net.ErrClosed", err)
	}
}

// BenchmarkThrottle measures CL.THROTTLE over the wire, with a store in memory:
// one client, one request at a time or a pipeline of them, all of which are
// charged.
func BenchmarkThrottle(b *testing.B) {
	for _, depth := range []int{1, 16, 100} {
		b.Run(fmt.Sprintf("pipeline=%d", depth), func(b *testing.B) {
			f := serve(b, commands.Config{})
			c := f.dial()
			c.SetDeadline(time.Time{})
			requests := []byte(strings.Repeat(throttle, depth))
			c.ask(string(requests))
			// Enough is left for each reply to be as long as the first.
			replies := make([]byte, depth*len(ints(0, 1e9, 1e9-1, -1, 1)))
			b.ReportAllocs()
			b.ResetTimer()
			for n := 0; n < b.N; n += depth {
				if _, err := c.Write(requests); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(c.r, replies); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
