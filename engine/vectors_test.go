package engine_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
	"github.com/gabiondb/gabion/engine/limit/limittest"
)

func TestVectors(t *testing.T) {
	for _, g := range limittest.Throttle() {
		t.Run(g.Name, func(t *testing.T) {
			t.Run("calls", func(t *testing.T) { runVectors(t, g, false, call) })
			t.Run("pipelines", func(t *testing.T) { runVectors(t, g, false, (*engine.Limiter).Do) })
			t.Run("reopened", func(t *testing.T) { runVectors(t, g, true, call) })
		})
	}
}

// runVectors has carryOut do the steps of g, all those of one instant at once.
// With restless set each step meets a store that was flushed and reopened.
func runVectors(t *testing.T, g limittest.Group, restless bool,
	carryOut func(l *engine.Limiter, ops []engine.Op, dst []engine.Result) []engine.Result) {
	clock := newManualClock(epoch)
	opts := engine.Options{Now: clock.Now, FS: vfs.NewMem()}
	l := open(t, "store", opts)
	for steps := g.Steps; len(steps) > 0; {
		n := 1
		for !restless && n < len(steps) && steps[n].At == steps[0].At {
			n++
		}
		clock.Set(epoch.Add(steps[0].At))
		var ops []engine.Op
		for _, s := range steps[:n] {
			ops = append(ops, opOf(t, s.Command))
		}
		for i, r := range carryOut(l, ops, nil) {
			s := steps[i]
			if r.Err != nil {
				t.Fatalf("throttle.tsv:%d: %v: %v", s.Line, s.Command, r.Err)
			}
			if got := reply(ops[i].Verb, r); !slices.Equal(got, s.Want) {
				t.Errorf("throttle.tsv:%d: at %v: %v = %v, want %v", s.Line, s.At, s.Command, got, s.Want)
			}
		}
		steps = steps[n:]
		if restless {
			flush(t, l)
			l = reopen(t, l, "store", opts)
		}
	}
}

// call carries out ops by the methods for single calls.
func call(l *engine.Limiter, ops []engine.Op, dst []engine.Result) []engine.Result {
	for _, op := range ops {
		var r engine.Result
		switch op.Verb {
		case engine.OpThrottle:
			r.Decision, r.Err = l.Throttle(op.Key, op.Rate, op.N)
		case engine.OpProbe:
			r.Decision, r.Err = l.Probe(op.Key, op.Rate, op.N)
		case engine.OpStat:
			r.Stat, r.Err = l.Stat(op.Key)
		}
		dst = append(dst, r)
	}
	return dst
}

// opOf returns the operation that a command of the vectors means.
func opOf(t *testing.T, command []string) engine.Op {
	op := engine.Op{Key: []byte(command[1])}
	switch command[0] {
	case "EXISTS":
		op.Verb = engine.OpStat
		return op
	case "CL.THROTTLE":
		op.Verb = engine.OpThrottle
	case "CL.PROBE":
		op.Verb = engine.OpProbe
	default:
		t.Fatalf("unknown command %v", command)
	}
	args := []int64{0, 0, 0, 1}
	for i, s := range command[2:] {
		var err error
		if args[i], err = strconv.ParseInt(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	op.Rate = limit.Rate{Burst: args[0], Count: args[1], Period: time.Duration(args[2]) * time.Second}
	op.N = args[3]
	return op
}

// reply returns r as the integers that the command of verb replies.
func reply(verb engine.Verb, r engine.Result) []int64 {
	if verb == engine.OpStat {
		if r.Stat.Exists() {
			return []int64{1}
		}
		return []int64{0}
	}
	limited, retry := int64(0), int64(-1)
	if d := r.Decision; !d.Allowed {
		limited = 1
		if d.RetryAfter != limit.Never {
			retry = ceilSeconds(d.RetryAfter)
		}
	}
	return []int64{limited, r.Decision.Limit, r.Decision.Remaining, retry, ceilSeconds(r.Decision.ResetAfter)}
}

func ceilSeconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}
