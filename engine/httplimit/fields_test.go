package httplimit_test

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/httplimit"
	"github.com/gabiondb/gabion/engine/limit"
)

// An item is a string of a structured field with its parameters, which are
// strings and int64.
type item struct {
	name   string
	params map[string]any
}

// parseList parses the lines of a field as RFC 9651, section 4.2, does: a list
// of items, here of strings with parameters that are strings or integers.
func parseList(lines []string) (items []item, err error) {
	s := strings.Trim(strings.Join(lines, ", "), " ")
	for {
		var it item
		if it, s, err = parseItem(s); err != nil {
			return nil, err
		}
		items = append(items, it)
		s = strings.TrimLeft(s, " \t")
		if s == "" {
			return items, nil
		}
		if s[0] != ',' {
			return nil, fmt.Errorf("%q after an item", s)
		}
		if s = strings.TrimLeft(s[1:], " \t"); s == "" {
			return nil, errors.New("a comma at the end")
		}
	}
}

func parseItem(s string) (it item, rest string, err error) {
	if it.name, s, err = parseString(s); err != nil {
		return it, "", err
	}
	it.params = make(map[string]any)
	for strings.HasPrefix(s, ";") {
		s = strings.TrimLeft(s[1:], " ")
		n := strings.IndexFunc(s, func(c rune) bool { return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789_-.*", c) })
		if n < 1 || s[n] != '=' || s[0] != '*' && (s[0] < 'a' || s[0] > 'z') {
			return it, "", fmt.Errorf("no parameter: %q", s)
		}
		key := s[:n]
		if _, ok := it.params[key]; ok {
			return it, "", fmt.Errorf("parameter %s twice", key)
		}
		if s = s[n+1:]; strings.HasPrefix(s, `"`) {
			it.params[key], s, err = parseString(s)
		} else {
			it.params[key], s, err = parseInteger(s)
		}
		if err != nil {
			return it, "", err
		}
	}
	return it, s, nil
}

func parseInteger(s string) (v int64, rest string, err error) {
	end := len(s) - len(strings.TrimLeft(strings.TrimPrefix(s, "-"), "0123456789"))
	if digits := strings.TrimPrefix(s[:end], "-"); len(digits) < 1 || len(digits) > 15 {
		return 0, "", fmt.Errorf("no integer: %q", s)
	}
	v, err = strconv.ParseInt(s[:end], 10, 64)
	return v, s[end:], err
}

func parseString(s string) (v, rest string, err error) {
	if !strings.HasPrefix(s, `"`) {
		return "", "", fmt.Errorf("no string: %q", s)
	}
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return b.String(), s[i+1:], nil
		case c == '\\':
			if i++; i == len(s) || s[i] != '"' && s[i] != '\\' {
				return "", "", fmt.Errorf("a bad escape: %q", s)
			}
			b.WriteByte(s[i])
		case c < 0x20 || c > 0x7e:
			return "", "", fmt.Errorf("byte %#x in a string", c)
		default:
			b.WriteByte(c)
		}
	}
	return "", "", fmt.Errorf("a string without an end: %q", s)
}

func TestParseList(t *testing.T) {
	for _, s := range []string{
		``, `a`, `"a`, `"a"x`, `"a",`, `"a";`, `"a";1=2`, `"a";b=`, `"a";b=x`, `"a";b=1;b=1`,
		`"a";b=1000000000000000`, `"\a"`, "\"\n\"", "\"ä\"", `"a" "b"`,
	} {
		if got, err := parseList([]string{s}); err == nil {
			t.Errorf("parseList(%q) = %v, want an error", s, got)
		}
	}
}

// items serves r with h and returns the only item of each field.
func items(t testing.TB, h http.Handler, r *http.Request) (policy, rateLimit item) {
	t.Helper()
	header := get(h, r).Header
	var both [2]item
	for i, name := range []string{"RateLimit-Policy", "RateLimit"} {
		list, err := parseList(header.Values(name))
		if err != nil || len(list) != 1 {
			t.Fatalf("%s: %q: %v, want one item", name, header.Values(name), err)
		}
		both[i] = list[0]
	}
	return both[0], both[1]
}

// FuzzName checks that any name that is taken is read back, and that policies
// don't charge each other's keys.
func FuzzName(f *testing.F) {
	f.Add("per-ip", "", "b")
	f.Add(`a"b\`, `"`, "\x00")
	f.Add("a", `content-bytes`, "b:c")
	f.Add("\x7f", "ü", "")
	l := open(f, engine.Options{Now: newClock().Now})
	f.Fuzz(func(t *testing.T, name, unit, key string) {
		m, err := httplimit.New(l, httplimit.Policy{
			Name: name, Unit: unit, Rate: limit.PerMinute(7),
			Key:  func(*http.Request) (string, bool) { return key, true },
			Cost: func(*http.Request) int64 { return 0 },
		})
		if err != nil {
			return
		}
		policy, rateLimit := items(t, m.Wrap(new(inner)), nil)
		if policy.name != name || rateLimit.name != name {
			t.Errorf("names %q and %q, want %q", policy.name, rateLimit.name, name)
		}
		if got, ok := policy.params["qu"]; ok != (unit != "") || ok && got != unit {
			t.Errorf("qu = %v, want %q", got, unit)
		}
		var stored string
		m = newMiddleware(t, l, httplimit.Policy{
			Name: name,
			Key:  func(*http.Request) (string, bool) { return key, true },
			Cost: func(*http.Request) int64 { return 0 },
			Observe: func(_ *http.Request, e httplimit.Event) {
				if stored = e.Key; e.Err != nil {
					t.Errorf("key %q: %v", key, e.Err)
				}
			},
		})
		get(m.Wrap(new(inner)), nil)
		before, after, _ := strings.Cut(stored, ":")
		tooLong := len(name)+1+len(key) > engine.MaxKeyLen
		if before != name || !tooLong && after != key || len(stored) > engine.MaxKeyLen {
			t.Errorf("policy %q, key %q is stored as %q", name, key, stored)
		}
	})
}

// TestFieldValues are the policies that are told otherwise than they are written.
func TestFieldValues(t *testing.T) {
	const most = 999_999_999_999_999
	for _, test := range []struct {
		rate       limit.Rate
		q, w, r, t int64 // r and t of a key that is whole
	}{
		{limit.PerSecond(10), 10, 1, 10, 1},
		{limit.PerMinute(30), 30, 60, 30, 2},
		{limit.PerDay(1), 1, 86400, 1, 86400},
		{limit.Rate{Burst: 15, Count: 30, Period: time.Minute}, 16, 32, 16, 2},
		{limit.Rate{Burst: 0, Count: 7, Period: time.Minute}, 1, 9, 1, 9},
		{limit.Rate{Burst: 2, Count: 1000, Period: time.Second}, 3, 1, 3, 1},
		{limit.Rate{Burst: math.MaxInt64 - 1, Count: 1, Period: 1}, most, 9223372037, most, 1},
		{limit.Rate{Burst: math.MaxInt64 - 1, Count: 1, Period: math.MaxInt64}, most, most, most, 9223372037},
		{limit.Rate{Burst: math.MaxInt64 - 1, Count: math.MaxInt64, Period: math.MaxInt64}, most, 9223372037, most, 1},
		{limit.Rate{Burst: 0, Count: math.MaxInt64, Period: 1}, 1, 1, 1, 1},
		{limit.Rate{Burst: 0, Count: 1, Period: math.MaxInt64}, 1, 9223372037, 1, 9223372037},
	} {
		m := newMiddleware(t, open(t, engine.Options{Now: newClock().Now}), httplimit.Policy{
			Rate: test.rate, Cost: func(*http.Request) int64 { return 0 },
		})
		policy, rateLimit := items(t, m.Wrap(new(inner)), nil)
		got := [...]any{policy.params["q"], policy.params["w"], rateLimit.params["r"], rateLimit.params["t"]}
		if want := [...]any{test.q, test.w, test.r, test.t}; got != want {
			t.Errorf("%+v: q, w, r and t = %v, want %v", test.rate, got, want)
		}
	}
}

// TestLowerBurst lowers the burst of a policy below what has been charged. Times
// in the limiter are thirds of a nanosecond here, that add up to whole seconds.
func TestLowerBurst(t *testing.T) {
	l := open(t, engine.Options{Now: newClock().Now})
	serve := func(burst, cost int64) *http.Response {
		return get(newMiddleware(t, l, httplimit.Policy{
			Rate: limit.Rate{Burst: burst, Count: 3, Period: 4 * time.Second},
			Cost: func(*http.Request) int64 { return cost },
		}).Wrap(new(inner)), nil)
	}
	wantResponse(t, serve(9, 5), 200, `"test";q=10;w=14`, `"test";r=5;t=2`, "")
	wantResponse(t, serve(2, 1), 429, `"test";q=3;w=4`, `"test";r=0;t=4`, "4")
}

// drawRate draws a policy, ordinary or not, that is whole again within two years.
func drawRate(t *rapid.T) limit.Rate {
	return limit.Rate{
		Burst:  rapid.OneOf(rapid.Int64Range(0, 20), rapid.Int64Range(0, 1e6)).Draw(t, "burst"),
		Count:  rapid.OneOf(rapid.Int64Range(1, 20), rapid.Int64Range(1, 1e10)).Draw(t, "count"),
		Period: time.Duration(rapid.OneOf(rapid.Just(int64(time.Second)), rapid.Just(int64(time.Minute)), rapid.Int64Range(1, 6e10)).Draw(t, "period")),
	}
}

// TestPolicyIsKept has a client that takes q in any w at the most, and that is
// never to be denied.
func TestPolicyIsKept(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newClock()
		l := open(t, engine.Options{Now: c.Now})
		defer l.Close()
		rate, cost := drawRate(rt), int64(0)
		m := newMiddleware(t, l, httplimit.Policy{
			Rate: rate, Cost: func(*http.Request) int64 { return cost },
		})
		h := m.Wrap(new(inner))
		policy, _ := items(t, h, nil)
		q, w := policy.params["q"].(int64), time.Duration(policy.params["w"].(int64))*time.Second

		type charge struct {
			at   time.Time
			cost int64
		}
		var taken []charge // in the span of w that ends now
		for range 30 {
			wait := rapid.OneOf(rapid.Int64Range(0, int64(w)), rapid.Int64Range(0, int64(w)/10), rapid.Just(int64(0)), rapid.Just(int64(w))).Draw(rt, "wait")
			c.Advance(time.Duration(wait))
			left, now := q, c.Now()
			for len(taken) > 0 && now.Sub(taken[0].at) >= w {
				taken = taken[1:]
			}
			for _, ch := range taken {
				left -= ch.cost
			}
			cost = rapid.OneOf(rapid.Int64Range(0, left), rapid.Just(left)).Draw(rt, "cost")
			taken = append(taken, charge{now, cost})
			if r := get(h, nil); r.StatusCode != http.StatusOK {
				rt.Fatalf("%+v told as %v: %d of %d left were denied", rate, policy, cost, left)
			}
		}
	})
}

// TestRateLimitIsTrue checks r and t against the state of the key: r and no more
// would pass now, more in t seconds, and no more one second before that. What is
// denied would pass after Retry-After, which is no sooner than t.
func TestRateLimitIsTrue(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newClock()
		l := open(t, engine.Options{Now: c.Now})
		defer l.Close()
		rate := drawRate(rt)
		var state limit.GCRAState
		for range 10 {
			c.Advance(time.Duration(rapid.Int64Range(0, int64(rate.Period)).Draw(rt, "wait")))
			if rapid.IntRange(0, 4).Draw(rt, "change") == 0 {
				rate = drawRate(rt) // what was charged stays, so the key can be over its rate
			}
			cost := rapid.Int64Range(0, rate.Burst+2).Draw(rt, "cost")
			m := newMiddleware(t, l, httplimit.Policy{
				Rate: rate, Cost: func(*http.Request) int64 { return cost },
			})
			resp := get(m.Wrap(new(inner)), nil)
			state, _, _ = state.Take(c.ns.Load(), rate, cost)
			passes := func(n int64, in time.Duration) bool {
				_, d, err := state.Take(c.ns.Load()+int64(in), rate, n)
				if err != nil {
					rt.Fatal(err)
				}
				return d.Allowed
			}

			list, err := parseList(resp.Header.Values("RateLimit"))
			if err != nil || len(list) != 1 {
				rt.Fatalf("RateLimit: %q: %v", resp.Header.Values("RateLimit"), err)
			}
			r, wait := list[0].params["r"].(int64), time.Duration(list[0].params["t"].(int64))*time.Second
			if r > 0 && !passes(r, 0) || passes(r+1, 0) {
				rt.Fatalf("%+v: r = %d is not what would pass", rate, r)
			}
			// In the limiter times are exact to a nanosecond.
			if r <= rate.Burst && (!passes(r+1, wait+1) || wait > time.Second && passes(r+1, wait-time.Second-1)) {
				rt.Fatalf("%+v: r = %d does not grow in t = %v", rate, r, wait)
			}
			if resp.StatusCode == http.StatusOK {
				continue
			}
			retry, err := strconv.ParseInt(resp.Header.Get("Retry-After"), 10, 64)
			after := time.Duration(retry) * time.Second
			switch {
			case cost > rate.Burst+1:
				if err == nil {
					rt.Fatalf("%+v: %d never pass, but Retry-After is %d", rate, cost, retry)
				}
			case err != nil || after < time.Second || cost > 0 && after < wait || !passes(cost, after) || passes(cost, after-time.Second):
				rt.Fatalf("%+v: cost %d: Retry-After %q, t = %v", rate, cost, resp.Header.Get("Retry-After"), wait)
			}
		}
	})
}
