package main

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"sync"
)

// collector has Go's garbage collector begin when the heap has come to a size, or
// as ever when it is twice what was live, whichever is more. As ever, the heap of a
// small store would be collected every few seconds, and for the milliseconds that
// takes requests wait for the processors.
type collector struct {
	size uint64 // bytes

	mu      sync.Mutex // guards what follows
	stopped bool
}

// collectFrom has collections begin at size bytes, or at half of what the process
// may have if that is less. If the environment says how often to collect, that is
// how often. undo puts an end to it.
func collectFrom(size int64) (undo func()) {
	if os.Getenv("GOGC") != "" {
		return func() {}
	}
	c := &collector{size: uint64(min(size, memoryLimit("/")/2))}
	before := debug.SetGCPercent(c.percent(0))
	c.follow()
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.stopped = true
		debug.SetGCPercent(before)
	}
}

// follow has the end of the next collection set the percentage for the one after
// it, and so on.
func (c *collector) follow() {
	runtime.AddCleanup(new([64]byte), func(c *collector) {
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(live)
		c.mu.Lock()
		defer c.mu.Unlock()
		if !c.stopped {
			debug.SetGCPercent(c.percent(live[0].Value.Uint64()))
			c.follow()
		}
	}, c)
}

// percent returns by how much the heap may grow when so many bytes of it are live.
func (c *collector) percent(live uint64) int {
	live = max(live, 4<<20) // or the runtime would let it grow by as much of that
	if c.size < 2*live {
		return 100
	}
	return int(min((c.size-live)/(live/100), math.MaxInt32))
}

// memoryLimit returns how many bytes the control group of the process may have,
// as a container or a service does, where the file system is at root.
func memoryLimit(root string) int64 {
	group, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return math.MaxInt64
	}
	for line := range bytes.Lines(group) {
		path, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("0::"))
		if !ok {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, "sys/fs/cgroup", string(path), "memory.max"))
		if limit, err2 := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64); err == nil && err2 == nil {
			return limit
		}
	}
	return math.MaxInt64 // "max", or there is no group
}
