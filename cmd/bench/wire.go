package main

import (
	"context"
	"net"
	"os"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// A wireSubject is a limiter over the wire, and the load for it.
type wireSubject struct {
	name  string
	start func(*Run) (*server, error)
	load  func(context.Context, *redis.Client) (*wireLoad, error)
}

func (s wireSubject) subject(measure func(*Run, *wire) error) *Subject {
	return &Subject{Name: s.name, Measure: func(r *Run) error {
		return onWire(r, s.start, s.load, func(w *wire) error { return measure(r, w) })
	}}
}

const (
	bareName = "bare Go server, which keeps nothing"

	oneByOne = "one at a time"
	by16     = "16 in a pipeline"
	by64     = "64 in a pipeline"
)

// The settings of Redis that are measured.
var redisSettings = []struct {
	name     string
	settings []string
}{
	{redisAlways, []string{"--save", "", "--appendonly", "yes", "--appendfsync", "always"}},
	{"redis, appendfsync everysec", []string{"--save", "", "--appendonly", "yes", "--appendfsync", "everysec"}},
	{redisNone, []string{"--save", "", "--appendonly", "no"}},
}

const (
	redisAlways = "redis, appendfsync always"
	redisNone   = "redis, no persistence"

	withGCRA    = ", GCRA script"
	withRate    = ", redis_rate's script"
	withRolling = ", rolling list script"
)

func gabionSubjects(load func(context.Context, *redis.Client) (*wireLoad, error)) []wireSubject {
	return []wireSubject{
		{gabionAlways, gabionServer("always"), load},
		{gabionInterval, gabionServer("interval"), load},
		{gabionNever, gabionServer("never"), load},
	}
}

func redisSubjects(script string, load func(context.Context, *redis.Client) (*wireLoad, error)) (subjects []wireSubject) {
	for _, s := range redisSettings {
		subjects = append(subjects, wireSubject{s.name + script, redisServer(s.settings...), load})
	}
	return subjects
}

func wireTables() []*Table {
	gabion, gcra := gabionSubjects(gabionThrottle), redisSubjects(withGCRA, redisThrottle)
	bare := []wireSubject{{bareName, startBare, bareThrottle}}
	rates := slices.Concat(gabion, gcra, redisSubjects(withRate, redisRate), bare)
	lists := slices.Concat(gabionSubjects(gabionRolling), redisSubjects(withRolling, redisRolling))
	same := []wireSubject{gabion[0], gcra[0], bare[0]}
	tables := []*Table{
		throughputTable(rates),
		rollingTable(lists),
		sameLoadTable(same),
		allocationTable(),
	}
	for _, t := range tables[:len(tables)-1] {
		t.Needs = []string{"redis-server", "redis-benchmark"}
	}
	return tables
}

const wireNote = `Load: redis-benchmark with 50 connections and 100,000 keys, each of which exists. It takes a good part of a core, so on two cores
it bounds what is fast. Nothing is denied, every error would be noticed, and afterwards the keys tell that each charge was made once.
`

func throughputTable(subjects []wireSubject) *Table {
	const gcra = redisAlways + withGCRA
	t := &Table{
		Section: "over the wire", Name: "rate limits",
		Note: wireNote + `The GCRA script and the bare server reply the five integers of CL.THROTTLE, redis_rate's script four fields of its own.
"interval" syncs every 10 ms, "everysec" every second. Times are those of commands one at a time: a connection sends its next
when it has the answer to the last, so a stall counts once for each connection.`,
		Columns:  []Column{{oneByOne, PerSecond}, {by16, PerSecond}, {by64, PerSecond}, {"p50", Micros}, {"p99", Micros}, {"p99.9", Micros}},
		Baseline: gcra,
		Targets: []Target{
			{What: "16 in a pipeline, of redis with appendfsync always", Of: Cell{gabionAlways, by16}, To: Cell{gcra, by16}, Bound: 2},
			{What: "16 in a pipeline, of redis without persistence", Of: Cell{gabionAlways, by16}, To: Cell{redisNone + withGCRA, by16}, Bound: 1},
			{What: "one at a time, of redis with appendfsync always", Of: Cell{gabionAlways, oneByOne}, To: Cell{gcra, oneByOne}, Bound: 1, Goal: 1.3},
			{What: "one at a time, of a bare Go server (no bound)", Of: Cell{gabionAlways, oneByOne}, To: Cell{bareName, oneByOne}},
		},
	}
	t.add(subjects, measureThroughput)
	return t
}

func rollingTable(subjects []wireSubject) *Table {
	t := &Table{
		Section: "over the wire", Name: "rolling lists",
		Note:     wireNote + `The lists grow by each call and are far from full, so no event is dropped. A script answers what ROLL.ALLOW answers.`,
		Columns:  []Column{{oneByOne, PerSecond}, {by16, PerSecond}, {by64, PerSecond}, {"p50", Micros}, {"p99", Micros}, {"p99.9", Micros}},
		Baseline: redisAlways + withRolling,
		Rounds:   3,
	}
	t.add(subjects, measureThroughput)
	return t
}

func (t *Table) add(subjects []wireSubject, measure func(*Run, *wire) error) {
	for _, s := range subjects {
		t.Subjects = append(t.Subjects, s.subject(measure))
	}
}

func measureThroughput(r *Run, w *wire) error {
	for _, c := range []struct {
		name     string
		pipeline int
	}{{oneByOne, 1}, {by16, 16}, {by64, 64}} {
		b, err := w.benchmark(r.Time, c.pipeline)
		if err != nil {
			return err
		}
		r.Report(c.name, b.rate)
		if c.pipeline == 1 {
			r.Report("p50", b.p50)
			r.Report("p99", b.p99)
			r.Report("p99.9", b.p999)
		}
	}
	return nil
}

const pacedNote = `50 connections send at even intervals, whether or not answers have come. Times are from when a command was due to its
answer; every answer is checked. The bare server shows what of them is the client's and the machine's. `

var pacedColumns = []Column{{"load", PerSecond}, {"p50", Micros}, {"p99", Micros}, {"p99.9", Micros}}

// sameLoadTable is about the first two of its subjects, and the load of all is
// half of what the slower one of those can bear.
func sameLoadTable(subjects []wireSubject) *Table {
	t := &Table{
		Section: "over the wire", Name: "latencies of rate limits at the same load",
		Note:     pacedNote + `The load is half of what the slower one of gabion and redis reaches in redis-benchmark, one at a time.`,
		Columns:  pacedColumns,
		Baseline: subjects[1].name,
		Targets: []Target{
			{What: "p99 at half load, of redis with appendfsync always", Of: Cell{subjects[0].name, "p99"}, To: Cell{subjects[1].name, "p99"}, Bound: 1, AtMost: true},
		},
	}
	load := 0.0 // known once it has been found out; the same in all rounds
	for _, s := range subjects {
		t.Subjects = append(t.Subjects, &Subject{Name: s.name, Measure: func(r *Run) error {
			if load == 0 {
				first, err := peakLoad(r, subjects[0])
				if err != nil {
					return err
				}
				second, err := peakLoad(r, subjects[1])
				if err != nil {
					return err
				}
				load = min(first, second) / 2
			}
			return onWire(r, s.start, s.load, func(w *wire) error { return measurePaced(r, w, load) })
		}})
	}
	return t
}

// peakLoad returns what a server reaches in redis-benchmark, one at a time.
func peakLoad(r *Run, s wireSubject) (rate float64, err error) {
	own := *r
	if own.Dir, err = os.MkdirTemp(r.Dir, "peak-"); err != nil {
		return 0, err
	}
	err = onWire(&own, s.start, s.load, func(w *wire) error {
		b, err := w.benchmark(r.Time, 1)
		rate = b.rate
		return err
	})
	return rate, err
}

func measurePaced(r *Run, w *wire, load float64) error {
	times, err := w.pace(load, longer*r.Time) // of which a hundredth, or a thousandth, has to be enough
	if err != nil {
		return err
	}
	r.Report("load", load)
	r.Report("p50", float64(times.ValueAtQuantile(50)))
	r.Report("p99", float64(times.ValueAtQuantile(99)))
	r.Report("p99.9", float64(times.ValueAtQuantile(99.9)))
	return nil
}

func allocationTable() *Table {
	const lone, many = gabionAlways + ", 1 connection", gabionAlways + ", 50 connections"
	t := &Table{
		Section: "over the wire", Name: "allocations for a command in the server",
		Note: `The server is in the process of the bench, and its client allocates nothing while it sends and reads. What Pebble allocates in the
background counts. Connections share the allocations of a commit; a lone one bears them alone.`,
		Columns: []Column{{oneByOne, Count}, {by16, Count}},
		Targets: []Target{
			{What: "allocations for a command, 50 connections, one at a time", Of: Cell{many, oneByOne}, Bound: 2, AtMost: true},
			{What: "allocations for a command, 1 connection, one at a time", Of: Cell{lone, oneByOne}, Bound: 2, AtMost: true},
		},
	}
	for _, s := range []struct {
		name        string
		connections int
	}{{many, wireConnections}, {lone, 1}} {
		t.add([]wireSubject{{s.name, startInside, gabionThrottle}}, func(r *Run, w *wire) error {
			for _, c := range []struct {
				name     string
				pipeline int
			}{{oneByOne, 1}, {by16, 16}} {
				n, err := w.allocations(r.Time, s.connections, c.pipeline)
				if err != nil {
					return err
				}
				r.Report(c.name, n)
			}
			return nil
		})
	}
	return t
}

// allocations returns how often the process allocates for a charge.
func (w *wire) allocations(length time.Duration, connections, pipeline int) (float64, error) {
	chargers := make([]*charger, connections)
	for i := range chargers {
		nc, err := net.Dial("tcp", w.addr)
		if err != nil {
			return 0, err
		}
		defer nc.Close()
		chargers[i] = newCharger(nc, w.args, pipeline, uint64(i))
	}
	f, err := drive(w.ctx, connections, length, func(_, caller uint64) call {
		return func() (int, error) { return pipeline, chargers[caller].charge() }
	})
	w.sent += f.before + f.decisions
	return float64(f.allocations) / float64(f.decisions), err
}
