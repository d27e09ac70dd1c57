package commands

import (
	"time"

	"github.com/gabiondb/gabion/commands/internal/resp"
	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

func rollingCommands() []*command {
	key := argument{name: "key", kind: "key"}
	lim := argument{name: "limit", kind: "integer"}
	window := argument{name: "window-ms", kind: "integer"}
	amount := argument{name: "amount", kind: "integer", optional: true}
	pause := argument{name: "pause", kind: "pure-token", token: "PAUSE", optional: true}
	const (
		shifting  = "O(1) as a rule, O(log(N)) at most where N is the number of events"
		searching = "O(log(N)) where N is the number of events"
	)
	return []*command{
		{
			name: "roll.allow", arity: -4, most: 5, plan: planAllow, reply: replyAdmission,
			flags: write | fast, acl: catRolling, keys: updatedKey, tips: []string{"nondeterministic_output"},
			summary: "Records an event in a rolling list if there is room for it",
			group:   "ratelimit", complexity: shifting, arguments: []argument{key, lim, window, pause},
		},
		{
			name: "roll.incr", arity: -4, most: 6, plan: planIncrement, reply: replyTotal,
			flags: write | fast, acl: catRolling, keys: updatedKey, tips: []string{"nondeterministic_output"},
			summary: "Records as many of a number of events in a rolling list as there is room for",
			group:   "ratelimit", complexity: shifting, arguments: []argument{key, lim, window, amount, pause},
		},
		{
			name: "roll.peek", arity: 4, plan: planPeek, reply: replyCounted,
			flags: readonly | fast, acl: catRolling, keys: oneKey, tips: []string{"nondeterministic_output"},
			summary: "Counts the live events of a rolling list",
			group:   "ratelimit", complexity: searching, arguments: []argument{key, lim, window},
		},
		{
			name: "roll.wait", arity: 4, plan: planWait, reply: replyWait,
			flags: readonly | fast, acl: catRolling, keys: oneKey, tips: []string{"nondeterministic_output"},
			summary: "Tells in how many milliseconds a rolling list has room",
			group:   "ratelimit", complexity: searching, arguments: []argument{key, lim, window},
		},
	}
}

func planAllow(ops []engine.Op, args [][]byte) ([]engine.Op, error) {
	return planRolling(ops, engine.OpAllow, args)
}

func planIncrement(ops []engine.Op, args [][]byte) ([]engine.Op, error) {
	return planRolling(ops, engine.OpIncrement, args)
}

func planPeek(ops []engine.Op, args [][]byte) ([]engine.Op, error) {
	return planRolling(ops, engine.OpPeek, args)
}

func planWait(ops []engine.Op, args [][]byte) ([]engine.Op, error) {
	return planRolling(ops, engine.OpWait, args)
}

func planRolling(ops []engine.Op, verb engine.Verb, args [][]byte) ([]engine.Op, error) {
	op := engine.Op{Verb: verb, Key: args[1], N: 1}
	var err error
	if op.Rolling.Limit, err = parseSigned(args[2]); err != nil {
		return ops, err
	}
	window, err := parseInt(args[3])
	if err != nil {
		return ops, err
	}
	op.Rolling.Window = milliseconds(window)
	options := args[4:]
	if n := len(options); n > 0 && equalFold(options[n-1], "pause") {
		op.Rolling.Pause = true
		options = options[:n-1]
	}
	if verb == engine.OpIncrement && len(options) > 0 {
		if op.N, err = parseInt(options[0]); err != nil || op.N > limit.MaxLimit {
			return ops, errInteger
		}
		options = options[1:]
	}
	if len(options) > 0 {
		return ops, errSyntax
	}
	return append(ops, op), nil
}

func replyAdmission(s *session, results []engine.Result) {
	a := &results[0].Admission
	s.out = resp.AppendArrayLen(s.out, 4)
	s.out = resp.AppendInt(s.out, oneIf(a.Allowed))
	s.out = resp.AppendInt(s.out, a.Count)
	s.out = resp.AppendInt(s.out, a.Limit)
	s.out = resp.AppendInt(s.out, waitMilliseconds(a.Wait))
}

func replyTotal(s *session, results []engine.Result) {
	s.out = resp.AppendInt(s.out, results[0].Total)
}

func replyCounted(s *session, results []engine.Result) {
	s.out = resp.AppendInt(s.out, results[0].Admission.Count)
}

func replyWait(s *session, results []engine.Result) {
	s.out = resp.AppendInt(s.out, waitMilliseconds(results[0].Admission.Wait))
}

// waitMilliseconds returns d in whole milliseconds, rounded up; -1 for never.
func waitMilliseconds(d time.Duration) int64 {
	if d == limit.Never {
		return -1
	}
	return ceilDiv(int64(d), int64(time.Millisecond))
}
