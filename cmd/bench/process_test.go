package main

import (
	"io"
	"math"
	"slices"
	"testing"
	"time"
)

// TestProcess measures everything in process once, with few keys.
func TestProcess(t *testing.T) {
	tables := processTablesOf(1000)
	r := Report{Settings: Settings{Rounds: 1, Time: 4 * time.Millisecond}, Tables: tables}
	if err := r.measure(t.Context(), t.TempDir(), io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, table := range tables {
		for _, s := range table.Subjects {
			if len(s.Samples) == 0 {
				t.Errorf("%s has no figures", table.path(s.Name))
			}
			for column, figures := range s.Samples {
				isColumn := func(c Column) bool { return c.Name == column }
				if !slices.ContainsFunc(table.Columns, isColumn) || len(figures) != 1 || !(figures[0] > 0) || math.IsInf(figures[0], 0) {
					t.Errorf("%s: %q = %v", table.path(s.Name), column, figures)
				}
			}
		}
		for _, target := range table.Targets {
			for _, c := range []Cell{target.Of, target.To} {
				if c == (Cell{}) {
					continue
				}
				s := table.subject(c.Subject)
				if s == nil {
					t.Errorf("%s: %s: no subject is called %q", table.Name, target.What, c.Subject)
				} else if _, ok := s.figure(c.Column); !ok {
					t.Errorf("%s: %s: %q has no figure %q", table.Name, target.What, c.Subject, c.Column)
				}
			}
		}
		if table.Baseline != "" && table.subject(table.Baseline) == nil {
			t.Errorf("%s: no subject is called %q", table.Name, table.Baseline)
		}
	}
}
