// Package mutate builds programs of a module with edits in their sources, which
// stay as they are: tests put bugs in, to see them caught, or points at which a
// program kills itself. So the product needs no hooks for them.
package mutate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Edit puts New in the place of Old, which has to be in the file exactly once.
// Without Old it adds a file, which must not be there.
type Edit struct {
	File     string // from the root of the module
	Old, New string
}

// Build builds the program out with edits, one after the other, from the module
// in root. command is what to tell the go command, such as "build" and the
// package, or "test", "-c" and the package.
func Build(ctx context.Context, root, out string, edits []Edit, command ...string) error {
	sources, err := Apply(root, edits)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "gabion-mutate-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	replace := make(map[string]string)
	for file, source := range sources {
		replace[file] = filepath.Join(dir, fmt.Sprint(len(replace), ".go"))
		if err := os.WriteFile(replace[file], []byte(source), 0o666); err != nil {
			return err
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o666); err != nil {
		return err
	}
	args := append([]string{command[0], "-overlay", file, "-o", out}, command[1:]...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("the edited sources do not build: %w\n%s", err, said)
	}
	return nil
}

// Apply returns what edits make of the files that they name, by path.
func Apply(root string, edits []Edit) (map[string]string, error) {
	sources := make(map[string]string)
	for _, e := range edits {
		file := filepath.Join(root, e.File)
		source, ok := sources[file]
		if !ok {
			b, err := os.ReadFile(file)
			switch {
			case e.Old != "" && err != nil:
				return nil, err
			case e.Old == "" && err == nil:
				return nil, fmt.Errorf("%s is there already", e.File)
			case e.Old == "" && !errors.Is(err, fs.ErrNotExist):
				return nil, err
			}
			source = string(b)
		}
		if e.Old == "" {
			source = e.New
		} else if n := strings.Count(source, e.Old); n != 1 {
			return nil, fmt.Errorf("%s has this %d times, want once:\n%s", e.File, n, e.Old)
		} else {
			source = strings.Replace(source, e.Old, e.New, 1)
		}
		sources[file] = source
	}
	return sources, nil
}
