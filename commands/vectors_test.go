package commands_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gabiondb/gabion/commands"
	"github.com/gabiondb/gabion/engine/limit/limittest"
)

func TestVectors(t *testing.T) {
	for file, groups := range map[string][]limittest.Group{
		"throttle.tsv": limittest.Throttle(),
		"quota.tsv":    limittest.Quota(),
		"rolling.tsv":  limittest.Rolling(),
		"several.tsv":  limittest.Several(),
	} {
		for _, group := range groups {
			name := strings.TrimSuffix(file, ".tsv") + "/" + group.Name
			t.Run(name+"/single", func(t *testing.T) { playVectors(t, file, group, false) })
			t.Run(name+"/pipelined", func(t *testing.T) { playVectors(t, file, group, true) })
		}
	}
}

// playVectors has a server answer the steps of a group, one by one, or all
// those of one instant as one pipeline.
func playVectors(t *testing.T, file string, group limittest.Group, pipelined bool) {
	f := serve(t, commands.Config{})
	c := f.dial()
	for steps := group.Steps; len(steps) > 0; {
		n := 1
		for pipelined && n < len(steps) && steps[n].At == steps[0].At {
			n++
		}
		f.set(steps[0].At)
		var requests strings.Builder
		for _, step := range steps[:n] {
			requests.WriteString(request(step.Command...))
		}
		replies := c.ask(requests.String())
		for _, step := range steps[:n] {
			rest, ok := cutReply(replies, step)
			if !ok {
				t.Fatalf("%s:%d: at %v: %s = %q, want %v%s first", file, step.Line, step.At, step.Command, replies, step.Want, step.Err)
			}
			replies = rest
		}
		if replies != "" {
			t.Fatalf("at %v: %q is left of the replies", steps[0].At, replies)
		}
		steps = steps[n:]
	}
}

// cutReply takes the reply that step must get from the front of replies.
func cutReply(replies string, step limittest.Step) (rest string, ok bool) {
	switch {
	case step.Err != "":
		text, rest, ok := strings.Cut(replies, "\r\n")
		return rest, ok && strings.HasPrefix(text, "-"+step.Err+" ")
	case len(step.Want) == 1:
		return strings.CutPrefix(replies, fmt.Sprintf(":%d\r\n", step.Want[0]))
	case step.Command[0] == "CL.MTHROTTLE" || step.Command[0] == "CL.MPROBE":
		var rows [][]int64
		for row := range slices.Chunk(step.Want[2:], 5) {
			rows = append(rows, row)
		}
		return strings.CutPrefix(replies, decisions(step.Want[0], step.Want[1], rows...))
	}
	return strings.CutPrefix(replies, ints(step.Want...))
}
