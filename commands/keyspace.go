package commands

import (
	"bytes"
	"fmt"
	"runtime"
	"slices"
	"strconv"

	"github.com/gabiondb/gabion/commands/internal/resp"
	"github.com/gabiondb/gabion/engine"
)

const (
	// maxScan is the largest COUNT of SCAN.
	maxScan = 10_000

	// maxScanReply is the size of the keys, in bytes, at which SCAN returns
	// though COUNT is not reached.
	maxScanReply = 256 << 10

	// maxKeysReply is the size of the reply, in bytes, above which KEYS gives
	// up.
	maxKeysReply = 1 << 20

	// scanStep is how many keys are looked at between two looks at the bounds.
	scanStep = 256
)

// maxScans returns how many commands may read through the keys at once: all
// processors but one. More wait for their turn.
func maxScans() int { return max(1, runtime.GOMAXPROCS(0)-1) }

func keyspaceCommands() []*command {
	flush := func(name, summary string) *command {
		return &command{
			name: name, arity: -1, run: runFlush,
			flags: write, acl: catKeyspace | catDangerous,
			tips:    []string{"request_policy:all_shards", "response_policy:all_succeeded"},
			summary: summary, group: "server", complexity: "O(N) where N is the number of keys",
			arguments: []argument{{name: "flush-type", kind: "oneof", optional: true, arguments: []argument{
				{name: "async", kind: "pure-token", token: "ASYNC"},
				{name: "sync", kind: "pure-token", token: "SYNC"},
			}}},
		}
	}
	return []*command{
		{
			name: "scan", arity: -2, run: runScan,
			flags: readonly, acl: catKeyspace,
			tips:    []string{"nondeterministic_output", "request_policy:special"},
			summary: "Lists some of the keys, and where to go on",
			group:   "generic", complexity: "O(N) where N is COUNT; O(N) where N is the number of keys for a whole iteration",
			arguments: []argument{
				{name: "cursor", kind: "integer"},
				{name: "pattern", kind: "pattern", token: "MATCH", optional: true},
				{name: "count", kind: "integer", token: "COUNT", optional: true},
				{name: "type", kind: "string", token: "TYPE", optional: true},
			},
		},
		{
			name: "keys", arity: 2, run: runKeys,
			flags: readonly, acl: catKeyspace | catDangerous,
			tips:    []string{"request_policy:all_shards", "nondeterministic_output_order"},
			summary: "Lists the keys that match a pattern, if they are not too many",
			group:   "generic", complexity: "O(N) where N is the number of keys",
			arguments: []argument{{name: "pattern", kind: "pattern"}},
		},
		{
			name: "dbsize", arity: 1, run: runDBSize,
			flags: readonly, acl: catKeyspace,
			tips:    []string{"request_policy:all_shards", "response_policy:agg_sum"},
			summary: "Counts the keys, exactly",
			group:   "server", complexity: "O(N) where N is the number of keys",
		},
		flush("flushall", "Forgets all keys"),
		flush("flushdb", "Forgets all keys: the same as FLUSHALL"),
	}
}

// scanner collects keys for a reply.
type scanner struct {
	pattern []byte // nil: any
	kind    []byte // nil: any
	keys    []byte // as strings of the protocol
	count   int    // of keys
}

func (sc *scanner) visit(key []byte, stat engine.Stat) {
	if sc.kind != nil && !equalFold(sc.kind, stat.Kind.String()) {
		return
	}
	if sc.pattern != nil && !globMatch(sc.pattern, key) {
		return
	}
	sc.keys = resp.AppendBulk(sc.keys, key)
	sc.count++
}

// scan calls fn with a view of all keys, once fewer than maxScans() commands have
// one.
func (s *session) scan(fn func(*engine.View) error) error {
	s.srv.scans <- struct{}{}
	defer func() { <-s.srv.scans }()
	return s.srv.limiter.View(fn)
}

func runScan(s *session, args [][]byte) error {
	cursor, err := parseInt(args[1])
	if err != nil || cursor >= engine.ScanEnd {
		return Error("ERR invalid cursor")
	}
	var sc scanner
	count := int64(10)
	for options := args[2:]; len(options) > 0; options = options[2:] {
		if len(options) == 1 {
			return errSyntax
		}
		switch value := options[1]; {
		case equalFold(options[0], "count"):
			if count, err = parseInt(value); err != nil {
				return err
			}
			if count < 1 {
				return errSyntax
			}
		case equalFold(options[0], "match"):
			sc.pattern = value
		case equalFold(options[0], "type"):
			sc.kind = value
		default:
			return errSyntax
		}
	}
	if bytes.Equal(sc.pattern, []byte("*")) {
		sc.pattern = nil
	}

	next := int(cursor)
	err = s.scan(func(v *engine.View) error {
		for left := int(min(count, maxScan)); ; left -= scanStep {
			next, err = v.Scan(next, min(left, scanStep), sc.visit)
			if err != nil || next == 0 || left <= scanStep || len(sc.keys) >= maxScanReply {
				return err
			}
		}
	})
	if err != nil {
		return err
	}
	s.out = resp.AppendArrayLen(s.out, 2)
	s.out = resp.AppendBulk(s.out, strconv.Itoa(next))
	s.out = resp.AppendArrayLen(s.out, sc.count)
	s.out = append(s.out, sc.keys...)
	return nil
}

func runKeys(s *session, args [][]byte) error {
	sc := scanner{pattern: args[1]}
	err := s.scan(func(v *engine.View) error {
		for cursor := 0; ; {
			next, err := v.Scan(cursor, scanStep, sc.visit)
			if err != nil {
				return err
			}
			if len(sc.keys) > maxKeysReply {
				return Error(fmt.Sprintf("ERR the reply would be larger than %d bytes, use SCAN", maxKeysReply))
			}
			if next == 0 {
				return nil
			}
			cursor = next
		}
	})
	if err != nil {
		return err
	}
	s.out = resp.AppendArrayLen(s.out, sc.count)
	s.out = append(s.out, sc.keys...)
	return nil
}

func runDBSize(s *session, _ [][]byte) error {
	var n int64
	err := s.scan(func(v *engine.View) (err error) {
		n, err = v.Len()
		return err
	})
	if err != nil {
		return err
	}
	s.out = resp.AppendInt(s.out, n)
	return nil
}

// runFlush forgets all keys. ASYNC and SYNC make no difference: nothing is left
// to do afterwards that anybody could notice.
func runFlush(s *session, args [][]byte) error {
	if len(args) > 2 || len(args) == 2 && !slices.ContainsFunc([]string{"async", "sync"}, func(mode string) bool {
		return equalFold(args[1], mode)
	}) {
		return errSyntax
	}
	if err := s.srv.limiter.ResetAll(); err != nil {
		return err
	}
	s.ok()
	return nil
}
