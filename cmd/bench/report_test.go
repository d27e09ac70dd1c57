package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	asChild()
	os.Exit(m.Run())
}

var rewrite = flag.Bool("rewrite", false, "write the reports in testdata anew")

// sample returns a report of figures that nobody has measured.
func sample() *Report {
	const one, many, allocs, size = "1 caller", "64 callers, 32 in a pipeline", "per decision", "on disk"
	gabion, raw, slow := "gabion, always", "raw Pebble, synced batches of 256", "peer | with <odd> name"
	return &Report{
		Machine: Machine{{"measured", "2026-11-30 21:00 UTC, 3 rounds, 1s for each figure"}, {"processor", "a slow one, 2 cores"}},
		Tables: []*Table{
			{
				Section: "in process", Name: "one hot key",
				Note: "All callers charge the same key, whose rate always has room. A note can be longer than a line " +
					"of a terminal, and is broken there.",
				Columns:  []Column{{one, PerSecond}, {many, PerSecond}, {allocs, "allocs"}},
				Baseline: raw,
				Subjects: []*Subject{
					{Name: gabion, Samples: map[string][]float64{one: {1900, 1800, 1850}, many: {2820000, 2700000, 2900000}, allocs: {0, 0, 0}}},
					{Name: raw, Samples: map[string][]float64{one: {2350, 2350, 2350}, many: {450000, 440000, 480000}}},
					{Name: slow, Samples: map[string][]float64{one: {12, 9.5}}},
				},
				Targets: []Target{
					{What: "64 x 32, to raw Pebble", Of: Cell{gabion, many}, To: Cell{raw, many}, Bound: 6},
					{What: "one caller, to raw Pebble", Of: Cell{gabion, one}, To: Cell{raw, one}, Bound: 0.8, Goal: 0.9},
					{What: "allocations", Of: Cell{gabion, allocs}, AtMost: true},
					{What: "to one that was not chosen", Of: Cell{gabion, one}, To: Cell{"nobody", one}, Bound: 1},
				},
			},
			{
				Section: "scale", Name: "ten million keys", Rounds: 1,
				Columns:  []Column{{size, Bytes}},
				Subjects: []*Subject{{Name: gabion, Samples: map[string][]float64{size: {34.96}}}},
				Targets: []Target{
					{What: "bytes per key", Of: Cell{gabion, size}, Bound: 35, Goal: 30, AtMost: true},
					{What: "one caller, a million", Of: Cell{gabion, size}, Bound: 1e6},
				},
			},
		},
	}
}

func write(t *testing.T, to func(io.Writer) error) string {
	t.Helper()
	var b bytes.Buffer
	if err := to(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestReport(t *testing.T) {
	for file, to := range map[string]func(io.Writer) error{
		"testdata/report.txt": sample().writeText,
		"testdata/report.md":  sample().writeMarkdown,
	} {
		got := write(t, to)
		if *rewrite {
			if err := os.WriteFile(file, []byte(got), 0o666); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s has changed; with -rewrite it becomes\n%s", file, got)
		}
	}
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		samples []float64
		want    float64
	}{
		{[]float64{3}, 3},
		{[]float64{9, 1}, 5},
		{[]float64{9, 1, 2}, 2},
		{[]float64{4, 9, 1, 2}, 3},
	} {
		given := slices.Clone(c.samples)
		if got := median(c.samples); got != c.want {
			t.Errorf("median(%v) = %v, want %v", given, got, c.want)
		}
		if !slices.Equal(c.samples, given) {
			t.Errorf("median has put %v into another order: %v", given, c.samples)
		}
	}
}

func TestDigits(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.00012345: "0.000123", 0.5: "0.500", 0.9996: "1.00", 1: "1.00", 34.96: "35.0", 99.96: "100", 100: "100",
		999.6: "1,000", 1854: "1,850", 567123: "567,000", 2824999: "2,820,000", -123456: "-123,000", 0.99949: "0.999",
	} {
		if got := digits(v); got != want {
			t.Errorf("digits(%v) = %q, want %q", v, got, want)
		}
	}
	for v, want := range map[float64]string{0.5: "0.5", 1: "1", 100: "100", 999.4: "999", 1000: "1k", 1850: "1.85k", 2820000: "2.82M", 3e9: "3G"} {
		if got := short(v); got != want {
			t.Errorf("short(%v) = %q, want %q", v, got, want)
		}
	}
}

func TestTargets(t *testing.T) {
	table := &Table{
		Columns: []Column{{"c", Micros}},
		Subjects: []*Subject{
			{Name: "a", Samples: map[string][]float64{"c": {6, 4, 5}}},
			{Name: "b", Samples: map[string][]float64{"c": {10}}},
			{Name: "none"},
		},
	}
	a, b, none := Cell{"a", "c"}, Cell{"b", "c"}, Cell{"none", "c"}
	for _, c := range []struct {
		target            Target
		measured, verdict string
	}{
		{Target{Of: a, Bound: 5}, "5.00 us", "reached"},
		{Target{Of: a, Bound: 5.1}, "5.00 us", "MISSED"},
		{Target{Of: a, Bound: 4, Goal: 6}, "5.00 us", "reached, not the goal"},
		{Target{Of: a, Bound: 4, Goal: 5}, "5.00 us", "reached"},
		{Target{Of: a, Bound: 5, AtMost: true}, "5.00 us", "reached"},
		{Target{Of: a, Bound: 4.9, AtMost: true}, "5.00 us", "MISSED"},
		{Target{Of: a, Bound: 6, Goal: 4, AtMost: true}, "5.00 us", "reached, not the goal"},
		{Target{Of: a, Bound: 6, Goal: 5, AtMost: true}, "5.00 us", "reached"},
		{Target{Of: a, To: b, Bound: 0.5}, "0.500x", "reached"},
		{Target{Of: b, To: a, Bound: 2.01}, "2.00x", "MISSED"},
		{Target{Of: none, Bound: 0, AtMost: true}, "", "not measured"},
		{Target{Of: a, To: none}, "", "not measured"},
		{Target{Of: Cell{"nobody", "c"}}, "", "not measured"},
	} {
		row := table.judge(c.target).row()
		if row[1] != c.measured || row[4] != c.verdict {
			t.Errorf("%+v: %q, %q; want %q, %q", c.target, row[1], row[4], c.measured, c.verdict)
		}
	}
}

// TestFrom holds that samples.json has all that a report is made of.
func TestFrom(t *testing.T) {
	dir := t.TempDir()
	want := write(t, sample().writeText)
	first := filepath.Join(dir, "first.json")
	if err := writeFile(first, sample().writeSamples); err != nil {
		t.Fatal(err)
	}
	var stdout bytes.Buffer
	out := filepath.Join(dir, "out")
	if err := bench(t.Context(), []string{"--from", first, "--out", out}, &stdout, io.Discard); err != nil {
		t.Fatal(err)
	}
	if stdout.String() != want {
		t.Errorf("from its samples the report is\n%s\nwant\n%s", stdout.String(), want)
	}
	for name, to := range map[string]func(io.Writer) error{
		"report.txt": sample().writeText, "report.md": sample().writeMarkdown,
		"report.svg": sample().writePlot, "samples.json": sample().writeSamples,
	} {
		got, err := os.ReadFile(filepath.Join(out, name))
		if err != nil || string(got) != write(t, to) {
			t.Errorf("from its samples %s is another one (%v)", name, err)
		}
	}

	// What is there is kept, and only what was chosen is reported.
	stdout.Reset()
	if err := bench(t.Context(), []string{"--from", first, "--out", out, "--only", "^scale"}, &stdout, io.Discard); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(stdout.String(), "hot key") || !strings.Contains(stdout.String(), "ten million") {
		t.Errorf("--only '^scale' reports\n%s", stdout.String())
	}
	kept, _ := filepath.Glob(filepath.Join(out, "samples-*.json"))
	if len(kept) != 1 {
		t.Fatalf("the samples of before are in %q, want one file", kept)
	}
	old, err := os.ReadFile(kept[0])
	if err != nil || string(old) != write(t, sample().writeSamples) {
		t.Errorf("the samples of before are not in the file that is kept (%v)", err)
	}
}

// TestMerge holds that of several files each subject has the last samples, and
// that the report tells of all the machines.
func TestMerge(t *testing.T) {
	dir := t.TempDir()
	later := sample()
	later.Machine = Machine{{"measured", "later"}, later.Machine[1], {"disk", "a new one"}}
	hot := later.Tables[0]
	hot.Note, later.Tables = "new", []*Table{hot, {Section: "scale", Name: "more"}}
	hot.Subjects = []*Subject{
		{Name: "gabion, always", Samples: map[string][]float64{"1 caller": {7}}},
		{Name: "raw Pebble, synced batches of 256"}, // nothing was measured
		{Name: "another peer", Samples: map[string][]float64{"1 caller": {8}}},
	}
	var args []string
	for name, r := range map[string]*Report{"1.json": sample(), "2.json": later} {
		if err := writeFile(filepath.Join(dir, name), r.writeSamples); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"1.json", "2.json"} {
		args = append(args, filepath.Join(dir, name))
	}
	r, err := readSamples(args)
	if err != nil {
		t.Fatal(err)
	}

	want := sample()
	want.Machine[0].Value += otherValue + "later"
	want.Machine = append(want.Machine, Fact{"disk", "a new one"})
	want.Tables[0].Note = "new"
	want.Tables[0].Subjects[0] = hot.Subjects[0]
	want.Tables[0].Subjects = append(want.Tables[0].Subjects, hot.Subjects[2])
	want.Tables = append(want.Tables, later.Tables[1])
	if got, want := write(t, r.writeSamples), write(t, want.writeSamples); got != want {
		t.Errorf("merged:\n%s\nwant\n%s", got, want)
	}
	// Once more is once.
	r, err = readSamples(append(args, args[1]))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := write(t, r.writeSamples), write(t, want.writeSamples); got != want {
		t.Errorf("merged with one of them again:\n%s\nwant\n%s", got, want)
	}

	for name, content := range map[string]string{"empty.json": "{}", "other.json": `{"tables":[{"title":"x"}]}`, "text.json": "text"} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(content), 0o666); err != nil {
			t.Fatal(err)
		}
		if _, err := readSamples([]string{file}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v, want one that names the file", name, err)
		}
	}
	if _, err := readSamples([]string{filepath.Join(dir, "none.json")}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such file: error %v", err)
	}
}

// TestPlot holds that the plot is XML, and names what it shows.
func TestPlot(t *testing.T) {
	r := sample()
	svg := write(t, r.writePlot)
	var texts []string
	for d := xml.NewDecoder(strings.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if s, ok := token.(xml.CharData); ok {
			texts = append(texts, string(s))
		}
	}
	hot := r.Tables[0]
	want := []string{"in process: one hot key", "1 caller", "64 callers, 32 in a pipeline", "2.82M", "1.85k", "per second", "gabion"}
	for _, s := range hot.Subjects {
		want = append(want, s.Name)
	}
	for _, s := range want {
		if !slices.Contains(texts, s) {
			t.Errorf("the plot does not say %q: %q", s, texts)
		}
	}
	for _, s := range []string{"per decision", "scale: ten million keys"} {
		if slices.Contains(texts, s) {
			t.Errorf("the plot says %q, which is not per second", s)
		}
	}
	if n, all := strings.Count(svg, sans), strings.Count(svg, "font-family:"); n == 0 || n < all {
		t.Errorf("%d of %d texts of the plot are in a font that all have", n, all)
	}
	r.Tables = r.Tables[1:]
	write(t, r.writePlot) // nothing to draw
}

// TestMeasure runs made-up subjects in turn, with stores of their own, and
// reports what there is when one of them fails. Samples are on disk at once.
func TestMeasure(t *testing.T) {
	samples := filepath.Join(t.TempDir(), samplesFile)
	var order []string
	subject := func(name string, measure func(*Run) error) *Subject {
		return &Subject{Name: name, Measure: func(r *Run) error {
			order = append(order, name)
			if files, err := os.ReadDir(r.Dir); err != nil || len(files) > 0 {
				t.Errorf("%s begins with %v, %v; want an empty directory", name, files, err)
			}
			if err := os.WriteFile(filepath.Join(r.Dir, "left"), nil, 0o666); err != nil {
				t.Error(err)
			}
			return measure(r)
		}}
	}
	figure := 0.0
	counts := subject("counts", func(r *Run) error {
		if figure > 0 {
			kept, err := readSamples([]string{samples})
			if err != nil {
				t.Error(err)
			} else if got := kept.Tables[0].Subjects[0].Samples["c"]; len(got) != int(figure) {
				t.Errorf("after %v rounds the samples on disk are %v", figure, got)
			}
		}
		figure++
		r.Report("c", figure)
		return nil
	})
	once := subject("once", func(*Run) error { return nil })
	r := &Report{Settings: Settings{Rounds: 3, Time: time.Second, Samples: samples}, Tables: []*Table{
		{Name: "a", Columns: []Column{{"c", PerSecond}}, Subjects: []*Subject{counts}},
		{Name: "b", Rounds: 1, Subjects: []*Subject{once}},
	}}
	if err := r.measure(t.Context(), t.TempDir(), io.Discard); err != nil {
		t.Fatal(err)
	}
	if want := []string{"counts", "once", "counts", "counts"}; !slices.Equal(order, want) {
		t.Errorf("measured %q, want %q", order, want)
	}
	if got := counts.Samples["c"]; !slices.Equal(got, []float64{1, 2, 3}) {
		t.Errorf("samples %v, want 1, 2, 3", got)
	}

	for name, s := range map[string]*Subject{
		"an error":  subject("fails", func(r *Run) error { r.Report("c", 1); return errors.New("wrong") }),
		"no number": subject("nan", func(r *Run) error { r.Report("c", math.NaN()); return nil }),
		"too much":  subject("inf", func(r *Run) error { r.Report("c", math.Inf(1)); return nil }),
	} {
		next := subject("next", func(r *Run) error { r.Report("c", 1); return nil })
		r := &Report{Settings: Settings{Rounds: 1}, Tables: []*Table{{Section: "s", Name: "t", Subjects: []*Subject{s, next}}}}
		err := r.measure(t.Context(), t.TempDir(), io.Discard)
		if err == nil || !strings.Contains(err.Error(), "s/t/"+s.Name) {
			t.Errorf("%s: error %v, want one that names the subject", name, err)
		}
		if len(s.Samples) > 0 || len(next.Samples["c"]) != 1 {
			t.Errorf("%s: samples %v, and %v of the next subject, want none and one", name, s.Samples, next.Samples)
		}
		write(t, r.writeSamples) // what there is can be written
	}
}

// TestTables holds that tables and targets name what there is.
func TestTables(t *testing.T) {
	seen := map[string]bool{}
	for _, table := range tables() {
		for _, s := range table.Subjects {
			if path := table.path(s.Name); seen[path] {
				t.Errorf("two subjects are called %s", path)
			} else {
				seen[path] = true
			}
		}
		if table.Baseline != "" && table.subject(table.Baseline) == nil {
			t.Errorf("%s: there is no %q to compare with", table.path(""), table.Baseline)
		}
		for _, g := range table.Targets {
			cells := []Cell{g.Of}
			if g.To != (Cell{}) {
				cells = append(cells, g.To)
			}
			for _, c := range cells {
				if table.subject(c.Subject) == nil || !slices.ContainsFunc(table.Columns, func(o Column) bool { return o.Name == c.Column }) {
					t.Errorf("%s: target %q is about %q, which is not there", table.path(""), g.What, c)
				}
			}
		}
	}
}

// TestWithoutRedis holds that one who has no Redis is told how to do without.
func TestWithoutRedis(t *testing.T) {
	t.Setenv("PATH", "")
	err := bench(t.Context(), []string{"--only", "rolling lists", "--out", t.TempDir()}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "--only '"+withoutRedis+"'") {
		t.Errorf("without Redis: error %v, want one that names what to choose", err)
	}
	chosen := choose(tables(), regexp.MustCompile(withoutRedis))
	if len(chosen) == 0 {
		t.Error("it chooses nothing")
	}
	for _, table := range chosen {
		if programs := table.missing(); len(programs) > 0 {
			t.Errorf("it chooses %s, which needs %q", table.path(""), programs)
		}
	}
}

func TestMachine(t *testing.T) {
	m := machine(t.Context(), t.TempDir(), Settings{Rounds: 3, Time: time.Second})
	for name, pattern := range map[string]string{
		"measured":  `^\d{4}-\d\d-\d\d \d\d:\d\d UTC, 3 rounds, 1s for each figure$`,
		"processor": `\d+ cores`,
		"memory":    `^\d+\.\d GiB$`,
		"stores on": ` on `,
		"a sync":    `^[\d.,]+ ms \(median of 100 `,
		"go":        `^\d+\.\d+|devel`,
		"modules":   `^` + strings.Join(measured, ` v[\d.]+, `) + ` v[\d.]+$`,
	} {
		i := slices.IndexFunc(m, func(f Fact) bool { return f.Name == name })
		if i < 0 || !regexp.MustCompile(pattern).MatchString(m[i].Value) {
			t.Errorf("the machine's %q does not match %s: %v", name, pattern, m)
		}
	}
}

func TestHelp(t *testing.T) {
	var stdout bytes.Buffer
	if err := bench(t.Context(), []string{"--help"}, &stdout, io.Discard); err == nil {
		t.Error("--help goes on")
	}
	for line := range strings.Lines(stdout.String()) {
		if len(line) > terminalWidth {
			t.Errorf("a line of %d characters: %s", len(line), line)
		}
	}
	for _, args := range [][]string{{"x"}, {"--rounds", "0"}, {"--time", "0s"}, {"--only", "("}, {"--only", "^none of these$"}} {
		if err := bench(t.Context(), args, io.Discard, io.Discard); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}

// TestChoose keeps what is chosen with all that it is compared with, and no target
// that would not be measured.
func TestChoose(t *testing.T) {
	chosen := choose(tables(), regexp.MustCompile(`rate limits/gabion, always$`))
	if len(chosen) != 1 {
		t.Fatalf("it chooses %d tables, want 1", len(chosen))
	}
	var names []string
	for _, s := range chosen[0].Subjects {
		names = append(names, s.Name)
	}
	want := []string{gabionAlways, redisAlways + withGCRA, redisNone + withGCRA, bareName}
	if !slices.Equal(names, want) {
		t.Errorf("it chooses %q, want %q", names, want)
	}
	if n := len(chosen[0].Targets); n != 4 {
		t.Errorf("it keeps %d targets, want 4", n)
	}
	chosen = choose(tables(), regexp.MustCompile(`rate limits/gabion, interval$`))
	if len(chosen) != 1 || len(chosen[0].Targets) != 0 {
		t.Error("it keeps targets of what is not chosen")
	}
}
