package mutate

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// module makes a module of one program.
func module(t *testing.T) (root string) {
	root = t.TempDir()
	for name, text := range map[string]string{
		"go.mod":  "module example.com/hello\n\ngo 1.24\n",
		"main.go": "package main\n\nfunc main() { println(1, 1, 2) }\n",
	} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestBuild(t *testing.T) {
	out := filepath.Join(t.TempDir(), "hello")
	edits := []Edit{
		{"main.go", "2)", "three())"},
		{"main.go", "three()", "three(), 4"},
		{"three.go", "", "package main\n\nfunc three() int { return 3 }\n"},
	}
	if err := Build(t.Context(), module(t), out, edits, "build", "."); err != nil {
		t.Fatal(err)
	}
	said, err := exec.Command(out).CombinedOutput()
	if err != nil || string(said) != "1 1 3 4\n" {
		t.Errorf("the edited program says %q, %v, want 1 1 3 4", said, err)
	}
}

// TestBuildRefuses: an edit that does not fit the sources any more is an error,
// so that nobody takes a program without it for one with it.
func TestBuildRefuses(t *testing.T) {
	root := module(t)
	for _, test := range []struct {
		edit Edit
		want string
	}{
		{Edit{"main.go", "gone", ""}, "main.go has this 0 times, want once"},
		{Edit{"main.go", "1", ""}, "main.go has this 2 times, want once"},
		{Edit{"main.go", "2", "two"}, "undefined: two"},
		{Edit{"main.go", "", "package main"}, "main.go is there already"},
		{Edit{"gone.go", "1", "2"}, "no such file or directory"},
	} {
		out := filepath.Join(t.TempDir(), "hello")
		err := Build(t.Context(), root, out, []Edit{test.edit}, "build", ".")
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("Build with %q = %v, want %q in it", test.edit, err, test.want)
		}
	}
}
