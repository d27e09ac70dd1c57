package engine

import (
	"time"

	"github.com/gabiondb/gabion/engine/limit"
)

// MaxKeyLen is the length of the longest key, in bytes. The shortest is 1.
const MaxKeyLen = 4096

// Verb says what an Op does.
type Verb uint8

// The verbs of an Op.
const (
	OpThrottle Verb = iota // decide and charge N events under Rate
	OpProbe                // decide as OpThrottle would, and change nothing
	OpStat                 // tell the kind and deadline of a key
	OpReset                // forget the key
)

// Op is one operation on one key, as plain data.
type Op struct {
	Verb Verb
	Key  []byte     // 1 to MaxKeyLen arbitrary bytes; not retained
	Rate limit.Rate // OpThrottle, OpProbe
	N    int64      // OpThrottle, OpProbe: 0..2^63-1
}

// Result is the answer to one Op.
type Result struct {
	Decision limit.Decision // OpThrottle, OpProbe
	Stat     Stat           // OpStat; OpReset: what the key held before
	Err      error          // if set, nothing else is

	round uint64 // the newest that the answer rests on
}

// Stat describes a key.
type Stat struct {
	Kind     limit.Kind    // limit.None for an absent key
	Deadline time.Time     // when the key expires, on the engine's clock
	TTL      time.Duration // how long until then; 0 for an absent key
}

// Exists tells whether the key is there.
func (s Stat) Exists() bool { return s.Kind != limit.None }
