package engine

import "sync/atomic"

// calls counts the calls under way, so that closing can wait for them: Pebble
// panics when it is used after it was closed.
type calls struct {
	n    atomic.Int64  // the calls under way, plus closing once that has begun
	idle chan struct{} // gets a token when the last is over and closing has begun
}

// closing makes n negative, whatever number of calls is under way.
const closing = -1 << 62

// enter begins a call, unless close has been called: then it returns false.
func (c *calls) enter() bool {
	if c.n.Add(1) > 0 {
		return true
	}
	c.exit()
	return false
}

// exit ends a call.
func (c *calls) exit() {
	if c.n.Add(-1) == closing {
		signal(c.idle)
	}
}

// close lets no more calls begin. It tells whether some are under way, after the
// last of which idle gets its token, and whether it was called for the first
// time.
func (c *calls) close() (underWay, first bool) {
	for {
		n := c.n.Load()
		if n < 0 {
			return false, false
		}
		if c.n.CompareAndSwap(n, n+closing) {
			return n > 0, true
		}
	}
}
