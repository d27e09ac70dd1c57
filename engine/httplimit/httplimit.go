package httplimit

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// MaxNameLen is the length of the longest name of a policy, in bytes.
const MaxNameLen = 128

// Policy is a limit and how it is applied. Name, Rate and Key are needed.
type Policy struct {
	// Name tells the policy apart from others, towards clients and in the
	// store: 1 to MaxNameLen printable ASCII characters but the colon, which
	// follows it in the store's keys. Policies of one name on one limiter share
	// what they have charged, and a new name begins anew.
	Name string

	// Rate is how much may pass for each key.
	Rate limit.Rate

	// Key returns whom or what a request is charged to, in any bytes and of any
	// length. If ok is false the policy does not concern the request, which
	// passes: so ok must not be false just because a client has left something
	// out. PeerIP and Header make keys.
	Key func(r *http.Request) (key string, ok bool)

	// Cost returns what a request is charged. The default is 1. A cost of 0
	// charges nothing and is denied only while the key is over its rate; a
	// request with a negative one is refused as by an error.
	Cost func(r *http.Request) int64

	// Unit is what costs are counted in, if not in requests, as a name from the
	// draft's registry of quota units, like "content-bytes".
	Unit string

	// Shadow lets every request pass. It is decided and charged as always, and
	// Counts and Observe tell what would have been denied, but clients are told
	// nothing.
	Shadow bool

	// FailOpen lets a request pass when the limiter's store has failed or is closed.
	// By default it is refused with status 503. An error that is about the request
	// or its key refuses it in any case, since a client could bring it about: a
	// negative cost, say, or a key that holds another kind of limit.
	FailOpen bool

	// Denied answers the requests that are denied. The RateLimit fields and
	// Retry-After are set; status and body are its own. The default answers
	// with status 429 and a problem.
	Denied http.Handler

	// Observe is called with what became of each request, before it is
	// answered. It must be safe for concurrent use.
	Observe func(r *http.Request, e Event)
}

// Outcome is what became of a request.
type Outcome uint8

const (
	Unkeyed      Outcome = iota // passed, since it has no key
	Allowed                     // passed
	Denied                      // denied
	Shadowed                    // passed, but would have been denied without Shadow
	ErrorPassed                 // passed after an error
	ErrorRefused                // refused after an error
	outcomes
)

var outcomeNames = [outcomes]string{
	Unkeyed:      "unkeyed",
	Allowed:      "allowed",
	Denied:       "denied",
	Shadowed:     "shadowed",
	ErrorPassed:  "error passed",
	ErrorRefused: "error refused",
}

// String returns the outcome in words.
func (o Outcome) String() string {
	if o < outcomes {
		return outcomeNames[o]
	}
	return "unknown"
}

// Event tells what became of a request.
type Event struct {
	Outcome  Outcome
	Key      string         // in the store; empty if Unkeyed
	Cost     int64          // what it was to be charged
	Decision limit.Decision // the limiter's answer, if there was no error
	Err      error          // the limiter's error
}

// Counts are how many requests had each outcome since New.
type Counts struct {
	Unkeyed, Allowed, Denied, Shadowed, ErrorPassed, ErrorRefused uint64
}

// Middleware applies a policy to the handlers that it wraps. It is safe for
// concurrent use.
type Middleware struct {
	limiter *engine.Limiter
	policy  Policy
	prefix  string // of keys in the store
	fields  fields
	denied  []byte // the problem of a request that is denied
	counts  [outcomes]atomic.Uint64
}

// New returns a middleware that applies p by l, which stays the caller's to
// close. It returns an error if p lacks what is needed or can't be applied.
func New(l *engine.Limiter, p Policy) (*Middleware, error) {
	switch {
	case l == nil:
		return nil, errors.New("httplimit: no limiter")
	case p.Name == "" || len(p.Name) > MaxNameLen || !printable(p.Name) || strings.Contains(p.Name, ":"):
		return nil, fmt.Errorf("httplimit: name %q is not 1 to %d printable ASCII characters without a colon", p.Name, MaxNameLen)
	case !printable(p.Unit):
		return nil, fmt.Errorf("httplimit: unit %q is not printable ASCII", p.Unit)
	case p.Key == nil:
		return nil, fmt.Errorf("httplimit: policy %s has no Key", p.Name)
	}
	if err := p.Rate.Validate(); err != nil {
		return nil, fmt.Errorf("httplimit: policy %s: %w", p.Name, err)
	}
	return &Middleware{
		limiter: l,
		policy:  p,
		prefix:  p.Name + ":",
		fields:  newFields(p),
		denied:  quotaExceeded(p.Name),
	}, nil
}

// Wrap returns a handler that passes on to next what the policy allows. It does
// not wrap the ResponseWriter. It panics if next is nil.
func (m *Middleware) Wrap(next http.Handler) http.Handler {
	if next == nil {
		panic("httplimit: nil handler")
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e := m.decide(r)
		m.counts[e.Outcome].Add(1)
		if m.policy.Observe != nil {
			m.policy.Observe(r, e)
		}
		switch {
		case e.Outcome == ErrorRefused:
			writeProblem(w, r, http.StatusServiceUnavailable, unavailable)
		case e.Outcome == Denied:
			m.fields.add(w.Header(), e.Decision)
			m.deny(w, r, e.Decision)
		case e.Outcome == Allowed && !m.policy.Shadow:
			m.fields.add(w.Header(), e.Decision)
			next.ServeHTTP(w, r)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// decide charges r.
func (m *Middleware) decide(r *http.Request) Event {
	k, ok := m.policy.Key(r)
	if !ok {
		return Event{Outcome: Unkeyed}
	}
	e := Event{Outcome: Allowed, Key: storeKey(m.prefix, k), Cost: 1}
	if m.policy.Cost != nil {
		e.Cost = m.policy.Cost(r)
	}
	e.Decision, e.Err = m.limiter.Throttle([]byte(e.Key), m.policy.Rate, e.Cost)
	switch {
	case e.Err != nil && (m.policy.Shadow || m.policy.FailOpen && ofStore(e.Err)):
		e.Outcome = ErrorPassed
	case e.Err != nil:
		e.Outcome = ErrorRefused
	case !e.Decision.Allowed && m.policy.Shadow:
		e.Outcome = Shadowed
	case !e.Decision.Allowed:
		e.Outcome = Denied
	}
	return e
}

// ofStore tells whether err is about the store, and not about a request or a key. A
// client that could bring about one of those must not open the way.
func ofStore(err error) bool {
	return errors.Is(err, engine.ErrStorage) || errors.Is(err, engine.ErrClosed)
}

// deny answers a request that d denies.
func (m *Middleware) deny(w http.ResponseWriter, r *http.Request, d limit.Decision) {
	if d.RetryAfter != limit.Never {
		w.Header().Set("Retry-After", strconv.FormatInt(seconds(d.RetryAfter), 10))
	}
	if m.policy.Denied != nil {
		m.policy.Denied.ServeHTTP(w, r)
		return
	}
	writeProblem(w, r, http.StatusTooManyRequests, m.denied)
}

// Counts returns the counters as they are now.
func (m *Middleware) Counts() Counts {
	return Counts{
		Unkeyed:      m.counts[Unkeyed].Load(),
		Allowed:      m.counts[Allowed].Load(),
		Denied:       m.counts[Denied].Load(),
		Shadowed:     m.counts[Shadowed].Load(),
		ErrorPassed:  m.counts[ErrorPassed].Load(),
		ErrorRefused: m.counts[ErrorRefused].Load(),
	}
}
