package commands

import (
	"errors"
	"os"
	"sync"
	"time"
)

const (
	// maxUnsent is how many bytes of replies may wait for a client. While there
	// are more, none of its requests is read.
	maxUnsent = 1 << 20

	// patience is how long the goroutine of a connection tries to send replies
	// before it leaves what remains to another, and reads on.
	patience = 10 * time.Millisecond

	// sendStep is how many bytes are sent at once by that other goroutine.
	sendStep = 64 << 10
)

// sender sends the replies of a connection. As long as the client takes them,
// the caller writes them itself. Once it doesn't, they are copied, and a
// goroutine that lives until all are sent takes over: so a client may send a
// pipeline as a whole before it begins to read the replies.
type sender struct {
	srv *Server
	nc  stream

	mu      sync.Mutex // guards what follows
	changed sync.Cond  // what follows has changed
	waiting []byte     // what the goroutine is to send next
	unsent  int        // bytes: waiting, and what it has in hand
	running bool       // whether it is there
	err     error      // that it ended with
}

func newSender(s *Server, nc stream) *sender {
	w := &sender{srv: s, nc: nc}
	w.changed.L = &w.mu
	return w
}

// send sends b, or sees to it that it is sent. It returns when not too much is
// waiting, with the error of an earlier send if there was one.
func (w *sender) send(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if w.idle() {
		if err := w.nc.SetWriteDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		n, err := w.nc.Write(b)
		w.srv.stats.sent.Add(uint64(n))
		if err == nil || !isTimeout(err) {
			return err
		}
		b = b[n:]
	}
	return w.leave(b)
}

// idle tells whether nothing waits to be sent.
func (w *sender) idle() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.running
}

// leave leaves b to the goroutine.
func (w *sender) leave(b []byte) error {
	if !w.srv.reserve(len(b)) {
		return errMemory
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting = append(w.waiting, b...)
	w.unsent += len(b)
	if !w.running && w.err == nil {
		w.running = true
		go w.work()
	}
	for w.unsent > maxUnsent && w.running {
		w.changed.Wait()
	}
	return w.err
}

// wait returns when everything is sent, or never will be.
func (w *sender) wait() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.running {
		w.changed.Wait()
	}
	w.srv.release(w.unsent)
	w.unsent, w.waiting = 0, nil
}

// work sends what is waiting, until there is nothing, or the client has taken
// nothing for too long.
func (w *sender) work() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.err == nil && len(w.waiting) > 0 {
		b := w.waiting
		w.waiting = nil
		for w.err == nil && len(b) > 0 {
			w.mu.Unlock()
			n, err := w.step(b[:min(len(b), sendStep)])
			w.mu.Lock()
			b = b[n:]
			w.unsent -= n
			w.err = err
			w.changed.Broadcast()
		}
	}
	w.running = false
	w.changed.Broadcast()
	if w.err != nil {
		w.nc.Close() // its own goroutine may be waiting for requests
	}
}

// step sends b or the beginning of it, and returns how much.
func (w *sender) step(b []byte) (int, error) {
	if err := w.nc.SetWriteDeadline(time.Now().Add(w.srv.cfg.WriteTimeout)); err != nil {
		return 0, err
	}
	n, err := w.nc.Write(b)
	w.srv.stats.sent.Add(uint64(n))
	w.srv.release(n)
	if n > 0 && isTimeout(err) {
		err = nil // it takes some, if slowly
	}
	return n, err
}

func isTimeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
