package main

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// The load charges events of which one in ten minutes leaks back, so that for
// as long as a test runs a key tells how many events it was ever charged.
const (
	loadBurst  = 10_000_000
	loadCount  = 1
	loadPeriod = 600
	loadKeys   = 16
	loadConns  = 6
)

func loadCommand(b []byte, name string, key int, quantity string) []byte {
	return appendCommand(b, name, fmt.Sprintf("key:%d", key),
		fmt.Sprint(loadBurst), fmt.Sprint(loadCount), fmt.Sprint(loadPeriod), quantity)
}

// A load charges keys of a server from several connections.
type load struct {
	t     *testing.T
	acked atomic.Int64 // by all connections

	mu   sync.Mutex
	sent [loadKeys]int64       // guarded by mu: charges that were sent
	acks [loadKeys][]time.Time // guarded by mu: when the answers came
}

// run charges the server at addr until every connection has broken. It calls
// reached once, when n charges have been answered and least has passed.
func (l *load) run(addr string, rng *rand.Rand, n int64, least time.Duration, reached func()) {
	var wg sync.WaitGroup
	var once sync.Once
	start := time.Now()
	for range loadConns {
		c := dial(l.t, addr)
		rng := rand.New(rand.NewPCG(rng.Uint64(), 0))
		wg.Go(func() {
			for l.charge(c, rng) {
				if l.acked.Load() >= n && time.Since(start) >= least {
					once.Do(reached)
				}
			}
			// A server that goes away by itself must not leave the test waiting.
			once.Do(reached)
		})
	}
	wg.Wait()
}

// charge sends a pipeline and reads its replies. It returns false when the
// connection has broken.
func (l *load) charge(c *conn, rng *rand.Rand) bool {
	keys := make([]int, 1+rng.IntN(16))
	var pipeline []byte
	for i := range keys {
		keys[i] = rng.IntN(loadKeys)
		pipeline = loadCommand(pipeline, "CL.THROTTLE", keys[i], "1")
	}
	l.mu.Lock()
	for _, key := range keys {
		l.sent[key]++
	}
	l.mu.Unlock()
	if _, err := c.Write(pipeline); err != nil {
		return false
	}
	for _, key := range keys {
		row, err := c.readRow()
		if err != nil {
			return false
		}
		if row[0] != 0 {
			l.t.Errorf("key:%d was denied: %v", key, row)
		}
		l.mu.Lock()
		l.acks[key] = append(l.acks[key], time.Now())
		l.mu.Unlock()
		l.acked.Add(1)
	}
	return true
}

// charged asks the server at addr how many events each key was ever charged.
func charged(t *testing.T, addr string) (n [loadKeys]int64) {
	t.Helper()
	c := dial(t, addr)
	var pipeline []byte
	for key := range n {
		pipeline = loadCommand(pipeline, "CL.PROBE", key, "0")
	}
	if _, err := c.Write(pipeline); err != nil {
		t.Fatal(err)
	}
	for key := range n {
		row, err := c.readRow()
		if err != nil {
			t.Fatal(err)
		}
		n[key] = row[1] - row[2]
	}
	return n
}

// killRounds kills a server under load and starts it again, rounds times on one
// store. After each kill it holds that every charge acknowledged by the time
// that mustHold returns, given the time of the kill, is there, and that no
// charge is there that was not sent.
func killRounds(t *testing.T, rounds int, least time.Duration, mustHold func(killed time.Time) time.Time, args ...string) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	var before [loadKeys]int64
	server := startServer(t, dir, args...)
	for round := range rounds {
		l := &load{t: t}
		var killed time.Time
		l.run(server.addr, rng, rng.Int64N(5000), least, func() {
			killed = time.Now()
			server.cmd.Process.Kill()
		})
		if status := server.wait(); status != -1 {
			t.Fatalf("round %d: the server ended by itself, status %d\n%s", round, status, server.text)
		}
		server = startServer(t, dir, args...)
		after := charged(t, server.addr)
		for key, n := range after {
			var held int64
			for _, at := range l.acks[key] {
				if !at.After(mustHold(killed)) {
					held++
				}
			}
			if lo, hi := before[key]+held, before[key]+l.sent[key]; n < lo || n > hi {
				t.Errorf("round %d: key:%d was charged %d, want %d to %d", round, key, n, lo, hi)
			}
		}
		before = after
		t.Logf("round %d: killed after %d acknowledged charges", round, l.acked.Load())
	}
}

// TestKillAlways: what was acknowledged is never lost, and nothing is charged
// twice.
func TestKillAlways(t *testing.T) {
	if testing.Short() {
		t.Skip("kills servers for seconds")
	}
	ever := func(killed time.Time) time.Time { return killed.Add(time.Hour) }
	killRounds(t, 20, 0, ever, "--durability", "always")
}

// TestKillInterval: what was acknowledged before the last interval, and the
// sync at its end, is not lost.
func TestKillInterval(t *testing.T) {
	if testing.Short() {
		t.Skip("kills servers for seconds")
	}
	const (
		interval = 20 * time.Millisecond
		sync     = 2 * time.Second // a sync on a busy machine takes no longer
	)
	synced := func(killed time.Time) time.Time { return killed.Add(-interval - sync) }
	killRounds(t, 3, interval+sync+time.Second, synced, "--durability", "interval", "--sync-interval", interval.String())
}

// TestKillNever: the store opens again, and nothing was charged that was not
// asked for.
func TestKillNever(t *testing.T) {
	if testing.Short() {
		t.Skip("kills servers for seconds")
	}
	none := func(time.Time) time.Time { return time.Time{} }
	killRounds(t, 5, 0, none, "--durability", "never")
}
