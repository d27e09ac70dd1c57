package codec

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/cespare/xxhash/v2"
)

// The tag is the byte that follows the prefix and tells what a key is for.
// FORMAT.md lists the tags that are reserved.
const (
	tagHead = 'h'
	tagMeta = 'm'
)

// A zero byte of a key is escaped and the end of a key is marked, each by two
// bytes that begin with escape. An end sorts before every continuation.
const (
	escape     = 0x00
	escapeZero = 0xff
	escapeEnd  = 0x01
)

// Keyspace lays out the keys of one store.
type Keyspace struct {
	// Prefix is what every key begins with. It is empty in a store of our own.
	Prefix []byte

	// Seed is the seed of the hash that spreads keys over slices: random, and
	// the same for the whole life of a store.
	Seed uint64
}

// Slices is the number of slices that the heads of a store are divided into.
const Slices = 1 << 16

// Slice returns the slice that key belongs to: the top two bytes of its
// XXH64 under the seed.
func (k Keyspace) Slice(key []byte) uint16 {
	var d xxhash.Digest
	d.ResetWithSeed(k.Seed)
	d.Write(key)
	return uint16(d.Sum64() >> 48)
}

// AppendHead appends the head of key, which must not be empty, in slice. Heads
// sort by slice, then by key, and none is a prefix of another.
func (k Keyspace) AppendHead(dst []byte, slice uint16, key []byte) []byte {
	dst = k.AppendSliceStart(dst, int(slice))
	for {
		i := bytes.IndexByte(key, escape)
		if i < 0 {
			dst = append(dst, key...)
			return append(dst, escape, escapeEnd)
		}
		dst = append(dst, key[:i+1]...)
		dst = append(dst, escapeZero)
		key = key[i+1:]
	}
}

// AppendSliceStart appends the lower bound of the heads in slice, which is the
// upper bound of those in the slice before it. slice is 0..Slices; Slices
// itself gives the upper bound of all heads.
func (k Keyspace) AppendSliceStart(dst []byte, slice int) []byte {
	dst = append(dst, k.Prefix...)
	if slice == Slices {
		return append(dst, tagHead+1)
	}
	dst = append(dst, tagHead)
	return binary.BigEndian.AppendUint16(dst, uint16(slice))
}

// ParseHead splits a head that AppendHead made. It appends the key to dst and
// returns it with what dst held before; after an error it returns dst as it
// was. Only the bytes that AppendHead writes are accepted, so a head and its
// slice and key determine each other. Whether the key belongs into the slice
// is not checked. Errors wrap ErrCorrupt.
func (k Keyspace) ParseHead(dst, b []byte) (slice uint16, key []byte, err error) {
	rest, ok := bytes.CutPrefix(b, k.Prefix)
	if !ok || len(rest) < 3 || rest[0] != tagHead {
		return 0, dst, fmt.Errorf("%w: %x is not a head", ErrCorrupt, b)
	}
	slice = binary.BigEndian.Uint16(rest[1:])
	rest = rest[3:]
	key = dst
	for {
		i := bytes.IndexByte(rest, escape)
		if i < 0 || i+1 == len(rest) {
			return 0, dst, fmt.Errorf("%w: head %x has no end", ErrCorrupt, b)
		}
		switch rest[i+1] {
		case escapeZero:
			key = append(key, rest[:i+1]...)
		case escapeEnd:
			key = append(key, rest[:i]...)
			if i+2 != len(rest) {
				return 0, dst, fmt.Errorf("%w: head %x goes on after its end", ErrCorrupt, b)
			}
			if len(key) == len(dst) {
				return 0, dst, fmt.Errorf("%w: head %x has an empty key", ErrCorrupt, b)
			}
			return slice, key, nil
		default:
			return 0, dst, fmt.Errorf("%w: head %x has an unknown escape", ErrCorrupt, b)
		}
		rest = rest[i+2:]
	}
}

// AppendMeta appends the key of the meta value called name, such as MetaIdentity.
func (k Keyspace) AppendMeta(dst []byte, name string) []byte {
	dst = append(dst, k.Prefix...)
	dst = append(dst, tagMeta)
	return append(dst, name...)
}

// Bounds returns the span of all keys under the prefix: from lower, to just
// before upper. upper is nil if nothing bounds it, because the prefix is empty
// or has no byte but 0xff. The caller owns both.
func (k Keyspace) Bounds() (lower, upper []byte) {
	lower = bytes.Clone(k.Prefix)
	for i := len(k.Prefix) - 1; i >= 0; i-- {
		if k.Prefix[i] != 0xff {
			upper = bytes.Clone(k.Prefix[:i+1])
			upper[i]++
			break
		}
	}
	return lower, upper
}
