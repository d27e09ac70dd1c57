package engine_test

import (
	"errors"
	"fmt"
	"log"
	"os"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// A limiter lives in a directory and goes on where it was when it is opened
// again.
func Example() {
	dir, err := os.MkdirTemp("", "gabion")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)

	l, err := engine.Open(dir, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()

	// Two may pass at once, and then one every half hour.
	rate := limit.PerHour(2)
	for range 3 {
		d, err := l.Throttle([]byte("user:1"), rate, 1)
		if err != nil {
			log.Fatal(err) // the disk is gone: let pass or refuse, as you prefer
		}
		if d.Allowed {
			fmt.Println("allowed, remaining", d.Remaining)
		} else {
			fmt.Println("denied, retry after", d.RetryAfter.Round(time.Minute))
		}
	}
	// Output:
	// allowed, remaining 1
	// allowed, remaining 0
	// denied, retry after 30m0s
}

// An application that has a Pebble store keeps its limits there, among its own
// keys, under a prefix that these do not have.
func ExampleNew() {
	events := new(engine.Events) // optional: has the purge follow Pebble's compactions
	listener := events.Listener()
	db, err := pebble.Open("app", &pebble.Options{FS: vfs.NewMem(), EventListener: &listener})
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()

	l, err := engine.New(db, &engine.Options{Prefix: []byte("limits/"), Events: events})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close() // before the store is closed

	if err := db.Set([]byte("users/1"), []byte("Ada"), pebble.Sync); err != nil {
		log.Fatal(err)
	}
	d, err := l.Throttle([]byte("users/1"), limit.PerHour(2), 1)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(d.Allowed, d.Remaining)
	// Output: true 1
}

// What a request has to spend and what it then writes are one atomic batch: no
// crash leaves the one without the other.
func ExampleLimiter_Update() {
	db, err := pebble.Open("shop", &pebble.Options{FS: vfs.NewMem()})
	if err != nil {
		log.Fatal(err)
	}
	defer db.Close()
	l, err := engine.New(db, &engine.Options{Prefix: []byte("limits/")})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()

	errDenied := errors.New("too many orders")
	order := func(id, goods string) error {
		return l.Update(func(tx *engine.Tx) error {
			g, err := tx.TakeQuota([]byte("orders:ada"), id, limit.Quota{Limit: 2, Window: 24 * time.Hour}, 1)
			switch {
			case err != nil:
				return err
			case !g.Accepted:
				return errDenied // and nothing is written
			}
			return tx.Batch().Set([]byte("orders/"+id), []byte(goods), nil)
		})
	}
	for _, id := range []string{"a", "b", "b", "c"} {
		fmt.Println(id, order(id, "stones"))
	}
	_, _, err = db.Get([]byte("orders/c"))
	fmt.Println(err)
	// Output:
	// a <nil>
	// b <nil>
	// b <nil>
	// c too many orders
	// pebble: not found
}

// A request counts against its user and its network, or against neither.
func ExampleLimiter_ThrottleAll() {
	start := time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)
	l, err := engine.Open("example", &engine.Options{FS: vfs.NewMem(), Now: func() time.Time { return start }})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()

	for _, user := range []string{"ada", "ada", "bob", "cy"} {
		ds, err := l.ThrottleAll(
			engine.Charge{Key: []byte("user:" + user), Rate: limit.PerMinute(1), N: 1},
			engine.Charge{Key: []byte("net:10.0.0.0/24"), Rate: limit.PerHour(2), N: 1},
		)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(user, "denied by", ds.Denied(), "retry after", ds.RetryAfter(), "left to the net:", ds[1].Remaining)
	}
	// Output:
	// ada denied by 0 retry after 0s left to the net: 1
	// ada denied by 1 retry after 1m0s left to the net: 1
	// bob denied by 0 retry after 0s left to the net: 0
	// cy denied by 1 retry after 30m0s left to the net: 0
}

// Tests of code that has limits need not sleep until they refill: they set the
// clock.
func ExampleOptions_now() {
	start := time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)
	var passed atomic.Int64 // the limiter reads the clock in goroutines of its own too
	now := func() time.Time { return start.Add(time.Duration(passed.Load())) }
	l, err := engine.Open("test", &engine.Options{
		FS:  vfs.NewMem(), // nor do they need a disk
		Now: now,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()

	key, rate := []byte("report"), limit.PerDay(1)
	for range 3 {
		d, err := l.Throttle(key, rate, 1)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(now().Format(time.DateTime), d.Allowed, d.RetryAfter)
		passed.Add(int64(12 * time.Hour))
	}
	// Output:
	// 2024-02-29 12:00:00 true 0s
	// 2024-03-01 00:00:00 false 12h0m0s
	// 2024-03-01 12:00:00 true 0s
}

// Many operations take one wait for the disk. Memory for the results can be
// used again.
func ExampleLimiter_Do() {
	l, err := engine.Open("example", &engine.Options{FS: vfs.NewMem()})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()

	perUser, perHost := limit.PerMinute(2), limit.PerMinute(100)
	ops := []engine.Op{
		{Verb: engine.OpThrottle, Key: []byte("user:1"), Rate: perUser, N: 1},
		{Verb: engine.OpThrottle, Key: []byte("host:10.0.0.1"), Rate: perHost, N: 20},
		{Verb: engine.OpProbe, Key: []byte("user:1"), Rate: perUser, N: 2},
		{Verb: engine.OpThrottle, Key: nil, Rate: perUser, N: 1},
	}
	var results []engine.Result
	results = l.Do(ops, results[:0])
	for _, r := range results {
		if r.Err != nil {
			fmt.Println(r.Err)
			continue
		}
		fmt.Println(r.Decision.Allowed, r.Decision.Remaining)
	}
	// Output:
	// true 1
	// true 80
	// false 1
	// engine: key is not 1 to 4096 bytes long
}

// Probes in a View see one instant: what they say fits together.
func ExampleLimiter_View() {
	l, err := engine.Open("example", &engine.Options{FS: vfs.NewMem()})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()

	rate := limit.PerDay(10)
	if _, err := l.Throttle([]byte("b"), rate, 4); err != nil {
		log.Fatal(err)
	}
	err = l.View(func(v *engine.View) error {
		for _, key := range []string{"a", "b", "c"} {
			d, err := v.Probe([]byte(key), rate, 0)
			if err != nil {
				return err
			}
			fmt.Println(key, d.Remaining)
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// a 10
	// b 6
	// c 10
}

// A request that may be sent twice, because the first answer was lost, is
// charged once.
func ExampleLimiter_TakeQuota() {
	l, err := engine.Open("example", &engine.Options{FS: vfs.NewMem()})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()

	key, perDay := []byte("exports:alice"), limit.Quota{Limit: 5, Window: 24 * time.Hour}
	for _, request := range []struct {
		id   string
		cost int64
	}{
		{"order-1", 2},
		{"order-1", 2}, // again
		{"order-2", 3},
		{"order-3", 1},
		{"order-1", 1},
	} {
		g, err := l.TakeQuota(key, request.id, perDay, request.cost)
		switch {
		case errors.Is(err, limit.ErrConflict):
			fmt.Println(request.id, "is another request")
		case err != nil:
			log.Fatal(err)
		case g.Replay:
			fmt.Println(request.id, "was accepted before, used", g.Used)
		case g.Accepted:
			fmt.Println(request.id, "is accepted, used", g.Used)
		default:
			fmt.Println(request.id, "is denied, used", g.Used)
		}
	}
	// Output:
	// order-1 is accepted, used 2
	// order-1 was accepted before, used 2
	// order-2 is accepted, used 5
	// order-3 is denied, used 5
	// order-1 is another request
}

// What was not needed after all is given back, once however often that is said.
func ExampleLimiter_RefundQuota() {
	l, err := engine.Open("example", &engine.Options{FS: vfs.NewMem()})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()

	key, perDay := []byte("exports:alice"), limit.Quota{Limit: 5, Window: 24 * time.Hour}
	if _, err := l.TakeQuota(key, "order-1", perDay, 4); err != nil {
		log.Fatal(err)
	}
	for range 2 {
		r, err := l.RefundQuota(key, "order-1")
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(r.Refunded, r.Replay, "gave back", r.Cost, "used", r.Used)
	}
	_, err = l.TakeQuota(key, "order-1", perDay, 4)
	fmt.Println(errors.Is(err, limit.ErrRefunded))
	// Output:
	// true false gave back 4 used 0
	// true true gave back 4 used 0
	// true
}

// The policy of a rolling list can be written down once, under the list's name.
func ExampleLimiter_Define() {
	start := time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)
	var passed atomic.Int64 // the limiter reads the clock in goroutines of its own too
	now := func() time.Time { return start.Add(time.Duration(passed.Load())) }
	l, err := engine.Open("example", &engine.Options{FS: vfs.NewMem(), Now: now})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	if err := l.Define("mails", limit.Rolling{Limit: 2, Window: time.Minute}); err != nil {
		log.Fatal(err)
	}

	mails, err := l.Named("mails")
	if err != nil {
		log.Fatal(err)
	}
	for range 5 {
		a, err := mails.Allow()
		if err != nil {
			log.Fatal(err)
		}
		if !a.Allowed {
			fmt.Println("wait", a.Wait)
			passed.Add(int64(a.Wait))
			continue
		}
		fmt.Println("send mail", a.Count, "of", a.Limit)
		passed.Add(int64(15 * time.Second))
	}
	// Output:
	// send mail 1 of 2
	// send mail 2 of 2
	// wait 30s
	// send mail 2 of 2
	// send mail 2 of 2
}
