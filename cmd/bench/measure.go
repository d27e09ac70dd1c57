package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// A Table sets subjects side by side, under the same loads.
type Table struct {
	Section  string     `json:"section"` // "in process", "over the wire" or "scale"
	Name     string     `json:"name"`
	Note     string     `json:"note,omitempty"` // what one has to know to read it
	Columns  []Column   `json:"columns"`
	Baseline string     `json:"baseline,omitempty"` // the subject that the others are compared with; "" for none
	Needs    []string   `json:"-"`                  // programs that have to be installed
	Rounds   int        `json:"rounds,omitempty"`   // at most so many, for what takes long; 0 for as many as for the others
	Subjects []*Subject `json:"subjects"`
	Targets  []Target   `json:"targets,omitempty"`
}

// A Target is what a figure has to reach, by itself or as a multiple of another
// one of the same table.
type Target struct {
	What   string  `json:"what"` // the report's name for it
	Of     Cell    `json:"of"`
	To     Cell    `json:"to,omitzero"` // empty for a figure by itself
	Bound  float64 `json:"bound"`
	Goal   float64 `json:"goal,omitempty"`    // 0 for none beyond the bound
	AtMost bool    `json:"at_most,omitempty"` // Bound and Goal are the most, not the least, that it may be
}

// A Cell is where a figure stands in its table.
type Cell struct {
	Subject string `json:"subject"`
	Column  string `json:"column"`
}

// A Column is one figure of each subject.
type Column struct {
	Name string `json:"name"`
	Unit Unit   `json:"unit"`
}

// Unit is what a figure counts.
type Unit string

const (
	PerSecond Unit = "/s"
	Micros    Unit = "us"
	Bytes     Unit = "B"
	Megabytes Unit = "MB"
	Seconds   Unit = "s"
	Ratio     Unit = "x"
	Count     Unit = "allocs"
)

// A Subject is a limiter, or what stands in for one, in a setting of its own.
type Subject struct {
	Name string `json:"name"`

	// Measure measures the figures of all columns once, one after the other, and
	// reports each. What it does not report stays empty.
	Measure func(r *Run) error `json:"-"`

	Samples map[string][]float64 `json:"samples,omitempty"` // of each column, one for each round
}

// A Run is one measurement of a subject.
type Run struct {
	Context context.Context
	Dir     string        // an empty directory, removed afterwards
	Shared  string        // a directory for all measurements, removed at the end
	Time    time.Duration // how long to measure each figure
	report  func(column string, figure float64)
}

// Report takes down the figure of a column.
func (r *Run) Report(column string, figure float64) { r.report(column, figure) }

// longer is how many times as long as others some figures are measured: those in
// which flushes and compactions have a share, and the rarest of latencies.
const longer = 5

// Settings are what the user chose, and where samples go.
type Settings struct {
	Rounds  int
	Time    time.Duration
	Samples string // the file that samples are written to as they come; "" for none
}

// A Report is what has been measured, and where.
type Report struct {
	Machine  Machine  `json:"machine"`
	Settings Settings `json:"-"` // Machine tells of them
	Tables   []*Table `json:"tables"`
}

func (t *Table) path(subject string) string {
	return strings.Join([]string{t.Section, t.Name, subject}, "/")
}

// choose keeps the subjects whose path matches, their targets, and what those and
// the tables compare them with.
func choose(all []*Table, pattern *regexp.Regexp) (chosen []*Table) {
	for _, t := range all {
		matches := func(name string) bool { return pattern.MatchString(t.path(name)) }
		if !slices.ContainsFunc(t.Subjects, func(s *Subject) bool { return matches(s.Name) }) {
			continue
		}
		t.Targets = slices.DeleteFunc(t.Targets, func(target Target) bool { return !matches(target.Of.Subject) })
		t.Subjects = slices.DeleteFunc(t.Subjects, func(s *Subject) bool {
			compared := s.Name == t.Baseline ||
				slices.ContainsFunc(t.Targets, func(target Target) bool { return target.To.Subject == s.Name })
			return !compared && !matches(s.Name)
		})
		chosen = append(chosen, t)
	}
	return chosen
}

// measure measures everything once in each round, so that what else the machine
// does meanwhile meets all alike. The subjects of a table take turns in being the
// first, so that none always comes behind the same other. It writes down how it
// gets on, and the samples that there are, in case it does not get to its end. A
// subject that can't be measured does not keep the others from it.
func (r *Report) measure(ctx context.Context, stores string, progress io.Writer) error {
	start := time.Now()
	var failed []error
	for round := range r.Settings.Rounds {
		for _, t := range r.Tables {
			if t.Rounds > 0 && round >= t.Rounds {
				continue
			}
			for i := range t.Subjects {
				s := t.Subjects[(i+round)%len(t.Subjects)]
				fmt.Fprintf(progress, "%7s  round %d of %d  %s\n", time.Since(start).Round(time.Second), round+1, r.Settings.Rounds, t.path(s.Name))
				if err := s.measure(ctx, stores, r.Settings.Time); err != nil {
					if ctx.Err() != nil {
						err = fmt.Errorf("interrupted: the report is of what there is: %w", context.Cause(ctx))
						return errors.Join(append(failed, err)...)
					}
					err = fmt.Errorf("%s: %w", t.path(s.Name), err)
					fmt.Fprintln(progress, err)
					failed = append(failed, err)
					continue
				}
				if err := r.keepSamples(); err != nil {
					return errors.Join(append(failed, err)...)
				}
			}
		}
	}
	return errors.Join(failed...)
}

func (s *Subject) measure(ctx context.Context, stores string, length time.Duration) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	dir := filepath.Join(stores, "store")
	if err := os.Mkdir(dir, 0o777); err != nil {
		return err
	}
	defer func() {
		// What it has written is not to be synced by the next.
		os.RemoveAll(dir)
		syscall.Sync()
	}()
	var wrong error
	figures := map[string]float64{} // which count only if the run ends well
	err := s.Measure(&Run{Context: ctx, Dir: dir, Shared: stores, Time: length, report: func(column string, figure float64) {
		if math.IsNaN(figure) || math.IsInf(figure, 0) {
			wrong = fmt.Errorf("measured %v for %q", figure, column)
			return
		}
		figures[column] = figure
	}})
	if err := errors.Join(err, wrong); err != nil {
		return err
	}
	if s.Samples == nil {
		s.Samples = map[string][]float64{}
	}
	for column, figure := range figures {
		s.Samples[column] = append(s.Samples[column], figure)
	}
	return nil
}

// figure returns the median of what has been measured in a column, and whether
// anything has.
func (s *Subject) figure(column string) (float64, bool) {
	if len(s.Samples[column]) == 0 {
		return 0, false
	}
	return median(s.Samples[column]), true
}

// median returns the one in the middle, or the mean of the two there.
func median(samples []float64) float64 {
	sorted := slices.Sorted(slices.Values(samples))
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}

// missing returns the programs that t needs and that are not installed.
func (t *Table) missing() (programs []string) {
	for _, name := range t.Needs {
		if _, err := exec.LookPath(name); err != nil {
			programs = append(programs, name)
		}
	}
	return programs
}

func (t *Table) subject(name string) *Subject {
	for _, s := range t.Subjects {
		if s.Name == name {
			return s
		}
	}
	return nil
}
