package resp

import "strconv"

// AppendInt appends an integer reply.
func AppendInt(b []byte, n int64) []byte {
	b = append(b, ':')
	b = strconv.AppendInt(b, n, 10)
	return append(b, '\r', '\n')
}

// AppendBulk appends a string reply of any bytes.
func AppendBulk[T ~string | ~[]byte](b []byte, s T) []byte {
	b = appendHeader(b, '$', len(s))
	b = append(b, s...)
	return append(b, '\r', '\n')
}

// AppendSimple appends a simple string reply: s must not hold a CR or an LF.
func AppendSimple(b []byte, s string) []byte {
	b = append(b, '+')
	b = append(b, s...)
	return append(b, '\r', '\n')
}

// AppendError appends an error reply. CRs and LFs in s become blanks.
func AppendError(b []byte, s string) []byte {
	b = append(b, '-')
	for i := range len(s) {
		c := s[i]
		if c == '\r' || c == '\n' {
			c = ' '
		}
		b = append(b, c)
	}
	return append(b, '\r', '\n')
}

// AppendArrayLen appends the header of an array of n elements.
func AppendArrayLen(b []byte, n int) []byte { return appendHeader(b, '*', n) }

// AppendMapLen appends the header of a map of n pairs, which RESP2 knows as an
// array of twice as many elements.
func AppendMapLen(b []byte, v Version, n int) []byte {
	if v == RESP3 {
		return appendHeader(b, '%', n)
	}
	return appendHeader(b, '*', 2*n)
}

// AppendSetLen appends the header of a set of n elements, which RESP2 knows as
// an array.
func AppendSetLen(b []byte, v Version, n int) []byte {
	if v == RESP3 {
		return appendHeader(b, '~', n)
	}
	return appendHeader(b, '*', n)
}

// AppendNull appends a null, which in RESP2 is a null string.
func AppendNull(b []byte, v Version) []byte {
	if v == RESP3 {
		return append(b, "_\r\n"...)
	}
	return append(b, "$-1\r\n"...)
}

// AppendVerbatim appends a text for people to read, which RESP2 knows as a
// string.
func AppendVerbatim(b []byte, v Version, text []byte) []byte {
	if v != RESP3 {
		return AppendBulk(b, text)
	}
	b = appendHeader(b, '=', len(text)+len("txt:"))
	b = append(b, "txt:"...)
	b = append(b, text...)
	return append(b, '\r', '\n')
}

// AppendRequest appends a request of args.
func AppendRequest(b []byte, args ...string) []byte {
	b = AppendArrayLen(b, len(args))
	for _, arg := range args {
		b = AppendBulk(b, arg)
	}
	return b
}

func appendHeader(b []byte, kind byte, n int) []byte {
	b = append(b, kind)
	b = strconv.AppendInt(b, int64(n), 10)
	return append(b, '\r', '\n')
}
