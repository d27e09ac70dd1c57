package commands

import (
	"math"
	"slices"
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
	needed := slices.Clone(arguments)
	needed[4].optional = false
	return []*command{
		{
			name: "cl.throttle", arity: -5, most: 6, plan: planThrottle, reply: replyDecision,
			flags: write | fast, acl: catThrottle, keys: updatedKey,
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
		{
			name: "cl.refund", arity: 6, plan: planRefund, reply: replyDecision,
			flags: write | fast, acl: catThrottle, keys: updatedKey,
			tips:    []string{"nondeterministic_output"},
			summary: "Gives back events that were charged to a key",
			group:   "ratelimit", complexity: "O(1)", arguments: needed,
		},
	}
}

func planThrottle(ops []engine.Op, args [][]byte) ([]engine.Op, error) {
	return planRate(ops, engine.OpThrottle, args)
}

func planProbe(ops []engine.Op, args [][]byte) ([]engine.Op, error) {
	return planRate(ops, engine.OpProbe, args)
}

func planRefund(ops []engine.Op, args [][]byte) ([]engine.Op, error) {
	return planRate(ops, engine.OpRefund, args)
}

func planRate(ops []engine.Op, verb engine.Verb, args [][]byte) ([]engine.Op, error) {
	op, err := parseCharge(args[1:])
	if err != nil {
		return ops, err
	}
	op.Verb = verb
	return append(ops, op), nil
}

// parseCharge reads key, max_burst, count, period and, if it is there, quantity.
func parseCharge(args [][]byte) (engine.Op, error) {
	burst, err := parseInt(args[1])
	if err != nil || burst == math.MaxInt64 {
		return engine.Op{}, errInteger
	}
	count, err := parseInt(args[2])
	if err != nil {
		return engine.Op{}, err
	}
	period, err := parseInt(args[3])
	if err != nil || period > math.MaxInt64/int64(time.Second) {
		return engine.Op{}, errInteger
	}
	quantity := int64(1)
	if len(args) == 5 {
		if quantity, err = parseInt(args[4]); err != nil {
			return engine.Op{}, err
		}
	}
	if count == 0 || period == 0 {
		return engine.Op{}, errZeroRate
	}
	return engine.Op{
		Key:  args[0],
		Rate: limit.Rate{Burst: burst, Count: count, Period: time.Duration(period) * time.Second},
		N:    quantity,
	}, nil
}

func replyDecision(s *session, results []engine.Result) { s.appendDecision(&results[0].Decision) }

func (s *session) appendDecision(d *limit.Decision) {
	s.out = resp.AppendArrayLen(s.out, 5)
	s.out = resp.AppendInt(s.out, oneIf(!d.Allowed))
	s.out = resp.AppendInt(s.out, d.Limit)
	s.out = resp.AppendInt(s.out, d.Remaining)
	s.out = resp.AppendInt(s.out, retryAfter(d.RetryAfter))
	s.out = resp.AppendInt(s.out, seconds(d.ResetAfter))
}

// retryAfter returns a wait in whole seconds, or -1 where there is none or no
// wait helps.
func retryAfter(d time.Duration) int64 {
	if d == 0 || d == limit.Never {
		return -1
	}
	return seconds(d)
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

func oneIf(b bool) int64 {
	if b {
		return 1
	}
	return 0
}
