package commands

import (
	"encoding/binary"
	"io"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gabiondb/gabion/commands/internal/resp"
	"github.com/gabiondb/gabion/engine"
)

const (
	// maxTurn is how many connections a turn is for, at most.
	maxTurn = 128

	// lateness is how long a poller waits for the engine before another takes its
	// place.
	lateness = time.Millisecond

	// maxLate is how many turns may be late before connections get goroutines.
	maxLate = 16

	// idleLooks is how many times in IdleTimeout idle connections are looked for.
	idleLooks = 8

	// processorsPerPoller is a guess: a poller alone keeps about two busy with
	// what the engine and the kernel do for it.
	processorsPerPoller = 4
)

// poller serves the connections whose clients ask for one thing at a time, and
// wait for the answer. They need no goroutine of their own, which would cost more
// than all else: the poller asks the kernel which of them have sent something,
// reads what it is, has the engine decide all of it, and answers, in turns. What
// is not a single small request for the engine it hands to a goroutine of the
// connection, as conn.serve is for all.
//
// A turn that takes long, since the disk does, must not keep those waiting who
// need no disk. So they are answered first, and after lateness another goroutine
// takes the place of the one that waits, which ends when it has answered.
type poller struct {
	srv    *Server
	epoll  int // reports the sockets that can be read
	signal int // an eventfd that is among them

	mu      sync.Mutex    // guards what follows
	waiting map[int]*conn // by descriptor
	closed  bool

	lateTurns atomic.Int32
	nextLook  time.Duration // the leader's alone: for idle connections, as time since the server's start
}

func newPoller(s *Server) (*poller, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	signal, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(epoll)
		return nil, os.NewSyscallError("eventfd", err)
	}
	p := &poller{srv: s, epoll: epoll, signal: signal, waiting: make(map[int]*conn)}
	if err := p.register(signal); err != nil {
		unix.Close(signal)
		unix.Close(epoll)
		return nil, err
	}
	return p, nil
}

func (p *poller) register(fd int) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &event))
}

// wake has the poller look whether the server is closing.
func (p *poller) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	unix.Write(p.signal, one[:])
}

// add has the poller wait for c, and tells whether it does.
func (p *poller) add(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	fd := int(c.nc.(descriptor))
	if p.closed || p.register(fd) != nil {
		return false
	}
	p.waiting[fd] = c
	return true
}

// remove has the poller no longer wait for c.
func (p *poller) remove(c *conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if fd := int(c.nc.(descriptor)); p.waiting[fd] == c {
		delete(p.waiting, fd)
		unix.EpollCtl(p.epoll, unix.EPOLL_CTL_DEL, fd, nil)
	}
}

// turn is what a poller has in hand: a request of each of some connections.
type turn struct {
	poller   *poller
	events   [maxTurn]unix.EpollEvent
	ready    []*conn
	received [maxTurn][maxPolled]byte
	parser   resp.Parser
	run
	askers []asker
	owners []int                         // of each operation: the index of its asker
	told   func(i int, r *engine.Result) // is t.tell, once and for all

	timer *time.Timer   // runs replace
	over  chan struct{} // replace is over

	mu   sync.Mutex // guards what follows, and who has the connections of askers
	late bool       // another goroutine took the place of the turn's
}

// asker is a connection whose request is carried out.
type asker struct {
	conn        *conn // nil once it is answered
	call        call
	first, left int // its operations: the index of the first, and how many have no result yet
}

// turns keeps the memory of turns that are over.
var turns sync.Pool

func newTurn() *turn {
	t := &turn{over: make(chan struct{}, 1)}
	t.told = t.tell
	t.timer = time.AfterFunc(time.Hour, t.replace)
	t.timer.Stop()
	return t
}

// lead takes turns until another takes its place, or the server is closing.
func (p *poller) lead() {
	defer p.srv.conns.Done()
	t, _ := turns.Get().(*turn)
	if t == nil {
		t = newTurn()
	}
	t.poller, t.late = p, false
	for !t.late && t.gather() {
		t.settle()
	}
	if t.late {
		p.lateTurns.Add(-1)
	}
	t.poller = nil
	turns.Put(t)
}

// gather waits until there are requests, and takes them. It returns false when
// the poller was closed.
func (t *turn) gather() bool {
	p := t.poller
	n, err := unix.EpollWait(p.epoll, t.events[:], p.timeout())
	if err != nil && err != unix.EINTR {
		panic(os.NewSyscallError("epoll_wait", err)) // it has no other error
	}
	t.ready = t.ready[:0]
	closing := false
	p.mu.Lock()
	for _, event := range t.events[:max(n, 0)] {
		if c := p.waiting[int(event.Fd)]; c != nil {
			t.ready = append(t.ready, c)
		}
		closing = closing || int(event.Fd) == p.signal
	}
	p.mu.Unlock()
	if closing {
		clear(t.ready)
		p.close()
		return false
	}
	now := p.srv.uptime()
	for i, c := range t.ready {
		t.receive(c, t.received[i][:], now)
	}
	clear(t.ready)
	if err == nil && n < len(t.events) { // nobody else has sent anything
		p.dropIdle(now)
	}
	return true
}

// receive reads into b what c has sent, and takes it into the turn or hands it
// over.
func (t *turn) receive(c *conn, b []byte, now time.Duration) {
	p := t.poller
	defer p.catch(c)
	n, err := c.nc.Read(b)
	switch {
	case err == unix.EAGAIN: // epoll may report what is not there
	case err != nil:
		p.drop(c, err)
	default:
		p.srv.stats.received.Add(uint64(n))
		c.active.Store(int64(now))
		if !t.take(c, b[:n]) {
			p.remove(c)
			p.srv.resume(c, b[:n], nil)
		}
	}
}

// take takes b into the turn if it is just one request, and one that is for a
// poller. Otherwise it changes nothing.
func (t *turn) take(c *conn, b []byte) bool {
	if b[0] != '*' || t.poller.lateTurns.Load() >= maxLate {
		return false
	}
	args, n, err := t.parser.Next(b)
	if args == nil || err != nil || n < len(b) {
		t.parser = resp.Parser{}
		return false
	}
	command := c.srv.table.get(args[0], nil)
	if command == nil || command.plan == nil || !command.takes(len(args)) {
		return false
	}
	ops, err := command.plan(t.ops, args)
	if err != nil || len(ops)-len(t.ops) > maxPolledOps {
		return false
	}
	c.last.Store(command)
	command.calls.Add(1)
	n = len(ops) - len(t.ops)
	for range n {
		t.owners = append(t.owners, len(t.askers))
	}
	t.askers = append(t.askers, asker{c, call{command, n}, len(t.ops), n})
	t.ops = ops
	return true
}

// settle has the engine carry out what was asked for, and answers.
func (t *turn) settle() {
	if len(t.askers) == 0 {
		return
	}
	t.timer.Reset(lateness)
	t.decide()
	if !t.timer.Stop() {
		<-t.over
	}
	for _, a := range t.askers {
		if a.conn != nil { // there was a panic, and nobody knows what was carried out
			t.poller.drop(a.conn, nil)
		}
	}
	clear(t.askers)
	clear(t.ops)
	t.askers, t.owners, t.ops = t.askers[:0], t.owners[:0], t.ops[:0]
}

// decide has the engine carry out the operations. A panic there costs all
// connections that are not answered yet.
func (t *turn) decide() {
	defer func() {
		if v := recover(); v != nil {
			t.poller.srv.panicked("all who are not answered", v)
		}
	}()
	t.results = slices.Grow(t.results[:0], len(t.ops))[:len(t.ops)]
	t.poller.srv.limiter.DoEach(t.ops, t.results[:0], t.told)
}

// tell answers who has asked for the operation, if he has all results now.
func (t *turn) tell(i int, _ *engine.Result) {
	a := &t.askers[t.owners[i]]
	if a.left--; a.left == 0 {
		t.answer(a)
	}
}

// answer answers a. From then on the connection is no longer the turn's.
func (t *turn) answer(a *asker) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p, c := t.poller, a.conn
	a.conn = nil
	defer p.catch(c)
	t.out = t.out[:0]
	c.run = &t.run
	c.reply(a.call, t.results[a.first:a.first+a.call.ops])
	c.run = nil
	n, err := c.nc.Write(t.out)
	p.srv.stats.sent.Add(uint64(n))
	switch {
	case err != nil && err != unix.EAGAIN:
		p.drop(c, err)
	case n < len(t.out):
		p.remove(c)
		p.srv.resume(c, nil, t.out[n:])
	case t.late:
		c.active.Store(int64(p.srv.uptime())) // it was not idle
		if !p.add(c) {
			p.srv.resume(c, nil, nil)
		}
	}
}

// replace has another goroutine, this one, take the place of that of t.
func (t *turn) replace() {
	p := t.poller
	p.srv.conns.Add(1)
	p.lateTurns.Add(1)
	t.mu.Lock()
	t.late = true
	for i := range t.askers {
		if c := t.askers[i].conn; c != nil {
			p.remove(c) // or its socket would be reported to this goroutine
		}
	}
	t.mu.Unlock()
	t.over <- struct{}{}
	p.lead()
}

// catch, deferred, ends c if there is a panic.
func (p *poller) catch(c *conn) {
	if v := recover(); v != nil {
		p.srv.panicked(c.addr, v)
		p.drop(c, nil)
	}
}

// drop ends c, on account of err if it is not nil.
func (p *poller) drop(c *conn, err error) {
	p.remove(c)
	if err == nil || err == io.EOF {
		p.srv.end(c)
		return
	}
	go p.srv.endWith(c, err)
}

// timeout is how many milliseconds to wait for requests at most, or -1.
func (p *poller) timeout() int {
	timeout := p.srv.cfg.IdleTimeout
	if timeout <= 0 {
		return -1
	}
	return int(min(max(timeout/idleLooks, time.Millisecond), time.Minute) / time.Millisecond)
}

// dropIdle ends the connections that have been silent for too long.
func (p *poller) dropIdle(now time.Duration) {
	timeout := p.srv.cfg.IdleTimeout
	if timeout <= 0 || now < p.nextLook {
		return
	}
	p.nextLook = now + timeout/idleLooks
	var idle []*conn
	p.mu.Lock()
	for _, c := range p.waiting {
		if now-time.Duration(c.active.Load()) >= timeout {
			idle = append(idle, c)
		}
	}
	p.mu.Unlock()
	for _, c := range idle {
		p.drop(c, os.ErrDeadlineExceeded)
	}
}

// close closes the poller, and the connections that have nothing to do.
func (p *poller) close() {
	p.mu.Lock()
	p.closed = true
	waiting := p.waiting
	p.waiting = nil
	unix.Close(p.epoll)
	unix.Close(p.signal)
	p.mu.Unlock()
	for fd, c := range waiting {
		if unread, err := unix.IoctlGetInt(fd, unix.TIOCINQ); err == nil && unread > 0 {
			p.srv.resume(c, nil, nil) // closing now would take back what it has not read
			continue
		}
		p.srv.end(c)
	}
}

// poll leaves c to a poller, and tells whether it did.
func (s *Server) poll(c *conn) bool {
	d, ok := detached(c.nc)
	if !ok {
		return false
	}
	s.mu.Lock()
	p := s.pollerFor(c)
	if p == nil {
		s.mu.Unlock()
		d.Close()
		return false
	}
	own := c.nc
	c.use(d)
	s.mu.Unlock()
	own.Close()
	c.small, c.buf = nil, nil
	c.active.Store(int64(s.uptime()))
	if !p.add(c) {
		s.resume(c, nil, nil)
	}
	return true
}

// pollerFor returns the poller for c, or nil if there is none. s.mu is held.
func (s *Server) pollerFor(c *conn) *poller {
	if s.closing {
		return nil
	}
	if len(s.pollers) == 0 {
		s.startPollers()
	}
	if len(s.pollers) == 0 {
		return nil
	}
	return s.pollers[c.id%int64(len(s.pollers))]
}

// startPollers starts as many as there should be, or may be. s.mu is held.
func (s *Server) startPollers() {
	for range max(1, runtime.GOMAXPROCS(0)/processorsPerPoller) {
		p, err := newPoller(s)
		if err != nil {
			return // most likely too many files are open
		}
		s.pollers = append(s.pollers, p)
		s.conns.Add(1)
		go p.lead()
	}
}

// resume has a goroutine serve c, which a poller has left: what was received is
// still to be carried out, and what is unsent to be sent.
func (s *Server) resume(c *conn, received, unsent []byte) {
	s.mu.Lock()
	c.use(attached(c.nc.(descriptor), c.addr))
	s.mu.Unlock()
	c.pollable = 0
	c.makeBuffer()
	c.start, c.end = 0, copy(c.buf, received)
	if len(unsent) > 0 {
		if err := c.sender.leave(unsent); err != nil {
			go s.endWith(c, err)
			return
		}
	}
	go s.serve(c)
}

// endWith ends c on account of err. A log may keep its writer waiting, so no
// poller calls it.
func (s *Server) endWith(c *conn, err error) {
	c.logEnd(err)
	s.end(c)
}
