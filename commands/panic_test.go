package commands

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/commands/internal/resp"
	"github.com/gabiondb/gabion/engine"
)

// A panic ends the connection that has met it and no other, and is not hidden.
func TestPanicEndsOneConnection(t *testing.T) {
	l, err := engine.Open("store", &engine.Options{FS: vfs.NewMem()})
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
	s.table.get([]byte("time"), nil).run = func(*session, [][]byte) error { panic("a bug") }
	served := make(chan error)
	go func() { served <- s.Serve(ln) }()

	other, err := Dial(context.Background(), ln.Addr().String(), ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.Do("PING"); err != nil {
		t.Fatal(err)
	}
	nc, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	nc.Write(resp.AppendRequest(nil, "TIME"))
	if b, err := io.ReadAll(nc); err != nil || len(b) > 0 {
		t.Errorf("the client read %q, %v, want the end", b, err)
	}
	if got, err := other.Do("INFO", "stats"); err != nil || !strings.Contains(got.(string), "\r\nconnection_panics:1\r\n") {
		t.Errorf("INFO stats = %v, %v", got, err)
	}
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
