package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/gabiondb/gabion/commands"
)

// A request is one that two connections send, and what they were answered.
type request struct {
	id, cost string
	answers  []any
}

// A kindLoad sends requests to a quota and events to a rolling list.
type kindLoad struct {
	t     *testing.T
	quota string
	n     int // answers after which reached is called

	mu       sync.Mutex // guards what follows
	requests []*request
	answers  int
	sent     int64 // events
	acked    int64 // events whose answer has come
}

const dayMS = "86400000"

// next returns a request that is to be sent: a new one, or the newest again.
func (l *kindLoad) next(rng *rand.Rand) *request {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.requests); n > 0 && rng.IntN(2) == 0 {
		return l.requests[n-1-rng.IntN(min(n, 3))]
	}
	r := &request{id: fmt.Sprint("request-", len(l.requests)), cost: fmt.Sprint(1 + rng.IntN(3))}
	l.requests = append(l.requests, r)
	return r
}

// run loads the server at addr until every connection has broken. It calls
// reached once, when n answers have come.
func (l *kindLoad) run(addr string, rng *rand.Rand, reached func()) {
	var wg sync.WaitGroup
	var once sync.Once
	for range loadConns {
		c := dialClient(l.t, addr)
		rng := rand.New(rand.NewPCG(rng.Uint64(), 0))
		wg.Go(func() {
			for l.send(c, rng) {
				l.mu.Lock()
				full := l.answers >= l.n
				l.mu.Unlock()
				if full {
					once.Do(reached)
				}
			}
			once.Do(reached)
		})
	}
	wg.Wait()
}

// send sends a request or an event. It returns false when the connection has
// broken.
func (l *kindLoad) send(c *commands.Client, rng *rand.Rand) bool {
	if rng.IntN(3) == 0 {
		l.mu.Lock()
		l.sent++
		l.mu.Unlock()
		if _, err := c.Do("ROLL.INCR", "list", "1000000000", dayMS); err != nil {
			return false
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.answers++
		l.acked++
		return true
	}
	r := l.next(rng)
	answer, err := l.take(c, r)
	if err != nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answers++
	r.answers = append(r.answers, answer)
	return true
}

func (l *kindLoad) take(c *commands.Client, r *request) (any, error) {
	return c.Do("QUOTA.TAKE", l.quota, r.id, r.cost, "10000", dayMS)
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

// TestKillKinds kills a server while requests are sent to it, most of them by
// two connections at once, and starts it again. Every request that was answered
// gets the same answer again, none is charged twice, and every event that was
// acknowledged is there.
func TestKillKinds(t *testing.T) {
	if testing.Short() {
		t.Skip("kills servers for seconds")
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	server := startServer(t, dir)
	events := int64(0)
	for round := range 20 {
		l := &kindLoad{t: t, quota: fmt.Sprint("quota-", round), n: rng.IntN(1500)}
		l.run(server.addr, rng, func() { server.cmd.Process.Kill() })
		if status := server.wait(); status != -1 {
			t.Fatalf("round %d: the server ended by itself, status %d\n%s", round, status, server.text)
		}
		server = startServer(t, dir)
		c := dialClient(t, server.addr)
		spent := int64(0)
		for _, r := range l.requests {
			again, err := l.take(c, r)
			if err != nil {
				t.Fatalf("round %d: %s again: %v", round, r.id, err)
			}
			row := again.([]any)
			for _, answer := range r.answers {
				// All but the first to be carried out were replays.
				if first := answer.([]any); !reflect.DeepEqual(row[:2], first[:2]) || row[2] != row[0] {
					t.Errorf("round %d: %s was answered with %v, and again with %v", round, r.id, first, row)
				}
			}
			if row[0] == int64(1) {
				spent += int64(r.cost[0] - '0')
			}
		}
		reply, err := c.Do("QUOTA.GET", l.quota)
		if row, ok := reply.([]any); err != nil || ok && row[0] != spent || !ok && spent > 0 {
			t.Errorf("round %d: QUOTA.GET = %v, %v, want %d used", round, reply, err, spent)
		}
		n, err := doInt(c, "ROLL.PEEK", "list", "1000000000", dayMS)
		if err != nil || n < events+l.acked || n > events+l.sent {
			t.Errorf("round %d: there are %d events, %v, want %d to %d", round, n, err, events+l.acked, events+l.sent)
		}
		events = n
		t.Logf("round %d: killed after %d answers", round, l.answers)
	}
}
