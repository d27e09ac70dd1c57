package commands

import "math"

// parseInt reads an integer of 0..2^63-1, written without signs, blanks and
// leading zeros.
func parseInt(b []byte) (int64, error) {
	if len(b) == 0 || b[0] == '0' && len(b) > 1 {
		return 0, errInteger
	}
	var n int64
	for _, c := range b {
		d := int64(c) - '0'
		if d < 0 || d > 9 || n > (math.MaxInt64-d)/10 {
			return 0, errInteger
		}
		n = n*10 + d
	}
	return n, nil
}

// equalFold tells whether b is s, but for the case of ASCII letters. s is in lower
// case.
func equalFold(b []byte, s string) bool {
	if len(b) != len(s) {
		return false
	}
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			c |= 0x20
		}
		if c != s[i] {
			return false
		}
	}
	return true
}
