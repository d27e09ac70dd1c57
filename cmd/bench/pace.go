package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"
)

// pace sends so many charges a second, at even intervals and by one connection
// after the other, whether or not answers have come. It returns the times, in
// microseconds, from when a charge was due to its answer: so a server that
// stalls is charged for all that it keeps waiting. Those of its first moments,
// when the connections are new, do not count.
func (w *wire) pace(rate float64, length time.Duration) (*hdrhistogram.Histogram, error) {
	const unsettled = 250 * time.Millisecond
	early := int(rate * unsettled.Seconds())
	n := early + int(rate*length.Seconds())
	ctx, cancel := context.WithTimeout(w.ctx, unsettled+length+time.Minute)
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)

	conns := make([]*charger, wireConnections)
	for i := range conns {
		nc, err := (&net.Dialer{}).DialContext(ctx, "tcp", w.addr)
		if err != nil {
			return nil, err
		}
		defer nc.Close()
		conns[i] = newCharger(nc, w.args, 1, uint64(i))
	}
	// When it fails anywhere, all reading and writing ends.
	stop := context.AfterFunc(ctx, func() {
		for _, c := range conns {
			c.nc.Close()
		}
	})
	defer stop()

	start := time.Now().Add(10 * time.Millisecond)
	due := func(i int) time.Time { return start.Add(time.Duration(float64(i) / rate * float64(time.Second))) }
	var readers sync.WaitGroup
	for first, c := range conns {
		readers.Go(func() {
			for i := first; i < n; i += len(conns) {
				if err := c.receive(); err != nil {
					fail(err)
					return
				}
				took := time.Since(due(i))
				if i < early {
					continue
				}
				if err := c.times.RecordValue(took.Microseconds()); err != nil {
					fail(err)
					return
				}
			}
		})
	}
	err := sendPaced(ctx, n, due, func(i int) error { return conns[i%len(conns)].send() })
	if err != nil {
		fail(err)
	}
	readers.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	w.sent += int64(n)
	times := conns[0].times
	for _, c := range conns[1:] {
		if dropped := times.Merge(c.times); dropped > 0 {
			return nil, fmt.Errorf("%d times got lost", dropped)
		}
	}
	return times, nil
}

// sendPaced calls send when it is due, n times.
func sendPaced(ctx context.Context, n int, due func(i int) time.Time, send func(i int) error) error {
	// The sleep of Go is a millisecond or longer when nothing else happens, the
	// kernel's is short.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for i := range n {
		for {
			wait := time.Until(due(i))
			if wait <= 0 {
				break
			}
			if err := ctx.Err(); err != nil {
				return err
			}
			timeout := unix.NsecToTimeval(min(wait, 100*time.Millisecond).Nanoseconds())
			unix.Select(0, nil, nil, nil, &timeout) // an interrupt only ends it early
		}
		if err := send(i); err != nil {
			return err
		}
	}
	return nil
}

// A charger sends charges of keys drawn at random, over and over.
type charger struct {
	nc     net.Conn
	r      *bufio.Reader
	rng    *rand.Rand
	out    []byte   // a pipeline of charges
	digits [][]byte // the numbers of the keys in it
	times  *hdrhistogram.Histogram
}

func newCharger(nc net.Conn, args []string, pipeline int, seed uint64) *charger {
	const digits = "000000000000"
	c := &charger{
		nc: nc, r: bufio.NewReader(nc), rng: rand.New(rand.NewPCG(seed, 0)),
		times: hdrhistogram.New(1, time.Hour.Microseconds(), 3),
	}
	command := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, arg := range args {
		arg = strings.ReplaceAll(arg, randomKey, "key:"+digits)
		command = fmt.Appendf(command, "$%d\r\n%s\r\n", len(arg), arg)
	}
	c.out = bytes.Repeat(command, pipeline)
	at := bytes.Index(command, []byte("key:"+digits)) + len("key:")
	for ; at < len(c.out); at += len(command) {
		c.digits = append(c.digits, c.out[at:at+len(digits)])
	}
	return c
}

func (c *charger) send() error {
	for _, digits := range c.digits {
		key := c.rng.IntN(wireKeys)
		for i := len(digits) - 1; i >= 0; i-- {
			digits[i] = '0' + byte(key%10)
			key /= 10
		}
	}
	_, err := c.nc.Write(c.out)
	return err
}

// charge sends a pipeline and waits for its answers.
func (c *charger) charge() error {
	if err := c.send(); err != nil {
		return err
	}
	for range c.digits {
		if err := c.receive(); err != nil {
			return err
		}
	}
	return nil
}

// receive reads the answer to a charge, and checks that it is allowed.
func (c *charger) receive() error {
	head, err := c.line()
	if err != nil {
		return err
	}
	if string(head) != "*5" {
		return fmt.Errorf("a reply begins with %q", head)
	}
	var row [5]int64
	for i := range row {
		line, err := c.line()
		if err != nil {
			return err
		}
		// The compiler makes no string of it.
		if len(line) == 0 || line[0] != ':' {
			return fmt.Errorf("a reply has %q where an integer should be", line)
		}
		if row[i], err = strconv.ParseInt(string(line[1:]), 10, 64); err != nil {
			return err
		}
	}
	if row[0] != 0 || row[1] != wireLimit || row[2] < 0 || row[2] >= wireLimit || row[3] != -1 || row[4] <= 0 {
		return fmt.Errorf("a charge that is to be allowed is answered %v", row)
	}
	return nil
}

func (c *charger) line() ([]byte, error) {
	line, err := c.r.ReadSlice('\n')
	return bytes.TrimSuffix(line, []byte("\r\n")), err
}
