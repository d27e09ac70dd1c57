package resp

import (
	"bytes"
	"math"
)

// Bounds of a request. One that breaks them is a ProtocolError.
const (
	MaxRequest = 1 << 20   // bytes, with all headers
	MaxArgs    = 1024      // arguments, with the name of the command
	MaxLine    = 64 << 10  // bytes of an inline request, and of a header line
	strictArgs = 10        // of a Strict parser
	strictBulk = 16 * 1024 // of a Strict parser, bytes of one argument
)

const (
	errMultibulkLen ProtocolError = "invalid multibulk length"
	errBulkLen      ProtocolError = "invalid bulk length"
	errBigMultibulk ProtocolError = "too big mbulk count string"
	errBigBulk      ProtocolError = "too big bulk count string"
	errBigInline    ProtocolError = "too big inline request"
	errBigRequest   ProtocolError = "too big request"
	errQuotes       ProtocolError = "unbalanced quotes in request"
	errStrictArgs   ProtocolError = "unauthenticated multibulk length"
	errStrictBulk   ProtocolError = "unauthenticated bulk length"
)

// Parser finds the requests in a stream of bytes. It remembers how far it has
// come in a request that is not complete yet, so that the work is linear in the
// bytes received however they were cut up. The zero value is ready for use.
type Parser struct {
	// Strict bounds requests more tightly, to what somebody needs who has yet
	// to authenticate.
	Strict bool

	args  [][]byte
	spans []span // the arguments found so far, relative to the request
	left  int    // the arguments that are still to come; 0 between requests
	bulk  int    // the length of the next one, once its header was read; else -1
	pos   int    // where to read on, relative to the request
	seen  int    // how far the line at pos has been searched for its end
}

type span struct{ start, end int }

// Next takes the first request that is not empty from buf. It returns the
// arguments, of which there is at least one, or nil if buf does not hold the
// whole request yet. In either case n bytes are done with: the next call must
// be given what follows them, at any address and with any number of bytes
// added. After an error the Parser must not be used again.
//
// The arguments are slices of buf, and the slice of them is overwritten by the
// next call. Next unquotes inline requests in place.
func (p *Parser) Next(buf []byte) (args [][]byte, n int, err error) {
	clear(p.args) // else they would keep a buffer that nobody needs any more
	p.args = p.args[:0]
	for n < len(buf) {
		size, err := p.request(buf[n:])
		if err != nil {
			return nil, n, err
		}
		if size == 0 {
			if len(buf)-n >= MaxRequest {
				return nil, n, errBigRequest
			}
			return nil, n, nil
		}
		request := buf[n : n+size]
		n += size
		if len(p.spans) > 0 {
			for _, s := range p.spans {
				p.args = append(p.args, request[s.start:s.end:s.end])
			}
			p.spans = p.spans[:0]
			return p.args, n, nil
		}
	}
	return nil, n, nil
}

// request returns the size of the request at the start of buf and leaves its
// arguments in spans, or returns 0 if more bytes are needed.
func (p *Parser) request(buf []byte) (size int, err error) {
	if p.left > 0 {
		return p.bulks(buf)
	}
	if buf[0] != '*' {
		return p.inline(buf)
	}
	header, err := p.header(buf, errBigMultibulk, errMultibulkLen)
	if header == nil {
		return 0, err
	}
	count, ok := parseLen(header)
	switch {
	case !ok || count > MaxArgs:
		return 0, errMultibulkLen
	case p.Strict && count > strictArgs:
		return 0, errStrictArgs
	case count <= 0:
		size, p.pos = p.pos, 0
		return size, nil
	}
	p.left, p.bulk = int(count), -1
	return p.bulks(buf)
}

// bulks goes on reading the arguments of a multibulk request.
func (p *Parser) bulks(buf []byte) (size int, err error) {
	for ; p.left > 0; p.left-- {
		if p.bulk < 0 {
			if p.pos == len(buf) {
				return 0, nil
			}
			if c := buf[p.pos]; c != '$' {
				return 0, ProtocolError("expected '$', got '" + string([]byte{c}) + "'")
			}
			header, err := p.header(buf, errBigBulk, errBulkLen)
			if header == nil {
				return 0, err
			}
			n, ok := parseLen(header)
			switch {
			case !ok || n < 0 || n > MaxRequest:
				return 0, errBulkLen
			case p.Strict && n > strictBulk:
				return 0, errStrictBulk
			case p.pos+int(n)+2 > MaxRequest:
				return 0, errBigRequest
			}
			p.bulk = int(n)
		}
		end := p.pos + p.bulk
		if len(buf) < end+2 {
			return 0, nil
		}
		if buf[end] != '\r' || buf[end+1] != '\n' {
			return 0, errBulkLen
		}
		p.spans = append(p.spans, span{p.pos, end})
		p.pos, p.bulk = end+2, -1
	}
	size, p.pos = p.pos, 0
	return size, nil
}

// header reads the line at pos and returns what follows its first byte, or nil
// if the line is not complete.
func (p *Parser) header(buf []byte, tooBig, noLine ProtocolError) ([]byte, error) {
	end := p.find(buf, '\r')
	switch {
	case end < 0 && len(buf)-p.pos > MaxLine, end-p.pos > MaxLine:
		return nil, tooBig
	case end < 0 || end+1 == len(buf):
		return nil, nil
	case buf[end+1] != '\n':
		return nil, noLine
	}
	line := buf[p.pos+1 : end]
	p.pos, p.seen = end+2, 0
	return line, nil
}

// find returns the index of the first c from pos on, or -1.
func (p *Parser) find(buf []byte, c byte) int {
	from := max(p.seen, p.pos)
	i := bytes.IndexByte(buf[from:], c)
	if i < 0 {
		p.seen = len(buf)
		return -1
	}
	p.seen = from + i
	return from + i
}

// inline reads a request that is a line of words.
func (p *Parser) inline(buf []byte) (size int, err error) {
	end := p.find(buf, '\n')
	switch {
	case end < 0 && len(buf) > MaxLine, end > MaxLine:
		return 0, errBigInline
	case end < 0:
		return 0, nil
	}
	p.seen = 0
	line := buf[:end]
	if end > 0 && line[end-1] == '\r' {
		line = line[:end-1]
	}
	if err := p.split(line); err != nil {
		return 0, err
	}
	return end + 1, nil
}

// split finds the words of line by the rules of Redis: words end at blanks, a
// part of a word may stand in double quotes, with escapes, or in single quotes,
// and a closing quote ends the word. It unquotes in place: what it writes is
// never longer than what it has read.
func (p *Parser) split(line []byte) error {
	for i := 0; ; {
		for i < len(line) && isSpace(line[i]) {
			i++
		}
		if i == len(line) {
			return nil
		}
		if len(p.spans) == MaxArgs {
			return errBigInline
		}
		start, w := i, i
		for i < len(line) && !endsWord(line[i]) {
			c := line[i]
			i++
			if c != '"' && c != '\'' {
				line[w] = c
				w++
				continue
			}
			var ok bool
			if w, i, ok = unquote(line, w, i, c); !ok {
				return errQuotes
			}
			break
		}
		p.spans = append(p.spans, span{start, w})
	}
}

// unquote copies what stands from i up to the closing quote to w. It returns
// where it has written and read up to, and whether the quotes are balanced.
func unquote(line []byte, w, i int, quote byte) (int, int, bool) {
	for i < len(line) {
		c := line[i]
		switch {
		case c == quote:
			i++
			return w, i, i == len(line) || isSpace(line[i])
		case c != '\\' || i+1 == len(line):
			i++
		case quote == '\'':
			if line[i+1] == '\'' {
				c = '\''
				i++
			}
			i++
		case line[i+1] == 'x' && i+3 < len(line) && isHex(line[i+2]) && isHex(line[i+3]):
			c = fromHex(line[i+2])<<4 | fromHex(line[i+3])
			i += 4
		default:
			c = unescape(line[i+1])
			i += 2
		}
		line[w] = c
		w++
	}
	return w, i, false
}

func unescape(c byte) byte {
	switch c {
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	case 'b':
		return '\b'
	case 'a':
		return '\a'
	}
	return c
}

func isSpace(c byte) bool { return c == ' ' || '\t' <= c && c <= '\r' }

// endsWord tells whether c ends a word outside quotes. Vertical tabs and form
// feeds don't, though they are skipped between words.
func endsWord(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f'
}

func fromHex(c byte) byte {
	if c <= '9' {
		return c - '0'
	}
	return c | 0x20 - 'a' + 10
}

// parseLen reads a decimal integer without blanks, plus signs and leading
// zeros, and tells whether b is one that fits in an int64.
func parseLen(b []byte) (n int64, ok bool) {
	digits := b
	if len(b) > 0 && b[0] == '-' {
		digits = b[1:]
	}
	if len(digits) == 0 || digits[0] == '0' && len(b) > 1 {
		return 0, false
	}
	for _, c := range digits {
		d := int64(c) - '0'
		if d < 0 || d > 9 || n > (math.MaxInt64-d)/10 {
			return 0, false
		}
		n = n*10 + d
	}
	if len(digits) < len(b) {
		n = -n
	}
	return n, true
}
