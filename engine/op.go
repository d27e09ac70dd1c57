package engine

import (
	"time"

	"github.com/gabiondb/gabion/engine/limit"
)

// MaxKeyLen is the length of the longest key, in bytes. The shortest is 1.
const MaxKeyLen = 4096

// Verb says what an Op does.
type Verb uint8

// The verbs of an Op, and the fields that each takes beside Key.
const (
	OpThrottle    Verb = iota // decide and charge N events under Rate
	OpProbe                   // decide as OpThrottle would, and change nothing
	OpTakeQuota               // spend N of Quota on the request ID
	OpProbeQuota              // decide as OpTakeQuota would, and change nothing
	OpQuota                   // tell what has been spent of a quota
	OpAllow                   // record one event under Rolling if there is room
	OpIncrement               // record as many of N events as Rolling has room for
	OpPeek                    // count the live events under Rolling
	OpWait                    // tell how long until Rolling has room
	OpStat                    // tell the kind and deadline of a key
	OpReset                   // forget the key
	OpRefund                  // give N events under Rate back
	OpRefundQuota             // give back what the request ID has taken

	// These are on several keys: their Op and the With ones behind it, which
	// have the same verb, are carried out together.
	OpThrottleAll  // charge all of them if all may pass, else none
	OpThrottleEach // decide and charge one after the other
	OpProbeAll     // decide as OpThrottleAll would, and change nothing
	OpProbeEach    // decide as OpThrottleEach would, and change nothing
)

// MaxTogether is the most operations that can be carried out together.
const MaxTogether = 128

// Op is one operation on one key, as plain data, or one of several that are
// carried out together.
type Op struct {
	Verb    Verb
	Key     []byte // 1 to MaxKeyLen arbitrary bytes; not retained
	Rate    limit.Rate
	Quota   limit.Quota
	Rolling limit.Rolling
	ID      string // 1 to 64 of A-Z a-z 0-9 _ -
	N       int64
	With    int // of the first of several together: how many behind it go with it, 0..MaxTogether-1
}

// Result is the answer to one Op. Only the fields that are named for its verb
// are set, and if Err is, nothing else.
type Result struct {
	Decision  limit.Decision  // OpThrottle, OpProbe, their sisters on several keys, OpRefund
	Grant     limit.Grant     // OpTakeQuota, OpProbeQuota
	Quota     QuotaUsage      // OpQuota
	Admission limit.Admission // OpAllow; OpPeek: its Count; OpWait: its Wait
	Total     int64           // OpIncrement
	Stat      Stat            // OpStat; OpReset: what the key held before
	Refund    limit.Refund    // OpRefundQuota
	Err       error

	round uint64 // the newest that the answer rests on
}

// Stat describes a key.
type Stat struct {
	Kind     limit.Kind    // limit.KindNone for an absent key; one called unknown if the record can't be read
	Deadline time.Time     // when the key expires, on the engine's clock
	TTL      time.Duration // how long until then; 0 for an absent key
}

// Exists tells whether the key is there.
func (s Stat) Exists() bool { return s.Kind != limit.KindNone }
