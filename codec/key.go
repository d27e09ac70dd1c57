package codec

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/cespare/xxhash/v2"
	"github.com/gabiondb/gabion/engine/limit"
)

// The tag is the byte that follows the prefix and tells what a key is for.
const (
	tagChunk   = 'c'
	tagHead    = 'h'
	tagMeta    = 'm'
	tagRequest = 'q'
	tagSidecar = 's'
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
	return appendEscaped(k.AppendSliceStart(dst, int(slice)), key)
}

// AppendSliceStart appends the lower bound of the heads in slice, which is the
// upper bound of those in the slice before it. slice is 0..Slices; Slices
// itself gives the upper bound of all heads.
func (k Keyspace) AppendSliceStart(dst []byte, slice int) []byte {
	if slice == Slices {
		return k.appendTag(dst, tagHead+1)
	}
	return binary.BigEndian.AppendUint16(k.appendTag(dst, tagHead), uint16(slice))
}

// ParseHead splits a head that AppendHead made. It appends the key to dst and
// returns it with what dst held before; after an error it returns dst as it
// was. Only the bytes that AppendHead writes are accepted, so a head and its
// slice and key determine each other. Whether the key belongs into the slice
// is not checked. Errors wrap ErrCorrupt.
func (k Keyspace) ParseHead(dst, b []byte) (slice uint16, key []byte, err error) {
	rest, ok := k.cutTag(b, tagHead, 2)
	if !ok {
		return 0, dst, corruptKey(b, "is not a head")
	}
	key, end, fault := cutEscaped(dst, rest[2:])
	switch {
	case fault != "":
		return 0, dst, corruptKey(b, fault)
	case len(end) > 0:
		return 0, dst, corruptKey(b, "goes on after its end")
	}
	return binary.BigEndian.Uint16(rest), key, nil
}

// AppendChunkKey appends the key of the chunk of key's rolling list whose first
// event is that of ordinal, 0..2^63-1; key, which must not be empty, is in
// slice. Chunks sort by slice, then by key, then by ordinal, and the key of
// none is a prefix of another's. So those of one list in a limit.Span lie from
// the chunk key of its From to just before that of its To, and the chunk that
// holds an event is the last one up to the chunk key of its ordinal.
func (k Keyspace) AppendChunkKey(dst []byte, slice uint16, key []byte, ordinal int64) []byte {
	dst = binary.BigEndian.AppendUint16(k.appendTag(dst, tagChunk), slice)
	return binary.BigEndian.AppendUint64(appendEscaped(dst, key), uint64(ordinal))
}

// ParseChunkKey splits a key that AppendChunkKey made, as ParseHead does a head.
func (k Keyspace) ParseChunkKey(dst, b []byte) (slice uint16, key []byte, ordinal int64, err error) {
	rest, ok := k.cutTag(b, tagChunk, 2)
	if !ok {
		return 0, dst, 0, corruptKey(b, "is not that of a chunk")
	}
	key, end, fault := cutEscaped(dst, rest[2:])
	switch {
	case fault != "":
		return 0, dst, 0, corruptKey(b, fault)
	case len(end) != 8:
		return 0, dst, 0, corruptKey(b, "has no ordinal at its end")
	}
	n := binary.BigEndian.Uint64(end)
	if n > math.MaxInt64 {
		return 0, dst, 0, corruptKey(b, "has an ordinal above 2^63-1")
	}
	return binary.BigEndian.Uint16(rest), key, int64(n), nil
}

// AppendRequestKey appends the key of the record of a request that the quota
// of key has accepted, in the window that closes at deadline (1..2^63-1). key
// must not be empty, and id is one that limit.CheckRequestID takes. The keys of
// requests sort by deadline, then by key, then by id. One may be a prefix of
// another, whose id goes on.
func (k Keyspace) AppendRequestKey(dst []byte, deadline int64, key []byte, id string) []byte {
	return append(appendEscaped(k.AppendRequestStart(dst, deadline), key), id...)
}

// AppendRequestStart appends the lower bound of the records of the requests in
// all windows that close at deadline or later. A window is over from its
// deadline on. So the records that are dead at now lie from the start of 0 to
// just before that of now+1, also if that is 2^63: deadline is taken as
// unsigned.
func (k Keyspace) AppendRequestStart(dst []byte, deadline int64) []byte {
	return binary.BigEndian.AppendUint64(k.appendTag(dst, tagRequest), uint64(deadline))
}

// RequestBounds returns the span of the records of all requests in one window,
// that of key which closes at deadline: from lower, to just before upper. The
// caller owns both.
func (k Keyspace) RequestBounds(deadline int64, key []byte) (lower, upper []byte) {
	lower = appendEscaped(k.AppendRequestStart(nil, deadline), key)
	upper = bytes.Clone(lower)
	upper[len(upper)-1]++
	return lower, upper
}

// ParseRequestKey splits a key that AppendRequestKey made, as ParseHead does a
// head. It allocates the id.
func (k Keyspace) ParseRequestKey(dst, b []byte) (deadline int64, key []byte, id string, err error) {
	rest, ok := k.cutTag(b, tagRequest, 8)
	if !ok {
		return 0, dst, "", corruptKey(b, "is not that of a request")
	}
	n := binary.BigEndian.Uint64(rest)
	if n == 0 || n > math.MaxInt64 {
		return 0, dst, "", corruptKey(b, "has a deadline outside 1..2^63-1")
	}
	key, end, fault := cutEscaped(dst, rest[8:])
	if fault != "" {
		return 0, dst, "", corruptKey(b, fault)
	}
	if limit.CheckRequestID(end) != nil {
		return 0, dst, "", corruptKey(b, "has no request id at its end")
	}
	return int64(n), key, string(end), nil
}

// AppendSidecarKey appends the key of the sidecar n, which is about the slices
// from n*SlicesPerSidecar to just before (n+1)*SlicesPerSidecar. The keys of
// sidecars sort by n.
func (k Keyspace) AppendSidecarKey(dst []byte, n uint8) []byte {
	return append(k.appendTag(dst, tagSidecar), n)
}

// ParseSidecarKey returns the number of the sidecar whose key AppendSidecarKey
// made b. Errors wrap ErrCorrupt.
func (k Keyspace) ParseSidecarKey(b []byte) (n uint8, err error) {
	rest, ok := k.cutTag(b, tagSidecar, 1)
	switch {
	case !ok:
		return 0, corruptKey(b, "is not that of a sidecar")
	case len(rest) > 1:
		return 0, corruptKey(b, "goes on after its end")
	}
	return rest[0], nil
}

// SidecarBounds returns the span of all sidecars: from lower, to just before
// upper. The caller owns both.
func (k Keyspace) SidecarBounds() (lower, upper []byte) {
	return k.appendTag(nil, tagSidecar), k.appendTag(nil, tagSidecar+1)
}

// HeadSlices returns the slices that can have heads among the keys from
// smallest to largest, both included: from first, to just before end, 0..Slices.
// The two may be any keys, also some that are not ours.
func (k Keyspace) HeadSlices(smallest, largest []byte) (first, end int) {
	first, _ = k.slicesBefore(smallest)
	end, inside := k.slicesBefore(largest)
	if inside {
		end++
	}
	return first, end
}

// slicesBefore returns how many slices lie before b as a whole, and whether b
// is inside the next one.
func (k Keyspace) slicesBefore(b []byte) (n int, inside bool) {
	rest, ok := bytes.CutPrefix(b, k.Prefix)
	switch {
	case !ok && bytes.Compare(b, k.Prefix) < 0, ok && (len(rest) == 0 || rest[0] < tagHead):
		return 0, false
	case !ok || rest[0] > tagHead:
		return Slices, false
	}
	var slice [2]byte // a bound may have less
	copy(slice[:], rest[1:])
	return int(binary.BigEndian.Uint16(slice[:])), len(rest) > 3
}

// StateSpans returns the spans that hold the state of all keys of the user's,
// and what sums it up: the chunks, the heads, the request records and the
// sidecars, in the order in which they lie. Each reaches from its first bound
// to just before its second. No meta value is in them. The caller owns them.
func (k Keyspace) StateSpans() [][2][]byte {
	var spans [][2][]byte
	for _, tag := range [...]byte{tagChunk, tagHead, tagRequest, tagSidecar} {
		spans = append(spans, [2][]byte{k.appendTag(nil, tag), k.appendTag(nil, tag+1)})
	}
	return spans
}

// StatePart returns the bounds of part i of the span that StateSpans covers, of
// so many parts (1..Slices): from lower, to just before upper. Heads are dealt
// out by slices; what lies before them is in the first part, and what lies
// behind them in the last. The caller owns both.
func (k Keyspace) StatePart(i, parts int) (lower, upper []byte) {
	lower = k.AppendSliceStart(nil, i*Slices/parts)
	upper = k.AppendSliceStart(nil, (i+1)*Slices/parts)
	if i == 0 {
		lower = k.appendTag(nil, tagChunk)
	}
	if i == parts-1 {
		upper = k.appendTag(nil, tagSidecar+1)
	}
	return lower, upper
}

// AppendMeta appends the key of the meta value called name, such as MetaIdentity.
func (k Keyspace) AppendMeta(dst []byte, name string) []byte {
	return append(k.appendTag(dst, tagMeta), name...)
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

// appendTag appends the prefix and a tag.
func (k Keyspace) appendTag(dst []byte, tag byte) []byte {
	return append(append(dst, k.Prefix...), tag)
}

// cutTag returns what follows the prefix and the tag in b. It is not ok if b
// doesn't begin with them, or has less than size bytes after them.
func (k Keyspace) cutTag(b []byte, tag byte, size int) (rest []byte, ok bool) {
	rest, ok = bytes.CutPrefix(b, k.Prefix)
	if !ok || len(rest) < 1+size || rest[0] != tag {
		return nil, false
	}
	return rest[1:], true
}

// appendEscaped appends key in its escaped form. The forms sort as the keys do,
// and none is a prefix of another.
func appendEscaped(dst, key []byte) []byte {
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

// cutEscaped appends to dst the key whose escaped form b begins with, and
// returns it with what dst held before, and what follows it in b. If there is
// no such key, fault says why.
func cutEscaped(dst, b []byte) (key, rest []byte, fault string) {
	key = dst
	for {
		i := bytes.IndexByte(b, escape)
		if i < 0 || i+1 == len(b) {
			return nil, nil, "has no end"
		}
		switch b[i+1] {
		case escapeZero:
			key = append(key, b[:i+1]...)
		case escapeEnd:
			key = append(key, b[:i]...)
			if len(key) == len(dst) {
				return nil, nil, "has an empty key in it"
			}
			return key, b[i+2:], ""
		default:
			return nil, nil, "has an unknown escape"
		}
		b = b[i+2:]
	}
}

// corruptKey returns the error about a key of the store.
func corruptKey(b []byte, fault string) error {
	return fmt.Errorf("%w: key %x %s", ErrCorrupt, b, fault)
}
