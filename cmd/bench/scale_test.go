package main

import (
	"io"
	"runtime"
	"testing"
	"time"
)

// TestScale measures small stores as the program does large ones.
func TestScale(t *testing.T) {
	few, many, most := &filling{keys: 100}, &filling{keys: 2000}, &filling{keys: 20_000}
	keys, size, slow := keysTable(few, many, most, 1<<20), bytesTable(most), slowTable(5*time.Millisecond)
	r := Report{Settings: Settings{Rounds: 1, Time: 20 * time.Millisecond}, Tables: []*Table{keys, size, slow}}
	if err := r.measure(t.Context(), t.TempDir(), io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, table := range r.Tables {
		for _, s := range table.Subjects {
			for _, c := range table.Columns {
				figure, ok := s.figure(c.Name)
				t.Logf("%s: %s: %.2f %s", table.path(s.Name), c.Name, figure, c.Unit)
				switch c.Unit {
				case PerSecond, Micros, Ratio: // a busy machine may do nothing at all in so short a time
					ok = ok && figure >= 0
				default:
					ok = ok && figure > 0
				}
				if !ok && (c.Name != keysPeak || runtime.GOOS == "linux") {
					t.Errorf("%s: %s = %v, want a figure", table.path(s.Name), c.Name, figure)
				}
			}
		}
	}
}
