package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gabiondb/gabion/commands"
	"github.com/gabiondb/gabion/engine"
)

var rewrite = flag.Bool("rewrite", false, "write what the scripts in testdata print into them")

// scriptStart is what the clock shows when a script begins.
var scriptStart = time.Unix(1_800_000_000, 0)

// A script is a session at a shell. A line that begins with "$ " is typed, the
// lines up to the next empty one are what it must print: standard output as it
// is, standard error with "! " before each line, and the exit status as
// "[exit 1]" unless it is 0. An empty line that is printed is shown as "~". A
// "#" begins a comment. Besides gabion, one can type
//
//	advance DURATION    step the clock
//	write FILE TEXT     write a line into a file
//	mkdir DIRECTORY
//
// A word in double quotes is a Go string. A script runs in an empty directory.
type script struct {
	t       *testing.T
	clock   atomic.Int64      // nanoseconds since 1970
	replace map[string]string // what variables like $ADDR stand for
	target  []string          // flags that every verb gets
}

// TestScripts runs the scripts in testdata. Each one in testdata/target runs
// twice, on a store of its own and through a server, and must read the same.
func TestScripts(t *testing.T) {
	for _, file := range glob(t, "testdata/*.txt") {
		t.Run(testName(file), func(t *testing.T) {
			newScript(t).run(file, *rewrite)
		})
	}
	for _, file := range glob(t, "testdata/target/*.txt") {
		t.Run("target/dir/"+testName(file), func(t *testing.T) {
			newScript(t).run(file, *rewrite)
		})
		t.Run("target/addr/"+testName(file), func(t *testing.T) {
			s := newScript(t)
			s.target = []string{"--addr", s.serve(t.TempDir(), "")}
			s.run(file, false)
		})
	}
}

// TestScriptsWithServer runs the scripts in testdata/server. Beside each runs a
// server at $ADDR with its store in ./served, the password "tangerine" and the
// backup directory ./backups.
func TestScriptsWithServer(t *testing.T) {
	for _, file := range glob(t, "testdata/server/*.txt") {
		t.Run(testName(file), func(t *testing.T) {
			s := newScript(t)
			s.replace["$ADDR"] = s.serve("served", "tangerine")
			s.run(file, *rewrite)
		})
	}
}

func glob(t *testing.T, pattern string) []string {
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s matches %d files, %v", pattern, len(files), err)
	}
	for i, file := range files {
		if files[i], err = filepath.Abs(file); err != nil {
			t.Fatal(err)
		}
	}
	return files
}

func testName(file string) string { return strings.TrimSuffix(filepath.Base(file), ".txt") }

func newScript(t *testing.T) *script {
	s := &script{t: t, replace: map[string]string{"$PWD": t.TempDir()}}
	s.clock.Store(scriptStart.UnixNano())
	t.Chdir(s.replace["$PWD"])
	return s
}

func (s *script) now() time.Time { return time.Unix(0, s.clock.Load()) }

// serve runs a server on the store in dir until the test ends, and returns its
// address.
func (s *script) serve(dir, password string) string {
	s.t.Helper()
	l, err := engine.Open(dir, &engine.Options{Now: s.now})
	if err != nil {
		s.t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	srv := commands.NewServer(l, commands.Config{Password: password, BackupDir: filepath.Join(s.replace["$PWD"], "backups")})
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	s.t.Cleanup(func() {
		if err := srv.Shutdown(context.Background()); err != nil {
			s.t.Errorf("Shutdown() = %v", err)
		}
		<-served
		if err := l.Close(); err != nil {
			s.t.Errorf("Close() = %v", err)
		}
	})
	return ln.Addr().String()
}

// run runs a script and compares, or with rewrite replaces, what it prints.
func (s *script) run(file string, rewrite bool) {
	s.t.Helper()
	want, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	var got strings.Builder
	output := false // in the output of a command
	for line := range strings.Lines(string(want)) {
		switch typed, isCommand := strings.CutPrefix(line, "$ "); {
		case isCommand:
			got.WriteString(line)
			got.WriteString(s.typed(strings.TrimSpace(typed)))
			output = true
		case line == "\n":
			output = false
			got.WriteString(line)
		case !output || strings.HasPrefix(line, "#"):
			got.WriteString(line)
		}
	}
	if got.String() == string(want) {
		return
	}
	if !rewrite {
		s.t.Errorf("%s prints\n%s\nwant\n%s", file, got.String(), want)
		return
	}
	if err := os.WriteFile(file, []byte(got.String()), 0o666); err != nil {
		s.t.Fatal(err)
	}
}

// typed carries out one command and returns what it prints.
func (s *script) typed(line string) string {
	s.t.Helper()
	for name, value := range s.replace {
		line = strings.ReplaceAll(line, name, value)
	}
	w := words(s.t, line)
	switch {
	case w[0] == "gabion":
		return s.gabion(w[1:])
	case w[0] == "advance" && len(w) == 2:
		d, err := time.ParseDuration(w[1])
		if err != nil {
			s.t.Fatal(err)
		}
		s.clock.Add(int64(d))
	case w[0] == "write" && len(w) == 3:
		if err := os.WriteFile(w[1], []byte(w[2]+"\n"), 0o600); err != nil {
			s.t.Fatal(err)
		}
	case w[0] == "mkdir" && len(w) == 2:
		if err := os.Mkdir(w[1], 0o700); err != nil {
			s.t.Fatal(err)
		}
	default:
		s.t.Fatalf("no such command: %s", line)
	}
	return ""
}

func (s *script) gabion(args []string) string {
	if len(args) > 0 {
		args = slices.Insert(args, 1, s.target...)
	}
	var stdout, stderr bytes.Buffer
	p := &program{stdout: &stdout, stderr: &stderr, tune: func(o *engine.Options) { o.Now = s.now }}
	status := p.run(args)
	var out string
	for line := range strings.Lines(stdout.String()) {
		if line == "\n" {
			line = "~\n"
		}
		out += line
	}
	for line := range strings.Lines(stderr.String()) {
		out += "! " + line
	}
	if status != exitOK {
		out += fmt.Sprintf("[exit %d]\n", status)
	}
	for name, value := range s.replace {
		out = strings.ReplaceAll(out, value, name)
	}
	return tableSizes.ReplaceAllString(out, "$1 ? bytes before, ? after")
}

// tableSizes finds the sizes of tables that compact prints. They depend on the
// seed of the store.
var tableSizes = regexp.MustCompile(`(?m)^(tables     ) \d+ bytes before, \d+ after$`)

// words splits a line at blanks and takes the quotes off.
func words(t *testing.T, line string) (words []string) {
	t.Helper()
	for line = strings.TrimLeft(line, " "); line != ""; line = strings.TrimLeft(line, " ") {
		word, _, _ := strings.Cut(line, " ")
		if line[0] == '"' {
			quoted, err := strconv.QuotedPrefix(line)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			word = quoted
		}
		line = line[len(word):]
		if word[0] == '"' {
			word, _ = strconv.Unquote(word)
		}
		words = append(words, word)
	}
	return words
}
