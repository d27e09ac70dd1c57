package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gabiondb/gabion/commands"
	"github.com/gabiondb/gabion/engine"
)

// A server is one that has been started for a measurement.
type server struct {
	addr   string
	cancel context.CancelFunc
	log    *serverLog
	ended  chan struct{} // closed when it has
	err    error         // why, once it has
}

// serverStart is how long a server may take to serve. A test makes do with less.
var serverStart = 10 * time.Second

// startServer starts cmd, as a process of its own, and returns when it serves, which it tells by a line
// of its output: ready returns the address in it. The server ends with ctx.
func startServer(ctx context.Context, cmd *exec.Cmd, ready func(line string) (addr string, ok bool)) (*server, error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &server{
		cancel: cancel,
		log:    &serverLog{ready: ready, addr: make(chan string, 1)},
		ended:  make(chan struct{}),
	}
	// A Redis that is told to end takes its children along. One that is killed
	// leaves them.
	run := exec.CommandContext(ctx, cmd.Path)
	run.Args, run.Env = cmd.Args, cmd.Env
	run.Cancel = func() error { return run.Process.Signal(syscall.SIGTERM) }
	run.WaitDelay = 10 * time.Second
	run.Stdout, run.Stderr = s.log, s.log
	if err := run.Start(); err != nil {
		cancel()
		return nil, err
	}
	go func() {
		s.err = run.Wait()
		close(s.ended)
	}()
	err := errors.New("it did not serve")
	select {
	case s.addr = <-s.log.addr:
		return s, nil
	case <-s.ended:
	case <-time.After(serverStart):
		err = fmt.Errorf("%w within %v", err, serverStart)
	}
	s.stop()
	return nil, s.explain(err)
}

// stop ends the server and waits for that.
func (s *server) stop() {
	s.cancel()
	<-s.ended
}

// explain adds to err what the server has said, if it has ended.
func (s *server) explain(err error) error {
	select {
	case <-s.ended:
		return fmt.Errorf("%w; the server has ended (%v) and said:\n%s", err, s.err, s.log.tail())
	default:
		return err
	}
}

// A serverLog is what a server writes.
type serverLog struct {
	ready func(line string) (addr string, ok bool)
	addr  chan string // gets the address, once

	mu    sync.Mutex // guards what follows
	serve bool       // it has
	text  []byte     // its end
}

const maxServerLog = 4096

func (l *serverLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for rest := p; len(rest) > 0; {
		end := bytes.IndexByte(rest, '\n') + 1
		if end == 0 {
			end = len(rest)
		}
		l.text = append(l.text, rest[:end]...)
		rest = rest[end:]
		if line, ok := bytes.CutSuffix(l.text, []byte("\n")); ok && !l.serve {
			var addr string
			if addr, l.serve = l.ready(string(line[bytes.LastIndexByte(line, '\n')+1:])); l.serve {
				l.addr <- addr
			}
		}
		if over := len(l.text) - maxServerLog; over > 0 {
			l.text = append(l.text[:0], l.text[over:]...)
		}
	}
	return len(p), nil
}

func (l *serverLog) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}

// gabionServer returns what starts gabion's server.
func gabionServer(durability string) func(*Run) (*server, error) {
	return func(r *Run) (*server, error) {
		binary, err := buildGabion(r)
		if err != nil {
			return nil, err
		}
		cmd := exec.Command(binary, "serve", "--dir", filepath.Join(r.Dir, "gabion"), "--addr", "127.0.0.1:0",
			"--durability", durability, "--log-format", "json")
		return startServer(r.Context, cmd, func(line string) (string, bool) {
			var entry struct{ Msg, Addr string }
			err := json.Unmarshal([]byte(line), &entry)
			return entry.Addr, err == nil && entry.Msg == "serving"
		})
	}
}

// buildGabion builds the gabion of this tree, as its own go.mod has it, unless
// that has been done, and returns its path.
func buildGabion(r *Run) (string, error) {
	binary := filepath.Join(r.Shared, "gabion")
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	find := exec.CommandContext(r.Context, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/gabiondb/gabion")
	root, err := find.Output()
	if err != nil {
		return "", fmt.Errorf("can't find gabion's source, which works in cmd/bench only: %w", err)
	}
	build := exec.CommandContext(r.Context, "go", "build", "-trimpath", "-o", binary, "./cmd/gabion")
	build.Dir = strings.TrimSpace(string(root))
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("can't build gabion: %w\n%s", err, out)
	}
	return binary, nil
}

// redisServer returns what starts a Redis server with its default settings but
// for the given ones.
func redisServer(settings ...string) func(*Run) (*server, error) {
	return func(r *Run) (s *server, err error) {
		// Somebody else may take the port before Redis does.
		for range 3 {
			if s, err = startRedis(r, settings); err == nil || r.Context.Err() != nil {
				break
			}
		}
		return s, err
	}
}

func startRedis(r *Run, settings []string) (*server, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := ln.Addr().(*net.TCPAddr)
	ln.Close()
	args := append([]string{"--bind", "127.0.0.1", "--port", fmt.Sprint(addr.Port), "--dir", r.Dir}, settings...)
	return startServer(r.Context, exec.Command("redis-server", args...), func(line string) (string, bool) {
		return addr.String(), strings.Contains(line, "Ready to accept connections")
	})
}

// startInside starts gabion's server in this process.
func startInside(r *Run) (*server, error) {
	l, err := engine.Open(filepath.Join(r.Dir, "gabion"), nil)
	if err != nil {
		return nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	ctx, cancel := context.WithCancel(r.Context)
	s := &server{addr: ln.Addr().String(), cancel: cancel, log: new(serverLog), ended: make(chan struct{})}
	srv := commands.NewServer(l, commands.Config{})
	go func() {
		defer close(s.ended)
		stop := context.AfterFunc(ctx, func() { srv.Shutdown(context.Background()) })
		defer stop()
		err := srv.Serve(ln)
		s.err = errors.Join(err, srv.Shutdown(context.Background()), l.Close())
	}()
	return s, nil
}
