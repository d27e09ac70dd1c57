package commands

import (
	"strings"
	"testing"
)

func TestGlobMatch(t *testing.T) {
	for _, tt := range []struct {
		pattern, s string
		want       bool
	}{
		{"", "", true},
		{"", "a", false},
		{"*", "", true},
		{"*", "anything", true},
		{"**", "x", true},
		{"a", "a", true},
		{"a", "A", false},
		{"a", "ab", false},
		{"ab", "a", false},
		{"?", "", false},
		{"?", "a", true},
		{"?", "\xff", true},
		{"a?c", "abc", true},
		{"a?c", "ac", false},
		{"a*c", "ac", true},
		{"a*c", "abbbc", true},
		{"a*c", "abcb", false},
		{"a*b*c", "aXbYbZc", true},
		{"*a*", "bab", true},
		{"*ab", "aab", true},
		{"*ab*ab", "abab", true},
		{"*ab*ab", "aba", false},
		{"[abc]", "b", true},
		{"[abc]", "d", false},
		{"[a-c]x", "bx", true},
		{"[a-c]", "d", false},
		{"[c-a]", "b", true},
		{"[^a]", "b", true},
		{"[^a]", "a", false},
		{"[^a-c]", "b", false},
		{"[a^]", "^", true},
		{"[]", "a", false},
		{"[]a]", "a]", false},
		{"[^]", "a", true},
		{"[abc", "b", true},
		{"[abc", "bc", false},
		{"[", "a", false},
		{"[^", "a", true},
		{`[\]]`, "]", true},
		{`[\]`, "]", true},
		{`[\^a]`, "^", true},
		{`[a\-c]`, "-", true},
		{`[a\-c]`, "b", false},
		{"[-a]", "-", true},
		{"[a-]", "-", false}, // from a to ], without an end
		{"[a-]", "_", true},
		{`\*`, "*", true},
		{`\*`, "a", false},
		{`\?`, "?", true},
		{`\[a]`, "[a]", true},
		{`\a`, "a", true},
		{`\`, `\`, true},
		{`a\`, `a\`, true},
		{`\\`, `\`, true},
		{"a\x00*", "a\x00b", true},
		{"h[^e]llo*", "hallo, there", true},
		{strings.Repeat("a*", 100) + "b", strings.Repeat("a", 4096), false},
		{strings.Repeat("*a", 100), strings.Repeat("a", 4096), true},
		{strings.Repeat("*?", 100) + "b", strings.Repeat("a", 4096), false},
		{strings.Repeat("*[ab]", 100) + "c", strings.Repeat("a", 4096), false},
	} {
		if got := globMatch([]byte(tt.pattern), []byte(tt.s)); got != tt.want {
			t.Errorf("globMatch(%.40q, %.40q) = %v, want %v", tt.pattern, tt.s, got, tt.want)
		}
	}
}

// globRecursive is the plain definition.
func globRecursive(pattern, s string) bool {
	if pattern == "" {
		return s == ""
	}
	if pattern[0] == '*' {
		for i := range len(s) + 1 {
			if globRecursive(pattern[1:], s[i:]) {
				return true
			}
		}
		return false
	}
	if s == "" {
		return false
	}
	next, ok := globByte([]byte(pattern), 0, s[0])
	return ok && globRecursive(pattern[next:], s[1:])
}

func FuzzGlobMatch(f *testing.F) {
	f.Add("a*[b-d]?\\*", "aXc**")
	f.Add("*ab*ab", "ababab")
	f.Fuzz(func(t *testing.T, pattern, s string) {
		if len(pattern) > 16 || len(s) > 16 {
			t.Skip("the recursion takes too long")
		}
		if got, want := globMatch([]byte(pattern), []byte(s)), globRecursive(pattern, s); got != want {
			t.Errorf("globMatch(%q, %q) = %v, want %v", pattern, s, got, want)
		}
	})
}

func TestParseSigned(t *testing.T) {
	for s, want := range map[string]int64{
		"0": 0, "1": 1, "9223372036854775807": 1<<63 - 1, "-1": -1, "-10": -10, "-9223372036854775807": -1<<63 + 1,
	} {
		if n, err := parseSigned([]byte(s)); n != want || err != nil {
			t.Errorf("parseSigned(%q) = %d, %v, want %d", s, n, err, want)
		}
	}
	for _, s := range []string{
		"", "-", "--1", "-0", "-01", "+1", "- 1", "-1 ", " -1", "1-", "-1.0", "-9223372036854775808", "9223372036854775808", "\u22121",
	} {
		if n, err := parseSigned([]byte(s)); err != errInteger {
			t.Errorf("parseSigned(%q) = %d, %v, want %v", s, n, err, errInteger)
		}
	}
}

func TestParseInt(t *testing.T) {
	for s, want := range map[string]int64{
		"0": 0, "1": 1, "10": 10, "9223372036854775807": 1<<63 - 1,
	} {
		if n, err := parseInt([]byte(s)); n != want || err != nil {
			t.Errorf("parseInt(%q) = %d, %v, want %d", s, n, err, want)
		}
	}
	for _, s := range []string{
		"", "-", "-0", "-1", "+1", "00", "01", " 1", "1 ", "1.0", "1e3", "0x1", "a", "9223372036854775808", "18446744073709551617",
		"99999999999999999999999", "\x00", "1\x00", "\xb2",
	} {
		if n, err := parseInt([]byte(s)); err != errInteger {
			t.Errorf("parseInt(%q) = %d, %v, want %v", s, n, err, errInteger)
		}
	}
}
