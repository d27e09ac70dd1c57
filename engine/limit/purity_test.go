package limit_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
)

// TestPurity reads the package's source: it imports only what has no access to
// the world, asks time for no clock, and knows no floating point.
func TestPurity(t *testing.T) {
	pure := map[string]bool{
		"cmp": true, "errors": true, "fmt": true, "math": true, "math/bits": true,
		"slices": true, "strconv": true, "strings": true, "time": true, "unicode/utf8": true,
	}
	clock := map[string]bool{
		"Now": true, "Since": true, "Until": true, "Sleep": true, "After": true, "AfterFunc": true,
		"Tick": true, "NewTimer": true, "NewTicker": true, "Local": true, "LoadLocation": true,
	}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	files := token.NewFileSet()
	read := 0
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(files, e.Name(), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		read++
		for _, spec := range file.Imports {
			if path, _ := strconv.Unquote(spec.Path.Value); !pure[path] || spec.Name != nil {
				t.Errorf("%v: imports %s, want a pure package under its own name", files.Position(spec.Pos()), spec.Path.Value)
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && clock[n.Sel.Name] {
					t.Errorf("%v: reads the clock by time.%s", files.Position(n.Pos()), n.Sel.Name)
				}
			case *ast.Ident:
				if n.Name == "float64" || n.Name == "float32" {
					t.Errorf("%v: uses %s", files.Position(n.Pos()), n.Name)
				}
			case *ast.BasicLit:
				if n.Kind == token.FLOAT {
					t.Errorf("%v: uses the float %s", files.Position(n.Pos()), n.Value)
				}
			case *ast.GoStmt:
				t.Errorf("%v: starts a goroutine", files.Position(n.Pos()))
			}
			return true
		})
	}
	if read == 0 {
		t.Error("no source read")
	}
}
