package engine

import "errors"

var (
	// ErrClosed is returned by every call on a limiter that has been closed.
	ErrClosed = errors.New("engine: limiter is closed")

	// ErrWrongKind is returned for a key that holds another kind of state. It
	// has changed nothing.
	ErrWrongKind = errors.New("engine: key holds another kind of state")

	// ErrInvalidKey is returned for a key that is empty or longer than
	// MaxKeyLen. Nothing was charged.
	ErrInvalidKey = errors.New("engine: key is not 1 to 4096 bytes long")

	// ErrInvalidVerb is returned for an Op whose Verb is none of the verbs.
	ErrInvalidVerb = errors.New("engine: unknown verb")

	// ErrCorrupt is returned for a key whose record can't be read: it is
	// damaged, or a newer version wrote it. Nothing was charged, and other
	// keys are served as before. Reset forgets the key.
	ErrCorrupt = errors.New("engine: record can't be read")

	// ErrStorage is what every failure of the store wraps. The outcome of the
	// call that reports it is unknown: it may or may not have been charged.
	// A failed read concerns that call alone. After the first failed write the
	// limiter answers nothing else, as Failed and Failure tell; close it, mend
	// the disk and open it again.
	ErrStorage = errors.New("engine: storage failed")

	// ErrDamaged is returned by Open for a store some of whose files are missing
	// or not what was written, and by Restore for a backup in which Check finds
	// damage. Check tells more, and a backup brings back what is lost.
	ErrDamaged = errors.New("engine: store is damaged")

	// ErrInUse is returned by Open, Check and Restore for a store that another
	// process, or another Limiter of this one, has open, and by New for a prefix
	// where another Limiter is.
	ErrInUse = errors.New("engine: store is in use")

	// ErrForeign is returned by Open, Check and Restore for a store that gabion
	// did not write, and by New for a prefix under which there is something else.
	ErrForeign = errors.New("engine: not a gabion store")

	// ErrNewerFormat is returned by Open, New, Check and Restore for a store
	// written in a format that this version does not know.
	ErrNewerFormat = errors.New("engine: store has a newer format")
)
