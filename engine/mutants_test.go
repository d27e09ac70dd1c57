package engine_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/gabiondb/gabion/engine/mutate"
)

var runMutants = flag.Bool("mutants", false, "have TestMutants build each mutant and run its tests")

// mutant is a bug that is put in on purpose, to see that a test catches it.
type mutant struct {
	name string
	file string // from the root of the module

	// old is the text that new takes the place of. It is in the file once.
	old, new string

	tests    string // a regular expression: one of these tests of package engine has to fail
	attempts int    // how often they may be run until one does; 0 is once
}

var mutants = []mutant{
	{
		name:  "a pass trusts the sidecar",
		file:  "engine/purge.go",
		old:   "verdict := ttl.Filter(value, horizon)",
		new:   "verdict := ttl.Filter(value, horizon)\n\t\tverdict.Drop = verdict.Drop || sc.sum.Due(horizon) > 0",
		tests: "^TestPurgeIsNeutral$",
	},
	{
		name:  "no second look",
		file:  "engine/purge.go",
		old:   "v.Drop = !e.staged && e.stored != 0 && ttl.Expired(e.stored, horizon)",
		new:   "v.Drop = e.stored != 0",
		tests: "^TestPurgeIsNeutral$",
	},
	{
		name:     "no second look, in a race",
		file:     "engine/purge.go",
		old:      "v.Drop = !e.staged && e.stored != 0 && ttl.Expired(e.stored, horizon)",
		new:      "v.Drop = e.stored != 0",
		tests:    "^TestPurgeRace$",
		attempts: 3,
	},
	{
		name:  "no second look at what was evicted",
		file:  "engine/purge.go",
		old:   "} else if sh.cache.evicted > applied {",
		new:   "} else if false && sh.cache.evicted > applied {",
		tests: "^TestPurgeMeetsEviction$",
	},
	{
		name:  "a purge without a mark",
		file:  "engine/purge.go",
		old:   "sh.mark = max(sh.mark, horizon)\n\t\tsc.purged",
		new:   "sc.purged",
		tests: "^TestPurgeBringsItsMark$",
	},
	{
		name:  "a purge of requests without a mark",
		file:  "engine/purge.go",
		old:   "sh.mark = max(sh.mark, horizon)\n\tp.round",
		new:   "p.round",
		tests: "^TestPurgeBringsItsMark$",
	},
	{
		name:  "the filter drops what is live",
		file:  "ttl/filter.go",
		old:   "if !Expired(deadline, now) {",
		new:   "if Expired(deadline, now) {",
		tests: "^TestPurgeIsNeutral$",
	},
	{
		name:  "the filter drops a nanosecond early",
		file:  "ttl/filter.go",
		old:   "if !Expired(deadline, now) {",
		new:   "if deadline > now+1 {",
		tests: "^TestPurgeToTheNanosecond$",
	},
	{
		name:  "the filter keeps what is over a nanosecond more",
		file:  "ttl/filter.go",
		old:   "if !Expired(deadline, now) {",
		new:   "if deadline >= now {",
		tests: "^TestPurgeToTheNanosecond$",
	},
	{
		name:  "purges drained after heads",
		file:  "engine/commit.go",
		old:   "drainBatch(sh.purged, b)",
		new:   "defer drainBatch(sh.purged, b)",
		tests: "^TestPurgeStaged$",
	},
	{
		name:  "what is purged is found again before it shows",
		file:  "engine/overlay.go",
		old:   "if p.first <= int(slice) && int(slice) < p.end && ttl.Expired(deadline, p.horizon) {",
		new:   "if p.first <= int(slice) && int(slice) < p.end && ttl.Expired(deadline, p.horizon) && false {",
		tests: "^TestPurgeStaged$",
	},
	{
		name:  "acknowledged when applied",
		file:  "engine/do.go",
		old:   "return l.waitDurable(round)",
		new:   "return l.waitApplied(round)",
		tests: "^TestAnswersWaitForTheDisk$",
	},
	{
		name:  "a probe does not wait for the round it saw",
		file:  "engine/do.go",
		old:   "r.round = v.round",
		new:   "r.round = 0",
		tests: "^TestAnswersWaitForTheDisk$",
	},
	{
		name:  "a denial does not wait for the round it saw",
		file:  "engine/do.go",
		old:   "r.round = t.round\n\treturn err",
		new:   "if t.round == l.rounds.open.seq {\n\t\tr.round = t.round\n\t}\n\treturn err",
		tests: "^TestAnswersWaitForTheDisk$",
	},
	{
		name:  "acknowledged when applied, power cut",
		file:  "engine/do.go",
		old:   "return l.waitDurable(round)",
		new:   "return l.waitApplied(round)",
		tests: "^TestPowerCut$",
	},
	{
		name:  "a probe does not wait for the round it saw, power cut",
		file:  "engine/do.go",
		old:   "r.round = v.round",
		new:   "r.round = 0",
		tests: "^TestPowerCut$",
	},
	{
		name:  "a replay does not wait for the round it saw",
		file:  "engine/do.go",
		old:   "r.round = t.round\n\treturn err",
		new:   "if t.round == l.rounds.open.seq {\n\t\tr.round = t.round\n\t}\n\treturn err",
		tests: "^TestPowerCut$",
	},
	{
		name:  "two batches in place of one",
		file:  "engine/commit.go",
		old:   "drainBatch(sh.beside, b)",
		new:   "if sh.beside != nil && !sh.beside.Empty() {\n\t\t_ = l.db.Apply(sh.beside, pebble.Sync)\n\t\tsh.beside = nil\n\t}",
		tests: "^TestPowerCut$",
	},
	{
		name:  "a batch without its mark",
		file:  "engine/commit.go",
		old:   "if n := r.batch.Count(); n > 0 || r.clean {",
		new:   "if n := r.batch.Count(); n > 0 && !r.clean {\n\t\trs.count.Add(1)\n\t} else if r.clean {",
		tests: "^TestPowerCut$",
	},
	{
		name:  "the mark in whole seconds",
		file:  "engine/commit.go",
		old:   "codec.Mark{Now: mark, Clean: r.clean}",
		new:   "codec.Mark{Now: mark / 1e9 * 1e9, Clean: r.clean}",
		tests: "^TestPowerCut$",
	},
	{
		name:  "a rate's deadline in whole seconds",
		file:  "codec/record.go",
		old:   "return appendRecord(dst, 2, s.Deadline, limit.KindGCRA)",
		new:   "return appendRecord(dst, 2, s.Deadline/1e9*1e9, limit.KindGCRA)",
		tests: "^TestPowerCut$",
	},
	{
		name:  "requests dropped too far",
		file:  "engine/purge.go",
		old:   "AppendRequestStart(nil, horizon+1)",
		new:   "AppendRequestStart(nil, horizon+1e9)",
		tests: "^TestPowerCut$",
	},
	{
		name:  "a head without its request",
		file:  "engine/quota.go",
		old:   "l.putRequest(t, op.ID, limit.Request{Cost: op.N, Used: grant.Used})",
		new:   "",
		tests: "^TestPowerCut$",
	},
	{
		name:  "a head without its chunk",
		file:  "engine/rolling.go",
		old:   "_ = l.staging(&sh.beside).Set(sh.key, sh.value, nil)",
		new:   "",
		tests: "^TestPowerCut$",
	},
	{
		name:  "expired a nanosecond late",
		file:  "ttl/ttl.go",
		old:   "return deadline <= now",
		new:   "return deadline < now",
		tests: "^TestPowerCut$",
	},
	{
		name:  "a store's mark is not believed",
		file:  "engine/clock.go",
		old:   "c.base = max(unixNano(c.start), mark)",
		new:   "c.base = unixNano(c.start)",
		tests: "^TestClockWalk$",
	},
	{
		name:  "a suspend counted twice",
		file:  "engine/clock.go",
		old:   "elapsed+c.slept.Load())",
		new:   "elapsed+2*c.slept.Load())",
		tests: "^TestClockWalk$",
	},
	{
		name:  "a wall that has leapt deletes at once",
		file:  "ttl/horizon.go",
		old:   "leap > int64(h.Ahead)",
		new:   "leap > 1<<62",
		tests: "^TestClockWalk$",
	},
	{
		name:  "a log that fails is told to the logger alone",
		file:  "engine/commit.go",
		old:   "// Pebble reports some failures to its logger alone.\n\t\t\terr = l.failure.get()",
		new:   "",
		tests: "^TestWriteFault$",
	},
	{
		name:  "a fresh store without its flush",
		file:  "engine/store.go",
		old:   "err = s.flush()\n\tdefault:",
		new:   "\tdefault:",
		tests: "^TestDamagedFirstLog$",
	},
	{
		name:  "reads are served after a failure of the log",
		file:  "engine/do.go",
		old:   "err := l.failure.get()\n\t\tif err == nil {",
		new:   "var err error\n\t\tif err == nil {",
		tests: "^TestWriteFault$",
	},
	{
		name:  "a checkpoint without what is only staged",
		file:  "engine/checkpoint.go",
		old:   "if err := l.Sync(); err != nil {",
		new:   "if err := l.failure.get(); err != nil {",
		tests: "^TestCheckpointPrefix$",
	},
	{
		name:  "a log is read while it grows",
		file:  "engine/disk.go",
		old:   "return &prefixFile{f, w.written.Load()}, nil",
		new:   "return f, nil",
		tests: "^TestCheckpointOfGrowingLog$",
	},
	{
		name:  "a checkpoint in its place from the start",
		file:  "engine/checkpoint.go",
		old:   "temp := dir + partial",
		new:   "temp := dir + partial\n\tif outside != \"\" {\n\t\treturn fill(dir)\n\t}",
		tests: "^TestPowerCutWhileCheckpointing$",
	},
	{
		name:  "a checkpoint that fails is a store that fails",
		file:  "engine/disk.go",
		old:   "if a != nil && (name == a.dir",
		new:   "if a != nil && false && (name == a.dir",
		tests: "^TestCheckpointFault$",
	},
	{
		name:  "all are charged before it is known that one denies",
		file:  "engine/limit/several.go",
		old:   "	if denied {\n",
		new:   "	if denied {\n\t\tfor i := range states {\n\t\t\tstates[i] = piles[i].state\n\t\t}\n",
		tests: "^TestAllOrNone$",
	},
	{
		name: "several keys are locked in their own order",
		file: "engine/several.go",
		old:  "	held.lock(l)\n",
		new: "	var taken shardSet\n\tfor i := range g.turns {\n\t\tvar one shardSet\n\t\tif one.add(g.turns[i].slice); taken&one == 0 {\n" +
			"\t\t\tone.lock(l)\n\t\t\ttaken |= one\n\t\t}\n\t}\n",
		tests: "^TestCrowd$",
	},
	{
		name:  "several keys without their locks",
		file:  "engine/several.go",
		old:   "	held.lock(l)\n\tdefer held.unlock(l)\n",
		new:   "	held.lock(l)\n\theld.unlock(l)\n\tl.shards[0].mu.Lock()\n\tdefer l.shards[0].mu.Unlock()\n",
		tests: "^TestCrowd$",
	},
	{
		name:  "one of several keys is changed where it was evicted",
		file:  "engine/several.go",
		old:   "			t.sh.cache.keep(t.entry, l.rounds.applied.Load())\n",
		new:   "",
		tests: "^TestModel$",
	},
	{
		name:  "probes of several charge in a transaction",
		file:  "engine/several.go",
		old:   "err == nil && !g.verb.looks() && next",
		new:   "err == nil && next",
		tests: "^TestUpdateLooks$",
	},
	{
		name:  "a refund that was given before is given again",
		file:  "engine/limit/quota.go",
		old:   "	case earlier.Refunded:\n\t\tr.Refunded, r.Replay, r.Cost, r.Used = true, true, earlier.Cost, earlier.Used\n",
		new:   "",
		tests: "^TestVectors$",
	},
	{
		name:  "a second round behind the one that is being synced",
		file:  "engine/commit.go",
		old:   "	maxInFlight = 1\n",
		new:   "	maxInFlight = 2\n",
		tests: "^TestOneRoundAtATime$",
	},
	{
		name:  "a transaction's rows and decisions in two rounds",
		file:  "engine/update.go",
		old:   "	mark := l.cut(b, true)\n",
		new:   "	if !b.Empty() {\n\t\t_ = l.db.Apply(b, pebble.Sync)\n\t\tb = l.db.NewBatch()\n\t}\n\tmark := l.cut(b, true)\n",
		tests: "^TestUpdatePowerCut$",
	},
	{
		name:  "a transaction of rows without its mark",
		file:  "engine/update.go",
		old:   "	sh.mark = max(sh.mark, tx.now)\n",
		new:   "	_ = sh\n",
		tests: "^TestUpdateBringsItsMark$",
	},
	{
		name:  "a transaction begins in a round of others",
		file:  "engine/update.go",
		old:   "	if rs.open.staged.Load() > 0 {\n\t\tr := rs.open",
		new:   "	if rs.open.staged.Load() < 0 {\n\t\tr := rs.open",
		tests: "^TestUpdateModel$",
	},
	{
		name:  "an aborted transaction does not wait for what it may have seen",
		file:  "engine/update.go",
		old:   "	seen := rs.open.seq - 1 //",
		new:   "	seen := rs.durable.Load() //",
		tests: "^TestUpdateWaitsForTheDisk$",
	},
	{
		name:  "an aborted transaction does not wait for what it saw, power cut",
		file:  "engine/update.go",
		old:   "		return seen, err\n",
		new:   "		_ = seen\n\t\treturn 0, err\n",
		tests: "^TestPowerCut$",
	},
	{
		name:  "an abort leaves what is beside the heads",
		file:  "engine/update.go",
		old:   "			sh.beside.Reset()\n",
		new:   "",
		tests: "^TestUpdateAborted$",
	},
	{
		name:  "an abort leaves what is cached",
		file:  "engine/update.go",
		old:   "			sh.cache.evict(e) // the store knows what it was\n",
		new:   "			e.staged = false\n",
		tests: "^TestUpdateAborted$",
	},
	{
		name:  "an abort leaves the overlay",
		file:  "engine/update.go",
		old:   "		sh.overlay.drop(open.seq)\n",
		new:   "",
		tests: "^TestUpdateAborted$",
	},
	{
		name:  "an abort by an error alone",
		file:  "engine/update.go",
		old:   "		if locked {\n\t\t\tl.abort()\n",
		new:   "		if locked {\n\t\t\tif recover() == nil && err != nil {\n\t\t\t\tl.abort()\n\t\t\t}\n",
		tests: "^TestUpdateAborted$",
	},
	{
		name:  "the rows of a transaction are not looked at",
		file:  "engine/update.go",
		old:   "			if span.overlaps(key, end) {\n",
		new:   "			if false && span.overlaps(key, end) {\n",
		tests: "^TestUpdateReserved$",
	},
	{
		name:  "the ranges of a transaction are not looked at",
		file:  "engine/update.go",
		old:   "		end := endOf(kind, value)\n",
		new:   "		var end []byte\n\t\t_ = endOf(kind, value)\n",
		tests: "^TestUpdateReserved$",
	},
}

// TestMutants looks whether the texts of the mutants are still there. With
// -mutants it builds the tests with each of them, and wants one of those that are
// named for it to fail.
func TestMutants(t *testing.T) {
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel() // some wait more than they work
			if !*runMutants {
				if _, err := mutate.Apply(root, m.edits()); err != nil {
					t.Error(err)
				}
				return
			}
			tests := m.build(t, root)
			run := exec.CommandContext(t.Context(), tests, "-test.run", m.tests, "-test.count", fmt.Sprint(max(m.attempts, 1)), "-test.failfast", "-test.timeout", "3m")
			run.Dir = filepath.Join(root, "engine")
			run.Env = append(os.Environ(), "TMPDIR="+t.TempDir()) // where it keeps the stores that it fails on
			out, err := run.CombinedOutput()
			// One that ends in another way than by a test's verdict, such as
			// killed or out of time, has not been caught; but Go itself catches
			// some that leave out a lock.
			failure := regexp.MustCompile(`(?m)^(--- FAIL: \w+|fatal error: concurrent map)`).FindSubmatch(out)
			switch {
			case err == nil:
				t.Errorf("no test that matches %q fails:\n%s", m.tests, tail(out))
			case failure == nil:
				t.Errorf("the tests that match %q end with %v, and no test has failed:\n%s", m.tests, err, tail(out))
			default:
				t.Logf("caught: %s", failure[1])
			}
		})
	}
}

func (m *mutant) edits() []mutate.Edit {
	return []mutate.Edit{{File: m.file, Old: m.old, New: m.new}}
}

// build returns a program of the tests with m in them.
func (m *mutant) build(t *testing.T, root string) string {
	t.Helper()
	tests := filepath.Join(t.TempDir(), "tests")
	if err := mutate.Build(t.Context(), root, tests, m.edits(), "test", "-c", "-vet=off", "./engine"); err != nil {
		t.Fatal(err)
	}
	return tests
}

// tail returns the end of what a program has said.
func tail(out []byte) []byte { return out[max(0, len(out)-4000):] }
