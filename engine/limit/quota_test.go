package limit_test

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/gabiondb/gabion/engine/limit"
)

func TestQuotaValidate(t *testing.T) {
	for _, test := range []struct {
		q    limit.Quota
		text string // of the error; empty if there is none
	}{
		{limit.Quota{Limit: 1, Window: 1}, ""},
		{limit.Quota{Limit: limit.MaxLimit, Window: limit.MaxWindow}, ""},
		{limit.Quota{Limit: 0, Window: 1}, "limit 0 "},
		{limit.Quota{Limit: -1, Window: 1}, "limit -1 "},
		{limit.Quota{Limit: math.MinInt64, Window: 1}, "limit -9223372036854775808 "},
		{limit.Quota{Limit: limit.MaxLimit + 1, Window: 1}, "limit 9007199254740992 "},
		{limit.Quota{Limit: 1, Window: 0}, "window 0s is outside"},
		{limit.Quota{Limit: 1, Window: -1}, "window -1ns is outside"},
		{limit.Quota{Limit: 1, Window: limit.MaxWindow + 1}, "window 87600h0m0.000000001s is outside"},
		{limit.Quota{Limit: 1, Window: math.MaxInt64}, "window 2562047h47m16.854775807s is outside"},
	} {
		err := test.q.Validate()
		if test.text == "" && err != nil || test.text != "" && (!errors.Is(err, limit.ErrInvalid) || !strings.Contains(err.Error(), test.text)) {
			t.Errorf("%+v.Validate() = %v, want %q", test.q, err, test.text)
		}
	}
}

func TestCheckRequestID(t *testing.T) {
	for c := range 256 {
		const good = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"
		id := []byte{'a', byte(c), 'b'}
		err := limit.CheckRequestID(id)
		if want := strings.IndexByte(good, byte(c)) >= 0; want != (err == nil) || !want && !errors.Is(err, limit.ErrInvalid) {
			t.Errorf("CheckRequestID(%q) = %v, want it good: %t", id, err, want)
		}
		if fromString := limit.CheckRequestID(string(id)); (fromString == nil) != (err == nil) {
			t.Errorf("CheckRequestID(%q) = %v for a string, %v for bytes", id, fromString, err)
		}
	}
	for length, want := range map[int]bool{0: false, 1: true, 2: true, 63: true, 64: true, 65: false, 1 << 20: false} {
		err := limit.CheckRequestID(strings.Repeat("x", length))
		if want != (err == nil) || !want && (!errors.Is(err, limit.ErrInvalid) || len(err.Error()) > 200) {
			t.Errorf("CheckRequestID of %d bytes = %.300v, want it good: %t", length, err, want)
		}
	}
}

func TestQuotaTakeErrors(t *testing.T) {
	q := limit.Quota{Limit: 5, Window: time.Second}
	open, _, err := limit.QuotaState{}.Take(start, q, 2, limit.Request{})
	if err != nil {
		t.Fatal(err)
	}
	none, taken := limit.Request{}, limit.Request{Cost: 2, Used: 2}
	back := limit.Request{Cost: 2, Used: 0, Refunded: true}
	for _, test := range []struct {
		s       limit.QuotaState
		now     int64
		q       limit.Quota
		cost    int64
		earlier limit.Request
		want    error
		text    string
	}{
		{open, start, limit.Quota{Limit: 0, Window: 1}, 1, none, limit.ErrInvalid, "limit 0 "},
		{open, start, limit.Quota{Limit: 1, Window: 0}, 1, none, limit.ErrInvalid, "window 0s is outside"},
		{open, start, q, 0, none, limit.ErrInvalid, "cost 0 is outside 1..5"},
		{open, start, q, -1, none, limit.ErrInvalid, "cost -1 "},
		{open, start, q, math.MinInt64, none, limit.ErrInvalid, "cost -9223372036854775808 "},
		{open, start, q, 6, none, limit.ErrInvalid, "cost 6 "},
		{open, start, q, math.MaxInt64, taken, limit.ErrInvalid, "cost 9223372036854775807 "},

		{open, start, limit.Quota{Limit: 6, Window: time.Second}, 1, none, limit.ErrPolicyChanged, "limit 5 and window 1000000000 ns"},
		{open, start, limit.Quota{Limit: 5, Window: time.Second + 1}, 1, none, limit.ErrPolicyChanged, "limit 5 "},
		{open, start + 1e9 - 1, limit.Quota{Limit: 4, Window: time.Second}, 2, taken, limit.ErrPolicyChanged, "limit 5 "},

		{open, start, q, 1, taken, limit.ErrConflict, "at cost 2, not 1"},
		{open, start + 1e9 - 1, q, 3, taken, limit.ErrConflict, "at cost 2, not 3"},

		{open, start, q, 2, back, limit.ErrRefunded, "request was refunded"},
		{open, start, q, 1, back, limit.ErrRefunded, "request was refunded"},
		{open, start, q, 2, back, limit.ErrConflict, "request id is taken"},
		{open, start, q, 6, back, limit.ErrInvalid, "cost 6 "},
		{open, start, limit.Quota{Limit: 6, Window: time.Second}, 2, back, limit.ErrPolicyChanged, "limit 5 "},

		// The first error is the one that is reported.
		{open, start, limit.Quota{Limit: 6, Window: 1}, 7, taken, limit.ErrInvalid, "cost 7 "},
		{open, start, limit.Quota{Limit: 6, Window: 1}, 1, taken, limit.ErrPolicyChanged, "limit 5 "},

		{limit.QuotaState{}, math.MaxInt64 - 1e9 + 1, q, 1, none, limit.ErrOutOfRange, "window"},
		{open, math.MaxInt64, limit.Quota{Limit: 1, Window: 1}, 1, none, limit.ErrOutOfRange, "window"},
		{open, math.MaxInt64, limit.Quota{Limit: 1, Window: limit.MaxWindow}, 1, taken, limit.ErrOutOfRange, "window"},
	} {
		next, g, err := test.s.Take(test.now, test.q, test.cost, test.earlier)
		if !errors.Is(err, test.want) || !strings.Contains(err.Error(), test.text) {
			t.Errorf("Take(%d, %v, %d, %v) fails with %v, want %v about %q", test.now, test.q, test.cost, test.earlier, err, test.want, test.text)
		}
		if next != test.s || g != (limit.Grant{}) {
			t.Errorf("Take(%d, %v, %d, %v) = %+v, %+v, want %+v and no grant", test.now, test.q, test.cost, test.earlier, next, g, test.s)
		}
	}
	next, g, err := open.Take(math.MaxInt64-1e9, q, 1, none)
	if err != nil || next.Deadline != math.MaxInt64 || !g.Accepted {
		t.Errorf("the last window in time = %+v, %+v, %v, want a deadline of 2^63-1", next, g, err)
	}
}

// TestQuotaTakeLast spends the largest quota to the last unit, over the longest
// window, at the end of time.
func TestQuotaTakeLast(t *testing.T) {
	q := limit.Quota{Limit: limit.MaxLimit, Window: limit.MaxWindow}
	now := math.MaxInt64 - int64(limit.MaxWindow)
	var s limit.QuotaState
	for _, step := range []struct {
		cost int64
		want limit.Grant
	}{
		{limit.MaxLimit - 1, limit.Grant{Accepted: true, Used: limit.MaxLimit - 1}},
		{2, limit.Grant{Used: limit.MaxLimit - 1}},
		{limit.MaxLimit, limit.Grant{Used: limit.MaxLimit - 1}},
		{1, limit.Grant{Accepted: true, Used: limit.MaxLimit}},
		{1, limit.Grant{Used: limit.MaxLimit}},
	} {
		next, g, err := s.Take(now, q, step.cost, limit.Request{})
		step.want.Limit, step.want.ResetAfter = limit.MaxLimit, limit.MaxWindow
		if g != step.want || err != nil {
			t.Errorf("%+v.Take(%d) = %+v, %v, want %+v", s, step.cost, g, err, step.want)
		}
		if !next.Valid() {
			t.Errorf("%+v.Take(%d) goes to %+v, which is not valid", s, step.cost, next)
		}
		s = next
	}
}

// TestQuotaRefundForeign refunds a record that is of another window: nothing but
// what was spent comes back, and the state is one that can be kept.
func TestQuotaRefundForeign(t *testing.T) {
	s := limit.QuotaState{Deadline: start + 7, Used: 3, Limit: 5, Window: time.Second}
	next, r := s.Refund(start, limit.Request{Cost: limit.MaxLimit, Used: limit.MaxLimit})
	want := limit.Refund{Refunded: true, Cost: limit.MaxLimit, Limit: 5, ResetAfter: 7}
	if r != want || next.Used != 0 || !next.Valid() {
		t.Errorf("Refund = %+v, %+v, want %+v and nothing used", next, r, want)
	}
}

func TestQuotaValid(t *testing.T) {
	for _, test := range []struct {
		s    limit.QuotaState
		want bool
	}{
		{limit.QuotaState{}, false},
		{limit.QuotaState{Deadline: 2, Used: 1, Limit: 1, Window: 1}, true},
		{limit.QuotaState{Deadline: math.MaxInt64, Used: limit.MaxLimit, Limit: limit.MaxLimit, Window: limit.MaxWindow}, true},
		{limit.QuotaState{Deadline: 1, Used: 1, Limit: 1, Window: 1}, false},
		{limit.QuotaState{Deadline: -5, Used: 1, Limit: 1, Window: 1}, false},
		{limit.QuotaState{Deadline: 2, Used: 0, Limit: 1, Window: 1}, true},
		{limit.QuotaState{Deadline: 2, Used: -1, Limit: 1, Window: 1}, false},
		{limit.QuotaState{Deadline: 2, Used: 2, Limit: 1, Window: 1}, false},
		{limit.QuotaState{Deadline: 2, Used: 1, Limit: 0, Window: 1}, false},
		{limit.QuotaState{Deadline: 2, Used: 1, Limit: limit.MaxLimit + 1, Window: 1}, false},
		{limit.QuotaState{Deadline: 2, Used: 1, Limit: 1, Window: 0}, false},
		{limit.QuotaState{Deadline: math.MaxInt64, Used: 1, Limit: 1, Window: limit.MaxWindow + 1}, false},
	} {
		if got := test.s.Valid(); got != test.want {
			t.Errorf("%+v.Valid() = %t, want %t", test.s, got, test.want)
		}
	}
	for _, test := range []struct {
		r    limit.Request
		want bool
	}{
		{limit.Request{}, false},
		{limit.Request{Cost: 1, Used: 1}, true},
		{limit.Request{Cost: limit.MaxLimit, Used: limit.MaxLimit}, true},
		{limit.Request{Cost: 2, Used: 1}, false},
		{limit.Request{Cost: 0, Used: 1}, false},
		{limit.Request{Cost: -1, Used: 1}, false},
		{limit.Request{Cost: 1, Used: limit.MaxLimit + 1}, false},
		{limit.Request{Cost: 1, Used: 0, Refunded: true}, true},
		{limit.Request{Cost: 2, Used: 1, Refunded: true}, true},
		{limit.Request{Cost: limit.MaxLimit, Used: 0, Refunded: true}, true},
		{limit.Request{Cost: 1, Used: limit.MaxLimit - 1, Refunded: true}, true},
		{limit.Request{Refunded: true}, false},
		{limit.Request{Cost: 0, Used: 1, Refunded: true}, false},
		{limit.Request{Cost: -1, Used: 1, Refunded: true}, false},
		{limit.Request{Cost: 1, Used: -1, Refunded: true}, false},
		{limit.Request{Cost: 1, Used: limit.MaxLimit, Refunded: true}, false},
		{limit.Request{Cost: limit.MaxLimit, Used: 1, Refunded: true}, false},
		{limit.Request{Cost: math.MaxInt64, Used: 1, Refunded: true}, false},
	} {
		if got := test.r.Valid(); got != test.want {
			t.Errorf("%+v.Valid() = %t, want %t", test.r, got, test.want)
		}
	}
}

// quotaTakes are calls on one state for each way through Take.
var quotaTakes = []struct {
	name    string
	s       limit.QuotaState
	cost    int64
	earlier limit.Request
}{
	{"absent", limit.QuotaState{}, 1, limit.Request{}},
	{"accepted", limit.QuotaState{Deadline: start + 1, Used: 1, Limit: 5, Window: time.Second}, 1, limit.Request{}},
	{"denied", limit.QuotaState{Deadline: start + 1, Used: 5, Limit: 5, Window: time.Second}, 1, limit.Request{}},
	{"replay", limit.QuotaState{Deadline: start + 1, Used: 5, Limit: 5, Window: time.Second}, 1, limit.Request{Cost: 1, Used: 2}},
	{"refunded", limit.QuotaState{Deadline: start + 1, Used: 5, Limit: 5, Window: time.Second}, 1, limit.Request{Cost: 1, Used: 2, Refunded: true}},
}

func TestQuotaTakeAllocs(t *testing.T) {
	q := limit.Quota{Limit: 5, Window: time.Second}
	id := []byte("order-1_of_a_request_whose_id_is_as_long_as_the_longest_that_is")
	for _, test := range quotaTakes {
		allocs := testing.AllocsPerRun(100, func() {
			if err := limit.CheckRequestID(id); err != nil {
				t.Fatal(err)
			}
			test.s.Take(start, q, test.cost, test.earlier)
			test.s.Refund(start, test.earlier)
		})
		if allocs != 0 {
			t.Errorf("%s: %v allocations, want 0", test.name, allocs)
		}
	}
}

func BenchmarkQuotaTake(b *testing.B) {
	q := limit.Quota{Limit: 5, Window: time.Second}
	for _, test := range quotaTakes {
		b.Run(test.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				test.s.Take(start, q, test.cost, test.earlier)
			}
		})
	}
}
