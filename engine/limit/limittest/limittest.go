// Package limittest holds the test vectors of the contract: commands, each with
// the instant it arrives at and the reply it must get. It is for testing
// implementations of the contract, at any level: the decisions alone, the
// library under an injected clock, or a server at the other end of a wire.
package limittest

import (
	"embed"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Group is a run of commands in order, the first of which meets an empty store.
type Group struct {
	Name  string
	Steps []Step
}

// Step is one command and the reply it must get.
type Step struct {
	// Line is where the step stands in its file, counted from 1.
	Line int

	// At is when the command arrives, after a start that is free to choose:
	// it is the same for a whole group. At never falls within a group.
	At time.Duration

	// Command is the name of the command and its arguments.
	Command []string

	// Want is the reply: several integers are an array, one is an integer. Of the
	// arrays in the replies of CL.MTHROTTLE and CL.MPROBE there are only the
	// integers, five for each after the first two.
	Want []int64

	// Err is the code of an error reply, such as CONFLICT. Want is then nil.
	Err string
}

//go:embed testdata
var testdata embed.FS

// Throttle returns the vectors of CL.THROTTLE and CL.PROBE, among which EXISTS
// tells whether a key is there. The caller owns what is returned.
func Throttle() []Group { return read("throttle.tsv") }

// Quota returns the vectors of QUOTA.TAKE and QUOTA.PROBE, among which there
// are EXISTS and DEL. The caller owns what is returned.
func Quota() []Group { return read("quota.tsv") }

// Rolling returns the vectors of ROLL.ALLOW, ROLL.INCR, ROLL.PEEK and ROLL.WAIT,
// among which there is EXISTS. The caller owns what is returned.
func Rolling() []Group { return read("rolling.tsv") }

// Several returns the vectors of CL.MTHROTTLE, CL.MPROBE, CL.REFUND and
// QUOTA.REFUND, among the commands of Throttle and Quota. The caller owns what is
// returned.
func Several() []Group { return read("several.tsv") }

func read(name string) []Group {
	text, err := testdata.ReadFile("testdata/" + name)
	if err != nil {
		panic(err)
	}
	groups, err := parse(string(text))
	if err != nil {
		panic("limittest: " + name + ": " + err.Error())
	}
	return groups
}

// parse reads lines of four columns between tabs: group, seconds, command and
// reply. A line that begins with # is a comment.
func parse(text string) ([]Group, error) {
	var groups []Group
	number := 0
	for line := range strings.Lines(text) {
		number++
		if strings.HasPrefix(line, "#") {
			continue
		}
		columns := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(columns) != 4 {
			return nil, fmt.Errorf("line %d: %d columns, want 4", number, len(columns))
		}
		step := Step{Line: number, Command: strings.Fields(columns[2])}
		var err error
		if step.At, err = parseSeconds(columns[1]); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if step.Want, step.Err, err = parseReply(columns[3]); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if name := columns[0]; len(groups) == 0 || groups[len(groups)-1].Name != name {
			groups = append(groups, Group{Name: name})
		}
		last := &groups[len(groups)-1]
		last.Steps = append(last.Steps, step)
	}
	return groups, nil
}

// parseSeconds reads seconds with up to nine decimals, exactly.
func parseSeconds(s string) (time.Duration, error) {
	whole, decimals, _ := strings.Cut(s, ".")
	const zeros = "000000000"
	if whole == "" || len(decimals) > len(zeros) {
		return 0, fmt.Errorf("seconds %q: want digits and at most nine decimals", s)
	}
	ns, err := strconv.ParseUint(whole+decimals+zeros[len(decimals):], 10, 63)
	if err != nil {
		return 0, fmt.Errorf("seconds %q: %w", s, err)
	}
	return time.Duration(ns), nil
}

// parseReply reads integers between blanks, or one error code in capitals.
func parseReply(s string) (want []int64, code string, err error) {
	if s != "" && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == "" {
		return nil, s, nil
	}
	for field := range strings.FieldsSeq(s) {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return nil, "", fmt.Errorf("reply %q: %w", s, err)
		}
		want = append(want, n)
	}
	if want == nil {
		return nil, "", errors.New("reply is empty")
	}
	return want, "", nil
}
