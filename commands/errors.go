package commands

import (
	"errors"
	"strings"

	"github.com/gabiondb/gabion/commands/internal/resp"
	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// Error is an error reply. Its first word is a code in capitals, such as ERR,
// WRONGTYPE or NOAUTH.
type Error = resp.Error

// Errors that more than one command answers. The words are those of Redis
// where Redis has some.
const (
	errSyntax     Error = "ERR syntax error"
	errInteger    Error = "ERR value is not an integer or out of range"
	errZeroRate   Error = "ERR zero rates are not supported"
	errKey        Error = "ERR key is not 1 to 4096 bytes long"
	errRange      Error = "ERR value is out of range, its result can't be stored"
	errWrongKind  Error = "WRONGTYPE Operation against a key holding the wrong kind of value"
	errUnreadable Error = "ERR the record of the key can't be read: it is damaged, or a newer version wrote it"
	errClosed     Error = "ERR the store is closed"
	errNoAuth     Error = "NOAUTH Authentication required."
	errWrongPass  Error = "WRONGPASS invalid username-password pair or user is disabled."
	errMemory     Error = "ERR out of buffer memory, too much is being sent or left unread"
	errClients    Error = "ERR max number of clients reached"
)

// inWords says in the words of the protocol what went wrong with a call of c,
// which is nil if no command was called.
func (c *command) inWords(err error) Error {
	if c != nil && c.wireError != nil {
		return c.wireError(err)
	}
	return wireError(err)
}

// wireError is inWords for most commands.
func wireError(err error) Error {
	var reply Error
	var protocol resp.ProtocolError
	switch {
	case errors.As(err, &reply):
		return reply
	case errors.As(err, &protocol):
		return Error("ERR " + protocol.Error())
	case errors.Is(err, engine.ErrWrongKind):
		return errWrongKind
	case errors.Is(err, engine.ErrInvalidKey):
		return errKey
	case errors.Is(err, limit.ErrInvalid):
		return errInteger
	case errors.Is(err, limit.ErrOutOfRange):
		return errRange
	case errors.Is(err, engine.ErrClosed):
		return errClosed
	case errors.Is(err, engine.ErrCorrupt):
		return errUnreadable
	case errors.Is(err, engine.ErrStorage):
		what := strings.TrimPrefix(err.Error(), "engine: ")
		return Error("ERR storage: " + strings.TrimPrefix(what, "storage failed: "))
	}
	return Error("ERR " + err.Error())
}
