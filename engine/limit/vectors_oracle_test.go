package limit_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/gabiondb/gabion/engine/limit"
)

// TestVectorsOfOracles has the oracles answer the vectors, so that these do not
// rest on the code that they test.
func TestVectorsOfOracles(t *testing.T) {
	for _, base := range bases {
		for _, file := range vectors {
			if file.name == "rolling.tsv" {
				continue // its oracle has no commands
			}
			for _, g := range file.groups {
				o := oracles{rates: map[string]*oracle{}, quotas: map[string]*quotaOracle{}}
				for _, step := range g.Steps {
					got, err := o.run(t, base+int64(step.At), step.Command)
					if !slices.Equal(got, step.Want) || err != step.Err {
						t.Errorf("%s:%d: at %d + %v: %v = %v %s, the oracle says %v %s",
							file.name, step.Line, base, step.At, step.Command, step.Want, step.Err, got, err)
					}
				}
			}
		}
	}
}

// oracles are a store that knows no state but that of the oracles.
type oracles struct {
	rates  map[string]*oracle
	quotas map[string]*quotaOracle
}

func (o oracles) rate(key string) *oracle {
	if o.rates[key] == nil {
		o.rates[key] = newOracle()
	}
	return o.rates[key]
}

func (o oracles) quota(key string) *quotaOracle {
	if o.quotas[key] == nil {
		o.quotas[key] = new(quotaOracle)
	}
	return o.quotas[key]
}

// run carries out one command and returns its reply or the code of its error.
func (o oracles) run(t *testing.T, now int64, command []string) (reply []int64, code string) {
	name, key, args := command[0], command[1], command[2:]
	switch name {
	case "EXISTS", "DEL":
		there := o.rate(key).tat.Cmp(integer(now)) > 0 || len(o.quota(key).open(now)) > 0
		if name == "DEL" {
			delete(o.rates, key)
			o.quota(key).delete()
		}
		return []int64{boolean(there)}, ""
	case "CL.THROTTLE", "CL.PROBE", "CL.REFUND":
		n := append(integers(t, args), 1)
		r := limit.Rate{Burst: n[0], Count: n[1], Period: time.Duration(n[2]) * time.Second}
		rate := *o.rate(key)
		var d limit.Decision
		var err error
		if name == "CL.REFUND" {
			d, err = rate.refund(now, r, n[3])
		} else {
			d, err = rate.take(now, r, n[3])
		}
		if err != nil {
			t.Fatalf("%v: %v", command, err)
		}
		if name != "CL.PROBE" {
			o.rates[key] = &rate
		}
		return throttled(d), ""
	case "CL.MTHROTTLE", "CL.MPROBE":
		keys, rows := rowsOf(t, command)
		var rates []*oracle
		for _, key := range keys {
			rates = append(rates, o.rate(key))
		}
		ds, err := several(now, rates, rows, key == "EACH")
		if err != nil {
			t.Fatalf("%v: %v", command, err)
		}
		for i, key := range keys {
			if name == "CL.MTHROTTLE" {
				o.rates[key] = rates[i]
			}
		}
		denied, longest := int64(0), time.Duration(0)
		for _, d := range ds {
			if !d.Allowed {
				denied++
				longest = max(longest, d.RetryAfter)
			}
		}
		return together(denied, longest, ds), ""
	case "QUOTA.REFUND":
		r := o.quota(key).refund(now, idOf(args[0]), true)
		return []int64{boolean(r.Refunded), r.Used, boolean(r.Replay)}, ""
	case "QUOTA.TAKE", "QUOTA.PROBE":
		n := integers(t, args[1:])
		q := limit.Quota{Limit: n[1], Window: time.Duration(n[2]) * time.Millisecond}
		g, err := o.quota(key).take(now, q, idOf(args[0]), n[0], name == "QUOTA.TAKE")
		switch {
		case errors.Is(err, limit.ErrConflict):
			return nil, "CONFLICT"
		case errors.Is(err, limit.ErrPolicyChanged):
			return nil, "POLICY"
		case err != nil:
			t.Fatalf("%v: %v", command, err)
		}
		return []int64{boolean(g.Accepted), g.Used, boolean(g.Replay)}, ""
	}
	t.Fatalf("unknown command %v", command)
	return nil, ""
}

// idOf returns the last byte of an id, which tells those of the vectors apart.
func idOf(id string) byte { return id[len(id)-1] }
