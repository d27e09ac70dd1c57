package httplimit_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/httplimit"
	"github.com/gabiondb/gabion/engine/limit"
)

// A server lets each client make two requests a minute.
func Example() {
	start := time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)
	var passed atomic.Int64 // the limiter reads the clock in goroutines of its own too
	l, err := engine.Open("limits", &engine.Options{
		FS:  vfs.NewMem(), // for the example; else the disk
		Now: func() time.Time { return start.Add(time.Duration(passed.Load())) },
	})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()

	perIP, err := httplimit.New(l, httplimit.Policy{
		Name: "per-ip",
		Rate: limit.PerMinute(2),
		Key:  httplimit.PeerIP,
	})
	if err != nil {
		log.Fatal(err)
	}
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello") })
	server := httptest.NewServer(perIP.Wrap(hello))
	defer server.Close()

	for range 3 {
		r, err := http.Get(server.URL)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(r.Status)
		for _, name := range []string{"RateLimit-Policy", "RateLimit", "Retry-After"} {
			if value := r.Header.Get(name); value != "" {
				fmt.Printf("  %s: %s\n", name, value)
			}
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			log.Fatal(err)
		}
		r.Body.Close()
		fmt.Printf("  %s", body)
		passed.Add(int64(10 * time.Second))
	}
	fmt.Printf("%+v\n", perIP.Counts())
	// Output:
	// 200 OK
	//   RateLimit-Policy: "per-ip";q=2;w=60
	//   RateLimit: "per-ip";r=1;t=30
	//   hello
	// 200 OK
	//   RateLimit-Policy: "per-ip";q=2;w=60
	//   RateLimit: "per-ip";r=0;t=20
	//   hello
	// 429 Too Many Requests
	//   RateLimit-Policy: "per-ip";q=2;w=60
	//   RateLimit: "per-ip";r=0;t=10
	//   Retry-After: 10
	//   {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429,"violated-policies":["per-ip"]}
	// {Unkeyed:0 Allowed:2 Denied:1 Shadowed:0 ErrorPassed:0 ErrorRefused:0}
}
