package httplimit_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/httplimit"
	"github.com/gabiondb/gabion/engine/limit"
)

// clock is a wall clock that tests set.
type clock struct{ ns atomic.Int64 }

func newClock() *clock {
	c := new(clock)
	c.ns.Store(1_700_000_000e9)
	return c
}

func (c *clock) Now() time.Time          { return time.Unix(0, c.ns.Load()) }
func (c *clock) Advance(d time.Duration) { c.ns.Add(int64(d)) }

// open opens a limiter in memory. When the test ends it is closed and its store
// checked, unless the test has broken it on purpose.
func open(t testing.TB, opts engine.Options) *engine.Limiter {
	t.Helper()
	if opts.FS == nil {
		opts.FS = vfs.NewMem()
	}
	opts.NoPurge = true
	l, err := engine.Open("store", &opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Close()
		if l.Failure() != nil {
			return
		}
		if r, err := engine.Check("store", &opts, nil); err != nil || len(r.Damage) > 0 {
			t.Errorf("the store is damaged: %v, %v", r.Damage, err)
		}
	})
	return l
}

// newMiddleware returns a middleware for p, in which it fills in what is needed.
func newMiddleware(t testing.TB, l *engine.Limiter, p httplimit.Policy) *httplimit.Middleware {
	t.Helper()
	if p.Name == "" {
		p.Name = "test"
	}
	if p.Rate == (limit.Rate{}) {
		p.Rate = limit.PerMinute(2)
	}
	if p.Key == nil {
		p.Key = httplimit.PeerIP
	}
	m, err := httplimit.New(l, p)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// inner is what the middleware is around. It counts its calls.
type inner struct{ calls atomic.Int64 }

func (h *inner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.calls.Add(1)
	io.WriteString(w, "hello")
}

// get has h serve r, or GET / if it is nil, and returns the response.
func get(h http.Handler, r *http.Request) *http.Response {
	if r == nil {
		r = httptest.NewRequest(http.MethodGet, "/", nil)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

// with returns GET / with a field.
func with(name, value string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set(name, value)
	return r
}

// wantResponse checks the status of r, and its fields, each of which is either
// one value or absent if want is empty.
func wantResponse(t *testing.T, r *http.Response, status int, policy, rateLimit, retryAfter string) {
	t.Helper()
	if r.StatusCode != status {
		t.Errorf("status = %d, want %d", r.StatusCode, status)
	}
	for name, want := range map[string]string{"RateLimit-Policy": policy, "RateLimit": rateLimit, "Retry-After": retryAfter} {
		if got := strings.Join(r.Header.Values(name), ", "); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

func TestDenial(t *testing.T) {
	c, next := newClock(), new(inner)
	l := open(t, engine.Options{Now: c.Now})
	m := newMiddleware(t, l, httplimit.Policy{Name: "per-ip"})
	h := m.Wrap(next)
	const policy = `"per-ip";q=2;w=60`

	wantResponse(t, get(h, nil), 200, policy, `"per-ip";r=1;t=30`, "")
	c.Advance(12 * time.Second)
	wantResponse(t, get(h, nil), 200, policy, `"per-ip";r=0;t=18`, "")
	c.Advance(500 * time.Millisecond)
	r := get(h, nil)
	wantResponse(t, r, 429, policy, `"per-ip";r=0;t=18`, "18")
	if got := next.calls.Load(); got != 2 {
		t.Errorf("the handler was called %d times, want 2", got)
	}
	wantProblem(t, r, problem{
		Type:     "https://iana.org/assignments/http-problem-types#quota-exceeded",
		Title:    "Quota Exceeded",
		Status:   429,
		Violated: []string{"per-ip"},
	})

	c.Advance(18 * time.Second)
	wantResponse(t, get(h, nil), 200, policy, `"per-ip";r=0;t=30`, "")
	if got, want := m.Counts(), (httplimit.Counts{Allowed: 3, Denied: 1}); got != want {
		t.Errorf("Counts = %+v, want %+v", got, want)
	}
	// The key is where it is said to be.
	if d, err := l.Probe([]byte("per-ip:192.0.2.1"), limit.PerMinute(2), 0); err != nil || d.Remaining != 0 {
		t.Errorf("Probe = %+v, %v, want none remaining", d, err)
	}
}

type problem struct {
	Type, Title, Detail string
	Status              int
	Violated            []string `json:"violated-policies"`
}

func wantProblem(t *testing.T, r *http.Response, want problem) {
	t.Helper()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	var got problem
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatalf("body %q: %v", body, err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("problem = %+v, want %+v", got, want)
	}
	if got := r.Header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("Content-Type = %q", got)
	}
	if r.ContentLength != int64(len(body)) {
		t.Errorf("Content-Length = %d, want %d", r.ContentLength, len(body))
	}
}

func TestHeadHasNoBody(t *testing.T) {
	h := newMiddleware(t, open(t, engine.Options{Now: newClock().Now}), httplimit.Policy{Rate: limit.PerHour(1)}).Wrap(new(inner))
	get(h, nil)
	r := get(h, httptest.NewRequest(http.MethodHead, "/", nil))
	wantResponse(t, r, 429, `"test";q=1;w=3600`, `"test";r=0;t=3600`, "3600")
	if body, _ := io.ReadAll(r.Body); len(body) != 0 {
		t.Errorf("body = %q, want none", body)
	}
}

// TestNeverPasses asks for more than can pass at once.
func TestNeverPasses(t *testing.T) {
	h := newMiddleware(t, open(t, engine.Options{Now: newClock().Now}), httplimit.Policy{
		Unit: "content-bytes",
		Cost: func(r *http.Request) int64 { return r.ContentLength },
	}).Wrap(new(inner))
	const policy = `"test";q=2;w=60;qu="content-bytes"`
	post := func(body string) *http.Response {
		return get(h, httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body)))
	}
	wantResponse(t, post("abc"), 429, policy, `"test";r=2;t=30`, "")
	wantResponse(t, post("a"), 200, policy, `"test";r=1;t=30`, "")
	wantResponse(t, post("ab"), 429, policy, `"test";r=1;t=30`, "30")
	wantResponse(t, post(""), 200, policy, `"test";r=1;t=30`, "")
}

// TestChain has two policies on one key and one limiter, of which the inner one
// denies first.
func TestChain(t *testing.T) {
	l := open(t, engine.Options{Now: newClock().Now})
	outer := newMiddleware(t, l, httplimit.Policy{Name: "outer", Rate: limit.PerHour(10)})
	within := newMiddleware(t, l, httplimit.Policy{Name: "inner", Rate: limit.PerMinute(1)})
	notFound := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Error(w, "nothing here", 404) })
	h := outer.Wrap(within.Wrap(notFound))
	const policies = `"outer";q=10;w=3600, "inner";q=1;w=60`
	wantResponse(t, get(h, nil), 404, policies, `"outer";r=9;t=360, "inner";r=0;t=60`, "")
	wantResponse(t, get(h, nil), 429, policies, `"outer";r=8;t=360, "inner";r=0;t=60`, "60")
}

func TestShadow(t *testing.T) {
	l, next := open(t, engine.Options{Now: newClock().Now}), new(inner)
	var events []httplimit.Event
	m := newMiddleware(t, l, httplimit.Policy{
		Shadow:  true,
		Denied:  http.NotFoundHandler(),
		Observe: func(_ *http.Request, e httplimit.Event) { events = append(events, e) },
	})
	h := m.Wrap(next)
	for range 3 {
		wantResponse(t, get(h, nil), 200, "", "", "")
	}
	if d, err := l.Probe([]byte("test:192.0.2.1"), limit.PerMinute(2), 1); err != nil || d.Allowed {
		t.Errorf("Probe = %+v, %v, want a denial: all is charged", d, err)
	}
	l.Close()
	wantResponse(t, get(h, nil), 200, "", "", "")
	if got, want := m.Counts(), (httplimit.Counts{Allowed: 2, Shadowed: 1, ErrorPassed: 1}); got != want {
		t.Errorf("Counts = %+v, want %+v", got, want)
	}
	key := "test:192.0.2.1"
	want := []httplimit.Event{
		{Outcome: httplimit.Allowed, Key: key, Cost: 1, Decision: limit.Decision{Allowed: true, Limit: 2, Remaining: 1, ResetAfter: 30 * time.Second}},
		{Outcome: httplimit.Allowed, Key: key, Cost: 1, Decision: limit.Decision{Allowed: true, Limit: 2, ResetAfter: time.Minute}},
		{Outcome: httplimit.Shadowed, Key: key, Cost: 1, Decision: limit.Decision{Limit: 2, RetryAfter: 30 * time.Second, ResetAfter: time.Minute}},
		{Outcome: httplimit.ErrorPassed, Key: key, Cost: 1, Err: engine.ErrClosed},
	}
	if !reflect.DeepEqual(events, want) {
		t.Errorf("events = %+v, want %+v", events, want)
	}
	if next.calls.Load() != 4 {
		t.Errorf("the handler was called %d times, want 4", next.calls.Load())
	}
}

func TestDeniedHandler(t *testing.T) {
	h := newMiddleware(t, open(t, engine.Options{Now: newClock().Now}), httplimit.Policy{
		Rate: limit.PerMinute(1),
		Denied: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, "come back in "+w.Header().Get("Retry-After"), 420)
		}),
	}).Wrap(new(inner))
	get(h, nil)
	r := get(h, nil)
	wantResponse(t, r, 420, `"test";q=1;w=60`, `"test";r=0;t=60`, "60")
	if body, _ := io.ReadAll(r.Body); string(body) != "come back in 60\n" {
		t.Errorf("body = %q", body)
	}
}

// TestErrors has the limiter return errors of each kind.
func TestErrors(t *testing.T) {
	var failing atomic.Bool
	broken := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if failing.Load() && (op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) {
			return syscall.EIO
		}
		return nil
	}))
	for _, test := range []struct {
		name    string
		want    error
		opts    engine.Options
		policy  httplimit.Policy
		prepare func(l *engine.Limiter)
		opens   bool // FailOpen lets it pass
	}{
		{name: "closed", want: engine.ErrClosed, prepare: func(l *engine.Limiter) { l.Close() }, opens: true},
		{
			name: "storage", want: engine.ErrStorage, opts: engine.Options{FS: broken},
			prepare: func(*engine.Limiter) { failing.Store(true) }, opens: true,
		},
		{
			name: "another kind", want: engine.ErrWrongKind,
			prepare: func(l *engine.Limiter) {
				l.Allow([]byte("test:192.0.2.1"), limit.Rolling{Limit: 1, Window: time.Hour})
			},
		},
		{
			name: "negative cost", want: limit.ErrInvalid,
			policy: httplimit.Policy{Cost: func(*http.Request) int64 { return -1 }},
		},
		{
			name: "out of range", want: limit.ErrOutOfRange,
			policy: httplimit.Policy{Rate: limit.Rate{Count: 1, Period: math.MaxInt64}},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.opts.Now = newClock().Now
			l := open(t, test.opts)
			if test.prepare != nil {
				test.prepare(l)
			}
			for _, failOpen := range []bool{false, true} {
				var event httplimit.Event
				next := new(inner)
				p := test.policy
				p.FailOpen = failOpen
				p.Observe = func(_ *http.Request, e httplimit.Event) { event = e }
				m := newMiddleware(t, l, p)
				r := get(m.Wrap(next), nil)
				if !errors.Is(event.Err, test.want) {
					t.Errorf("error = %v, want %v", event.Err, test.want)
				}
				if failOpen && test.opens {
					wantResponse(t, r, 200, "", "", "")
					if got, want := m.Counts(), (httplimit.Counts{ErrorPassed: 1}); got != want || next.calls.Load() != 1 {
						t.Errorf("Counts = %+v, %d calls, want %+v, 1 call", got, next.calls.Load(), want)
					}
					continue
				}
				wantResponse(t, r, 503, "", "", "")
				wantProblem(t, r, problem{
					Type: "about:blank", Title: "Service Unavailable", Status: 503,
					Detail: "The rate limit of this request could not be determined.",
				})
				if got, want := m.Counts(), (httplimit.Counts{ErrorRefused: 1}); got != want || next.calls.Load() != 0 {
					t.Errorf("Counts = %+v, %d calls, want %+v, no call", got, next.calls.Load(), want)
				}
			}
		})
	}
}

func TestUnkeyed(t *testing.T) {
	m := newMiddleware(t, open(t, engine.Options{Now: newClock().Now}), httplimit.Policy{
		Rate: limit.PerHour(1),
		Key:  func(r *http.Request) (string, bool) { return "k", r.URL.Path != "/health" },
	})
	h := m.Wrap(new(inner))
	for range 3 {
		wantResponse(t, get(h, httptest.NewRequest(http.MethodGet, "/health", nil)), 200, "", "", "")
	}
	wantResponse(t, get(h, nil), 200, `"test";q=1;w=3600`, `"test";r=0;t=3600`, "")
	if got, want := m.Counts(), (httplimit.Counts{Unkeyed: 3, Allowed: 1}); got != want {
		t.Errorf("Counts = %+v, want %+v", got, want)
	}
}

// TestNoWayAround sends what clients can send without being limited less.
func TestNoWayAround(t *testing.T) {
	long := strings.Repeat("x", 2*engine.MaxKeyLen)
	for name, r := range map[string]*http.Request{
		"no key":       httptest.NewRequest(http.MethodGet, "/", nil),
		"empty key":    with("X-Key", ""),
		"long key":     with("X-Key", long),
		"longest key":  with("X-Key", long[:engine.MaxKeyLen-len("test:")]),
		"too long key": with("X-Key", long[:engine.MaxKeyLen-len("test:")+1]),
		"bytes":        with("X-Key", "\x00\xff:\n"),
	} {
		m := newMiddleware(t, open(t, engine.Options{Now: newClock().Now}), httplimit.Policy{Key: httplimit.Header("x-key"), FailOpen: true})
		h := m.Wrap(new(inner))
		for range 5 {
			get(h, r)
		}
		if got, want := m.Counts(), (httplimit.Counts{Allowed: 2, Denied: 3}); got != want {
			t.Errorf("%s: Counts = %+v, want %+v", name, got, want)
		}
	}
}

// TestLongKeys has keys that the store does not take kept apart.
func TestLongKeys(t *testing.T) {
	h := newMiddleware(t, open(t, engine.Options{Now: newClock().Now}), httplimit.Policy{
		Rate: limit.PerHour(1), Key: httplimit.Header("X-Key"),
	}).Wrap(new(inner))
	long := strings.Repeat("x", engine.MaxKeyLen)
	for _, test := range []struct {
		key    string
		status int
	}{{long + "a", 200}, {long + "b", 200}, {long + "a", 429}, {long + "b", 429}} {
		if got := get(h, with("X-Key", test.key)).StatusCode; got != test.status {
			t.Errorf("...%s: status = %d, want %d", test.key[len(long):], got, test.status)
		}
	}
}

// TestClientGone has requests charged whose clients no longer wait, and passes
// their context on.
func TestClientGone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var seen error
	m := newMiddleware(t, open(t, engine.Options{Now: newClock().Now}), httplimit.Policy{Rate: limit.PerHour(1)})
	h := m.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = r.Context().Err() }))
	get(h, httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx))
	if !errors.Is(seen, context.Canceled) {
		t.Errorf("the handler's context has %v, want %v", seen, context.Canceled)
	}
	wantResponse(t, get(h, nil), 429, `"test";q=1;w=3600`, `"test";r=0;t=3600`, "3600")
}

func TestPanicPasses(t *testing.T) {
	m := newMiddleware(t, open(t, engine.Options{Now: newClock().Now}), httplimit.Policy{})
	h := m.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer func() {
		if got := recover(); got != http.ErrAbortHandler {
			t.Errorf("recovered %v, want %v", got, http.ErrAbortHandler)
		}
		if got, want := m.Counts(), (httplimit.Counts{Allowed: 1}); got != want {
			t.Errorf("Counts = %+v, want %+v", got, want)
		}
	}()
	get(h, nil)
}

// TestOverHTTP2 goes through a server, whose ResponseWriter has to be the
// handler's own.
func TestOverHTTP2(t *testing.T) {
	m := newMiddleware(t, open(t, engine.Options{Now: newClock().Now}), httplimit.Policy{Rate: limit.PerHour(1)})
	s := httptest.NewUnstartedServer(m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "hello")
		w.(http.Flusher).Flush()
	})))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	const policy = `"test";q=1;w=3600`
	for _, want := range []struct {
		status     int
		retryAfter string
	}{{200, ""}, {429, "3600"}} {
		r, err := s.Client().Get(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		if r.ProtoMajor != 2 {
			t.Errorf("protocol %s, want HTTP/2", r.Proto)
		}
		wantResponse(t, r, want.status, policy, `"test";r=0;t=3600`, want.retryAfter)
		io.Copy(io.Discard, r.Body)
		r.Body.Close()
	}
}

// TestManyClients has no more pass than may, however many ask at once.
func TestManyClients(t *testing.T) {
	const clients, requests, burst, keys = 32, 20, 9, 3
	next := new(inner)
	m := newMiddleware(t, open(t, engine.Options{Now: newClock().Now}), httplimit.Policy{
		Rate: limit.Rate{Burst: burst, Count: 1, Period: time.Hour},
		Key:  httplimit.Header("X-Key"),
	})
	h := m.Wrap(next)
	var passed [keys]atomic.Int64
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for range requests {
				if get(h, with("X-Key", string(rune('a'+c%keys)))).StatusCode == http.StatusOK {
					passed[c%keys].Add(1)
				}
			}
		})
	}
	wg.Wait()
	for k := range passed {
		if got := passed[k].Load(); got != burst+1 {
			t.Errorf("%d requests passed, want %d", got, burst+1)
		}
	}
	want := httplimit.Counts{Allowed: keys * (burst + 1), Denied: clients*requests - keys*(burst+1)}
	if got := m.Counts(); got != want || uint64(next.calls.Load()) != want.Allowed {
		t.Errorf("Counts = %+v, %d calls, want %+v", got, next.calls.Load(), want)
	}
}

func TestConfiguration(t *testing.T) {
	l := open(t, engine.Options{})
	good := httplimit.Policy{Name: "n", Rate: limit.PerHour(1), Key: httplimit.PeerIP}
	if _, err := httplimit.New(l, good); err != nil {
		t.Errorf("New = %v", err)
	}
	if _, err := httplimit.New(nil, good); err == nil {
		t.Error("New without a limiter is no error")
	}
	for name, spoil := range map[string]func(p *httplimit.Policy){
		"no name":         func(p *httplimit.Policy) { p.Name = "" },
		"long name":       func(p *httplimit.Policy) { p.Name = strings.Repeat("n", httplimit.MaxNameLen+1) },
		"colon in name":   func(p *httplimit.Policy) { p.Name = "a:b" },
		"newline in name": func(p *httplimit.Policy) { p.Name = "a\nb" },
		"umlaut in name":  func(p *httplimit.Policy) { p.Name = "ä" },
		"newline in unit": func(p *httplimit.Policy) { p.Unit = "a\nb" },
		"no rate":         func(p *httplimit.Policy) { p.Rate = limit.Rate{} },
		"no key":          func(p *httplimit.Policy) { p.Key = nil },
	} {
		p := good
		spoil(&p)
		if m, err := httplimit.New(l, p); err == nil || m != nil {
			t.Errorf("%s: New = %v, %v, want an error", name, m, err)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("Wrap(nil) does not panic")
		}
	}()
	newMiddleware(t, l, good).Wrap(nil)
}

func TestOutcomeNames(t *testing.T) {
	seen := make(map[string]bool)
	for o := httplimit.Unkeyed; o <= httplimit.ErrorRefused; o++ {
		if s := o.String(); s == "" || s == "unknown" || seen[s] {
			t.Errorf("Outcome(%d) = %q", o, s)
		} else {
			seen[s] = true
		}
	}
	if got := (httplimit.ErrorRefused + 1).String(); got != "unknown" {
		t.Errorf("Outcome past the last = %q, want unknown", got)
	}
}

func TestPeerIP(t *testing.T) {
	for addr, want := range map[string]string{
		"192.0.2.1:1234":               "192.0.2.1",
		"192.0.2.1":                    "192.0.2.1",
		"[::ffff:192.0.2.1]:1234":      "192.0.2.1",
		"[2001:db8:1:2:3:4:5:6]:1":     "2001:db8:1:2::/64",
		"[2001:db8:1:2:ffff::1]:65535": "2001:db8:1:2::/64",
		"2001:db8:1:3::1":              "2001:db8:1:3::/64",
		"[fe80::1%eth0]:80":            "fe80::/64",
		"[::1]:80":                     "::/64",
		"@":                            "@",
		"":                             "",
		"example.com:80":               "example.com:80",
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr = addr
		r.Header.Set("X-Forwarded-For", "203.0.113.9")
		r.Header.Set("Forwarded", "for=203.0.113.9")
		if got, ok := httplimit.PeerIP(r); got != want || !ok {
			t.Errorf("PeerIP of %q = %q, %t, want %q", addr, got, ok, want)
		}
	}
}
