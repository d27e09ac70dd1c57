package engine_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

const (
	kindLists   = 3
	kindClients = 8
	quotaBudget = 40
	perQuota    = 30 // requests, so that the last of them are denied
)

// Windows are longer than any life on a tickingClock.
var (
	crashQuota = limit.Quota{Limit: quotaBudget, Window: time.Hour}
	crashList  = limit.Rolling{Limit: 1 << 30, Window: time.Hour}
)

// A crashRequest is a request that several clients send, as retries of one
// another, and what they were answered.
type crashRequest struct {
	quota int
	id    string
	cost  int64

	mu       sync.Mutex
	accepted bool  // by an answer that has come
	used     int64 // that it said
}

// note holds g, an answer to r, against those before it.
func (r *crashRequest) note(t testing.TB, g limit.Grant) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !g.Accepted && r.accepted:
		t.Errorf("%s was accepted and is denied", r.id)
	case g.Accepted && r.accepted && g.Used != r.used:
		t.Errorf("%s has used %d, and had used %d", r.id, g.Used, r.used)
	case g.Accepted:
		r.accepted, r.used = true, g.Used
	}
}

// A kindLife is a store with quotas and rolling lists, and its clients.
type kindLife struct {
	t  testing.TB
	fs *vfs.MemFS
	l  *engine.Limiter

	// requests are made as they are sent: their number is the frontier, and
	// whoever retries picks one of the newest.
	mu       sync.Mutex
	requests []*crashRequest

	lists  [kindLists]account // acknowledged, possible and reported events
	cutter *cutter
	cut    kindCut
	stop   atomic.Bool
}

// A kindCut is what a power cut left, and what the clients knew around it.
type kindCut struct {
	fs       *vfs.MemFS
	where    string
	accepted map[*crashRequest]int64 // used, of the newest requests that were accepted before it

	acknowledged, reported, possible [kindLists]int64
}

func (li *kindLife) takeCut(where string) {
	c := kindCut{where: where, accepted: make(map[*crashRequest]int64)}
	requests := li.newest(200)
	for _, r := range requests {
		r.mu.Lock()
		if r.accepted {
			c.accepted[r] = r.used
		}
		r.mu.Unlock()
	}
	for i := range li.lists {
		c.acknowledged[i] = li.lists[i].acknowledged.Load()
		c.reported[i] = li.lists[i].reported.Load()
	}
	c.fs, _ = cutPower(li.fs, li.cutter.rng)
	for i := range li.lists {
		c.possible[i] = li.lists[i].possible.Load()
	}
	li.cut = c
}

func crashQuotaKey(i int) []byte { return fmt.Appendf(nil, "quota-%d", i) }

// request returns a request to send: a new one, or one of the newest again.
func (li *kindLife) request(rng *rand.Rand) *crashRequest {
	li.mu.Lock()
	defer li.mu.Unlock()
	if n := len(li.requests); n > 0 && rng.IntN(2) == 0 {
		return li.requests[n-1-rng.IntN(min(n, 4))]
	}
	r := &crashRequest{
		quota: len(li.requests)/perQuota + rng.IntN(2),
		id:    fmt.Sprintf("request-%d", len(li.requests)),
		cost:  1 + rng.Int64N(3),
	}
	li.requests = append(li.requests, r)
	return r
}

// newest returns the newest n requests.
func (li *kindLife) newest(n int) []*crashRequest {
	li.mu.Lock()
	defer li.mu.Unlock()
	return li.requests[max(0, len(li.requests)-n):len(li.requests):len(li.requests)]
}

func (li *kindLife) client(rng *rand.Rand) {
	for !li.stop.Load() && !li.t.Failed() {
		li.cutter.call()
		var ops []engine.Op
		var requests []*crashRequest // of each op; nil for one on a list
		var lists []*account
		for range 1 + rng.IntN(8)*rng.IntN(2) {
			if rng.IntN(2) == 0 {
				r := li.request(rng)
				op := engine.Op{Verb: engine.OpTakeQuota, Key: crashQuotaKey(r.quota), ID: r.id, Quota: crashQuota, N: r.cost}
				ops, requests, lists = append(ops, op), append(requests, r), append(lists, nil)
				continue
			}
			a := &li.lists[rng.IntN(kindLists)]
			op := engine.Op{Key: a.key, Rolling: crashList, N: 1 + rng.Int64N(3)}
			switch rng.IntN(4) {
			case 0:
				op.Verb = engine.OpPeek
			case 1:
				op.Verb, op.N = engine.OpAllow, 1
			default:
				op.Verb = engine.OpIncrement
			}
			if op.Verb != engine.OpPeek {
				a.possible.Add(op.N)
			}
			ops, requests, lists = append(ops, op), append(requests, nil), append(lists, a)
		}
		for i, r := range li.l.Do(ops, nil) {
			switch {
			case r.Err != nil:
				li.t.Errorf("%+v: %v", ops[i], r.Err)
				return
			case requests[i] != nil:
				requests[i].note(li.t, r.Grant)
				continue
			case ops[i].Verb == engine.OpPeek:
				lists[i].report(r.Admission.Count)
				continue
			case ops[i].Verb == engine.OpAllow:
				lists[i].report(r.Admission.Count)
			default:
				lists[i].report(r.Total)
			}
			lists[i].acknowledged.Add(ops[i].N)
		}
	}
}

// TestPowerCutKinds cuts the power at random instants while clients send
// requests, many of them twice and at once, and record events. Of each cut a
// store is opened in which every request is sent again.
func TestPowerCutKinds(t *testing.T) {
	seed := newSeed(t)
	const cuts = 14
	lives := uint64(25)
	if testing.Short() {
		lives = 4
	}
	for i := range lives {
		if t.Failed() {
			break
		}
		li := &kindLife{t: t, fs: vfs.NewCrashableMem(), cutter: newCutter(rand.New(rand.NewPCG(seed+i, 0)))}
		li.cutter.cut = li.takeCut
		for i := range li.lists {
			li.lists[i].key = fmt.Appendf(nil, "list-%d", i)
		}
		rng := li.cutter.rng
		li.l = open(t, "store", engine.Options{
			FS: newHookFS(li.fs, li.cutter.hook), Now: tickingClock(),
			CacheSize: rng.Int64N(2), // the default, or every entry that may go is gone
		})
		var clients sync.WaitGroup
		for range kindClients {
			rng := rand.New(rand.NewPCG(rng.Uint64(), i))
			clients.Go(func() { li.client(rng) })
		}
		givenUp := make(chan struct{})
		go func() {
			defer close(givenUp)
			clients.Wait()
		}()
		for range cuts {
			if !li.cutter.next(givenUp) {
				break
			}
			li.verify(li.cut)
		}
		li.stop.Store(true)
		<-givenUp
	}
}

// verify opens what c left and holds it against what the clients knew.
func (li *kindLife) verify(c kindCut) {
	t := li.t
	fail := func(format string, args ...any) {
		t.Helper()
		t.Errorf("cut at %s: %s", c.where, fmt.Sprintf(format, args...))
	}
	clock := tickingClock()
	l, err := engine.Open("store", &engine.Options{FS: c.fs, Now: clock})
	if err != nil {
		fail("Open: %v", err)
		return
	}
	defer l.Close()
	if err := l.Check(); err != nil { // also that no request is charged twice
		fail("the store is damaged: %v", err)
	}
	for r, used := range c.accepted {
		if q, err := l.Quota(crashQuotaKey(r.quota)); err != nil || q.Used < used || q.Used > quotaBudget {
			fail("quota %d has used %d, %v, and %d after %s", r.quota, q.Used, err, used, r.id)
		}
		g, err := l.TakeQuota(crashQuotaKey(r.quota), r.id, crashQuota, r.cost)
		if want := (limit.Grant{Accepted: true, Replay: true, Used: used, Limit: quotaBudget, ResetAfter: g.ResetAfter}); g != want || err != nil {
			fail("%s again = %+v, %v, want %+v", r.id, g, err, want)
		}
	}
	for i := range c.acknowledged {
		n, err := l.Peek(li.lists[i].key, crashList)
		switch {
		case err != nil:
			fail("Peek: %v", err)
		case n < c.acknowledged[i] || n < c.reported[i] || n > c.possible[i]:
			fail("list %d has %d events: %d were acknowledged, %d reported, %d asked for", i, n, c.acknowledged[i], c.reported[i], c.possible[i])
		}
		if a, err := l.Allow(li.lists[i].key, crashList); err != nil || a.Count != n+1 {
			fail("Allow = %+v, %v, want a count of %d", a, err, n+1)
		}
	}
	// Whatever was sent may be sent again, and goes on from there.
	for _, r := range li.newest(100) {
		first, err := l.TakeQuota(crashQuotaKey(r.quota), r.id, crashQuota, r.cost)
		if err != nil {
			fail("%s: %v", r.id, err)
		}
		again, err := l.TakeQuota(crashQuotaKey(r.quota), r.id, crashQuota, r.cost)
		if err != nil || again.Accepted != first.Accepted || again.Used != first.Used || again.Replay != first.Accepted {
			fail("%s = %+v, and again %+v, %v", r.id, first, again, err)
		}
	}
	if err := l.Check(); err != nil {
		fail("the store is damaged after retries: %v", err)
	}
}
