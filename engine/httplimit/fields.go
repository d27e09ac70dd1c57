package httplimit

import (
	"math/big"
	"math/bits"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/gabiondb/gabion/engine/limit"
)

// The names of the fields as net/http spells them.
const (
	rateLimitField = "Ratelimit"
	policyField    = "Ratelimit-Policy"
)

// maxInteger is the largest integer of a structured field (RFC 9651, section
// 3.3.1).
const maxInteger = 999_999_999_999_999

// fields makes the fields that tell clients of a policy.
type fields struct {
	rate   limit.Rate
	policy string // the item of RateLimit-Policy
	item   string // of RateLimit, up to the number of r
}

func newFields(p Policy) fields {
	name := quote(p.Name)
	policy := name + ";q=" + strconv.FormatInt(min(p.Rate.Burst+1, maxInteger), 10) +
		";w=" + strconv.FormatInt(window(p.Rate), 10)
	if p.Unit != "" {
		policy += ";qu=" + quote(p.Unit)
	}
	return fields{rate: p.Rate, policy: policy, item: name + ";r="}
}

// add adds the items that tell of d. The fields are lists, which can be split
// over several lines, so the items of other policies stay.
func (f *fields) add(h http.Header, d limit.Decision) {
	h.Add(policyField, f.policy)
	item := make([]byte, 0, len(f.item)+2*len("999999999999999")+len(";t="))
	item = append(item, f.item...)
	item = strconv.AppendInt(item, min(d.Remaining, maxInteger), 10)
	item = append(item, ";t="...)
	item = strconv.AppendInt(item, seconds(untilMore(f.rate, d)), 10)
	h.Add(rateLimitField, string(item))
}

// window returns in how many seconds r gives back all that can pass at once.
func window(r limit.Rate) int64 {
	// limit * period / count ns, rounded up; the product has up to 126 bits.
	ns := new(big.Int).Mul(big.NewInt(r.Burst+1), big.NewInt(int64(r.Period)))
	unit := new(big.Int).Mul(big.NewInt(r.Count), big.NewInt(int64(time.Second)))
	w, rest := ns.DivMod(ns, unit, new(big.Int))
	if rest.Sign() != 0 {
		w.Add(w, big.NewInt(1))
	}
	if !w.IsInt64() || w.Int64() > maxInteger {
		return maxInteger
	}
	return w.Int64()
}

// untilMore returns how long it takes after d until more would pass than would
// now, exactly but for a nanosecond. It is no longer than d.RetryAfter for a
// denied request that costs something.
func untilMore(r limit.Rate, d limit.Decision) time.Duration {
	if d.Remaining == d.Limit { // whole: so long after one has passed
		return time.Duration(mulDiv(1, r.Period, r.Count))
	}
	// The limit is whole in ResetAfter, and after the next event that passes
	// that many more have to come back.
	missing := d.Limit - d.Remaining - 1
	return d.ResetAfter - time.Duration(mulDiv(missing, r.Period, r.Count))
}

// mulDiv returns n * period / count, rounded up. The result has to fit.
func mulDiv(n int64, period time.Duration, count int64) uint64 {
	hi, lo := bits.Mul64(uint64(n), uint64(period))
	q, rest := bits.Div64(hi, lo, uint64(count))
	if rest != 0 {
		q++
	}
	return q
}

// seconds returns d in whole seconds, rounded up, and at least 1.
func seconds(d time.Duration) int64 {
	return max(int64((d-1)/time.Second)+1, 1)
}

// printable tells whether s can be a string of a structured field.
func printable(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

// quote returns s as a string of a structured field (RFC 9651, section 4.1.6).
func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}
