package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/shirou/gopsutil/v4/cpu"
	"github.com/shirou/gopsutil/v4/disk"
	"github.com/shirou/gopsutil/v4/host"
	"github.com/shirou/gopsutil/v4/mem"
)

// Machine is what the figures were measured on, and with.
type Machine []Fact

// A Fact is one thing to know about a machine.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

const unknown = "unknown"

// machine tells of this machine. Stores are put into dir.
func machine(ctx context.Context, dir string, s Settings) Machine {
	return Machine{
		{"measured", fmt.Sprintf("%s, %d rounds, %v for each figure", time.Now().UTC().Format("2006-01-02 15:04 UTC"), s.Rounds, s.Time)},
		{"gabion", commit(ctx)},
		{"processor", processor(ctx)},
		{"memory", memory(ctx)},
		{"system", system(ctx)},
		{"stores on", fileSystem(ctx, dir)},
		{"a sync", syncTime(dir)},
		{"go", strings.TrimPrefix(runtime.Version(), "go")},
		{"modules", modules()},
		{"redis-server", programVersion(ctx, "redis-server")},
		{"redis-benchmark", programVersion(ctx, "redis-benchmark")},
	}
}

// commit returns which gabion has been built: what git calls the checkout that
// the program comes from, or what the build has noted of it.
func commit(ctx context.Context) string {
	if _, source, _, ok := runtime.Caller(0); ok {
		out, err := exec.CommandContext(ctx, "git", "-C", filepath.Dir(source), "describe", "--always", "--tags", "--dirty").Output()
		if err == nil {
			return strings.TrimSpace(string(out))
		}
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return unknown
}

func processor(ctx context.Context) string {
	model := unknown
	if infos, err := cpu.InfoWithContext(ctx); err == nil && len(infos) > 0 {
		model = cmp.Or(strings.TrimSpace(infos[0].ModelName), unknown)
	}
	s := fmt.Sprintf("%s, %d cores", model, runtime.NumCPU())
	if n := runtime.GOMAXPROCS(0); n != runtime.NumCPU() {
		s += fmt.Sprintf(", GOMAXPROCS %d", n)
	}
	return s
}

func memory(ctx context.Context) string {
	m, err := mem.VirtualMemoryWithContext(ctx)
	if err != nil {
		return unknown
	}
	return fmt.Sprintf("%.1f GiB", float64(m.Total)/(1<<30))
}

func system(ctx context.Context) string {
	h, err := host.InfoWithContext(ctx)
	if err != nil {
		return runtime.GOOS + "/" + runtime.GOARCH
	}
	s := fmt.Sprintf("%s %s, kernel %s, %s/%s", h.Platform, h.PlatformVersion, h.KernelVersion, runtime.GOOS, runtime.GOARCH)
	if h.VirtualizationRole == "guest" {
		s += ", virtual (" + cmp.Or(h.VirtualizationSystem, unknown) + ")"
	}
	return s
}

// fileSystem returns the type and the device of what holds dir.
func fileSystem(ctx context.Context, dir string) string {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return unknown
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	mounts, err := disk.PartitionsWithContext(ctx, true)
	if err != nil {
		return unknown
	}
	holds := disk.PartitionStat{Fstype: unknown, Device: unknown}
	for _, m := range mounts {
		rest, ok := strings.CutPrefix(dir, strings.TrimSuffix(m.Mountpoint, "/"))
		// Of several mounts at one place, the last one is seen.
		if ok && (rest == "" || rest[0] == '/') && len(m.Mountpoint) >= len(holds.Mountpoint) {
			holds = m
		}
	}
	return holds.Fstype + " on " + holds.Device
}

// syncTime measures what it takes to have 4 KiB more of a file in dir on disk, for
// orientation: a log that grows into room made beforehand may take less.
func syncTime(dir string) string {
	const times = 100
	took := make([]float64, times)
	err := func() error {
		f, err := os.CreateTemp(dir, "sync-")
		if err != nil {
			return err
		}
		defer os.Remove(f.Name())
		defer f.Close()
		block := make([]byte, 4096)
		for i := range took {
			start := time.Now()
			if _, err := f.Write(block); err != nil {
				return err
			}
			if err := f.Sync(); err != nil {
				return err
			}
			took[i] = time.Since(start).Seconds() * 1000
		}
		return nil
	}()
	if err != nil {
		return unknown + ": " + err.Error()
	}
	return fmt.Sprintf("%s ms (median of %d appends of 4 KiB, each with fsync; %s to %s)",
		digits(median(took)), times, digits(slices.Min(took)), digits(slices.Max(took)))
}

// measured are the peers, and the store below gabion; what else that is made of
// its commit tells.
var measured = []string{
	"github.com/cockroachdb/pebble/v2",
	"github.com/dgraph-io/badger/v4",
	"github.com/go-redis/redis_rate/v10",
	"github.com/sethvargo/go-limiter",
	"github.com/throttled/throttled/v2",
	"github.com/tidwall/redcon",
	"go.etcd.io/bbolt",
	"golang.org/x/time",
}

// modules returns the measured modules in the versions that have been built.
func modules() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return unknown
	}
	var list []string
	for _, m := range info.Deps {
		if slices.Contains(measured, m.Path) {
			list = append(list, m.Path+" "+m.Version)
		}
	}
	return strings.Join(list, ", ")
}

// programVersion returns the first version in what a program tells of itself.
func programVersion(ctx context.Context, name string) string {
	out, err := exec.CommandContext(ctx, name, "--version").Output()
	if err != nil {
		return "not found"
	}
	return cmp.Or(regexp.MustCompile(`\d+(\.\d+)+`).FindString(string(out)), unknown)
}
