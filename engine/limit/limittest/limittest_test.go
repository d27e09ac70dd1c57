package limittest

import (
	"reflect"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	got, err := parse("# a comment\n" +
		"a\t0\tROLL.WAIT k 0 1000\t-1\n" +
		"a\t1.8\tQUOTA.TAKE k id 1 2 1800\tCONFLICT\n" +
		"b\t1000000.999999999\tQUOTA.TAKE k id 1 2 1800\t1 1 0\n")
	want := []Group{
		{"a", []Step{
			{Line: 2, Command: []string{"ROLL.WAIT", "k", "0", "1000"}, Want: []int64{-1}},
			{Line: 3, At: 1800 * time.Millisecond, Command: []string{"QUOTA.TAKE", "k", "id", "1", "2", "1800"}, Err: "CONFLICT"},
		}},
		{"b", []Step{
			{Line: 4, At: 1_000_000_999_999_999, Command: []string{"QUOTA.TAKE", "k", "id", "1", "2", "1800"}, Want: []int64{1, 1, 0}},
		}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("parse = %v, %v, want %v", got, err, want)
	}
}

func TestParseRejects(t *testing.T) {
	for _, line := range []string{
		"\n",
		"a\t0\tEXISTS k\n",
		"a\t0\tEXISTS k\t1\t1\n",
		"a\t\tEXISTS k\t1\n",
		"a\t-1\tEXISTS k\t1\n",
		"a\t1e3\tEXISTS k\t1\n",
		"a\t0.0000000001\tEXISTS k\t1\n",
		"a\t9223372036.854775808\tEXISTS k\t1\n",
		"a\t0\tEXISTS k\t\n",
		"a\t0\tEXISTS k\t1 CONFLICT\n",
		"a\t0\tEXISTS k\tno\n",
	} {
		if got, err := parse(line); err == nil {
			t.Errorf("parse(%q) = %v, want an error", line, got)
		}
	}
}

func TestVectors(t *testing.T) {
	for _, file := range []struct {
		name          string
		groups        []Group
		count, errors int
	}{
		{"throttle.tsv", Throttle(), 11, 0},
		{"quota.tsv", Quota(), 6, 4},
		{"rolling.tsv", Rolling(), 6, 0},
		{"several.tsv", Several(), 16, 7},
	} {
		names := map[string]bool{}
		errors := 0
		for _, g := range file.groups {
			if names[g.Name] {
				t.Errorf("%s: group %q comes twice", file.name, g.Name)
			}
			names[g.Name] = true
			var now time.Duration
			for _, s := range g.Steps {
				if s.At < now {
					t.Errorf("%s:%d: time falls from %v to %v", file.name, s.Line, now, s.At)
				}
				now = s.At
				if s.Err != "" {
					errors++
				}
			}
		}
		if len(names) != file.count || errors != file.errors {
			t.Errorf("%s: %d groups, %d errors, want %d, %d", file.name, len(names), errors, file.count, file.errors)
		}
	}
}
