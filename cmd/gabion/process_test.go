package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// binary is the path of the real gabion, which TestMain removes.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "gabion-test-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "gabion")
	out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %v\n%s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	status := m.Run()
	if usedBinary {
		path, _ := binary()
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(status)
}

var usedBinary bool

// gabionCommand returns the real gabion, not yet started.
func gabionCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	usedBinary = true
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return exec.Command(path, args...)
}

// A process is a running "gabion serve".
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	addr string        // where it listens
	log  chan logLine  // what it logs, after the line that says it serves
	text *bytes.Buffer // all of it; to be read after wait
}

type logLine struct {
	Level, Msg, Addr, Dir, Durability, Version string
	Format                                     int
}

// startServer starts "gabion serve" on the store in dir and returns when it
// serves. If the test leaves it running, it is killed.
func startServer(t *testing.T, dir string, args ...string) *process {
	t.Helper()
	args = append([]string{"serve", "--dir", dir, "--addr", "127.0.0.1:0", "--log-format", "json"}, args...)
	p := newProcess(t)
	p.cmd = gabionCommand(t, args...)
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.readLog(stderr)
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		for range p.log {
		}
		p.cmd.Wait()
	})
	p.addr = p.waitLog("serving").Addr
	return p
}

func newProcess(t *testing.T) *process {
	return &process{t: t, log: make(chan logLine, 4096), text: new(bytes.Buffer)}
}

func (p *process) readLog(stderr io.Reader) {
	defer close(p.log)
	lines := bufio.NewScanner(io.TeeReader(stderr, p.text))
	for lines.Scan() {
		var line logLine
		if json.Unmarshal(lines.Bytes(), &line) == nil {
			p.log <- line
		}
	}
}

// waitLog waits until the process logs msg, and returns the line.
func (p *process) waitLog(msg string) logLine {
	p.t.Helper()
	for line := range p.log {
		if line.Msg == msg {
			return line
		}
	}
	p.t.Fatalf("the server ended without logging %q:\n%s", msg, p.text)
	return logLine{}
}

// wait waits for the process to end and returns its exit status, -1 if a
// signal ended it.
func (p *process) wait() int {
	p.t.Helper()
	for range p.log {
	}
	err := p.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		p.t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) signal(sig os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// A conn is a connection that sends commands as they are and reads their
// replies one by one.
type conn struct {
	net.Conn
	r *bufio.Reader
}

func dial(t *testing.T, addr string) *conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &conn{c, bufio.NewReader(c)}
}

// appendCommand appends a command as the protocol has it.
func appendCommand(b []byte, args ...string) []byte {
	b = fmt.Appendf(b, "*%d\r\n", len(args))
	for _, arg := range args {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(arg), arg)
	}
	return b
}

// readRow reads a reply of five integers.
func (c *conn) readRow() (row [5]int64, err error) {
	head, err := c.r.ReadString('\n')
	if err != nil {
		return row, err
	}
	if head != "*5\r\n" {
		return row, fmt.Errorf("reply begins with %q", head)
	}
	for i := range row {
		line, err := c.r.ReadString('\n')
		if err != nil {
			return row, err
		}
		if row[i], err = strconv.ParseInt(strings.TrimSuffix(strings.TrimPrefix(line, ":"), "\r\n"), 10, 64); err != nil {
			return row, err
		}
	}
	return row, nil
}

// ask sends a command and returns the first line of its reply, or the error
// instead.
func (c *conn) ask(args ...string) string {
	if _, err := c.Write(appendCommand(nil, args...)); err != nil {
		return err.Error()
	}
	line, err := c.r.ReadString('\n')
	if err != nil {
		return err.Error()
	}
	return strings.TrimSuffix(line, "\r\n")
}
