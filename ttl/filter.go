package ttl

import (
	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine/limit"
)

// Verdict is what the compaction filter says of a record.
type Verdict struct {
	// Drop tells that the record is over, so that it may be deleted.
	Drop bool

	// Deadline is the record's; 0 if it can't be read.
	Deadline int64

	// State is what the record holds. It is set with Drop only.
	State limit.State
}

// Filter is the compaction filter: it decides whether record, the value of a
// head, is to be kept or dropped at now. One that can't be read is kept,
// whatever there is of its deadline, since its key answers an error and not as
// if it were absent.
func Filter(record []byte, now int64) Verdict {
	deadline, err := codec.DecodeDeadline(record)
	if err != nil {
		return Verdict{}
	}
	if !Expired(deadline, now) {
		return Verdict{Deadline: deadline}
	}
	state, err := codec.DecodeState(record)
	if err != nil {
		return Verdict{}
	}
	return Verdict{Drop: true, Deadline: deadline, State: state}
}
