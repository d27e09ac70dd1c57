package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

const (
	gabionAlways   = "gabion, always"
	gabionInterval = "gabion, interval"
	gabionNever    = "gabion, never"
)

var durabilities = []engine.Durability{engine.Always, engine.Interval, engine.Never}

// The sizes of gabion's cache for all keys, and for none.
const (
	cached   = 1 << 30
	uncached = 1
)

// Each key is charged once under usedUp, which then denies it for a day; wide
// lets it pass for ever.
var (
	usedUp = limit.PerDay(1)
	wide   = limit.Rate{Burst: 1 << 40, Count: 1000, Period: time.Second}
)

// work is what gabion is asked to do.
type work struct {
	name    string
	prepare engine.Op // what is done to each key first
	op      engine.Op // but for its key
	fresh   bool      // op gets an id of its own each time
	isDue   func(r *engine.Result) bool
}

var (
	charge  = engine.Op{Verb: engine.OpThrottle, Rate: usedUp, N: 1}
	request = engine.Op{Verb: engine.OpTakeQuota, ID: "first", Quota: limit.Quota{Limit: engine.MaxLimit, Window: 24 * time.Hour}, N: 1}
	event   = engine.Op{Verb: engine.OpAllow, Rolling: limit.Rolling{Limit: engine.MaxLimit, Window: time.Minute}}

	charges = &work{
		name:    "charge",
		prepare: charge,
		op:      engine.Op{Verb: engine.OpThrottle, Rate: wide, N: 1},
		isDue:   func(r *engine.Result) bool { return r.Decision.Allowed },
	}
	denials = &work{
		name:    "denial",
		prepare: charge,
		op:      charge,
		isDue:   func(r *engine.Result) bool { return !r.Decision.Allowed },
	}
	probes = &work{
		name:    "probe",
		prepare: charge,
		op:      engine.Op{Verb: engine.OpProbe, Rate: usedUp, N: 1},
		isDue:   func(r *engine.Result) bool { return !r.Decision.Allowed },
	}
	requests = &work{
		name:    "quota request",
		prepare: request,
		op:      request,
		fresh:   true,
		isDue:   func(r *engine.Result) bool { return r.Grant.Accepted && !r.Grant.Replay },
	}
	replays = &work{
		name:    "quota replay",
		prepare: request,
		op:      request,
		isDue:   func(r *engine.Result) bool { return r.Grant.Accepted && r.Grant.Replay },
	}
	events = &work{
		name:    "rolling event",
		prepare: event,
		op:      event,
		isDue:   func(r *engine.Result) bool { return r.Admission.Allowed },
	}
)

// A gabion is an engine and the keys in it.
type gabion struct {
	*engine.Limiter
	keys    *keySet
	callers atomic.Uint64 // so far
}

func newGabion(ctx context.Context, dir string, keys *keySet, d engine.Durability, cacheSize int64, prepare engine.Op) (g *gabion, err error) {
	l, err := engine.Open(dir, &engine.Options{Durability: d, CacheSize: cacheSize, QuotaMaxLimit: engine.MaxLimit})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	var group errgroup.Group
	group.SetLimit(runtime.GOMAXPROCS(0))
	_ = keys.parts(10_000, func(first, end int) error {
		group.Go(func() error { return cmp.Or(ctx.Err(), prepareKeys(l, keys, first, end, prepare)) })
		return nil
	})
	err = group.Wait()
	if err != nil {
		return nil, err
	}
	return &gabion{Limiter: l, keys: keys}, l.Compact(ctx, nil)
}

// prepareKeys carries op out, for the first time, on a run of keys.
func prepareKeys(l *engine.Limiter, keys *keySet, first, end int, op engine.Op) error {
	ops := make([]engine.Op, 0, end-first)
	for i := first; i < end; i++ {
		op.Key = keys.name(i)
		ops = append(ops, op)
	}
	for i, r := range l.Do(ops, nil) {
		if r.Err != nil {
			return r.Err
		}
		if !r.Decision.Allowed && !r.Grant.Accepted && !r.Admission.Allowed {
			return fmt.Errorf("%w: %q is new, and is denied", errDecision, ops[i].Key)
		}
	}
	return nil
}

func openGabion(d engine.Durability, cacheSize int64, w *work) opener {
	return func(ctx context.Context, dir string, keys *keySet) (*limiter, error) {
		g, err := newGabion(ctx, dir, keys, d, cacheSize, w.prepare)
		if err != nil {
			return nil, err
		}
		return g.limiter(w), nil
	}
}

// limiter returns g as one that does work w.
func (g *gabion) limiter(w *work) *limiter {
	return &limiter{func(c crowd) decider { return g.decider(c, w) }, g.Close}
}

// decider makes the decider of a caller.
func (g *gabion) decider(c crowd, w *work) decider {
	number, asked := g.callers.Add(1), uint64(0)
	ops := make([]engine.Op, c.inFlight)
	for i := range ops {
		ops[i] = w.op
	}
	results := make([]engine.Result, 0, c.inFlight)
	return func(drawn []int) error {
		for i, k := range drawn {
			ops[i].Key = g.keys.name(k)
			if w.fresh {
				asked++
				ops[i].ID = strconv.FormatUint(number<<32|asked, 36)
			}
		}
		if len(ops) == 1 {
			results = append(results[:0], engine.Result{})
			g.call(&ops[0], &results[0])
		} else {
			results = g.Do(ops, results[:0])
		}
		for i := range results {
			if err := results[i].Err; err != nil {
				return err
			}
			if !w.isDue(&results[i]) {
				return fmt.Errorf("%w: %s of %q: %+v", errDecision, w.name, ops[i].Key, results[i])
			}
		}
		return nil
	}
}

// call carries op out by the method that is for it.
func (g *gabion) call(op *engine.Op, r *engine.Result) {
	switch op.Verb {
	case engine.OpThrottle:
		r.Decision, r.Err = g.Throttle(op.Key, op.Rate, op.N)
	case engine.OpProbe:
		r.Decision, r.Err = g.Probe(op.Key, op.Rate, op.N)
	case engine.OpTakeQuota:
		r.Grant, r.Err = g.TakeQuota(op.Key, op.ID, op.Quota, op.N)
	case engine.OpAllow:
		r.Admission, r.Err = g.Allow(op.Key, op.Rolling)
	default:
		r.Err = engine.ErrInvalidVerb
	}
}
