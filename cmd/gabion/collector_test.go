package main

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/metrics"
	"testing"
	"time"
)

// gcPercent returns what SetGCPercent was last told.
func gcPercent() int {
	percent := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(percent)
	return int(percent[0].Value.Uint64())
}

// await collects until the percentage is what it should be. It may follow a
// collection later.
func await(t *testing.T, what string, is func(percent int) bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		runtime.GC()
		time.Sleep(time.Millisecond)
		if is(gcPercent()) {
			return
		}
	}
	t.Fatalf("the percentage is %d, want %s", gcPercent(), what)
}

// litter allocates so many bytes, and drops them.
func litter(n int) {
	for ; n > 0; n -= 1 << 20 {
		litterBox = make([]byte, 1<<20)
	}
	litterBox = nil
}

var litterBox []byte

func collections() uint32 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.NumGC
}

// A small heap is not collected before it has come to the size, and a large one
// when it is twice what is live.
func TestCollector(t *testing.T) {
	const size = 256 << 20
	t.Setenv("GOGC", "")
	runtime.GC()
	before := gcPercent()
	undo := collectFrom(size)
	for range 3 {
		n := collections()
		litter(size / 2)
		if got := collections() - n; got != 0 {
			t.Errorf("%d collections within half of the size, want none", got)
		}
		for i := 0; collections() == n; i++ { // one may be under way
			if i == 10 {
				t.Fatal("no collection at ten times the size")
			}
			litter(size)
		}
		await(t, "what a heap of nothing calls for", func(percent int) bool { return percent > 6000 })
	}
	live := make([]byte, size)
	await(t, "the usual", func(percent int) bool { return percent == 100 })
	runtime.KeepAlive(live)
	undo()
	if got := gcPercent(); got != before {
		t.Errorf("the percentage is %d afterwards, want %d", got, before)
	}
	runtime.GC()
	runtime.GC()
	time.Sleep(10 * time.Millisecond) // what is left of it might set the percentage
	if got := gcPercent(); got != before {
		t.Errorf("the percentage is %d some collections later, want %d", got, before)
	}
	t.Setenv("GOGC", "100")
	defer collectFrom(size)()
	if got := gcPercent(); got != before {
		t.Errorf("with GOGC the percentage is %d, want %d", got, before)
	}
}

func TestCollectorPercent(t *testing.T) {
	for _, test := range []struct {
		size, live uint64
		want       int
	}{
		{320 << 20, 0, 7900}, // of 4 MiB, the least that the runtime reckons with
		{320 << 20, 100 << 20, 220},
		{320 << 20, 160 << 20, 100},
		{320 << 20, 200 << 20, 100},
		{0, 1 << 20, 100},
		{math.MaxInt64, 0, math.MaxInt32},
	} {
		c := collector{size: test.size}
		if got := c.percent(test.live); got < test.want || got > test.want+1 {
			t.Errorf("with %d of %d live it may grow by %d %%, want %d", test.live, test.size, got, test.want)
		}
	}
}

func TestMemoryLimit(t *testing.T) {
	for name, test := range map[string]struct {
		group, path, max string
		want             int64
	}{
		"a container":          {"0::/\n", "", "268435456\n", 256 << 20},
		"a service":            {"0::/system.slice/gabion.service\n", "system.slice/gabion.service", "1073741824\n", 1 << 30},
		"beside older ones":    {"3:cpu:/x\n0::/y\n", "y", "4096\n", 4096},
		"no limit":             {"0::/\n", "", "max\n", math.MaxInt64},
		"no controller":        {"0::/\n", "elsewhere", "4096\n", math.MaxInt64},
		"only older ones":      {"3:memory:/\n", "", "4096\n", math.MaxInt64},
		"what is not a number": {"0::/\n", "", "\n", math.MaxInt64},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			write := func(path, text string) {
				t.Helper()
				path = filepath.Join(root, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			write("proc/self/cgroup", test.group)
			write(filepath.Join("sys/fs/cgroup", test.path, "memory.max"), test.max)
			if got := memoryLimit(root); got != test.want {
				t.Errorf("the limit is %d, want %d", got, test.want)
			}
		})
	}
	if got := memoryLimit(t.TempDir()); got != math.MaxInt64 {
		t.Errorf("without control groups the limit is %d", got)
	}
}
