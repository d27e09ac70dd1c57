package main

import (
	"context"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func needRedis(t *testing.T) {
	t.Helper()
	for _, table := range wireTables() {
		if programs := table.missing(); len(programs) > 0 {
			if os.Getenv("CI") != "" {
				t.Fatalf("%v must be installed", programs)
			}
			t.Skipf("%v not installed", programs)
		}
	}
}

// TestWire measures each subject over the wire once, in short. That checks the
// replies of each, and its charges.
func TestWire(t *testing.T) {
	needRedis(t)
	defer func(n int) { wireKeys = n }(wireKeys)
	wireKeys = 1000
	stores := t.TempDir()
	for i, table := range wireTables() {
		subjects := table.Subjects
		if i >= 2 {
			subjects = subjects[:1] // the others have been in the first table
		}
		for _, s := range subjects {
			t.Run(table.Name+"/"+s.Name, func(t *testing.T) {
				if err := s.measure(t.Context(), stores, 10*time.Millisecond); err != nil {
					t.Fatal(err)
				}
				for _, c := range table.Columns {
					if figure, ok := s.figure(c.Name); !ok || figure <= 0 {
						t.Errorf("%s = %v, %v", c.Name, figure, ok)
					}
				}
			})
		}
	}
}

// TestWireInterrupted interrupts the bench while a server runs. The server ends.
func TestWireInterrupted(t *testing.T) {
	needRedis(t)
	shared := t.TempDir()
	for name, start := range map[string]func(*Run) (*server, error){
		"gabion": gabionServer("always"),
		"redis":  redisServer("--appendonly", "yes"),
		"bare":   startBare,
		"inside": startInside,
	} {
		t.Run(name, func(t *testing.T) {
			ctx, interrupt := context.WithCancel(t.Context())
			s, err := start(&Run{Context: ctx, Dir: t.TempDir(), Shared: shared})
			if err != nil {
				t.Fatal(err)
			}
			defer s.stop()
			nc, err := net.Dial("tcp", s.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			interrupt()
			<-s.ended
			if nc, err := net.Dial("tcp", s.addr); err == nil {
				nc.Close()
				t.Error("it still listens")
			}
		})
	}
}

// TestServerTooLate starts a server that never tells that it serves. It is not
// waited for, and ends.
func TestServerTooLate(t *testing.T) {
	defer func(d time.Duration) { serverStart = d }(serverStart)
	serverStart = time.Millisecond
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), bareServerEnv+"=1")
	_, err = startServer(t.Context(), cmd, func(string) (string, bool) { return "", false })
	if err == nil || !strings.Contains(err.Error(), "did not serve within 1ms; the server has ended") {
		t.Errorf("error %v, want one that tells that it is too late", err)
	}
}

// TestWireAccount has a server that was charged once more than it was sent. That
// is noticed.
func TestWireAccount(t *testing.T) {
	defer func(n int) { wireKeys = n }(wireKeys)
	wireKeys = 1000
	err := onWire(&Run{Context: t.Context(), Dir: t.TempDir()}, startInside, gabionThrottle, func(w *wire) error {
		return w.rdb.Do(w.ctx, with(w.args, "key:000000000007")...).Err()
	})
	if err == nil || err.Error() != "1000 charges were sent, and 1001 made" {
		t.Errorf("the measurement ends with %v", err)
	}
}
