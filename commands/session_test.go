package commands

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/engine"
)

// However many requests a pipeline brings, and keys each of them, no more
// operations gather than a run may have.
func TestRunIsBounded(t *testing.T) {
	l, err := engine.Open("store", &engine.Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := NewServer(l, Config{}).newSession("test", "test")
	s.run = new(run)
	exists := [][]byte{[]byte("EXISTS")}
	for i := range 300 {
		exists = append(exists, fmt.Append(nil, i))
	}
	most := 0
	for range 100 {
		s.do(exists)
		most = max(most, len(s.ops))
	}
	s.settle()
	if most == 0 || most >= maxRun {
		t.Errorf("%d operations have gathered, want less than %d", most, maxRun)
	}
	if len(s.ops) > 0 || len(s.calls) > 0 {
		t.Errorf("%d operations of %d calls are left", len(s.ops), len(s.calls))
	}
	for _, op := range s.ops[:cap(s.ops)] {
		if op.Key != nil {
			t.Fatalf("the key %q is still held", op.Key)
		}
	}
}
