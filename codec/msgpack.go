package codec

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// The first byte of a MessagePack element tells its type and, for the fix
// types, its size: https://github.com/msgpack/msgpack/blob/master/spec.md.
// The library has these as variables, on which a switch is a chain of loads.
const (
	codeFixintMax = 0x7f
	codeFixarray  = 0x90 // to 0x9f
	codeFixstr    = 0xa0 // to 0xbf
	codeNil       = 0xc0
	codeFalse     = 0xc2
	codeTrue      = 0xc3
	codeBin8      = 0xc4
	codeBin16     = 0xc5
	codeBin32     = 0xc6
	codeExt8      = 0xc7
	codeExt16     = 0xc8
	codeExt32     = 0xc9
	codeFloat32   = 0xca
	codeFloat64   = 0xcb
	codeUint8     = 0xcc
	codeUint16    = 0xcd
	codeUint32    = 0xce
	codeUint64    = 0xcf
	codeInt8      = 0xd0
	codeInt64     = 0xd3
	codeFixext1   = 0xd4
	codeFixext16  = 0xd8
	codeStr8      = 0xd9
	codeStr16     = 0xda
	codeStr32     = 0xdb
	codeArray16   = 0xdc
	codeArray32   = 0xdd
	codeMap16     = 0xde
	codeMap32     = 0xdf
	codeFixnegMin = 0xe0
)

// appendUint appends v in the shortest encoding that holds it.
func appendUint(dst []byte, v uint64) []byte {
	switch {
	case v <= codeFixintMax:
		return append(dst, byte(v))
	case v <= math.MaxUint8:
		return append(dst, codeUint8, byte(v))
	case v <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(dst, codeUint16), uint16(v))
	case v <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(dst, codeUint32), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(dst, codeUint64), v)
}

// closeBin makes the bytes of dst from start on the content of a byte string.
// They are at most 65,535, and the two bytes before them are left for its size.
func closeBin(dst []byte, start int) []byte {
	size := len(dst) - start
	if size > math.MaxUint8 {
		dst = slices.Insert(dst, start, 0)
		dst[start-2] = codeBin16
		binary.BigEndian.PutUint16(dst[start-1:], uint16(size))
		return dst
	}
	dst[start-2], dst[start-1] = codeBin8, byte(size)
	return dst
}

// reader reads a value: a version byte, then an array. It takes the fields
// that the caller knows one by one, in order; finish skips the others. The
// first error sticks, and every read after it returns zero.
type reader struct {
	b    []byte // what has not been read
	left uint64 // elements of the array that have not been read
	err  error
}

// open begins to read the value b.
func open(b []byte) reader {
	r := reader{b: b}
	if len(b) == 0 {
		r.fail("no bytes")
		return r
	}
	switch version := b[0]; {
	case version == 0:
		r.fail("version 0")
		return r
	case version > Version:
		r.err = fmt.Errorf("%w: %d, and %d is the highest known", ErrVersion, version, Version)
		return r
	}
	r.b = b[1:]
	if len(r.b) == 0 {
		r.fail("truncated")
		return r
	}
	switch c := r.b[0]; {
	case c&^0x0f == codeFixarray:
		r.left = uint64(c & 0x0f)
		r.b = r.b[1:]
	case c == codeArray16:
		r.left = r.number(2)
	case c == codeArray32:
		r.left = r.number(4)
	default:
		r.fail("not an array")
	}
	return r
}

// fail makes what r reads corrupt, unless it is so already.
func (r *reader) fail(reason string) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", ErrCorrupt, reason)
	}
	r.b, r.left = nil, 0
}

// number reads the first byte of an element and the big-endian number of size
// bytes that follows it.
func (r *reader) number(size int) uint64 {
	if len(r.b) <= size {
		r.fail("truncated")
		return 0
	}
	b := r.b[1:]
	r.b = b[size:]
	switch size {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.BigEndian.Uint16(b))
	case 4:
		return uint64(binary.BigEndian.Uint32(b))
	}
	return binary.BigEndian.Uint64(b)
}

// field begins to read a field. It returns the first byte of it, which is
// still to be read.
func (r *reader) field() byte {
	if r.left == 0 {
		r.fail("too few fields")
		return codeNil
	}
	if len(r.b) == 0 {
		r.fail("truncated")
		return codeNil
	}
	r.left--
	return r.b[0]
}

// uint reads a field that holds a number from 0 to 2^64-1, in any of the
// integer encodings.
func (r *reader) uint() uint64 {
	c := r.field()
	if c <= codeFixintMax {
		r.b = r.b[1:]
		return uint64(c)
	}
	if c < codeUint8 || c > codeInt64 {
		r.fail("not a number from 0 up")
		return 0
	}
	size := 1 << (c & 3)
	v := r.number(size)
	if c >= codeInt8 && v>>(8*size-1) != 0 {
		r.fail("negative number")
		return 0
	}
	return v
}

// int reads a field that holds a number from 0 to 2^63-1.
func (r *reader) int() int64 {
	v := r.uint()
	if v > math.MaxInt64 {
		r.fail("number above 2^63-1")
		return 0
	}
	return int64(v)
}

// flag reads a field that is 1 if it is set. If not, it is not there, but for a 0
// that holds the place where later fields follow. All else fails for the reason.
func (r *reader) flag(reason string) bool {
	v := r.uint()
	if v > 1 || v == 0 && r.left == 0 {
		r.fail(reason)
	}
	return v == 1
}

// literal reads a field that holds s, a string of at most 31 bytes.
func (r *reader) literal(s string) {
	n := 1 + len(s)
	if r.left == 0 || len(r.b) < n || r.b[0] != codeFixstr|byte(len(s)) || string(r.b[1:n]) != s {
		r.fail(s + " is missing")
		return
	}
	r.left--
	r.b = r.b[n:]
}

// bin reads a field that holds a byte string and returns it. It is of the
// bytes that are read, which it shares.
func (r *reader) bin() []byte {
	c := r.field()
	if c < codeBin8 || c > codeBin32 {
		r.fail("not a byte string")
		return nil
	}
	return r.take(r.number(1 << (c - codeBin8)))
}

// take reads size bytes.
func (r *reader) take(size uint64) []byte {
	if size > uint64(len(r.b)) {
		r.fail("truncated")
		return nil
	}
	b := r.b[:size]
	r.b = r.b[size:]
	return b
}

// skip reads over one element, and leaves those inside it to be read next.
func (r *reader) skip() {
	if len(r.b) == 0 {
		r.fail("truncated")
		return
	}
	r.left--
	c := r.b[0]
	var size uint64 // bytes to skip, beyond the first and the number after it
	switch {
	case c <= codeFixintMax, c >= codeFixnegMin, c == codeNil, c == codeFalse, c == codeTrue:
		r.b = r.b[1:]
	case c < codeFixarray: // a map of up to 15 pairs
		r.b = r.b[1:]
		r.left += 2 * uint64(c&0x0f)
	case c < codeFixstr: // an array of up to 15
		r.b = r.b[1:]
		r.left += uint64(c & 0x0f)
	case c < codeNil: // a string of up to 31 bytes
		r.b = r.b[1:]
		size = uint64(c & 0x1f)
	case c == codeBin8, c == codeStr8:
		size = r.number(1)
	case c == codeBin16, c == codeStr16:
		size = r.number(2)
	case c == codeBin32, c == codeStr32:
		size = r.number(4)
	case c == codeExt8:
		size = 1 + r.number(1)
	case c == codeExt16:
		size = 1 + r.number(2)
	case c == codeExt32:
		size = 1 + r.number(4)
	case c == codeFloat32:
		r.number(4)
	case c == codeFloat64:
		r.number(8)
	case c >= codeUint8 && c <= codeInt64:
		r.number(1 << (c & 3))
	case c >= codeFixext1 && c <= codeFixext16:
		r.b = r.b[1:]
		size = 1 + 1<<(c-codeFixext1)
	case c == codeArray16:
		r.left += r.number(2)
	case c == codeArray32:
		r.left += r.number(4)
	case c == codeMap16:
		r.left += 2 * r.number(2)
	case c == codeMap32:
		r.left += 2 * r.number(4)
	default:
		r.fail("unknown element")
		return
	}
	r.take(size)
}

// finish skips the fields that are left, which a later version may have
// added, and returns the first error. Each round of its loop takes a byte or
// fails, so that no nesting and no count makes it long or deep.
func (r *reader) finish() error {
	for r.left > 0 {
		r.skip()
	}
	if len(r.b) > 0 {
		r.fail("bytes after the end")
	}
	return r.err
}
