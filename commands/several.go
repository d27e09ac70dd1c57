package commands

import (
	"slices"
	"time"

	"github.com/gabiondb/gabion/commands/internal/resp"
	"github.com/gabiondb/gabion/engine"
)

// blockLen is how many arguments a charge has among several.
const blockLen = 5

func severalCommands() []*command {
	arguments := []argument{
		{name: "mode", kind: "oneof", arguments: []argument{
			{name: "all", kind: "pure-token", token: "ALL"},
			{name: "each", kind: "pure-token", token: "EACH"},
		}},
		{name: "n", kind: "integer"},
		{name: "charge", kind: "block", multiple: true, arguments: []argument{
			{name: "key", kind: "key"},
			{name: "max_burst", kind: "integer"},
			{name: "count", kind: "integer"},
			{name: "period", kind: "integer"},
			{name: "quantity", kind: "integer"},
		}},
	}
	severalKeys := func(of keys) keys {
		of.first, of.last, of.step = 3, -1, blockLen
		return of
	}
	// They have no policy for requests to several servers: one that divides them
	// would divide the decision.
	return []*command{
		{
			name: "cl.mthrottle", arity: -8, plan: planThrottleSeveral, reply: replyDecisions,
			flags: write, acl: catThrottle, keys: severalKeys(updatedKey),
			tips:    []string{"nondeterministic_output"},
			summary: "Charges events to several keys, to all of them or none, or to each whose rate allows them",
			group:   "ratelimit", complexity: "O(N) where N is the number of charges", arguments: arguments,
		},
		{
			name: "cl.mprobe", arity: -8, plan: planProbeSeveral, reply: replyDecisions,
			flags: readonly | fast, acl: catThrottle, keys: severalKeys(oneKey),
			tips:    []string{"nondeterministic_output"},
			summary: "Answers as CL.MTHROTTLE would, and changes nothing",
			group:   "ratelimit", complexity: "O(N) where N is the number of charges", arguments: arguments,
		},
	}
}

func planThrottleSeveral(ops []engine.Op, args [][]byte) ([]engine.Op, error) {
	return planSeveral(ops, engine.OpThrottleAll, engine.OpThrottleEach, args)
}

func planProbeSeveral(ops []engine.Op, args [][]byte) ([]engine.Op, error) {
	return planSeveral(ops, engine.OpProbeAll, engine.OpProbeEach, args)
}

func planSeveral(ops []engine.Op, all, each engine.Verb, args [][]byte) ([]engine.Op, error) {
	verb := all
	switch mode := args[1]; {
	case equalFold(mode, "all"):
	case equalFold(mode, "each"):
		verb = each
	default:
		return ops, errSyntax
	}
	n, err := parseInt(args[2])
	if err != nil || n < 1 || n > engine.MaxTogether {
		return ops, errInteger
	}
	blocks := args[3:]
	if len(blocks) != int(n)*blockLen {
		return ops, errSyntax
	}
	before := len(ops)
	ops = slices.Grow(ops, int(n))
	for ; len(blocks) > 0; blocks = blocks[blockLen:] {
		op, err := parseCharge(blocks[:blockLen])
		if err != nil {
			clear(ops[before:]) // of keys: whoever calls it doesn't know of these
			return ops[:before], err
		}
		op.Verb = verb
		ops = append(ops, op)
	}
	ops[before].With = int(n) - 1
	return ops, nil
}

func replyDecisions(s *session, results []engine.Result) {
	denied, longest := int64(0), time.Duration(0) // as of limit.Decisions
	for i := range results {
		d := &results[i].Decision
		denied += oneIf(!d.Allowed)
		longest = max(longest, d.RetryAfter)
	}
	s.out = resp.AppendArrayLen(s.out, 2+len(results))
	s.out = resp.AppendInt(s.out, denied)
	s.out = resp.AppendInt(s.out, retryAfter(longest))
	for i := range results {
		s.appendDecision(&results[i].Decision)
	}
}
