package limit_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/gabiondb/gabion/engine/limit"
)

// rollingOracle is a rolling list that keeps every stamp, one by one. A stamp
// stands for unit events, so that a few of them make a large list.
type rollingOracle struct {
	stamps   []int64
	deadline int64
	unit     int64
}

// live returns the stamps that are live at now.
func (o *rollingOracle) live(now int64, window time.Duration) []int64 {
	live := make([]int64, 0, len(o.stamps)+16)
	for _, stamp := range o.stamps {
		if now < o.deadline && now-stamp < int64(window) {
			live = append(live, stamp)
		}
	}
	return live
}

func (o *rollingOracle) clamp(now int64) int64 {
	for _, stamp := range o.stamps {
		now = max(now, stamp)
	}
	return now
}

// add records as many of n units as fit, and tells how many were live before
// and how many have been recorded.
func (o *rollingOracle) add(now int64, r limit.Rolling, n int64) (before, recorded int64, err error) {
	if r.Limit > 1<<53-1 || r.Window < 1 || r.Window > 315_360_000*time.Second || n < 0 || n > 1<<53-1 {
		return 0, 0, limit.ErrInvalid
	}
	now = o.clamp(now)
	live := o.live(now, r.Window)
	places := r.Limit / o.unit
	if r.Pause && r.Limit > 0 {
		places++
	}
	before = int64(len(live))
	for recorded < n && int64(len(live)) < places {
		live = append(live, now)
		recorded++
	}
	if recorded > 0 {
		if now > math.MaxInt64-int64(r.Window) {
			return 0, 0, limit.ErrOutOfRange
		}
		o.stamps, o.deadline = live, now+int64(r.Window)
	}
	return before, recorded, nil
}

func (o *rollingOracle) wait(now int64, r limit.Rolling) time.Duration {
	now = o.clamp(now)
	live := o.live(now, r.Window)
	n := int64(len(live)) - r.Limit/o.unit
	switch {
	case r.Limit <= 0:
		return limit.Never
	case n < 0:
		return 0
	}
	return min(r.Window-time.Duration(now-live[n]), time.Duration(o.deadline-now))
}

// disk keeps the chunks of one list.
type disk struct {
	chunks []*limit.Chunk
	reads  int
	fail   error
}

func (d *disk) read(ordinal int64) (*limit.Chunk, error) {
	d.reads++
	if d.fail != nil {
		return nil, d.fail
	}
	i := sort.Search(len(d.chunks), func(i int) bool { return d.chunks[i].Next > ordinal })
	if i == len(d.chunks) || d.chunks[i].Runs[0].Ordinal > ordinal {
		return nil, fmt.Errorf("no chunk holds %d", ordinal)
	}
	return d.chunks[i], nil
}

// apply writes what a call has changed. It deletes the oldest chunks only, and
// whole ones only.
func (d *disk) apply(c limit.Change) error {
	dead := 0
	for _, chunk := range d.chunks {
		if first := chunk.Runs[0].Ordinal; first < c.Dead.From || first >= c.Dead.To {
			break
		}
		if chunk.Next > c.Dead.To {
			return fmt.Errorf("chunk %d..%d is in %+v only in part", chunk.Runs[0].Ordinal, chunk.Next, c.Dead)
		}
		dead++
	}
	if c.Dead.Single && dead != 1 || c.Dead.Empty() && dead != 0 {
		return fmt.Errorf("%d chunks are in %+v", dead, c.Dead)
	}
	d.chunks = d.chunks[dead:]
	if c.Seal != nil {
		d.chunks = append(d.chunks, c.Seal)
	}
	return nil
}

// check tells whether s and the chunks of d are one list.
func (d *disk) check(s limit.RollingState) error {
	if !s.Valid() {
		return fmt.Errorf("%+v is not valid", s)
	}
	if got := s.Chunks(); got.From != s.Front || got.To != s.Runs[0].Ordinal || got.Empty() != (len(d.chunks) == 0) {
		return fmt.Errorf("%+v has chunks in %+v, and there are %d", s, got, len(d.chunks))
	}
	next := s.Front
	for i, c := range d.chunks {
		after := s.Runs[0].Stamp
		if i+1 < len(d.chunks) {
			after = d.chunks[i+1].Runs[0].Stamp
		}
		if !c.Valid() || c.Runs[0].Ordinal != next || c.After != after || c.Next <= s.First {
			return fmt.Errorf("chunk %d of %+v is %+v, want it to begin at %d and be followed by %d", i, s, *c, next, after)
		}
		next = c.Next
	}
	if next != s.Runs[0].Ordinal {
		return fmt.Errorf("%+v: the chunks end at %d", s, next)
	}
	return nil
}

// stamps returns the stamps of all events of the list that have not been
// forgotten, one for every unit of events.
func (d *disk) stamps(s limit.RollingState, unit int64) []int64 {
	var runs []limit.Run
	for _, c := range d.chunks {
		runs = append(runs, c.Runs...)
	}
	runs = append(runs, s.Runs...)
	var stamps []int64
	for i, run := range runs {
		next := s.Next
		if i+1 < len(runs) {
			next = runs[i+1].Ordinal
		}
		for ordinal := max(run.Ordinal, s.First); ordinal < next; ordinal += unit {
			stamps = append(stamps, run.Stamp)
		}
	}
	return stamps
}

// reopen returns s as it is read back from a record.
func reopen(s limit.RollingState) limit.RollingState {
	return limit.RollingState{Deadline: s.Deadline, Front: s.Front, First: s.First, Next: s.Next, Runs: slices.Clone(s.Runs)}
}

func sameRecord(a, b limit.RollingState) bool {
	return a.Deadline == b.Deadline && a.Front == b.Front && a.First == b.First && a.Next == b.Next && slices.Equal(a.Runs, b.Runs)
}

// rollingTrace makes calls on one list and compares each with the oracle.
type rollingTrace struct {
	now  int64
	r    limit.Rolling
	unit int64
	s    limit.RollingState
	disk disk
	want rollingOracle
	seen outcomes
}

// A trace of calls on a rolling list is a byte that says how it begins, and
// rollingStep bytes for each step, which is a number of like calls.
const (
	rollingStep     = 6
	maxRollingSteps = 100
	maxRollingCalls = 1000
)

func checkRolling(trace []byte, seen outcomes) error {
	if len(trace) == 0 {
		return nil
	}
	tr := rollingTrace{
		now:  begin(trace[0]),
		r:    limit.Rolling{Limit: 3, Window: 1000},
		unit: 1,
		seen: seen,
	}
	if trace[0] >= 192 {
		tr.unit = 1 << 42
	}
	tr.want.unit = tr.unit
	trace = trace[1:]
	calls := 0
	for i := 0; len(trace) >= rollingStep && i < maxRollingSteps && calls < maxRollingCalls; i, trace = i+1, trace[rollingStep:] {
		n, err := tr.step([rollingStep]byte(trace))
		if err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
		calls += n
	}
	return nil
}

// step makes the calls of one step and returns how many.
func (tr *rollingTrace) step(b [rollingStep]byte) (int, error) {
	verb, limits, windows, amounts, advance, repeat := b[0], b[1], b[2], b[3], b[4], b[5]
	usual := tr.r
	switch {
	case limits < 100:
	case limits < 107:
		tr.r.Limit = []int64{limit.MaxLimit, limit.MaxLimit + 1, math.MaxInt64, math.MinInt64, -1, 0, 1}[limits-100]
	default:
		tr.r.Limit = int64(limits-106) * 7
	}
	switch {
	case windows < 180:
	case windows < 186:
		tr.r.Window = []time.Duration{limit.MaxWindow, limit.MaxWindow + 1, 0, -1, math.MaxInt64, 1}[windows-180]
	default:
		tr.r.Window = time.Duration(small(windows-60)) / 4
	}
	tr.r.Pause = verb&8 != 0
	if tr.unit > 1 {
		tr.r.Pause = false
		if tr.r.Limit > 0 {
			tr.r.Limit = min(tr.r.Limit, 1<<53/tr.unit-1) * tr.unit
		}
	}
	amount := int64(amounts) / 16
	switch {
	case amounts == 255 && tr.r.Limit/tr.unit < 10_000:
		amount = limit.MaxLimit / tr.unit
	case amounts == 254:
		amount = -1
	case amounts == 253 && tr.unit == 1:
		amount = limit.MaxLimit + 1
	}

	switch verb % 8 {
	case 6:
		if tr.s.Deadline <= tr.now {
			tr.s, tr.disk.chunks, tr.want.stamps = limit.RollingState{}, nil, nil // purged
			tr.seen["purged"]++
		}
		tr.s = reopen(tr.s)
	case 7:
		if advance < 32 {
			tr.s, tr.disk.chunks, tr.want.stamps, tr.want.deadline = limit.RollingState{}, nil, nil, 0
			tr.seen["deleted"]++
		}
	}
	before, beforeCopy := tr.s, reopen(tr.s)
	var invalid bool
	mode := verb >> 4 % 8
	calls := 1 + int(repeat)
	if calls < 160 || mode == 1 || mode == 5 {
		calls = 1 + calls/32
	}
	for range calls {
		tr.advance(mode, advance)
		var err error
		if verb%8 < 3 && tr.unit == 1 {
			err = tr.allow()
		} else {
			err = tr.increment(amount)
		}
		if invalid = errors.Is(err, limit.ErrInvalid); invalid {
			tr.seen["invalid"]++
			break
		}
		if err != nil {
			return 0, fmt.Errorf("at %d with %+v and %d: %w", tr.now, tr.r, amount, err)
		}
	}
	if err := tr.settle(); err != nil {
		return 0, fmt.Errorf("at %d with %+v: %w", tr.now, tr.r, err)
	}
	if !sameRecord(before, beforeCopy) {
		return 0, fmt.Errorf("%+v has become %+v", beforeCopy, before)
	}
	if invalid {
		tr.r = usual
	}
	return calls, nil
}

func (tr *rollingTrace) advance(mode, b byte) {
	switch mode {
	case 0:
		tr.now += int64(b) / 2
	case 1:
		tr.now += small(b)
	case 3:
		tr.now += int64(b) / 128
	case 4:
		wait, _ := tr.s.Wait(tr.now, tr.r, tr.disk.read)
		if wait != limit.Never {
			tr.now += int64(wait) + int64(b%3) - 1
		}
	case 5:
		tr.now = max(tr.now, tr.s.Deadline+int64(b%3)-1)
	case 6:
		tr.now -= int64(b) / 8 // which an engine's clock never does
	default:
		tr.now += int64(b) / 16
	}
	tr.now = max(1, tr.now&math.MaxInt64)
}

func (tr *rollingTrace) allow() error {
	next, a, change, err := tr.s.Allow(tr.now, tr.r, tr.read())
	before, recorded, wantErr := tr.want.add(tr.now, tr.r, 1)
	want := limit.Admission{}
	if wantErr == nil {
		want = limit.Admission{
			Allowed: before < tr.r.Limit,
			Count:   before + recorded,
			Limit:   tr.r.Limit,
			Wait:    tr.want.wait(tr.now, tr.r),
		}
	}
	if a != want || !errors.Is(err, wantErr) {
		return fmt.Errorf("%+v.Allow() = %+v, %v, want %+v, %v", tr.s, a, err, want, wantErr)
	}
	switch {
	case errors.Is(err, limit.ErrOutOfRange):
	case a.Allowed:
		tr.seen["allowed"]++
	case recorded > 0:
		tr.seen["paused"]++
	case a.Wait == limit.Never:
		tr.seen["never"]++
	default:
		tr.seen["denied"]++
	}
	return tr.take(next, change, recorded, err)
}

func (tr *rollingTrace) increment(amount int64) error {
	next, total, change, err := tr.s.Increment(tr.now, tr.r, amount*tr.unit, tr.read())
	before, recorded, wantErr := tr.want.add(tr.now, tr.r, amount)
	var want int64
	if wantErr == nil {
		places := max(tr.r.Limit, 0)
		if tr.r.Pause && places > 0 {
			places++
		}
		want = min((before+amount)*tr.unit, places+1)
	}
	if total != want || !errors.Is(err, wantErr) {
		return fmt.Errorf("%+v.Increment(%d) = %d, %v, want %d, %v", tr.s, amount*tr.unit, total, err, want, wantErr)
	}
	switch {
	case errors.Is(err, limit.ErrOutOfRange):
	case recorded == 0:
		tr.seen["full"]++
	case recorded < amount:
		tr.seen["in part"]++
	default:
		tr.seen["incremented"]++
	}
	return tr.take(next, change, recorded*tr.unit, err)
}

// read returns what reads the chunks of the list, from which a list without
// chunks never reads.
func (tr *rollingTrace) read() limit.ChunkReader {
	tr.disk.reads = 0
	if tr.s.Chunks().Empty() {
		return nil
	}
	return tr.disk.read
}

// take goes on from the state that a call has returned.
func (tr *rollingTrace) take(next limit.RollingState, change limit.Change, recorded int64, err error) error {
	if tr.disk.reads > 70 {
		return fmt.Errorf("%d reads", tr.disk.reads)
	}
	if err != nil || recorded == 0 {
		if !sameRecord(next, tr.s) || change != (limit.Change{}) {
			return fmt.Errorf("nothing was recorded, but %+v has become %+v with %+v", tr.s, next, change)
		}
		tr.s = next
		if errors.Is(err, limit.ErrOutOfRange) {
			tr.seen["out of range"]++
			return nil
		}
		return err
	}
	if change.Recorded != recorded {
		return fmt.Errorf("%d were recorded, want %d", change.Recorded, recorded)
	}
	switch {
	case change.Dead.Single:
		tr.seen["chunk dead"]++
	case !change.Dead.Empty():
		tr.seen["chunks dead"]++
	}
	if change.Seal != nil {
		tr.seen["sealed"]++
	}
	if next.First == 0 && tr.s.Next > 0 && next.Next == recorded {
		tr.seen["emptied"]++
	}
	tr.s = next
	return tr.disk.apply(change)
}

// settle compares the whole list with the oracle's, and what the calls that
// only look say of it.
func (tr *rollingTrace) settle() error {
	if len(tr.s.Runs) == 0 {
		if len(tr.want.stamps) > 0 {
			return fmt.Errorf("the list is empty, want %d stamps", len(tr.want.stamps))
		}
		return nil
	}
	if err := tr.disk.check(tr.s); err != nil {
		return err
	}
	if got := tr.disk.stamps(tr.s, tr.unit); !slices.Equal(got, tr.want.stamps) || tr.s.Deadline != tr.want.deadline {
		return fmt.Errorf("the list is %v until %d, want %v until %d", got, tr.s.Deadline, tr.want.stamps, tr.want.deadline)
	}
	count, err := tr.s.Peek(tr.now, tr.r, tr.disk.read)
	wait, waitErr := tr.s.Wait(tr.now, tr.r, tr.disk.read)
	live, _, wantErr := tr.want.add(tr.now, tr.r, 0)
	if wantErr != nil {
		if !errors.Is(err, wantErr) || !errors.Is(waitErr, wantErr) {
			return fmt.Errorf("Peek and Wait fail with %v, %v, want %v", err, waitErr, wantErr)
		}
		return nil
	}
	if want := tr.want.wait(tr.now, tr.r); err != nil || waitErr != nil || count != live*tr.unit || wait != want {
		return fmt.Errorf("Peek = %d, %v and Wait = %d, %v, want %d and %d", count, err, wait, waitErr, live*tr.unit, want)
	}
	return tr.checkWait(wait)
}

// checkWait tells whether a call passes after the wait, to the nanosecond and
// in the whole milliseconds of the protocol, and does not before.
func (tr *rollingTrace) checkWait(wait time.Duration) error {
	passes := func(now int64) bool {
		_, a, _, err := tr.s.Allow(now, tr.r, tr.disk.read)
		if errors.Is(err, limit.ErrOutOfRange) {
			count, _ := tr.s.Peek(now, tr.r, tr.disk.read)
			return count < tr.r.Limit
		}
		return a.Allowed
	}
	now := max(tr.now, tr.s.Runs[len(tr.s.Runs)-1].Stamp) // should time have gone back
	switch {
	case wait == limit.Never:
		if passes(now) {
			return errors.New("a call passes that never should")
		}
	case !passes(now + int64(wait)):
		return fmt.Errorf("denied after a wait of %d", wait)
	case wait > 0 && passes(now+int64(wait)-1):
		return fmt.Errorf("allowed 1 ns before a wait of %d is over", wait)
	case wait > 0:
		ms := milliseconds(wait)
		if passes(now + (ms-1)*int64(time.Millisecond)) {
			return fmt.Errorf("allowed 1 ms before a wait of %d ms is over", ms)
		}
		if ms <= (math.MaxInt64-now)/int64(time.Millisecond) && !passes(now+ms*int64(time.Millisecond)) {
			return fmt.Errorf("denied after %d ms", ms)
		}
	}
	return nil
}

func TestRollingRandom(t *testing.T) {
	seen := outcomes{}
	for seed := range uint64(300) {
		if err := checkRolling(randomBytes(seed, 1+rollingStep*maxRollingSteps), seen); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	for _, name := range []string{
		"allowed", "denied", "paused", "never", "incremented", "in part", "full", "invalid", "out of range",
		"deleted", "purged", "emptied", "sealed", "chunk dead", "chunks dead",
	} {
		if seen[name] < 50 {
			t.Errorf("%q came up %d times in %v, want 50 or more", name, seen[name], seen)
		}
	}
	t.Logf("%v", seen)
}

func FuzzRolling(f *testing.F) {
	for seed := range uint64(10) {
		f.Add(randomBytes(seed, 1+rollingStep*20))
	}
	f.Fuzz(func(t *testing.T, trace []byte) {
		if err := checkRolling(trace, outcomes{}); err != nil {
			t.Fatal(err)
		}
	})
}
