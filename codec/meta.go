package codec

import (
	"bytes"

	"github.com/vmihailenco/msgpack/v5"
)

// The names of the meta values.
const (
	MetaIdentity = "identity" // an Identity
	MetaMark     = "mark"     // the mark
)

// writer is the first field of an identity.
const writer = "gabion"

// Identity tells who wrote a store, and how.
type Identity struct {
	Format uint64 // the Format of the code that made the store
	Seed   uint64 // the Seed of its Keyspace
}

// AppendIdentity appends the value of id.
func AppendIdentity(dst []byte, id Identity) []byte {
	w := bytes.NewBuffer(append(dst, Version))
	e := msgpack.NewEncoder(w)
	e.UseCompactInts(true)
	if err := e.Encode([]any{writer, id.Format, id.Seed}); err != nil {
		panic(err) // a bytes.Buffer takes every write
	}
	return w.Bytes()
}

// DecodeIdentity returns the identity that b holds. Errors wrap ErrCorrupt,
// also for the value of another writer, or ErrVersion. Whether the format is
// known is the caller's to judge.
func DecodeIdentity(b []byte) (Identity, error) {
	r := open(b)
	r.literal(writer)
	id := Identity{Format: r.uint(), Seed: r.uint()}
	if err := r.finish(); err != nil {
		return Identity{}, err
	}
	return id, nil
}

// AppendMark appends the value of the mark: the largest time that a store has
// seen, in nanoseconds since the Unix epoch. It panics if now is negative.
func AppendMark(dst []byte, now int64) []byte {
	if now < 0 {
		panic("codec: negative mark")
	}
	return appendUint(append(dst, Version, codeFixarray|1), uint64(now))
}

// DecodeMark returns the mark that b holds, 0..2^63-1. Errors wrap ErrCorrupt
// or ErrVersion.
func DecodeMark(b []byte) (int64, error) {
	r := open(b)
	now := r.int()
	if err := r.finish(); err != nil {
		return 0, err
	}
	return now, nil
}
