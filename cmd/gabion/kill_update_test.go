package main

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// shop is the path of a program that places orders in a store of its own, and can
// be told to kill itself.
var shop = sync.OnceValues(func() (string, error) {
	return build("shop", "./cmd/gabion/testdata/shop", killEdits)
})

// shopKills are the ways for a shop to be killed: at a point of killEdits, as which
// one there at most, or from outside, after how many orders at most.
var shopKills = []struct {
	point      string
	most       int
	rounds     int
	durability string
}{
	{"", 1000, 8, "always"},
	{"decided", 300, 4, "always"},
	{"cut", 300, 4, "always"},
	{"applied", 300, 4, "always"},
	{"synced", 300, 4, "always"},
	{"acknowledged", 300, 4, "always"},
	{"", 3000, 4, "interval"},
	{"cut", 3000, 4, "interval"},
	{"applied", 3000, 4, "never"},
}

// TestKillUpdate kills an application that debits an account and writes a row in
// one transaction, again and again, and holds that both are there or neither: of
// all orders that were answered, and of no other but the one that came next.
func TestKillUpdate(t *testing.T) {
	if testing.Short() {
		t.Skip("kills programs for some seconds")
	}
	path, err := shop()
	if err != nil {
		t.Fatal(err)
	}
	start, kills := time.Now(), 0
	for more := true; more; more = !t.Failed() && time.Since(start) < *crashFor {
		for _, row := range shopKills {
			name := strings.TrimSpace(fmt.Sprintf("%s %s", row.point, row.durability))
			t.Run(name, func(t *testing.T) {
				rng := rand.New(rand.NewPCG(newSeed(t), 0))
				dir := filepath.Join(keptDir(t), "store")
				for n := range row.rounds {
					at := 1 + rng.IntN(row.most)
					cmd := exec.Command(path, dir, row.durability)
					if row.point != "" {
						cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s:%d", killPointEnv, row.point, at))
					}
					answered := killShop(t, cmd, at, row.point == "")
					if kills++; t.Failed() {
						t.Fatalf("that was round %d", n)
					}
					holdShop(t, dir, answered, row.durability)
				}
			})
		}
	}
	t.Logf("%d kills in %v", kills, time.Since(start).Round(time.Second))
}

// killShop runs a shop until it is killed, from outside if that is asked for, once
// it has answered so many orders. It returns the number of the last order that it
// has answered.
func killShop(t *testing.T, cmd *exec.Cmd, orders int, outside bool) (answered int) {
	t.Helper()
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for n := 1; lines.Scan(); n++ {
		if _, err := fmt.Sscan(lines.Text(), &answered); err != nil {
			t.Error(err)
		}
		if outside && n == orders {
			_ = cmd.Process.Kill()
		}
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != -1 {
		t.Fatalf("the shop ends with %v, want it killed\n%s", err, &errs)
	}
	return answered
}

// holdShop holds what a shop has left against the last of its answers.
func holdShop(t *testing.T, dir string, answered int, durability string) {
	t.Helper()
	db, err := pebble.Open(dir, &pebble.Options{Logger: silent{t}})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	l, err := engine.New(db, &engine.Options{Prefix: []byte("limits/"), QuotaMaxLimit: engine.MaxLimit})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	it, err := db.NewIter(&pebble.IterOptions{LowerBound: []byte("order "), UpperBound: []byte("order!")})
	if err != nil {
		t.Fatal(err)
	}
	orders, newest := 0, 0
	for it.First(); it.Valid(); it.Next() {
		var n int
		if _, err := fmt.Sscanf(string(it.Key()), "order %d", &n); err != nil || n < 1 {
			t.Errorf("there is an order %q, which was not placed", it.Key())
		}
		orders, newest = orders+1, max(newest, n)
	}
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	if orders != newest || durability == "always" && (orders < answered || orders > answered+1) {
		t.Errorf("there are %d orders, the newest is %d, and %d were answered", orders, newest, answered)
	}
	// The clock has gone on since the first, by far less than the time of one.
	rate := limit.Rate{Burst: 1 << 30, Count: 1, Period: time.Hour}
	d, err := l.Probe([]byte("account"), rate, 0)
	used := (d.ResetAfter + time.Hour - 1) / time.Hour
	if err != nil || int(used) != orders {
		t.Errorf("the account owes %d, %v, and there are %d orders", used, err, orders)
	}
	if u, err := l.Quota([]byte("quota")); err != nil || int(u.Used) != orders {
		t.Errorf("%d is spent of the quota, %v, and there are %d orders", u.Used, err, orders)
	}
}

// silent is a logger of Pebble's that says what ends it, and nothing else.
type silent struct{ t *testing.T }

func (silent) Infof(string, ...any)  {}
func (silent) Errorf(string, ...any) {}

func (s silent) Fatalf(format string, args ...any) { s.t.Errorf(format, args...) }
