//go:build !race

package engine_test

import (
	"testing"
	"time"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// TestAllocations counts those of calls on keys that are in memory. The race
// detector has pools forget what they are given, so it would find some.
func TestAllocations(t *testing.T) {
	// No batch is written while the test runs.
	l := open(t, "store", engine.Options{Durability: engine.Interval, SyncInterval: time.Hour, NoPurge: true})
	rate := limit.Rate{Burst: 1 << 40, Count: 1, Period: time.Second}
	charge(t, l, 0, 1, rate)
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	charge(t, l, 1, 2, rate)
	applied, staged, absent := nth(0), nth(1), nth(2)
	quota, w := limit.Quota{Limit: 10, Window: time.Hour}, limit.Rolling{Limit: 1 << 40, Window: time.Hour}
	takes := []engine.Op{{Verb: engine.OpTakeQuota, Key: quotaKey, ID: "id", Quota: quota, N: 6}}
	l.Do(takes, nil)
	dst := make([]engine.Result, 0, 2)
	for name, fn := range map[string]func(){
		"Throttle": func() { l.Throttle(staged, rate, 1) },
		"charges":  func() { l.Do([]engine.Op{{Key: staged, Rate: rate, N: 1}, {Key: staged, Rate: rate, N: 2}}, dst) },
		"denials": func() {
			l.Do([]engine.Op{{Key: staged, Rate: rate, N: 1 << 41}, {Key: absent, Rate: rate, N: 1 << 41}}, dst)
		},
		"replays":  func() { l.Do(takes, dst) },
		"requests": func() { l.TakeQuota(quotaKey, "other", quota, 6) }, // which are denied
		"events":   func() { l.Allow(listKey, w) },
		"reads": func() {
			l.Do([]engine.Op{{Verb: engine.OpProbe, Key: applied, Rate: rate}, {Verb: engine.OpStat, Key: applied}}, dst)
		},
	} {
		if n := testing.AllocsPerRun(1000, fn); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
