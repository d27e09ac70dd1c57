package commands_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gabiondb/gabion/commands"
)

// buffers asks for the memory that connections have taken.
func buffers(c *wire) int {
	c.t.Helper()
	return c.figure("memory", "client_buffers_bytes")
}

// figure asks for a figure in a section of INFO.
func (w *wire) figure(section, name string) (n int) {
	w.t.Helper()
	_, rest, _ := strings.Cut(w.ask(words("INFO "+section)), "\r\n"+name+":")
	if _, err := fmt.Sscan(rest, &n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// released waits until no memory is held for a connection. That it is given back
// comes after what the client sees: the end of the connection, or of the replies.
func released(c *wire) {
	c.t.Helper()
	eventually(c.t, "no buffers are held", func() bool { return buffers(c) == 0 })
}

// sending writes s from a goroutine of its own. The channel tells when it is
// done.
func (w *wire) sending(s string) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := io.WriteString(w, s)
		done <- err
	}()
	return done
}

// Replies of a mebibyte are kept for a client that sends before it reads. Then
// its requests wait.
func TestUnsentReplies(t *testing.T) {
	inBubble(t, commands.Config{}, func(t *testing.T, f *fixture) {
		c, watch := f.pipe(), f.pipe()
		const limit = 1_000_000_000
		request := words(fmt.Sprintf("CL.THROTTLE k %d 1 1", limit-1))
		reply := func(i int) string { return ints(0, limit, limit-1-int64(i), -1, int64(i+1)) }
		n, size := 0, 0
		for ; size <= 1<<20; n++ { // the last one is too much
			size += len(reply(n))
		}
		c.send(strings.Repeat(request, n))
		synctest.Wait()
		if got := buffers(watch); got != size {
			t.Errorf("%d bytes of replies are kept, want %d", got, size)
		}
		more := c.sending(strings.Repeat(request, n))
		time.Sleep(time.Second)
		synctest.Wait()
		if got := buffers(watch); got != size {
			t.Errorf("%d bytes of replies are kept after more requests, want %d", got, size)
		}
		for i := range 2 * n {
			c.expect(reply(i))
		}
		if err := <-more; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if got := buffers(watch); got != 0 {
			t.Errorf("%d bytes are still held", got)
		}
	})
}

// However large the replies to a few bytes of requests, they are made as they
// are taken.
func TestLargeRepliesToSmallRequests(t *testing.T) {
	inBubble(t, commands.Config{MaxBuffers: 2 << 20}, func(t *testing.T, f *fixture) {
		c := f.pipe()
		docs := c.ask(words("COMMAND DOCS"))
		const n = 400
		c.send(strings.Repeat(words("COMMAND DOCS"), n))
		time.Sleep(time.Second)
		for range n {
			c.expect(docs)
		}
	})
}

// Many small requests take no more memory than one, though one of them is
// always cut in two by the end of the buffer.
func TestPipelineKeepsSmallBuffer(t *testing.T) {
	inBubble(t, commands.Config{}, func(t *testing.T, f *fixture) {
		c, watch := f.pipe(), f.pipe()
		const n = 10_000
		all := strings.Repeat(words("EXISTS key"), n)
		sent := c.sending(all[:len(all)-1])
		c.expect(strings.Repeat(":0\r\n", n-1))
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if got := buffers(watch); got != 0 {
			t.Errorf("%d bytes are held for half a small request", got)
		}
	})
}

func TestUnsentRepliesExceedMemory(t *testing.T) {
	inBubble(t, commands.Config{MaxBuffers: 100 << 10}, func(t *testing.T, f *fixture) {
		c, watch := f.pipe(), f.pipe()
		docs := c.ask(words("COMMAND DOCS"))
		const n = 20
		c.send(strings.Repeat(words("COMMAND DOCS"), n))
		time.Sleep(time.Second)
		if got := c.rest(); got != "" {
			t.Errorf("the client got %d bytes, want the end: %d replies of %d were to wait", len(got), n, len(docs))
		}
		synctest.Wait()
		if got := buffers(watch); got != 0 {
			t.Errorf("%d bytes are still held", got)
		}
	})
}

// sentAll is a connection whose other side has sent all that it will.
type sentAll struct {
	net.Conn
	requests io.Reader
}

func (c sentAll) Read(b []byte) (int, error) { return c.requests.Read(b) }

// A client may say that it has sent all before it reads, as nc does.
func TestRepliesAfterTheLastRequest(t *testing.T) {
	inBubble(t, commands.Config{}, func(t *testing.T, f *fixture) {
		docs := f.pipe().ask(words("COMMAND DOCS"))
		const n = 5
		ours, theirs := net.Pipe()
		f.accept(sentAll{theirs, strings.NewReader(strings.Repeat(words("COMMAND DOCS"), n))})
		time.Sleep(time.Second)
		if got := f.wire(ours).rest(); got != strings.Repeat(docs, n) {
			t.Errorf("the client got %d bytes, want %d", len(got), n*len(docs))
		}
	})
}

func TestReaderTakesNothing(t *testing.T) {
	inBubble(t, commands.Config{}, func(t *testing.T, f *fixture) {
		c, watch := f.pipe(), f.pipe()
		began := time.Now()
		echo := request("ECHO", strings.Repeat("x", 1<<19))
		// The server stops reading while too much is unsent, and in the end
		// closes the connection. Only then does this fail.
		for {
			if _, err := io.WriteString(c, echo); err != nil {
				if !errors.Is(err, io.ErrClosedPipe) {
					t.Error(err)
				}
				break
			}
		}
		if took := time.Since(began).Truncate(time.Second); took != time.Minute {
			t.Errorf("it was closed after %v, want %v", took, time.Minute)
		}
		synctest.Wait()
		if got := buffers(watch); got != 0 {
			t.Errorf("%d bytes are still held", got)
		}
	})
}

func TestReaderTakesLittle(t *testing.T) {
	inBubble(t, commands.Config{}, func(t *testing.T, f *fixture) {
		c := f.pipe()
		payload := strings.Repeat("x", 1<<19)
		reply := fmt.Sprintf("$%d\r\n%s\r\n", len(payload), payload)
		sent := c.sending(strings.Repeat(request("ECHO", payload), 4))
		want := strings.Repeat(reply, 4)
		for range 100 {
			time.Sleep(59 * time.Second)
			b := make([]byte, 1)
			if _, err := c.Read(b); err != nil || b[0] != want[0] {
				t.Fatalf("read %q, %v, want %q", b, err, want[0])
			}
			want = want[1:]
		}
		c.expect(want)
		if err := <-sent; err != nil {
			t.Error(err)
		}
	})
}

func TestHalfRequests(t *testing.T) {
	inBubble(t, commands.Config{}, func(t *testing.T, f *fixture) {
		idle := f.pipe()
		for _, half := range []string{"*1\r\n$4\r\nPI", "PING", "*", "*2\r\n$4\r\nECHO\r\n"} {
			c := f.pipe()
			began := time.Now()
			c.send(half)
			if got := c.rest(); got != "" {
				t.Errorf("%q: %q, want the end", half, got)
			}
			if took := time.Since(began); took != time.Minute {
				t.Errorf("%q: it was closed after %v, want %v", half, took, time.Minute)
			}
		}
		c := f.pipe()
		for _, b := range []byte(words("PING")) {
			time.Sleep(59 * time.Second)
			c.send(string(b))
		}
		c.expect("+PONG\r\n")
		time.Sleep(24 * time.Hour)
		c.ask(words("PING")) // nothing was half
		idle.ask(words("PING"))
	})
}

func TestIdleTimeout(t *testing.T) {
	inBubble(t, commands.Config{IdleTimeout: time.Hour}, func(t *testing.T, f *fixture) {
		c := f.pipe()
		began := time.Now()
		for range 3 {
			time.Sleep(59 * time.Minute)
			c.ask(words("PING"))
		}
		if got := c.rest(); got != "" {
			t.Errorf("%q, want the end", got)
		}
		if took := time.Since(began); took != 3*59*time.Minute+time.Hour {
			t.Errorf("it was closed after %v, want %v", took, 3*59*time.Minute+time.Hour)
		}
	})
}

// A long command that is refused holds no place among the large runs.
func TestRefusedCommandIsNoLargeRun(t *testing.T) {
	c := serve(t, commands.Config{}).dial()
	keys := slices.Repeat([]string{"key"}, 100)
	refused := request(append([]string{"DEL", ""}, keys...)...)
	for range 100 {
		if got, want := c.ask(refused), "-ERR key is not 1 to 4096 bytes long\r\n"; got != want {
			t.Fatalf("DEL with an empty key: %q, want %q", got, want)
		}
		// The run that the connection had is not to be what the next one gets.
		runtime.GC()
		runtime.GC()
	}
	if got, want := c.ask(request(append([]string{"DEL"}, keys...)...)), ":0\r\n"; got != want {
		t.Errorf("DEL: %q, want %q", got, want)
	}
}
