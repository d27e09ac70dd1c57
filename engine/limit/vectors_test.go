package limit_test

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/gabiondb/gabion/engine/limit"
	"github.com/gabiondb/gabion/engine/limit/limittest"
)

// vectors are the files of vectors.
var vectors = []struct {
	name   string
	groups []limittest.Group
}{
	{"throttle.tsv", limittest.Throttle()},
	{"quota.tsv", limittest.Quota()},
	{"several.tsv", limittest.Several()},
	{"rolling.tsv", limittest.Rolling()},
}

// bases are when the vectors begin.
var bases = []int64{1, 1_700_000_000_000_000_000, 1_700_000_000_123_456_789, math.MaxInt64 - 2_000_000_000_000_000}

func TestVectors(t *testing.T) {
	for _, base := range bases {
		for _, file := range vectors {
			for _, g := range file.groups {
				s := store{states: map[string]limit.State{}, requests: map[requestKey]limit.Request{}}
				for _, step := range g.Steps {
					got, err := s.run(t, base+int64(step.At), step.Command)
					if !slices.Equal(got, step.Want) || err != step.Err {
						t.Errorf("%s:%d: at %d + %v: %v = %v %s, want %v %s",
							file.name, step.Line, base, step.At, step.Command, got, err, step.Want, step.Err)
					}
				}
			}
		}
	}
}

// store is the least store that the commands of the vectors need.
type store struct {
	states   map[string]limit.State
	requests map[requestKey]limit.Request
}

type requestKey struct {
	key       string
	windowEnd int64
	id        string
}

// live returns the state of key, unless it is over at now.
func (s store) live(key string, now int64) limit.State {
	if state := s.states[key]; state.Deadline() > now {
		return state
	}
	return limit.State{}
}

// run carries out one command and returns its reply or the code of its error.
func (s store) run(t *testing.T, now int64, command []string) (reply []int64, code string) {
	name, key, args := command[0], command[1], command[2:]
	state := s.live(key, now)
	switch name {
	case "EXISTS":
		return []int64{boolean(state.Kind != limit.KindNone)}, ""
	case "DEL":
		delete(s.states, key)
		for k := range s.requests {
			if k.key == key {
				delete(s.requests, k)
			}
		}
		return []int64{boolean(state.Kind != limit.KindNone)}, ""
	case "CL.THROTTLE", "CL.PROBE":
		n := append(integers(t, args), 1)
		r := limit.Rate{Burst: n[0], Count: n[1], Period: time.Duration(n[2]) * time.Second}
		next, d, err := state.GCRA.Take(now, r, n[3])
		if err != nil {
			t.Fatalf("%v: %v", command, err)
		}
		if name == "CL.THROTTLE" {
			s.states[key] = limit.State{Kind: limit.KindGCRA, GCRA: next}
		}
		return throttled(d), ""
	case "CL.REFUND":
		n := integers(t, args)
		next, d, err := state.GCRA.Refund(now, limit.Rate{Burst: n[0], Count: n[1], Period: time.Duration(n[2]) * time.Second}, n[3])
		if err != nil {
			t.Fatalf("%v: %v", command, err)
		}
		s.states[key] = limit.State{Kind: limit.KindGCRA, GCRA: next} // a full one has expired
		return throttled(d), ""
	case "CL.MTHROTTLE", "CL.MPROBE":
		keys, rows := rowsOf(t, command)
		states := make([]limit.GCRAState, len(keys))
		for i, key := range keys {
			states[i] = s.live(key, now).GCRA
		}
		decisions := make(limit.Decisions, len(rows))
		take := limit.TakeAll
		if key == "EACH" {
			take = limit.TakeEach
		}
		if err := take(now, states, rows, decisions); err != nil {
			t.Fatalf("%v: %v", command, err)
		}
		for i, key := range keys {
			if name == "CL.MTHROTTLE" {
				s.states[key] = limit.State{Kind: limit.KindGCRA, GCRA: states[i]}
			}
		}
		return together(int64(decisions.Denied()), decisions.RetryAfter(), decisions), ""
	case "QUOTA.REFUND":
		id := requestKey{key, state.Quota.Deadline, args[0]}
		next, r := state.Quota.Refund(now, s.requests[id])
		if r.Refunded && !r.Replay {
			s.states[key] = limit.State{Kind: limit.KindQuota, Quota: next}
			s.requests[id] = limit.Request{Cost: r.Cost, Used: r.Used, Refunded: true}
		}
		return []int64{boolean(r.Refunded), r.Used, boolean(r.Replay)}, ""
	case "QUOTA.TAKE", "QUOTA.PROBE":
		if err := limit.CheckRequestID(args[0]); err != nil {
			t.Fatalf("%v: %v", command, err)
		}
		n := integers(t, args[1:])
		q := limit.Quota{Limit: n[1], Window: time.Duration(n[2]) * time.Millisecond}
		earlier := s.requests[requestKey{key, state.Quota.Deadline, args[0]}]
		next, g, err := state.Quota.Take(now, q, n[0], earlier)
		switch {
		case errors.Is(err, limit.ErrConflict):
			return nil, "CONFLICT"
		case errors.Is(err, limit.ErrPolicyChanged):
			return nil, "POLICY"
		case err != nil:
			t.Fatalf("%v: %v", command, err)
		}
		if name == "QUOTA.TAKE" && g.Accepted && !g.Replay {
			s.states[key] = limit.State{Kind: limit.KindQuota, Quota: next}
			s.requests[requestKey{key, next.Deadline, args[0]}] = limit.Request{Cost: n[0], Used: g.Used}
		}
		return []int64{boolean(g.Accepted), g.Used, boolean(g.Replay)}, ""
	case "ROLL.ALLOW", "ROLL.INCR", "ROLL.PEEK", "ROLL.WAIT":
		return s.roll(t, now, command, state.Rolling), ""
	}
	t.Fatalf("unknown command %v", command)
	return nil, ""
}

// roll carries out a command on a rolling list, which is short enough to have
// no chunks.
func (s store) roll(t *testing.T, now int64, command []string, list *limit.RollingState) (reply []int64) {
	name, key, args := command[0], command[1], command[2:]
	pause := args[len(args)-1] == "PAUSE"
	if pause {
		args = args[:len(args)-1]
	}
	n := append(integers(t, args), 1)
	r := limit.Rolling{Limit: n[0], Window: time.Duration(n[1]) * time.Millisecond, Pause: pause}
	if list == nil {
		list = new(limit.RollingState)
	}
	next := *list
	var change limit.Change
	var err error
	switch name {
	case "ROLL.ALLOW":
		var a limit.Admission
		next, a, change, err = list.Allow(now, r, nil)
		reply = []int64{boolean(a.Allowed), a.Count, a.Limit, milliseconds(a.Wait)}
	case "ROLL.INCR":
		var total int64
		next, total, change, err = list.Increment(now, r, n[2], nil)
		reply = []int64{total}
	case "ROLL.PEEK":
		var count int64
		count, err = list.Peek(now, r, nil)
		reply = []int64{count}
	case "ROLL.WAIT":
		var wait time.Duration
		wait, err = list.Wait(now, r, nil)
		reply = []int64{milliseconds(wait)}
	}
	if err != nil {
		t.Fatalf("%v: %v", command, err)
	}
	if change.Recorded > 0 {
		s.states[key] = limit.State{Kind: limit.KindRolling, Rolling: &next}
	}
	return reply
}

func integers(t *testing.T, args []string) []int64 {
	n := make([]int64, len(args))
	for i, s := range args {
		var err error
		if n[i], err = strconv.ParseInt(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func boolean(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// throttled returns the five integers of CL.THROTTLE.
func throttled(d limit.Decision) []int64 {
	retry := int64(-1)
	if !d.Allowed && d.RetryAfter != limit.Never {
		retry = ceilSeconds(d.RetryAfter)
	}
	return []int64{boolean(!d.Allowed), d.Limit, d.Remaining, retry, ceilSeconds(d.ResetAfter)}
}

// rowsOf returns the rows of CL.MTHROTTLE and CL.MPROBE, and the keys that they
// are about.
func rowsOf(t *testing.T, command []string) (keys []string, rows []limit.Row) {
	args := command[3:]
	for row := range slices.Chunk(args, 5) {
		n := integers(t, row[1:])
		state := slices.Index(keys, row[0])
		if state < 0 {
			state = len(keys)
			keys = append(keys, row[0])
		}
		rows = append(rows, limit.Row{State: state, Rate: limit.Rate{Burst: n[0], Count: n[1], Period: time.Duration(n[2]) * time.Second}, N: n[3]})
	}
	if want := integers(t, command[2:3])[0]; int64(len(rows)) != want {
		t.Fatalf("%v has %d rows", command, len(rows))
	}
	return keys, rows
}

// together returns the integers of CL.MTHROTTLE, one array in the other.
func together(denied int64, retry time.Duration, ds []limit.Decision) []int64 {
	reply := []int64{denied, -1}
	if retry > 0 && retry != limit.Never {
		reply[1] = ceilSeconds(retry)
	}
	for _, d := range ds {
		reply = append(reply, throttled(d)...)
	}
	return reply
}

// milliseconds returns the wait-ms of the rolling commands.
func milliseconds(wait time.Duration) int64 {
	if wait == limit.Never {
		return -1
	}
	return int64((wait + time.Millisecond - 1) / time.Millisecond)
}

func ceilSeconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}
