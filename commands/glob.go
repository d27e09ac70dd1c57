package commands

// globMatch tells whether s matches pattern, byte by byte, as MATCH and KEYS of
// Redis understand it: * is any bytes, ? is any one, [abc] [a-c] [^abc] is one
// of a class, and a backslash takes the next byte's meaning away. A class that
// is not closed ends with the pattern.
//
// Only the last star is ever tried again, so the time is bounded by the product
// of the lengths.
func globMatch(pattern, s []byte) bool {
	p, i := 0, 0
	star, retry := -1, 0 // the last star, and where in s what follows it was tried
	for i < len(s) {
		if p < len(pattern) && pattern[p] == '*' {
			star, retry = p, i
			p++
			continue
		}
		if p < len(pattern) {
			if next, ok := globByte(pattern, p, s[i]); ok {
				p = next
				i++
				continue
			}
		}
		if star < 0 {
			return false
		}
		retry++
		p, i = star+1, retry
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

// globByte tells whether c matches the element of pattern at p, which is no
// star, and where the next element is.
func globByte(pattern []byte, p int, c byte) (next int, ok bool) {
	switch pattern[p] {
	case '?':
		return p + 1, true
	case '[':
		return globClass(pattern, p+1, c)
	case '\\':
		if p+1 < len(pattern) {
			p++
		}
	}
	return p + 1, pattern[p] == c
}

// globClass does what globByte does for the class whose opening bracket is
// before p.
func globClass(pattern []byte, p int, c byte) (next int, ok bool) {
	not := p < len(pattern) && pattern[p] == '^'
	if not {
		p++
	}
	for ; p < len(pattern) && pattern[p] != ']'; p++ {
		switch {
		case pattern[p] == '\\' && p+1 < len(pattern):
			p++
			ok = ok || pattern[p] == c
		case p+2 < len(pattern) && pattern[p+1] == '-':
			lo, hi := pattern[p], pattern[p+2]
			ok = ok || min(lo, hi) <= c && c <= max(lo, hi)
			p += 2
		default:
			ok = ok || pattern[p] == c
		}
	}
	return min(p+1, len(pattern)), ok != not
}
