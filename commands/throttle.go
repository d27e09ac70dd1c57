package commands

import (
	"math"
	"time"

	"github.com/gabiondb/gabion/commands/internal/resp"
	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

func throttleCommands() []*command {
	arguments := []argument{
		{name: "key", kind: "key"},
		{name: "max_burst", kind: "integer"},
		{name: "count", kind: "integer"},
		{name: "period", kind: "integer"},
		{name: "quantity", kind: "integer", optional: true},
	}
	return []*command{
		{
			name: "cl.throttle", arity: -5, most: 6, plan: planThrottle, reply: replyDecision,
			flags: write | fast, acl: catThrottle, keys: keys{first: 1, last: 1, flags: []string{"RW", "access", "update"}},
			tips:    []string{"nondeterministic_output"},
			summary: "Charges a number of events to a key if its rate allows them",
			group:   "ratelimit", complexity: "O(1)", arguments: arguments,
		},
		{
			name: "cl.probe", arity: -5, most: 6, plan: planProbe, reply: replyDecision,
			flags: readonly | fast, acl: catThrottle, keys: oneKey,
			tips:    []string{"nondeterministic_output"},
			summary: "Answers as CL.THROTTLE would, and changes nothing",
			group:   "ratelimit", complexity: "O(1)", arguments: arguments,
		},
	}
}

func planThrottle(ops []engine.Op, args [][]byte) ([]engine.Op, error) {
	return planRate(ops, engine.OpThrottle, args)
}

func planProbe(ops []engine.Op, args [][]byte) ([]engine.Op, error) {
	return planRate(ops, engine.OpProbe, args)
}

func planRate(ops []engine.Op, verb engine.Verb, args [][]byte) ([]engine.Op, error) {
	burst, err := parseInt(args[2])
	if err != nil || burst == math.MaxInt64 {
		return ops, errInteger
	}
	count, err := parseInt(args[3])
	if err != nil {
		return ops, err
	}
	period, err := parseInt(args[4])
	if err != nil || period > math.MaxInt64/int64(time.Second) {
		return ops, errInteger
	}
	quantity := int64(1)
	if len(args) == 6 {
		if quantity, err = parseInt(args[5]); err != nil {
			return ops, err
		}
	}
	if count == 0 || period == 0 {
		return ops, errZeroRate
	}
	return append(ops, engine.Op{
		Verb: verb,
		Key:  args[1],
		Rate: limit.Rate{Burst: burst, Count: count, Period: time.Duration(period) * time.Second},
		N:    quantity,
	}), nil
}

func replyDecision(s *session, results []engine.Result) {
	d := &results[0].Decision
	limited, retry := int64(1), seconds(d.RetryAfter)
	if d.Allowed {
		limited = 0
	}
	if d.Allowed || d.RetryAfter == limit.Never {
		retry = -1
	}
	s.out = resp.AppendArrayLen(s.out, 5)
	s.out = resp.AppendInt(s.out, limited)
	s.out = resp.AppendInt(s.out, d.Limit)
	s.out = resp.AppendInt(s.out, d.Remaining)
	s.out = resp.AppendInt(s.out, retry)
	s.out = resp.AppendInt(s.out, seconds(d.ResetAfter))
}

// seconds returns d in whole seconds, rounded up. d is not negative.
func seconds(d time.Duration) int64 { return ceilDiv(int64(d), int64(time.Second)) }

// ceilDiv returns n / unit rounded up, for n >= 0 and unit > 0.
func ceilDiv(n, unit int64) int64 {
	q := n / unit
	if n%unit != 0 {
		q++
	}
	return q
}
