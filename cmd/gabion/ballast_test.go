package main

import (
	"math"
	"runtime"
	"runtime/metrics"
	"testing"
)

// The heap may grow by a ballast before it is collected.
func TestBallast(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	goal := func() uint64 {
		runtime.GC()
		sample := []metrics.Sample{{Name: "/gc/heap/goal:bytes"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	ballast := newBallast(160<<20, 32<<20)
	const size = 48 << 20
	if len(ballast) != size {
		t.Errorf("a ballast of %d bytes, want %d", len(ballast), size)
	}
	if got := goal(); got < 2*size {
		t.Errorf("the heap is collected at %d bytes, with a ballast of %d", got, size)
	}
	runtime.KeepAlive(ballast)
	if got, want := len(newBallast(math.MaxInt64, math.MaxInt64)), 512<<20; got != want {
		t.Errorf("a ballast of %d bytes, want %d", got, want)
	}
	for name, value := range map[string]string{"GOGC": "100", "GOMEMLIMIT": "1GiB"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, value)
			if got := newBallast(size, size); got != nil {
				t.Errorf("a ballast of %d bytes, want none", len(got))
			}
		})
	}
}
