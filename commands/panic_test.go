package commands

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/engine"
)

// A panic ends the connection that has met it and no other, and is not hidden.
func TestPanicEndsOneConnection(t *testing.T) {
	for _, where := range []string{"run", "plan", "reply", "engine"} {
		t.Run(where, func(t *testing.T) { testPanicEndsOneConnection(t, where) })
	}
}

func testPanicEndsOneConnection(t *testing.T, where string) {
	var broken atomic.Bool
	l, err := engine.Open("store", &engine.Options{FS: vfs.NewMem(), NoPurge: true, Now: func() time.Time {
		if broken.Load() {
			panic("a bug")
		}
		return time.Now()
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	s := NewServer(l, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	bad := []string{"TTL", "key"}
	switch c := s.table.get([]byte(bad[0]), nil); where {
	case "run":
		bad = bad[:1]
		c.arity, c.plan, c.run = 1, nil, func(*session, [][]byte) error { panic("a bug") }
	case "plan":
		c.plan = func([]engine.Op, [][]byte) ([]engine.Op, error) { panic("a bug") }
	case "reply":
		c.reply = func(*session, []engine.Result) { panic("a bug") }
	}
	served := make(chan error)
	go func() { served <- s.Serve(ln) }()

	other, err := Dial(context.Background(), ln.Addr().String(), ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	exists := func(c *Client) {
		t.Helper()
		if got, err := c.Do("EXISTS", "key"); err != nil || got != int64(0) {
			t.Errorf("EXISTS = %v, %v", got, err)
		}
	}
	for range enoughPolled + 1 {
		exists(other)
	}
	victims := 0
	for _, before := range []int{0, enoughPolled, enoughPolled + 1} { // a poller has those that have sent enough
		c, err := Dial(context.Background(), ln.Addr().String(), ClientConfig{})
		if err != nil {
			t.Fatal(err)
		}
		for range before {
			exists(c)
		}
		broken.Store(where == "engine")
		if got, err := c.Do(bad...); !errors.Is(err, io.EOF) {
			t.Errorf("%v = %v, %v, want the end", bad, got, err)
		}
		broken.Store(false)
		c.Close()
		victims++
		exists(other)
	}
	if got, err := other.Do("INFO", "stats"); err != nil || !strings.Contains(got.(string), fmt.Sprintf("\r\nconnection_panics:%d\r\n", victims)) {
		t.Errorf("INFO stats = %v, %v", got, err)
	}
	exists(other)
	if err := s.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "a bug") || !strings.Contains(log.String(), "panic_test.go") {
		t.Errorf("the log tells %q, want the panic and its stack", log.String())
	}
}
