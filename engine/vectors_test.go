package engine_test

import (
	"cmp"
	"errors"
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
	for _, file := range []struct {
		name   string
		groups []limittest.Group
	}{
		{"throttle.tsv", limittest.Throttle()},
		{"quota.tsv", limittest.Quota()},
		{"rolling.tsv", limittest.Rolling()},
		{"several.tsv", limittest.Several()},
	} {
		for _, g := range file.groups {
			t.Run(file.name+"/"+g.Name, func(t *testing.T) {
				t.Run("calls", func(t *testing.T) { runVectors(t, file.name, g, false, call) })
				t.Run("pipelines", func(t *testing.T) { runVectors(t, file.name, g, false, (*engine.Limiter).Do) })
				t.Run("transactions", func(t *testing.T) { runVectors(t, file.name, g, false, inTransaction) })
				t.Run("reopened", func(t *testing.T) { runVectors(t, file.name, g, true, call) })
			})
		}
	}
}

// runVectors has carryOut do the steps of g, all those of one instant at once.
// With restless set each step meets a store that was flushed and reopened.
func runVectors(t *testing.T, file string, g limittest.Group, restless bool,
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
			ops = append(ops, opsOf(t, s.Command)...)
		}
		results := carryOut(l, ops, nil)
		for _, s := range steps[:n] {
			together := 1 + ops[0].With
			if got, code := reply(t, ops[0].Verb, results[:together]); !slices.Equal(got, s.Want) || code != s.Err {
				t.Errorf("%s:%d: at %v: %v = %v %s, want %v %s", file, s.Line, s.At, s.Command, got, code, s.Want, s.Err)
			}
			ops, results = ops[together:], results[together:]
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
	together := map[engine.Verb]func(...engine.Charge) (limit.Decisions, error){
		engine.OpThrottleAll: l.ThrottleAll, engine.OpThrottleEach: l.ThrottleEach,
		engine.OpProbeAll: l.ProbeAll, engine.OpProbeEach: l.ProbeEach,
	}
	for i := 0; i < len(ops); i++ {
		op := ops[i]
		if call := together[op.Verb]; call != nil {
			dst = append(dst, resultsOf(call, ops[i:i+1+op.With])...)
			i += op.With
			continue
		}
		var r engine.Result
		switch op.Verb {
		case engine.OpRefund:
			r.Decision, r.Err = l.Refund(op.Key, op.Rate, op.N)
		case engine.OpRefundQuota:
			r.Refund, r.Err = l.RefundQuota(op.Key, op.ID)
		case engine.OpThrottle:
			r.Decision, r.Err = l.Throttle(op.Key, op.Rate, op.N)
		case engine.OpProbe:
			r.Decision, r.Err = l.Probe(op.Key, op.Rate, op.N)
		case engine.OpTakeQuota:
			r.Grant, r.Err = l.TakeQuota(op.Key, op.ID, op.Quota, op.N)
		case engine.OpProbeQuota:
			r.Grant, r.Err = l.ProbeQuota(op.Key, op.ID, op.Quota, op.N)
		case engine.OpQuota:
			r.Quota, r.Err = l.Quota(op.Key)
		case engine.OpAllow:
			r.Admission, r.Err = l.Allow(op.Key, op.Rolling)
		case engine.OpIncrement:
			r.Total, r.Err = l.Increment(op.Key, op.Rolling, op.N)
		case engine.OpPeek:
			r.Admission.Count, r.Err = l.Peek(op.Key, op.Rolling)
		case engine.OpWait:
			r.Admission.Wait, r.Err = l.Wait(op.Key, op.Rolling)
		case engine.OpStat:
			r.Stat, r.Err = l.Stat(op.Key)
		case engine.OpReset:
			// What Reset tells is less than what OpReset does.
			if found, err := l.Reset(op.Key); err != nil {
				r.Err = err
			} else if found {
				r.Stat.Kind = limit.KindGCRA
			}
		}
		dst = append(dst, r)
	}
	return dst
}

// inTransaction carries out ops in a transaction.
func inTransaction(l *engine.Limiter, ops []engine.Op, dst []engine.Result) []engine.Result {
	n := len(dst)
	err := l.Update(func(tx *engine.Tx) error {
		dst = tx.Do(ops, dst)
		return nil
	})
	for i := range dst[n:] {
		dst[n+i].Err = cmp.Or(dst[n+i].Err, err)
	}
	return dst
}

// opsOf returns the operations that a command of the vectors means, which go
// together.
func opsOf(t *testing.T, command []string) []engine.Op {
	verb, ok := map[string]engine.Verb{
		"CL.MTHROTTLE ALL":  engine.OpThrottleAll,
		"CL.MTHROTTLE EACH": engine.OpThrottleEach,
		"CL.MPROBE ALL":     engine.OpProbeAll,
		"CL.MPROBE EACH":    engine.OpProbeEach,
	}[command[0]+" "+command[1]]
	if !ok {
		return []engine.Op{opOf(t, command)}
	}
	var ops []engine.Op
	for row := range slices.Chunk(command[3:], 5) {
		op := opOf(t, append([]string{"CL.THROTTLE"}, row...))
		op.Verb = verb
		ops = append(ops, op)
	}
	ops[0].With = len(ops) - 1
	return ops
}

// opOf returns the operation that a command of the vectors means.
func opOf(t *testing.T, command []string) engine.Op {
	verb, ok := map[string]engine.Verb{
		"EXISTS":       engine.OpStat,
		"DEL":          engine.OpReset,
		"CL.THROTTLE":  engine.OpThrottle,
		"CL.PROBE":     engine.OpProbe,
		"CL.REFUND":    engine.OpRefund,
		"QUOTA.REFUND": engine.OpRefundQuota,
		"QUOTA.TAKE":   engine.OpTakeQuota,
		"QUOTA.PROBE":  engine.OpProbeQuota,
		"ROLL.ALLOW":   engine.OpAllow,
		"ROLL.INCR":    engine.OpIncrement,
		"ROLL.PEEK":    engine.OpPeek,
		"ROLL.WAIT":    engine.OpWait,
	}[command[0]]
	if !ok {
		t.Fatalf("unknown command %v", command)
	}
	op := engine.Op{Verb: verb, Key: []byte(command[1])}
	args := command[2:]
	switch verb {
	case engine.OpThrottle, engine.OpProbe, engine.OpRefund:
		n := integers(t, args, 0, 0, 0, 1)
		op.Rate = limit.Rate{Burst: n[0], Count: n[1], Period: time.Duration(n[2]) * time.Second}
		op.N = n[3]
	case engine.OpRefundQuota:
		op.ID = args[0]
	case engine.OpTakeQuota, engine.OpProbeQuota:
		n := integers(t, args[1:], 0, 0, 0)
		op.ID, op.N = args[0], n[0]
		op.Quota = limit.Quota{Limit: n[1], Window: time.Duration(n[2]) * time.Millisecond}
	case engine.OpAllow, engine.OpIncrement, engine.OpPeek, engine.OpWait:
		if last := len(args) - 1; args[last] == "PAUSE" {
			op.Rolling.Pause, args = true, args[:last]
		}
		n := integers(t, args, 0, 0, 1)
		op.Rolling.Limit, op.Rolling.Window = n[0], time.Duration(n[1])*time.Millisecond
		op.N = n[2]
	}
	return op
}

// integers returns args as numbers, and n for those that are missing.
func integers(t *testing.T, args []string, n ...int64) []int64 {
	for i, s := range args {
		var err error
		if n[i], err = strconv.ParseInt(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

// reply returns rs as the integers that the command of verb replies, or the code
// of its error.
func reply(t *testing.T, verb engine.Verb, rs []engine.Result) (n []int64, code string) {
	r := rs[0]
	switch {
	case errors.Is(r.Err, limit.ErrConflict):
		return nil, "CONFLICT"
	case errors.Is(r.Err, limit.ErrPolicyChanged):
		return nil, "POLICY"
	case r.Err != nil:
		t.Fatal(r.Err)
	}
	switch verb {
	case engine.OpThrottle, engine.OpProbe, engine.OpRefund:
		return row(r.Decision), ""
	case engine.OpThrottleAll, engine.OpThrottleEach, engine.OpProbeAll, engine.OpProbeEach:
		var ds limit.Decisions
		for _, r := range rs {
			ds = append(ds, r.Decision)
			n = append(n, row(r.Decision)...)
		}
		return append([]int64{int64(ds.Denied()), retryAfter(ds.Denied() > 0, ds.RetryAfter())}, n...), ""
	case engine.OpRefundQuota:
		return []int64{boolean(r.Refund.Refunded), r.Refund.Used, boolean(r.Refund.Replay)}, ""
	case engine.OpTakeQuota, engine.OpProbeQuota:
		return []int64{boolean(r.Grant.Accepted), r.Grant.Used, boolean(r.Grant.Replay)}, ""
	case engine.OpAllow:
		a := r.Admission
		return []int64{boolean(a.Allowed), a.Count, a.Limit, waitOf(a)}, ""
	case engine.OpIncrement:
		return []int64{r.Total}, ""
	case engine.OpPeek:
		return []int64{r.Admission.Count}, ""
	case engine.OpWait:
		return []int64{waitOf(r.Admission)}, ""
	}
	return []int64{boolean(r.Stat.Exists())}, ""
}

func row(d limit.Decision) []int64 {
	return []int64{boolean(!d.Allowed), d.Limit, d.Remaining, retryAfter(!d.Allowed, d.RetryAfter), ceil(d.ResetAfter, time.Second)}
}

func retryAfter(denied bool, d time.Duration) int64 {
	if !denied || d == limit.Never {
		return -1
	}
	return ceil(d, time.Second)
}

func waitOf(a limit.Admission) int64 {
	if a.Wait == limit.Never {
		return -1
	}
	return ceil(a.Wait, time.Millisecond)
}

func boolean(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// ceil returns d in units, rounded up.
func ceil(d, unit time.Duration) int64 {
	n := int64(d / unit)
	if d%unit > 0 {
		n++
	}
	return n
}
