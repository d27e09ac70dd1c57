package commands

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/engine"
)

// However many requests a pipeline brings, and keys each of them, no more
// operations gather than a run may have. Those of one request are never divided.
func TestRunIsBounded(t *testing.T) {
	exists := [][]byte{[]byte("EXISTS")}
	for i := range 300 {
		exists = append(exists, fmt.Append(nil, i))
	}
	for name, requests := range map[string][][][]byte{
		"keys":             {exists},
		"several":          {several(engine.MaxTogether)},
		"several and keys": {several(100), exists, several(1), several(engine.MaxTogether)},
	} {
		t.Run(name, func(t *testing.T) { testRunIsBounded(t, requests) })
	}
}

// several returns a call of CL.MTHROTTLE with n keys.
func several(n int) [][]byte {
	args := [][]byte{[]byte("CL.MTHROTTLE"), []byte("ALL"), fmt.Append(nil, n)}
	for i := range n {
		args = append(args, fmt.Append(nil, i), []byte("9"), []byte("1"), []byte("10"), []byte("1"))
	}
	return args
}

func testRunIsBounded(t *testing.T, requests [][][]byte) {
	l, err := engine.Open("store", &engine.Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := NewServer(l, Config{}).newSession("test", "test")
	s.run = new(run)
	most := 0
	for i := range 100 {
		s.do(requests[i%len(requests)])
		most = max(most, len(s.ops))
		ops := s.ops
		for _, call := range s.calls {
			if together := 1 + ops[0].With; together > 1 && together != call.ops {
				t.Fatalf("%d operations go together, the call has %d", together, call.ops)
			}
			ops = ops[call.ops:]
		}
		if len(ops) > 0 {
			t.Fatalf("%d of %d operations belong to no call", len(ops), len(s.ops))
		}
	}
	if most == 0 || most > maxRun {
		t.Errorf("%d operations have gathered, want no more than %d", most, maxRun)
	}

	held := s.ops[:cap(s.ops)]
	s.settle()
	checkHeld(t, s, held)
}

// checkHeld holds that nothing is left of the requests of s, whose operations
// were in held.
func checkHeld(t *testing.T, s *session, held []engine.Op) {
	t.Helper()
	if len(s.ops) > 0 || len(s.calls) > 0 {
		t.Errorf("%d operations of %d calls are left", len(s.ops), len(s.calls))
	}
	for _, op := range held {
		if op.Key != nil {
			t.Fatalf("the key %q is still held", op.Key)
		}
	}
}

// Nor is anything left of a request that is refused at its end, in a run that is
// about to outgrow its memory or in a large one.
func TestRefusedRequestLeavesNothing(t *testing.T) {
	l, err := engine.Open("store", &engine.Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := NewServer(l, Config{}).newSession("test", "test")
	s.run = new(run)
	for _, n := range []int{20, engine.MaxTogether} {
		for range 3 {
			s.do(several(1))
		}
		if n > smallRun {
			s.enlarge()
		}
		held := s.ops[:cap(s.ops)]
		if room := len(held) - len(s.ops); room == 0 {
			t.Fatal("the run has no room for a part of the request")
		}
		refused := several(n)
		refused[len(refused)-1] = []byte("x")
		s.do(refused)
		checkHeld(t, s, held)
	}
}
