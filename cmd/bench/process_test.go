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
			if !table.judge(target).measured {
				t.Errorf("%s: %s: not measured", table.Name, target.What)
			}
		}
	}
}
