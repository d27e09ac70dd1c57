package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gabiondb/gabion/commands"
)

// The load charges events of which one in ten minutes leaks back, so that for
// as long as a test runs a key tells how many events it was ever charged.
const (
	loadBurst  = 10_000_000
	loadCount  = 1
	loadPeriod = 600
	loadKeys   = 16
)

const dayMS = "86400000"

// maxRequests is how many requests a load sends; then it repeats the last ones.
const maxRequests = 1500

// A load charges a server from several connections, and remembers what it has
// sent and what was answered.
type load struct {
	t       *testing.T
	quota   string       // the key of the requests
	answers atomic.Int64 // in all

	// Answers that say that the storage has failed. They are errors unless
	// mayFail is set.
	failures atomic.Int64
	mayFail  bool

	copying bool // whether to have the store copied, over and over

	mu       sync.Mutex // guards what follows
	keys     [loadKeys]loadKey
	requests []*request
	sent     int64 // events to the list
	acked    int64 // those whose answer has come
	copies   []storeCopy
}

// storeCopy is a copy of the store that a server was told to make.
type storeCopy struct {
	acked [loadKeys]int64 // the charges that it must have
	made  bool            // the server says so
}

// loadKey is what a key was charged.
type loadKey struct {
	sent int64
	acks []time.Time // when the answers came
}

// A request is one that several connections send, and what they were answered.
type request struct {
	id, cost string
	answers  []any
}

// run charges the server at addr until every connection has broken. It calls
// answered after each step with how many answers there have been.
func (l *load) run(addr string, rng *rand.Rand, answered func(n int64)) {
	var wg sync.WaitGroup
	start := func(step func(*rand.Rand) int64) {
		rng := rand.New(rand.NewPCG(rng.Uint64(), 0))
		wg.Go(func() {
			for n := step(rng); n > 0; n = step(rng) {
				answered(l.answers.Add(n))
			}
		})
	}
	// A server that can't be reached has gone already.
	for range 4 {
		if nc, err := net.Dial("tcp", addr); err == nil {
			defer nc.Close()
			c := &conn{nc, bufio.NewReader(nc)}
			start(func(rng *rand.Rand) int64 { return l.charge(c, rng) })
		}
	}
	sends := []func(*commands.Client, *rand.Rand) int64{l.take, l.take, l.take, l.record, l.expire}
	if l.copying {
		sends = append(sends, l.copy)
	}
	for _, send := range sends {
		if c, err := commands.Dial(l.t.Context(), addr, commands.ClientConfig{Timeout: time.Minute}); err == nil {
			defer c.Close()
			start(func(rng *rand.Rand) int64 { return send(c, rng) })
		}
	}
	wg.Wait()
}

// charge sends a pipeline of charges. It returns how many were answered, 0 when
// the connection has broken, as the other steps do.
func (l *load) charge(c *conn, rng *rand.Rand) int64 {
	keys := make([]int, 1+rng.IntN(16))
	var pipeline []byte
	for i := range keys {
		keys[i] = rng.IntN(loadKeys)
		pipeline = loadCommand(pipeline, "CL.THROTTLE", keys[i], "1")
	}
	l.mu.Lock()
	for _, key := range keys {
		l.keys[key].sent++
	}
	l.mu.Unlock()
	if _, err := c.Write(pipeline); err != nil {
		return 0
	}
	for _, key := range keys {
		row, err := c.readRow()
		if err != nil {
			l.refused(err)
			return 0
		}
		if row[0] != 0 {
			l.t.Errorf("key:%d was denied: %v", key, row)
		}
		l.mu.Lock()
		l.keys[key].acks = append(l.keys[key].acks, time.Now())
		l.mu.Unlock()
	}
	return int64(len(keys))
}

func loadCommand(b []byte, name string, key int, quantity string) []byte {
	return appendCommand(b, name, fmt.Sprintf("key:%d", key),
		fmt.Sprint(loadBurst), fmt.Sprint(loadCount), fmt.Sprint(loadPeriod), quantity)
}

// take sends a request: a new one, or one of the last, which another connection
// may be sending as well.
func (l *load) take(c *commands.Client, rng *rand.Rand) int64 {
	l.mu.Lock()
	n := len(l.requests)
	if n == 0 || n < maxRequests && rng.IntN(2) == 0 {
		l.requests = append(l.requests, &request{id: fmt.Sprint("request-", n), cost: fmt.Sprint(1 + rng.IntN(3))})
		n++
	}
	r := l.requests[n-1-rng.IntN(min(n, 3))]
	l.mu.Unlock()
	answer, ok := l.do(c, r.args(l.quota)...)
	if !ok {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r.answers = append(r.answers, answer)
	return 1
}

func (r *request) args(quota string) []string {
	return []string{"QUOTA.TAKE", quota, r.id, r.cost, "10000", dayMS}
}

// record records an event in a list.
func (l *load) record(c *commands.Client, _ *rand.Rand) int64 {
	l.mu.Lock()
	l.sent++
	l.mu.Unlock()
	if _, ok := l.do(c, "ROLL.INCR", "list", "1000000000", dayMS); !ok {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acked++
	return 1
}

// expire charges a key of each kind that has expired when the answer comes, or
// soon after, for a purge to find.
func (l *load) expire(c *commands.Client, rng *rand.Rand) int64 {
	key := fmt.Sprint(rng.Uint32())
	for _, args := range [][]string{
		{"CL.THROTTLE", "over-rate-" + key, "0", "1000", "1"},
		{"QUOTA.TAKE", "over-quota-" + key, "id", "1", "1", "1"},
		{"ROLL.INCR", "over-list-" + key, "10", "1", "10"},
	} {
		if _, ok := l.do(c, args...); !ok {
			return 0
		}
	}
	return 3
}

// copy has the server copy its store.
func (l *load) copy(c *commands.Client, _ *rand.Rand) int64 {
	var made storeCopy
	l.mu.Lock()
	for key := range made.acked {
		made.acked[key] = int64(len(l.keys[key].acks))
	}
	n := len(l.copies)
	l.copies = append(l.copies, made)
	l.mu.Unlock()
	if _, ok := l.do(c, "BACKUP", copyName(n)); !ok {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.copies[n].made = true
	return 1
}

func copyName(n int) string { return fmt.Sprint("copy-", n) }

// do sends a command. It returns false when the connection has broken.
func (l *load) do(c *commands.Client, args ...string) (any, bool) {
	reply, err := c.Do(args...)
	l.refused(err)
	return reply, err == nil
}

// refused looks whether err, if it is one, is what the server has answered.
func (l *load) refused(err error) {
	var refusal commands.Error
	switch {
	case !errors.As(err, &refusal):
	case l.mayFail && strings.HasPrefix(string(refusal), "ERR storage: "):
		l.failures.Add(1)
	default:
		l.t.Errorf("a command was answered with %v", err)
	}
}

// A tally is what a server says that it was ever charged by loads: the last one
// is to add to it.
type tally struct {
	keys   [loadKeys]int64
	events int64
}

// hold asks the server at addr what it was charged, and holds it against what l
// has sent and what was there before. What was acknowledged by acked must be
// there; without always only the charges of keys are held to that.
func (l *load) hold(addr string, before tally, acked time.Time, always bool) (after tally) {
	t := l.t
	t.Helper()
	c := dialClient(t, addr)
	for key := range after.keys {
		n, k := charged(t, c, key), &l.keys[key]
		held := int64(0)
		for _, at := range k.acks {
			if !at.After(acked) {
				held++
			}
		}
		if lo, hi := before.keys[key]+held, before.keys[key]+k.sent; n < lo || n > hi {
			t.Errorf("key:%d was charged %d, want %d to %d", key, n, lo, hi)
		}
		after.keys[key] = n
	}

	reply, err := c.Do("ROLL.PEEK", "list", "1000000000", dayMS)
	if err != nil {
		t.Fatal(err)
	}
	after.events = reply.(int64)
	lo, hi := before.events, before.events+l.sent
	if always {
		lo += l.acked
	}
	if after.events < lo || after.events > hi {
		t.Errorf("there are %d events, want %d to %d", after.events, lo, hi)
	}

	// Each request again is answered as before. Those that were lost on their
	// way are carried out by that.
	spent := int64(0)
	for _, r := range l.requests {
		again, err := c.Do(r.args(l.quota)...)
		if err != nil {
			t.Fatalf("%s again: %v", r.id, err)
		}
		row := again.([]any)
		for _, answer := range r.answers {
			// All but the first to be carried out were replays.
			if first := answer.([]any); always && (!reflect.DeepEqual(row[:2], first[:2]) || row[2] != row[0]) {
				t.Errorf("%s was answered with %v, and again with %v", r.id, first, row)
			}
		}
		if row[0] == int64(1) {
			spent += int64(r.cost[0] - '0')
		}
	}
	reply, err = c.Do("QUOTA.GET", l.quota)
	if row, ok := reply.([]any); err != nil || ok && row[0] != spent || !ok && spent > 0 {
		t.Errorf("QUOTA.GET = %v, %v, want %d used", reply, err, spent)
	}
	return after
}

// charged returns how many events a key was ever charged.
func charged(t *testing.T, c *commands.Client, key int) int64 {
	t.Helper()
	reply, err := c.Do("CL.PROBE", fmt.Sprintf("key:%d", key),
		fmt.Sprint(loadBurst), fmt.Sprint(loadCount), fmt.Sprint(loadPeriod), "0")
	if err != nil {
		t.Fatal(err)
	}
	row := reply.([]any)
	return row[1].(int64) - row[2].(int64)
}

func dialClient(t *testing.T, addr string) *commands.Client {
	t.Helper()
	c, err := commands.Dial(context.Background(), addr, commands.ClientConfig{Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
