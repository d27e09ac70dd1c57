package engine

import (
	"bytes"
	"fmt"
	"math/bits"
	"sync"

	"github.com/gabiondb/gabion/engine/limit"
)

// Charge is one of several that are decided together.
type Charge struct {
	Key  []byte // 1 to MaxKeyLen arbitrary bytes; not retained
	Rate limit.Rate
	N    int64 // events, 0..2^63-1; 0 looks only
}

// ThrottleAll charges all of 1 to MaxTogether charges if all of them may pass,
// and none of them if not. All were charged if limit.Decisions.Denied is 0. If not
// then none was, though those that might have passed are Allowed; Remaining and
// ResetAfter tell how the keys were and are, and after limit.Decisions.RetryAfter
// all would pass, if nobody else came. The decisions are in the order of the charges.
//
// Each limit needs a key of its own. What may happen ten times a minute and a
// hundred times a day has two, such as user:42/minute and user:42/day: a key is one
// balance, whatever rates it is asked under. A key that is named more than once is
// judged, each time, on all that the charges up to there ask of it.
//
// All is one change at one instant, on disk as a whole or not at all. Durability
// and errors are as with Throttle; whatever is wrong with one charge, nothing is
// charged.
func (l *Limiter) ThrottleAll(charges ...Charge) (limit.Decisions, error) {
	return l.several(OpThrottleAll, charges)
}

// ThrottleEach decides 1 to MaxTogether charges each by itself, in order, at one
// instant: those that may pass are charged. Otherwise it is as ThrottleAll.
func (l *Limiter) ThrottleEach(charges ...Charge) (limit.Decisions, error) {
	return l.several(OpThrottleEach, charges)
}

// ProbeAll answers what ThrottleAll would answer at this instant, and changes
// nothing. It sees one state of the store.
func (l *Limiter) ProbeAll(charges ...Charge) (limit.Decisions, error) {
	return l.several(OpProbeAll, charges)
}

// ProbeEach answers what ThrottleEach would answer at this instant, and changes
// nothing. It sees one state of the store.
func (l *Limiter) ProbeEach(charges ...Charge) (limit.Decisions, error) {
	return l.several(OpProbeEach, charges)
}

func (l *Limiter) several(verb Verb, charges []Charge) (limit.Decisions, error) {
	return decisionsOf(charges, l.Do(opsOf(verb, charges), nil))
}

// opsOf returns the operations that carry out charges together.
func opsOf(verb Verb, charges []Charge) []Op {
	ops := make([]Op, max(len(charges), 1)) // none is an operation that is refused
	for i, c := range charges {
		ops[i] = Op{Verb: verb, Key: c.Key, Rate: c.Rate, N: c.N}
	}
	ops[0].Verb, ops[0].With = verb, len(charges)-1
	return ops
}

func decisionsOf(charges []Charge, results []Result) (limit.Decisions, error) {
	if err := results[0].Err; err != nil {
		return nil, err
	}
	decisions := make(limit.Decisions, len(charges))
	for i := range decisions {
		decisions[i] = results[i].Decision
	}
	return decisions, nil
}

// isForSeveral tells whether operations of verb v may go together.
func (v Verb) isForSeveral() bool { return OpThrottleAll <= v && v <= OpProbeEach }

// together returns how many of ops, which are one or more, are one operation.
func together(ops []Op) int {
	if !ops[0].Verb.isForSeveral() {
		return 1
	}
	return 1 + min(max(ops[0].With, 0), len(ops)-1)
}

// stepTogether carries out ops, which are one operation, as far as deciding and
// staging go.
func (l *Limiter) stepTogether(ops []Op, rs []Result) error {
	if err := l.checkTogether(ops); err != nil {
		return err
	}
	g := l.gather(ops)
	defer g.release()
	if g.verb.looks() {
		return l.lookTogether(g, rs)
	}
	var held shardSet
	for i := range g.turns {
		held.add(g.turns[i].slice)
	}
	held.lock(l)
	defer held.unlock(l)
	return l.runTogether(g, l.clock.now(), rs)
}

// checkTogether returns what is wrong with the arguments of ops.
func (l *Limiter) checkTogether(ops []Op) error {
	switch with := ops[0].With; {
	case with < 0:
		return fmt.Errorf("%w: no charges", limit.ErrInvalid)
	case with >= MaxTogether:
		return fmt.Errorf("%w: more than %d charges together", limit.ErrInvalid, MaxTogether)
	case with > len(ops)-1:
		return fmt.Errorf("%w: %d operations to go with the first, of which there are %d", limit.ErrInvalid, with, len(ops)-1)
	}
	for i := range ops {
		if ops[i].Verb != ops[0].Verb {
			return fmt.Errorf("%w: verbs %d and %d together", limit.ErrInvalid, ops[0].Verb, ops[i].Verb)
		}
		if err := l.check(&ops[i]); err != nil {
			return fmt.Errorf("%w: charge %d of %d", err, i+1, len(ops))
		}
	}
	return nil
}

// group is several operations on their way: the rows, and for each of their
// keys a turn and a state.
type group struct {
	verb      Verb
	rows      []limit.Row
	turns     []turn
	states    []limit.GCRAState
	decisions []limit.Decision
}

// groups holds groups for their memory.
var groups = sync.Pool{New: func() any { return new(group) }}

func (g *group) release() {
	clear(g.turns) // of their keys
	g.rows, g.turns, g.states = g.rows[:0], g.turns[:0], g.states[:0]
	groups.Put(g)
}

// gather returns the group of ops, with the turns of their keys, none of them taken.
// Whoever calls it releases it.
func (l *Limiter) gather(ops []Op) *group {
	g := groups.Get().(*group)
	g.verb = ops[0].Verb
	for i := range ops {
		op := &ops[i]
		t := l.turnOf(op.Key)
		n := 0
		for n < len(g.turns) && (g.turns[n].slice != t.slice || !bytes.Equal(g.turns[n].key, t.key)) {
			n++
		}
		if n == len(g.turns) {
			g.turns = append(g.turns, t)
		}
		g.rows = append(g.rows, limit.Row{State: n, Rate: op.Rate, N: op.N})
	}
	g.states = append(g.states[:0], make([]limit.GCRAState, len(g.turns))...)
	g.decisions = append(g.decisions[:0], make([]limit.Decision, len(ops))...)
	return g
}

// decide decides the rows, at now, on the states of the turns.
func (g *group) decide(now int64, rs []Result) error {
	decide := limit.TakeEach
	if g.verb == OpThrottleAll || g.verb == OpProbeAll {
		decide = limit.TakeAll
	}
	for i := range g.turns {
		g.states[i] = g.turns[i].state.GCRA
	}
	err := decide(now, g.states, g.rows, g.decisions)
	for i := range g.turns {
		if t := &g.turns[i]; refused(err, t.state.Kind, limit.KindGCRA) == ErrWrongKind {
			return fmt.Errorf("%w: %q", ErrWrongKind, t.key)
		}
	}
	if err != nil {
		return err
	}
	for i := range rs {
		rs[i].Decision = g.decisions[i]
	}
	return nil
}

// runTogether carries out g at now, in the turns of its keys. Whoever calls it
// holds the mutexes of all shards that these are of.
func (l *Limiter) runTogether(g *group, now int64, rs []Result) error {
	for i := range g.turns {
		t := &g.turns[i]
		t.now = now
		if err := l.load(t); err != nil {
			return err
		}
	}
	err := g.decide(now, rs)
	for i := range g.turns {
		t := &g.turns[i]
		if next := g.states[i]; err == nil && !g.verb.looks() && next != t.state.GCRA {
			t.sh.cache.keep(t.entry, l.rounds.applied.Load())
			l.put(t, limit.State{Kind: limit.KindGCRA, GCRA: next})
		}
		rs[0].round = max(rs[0].round, t.round)
	}
	for i := range rs {
		rs[i].round = rs[0].round // each rests on all of them
	}
	return err
}

// lookTogether carries out g, which changes nothing, on a view of its own.
func (l *Limiter) lookTogether(g *group, rs []Result) error {
	var staged uint64
	for i := range g.turns {
		staged = max(staged, l.stagedRound(g.turns[i].slice, g.turns[i].key))
	}
	v, err := l.view(staged)
	if err != nil {
		return err
	}
	defer v.close()
	for i := range rs {
		rs[i].round = v.round
	}
	return v.lookTogether(g, rs)
}

func (v *View) lookTogether(g *group, rs []Result) (err error) {
	for i := range g.turns {
		t := &g.turns[i]
		if t.state, err = v.state(t.key); err != nil {
			return err
		}
	}
	return g.decide(v.now, rs)
}

// ProbeAll answers what ThrottleAll would have answered at the instant of the
// view.
func (v *View) ProbeAll(charges ...Charge) (limit.Decisions, error) {
	return v.several(OpProbeAll, charges)
}

// ProbeEach answers what ThrottleEach would have answered at the instant of the
// view.
func (v *View) ProbeEach(charges ...Charge) (limit.Decisions, error) {
	return v.several(OpProbeEach, charges)
}

func (v *View) several(verb Verb, charges []Charge) (limit.Decisions, error) {
	ops := opsOf(verb, charges)
	if err := v.l.checkTogether(ops); err != nil {
		return nil, err
	}
	g := v.l.gather(ops)
	defer g.release()
	rs := make([]Result, len(ops))
	rs[0].Err = v.lookTogether(g, rs)
	return decisionsOf(charges, rs)
}

// shardSet is a set of shards, a bit for each. Their mutexes are taken in
// ascending order, whatever the order they were added in.
type shardSet uint64

const _ = uint(64 - shardCount) // a bit for each

func (s *shardSet) add(slice uint16) { *s |= 1 << shardNumber(slice) }

func (s shardSet) lock(l *Limiter) {
	for ; s != 0; s &= s - 1 {
		l.shards[bits.TrailingZeros64(uint64(s))].mu.Lock()
	}
}

func (s shardSet) unlock(l *Limiter) {
	for ; s != 0; s &= s - 1 {
		l.shards[bits.TrailingZeros64(uint64(s))].mu.Unlock()
	}
}
