// Package resp reads and writes RESP, the protocol of Redis, in its versions 2
// and 3. It works on bytes and does no I/O but for ReadReply, which is the
// client's side.
//
// A server keeps one Parser per connection and calls Next on what it has
// received until that is used up; it answers with the Append functions. Neither
// allocates once its buffers have grown to size.
package resp

// Version is a version of the protocol.
type Version uint8

// The versions that this package speaks. A connection starts with RESP2.
const (
	RESP2 Version = 2
	RESP3 Version = 3
)

// Error is an error reply, as it goes over the wire: its first word is a code.
type Error string

// Error returns the text of the reply.
func (e Error) Error() string { return string(e) }

// ProtocolError reports bytes that are no request. Where the next one begins
// is unknown from then on, so the connection has to be closed.
type ProtocolError string

// Error returns the text in the words of Redis.
func (e ProtocolError) Error() string { return "Protocol error: " + string(e) }
