package main

import (
	"bufio"
	"bytes"
	"context"
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

	"github.com/gabiondb/gabion/commands"
	"github.com/gabiondb/gabion/engine/mutate"
)

// buildDir is where the programs are built that the tests run. TestMain removes
// it.
var buildDir = sync.OnceValues(func() (string, error) {
	usedBuildDir = true
	return os.MkdirTemp("", "gabion-test-")
})

var usedBuildDir bool

// binary is the path of the real gabion.
var binary = sync.OnceValues(func() (string, error) {
	return build("gabion", "./cmd/gabion", nil)
})

// fragile is the path of one that can be told to kill itself.
var fragile = sync.OnceValues(func() (string, error) {
	return build("fragile", "./cmd/gabion", killEdits)
})

func build(name, program string, edits []mutate.Edit) (string, error) {
	dir, err := buildDir()
	if err != nil {
		return "", err
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	return path, mutate.Build(context.Background(), root, path, edits, "build", program)
}

func TestMain(m *testing.M) {
	status := m.Run()
	if usedBuildDir {
		if dir, err := buildDir(); err == nil {
			os.RemoveAll(dir)
		}
	}
	os.Exit(status)
}

// gabionCommand returns the real gabion, not yet started.
func gabionCommand(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
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
	p := start(t, gabionCommand(t, serveArgs(dir, args...)...))
	p.addr = p.waitLog("serving").Addr
	return p
}

func serveArgs(dir string, args ...string) []string {
	return append([]string{"serve", "--dir", dir, "--addr", "127.0.0.1:0", "--log-format", "json"}, args...)
}

// start starts cmd, which serves and logs as serveArgs has it.
func start(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := newProcess(t)
	p.cmd = cmd
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
	line, ok := p.findLog(msg)
	if !ok {
		p.t.Fatalf("the server ended without logging %q:\n%s", msg, p.text)
	}
	return line
}

// findLog is waitLog for a process that may end before.
func (p *process) findLog(msg string) (logLine, bool) {
	for line := range p.log {
		if line.Msg == msg {
			return line, true
		}
	}
	return logLine{}, false
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

// exitStatus returns the status that a command has ended with, by the error that
// it has returned.
func exitStatus(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	return -1
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

// readRow reads a reply of five integers. An error reply is a commands.Error.
func (c *conn) readRow() (row [5]int64, err error) {
	head, err := c.r.ReadString('\n')
	if err != nil {
		return row, err
	}
	if refusal, ok := strings.CutPrefix(head, "-"); ok {
		return row, commands.Error(strings.TrimSpace(refusal))
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
