package commands

import (
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/gabiondb/gabion/commands/internal/resp"
)

const (
	// smallBuffer is the size, in bytes, of the buffer that a connection has
	// for its requests while none of them is large.
	smallBuffer = 16 << 10

	// lingering and lingeringBytes bound how long a client is listened to after
	// the last reply, and for how much. A socket that is closed while there is
	// something to read takes back the replies that the client has not read.
	lingering      = time.Second
	lingeringBytes = 1 << 20

	// maxPolled is the size, in bytes, and maxPolledOps the number of operations, of
	// the largest request that is for a poller.
	maxPolled    = 2 << 10
	maxPolledOps = 8

	// enoughPolled is how many such requests a connection has to have sent, one by
	// one, before a poller gets it: handing it over, and back, takes time.
	enoughPolled = 8
)

// stream is what a connection needs of its socket.
type stream interface {
	io.ReadWriteCloser
	SetReadDeadline(time.Time) error
	SetWriteDeadline(time.Time) error
}

// conn is a connection. Its goroutine reads requests, has the session carry out
// all that are complete, and sends the replies, in turns. While its client asks
// for one small thing at a time, a poller may have it instead.
type conn struct {
	*session
	nc       stream // Server.mu guards that it changes
	sender   *sender
	stopping atomic.Bool

	parser     resp.Parser
	pollable   int // how many requests in a row have come one by one, each for a poller
	small      []byte
	buf        []byte // small, or one that is larger
	start, end int    // buf[start:end] was received, and is still to be carried out
	deadline   bool   // whether reading has one
}

func newConn(s *Server, nc net.Conn) *conn {
	return &conn{
		session: s.newSession(nc.RemoteAddr().String(), nc.LocalAddr().String()),
		nc:      nc,
		sender:  newSender(s, nc),
	}
}

// use has nc take the place of what was the connection's.
func (c *conn) use(nc stream) { c.nc, c.sender.nc = nc, nc }

// stop has the connection end once the requests that were read are answered.
// Server.mu is held. A poller has to be woken besides.
func (c *conn) stop() {
	c.stopping.Store(true)
	c.nc.SetReadDeadline(time.Unix(1, 0))
}

// abort closes the connection as it is. Server.mu is held.
func (c *conn) abort() {
	if nc, ok := c.nc.(interface{ abort() }); ok {
		nc.abort()
		return
	}
	c.nc.Close()
}

// close ends the connection, and all that belongs to it.
func (c *conn) close() {
	c.nc.Close()
	c.sender.wait()
	c.shrink() // it may have met a panic
	c.dropBuffer()
}

// makeBuffer makes the buffer that serve needs.
func (c *conn) makeBuffer() {
	c.small = make([]byte, smallBuffer)
	c.buf = c.small
}

// dropBuffer goes back to the small buffer, if there is a larger one.
func (c *conn) dropBuffer() {
	c.srv.release(len(c.buf) - len(c.small))
	c.buf, c.start, c.end = c.small, 0, 0
}

// serve serves the connection until it is to be closed, or a poller serves it.
func (c *conn) serve() (polled bool) {
	for {
		if err := c.answer(); err != nil {
			c.logEnd(err)
			return false
		}
		if c.closing || c.stopping.Load() {
			break
		}
		if c.pollable >= enoughPolled && c.start == c.end && c.sender.idle() && c.srv.poll(c) {
			return true
		}
		if err := c.read(); err != nil {
			if err == io.EOF || c.stopping.Load() {
				c.sender.wait() // nothing has come after the last request: no need to linger
			}
			c.logEnd(err)
			return false
		}
	}
	c.sender.wait()
	c.dropBuffer()
	c.linger()
	return false
}

func (c *conn) logEnd(err error) {
	if err != io.EOF && !c.stopping.Load() {
		c.srv.log.Debug("closed a connection", "client", c.addr, "error", err)
	}
}

// answer carries out all requests that are complete and sends the replies.
func (c *conn) answer() error {
	c.run = runs.Get().(*run)
	for more := true; more && !c.closing; {
		more = c.carryOut()
		if err := c.sender.send(c.out); err != nil {
			return err
		}
		c.out = c.out[:0]
	}
	c.run.release()
	c.run = nil
	return nil
}

// carryOut carries out the requests that are complete, up to the bounds of a
// run, and tells whether more of them may be there. It leaves room in buf.
func (c *conn) carryOut() (more bool) {
	requests, received := 0, c.buf[c.start:c.end]
	for !c.closing {
		if len(c.out) >= maxReplies {
			more = true
			break
		}
		c.parser.Strict = !c.authed
		args, n, err := c.parser.Next(c.buf[c.start:c.end])
		c.start += n
		if err != nil {
			c.srv.stats.protocolErrors.Add(1)
			c.closing = true
			c.fail(nil, err)
			return false
		}
		if args == nil {
			break
		}
		requests++
		c.do(args)
	}
	switch {
	case requests == 1 && len(c.calls) == 1 && len(c.ops) <= maxPolledOps && len(received) <= maxPolled && received[0] == '*':
		c.pollable++
	case requests > 0:
		c.pollable = 0
	}
	c.settle()
	if !more && !c.makeRoom() {
		c.closing = true
		c.fail(nil, errMemory)
	}
	return more
}

// makeRoom makes room in buf for more to be received, and tells whether there
// is memory for that.
func (c *conn) makeRoom() bool {
	rest := c.buf[c.start:c.end]
	switch {
	case len(rest) == 0:
		c.dropBuffer()
		return true
	case c.end < len(c.buf):
		return true
	case len(rest) > len(c.buf)/2 && len(c.buf) < resp.MaxRequest:
		if !c.srv.reserve(len(c.buf)) {
			return false
		}
		c.buf = make([]byte, 2*len(c.buf))
	}
	c.start, c.end = 0, copy(c.buf, rest)
	return true
}

// read waits for something to be received.
func (c *conn) read() error {
	timeout := c.srv.cfg.IdleTimeout
	if c.start < c.end {
		timeout = c.srv.cfg.WriteTimeout // half a request is there
	}
	var err error
	if timeout > 0 {
		err = c.nc.SetReadDeadline(time.Now().Add(timeout))
	} else if c.deadline {
		err = c.nc.SetReadDeadline(time.Time{})
	}
	c.deadline = timeout > 0
	if err == nil && c.stopping.Load() { // stop may have set its deadline before ours
		err = os.ErrDeadlineExceeded
	}
	if err != nil {
		return err
	}
	if c.end == len(c.buf) {
		return io.ErrShortBuffer // the parser should have refused the request
	}
	n, err := c.nc.Read(c.buf[c.end:])
	c.end += n
	c.srv.stats.received.Add(uint64(n))
	c.active.Store(int64(c.srv.uptime()))
	if n > 0 {
		return nil // an error will come again
	}
	return err
}

// linger tells the client that nothing follows, and waits until it has closed
// its side.
func (c *conn) linger() {
	half, ok := c.nc.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	c.nc.SetReadDeadline(time.Now().Add(lingering))
	io.CopyN(io.Discard, c.nc, lingeringBytes)
}
