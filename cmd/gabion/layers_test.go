package main

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/gabiondb/gabion"

// layer is what a package may import.
type layer struct {
	// uses are the packages of this module and the modules of others.
	uses []string

	// not are the packages of the standard library that it does without.
	not []string
}

// layers are all the packages of the module.
var layers = map[string]layer{
	"cmd/gabion": {
		uses: []string{"commands", "engine", "github.com/spf13/pflag"},
	},
	"commands": {
		uses: []string{"commands/internal/resp", "engine", "engine/limit", "golang.org/x/sys"},
	},
	"commands/internal/resp": {
		not: []string{"net", "os", "sync", "time"},
	},
	"engine": {
		uses: []string{
			"codec", "engine/limit", "ttl",
			"github.com/cockroachdb/pebble/v2", "golang.org/x/sys",
		},
	},
	"ttl": {
		uses: []string{"codec", "engine/limit", "github.com/cockroachdb/pebble/v2"},
		not:  []string{"net", "os"},
	},
	"codec": {
		uses: []string{"engine/limit", "github.com/cespare/xxhash/v2", "github.com/vmihailenco/msgpack/v5"},
		not:  []string{"io", "net", "os", "sync"},
	},
	"engine/httplimit": { // a face for those who embed the engine: no layer uses it
		uses: []string{"engine", "engine/limit"},
		not:  []string{"net", "os"},
	},
	"engine/limit/limittest": { // for tests: no layer uses it
		uses: []string{"engine/limit"},
	},
	"engine/mutate": {}, // for tests, too
	"engine/limit": {
		not: []string{"io", "math/rand", "math/rand/v2", "net", "os", "sync", "sync/atomic", "unsafe"},
	},
}

// clockFile is the only one below commands that may read the system's clock.
const clockFile = "engine/clock.go"

// goPackage is what go list tells of a package.
type goPackage struct {
	Dir        string
	ImportPath string
	GoFiles    []string
	Imports    []string
}

func listPackages(t *testing.T) []goPackage {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=Dir,ImportPath,GoFiles,Imports", module+"/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var packages []goPackage
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages
		} else if err != nil {
			t.Fatalf("go list: %v", err)
		}
		p.ImportPath = strings.TrimPrefix(p.ImportPath, module+"/")
		packages = append(packages, p)
	}
}

// TestLayers holds the layers of the module: each package imports those below
// it that it needs, and none above.
func TestLayers(t *testing.T) {
	for _, p := range listPackages(t) {
		l, ok := layers[p.ImportPath]
		if !ok {
			t.Errorf("package %s is in no layer: say in layers what it may import", p.ImportPath)
		}
		for _, path := range p.Imports {
			standard := !strings.Contains(strings.Split(path, "/")[0], ".")
			switch {
			case standard && slices.Contains(l.not, path):
				t.Errorf("%s imports %s, which it is to do without", p.ImportPath, path)
			case !standard && !l.mayUse(strings.TrimPrefix(path, module+"/")):
				t.Errorf("%s imports %s, which its layer does not use", p.ImportPath, path)
			}
		}
	}
}

// mayUse tells whether path is one of the layer's uses, or a package of a
// module of others that is.
func (l layer) mayUse(path string) bool {
	return slices.ContainsFunc(l.uses, func(u string) bool {
		return path == u || strings.Contains(u, ".") && strings.HasPrefix(path, u+"/")
	})
}

// TestOneClock holds that below commands one file reads the system's clock:
// all else is given the time.
func TestOneClock(t *testing.T) {
	read := 0
	for _, p := range listPackages(t) {
		if p.ImportPath == "cmd/gabion" || strings.HasPrefix(p.ImportPath, "commands") {
			continue
		}
		for _, name := range p.GoFiles {
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, at := range clockReads(file) {
				if read++; p.ImportPath+"/"+name != clockFile {
					t.Errorf("%v reads the system's clock, which is for %s", fset.Position(at), clockFile)
				}
			}
		}
	}
	if read == 0 {
		t.Errorf("%s reads no clock: does this test still find what it looks for?", clockFile)
	}
}

// clockReads returns where file names one of the functions that read the
// system's clock.
func clockReads(file *ast.File) (at []token.Pos) {
	ast.Inspect(file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		pkg, ok := sel.X.(*ast.Ident)
		if ok && pkg.Name == "time" && slices.Contains([]string{"Now", "Since", "Until"}, sel.Sel.Name) {
			at = append(at, sel.Pos())
		}
		return true
	})
	return at
}

// TestPeersStayOut holds that what gabion is only compared with does not get
// into its own go.mod, nor the module that compares them.
func TestPeersStayOut(t *testing.T) {
	shared := []string{ // what the product needs, and its benchmarks as well
		"github.com/cockroachdb/pebble/v2", "github.com/redis/go-redis/v9", "github.com/spf13/pflag", "golang.org/x/sys",
	}
	own := requirements(t, "../..")
	for _, path := range append(requirements(t, "../bench"), module+"/cmd/bench") {
		if slices.Contains(own, path) && !slices.Contains(shared, path) {
			t.Errorf("go.mod requires %s, which is for cmd/bench", path)
		}
	}
}

// requirements returns the modules that the one in dir needs directly.
func requirements(t *testing.T, dir string) (paths []string) {
	t.Helper()
	out, err := exec.Command("go", "mod", "edit", "-C", dir, "-json").Output()
	if err != nil {
		t.Fatalf("go mod edit: %v", err)
	}
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	for _, r := range mod.Require {
		if !r.Indirect {
			paths = append(paths, r.Path)
		}
	}
	if len(paths) == 0 {
		t.Fatalf("the module in %s requires nothing: is it there?", dir)
	}
	return paths
}
