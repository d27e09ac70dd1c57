package engine_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// TestPurgeRace has everybody work on the same keys, on the real clock: those
// who use them, those who look, a purge in the background and another one that
// is asked for, and at times one who forgets all keys. No key that is live may
// be gone, none that is over may show, and none may come back.
//
// Each key has an owner, which alone changes it and so knows what it must
// answer, but for when exactly its calls were decided: between what the
// engine's clock said before and after. Everybody else knows what the owner has
// said of it, as long as that has held during the whole of their call.
func TestPurgeRace(t *testing.T) {
	length := 1500 * time.Millisecond
	if underRace {
		length = 20 * time.Second
	}
	for _, test := range []struct {
		durability engine.Durability
		cache      int64
	}{
		{engine.Always, 1},
		{engine.Interval, 1},
		{engine.Interval, 1 << 20},
	} {
		t.Run(fmt.Sprintf("%s/cache=%d", test.durability, test.cache), func(t *testing.T) {
			l := open(t, "store", engine.Options{
				Durability: test.durability, SyncInterval: time.Millisecond, CacheSize: test.cache, PurgeWait: 1,
			})
			runPurgeRace(t, l, length)
		})
	}
}

func runPurgeRace(t *testing.T, l *engine.Limiter, length time.Duration) {
	const owners, keysEach = 12, 20
	r := &purgeRace{t: t, l: l, stop: make(chan struct{}), seen: make(map[string]int)}
	for i := range owners * keysEach {
		r.keys = append(r.keys, &raceKey{name: nth(i), window: raceWindows[i%len(raceWindows)]})
	}
	l.OnLook(func() { r.await(rand.IntN(4) / 3 * 30) }) // so that much happens before the turn
	var running sync.WaitGroup
	loop := func(step func(rng *rand.Rand)) {
		rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
		running.Go(func() {
			for !r.stopped() {
				step(rng)
			}
		})
	}
	for o := range owners {
		keys := r.keys[o*keysEach : (o+1)*keysEach]
		loop(func(rng *rand.Rand) {
			r.use(keys[rng.IntN(1+rng.IntN(len(keys)))], rng) // some often, some seldom
		})
	}
	loop(r.lookAtAll)
	loop(r.scan)
	loop(r.lookAtOne)
	loop(func(rng *rand.Rand) {
		r.await(rng.IntN(100))
		r.together(func() { r.must(l.Purge(t.Context())) })
	})
	loop(func(rng *rand.Rand) {
		r.await(2000 + rng.IntN(6000))
		r.together(r.resetAll)
	})
	loop(func(rng *rand.Rand) {
		r.await(2000)
		r.alone(func() {
			r.must(l.Check())
			r.must(l.DB().Flush())
			r.saw("check", 1)
		})
	})
	end := time.Now().Add(length)
	for !r.stopped() {
		select {
		case <-r.stop: // something is wrong
		case <-time.After(10 * time.Millisecond):
		}
		late, missing := time.Since(end), r.missing()
		switch {
		case late > 0 && missing == "":
			r.end()
		case late > time.Minute: // a slow machine may take longer
			r.errorf("%s never came up, or not often", missing)
		}
	}
	running.Wait()
	if t.Failed() {
		return
	}

	// Nothing is left that was over before the last purge.
	l.OnLook(nil)
	now := l.Now().UnixNano()
	purgeNow(t, l)
	for key, value := range contents(t, l.DB()) {
		if deadline, user, _, err := (codec.Keyspace{}).ParseRequestKey(nil, []byte(key)); err == nil && deadline <= now {
			t.Errorf("a request of %q is left, %d ns after its deadline", user, now-deadline)
		}
		if _, user, err := (codec.Keyspace{}).ParseHead(nil, []byte(key)); err == nil {
			if deadline, err := codec.DecodeDeadline([]byte(value)); deadline <= now || err != nil {
				t.Errorf("%q is left, %d ns after its deadline, %v", user, now-deadline, err)
			}
		}
	}
}

// raceWindows are for how long keys live.
var raceWindows = []time.Duration{
	2 * time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond, 200 * time.Millisecond, time.Second,
}

// The policies of a key. Only that of quotas is meant to deny.
const raceQuota = 4

var raceList = limit.Rolling{Limit: 1 << 30}

type purgeRace struct {
	t    *testing.T
	l    *engine.Limiter
	keys []*raceKey

	// turns is held for reading by whoever uses l, and for writing by whoever
	// wants it alone; pausing tells that somebody does.
	turns   sync.RWMutex
	pausing atomic.Bool

	// How often all keys are being or have been forgotten, and have been.
	resetting, resets atomic.Int64

	calls atomic.Int64 // by the owners of keys

	mu      sync.Mutex
	seen    map[string]int // what has come up, and how often
	stop    chan struct{}
	stopOne sync.Once
}

func (r *purgeRace) end() { r.stopOne.Do(func() { close(r.stop) }) }

func (r *purgeRace) stopped() bool {
	select {
	case <-r.stop:
		return true
	default:
		return false
	}
}

func (r *purgeRace) errorf(format string, args ...any) {
	r.t.Errorf(format, args...)
	r.end()
}

func (r *purgeRace) must(err error) {
	if err != nil {
		r.errorf("%v", err)
	}
}

func (r *purgeRace) saw(name string, times int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen[name] += times
}

// missing names something that has not come up often enough to be sure that it
// was tested; "" if there is nothing.
func (r *purgeRace) missing() string {
	if r.resets.Load() == 0 {
		return "reset"
	}
	if r.l.Metrics().Purged < 20 {
		return "purged"
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range []string{
		"live", "over", "began anew", "replay", "quota denied", "long list", "check",
		"live in a view", "over in a view", "live in a scan", "over in a scan", "live in a probe", "over in a probe",
	} {
		if r.seen[name] == 0 {
			return name
		}
	}
	return ""
}

// await waits until owners have made so many calls more, or are kept from it.
func (r *purgeRace) await(calls int) {
	for from := r.calls.Load(); r.calls.Load() < from+int64(calls) && !r.pausing.Load() && !r.stopped(); {
		time.Sleep(50 * time.Microsecond)
	}
}

func (r *purgeRace) together(fn func()) {
	r.turns.RLock()
	defer r.turns.RUnlock()
	fn()
}

func (r *purgeRace) alone(fn func()) {
	r.pausing.Store(true)
	r.turns.Lock()
	defer r.turns.Unlock()
	defer r.pausing.Store(false)
	fn()
}

func (r *purgeRace) resetAll() {
	r.resetting.Add(1)
	r.must(r.l.ResetAll())
	r.resets.Add(1)
}

// calm returns how often all keys have been forgotten. It is not ok while they
// are being.
func (r *purgeRace) calm() (resets int64, ok bool) {
	resets = r.resets.Load()
	return resets, r.resetting.Load() == resets
}

// span is what the engine's clock says before a call and after it.
type span struct{ before, after int64 }

func (r *purgeRace) timed(call func()) (s span) {
	s.before = r.l.Now().UnixNano()
	call()
	s.after = r.l.Now().UnixNano()
	return s
}

// lifetime is what is known of a key: what it holds, and that its deadline is not
// before lo and not after hi. Both are 0 for an absent one.
type lifetime struct {
	kind   limit.Kind
	lo, hi int64
	resets int64 // how often all keys had been forgotten
}

// must tells what a call in s must have found, and whether that can be told.
func (k *lifetime) must(s span) (live, told bool) {
	return k.lo > s.after, k.lo > s.after || k.hi <= s.before
}

// within notes that the deadline lies in lo..hi. It can not be if it returns
// false.
func (k *lifetime) within(lo, hi int64) bool {
	k.lo, k.hi = max(k.lo, lo), min(k.hi, hi)
	return k.lo <= k.hi
}

// over notes that the key was found absent.
func (k *lifetime) over(s span) bool { return k.within(0, s.after) }

// left notes that there was so much time left to the deadline.
func (k *lifetime) left(s span, left time.Duration) bool {
	return k.within(s.before+int64(left), s.after+int64(left))
}

// stat notes what Stat has told.
func (k *lifetime) stat(s span, st engine.Stat) bool {
	if !st.Exists() {
		return st == engine.Stat{} && k.over(s)
	}
	deadline := st.Deadline.UnixNano()
	return st.Kind == k.kind && st.TTL > 0 && k.left(s, st.TTL) && k.within(deadline, deadline)
}

// raceKey is a key with all that its owner knows.
type raceKey struct {
	name   []byte
	window time.Duration

	lifetime         // for the owner
	unknown  bool    // all keys were forgotten during a call
	used     []int64 // by each request of the quota
	first    int     // the id of the first of them
	events   []span  // of the list, oldest first

	// shown is what others may know: nil while the owner is making a call.
	shown atomic.Pointer[lifetime]
}

// begin notes that the key holds nothing.
func (k *raceKey) begin(kind limit.Kind, resets int64) {
	k.lifetime = lifetime{kind: kind, resets: resets}
	k.first += len(k.used)
	k.used, k.events = nil, nil
}

// use makes a call on k, which belongs to the caller.
func (r *purgeRace) use(k *raceKey, rng *rand.Rand) {
	r.turns.RLock()
	defer r.turns.RUnlock()
	defer r.calls.Add(1)
	resets, calm := r.calm()
	if !calm {
		k.shown.Store(nil)
		k.unknown = true
	}
	known := !k.unknown
	if known && k.resets != resets {
		k.begin(k.kind, resets)
	}
	if known && k.hi <= r.l.Now().UnixNano() && rng.IntN(2) == 0 {
		// It is over. What it is used for next may be something else.
		k.begin([]limit.Kind{limit.KindGCRA, limit.KindQuota, limit.KindRolling}[rng.IntN(3)], resets)
	}
	was := k.lifetime
	var ops []engine.Op
	var check func(span, []engine.Result) bool
	switch {
	case !known || rng.IntN(50) == 0:
		ops, check = r.reset(k)
	case k.kind == limit.KindQuota:
		ops, check = r.takeQuota(k, rng)
	case k.kind == limit.KindRolling:
		ops, check = r.record(k, rng)
	default:
		k.kind = limit.KindGCRA
		ops, check = r.throttle(k, rng)
	}
	if rng.IntN(2) == 0 {
		ops = append(ops, engine.Op{Verb: engine.OpStat, Key: k.name})
	}
	k.shown.Store(nil)
	var results []engine.Result
	s := r.timed(func() { results = r.l.Do(ops, nil) })
	if again, calm := r.calm(); !calm || again != resets {
		k.unknown = true
		return
	}
	k.unknown, k.resets = false, resets
	ok := check(s, results)
	for i, op := range ops {
		if op.Verb == engine.OpStat {
			ok = ok && k.stat(s, results[i].Stat)
		}
		ok = ok && results[i].Err == nil
	}
	if !ok {
		r.errorf("%q, with %v left to %v when the call began, %v before it ended: %.3000s", k.name,
			time.Duration(was.lo-s.before), time.Duration(was.hi-s.before), time.Duration(s.after-s.before),
			fmt.Sprintf("%d calls, the last %+v, of %+v", len(ops), ops[len(ops)-1], results))
		return
	}
	if known {
		if live, told := was.must(s); live {
			r.saw("live", 1)
		} else if told {
			r.saw("over", 1)
		}
		if k.lo > was.hi && was.hi != 0 && was.hi <= s.before {
			r.saw("began anew", 1)
		}
	}
	shown := k.lifetime
	k.shown.Store(&shown)
}

func (r *purgeRace) reset(k *raceKey) ([]engine.Op, func(span, []engine.Result) bool) {
	unknown := k.unknown
	return []engine.Op{{Verb: engine.OpReset, Key: k.name}}, func(s span, results []engine.Result) bool {
		ok := unknown || k.stat(s, results[0].Stat)
		k.begin(k.kind, k.resets)
		return ok
	}
}

func (r *purgeRace) throttle(k *raceKey, rng *rand.Rand) ([]engine.Op, func(span, []engine.Result) bool) {
	op := engine.Op{Key: k.name, Rate: limit.Rate{Burst: 1 << 30, Count: 1, Period: k.window}, N: 1}
	if rng.IntN(4) == 0 || k.hi > r.l.Now().Add(k.window).UnixNano() {
		op.Verb, op.N = engine.OpProbe, 0
	}
	return []engine.Op{op}, func(s span, results []engine.Result) bool {
		d := results[0].Decision
		if op.Verb == engine.OpProbe {
			if d.ResetAfter == 0 {
				return d.Allowed && k.over(s)
			}
			return d.Allowed && k.left(s, d.ResetAfter)
		}
		k.lo, k.hi = max(k.lo, s.before)+int64(k.window), max(k.hi, s.after)+int64(k.window)
		return d.Allowed && k.left(s, d.ResetAfter)
	}
}

func (r *purgeRace) takeQuota(k *raceKey, rng *rand.Rand) ([]engine.Op, func(span, []engine.Result) bool) {
	id := k.first + len(k.used)
	if rng.IntN(3) == 0 {
		id = k.first + rng.IntN(len(k.used)+1) // most likely one of this window
	}
	op := engine.Op{Verb: engine.OpTakeQuota, Key: k.name, ID: fmt.Sprint(id), N: 1}
	op.Quota = limit.Quota{Limit: raceQuota, Window: k.window}
	if rng.IntN(5) == 0 {
		op.Verb = engine.OpProbeQuota
	}
	return []engine.Op{op}, func(s span, results []engine.Result) bool {
		g := results[0].Grant
		live, told := k.must(s)
		if !told {
			live = g.ResetAfter < k.window
		}
		if !live { // the request opens a window
			ok := k.over(s) && g == limit.Grant{Accepted: true, Used: 1, Limit: raceQuota, ResetAfter: k.window}
			if op.Verb == engine.OpProbeQuota {
				return ok
			}
			k.begin(k.kind, k.resets)
			k.first = id
			k.used = []int64{1}
			k.lo, k.hi = s.before+int64(k.window), s.after+int64(k.window)
			return ok
		}
		want := limit.Grant{Used: int64(len(k.used)), Limit: raceQuota, ResetAfter: g.ResetAfter}
		switch {
		case id < k.first+len(k.used):
			want.Accepted, want.Replay, want.Used = true, true, k.used[id-k.first]
			r.saw("replay", 1)
		case len(k.used) < raceQuota:
			want.Accepted = true
			want.Used++
			if op.Verb == engine.OpTakeQuota {
				k.used = append(k.used, want.Used)
			}
		default:
			r.saw("quota denied", 1)
		}
		return g == want && k.left(s, g.ResetAfter)
	}
}

func (r *purgeRace) record(k *raceKey, rng *rand.Rand) ([]engine.Op, func(span, []engine.Result) bool) {
	op := engine.Op{Verb: engine.OpAllow, Key: k.name, Rolling: raceList}
	op.Rolling.Window = k.window
	n := 1
	switch rng.IntN(8) {
	case 0:
		n = 150 // more than a head holds
	case 1, 2:
		op.Verb = engine.OpPeek
	}
	if len(k.events) > 2000 {
		op.Verb, n = engine.OpPeek, 1
	}
	ops := make([]engine.Op, n)
	for i := range ops {
		ops[i] = op
	}
	return ops, func(s span, results []engine.Result) bool {
		window := int64(k.window)
		if k.hi <= s.before {
			k.events = nil
		}
		for len(k.events) > 0 && k.events[0].after+window <= s.before {
			k.events = k.events[1:]
		}
		// All that may be live, and those of them that are.
		most, least := int64(len(k.events)), int64(0)
		for _, e := range k.events {
			if e.before+window > s.after {
				least++
			}
		}
		if op.Verb == engine.OpPeek {
			count := results[0].Admission.Count
			if count == 0 {
				k.events = nil
				return least == 0 && k.over(s)
			}
			return least <= count && count <= most
		}
		for i := range n {
			a := results[i].Admission
			own := int64(i)
			if s.after-s.before >= window {
				own = 0 // the first of these may be gone before the last comes
			}
			if !a.Allowed || a.Count < least+own+1 || a.Count > most+int64(i)+1 {
				return false
			}
			k.events = append(k.events, s)
		}
		if len(k.events) > limit.MaxRuns {
			r.saw("long list", 1)
		}
		k.lo, k.hi = s.before+window, s.after+window
		return true
	}
}

// look makes a call that tells of all keys or of some, and checks that. It
// calls tell with a key for each key that it looks at, and with what it sees.
func (r *purgeRace) look(name string, call func(tell func(key []byte, st engine.Stat))) {
	r.turns.RLock()
	defer r.turns.RUnlock()
	before := make([]*lifetime, len(r.keys))
	for i, k := range r.keys {
		before[i] = k.shown.Load()
	}
	resets, calm := r.calm()
	told := make(map[string]engine.Stat)
	s := r.timed(func() {
		call(func(key []byte, st engine.Stat) { told[string(key)] = st })
	})
	if again, ok := r.calm(); !ok || again != resets {
		calm = false
	}
	live, over := 0, 0
	for i, k := range r.keys {
		st, looked := told[string(k.name)]
		if st.Exists() {
			if now := st.Deadline.UnixNano() - int64(st.TTL); st.TTL <= 0 || now < s.before || now > s.after {
				r.errorf("%q shows as %+v, between %d and %d", k.name, st, s.before, s.after)
			}
		}
		if !looked || !calm || before[i] == nil || before[i] != k.shown.Load() || before[i].resets != resets {
			continue
		}
		known := *before[i]
		if must, told := known.must(s); must {
			live++
		} else if told {
			over++
		}
		if !known.stat(s, st) {
			r.errorf("%q shows as %+v in a %s, with %v to %v left when it began and %v before it ended", k.name, st, name,
				time.Duration(before[i].lo-s.before), time.Duration(before[i].hi-s.before), time.Duration(s.after-s.before))
		}
	}
	r.saw("live in a "+name, live)
	r.saw("over in a "+name, over)
}

// lookAtAll asks for all keys in one view.
func (r *purgeRace) lookAtAll(*rand.Rand) {
	r.look("view", func(tell func([]byte, engine.Stat)) {
		r.must(r.l.View(func(v *engine.View) error {
			for _, k := range r.keys {
				st, err := v.Stat(k.name)
				if err != nil {
					return err
				}
				tell(k.name, st)
			}
			return nil
		}))
	})
}

// scan visits all keys, in one go or in steps.
func (r *purgeRace) scan(rng *rand.Rand) {
	count := 50
	if rng.IntN(2) == 0 {
		count = math.MaxInt
	}
	r.look("scan", func(tell func([]byte, engine.Stat)) {
		for _, k := range r.keys {
			tell(k.name, engine.Stat{})
		}
		for cursor, first := 0, true; first || cursor != 0; first = false {
			next, err := r.l.Scan(cursor, count, tell)
			if err != nil {
				r.errorf("Scan: %v", err)
				return
			}
			cursor = next
		}
	})
}

func (r *purgeRace) lookAtOne(rng *rand.Rand) {
	r.look("probe", func(tell func([]byte, engine.Stat)) {
		key := r.keys[rng.IntN(len(r.keys))].name
		st, err := r.l.Stat(key)
		r.must(err)
		tell(key, st)
	})
}

// purgeNow has l purge.
func purgeNow(t *testing.T, l *engine.Limiter) {
	t.Helper()
	if err := l.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
}
