package main

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// smallDisk returns a directory in a file system of so many bytes. Where none
// may be mounted the test is skipped.
func smallDisk(t *testing.T, size int) string {
	t.Helper()
	dir := openDir(t)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("mode=755,size=%d", size)); err != nil {
		t.Skipf("can't mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// openDir returns a new directory that any user can get to.
func openDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestDiskFull has the disk fill while a server is under load. Whoever waits
// is told of a failure, and the server ends with what to do; when there is
// room again all is there that was acknowledged.
func TestDiskFull(t *testing.T) {
	t.Run("a small disk", func(t *testing.T) {
		disk := smallDisk(t, 1<<20)
		fill := filepath.Join(disk, "fill")
		if err := os.WriteFile(fill, make([]byte, 832<<10), 0o666); err != nil {
			t.Fatal(err)
		}
		testDiskFull(t, filepath.Join(disk, "store"), func(cmd *exec.Cmd) *exec.Cmd { return cmd },
			func() {
				// What a server removes when it opens a store makes room, too.
				full, err := os.OpenFile(fill, os.O_APPEND|os.O_WRONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer full.Close()
				for err == nil {
					_, err = full.Write(make([]byte, 4096))
				}
			},
			func() {
				if err := os.Remove(fill); err != nil {
					t.Fatal(err)
				}
			},
			"no space left on device: make room for the store, then try again\n")
	})
	t.Run("small files", func(t *testing.T) {
		blocks := 64
		limited := func(cmd *exec.Cmd) *exec.Cmd {
			args := append([]string{"-c", fmt.Sprintf(`ulimit -f %d && exec "$0" "$@"`, blocks)}, cmd.Args...)
			return exec.Command("sh", args...)
		}
		testDiskFull(t, filepath.Join(keptDir(t), "store"), limited, func() { blocks = 0 }, func() {},
			"file too large: let the process write larger files (ulimit -f), then try again\n")
	})
}

// testDiskFull runs gabion on the store in dir, as on gives it, until the disk
// is full. fill leaves no room at all, and free makes some.
func testDiskFull(t *testing.T, dir string, on func(*exec.Cmd) *exec.Cmd, fill, free func(), want string) {
	l := &load{t: t, quota: "quota", mayFail: true}
	server := start(t, on(gabionCommand(t, serveArgs(dir)...)))
	l.run(server.waitLog("serving").Addr, rand.New(rand.NewPCG(newSeed(t), 0)), func(int64) {})
	if status := server.wait(); status != exitError {
		t.Errorf("exit status %d, want %d", status, exitError)
	}
	lines := slices.Collect(strings.Lines(server.text.String()))
	last := lines[len(lines)-1]
	if !strings.HasPrefix(last, "gabion: engine: storage failed: write "+dir) || !strings.HasSuffix(last, want) {
		t.Errorf("the server ends with %q, want the file and %q", last, want)
	}
	if l.failures.Load() == 0 {
		t.Error("nobody was told that the storage failed")
	}
	t.Logf("full after %d answers", l.answers.Load())

	fill()
	out, err := on(gabionCommand(t, "throttle", "--dir", dir, "another", "15", "30", "60")).CombinedOutput()
	if exitStatus(err) != exitError || !strings.HasPrefix(string(out), "gabion: engine: storage failed: write "+dir) || !strings.HasSuffix(string(out), want) {
		t.Errorf("throttle on a full disk: %v, %q, want %q", err, out, want)
	}

	free()
	server = startServer(t, dir)
	l.hold(server.addr, tally{}, time.Now(), true)
	server.signal(syscall.SIGTERM)
	if status := server.wait(); status != exitOK {
		t.Errorf("exit status %d, want %d\n%s", status, exitOK, server.text)
	}
	if out, err := gabionCommand(t, "check", "--dir", dir).CombinedOutput(); err != nil {
		t.Errorf("check: %v\n%s", err, out)
	}
}

// TestDirRefused: what is wrong with a directory that can't be used is said in a
// line, and it is left as it is.
func TestDirRefused(t *testing.T) {
	all := []string{"serve", "throttle", "check", "compact", "ls"}
	for _, test := range []struct {
		name  string
		verbs []string
		make  func(t *testing.T, dir string) // dir is not there yet
		says  string
	}{
		{"a file", all, func(t *testing.T, dir string) {
			writeFile(t, dir)
		}, "not a directory"},
		{"in a file", []string{"serve", "throttle"}, func(t *testing.T, dir string) {
			writeFile(t, filepath.Dir(dir))
		}, "not a directory"},
		{"nothing may be made there", []string{"serve", "throttle"}, func(t *testing.T, dir string) {
			makeDirs(t, filepath.Dir(dir), 0o555)
		}, "permission denied"},
		{"empty, and not to be written", []string{"serve", "throttle"}, func(t *testing.T, dir string) {
			makeDirs(t, dir, 0o555)
		}, "permission denied"},
		{"not to be read", all, func(t *testing.T, dir string) {
			makeStore(t, dir)
			chmod(t, dir, 0)
		}, "permission denied"},
		{"a store that is not to be written", all, func(t *testing.T, dir string) {
			makeStore(t, dir)
			chmod(t, filepath.Join(dir, "LOCK"), 0o444)
			chmod(t, dir, 0o555)
		}, "permission denied"},
		{"a disk that is not to be written", all, func(t *testing.T, dir string) {
			disk := smallDisk(t, 1<<20)
			makeStore(t, filepath.Join(disk, "store"))
			give(t, disk)
			if err := syscall.Mount("", disk, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
				t.Fatal(err)
			}
			makeDirs(t, filepath.Dir(dir), 0o755)
			if err := os.Symlink(filepath.Join(disk, "store"), dir); err != nil {
				t.Fatal(err)
			}
		}, "read-only file system"},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := openDir(t)
			dir := filepath.Join(root, "in", "store")
			test.make(t, dir)
			before := contents(t, root)
			for _, verb := range test.verbs {
				args := []string{verb, "--dir", dir}
				switch verb {
				case "serve":
					args = append(args, "--addr", "127.0.0.1:0", "--log-level", "error")
				case "throttle":
					args = append(args, "user:42", "15", "30", "60")
				}
				refusal{"/store", test.says}.hold(t, asNobody(t, gabionCommand(t, args...)))
			}
			if after := contents(t, root); !maps.Equal(before, after) {
				t.Errorf("there were %v, and now %v", before, after)
			}
		})
	}
}

// TestTableRefused: a store of which one file can't be read is refused, too, and
// is whole when it can.
func TestTableRefused(t *testing.T) {
	dir := filepath.Join(openDir(t), "store")
	makeStore(t, dir)
	tables, err := filepath.Glob(filepath.Join(dir, "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatalf("there are no tables in %s: %v", dir, err)
	}
	give(t, dir)
	if os.Geteuid() == 0 {
		if err := os.Chown(tables[0], 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	chmod(t, tables[0], 0)
	for _, args := range [][]string{
		{"serve", "--dir", dir, "--addr", "127.0.0.1:0"},
		{"throttle", "--dir", dir, "user:42", "15", "30", "60"},
		{"check", "--dir", dir},
		{"ls", "--dir", dir},
	} {
		refusal{tables[0], "permission denied"}.hold(t, asNobody(t, gabionCommand(t, args...)))
	}
	chmod(t, tables[0], 0o644)
	if out, err := gabionCommand(t, "check", "--dir", dir).CombinedOutput(); err != nil || !strings.HasSuffix(string(out), "no damage\n") {
		t.Errorf("check: %v\n%s", err, out)
	}
	if out, err := gabionCommand(t, "probe", "--dir", dir, "user:42", "15", "1", "3600").Output(); err != nil || !strings.HasPrefix(string(out), "[0,16,14,") {
		t.Errorf("probe: %v, %s, want 14 left", err, out)
	}
}

// refusal is what the one line that a program says, beside the log of a server,
// has to tell.
type refusal struct{ name, reason string }

func (r refusal) hold(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	out, err := cmd.CombinedOutput()
	line := regexp.MustCompile(`(?m)^time=.*\n`).ReplaceAllString(string(out), "")
	if exitStatus(err) != exitError || strings.Count(line, "\n") != 1 || !strings.HasPrefix(line, "gabion: ") ||
		!strings.Contains(line, r.name) || !strings.HasSuffix(line, r.reason+"\n") {
		t.Errorf("%q: %v, it says\n%s\nwant one line that names %s and ends with %q", cmd.Args[1:], err, out, r.name, r.reason)
	}
}

func writeFile(t *testing.T, name string) {
	t.Helper()
	makeDirs(t, filepath.Dir(name), 0o755)
	if err := os.WriteFile(name, []byte("hello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
}

func makeDirs(t *testing.T, dir string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	chmod(t, dir, mode)
}

// chmod changes the mode of a file until the test ends.
func chmod(t *testing.T, name string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(name, 0o755) })
}

// makeStore makes a store with a key in it.
func makeStore(t *testing.T, dir string) {
	t.Helper()
	if out, err := gabionCommand(t, "throttle", "--dir", dir, "user:42", "15", "30", "60").CombinedOutput(); err != nil {
		t.Fatalf("throttle: %v\n%s", err, out)
	}
}

const nobody = 65534

// give gives dir and what is in it to the user that asNobody runs programs as.
func give(t *testing.T, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		return
	}
	for name := range contents(t, dir) {
		if err := os.Chown(name, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
}

// asNobody has cmd run as a user who is subject to permissions.
func asNobody(t *testing.T, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	if os.Geteuid() == 0 {
		if err := os.Chmod(filepath.Dir(cmd.Path), 0o755); err != nil {
			t.Fatal(err)
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
	return cmd
}

// contents returns the files and directories from dir on down, with their
// sizes.
func contents(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	sizes := make(map[string]int64)
	err := filepath.Walk(dir, func(name string, info os.FileInfo, err error) error {
		if os.IsPermission(err) {
			return nil
		}
		if err == nil {
			sizes[name] = info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return sizes
}
