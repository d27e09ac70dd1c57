package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/metrics"
	"testing"
)

// ballasts are those of earlier runs: memory that is used again would be cleared.
var ballasts [][]byte

// The heap may grow by a ballast before it is collected, and a ballast takes no
// memory.
func TestBallast(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	goal := func() uint64 {
		runtime.GC()
		sample := []metrics.Sample{{Name: "/gc/heap/goal:bytes"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	before, resident := goal(), residentMemory(t)
	ballast := newBallast(math.MaxInt64, math.MaxInt64)
	const size = 512 << 20
	if len(ballast) != size {
		t.Errorf("a ballast of %d bytes, want %d", len(ballast), size)
	}
	if got := goal(); got < before+size {
		t.Errorf("the heap is collected at %d bytes, without the ballast at %d", got, before)
	}
	if grown := residentMemory(t) - resident; grown > size/8 {
		t.Errorf("%d bytes of memory are taken by a ballast of %d", grown, size)
	}
	ballasts = append(ballasts, ballast)

	ballast = newBallast(160<<20, 32<<20)
	if want := 48 << 20; len(ballast) != want {
		t.Errorf("a ballast of %d bytes, want %d", len(ballast), want)
	}
	ballasts = append(ballasts, ballast)
	for name, value := range map[string]string{"GOGC": "100", "GOMEMLIMIT": "1GiB"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, value)
			if got := newBallast(size, size); got != nil {
				t.Errorf("a ballast of %d bytes, want none", len(got))
			}
		})
	}
}

// residentMemory returns what the process has in memory, in bytes; 0 where that is not to
// be found out.
func residentMemory(t *testing.T) (n int64) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, rest, _ := bytes.Cut(status, []byte("\nVmRSS:"))
	if _, err := fmt.Fscan(bytes.NewReader(rest), &n); err != nil {
		t.Fatal(err)
	}
	return n << 10
}
