package commands_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gabiondb/gabion/commands"
)

// The sessions in REFERENCE.md, which follow one another on one store, go as
// they are written down.
func TestReferenceExamples(t *testing.T) {
	text, err := os.ReadFile("REFERENCE.md")
	if err != nil {
		t.Fatal(err)
	}
	const indent, prompt = "    ", "    > "
	local := commands.NewLocal(serve(t, commands.Config{}).limiter)
	lines := strings.Split(string(text), "\n")
	examples := 0
	for i := 0; i < len(lines); i++ {
		command, ok := strings.CutPrefix(lines[i], prompt)
		if !ok {
			continue
		}
		examples++
		var want []string
		for i+1 < len(lines) && strings.HasPrefix(lines[i+1], indent) && !strings.HasPrefix(lines[i+1], prompt) {
			i++
			want = append(want, strings.TrimPrefix(lines[i], indent))
		}
		reply, err := local.Do(strings.Fields(command)...)
		if err != nil {
			reply = err
		}
		if got := asShown(reply); got != strings.Join(want, "\n") {
			t.Errorf("%s:\n%s\nREFERENCE.md says\n%s", command, got, strings.Join(want, "\n"))
		}
	}
	if examples < 20 {
		t.Errorf("found %d examples in REFERENCE.md", examples)
	}
}

// asShown returns a reply as redis-cli shows it on a terminal.
func asShown(reply any) string {
	switch reply := reply.(type) {
	case nil:
		return "(nil)"
	case int64:
		return fmt.Sprintf("(integer) %d", reply)
	case string:
		return fmt.Sprintf("%q", reply)
	case []any:
		var rows []string
		for i, v := range reply {
			text := strings.ReplaceAll(asShown(v), "\n", "\n   ") // for less than ten rows
			rows = append(rows, fmt.Sprintf("%d) %s", i+1, text))
		}
		return strings.Join(rows, "\n")
	}
	return fmt.Sprintf("(error) %v", reply)
}
