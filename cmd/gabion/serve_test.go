package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/gabiondb/gabion/engine"
)

// TestServeLog: one line at the start says all that an operator has to know,
// and the end is logged too.
func TestServeLog(t *testing.T) {
	dir := t.TempDir()
	cmd := gabionCommand(t, "serve", "--dir", dir, "--addr", "localhost:0", "--durability", "interval")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	line := make([]byte, 1024)
	n, err := stderr.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	want := `^time=\S+ level=INFO msg=serving addr=127\.0\.0\.1:[1-9]\d* dir=` + regexp.QuoteMeta(dir) +
		` durability=interval format=\d+ version=\S+\n$`
	if got := string(line[:n]); !regexp.MustCompile(want).MatchString(got) {
		t.Errorf("the first lines are %q, want %s", got, want)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(stderr)
	if err != nil {
		t.Fatal(err)
	}
	want = `^\S+ level=INFO msg=stopping signal=interrupt\n\S+ level=INFO msg=stopped\n$`
	if !regexp.MustCompile(want).Match(rest) {
		t.Errorf("the last lines are %q, want %s", rest, want)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("gabion serve: %v", err)
	}
}

// TestLogUnread: a server outlives whoever reads its log.
func TestLogUnread(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := gabionCommand(t, "serve", "--dir", t.TempDir(), "--addr", "127.0.0.1:0")
	cmd.Stderr = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	w.Close()
	if _, err := r.Read(make([]byte, 1024)); err != nil {
		t.Fatal(err)
	}
	r.Close()
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("gabion serve: %v", err)
	}
}

// TestTermUnderLoad: a server that is told to stop answers what it has taken,
// so that no charge is left whose caller does not know of it.
func TestTermUnderLoad(t *testing.T) {
	dir := keptDir(t)
	server := startServer(t, dir)
	l := &load{t: t, quota: "quota"}
	var once sync.Once
	l.run(server.addr, rand.New(rand.NewPCG(newSeed(t), 0)), func(answers int64) {
		if answers >= 500 {
			once.Do(func() { server.signal(syscall.SIGTERM) })
		}
	})
	if status := server.wait(); status != exitOK {
		t.Errorf("exit status %d, want %d\n%s", status, exitOK, server.text)
	}
	c := dialClient(t, startServer(t, dir).addr)
	for key := range l.keys {
		if n, want := charged(t, c, key), int64(len(l.keys[key].acks)); n != want {
			t.Errorf("key:%d was charged %d, but %d answers came", key, n, want)
		}
	}
}

// TestStopAndGoOn: a server that has been stopped for a while goes on where it
// was, and its clock has gone on meanwhile.
func TestStopAndGoOn(t *testing.T) {
	dir := keptDir(t)
	server := startServer(t, dir)
	c := dial(t, server.addr)
	row := func() [5]int64 {
		t.Helper()
		if _, err := c.Write(appendCommand(nil, "CL.THROTTLE", "user:42", "0", "1", "1000")); err != nil {
			t.Fatal(err)
		}
		row, err := c.readRow()
		if err != nil {
			t.Fatal(err)
		}
		return row
	}
	before := time.Now()
	row()
	after := time.Now()

	l := &load{t: t, quota: "quota"}
	const stopped = 1500 * time.Millisecond
	var stop, term sync.Once
	l.run(server.addr, rand.New(rand.NewPCG(newSeed(t), 0)), func(answers int64) {
		if answers >= 500 {
			stop.Do(func() {
				server.signal(syscall.SIGSTOP)
				time.Sleep(stopped) // it is time itself that has to pass
				server.signal(syscall.SIGCONT)
			})
		}
		if answers >= 1500 {
			term.Do(func() {
				least := time.Since(after)
				got := row()[3]
				most := time.Since(before)
				// Rounded up to seconds.
				if lo, hi := int64(1000-most.Seconds()), int64(1001-least.Seconds()); least < stopped || got < lo || got > hi {
					t.Errorf("retry_after is %d, %v after the charge, want %d to %d", got, least, lo, hi)
				}
				server.signal(syscall.SIGTERM)
			})
		}
	})
	if status := server.wait(); status != exitOK {
		t.Errorf("exit status %d, want %d\n%s", status, exitOK, server.text)
	}
	sum := l.hold(startServer(t, dir).addr, tally{}, time.Now(), true)
	for key, n := range sum.keys {
		if want := int64(len(l.keys[key].acks)); n != want {
			t.Errorf("key:%d was charged %d, but %d answers came", key, n, want)
		}
	}
}

// TestTermIdle: connections that ask for nothing do not hold up the end.
func TestTermIdle(t *testing.T) {
	server := startServer(t, t.TempDir(), "--shutdown-timeout", "1h")
	c := dial(t, server.addr)
	if got := c.ask("PING"); got != "+PONG" {
		t.Errorf("PING = %q, want +PONG", got)
	}
	server.signal(syscall.SIGTERM)
	if status := server.wait(); status != exitOK {
		t.Errorf("exit status %d, want %d\n%s", status, exitOK, server.text)
	}
	if _, err := c.r.ReadByte(); err == nil {
		t.Error("the connection outlives the server")
	}
}

// blockServer makes a connection of the server that is not done until it has
// been read from: its replies are more than the kernel buffers.
func blockServer(t *testing.T, addr string) {
	t.Helper()
	c := dial(t, addr)
	if err := c.Conn.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, strings.Repeat("COMMAND\r\n", 16<<10/len("COMMAND\r\n"))); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

// TestSecondSignal: whoever does not want to wait for the connections need not.
func TestSecondSignal(t *testing.T) {
	server := startServer(t, t.TempDir(), "--shutdown-timeout", "1h", "--write-timeout", "1h")
	blockServer(t, server.addr)
	server.signal(syscall.SIGTERM)
	server.waitLog("stopping")
	server.signal(syscall.SIGTERM)
	if status := server.wait(); status == exitOK {
		t.Errorf("exit status %d after a second signal, want another", status)
	}
}

// TestShutdownTimeout: a client that does not read its replies is cut off.
func TestShutdownTimeout(t *testing.T) {
	server := startServer(t, t.TempDir(), "--shutdown-timeout", "10ms", "--write-timeout", "1h")
	blockServer(t, server.addr)
	server.signal(syscall.SIGTERM)
	server.waitLog("some connections were cut off")
	if status := server.wait(); status != exitOK {
		t.Errorf("exit status %d, want %d\n%s", status, exitOK, server.text)
	}
}

func TestServeFlags(t *testing.T) {
	password := filepath.Join(t.TempDir(), "password")
	if err := os.WriteFile(password, []byte("tangerine\nnot this\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(password, 0o644); err != nil {
		t.Fatal(err)
	}
	server := startServer(t, t.TempDir(), "--password-file", password, "--max-clients", "1", "--addr", "0.0.0.0:0")
	c := dial(t, server.addr)
	if got := c.ask("DBSIZE"); !strings.HasPrefix(got, "-NOAUTH") {
		t.Errorf("DBSIZE = %q without a password, want -NOAUTH", got)
	}
	if got := c.ask("AUTH", "tangerine"); got != "+OK" {
		t.Errorf("AUTH = %q, want +OK", got)
	}
	if got := c.ask("DBSIZE"); got != ":0" {
		t.Errorf("DBSIZE = %q, want :0", got)
	}
	if got := dial(t, server.addr).ask("PING"); !strings.HasPrefix(got, "-ERR max number of clients") {
		t.Errorf("PING = %q from one client too many, want an error", got)
	}
	server.signal(syscall.SIGTERM)
	server.wait()
	if !strings.Contains(server.text.String(), "any user of this machine can read the password") {
		t.Errorf("no warning of a password file that all can read:\n%s", server.text)
	}
}

func TestIdleTimeout(t *testing.T) {
	server := startServer(t, t.TempDir(), "--idle-timeout", "1ms")
	if _, err := dial(t, server.addr).r.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("a silent connection ends with %v, want EOF", err)
	}
}

func TestAddressInUse(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var stderr bytes.Buffer
	if status := run([]string{"serve", "--dir", t.TempDir(), "--addr", ln.Addr().String()}, io.Discard, &stderr); status != exitError {
		t.Errorf("exit status %d, want %d", status, exitError)
	}
	if want := "gabion: can't listen: listen tcp " + ln.Addr().String() + ": bind: address already in use\n"; stderr.String() != want {
		t.Errorf("standard error is %q, want %q", stderr.String(), want)
	}
}

// TestStoreInUse: the store of one process is not another's, by whatever name,
// and one that tries does no harm.
func TestStoreInUse(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	c := dial(t, startServer(t, dir).addr)
	left := int64(100)
	for _, name := range []string{dir, link} {
		for _, args := range [][]string{
			{"throttle", "--dir", name, "user:42", "99", "1", "3600"},
			{"ls", "--dir", name},
			{"check", "--dir", name},
			{"compact", "--dir", name},
			{"serve", "--dir", name, "--addr", "127.0.0.1:0"},
		} {
			out, err := gabionCommand(t, args...).CombinedOutput()
			if status := exitStatus(err); status != exitError {
				t.Errorf("%q: exit status %d, want %d", args, status, exitError)
			}
			if want := "gabion: " + name + " is in use by another process: "; !strings.HasPrefix(string(out), want) || strings.Count(string(out), "\n") != 1 {
				t.Errorf("%q: it says %q, want one line that begins with %q", args, out, want)
			}
			if _, err := c.Write(appendCommand(nil, "CL.THROTTLE", "user:42", "99", "1", "3600")); err != nil {
				t.Fatal(err)
			}
			left--
			if row, err := c.readRow(); err != nil || row[0] != 0 || row[2] != left {
				t.Errorf("after %q: the first is answered with %v, %v, want %d left", args, row, err, left)
			}
		}
	}
}

// TestStoreFails: a server whose disk fails answers whoever met the failure,
// and ends.
func TestStoreFails(t *testing.T) {
	full := errorfs.Toggle{Injector: errorfs.ErrInjected.If(errorfs.Writes)}
	logRead, logWrite := io.Pipe()
	p := &program{stdout: io.Discard, stderr: logWrite, tune: func(o *engine.Options) {
		o.FS = errorfs.Wrap(vfs.Default, &full)
	}}
	status := make(chan int, 1)
	go func() {
		status <- p.run([]string{"serve", "--dir", t.TempDir(), "--addr", "127.0.0.1:0", "--log-format", "json"})
		logWrite.Close()
	}()
	server := newProcess(t)
	go server.readLog(logRead)
	c := dial(t, server.waitLog("serving").Addr)
	full.On()
	if got := c.ask("CL.THROTTLE", "user:42", "15", "30", "60"); !strings.HasPrefix(got, "-ERR storage: ") {
		t.Errorf("CL.THROTTLE = %q when the disk fails, want -ERR storage", got)
	}
	if got := <-status; got != exitError {
		t.Errorf("exit status %d, want %d", got, exitError)
	}
	for range server.log {
	}
	for _, want := range []string{`"error":"engine: storage failed: injected error`, "gabion: engine: storage failed"} {
		if !strings.Contains(server.text.String(), want) {
			t.Errorf("standard error is\n%s, want %q in it", server.text, want)
		}
	}
}

// TestTimeout: a server that does not answer is not waited for, and the message
// does not say that nothing has happened.
func TestTimeout(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0") // it never accepts
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	var stderr bytes.Buffer
	args := []string{"throttle", "--addr", ln.Addr().String(), "--timeout", "10ms", "user:42", "15", "30", "60"}
	if status := run(args, io.Discard, &stderr); status != exitError {
		t.Errorf("exit status %d, want %d", status, exitError)
	}
	want := "gabion: no answer within 10ms: the server may or may not have carried it out\n"
	if stderr.String() != want {
		t.Errorf("standard error is %q, want %q", stderr.String(), want)
	}
}

func TestNoServer(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	var stderr bytes.Buffer
	if status := run([]string{"ls", "--addr", ln.Addr().String()}, io.Discard, &stderr); status != exitError {
		t.Errorf("exit status %d, want %d", status, exitError)
	}
	if want := "connection refused\n"; !strings.HasSuffix(stderr.String(), want) {
		t.Errorf("standard error is %q, want %q at its end", stderr.String(), want)
	}
}

// TestManyKeys: a verb takes more keys than one command may have arguments, and
// lists more than one SCAN gives.
func TestManyKeys(t *testing.T) {
	const n = 2500
	server := startServer(t, t.TempDir())
	c := dial(t, server.addr)
	var pipeline []byte
	del := []string{"del", "--addr", server.addr}
	for i := range n {
		key := fmt.Sprintf("user:%d", i)
		del = append(del, key)
		pipeline = appendCommand(pipeline, "CL.THROTTLE", key, "15", "1", "3600")
	}
	if _, err := c.Write(pipeline); err != nil {
		t.Fatal(err)
	}
	for range n {
		if _, err := c.readRow(); err != nil {
			t.Fatal(err)
		}
	}
	var stdout bytes.Buffer
	if status := run([]string{"ls", "--addr", server.addr}, &stdout, io.Discard); status != exitOK {
		t.Errorf("ls: exit status %d, want %d", status, exitOK)
	}
	keys := slices.Sorted(strings.Lines(stdout.String()))
	if got := len(slices.Compact(keys)); got != n || strings.Count(stdout.String(), "\n") != n {
		t.Errorf("ls prints %d lines, %d of them different, want %d", strings.Count(stdout.String(), "\n"), got, n)
	}
	stdout.Reset()
	if status := run(del, &stdout, io.Discard); status != exitOK || stdout.String() != "2500\n" {
		t.Errorf("del prints %q, exit status %d, want %d", stdout.String(), status, n)
	}
}

// TestOutputFails: an answer that could not be written is an error, but a
// reader that has left, as head does, gets no message.
func TestOutputFails(t *testing.T) {
	for _, c := range []struct{ err, want error }{
		{syscall.ENOSPC, syscall.ENOSPC},
		{syscall.EPIPE, nil},
	} {
		var stderr bytes.Buffer
		if status := run([]string{"version"}, failingWriter{c.err}, &stderr); status != exitError {
			t.Errorf("%v: exit status %d, want %d", c.err, status, exitError)
		}
		want := ""
		if c.want != nil {
			want = "gabion: " + c.want.Error() + "\n"
		}
		if stderr.String() != want {
			t.Errorf("%v: standard error is %q, want %q", c.err, stderr.String(), want)
		}
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }

// TestBrokenPipe does with the real binary and a real pipe what TestOutputFails
// does with a failing writer.
func TestBrokenPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer w.Close()
	var stderr bytes.Buffer
	cmd := gabionCommand(t, "help")
	cmd.Stdout, cmd.Stderr = w, &stderr
	if err := cmd.Run(); err == nil || stderr.Len() > 0 {
		t.Errorf("gabion help: %v, standard error %q, want a failure without words", err, stderr.String())
	}
}

// TestGoRun: the first command of the README works.
func TestGoRun(t *testing.T) {
	out, err := exec.Command("go", "run", ".", "version").Output()
	if err != nil {
		t.Fatal(err)
	}
	want := `^gabion \S+ \(go1\.\S+, pebble v2\.\d+\.\d+, format \d+\)\n$`
	if !regexp.MustCompile(want).Match(out) {
		t.Errorf("go run . version prints %q, want %s", out, want)
	}
}

// TestSpareProcessor has Go run one more thread for as long as the server serves,
// unless the environment says how many.
func TestSpareProcessor(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	for env, spare := range map[string]int{"": 1, strconv.Itoa(before): 0} {
		t.Setenv("GOMAXPROCS", env)
		undo := spareProcessor()
		if n := runtime.GOMAXPROCS(0); n != before+spare {
			t.Errorf("with GOMAXPROCS=%q there are %d processors, want %d", env, n, before+spare)
		}
		undo()
		if n := runtime.GOMAXPROCS(0); n != before {
			t.Errorf("with GOMAXPROCS=%q there are %d processors afterwards, want %d", env, n, before)
		}
	}
}

// The heap may grow by a ballast before it is collected.
func TestBallast(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	goal := func() uint64 {
		runtime.GC()
		sample := []metrics.Sample{{Name: "/gc/heap/goal:bytes"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	ballast := newBallast(160<<20, 32<<20)
	const size = 48 << 20
	if len(ballast) != size {
		t.Errorf("a ballast of %d bytes, want %d", len(ballast), size)
	}
	if got := goal(); got < 2*size {
		t.Errorf("the heap is collected at %d bytes, with a ballast of %d", got, size)
	}
	runtime.KeepAlive(ballast)
	if got, want := len(newBallast(math.MaxInt64, math.MaxInt64)), 512<<20; got != want {
		t.Errorf("a ballast of %d bytes, want %d", got, want)
	}
	for name, value := range map[string]string{"GOGC": "100", "GOMEMLIMIT": "1GiB"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(name, value)
			if got := newBallast(size, size); got != nil {
				t.Errorf("a ballast of %d bytes, want none", len(got))
			}
		})
	}
}
