package resp

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math/big"
	"strconv"
)

// Bounds of a reply. ReadReply reports one that breaks them as an error.
const (
	maxReply = 64 << 20 // bytes of memory, roughly
	maxDepth = 16       // arrays within arrays
)

// ErrReply is what the error about bytes that are no reply, or a reply larger
// than this package reads, wraps.
var ErrReply = errors.New("resp: not a reply")

// ReadReply reads one reply of either version. It returns
//
//	nil          a null of any kind
//	int64        an integer
//	string       a string, a simple or a verbatim one
//	Error        an error reply; a nested one too, so it is a value here
//	float64, bool, *big.Int
//	[]any        an array, a set, a push, or a map: a key, its value, a key …
//
// The error is one of r, io.ErrUnexpectedEOF in the middle of a reply, or wraps
// ErrReply. After any error r is of no more use.
func ReadReply(r *bufio.Reader) (any, error) {
	d := decoder{r: r, room: maxReply}
	v, err := d.value(0)
	if err == io.EOF && d.room < maxReply {
		err = io.ErrUnexpectedEOF
	}
	return v, err
}

type decoder struct {
	r    *bufio.Reader
	room int // what is left of maxReply
}

func (d *decoder) value(depth int) (any, error) {
	line, err := d.line()
	if err != nil {
		return nil, err
	}
	if len(line) == 0 {
		return nil, fmt.Errorf("%w: an empty line", ErrReply)
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '+':
		return string(rest), nil
	case '-':
		return Error(rest), nil
	case ':':
		if n, err := strconv.ParseInt(string(rest), 10, 64); err == nil {
			return n, nil
		}
	case '_':
		if len(rest) == 0 {
			return nil, nil
		}
	case '#':
		switch string(rest) {
		case "t":
			return true, nil
		case "f":
			return false, nil
		}
	case ',':
		if f, err := strconv.ParseFloat(string(rest), 64); err == nil {
			return f, nil
		}
	case '(':
		if n, ok := new(big.Int).SetString(string(rest), 10); ok {
			return n, nil
		}
	case '$', '!', '=':
		return d.bulk(kind, rest)
	case '*', '~', '>', '%':
		return d.array(kind, rest, depth)
	case '|':
		// Attributes are remarks about the value that follows.
		if _, err := d.array('%', rest, depth); err != nil {
			return nil, err
		}
		if depth == maxDepth {
			return nil, fmt.Errorf("%w: nested too deeply", ErrReply)
		}
		return d.value(depth + 1)
	}
	return nil, fmt.Errorf("%w: %.32q", ErrReply, line)
}

// line reads up to a CRLF, which it leaves off. The line is valid until the
// next read.
func (d *decoder) line() ([]byte, error) {
	line, err := d.r.ReadSlice('\n')
	if err == bufio.ErrBufferFull {
		return nil, fmt.Errorf("%w: a line longer than %d bytes", ErrReply, len(line))
	}
	if err != nil {
		if len(line) > 0 && err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	// An element of an array takes memory however short its line is.
	if err := d.take(len(line) + 64); err != nil {
		return nil, err
	}
	if len(line) < 2 || line[len(line)-2] != '\r' {
		return nil, fmt.Errorf("%w: a line without its CR", ErrReply)
	}
	return line[:len(line)-2], nil
}

func (d *decoder) take(n int) error {
	if n > d.room {
		return fmt.Errorf("%w: larger than %d bytes", ErrReply, maxReply)
	}
	d.room -= n
	return nil
}

// length reads the length of a string or an array: -1 is a null of RESP2.
func (d *decoder) length(digits []byte) (int, error) {
	n, ok := parseLen(digits)
	if !ok || n < -1 {
		return 0, fmt.Errorf("%w: %.32q is not a length", ErrReply, digits)
	}
	if n > maxReply {
		return 0, fmt.Errorf("%w: larger than %d bytes", ErrReply, maxReply)
	}
	return int(n), nil
}

func (d *decoder) bulk(kind byte, digits []byte) (any, error) {
	n, err := d.length(digits)
	if err != nil || n < 0 {
		return nil, err
	}
	if err := d.take(n); err != nil {
		return nil, err
	}
	// The memory grows with what really arrives.
	const step = 64 << 10
	b := make([]byte, 0, min(n+2, step))
	for len(b) < n+2 {
		have := len(b)
		b = append(b, make([]byte, min(n+2-have, step))...)
		if _, err := io.ReadFull(d.r, b[have:]); err != nil {
			return nil, err
		}
	}
	if b[n] != '\r' || b[n+1] != '\n' {
		return nil, fmt.Errorf("%w: a string without its CRLF", ErrReply)
	}
	b = b[:n]
	switch {
	case kind == '!':
		return Error(b), nil
	case kind == '=':
		if len(b) < 4 || b[3] != ':' {
			return nil, fmt.Errorf("%w: a verbatim string without its format", ErrReply)
		}
		b = b[4:]
	}
	return string(b), nil
}

func (d *decoder) array(kind byte, digits []byte, depth int) (any, error) {
	n, err := d.length(digits)
	if err != nil || n < 0 {
		return nil, err
	}
	if depth == maxDepth {
		return nil, fmt.Errorf("%w: nested too deeply", ErrReply)
	}
	if kind == '%' {
		n *= 2
	}
	values := make([]any, 0, min(n, 1024))
	for range n {
		v, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		values = append(values, v)
	}
	return values, nil
}
