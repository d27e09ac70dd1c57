// Package codec turns keys and records into bytes and back. It does no I/O
// and keeps nothing; FORMAT.md is the layout, byte by byte.
//
// A Keyspace lays out keys. A key of the user's becomes a head, which is found
// by its slice and carries one record:
//
//	slice := keyspace.Slice(key)
//	head := keyspace.AppendHead(nil, slice, key)
//	record := codec.AppendState(nil, state)
//
// What doesn't fit into one record lies under keys of its own: the chunks of a
// rolling list (AppendChunkKey, AppendChunk) and the requests that a quota has
// accepted (AppendRequestKey, AppendRequest). Beside the records lie sidecars
// (AppendSidecarKey, AppendSidecar), which only tell where some may be over.
//
// Values are a version byte and a MessagePack array. Decoding is strict: bytes
// that no version of this package could have written are an error, never a
// default, since a rate limit read as zero is a fresh one. Whatever decodes
// satisfies what the types of package limit promise, so it may be handed to
// their methods without a further look.
//
// The Append functions append to dst, as those of strconv do. All but
// AppendIdentity allocate only where dst has no room. Reading allocates only for
// an error and for what the result points to: a rolling list, a chunk, the id
// of a request.
package codec

import "errors"

// Version is the version byte of every value that this package writes, and
// the highest that it reads.
const Version = 1

// Format is the number of the layout as a whole: of the keys, of the values
// and of what they mean together. An Identity records it.
const Format = 1

var (
	// ErrCorrupt is what every error about malformed bytes wraps.
	ErrCorrupt = errors.New("codec: corrupt")

	// ErrVersion is what the error about a value of a newer version wraps. The
	// value may be sound; this code cannot tell what it says.
	ErrVersion = errors.New("codec: unknown version")
)
