//go:build mutants

package engine_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// mutant is a bug that is put in on purpose, to see that a test catches it.
type mutant struct {
	name string
	file string // from the root of the module

	// old is the text that new takes the place of. It is in the file once.
	old, new string

	in       string // the package of the tests, from the root of the module
	tests    string // a regular expression: one of these has to fail
	attempts int    // as often are they run; 1 where they leave nothing to chance
}

var mutants = []mutant{
	{
		name:     "a pass trusts the sidecar",
		file:     "engine/purge.go",
		old:      "verdict := ttl.Filter(value, horizon)",
		new:      "verdict := ttl.Filter(value, horizon)\n\t\tverdict.Drop = verdict.Drop || sc.sum.Due(horizon) > 0",
		in:       "engine",
		tests:    "^TestPurgeIsNeutral$",
		attempts: 1,
	},
	{
		name:     "no second look",
		file:     "engine/purge.go",
		old:      "v.Drop = !e.staged && e.stored != 0 && ttl.Expired(e.stored, horizon)",
		new:      "v.Drop = e.stored != 0",
		in:       "engine",
		tests:    "^TestPurgeIsNeutral$",
		attempts: 1,
	},
	{
		name:     "no second look, in a race",
		file:     "engine/purge.go",
		old:      "v.Drop = !e.staged && e.stored != 0 && ttl.Expired(e.stored, horizon)",
		new:      "v.Drop = e.stored != 0",
		in:       "engine",
		tests:    "^TestPurgeRace$",
		attempts: 3,
	},
	{
		name:     "no second look at what was evicted",
		file:     "engine/purge.go",
		old:      "} else if sh.cache.evicted > applied {",
		new:      "} else if false && sh.cache.evicted > applied {",
		in:       "engine",
		tests:    "^TestPurgeMeetsEviction$",
		attempts: 1,
	},
	{
		name:     "a purge without a mark",
		file:     "engine/purge.go",
		old:      "sh.mark = max(sh.mark, horizon)\n\t\tsc.purged",
		new:      "sc.purged",
		in:       "engine",
		tests:    "^TestPurgeBringsItsMark$",
		attempts: 1,
	},
	{
		name:     "a purge of requests without a mark",
		file:     "engine/purge.go",
		old:      "sh.mark = max(sh.mark, horizon)\n\tp.round",
		new:      "p.round",
		in:       "engine",
		tests:    "^TestPurgeBringsItsMark$",
		attempts: 1,
	},
	{
		name:     "the filter drops what is live",
		file:     "ttl/filter.go",
		old:      "if !Expired(deadline, now) {",
		new:      "if Expired(deadline, now) {",
		in:       "engine",
		tests:    "^TestPurgeIsNeutral$",
		attempts: 1,
	},
	{
		name:     "the filter drops a nanosecond early",
		file:     "ttl/filter.go",
		old:      "if !Expired(deadline, now) {",
		new:      "if deadline > now+1 {",
		in:       "engine",
		tests:    "^TestPurgeToTheNanosecond$",
		attempts: 1,
	},
	{
		name:     "the filter keeps what is over a nanosecond more",
		file:     "ttl/filter.go",
		old:      "if !Expired(deadline, now) {",
		new:      "if deadline >= now {",
		in:       "engine",
		tests:    "^TestPurgeToTheNanosecond$",
		attempts: 1,
	},
	{
		name:     "purges drained after heads",
		file:     "engine/commit.go",
		old:      "drainBatch(sh.purged, b)",
		new:      "defer drainBatch(sh.purged, b)",
		in:       "engine",
		tests:    "^TestPurgeStaged$",
		attempts: 1,
	},
	{
		name:     "what is purged is found again before it shows",
		file:     "engine/overlay.go",
		old:      "if p.first <= int(slice) && int(slice) < p.end && ttl.Expired(deadline, p.horizon) {",
		new:      "if p.first <= int(slice) && int(slice) < p.end && ttl.Expired(deadline, p.horizon) && false {",
		in:       "engine",
		tests:    "^TestPurgeStaged$",
		attempts: 1,
	},
	{
		name:     "acknowledged when applied",
		file:     "engine/do.go",
		old:      "err = l.waitDurable(newest)",
		new:      "err = l.waitApplied(newest)",
		in:       "engine",
		tests:    "^TestAnswersWaitForTheDisk$",
		attempts: 1,
	},
	{
		name:     "a probe does not wait for the round it saw",
		file:     "engine/do.go",
		old:      "r.round = v.round",
		new:      "r.round = 0",
		in:       "engine",
		tests:    "^TestAnswersWaitForTheDisk$",
		attempts: 1,
	},
	{
		name:     "a checkpoint without what is only staged",
		file:     "engine/checkpoint.go",
		old:      "if err := l.Sync(); err != nil {",
		new:      "if err := l.failure.get(); err != nil {",
		in:       "engine",
		tests:    "^TestCheckpointPrefix$",
		attempts: 1,
	},
	{
		name:     "a log is read while it grows",
		file:     "engine/disk.go",
		old:      "return &prefixFile{f, w.written.Load()}, nil",
		new:      "return f, nil",
		in:       "engine",
		tests:    "^TestCheckpointOfGrowingLog$",
		attempts: 1,
	},
	{
		name:     "a checkpoint in its place from the start",
		file:     "engine/checkpoint.go",
		old:      "temp := dir + partial",
		new:      "temp := dir + partial\n\tif outside != \"\" {\n\t\treturn fill(dir)\n\t}",
		in:       "engine",
		tests:    "^TestPowerCutWhileCheckpointing$",
		attempts: 1,
	},
	{
		name:     "a checkpoint that fails is a store that fails",
		file:     "engine/disk.go",
		old:      "if a != nil && (name == a.dir",
		new:      "if a != nil && false && (name == a.dir",
		in:       "engine",
		tests:    "^TestCheckpointFault$",
		attempts: 1,
	},
	{
		name:     "a denial does not wait for the round it saw",
		file:     "engine/gcra.go",
		old:      "r.round = t.round\n\tnext, err := throttle",
		new:      "next, err := throttle",
		in:       "engine",
		tests:    "^TestAnswersWaitForTheDisk$",
		attempts: 1,
	},
}

// TestMutants builds the tests with each mutant in turn, and wants one of those
// that are named for it to fail.
func TestMutants(t *testing.T) {
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			tests := m.build(t, root)
			run := exec.CommandContext(t.Context(), tests, "-test.run", m.tests, "-test.count", fmt.Sprint(m.attempts), "-test.failfast", "-test.timeout", "5m")
			run.Dir = filepath.Join(root, m.in)
			out, err := run.CombinedOutput()
			// One that ends in another way than by a test's verdict, such as
			// killed or out of time, has not been caught.
			failure := regexp.MustCompile(`(?m)^--- FAIL: (\w+)`).FindSubmatch(out)
			switch {
			case err == nil:
				t.Errorf("no test that matches %q fails, in %d runs:\n%s", m.tests, m.attempts, out)
			case failure == nil:
				t.Errorf("the tests that match %q end with %v, and no test has failed:\n%s", m.tests, err, tail(out))
			default:
				t.Logf("caught by %s", failure[1])
			}
		})
	}
}

// build returns a program of the tests with m in them.
func (m *mutant) build(t *testing.T, root string) string {
	file := filepath.Join(root, m.file)
	source, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(source), m.old); n != 1 {
		t.Fatalf("%s has this %d times, want once:\n%s", m.file, n, m.old)
	}
	dir := t.TempDir()
	mutated, overlay, tests := filepath.Join(dir, "mutated.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "tests")
	if err := os.WriteFile(mutated, []byte(strings.Replace(string(source), m.old, m.new, 1)), 0o666); err != nil {
		t.Fatal(err)
	}
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{file: mutated}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(overlay, replace, 0o666); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", tests, "./"+m.in)
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the mutant does not build: %v\n%s", err, out)
	}
	return tests
}

// tail returns the end of what a program has said.
func tail(out []byte) []byte { return out[max(0, len(out)-4000):] }
