package engine_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestReadme runs the program of the README, twice, as its text says.
func TestReadme(t *testing.T) {
	if testing.Short() {
		t.Skip("it is built")
	}
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, program, found := strings.Cut(string(readme), "```go\npackage main\n")
	program, _, ended := strings.Cut(program, "```\n")
	if !found || !ended {
		t.Fatal("the README has no program")
	}
	dir := t.TempDir()
	source, binary := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	if err := os.WriteFile(source, []byte("package main\n"+program), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "build", "-o", binary, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"0 <nil>\n1 <nil>\n2 <nil>\n3 not now\n",
		"0 not now\n1 not now\n2 not now\n3 not now\n",
	} {
		run := exec.Command(binary)
		run.Dir = dir
		if got, err := run.Output(); string(got) != want || err != nil {
			t.Errorf("the program prints %q, %v, want %q", got, err, want)
		}
	}
}
