package commands

import (
	"time"

	"github.com/gabiondb/gabion/commands/internal/resp"
	"github.com/gabiondb/gabion/engine"
)

func keyCommands() []*command {
	key := []argument{{name: "key", kind: "key"}}
	manyKeys := []argument{{name: "key", kind: "key", multiple: true}}
	stat := func(name, summary string, reply func(*session, []engine.Result)) *command {
		return &command{
			name: name, arity: 2, plan: planStat, reply: reply,
			flags: readonly | fast, acl: catKeyspace, keys: oneKey, tips: []string{"nondeterministic_output"},
			summary: summary, group: "generic", complexity: "O(1)", arguments: key,
		}
	}
	many := func(name, summary string, f flags, plan func([]engine.Op, [][]byte) ([]engine.Op, error), keyFlags ...string) *command {
		return &command{
			name: name, arity: -2, plan: plan, reply: replyCount,
			flags: f, acl: catKeyspace, keys: keys{first: 1, last: -1, step: 1, flags: keyFlags},
			tips:    []string{"request_policy:multi_shard", "response_policy:agg_sum"},
			summary: summary, group: "generic", complexity: "O(N) where N is the number of keys", arguments: manyKeys,
		}
	}
	return []*command{
		many("del", "Forgets keys", write, planReset, "RM", "delete"),
		many("unlink", "Forgets keys: the same as DEL", write|fast, planReset, "RM", "delete"),
		many("exists", "Counts which of the keys exist", readonly|fast, planStat, "RO"),
		stat("type", "Tells the kind of a key", replyKind),
		stat("ttl", "Tells in how many seconds a key expires", replyTTL),
		stat("pttl", "Tells in how many milliseconds a key expires", replyPTTL),
		stat("expiretime", "Tells when a key expires, in seconds since the Unix epoch", replyExpireTime),
		stat("pexpiretime", "Tells when a key expires, in milliseconds since the Unix epoch", replyPExpireTime),
	}
}

func planReset(ops []engine.Op, args [][]byte) ([]engine.Op, error) {
	return planKeys(ops, engine.OpReset, args)
}

func planStat(ops []engine.Op, args [][]byte) ([]engine.Op, error) {
	return planKeys(ops, engine.OpStat, args)
}

// planKeys plans the same for all keys. It looks at every one of them first, so
// that one that is no key leaves the others alone.
func planKeys(ops []engine.Op, verb engine.Verb, args [][]byte) ([]engine.Op, error) {
	for _, key := range args[1:] {
		if len(key) < 1 || len(key) > engine.MaxKeyLen {
			return ops, engine.ErrInvalidKey
		}
	}
	for _, key := range args[1:] {
		ops = append(ops, engine.Op{Verb: verb, Key: key})
	}
	return ops, nil
}

func replyCount(s *session, results []engine.Result) {
	n := int64(0)
	for i := range results {
		if results[i].Stat.Exists() {
			n++
		}
	}
	s.out = resp.AppendInt(s.out, n)
}

func replyKind(s *session, results []engine.Result) {
	s.out = resp.AppendSimple(s.out, results[0].Stat.Kind.String())
}

func replyTTL(s *session, results []engine.Result)  { s.replyUntil(results, time.Second) }
func replyPTTL(s *session, results []engine.Result) { s.replyUntil(results, time.Millisecond) }

// replyUntil tells how long the key has to live.
func (s *session) replyUntil(results []engine.Result, unit time.Duration) {
	n := int64(-2)
	if stat := results[0].Stat; stat.Exists() {
		n = ceilDiv(int64(stat.TTL), int64(unit))
	}
	s.out = resp.AppendInt(s.out, n)
}

func replyExpireTime(s *session, results []engine.Result)  { s.replyAt(results, time.Second) }
func replyPExpireTime(s *session, results []engine.Result) { s.replyAt(results, time.Millisecond) }

// replyAt tells when the key dies.
func (s *session) replyAt(results []engine.Result, unit time.Duration) {
	n := int64(-2)
	if stat := results[0].Stat; stat.Exists() {
		n = ceilDiv(stat.Deadline.UnixNano(), int64(unit))
	}
	s.out = resp.AppendInt(s.out, n)
}
