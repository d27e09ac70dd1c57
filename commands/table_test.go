package commands

import (
	"os"
	"strings"
	"testing"
)

func TestTableIsSound(t *testing.T) {
	reference, err := os.ReadFile("REFERENCE.md")
	if err != nil {
		t.Fatal(err)
	}
	table := newTable()
	seen := make(map[string]bool)
	for _, c := range table.all() {
		if c.name != strings.ToLower(c.name) || len(c.name) > maxName || seen[c.name] {
			t.Errorf("%q is not a name, or is there twice", c.name)
		}
		seen[c.name] = true
		if (c.plan == nil) != (c.reply == nil) {
			t.Errorf("%s has a plan or a reply without the other", c.name)
		}
		if c.plan == nil && c.run == nil && c.subcommands == nil || c.plan != nil && c.run != nil {
			t.Errorf("%s must either plan, run or have subcommands", c.name)
		}
		if c.run == nil && c.subcommands != nil && c.takes(1) {
			t.Errorf("%s can't do anything without a subcommand, but takes no argument", c.name)
		}
		if c.plan != nil && c.keys.first == 0 {
			t.Errorf("%s plans operations on keys, but has none", c.name)
		}
		if (c.keys.first == 0) != (c.keys.step == 0) {
			t.Errorf("%s has its first key at %d and the next %d further", c.name, c.keys.first, c.keys.step)
		}
		if c.flags&write != 0 && c.flags&readonly != 0 {
			t.Errorf("%s both writes and only reads", c.name)
		}
		if c.summary == "" || strings.HasSuffix(c.summary, ".") || c.group == "" || c.complexity == "" {
			t.Errorf("%s is not documented, or its summary ends with a stop", c.name)
		}
		checkArity(t, c)
		if heading := "\n### " + strings.ToUpper(strings.ReplaceAll(c.name, "|", " ")) + "\n"; !strings.HasSuffix(c.name, "|help") &&
			!strings.Contains(string(reference), heading) {
			t.Errorf("REFERENCE.md has no heading %q", strings.TrimSpace(heading))
		}
	}
	for heading := range strings.SplitSeq(string(reference), "\n### ") {
		name, _, _ := strings.Cut(heading, "\n")
		name = strings.ToLower(strings.ReplaceAll(name, " ", "|"))
		if !strings.HasPrefix(name, "#") && !seen[name] {
			t.Errorf("REFERENCE.md tells about %q, which is no command", name)
		}
	}
}

// checkArity compares the arity of c with the arguments that it documents.
func checkArity(t *testing.T, c *command) {
	t.Helper()
	if c.subcommands != nil || c.name == "quit" { // QUIT takes anything, and says nothing of it
		return
	}
	least, open := 1, false
	if c.parent != nil {
		least++
	}
	isKey := func(a argument) {
		if (a.kind == "key") != (a.name == "key") {
			t.Errorf("%s: is the argument %s a key?", c.name, a.name)
		}
	}
	for _, a := range c.arguments {
		open = open || a.multiple || a.optional
		isKey(a)
		if a.kind == "block" {
			for _, part := range a.arguments {
				isKey(part)
			}
			if a.multiple && (a.arguments[0].kind != "key" || len(a.arguments) != c.keys.step) {
				t.Errorf("%s: the keys are %d arguments apart, which are %d", c.name, c.keys.step, len(a.arguments))
			}
		}
		switch {
		case a.optional:
		case a.kind == "oneof" && a.arguments[0].kind != "pure-token":
			least += 2 // a token and its value
		case a.kind == "block":
			least += len(a.arguments)
		default:
			least++
		}
	}
	want := least
	if open {
		want = -least
	}
	if c.arity != want {
		t.Errorf("the arity of %s is %d, its arguments say %d", c.name, c.arity, want)
	}
}
