package commands

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/gabiondb/gabion/commands/internal/resp"
	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

func quotaCommands() []*command {
	arguments := []argument{
		{name: "key", kind: "key"},
		{name: "request-id", kind: "string"},
		{name: "cost", kind: "integer"},
		{name: "limit", kind: "integer"},
		{name: "window-ms", kind: "integer"},
	}
	return []*command{
		{
			name: "quota.take", arity: 6, plan: planTakeQuota, reply: replyGrant, wireError: quotaError,
			flags: write | fast, acl: catQuota, keys: updatedKey, tips: []string{"nondeterministic_output"},
			summary: "Spends a part of a quota on a request, once however often it is sent",
			group:   "ratelimit", complexity: "O(1)", arguments: arguments,
		},
		{
			name: "quota.probe", arity: 6, plan: planProbeQuota, reply: replyGrant, wireError: quotaError,
			flags: readonly | fast, acl: catQuota, keys: oneKey, tips: []string{"nondeterministic_output"},
			summary: "Answers as QUOTA.TAKE would, and changes nothing",
			group:   "ratelimit", complexity: "O(1)", arguments: arguments,
		},
		{
			name: "quota.get", arity: 2, plan: planQuota, reply: replyQuota, wireError: quotaError,
			flags: readonly | fast, acl: catQuota, keys: oneKey, tips: []string{"nondeterministic_output"},
			summary: "Tells what has been spent of a quota",
			group:   "ratelimit", complexity: "O(1)", arguments: arguments[:1],
		},
		{
			name: "quota.refund", arity: 3, plan: planRefundQuota, reply: replyRefund, wireError: quotaError,
			flags: write | fast, acl: catQuota, keys: updatedKey, tips: []string{"nondeterministic_output"},
			summary: "Gives back what a request has spent of a quota, once however often it is sent",
			group:   "ratelimit", complexity: "O(1)", arguments: arguments[:2],
		},
	}
}

func planTakeQuota(ops []engine.Op, args [][]byte) ([]engine.Op, error) {
	return planRequest(ops, engine.OpTakeQuota, args)
}

func planProbeQuota(ops []engine.Op, args [][]byte) ([]engine.Op, error) {
	return planRequest(ops, engine.OpProbeQuota, args)
}

func planRequest(ops []engine.Op, verb engine.Verb, args [][]byte) ([]engine.Op, error) {
	if limit.CheckRequestID(args[2]) != nil {
		return ops, errRequestID
	}
	var numbers [3]int64
	for i, name := range [...]string{"cost", "limit", "window-ms"} {
		var err error
		if numbers[i], err = parseInt(args[3+i]); err != nil {
			return ops, Error("INVALID " + name + " is not an integer or out of range")
		}
	}
	return append(ops, engine.Op{
		Verb:  verb,
		Key:   args[1],
		ID:    string(args[2]),
		Quota: limit.Quota{Limit: numbers[1], Window: milliseconds(numbers[2])},
		N:     numbers[0],
	}), nil
}

// milliseconds returns the duration of n >= 0 ms, or the longest that there is.
// It is more than any window may have.
func milliseconds(n int64) time.Duration {
	if n > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64
	}
	return time.Duration(n) * time.Millisecond
}

func planQuota(ops []engine.Op, args [][]byte) ([]engine.Op, error) {
	return planKeys(ops, engine.OpQuota, args)
}

func planRefundQuota(ops []engine.Op, args [][]byte) ([]engine.Op, error) {
	if limit.CheckRequestID(args[2]) != nil {
		return ops, errRequestID
	}
	return append(ops, engine.Op{Verb: engine.OpRefundQuota, Key: args[1], ID: string(args[2])}), nil
}

const errRequestID Error = "INVALID request-id is not 1 to 64 of A-Z a-z 0-9 _ -"

// quotaError is the wireError of the commands on quotas. What it calls INVALID
// it names as the syntax does.
func quotaError(err error) Error {
	var outside *limit.RangeError
	switch {
	case errors.Is(err, limit.ErrRefunded):
		return "CONFLICT request was refunded"
	case errors.Is(err, limit.ErrConflict):
		return "CONFLICT request was accepted at another cost"
	case errors.Is(err, limit.ErrPolicyChanged):
		return "POLICY another limit or window is in force until the window closes"
	case errors.Is(err, engine.ErrInvalidKey):
		return "INVALID key is not 1 to 4096 bytes long"
	case errors.As(err, &outside):
		name, most := outside.Name, outside.Max
		if outside.Unit == "ns" {
			name, most = name+"-ms", most/int64(time.Millisecond)
		}
		return Error(fmt.Sprintf("INVALID %s is outside %d..%d", name, outside.Min, most))
	}
	return wireError(err)
}

func replyGrant(s *session, results []engine.Result) {
	g := &results[0].Grant
	s.out = resp.AppendArrayLen(s.out, 3)
	s.out = resp.AppendInt(s.out, oneIf(g.Accepted))
	s.out = resp.AppendInt(s.out, g.Used)
	s.out = resp.AppendInt(s.out, oneIf(g.Replay))
}

func replyRefund(s *session, results []engine.Result) {
	r := &results[0].Refund
	s.out = resp.AppendArrayLen(s.out, 3)
	s.out = resp.AppendInt(s.out, oneIf(r.Refunded))
	s.out = resp.AppendInt(s.out, r.Used)
	s.out = resp.AppendInt(s.out, oneIf(r.Replay))
}

func replyQuota(s *session, results []engine.Result) {
	q := &results[0].Quota
	if q.Limit == 0 {
		s.out = resp.AppendNull(s.out, s.version)
		return
	}
	s.out = resp.AppendArrayLen(s.out, 4)
	s.out = resp.AppendInt(s.out, q.Used)
	s.out = resp.AppendInt(s.out, q.Limit)
	s.out = resp.AppendInt(s.out, ceilDiv(int64(q.Window), int64(time.Millisecond)))
	s.out = resp.AppendInt(s.out, ceilDiv(int64(q.ResetAfter), int64(time.Millisecond)))
}
