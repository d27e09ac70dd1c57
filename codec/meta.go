package codec

import (
	"bytes"

	"github.com/vmihailenco/msgpack/v5"
)

// The names of the meta values.
const (
	MetaIdentity = "identity" // an Identity
	MetaMark     = "mark"     // a Mark
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

// Mark is how far a store has come.
type Mark struct {
	// Now is the largest time that the store has seen, in nanoseconds since
	// the Unix epoch, 0..2^63-1.
	Now int64

	// Clean tells that the store was closed behind this mark, with every
	// sidecar up to date.
	Clean bool
}

// AppendMark appends the value of m. It panics if Now is negative.
func AppendMark(dst []byte, m Mark) []byte {
	if m.Now < 0 {
		panic("codec: negative mark")
	}
	if m.Clean {
		return append(appendUint(append(dst, Version, codeFixarray|2), uint64(m.Now)), 1)
	}
	return appendUint(append(dst, Version, codeFixarray|1), uint64(m.Now))
}

// DecodeMark returns the mark that b holds. Errors wrap ErrCorrupt or
// ErrVersion.
func DecodeMark(b []byte) (Mark, error) {
	r := open(b)
	m := Mark{Now: r.int()}
	if r.left > 0 {
		m.Clean = r.flag("neither a clean mark nor another")
	}
	if err := r.finish(); err != nil {
		return Mark{}, err
	}
	return m, nil
}
