package main

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var (
	crashFor  = flag.Duration("crash.for", 0, "go on with the tests that kill for so long; once over all of them if it is 0")
	crashSeed = flag.Uint64("crash.seed", 0, "the seed of the tests that load a server; a random one if it is 0")
)

// newSeed returns the seed for a test, and has it printed if the test fails.
func newSeed(t *testing.T) uint64 {
	t.Helper()
	seed := cmp.Or(*crashSeed, rand.Uint64())
	t.Logf("rerun with -crash.seed %d", seed)
	return seed
}

// killRow is one way for gabion to be killed.
type killRow struct {
	when  stage
	point string // of killEdits; without one the kill comes from outside
	most  int    // as which one at the point, at most; or after how many answers, or milliseconds

	rounds     int
	durability string // "" is always
}

// stage is what gabion is doing when it is killed.
type stage int

const (
	serving    stage = iota // under load
	stopping                // told to by a signal, under load
	compacting              // what a load has left
	opening                 // that
	copying                 // its store, under load
	making                  // a new store
	calling                 // itself on a store of its own: gabion throttle
)

var killRows = []killRow{
	{when: serving, most: 10_000, rounds: 12},
	{when: serving, point: "cut", most: 200, rounds: 6},
	{when: serving, point: "applied", most: 200, rounds: 6},
	{when: serving, point: "synced", most: 200, rounds: 6},
	{when: serving, point: "acknowledged", most: 200, rounds: 6},
	{when: serving, point: "reply", most: 2000, rounds: 6},
	{when: serving, point: "half a reply", most: 2000, rounds: 6},
	{when: serving, point: "purge staged", most: 3, rounds: 4},
	{when: serving, point: "requests staged", most: 1, rounds: 3},
	{when: serving, point: "purge cut", most: 2, rounds: 4},
	{when: serving, point: "purge applied", most: 2, rounds: 4},
	{when: copying, point: "copy begun", most: 4, rounds: 2},
	{when: copying, point: "copied", most: 4, rounds: 3},
	{when: copying, point: "copy named", most: 4, rounds: 3},
	{when: stopping, point: "sidecars put", most: 1, rounds: 3},
	{when: stopping, point: "closing", most: 1, rounds: 3},
	{when: compacting, point: "purge staged", most: 8, rounds: 2},
	{when: compacting, point: "compact purging", most: 256, rounds: 4},
	{when: compacting, point: "compact purged", most: 1, rounds: 2},
	{when: compacting, point: "compacted", most: 1, rounds: 2},
	{when: compacting, most: 60, rounds: 4},
	{when: calling, most: 60, rounds: 5},
	{when: calling, point: "cut", most: 1, rounds: 1},
	{when: calling, point: "applied", most: 1, rounds: 1},
	{when: calling, point: "synced", most: 1, rounds: 1},
	{when: calling, point: "sidecars put", most: 1, rounds: 1},
	{when: calling, point: "closing", most: 1, rounds: 1},
	{when: opening, point: "attached", most: 1, rounds: 3},
	{when: opening, point: "identified", most: 1, rounds: 2},
	{when: making, point: "attached", most: 1, rounds: 1},
	{when: making, point: "identified", most: 1, rounds: 1},
	{when: making, point: "flushed", most: 1, rounds: 1},

	{when: serving, most: 1, rounds: 2, durability: "interval"},
	{when: serving, point: "cut", most: 20, rounds: 3, durability: "interval"},
	{when: serving, point: "synced", most: 20, rounds: 3, durability: "interval"},
	{when: serving, most: 10_000, rounds: 3, durability: "never"},
	{when: serving, point: "applied", most: 20, rounds: 3, durability: "never"},
}

func (r *killRow) String() string {
	when := [...]string{"serving", "stopping", "compacting", "opening", "copying", "making", "calling"}[r.when]
	return strings.Join(strings.Fields(when+" "+r.point+" "+r.durability), " ")
}

// args returns the flags of the row's servers. They purge as soon as they may.
func (r *killRow) args() []string {
	return []string{"--durability", cmp.Or(r.durability, "always"), "--sync-interval", syncInterval.String(), "--purge-wait", "1s"}
}

const syncInterval = 20 * time.Millisecond

// TestKill kills gabion at all the points of killRows, and from outside, starts
// it again and holds what it promises: what was acknowledged is there, nothing
// is that was not sent, and a request that comes again is answered as before.
func TestKill(t *testing.T) {
	if testing.Short() {
		t.Skip("kills servers for a minute")
	}
	start, kills := time.Now(), 0
	for more := true; more; more = !t.Failed() && time.Since(start) < *crashFor {
		for _, row := range killRows {
			t.Run(row.String(), func(t *testing.T) { kills += newKiller(t, &row, newSeed(t)).run() })
		}
	}
	t.Logf("%d kills in %v", kills, time.Since(start).Round(time.Second))
}

// killer kills gabion over and over on one store.
type killer struct {
	t     *testing.T
	row   *killRow
	rng   *rand.Rand
	dir   string // of the store, and of a copy as the last kill has left it
	kills int
	sum   tally
}

func newKiller(t *testing.T, row *killRow, seed uint64) *killer {
	return &killer{t: t, row: row, rng: rand.New(rand.NewPCG(seed, 0)), dir: keptDir(t)}
}

// keptDir returns a directory that is left where it is if the test fails.
func keptDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gabion-kill-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the store is kept in %s", dir)
		} else {
			os.RemoveAll(dir)
		}
	})
	return dir
}

func (k *killer) store() string  { return filepath.Join(k.dir, "store") }
func (k *killer) copies() string { return filepath.Join(k.dir, "copies") }

func (k *killer) run() (kills int) {
	for round := range k.row.rounds {
		if k.round(round); k.t.Failed() {
			k.t.Fatalf("that was round %d", round)
		}
	}
	return k.kills
}

// round has gabion killed once or twice, and holds what it left.
func (k *killer) round(n int) {
	l := &load{t: k.t, quota: fmt.Sprint("quota-", n), copying: k.row.when == copying}
	killed := time.Now()
	switch k.row.when {
	case making:
		if err := os.RemoveAll(k.store()); err != nil {
			k.t.Fatal(err)
		}
	case calling:
		k.call(l)
	default:
		killed = k.load(l)
	}
	switch k.row.when {
	case compacting:
		k.killAlone("compact", "--dir", k.store())
	case opening, making:
		k.killAlone(serveArgs(k.store(), k.row.args()...)...)
	}
	left := filepath.Join(k.dir, "killed")
	if err := errors.Join(os.RemoveAll(left), os.CopyFS(left, os.DirFS(k.store()))); err != nil {
		k.t.Fatal(err)
	}

	k.holdCopies(l)
	server := startServer(k.t, k.store(), k.row.args()...)
	before := k.sum
	if k.row.when == making {
		before = tally{}
	}
	k.sum = l.hold(server.addr, before, k.mustHold(killed), k.row.durability == "")
	sig := []os.Signal{syscall.SIGKILL, syscall.SIGTERM}[k.rng.IntN(2)]
	server.signal(sig)
	if status := server.wait(); (status == -1) != (sig == syscall.SIGKILL) {
		k.t.Errorf("exit status %d after %v\n%s", status, sig, server.text)
	}

	if k.row.when == making {
		left = k.store() // it may have been killed before there was a store
	}
	k.check(left)
}

// holdCopies holds that the copies that l had made are there, with all that was
// acknowledged before, and that no copy is there in part.
func (k *killer) holdCopies(l *load) {
	for n, made := range l.copies {
		dir := filepath.Join(k.copies(), copyName(n))
		if _, err := os.Stat(dir); err != nil {
			if made.made || !errors.Is(err, fs.ErrNotExist) {
				k.t.Errorf("%s: made is %v, %v", copyName(n), made.made, err)
			}
			continue
		}
		k.check(dir)
		server := startServer(k.t, dir)
		c := dialClient(k.t, server.addr)
		for key, acked := range made.acked {
			before := k.sum.keys[key]
			if n, lo, hi := charged(k.t, c, key), before+acked, before+l.keys[key].sent; n < lo || n > hi {
				k.t.Errorf("key:%d of the copy was charged %d, want %d to %d", key, n, lo, hi)
			}
		}
		server.signal(syscall.SIGKILL)
		server.wait()
	}
	if !k.t.Failed() {
		os.RemoveAll(k.copies())
	}
}

// check holds that gabion check finds no damage in the store in dir.
func (k *killer) check(dir string) {
	var out bytes.Buffer
	if status := run([]string{"check", "--dir", dir}, &out, &out); status != exitOK || !strings.HasSuffix(out.String(), "no damage\n") {
		k.t.Errorf("check of %s: status %d\n%s", dir, status, &out)
	}
}

// mustHold returns when those charges were acknowledged, at the latest, that a
// kill must not lose.
func (k *killer) mustHold(killed time.Time) time.Time {
	switch k.row.durability {
	case "":
		return time.Now() // all of them
	case "interval":
		return killed.Add(-intervalHeld)
	}
	return time.Time{}
}

// intervalHeld is how old a charge has to be that a kill must not lose with
// durability interval: an interval and a sync, which takes no longer than two
// seconds on a busy machine.
const intervalHeld = syncInterval + 2*time.Second

// load has a server killed under load, and returns when.
func (k *killer) load(l *load) (killed time.Time) {
	row := k.row
	point, most, least := "", row.most, time.Duration(0)
	under := row.when == serving || row.when == copying
	if under || row.when == stopping {
		point = row.point
	}
	switch {
	case !under:
		most = 3000
	case point != "":
		most = 500_000 // none of the points is so far away
	case row.durability == "interval":
		least = intervalHeld + time.Second
	}
	n := k.rng.Int64N(int64(most))
	if !under {
		n += 1000 // or there could be too little to do for what is killed later
	}
	if under && point != "" {
		n = int64(most)
	}
	sig := os.Signal(syscall.SIGKILL)
	if row.when == stopping {
		sig = syscall.SIGTERM
	}

	args := row.args()
	if row.when == copying {
		args = append(args, "--backup-dir", k.copies())
	}
	server := start(k.t, k.command(point, serveArgs(k.store(), args...)...))
	started := time.Now()
	if line, ok := server.findLog("serving"); ok {
		var once sync.Once
		reached := func() {
			if under && point != "" && !k.t.Failed() {
				k.t.Errorf("no kill at %q after %d answers", point, n)
			}
			killed = time.Now()
			server.signal(sig)
		}
		l.run(line.Addr, k.rng, func(answers int64) {
			if answers >= n && time.Since(started) >= least || k.t.Failed() {
				once.Do(reached)
			}
		})
		if under {
			_ = server.cmd.Process.Kill() // it must not be waited for if it has given up the load
		}
	}
	if status := server.wait(); status != -1 {
		k.t.Fatalf("the server ended by itself, status %d\n%s", status, server.text)
	}
	k.kills++
	k.t.Logf("killed after %d answers", l.answers.Load())
	if killed.IsZero() { // by itself
		killed = time.Now()
	}
	return killed
}

// killAlone has a gabion killed that nobody else talks to, and returns what it
// has written to standard output. One that is to be killed from outside may be
// done before.
func (k *killer) killAlone(args ...string) (stdout string) {
	var out, errs bytes.Buffer
	cmd := k.command(k.row.point, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		k.t.Fatal(err)
	}
	if k.row.point == "" {
		kill := time.AfterFunc(time.Duration(k.rng.IntN(k.row.most))*time.Millisecond, func() { cmd.Process.Kill() })
		defer kill.Stop()
	}
	err := cmd.Wait()
	switch status := cmd.ProcessState.ExitCode(); {
	case status == -1:
		k.kills++
	case status != exitOK || k.row.point != "":
		k.t.Fatalf("gabion %s: %v, want it killed\n%s", args[0], err, &errs)
	}
	return out.String()
}

// call charges a key of l's from the command line, a few times, and has the last
// call killed.
func (k *killer) call(l *load) {
	for before, left := k.kills, 1+k.rng.IntN(3); k.kills == before; left-- {
		key := &l.keys[0]
		key.sent++
		args := []string{"throttle", "--dir", k.store(), "key:0",
			fmt.Sprint(loadBurst), fmt.Sprint(loadCount), fmt.Sprint(loadPeriod)}
		var answer string
		if left > 0 {
			out, err := gabionCommand(k.t, args...).Output()
			if err != nil {
				k.t.Fatalf("gabion throttle: %v", err)
			}
			answer = string(out)
		} else {
			answer = k.killAlone(args...)
		}
		if answer != "" {
			key.acks = append(key.acks, time.Now())
		}
	}
}

// command returns a gabion that kills itself at a point, or one that does not.
func (k *killer) command(point string, args ...string) *exec.Cmd {
	if point == "" {
		return gabionCommand(k.t, args...)
	}
	path, err := fragile()
	if err != nil {
		k.t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	at := 1 + k.rng.IntN(k.row.most)
	k.t.Logf("to be killed at %q, time %d", point, at)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s:%d", killPointEnv, point, at))
	return cmd
}
