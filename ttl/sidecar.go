package ttl

import (
	"math"
	"math/bits"
	"time"

	"github.com/gabiondb/gabion/codec"
)

// Sidecar sums up the deadlines of some heads: how many there are, and how
// many of them fall due when. It says where a purge is worth it, and never
// what to delete.
//
// Its buckets count from an instant, the finer the nearer to it: the first
// four are 67 ms wide, and four buckets later each is twice as wide. So a
// deadline is known to a quarter of its distance, and whatever is added can be
// taken away again from the same bucket.
type Sidecar struct {
	codec.Sidecar
	records int64
}

// NewSidecar returns a sidecar without heads that counts from since, 1..2^63-1.
func NewSidecar(since int64) Sidecar {
	return Sidecar{Sidecar: codec.Sidecar{Since: since}}
}

// LoadSidecar returns the sidecar that the store has kept as s.
func LoadSidecar(s codec.Sidecar) Sidecar {
	loaded := Sidecar{Sidecar: s}
	for _, n := range s.Counts {
		loaded.records += n
	}
	return loaded
}

// Add counts a head with this deadline in; none if it is 0.
func (s *Sidecar) Add(deadline int64) { s.count(deadline, 1) }

// Remove takes a head with this deadline out again.
func (s *Sidecar) Remove(deadline int64) { s.count(deadline, -1) }

// Merge counts in what other has, which counts from the same instant.
func (s *Sidecar) Merge(other *Sidecar) {
	for i, n := range other.Counts {
		s.Counts[i] += n
	}
	s.records += other.records
}

func (s *Sidecar) count(deadline, n int64) {
	if deadline != 0 {
		s.Counts[bucketOf(s.Since, deadline)] += n
		s.records += n
	}
}

// Records returns how many heads there are.
func (s *Sidecar) Records() int64 { return max(s.records, 0) }

// Due returns how many heads are over at now, not counting those of the bucket
// that now is in.
func (s *Sidecar) Due(now int64) (n int64) {
	for i := range s.Counts {
		if i+1 == len(s.Counts) || now-s.Since < bucketStart(i+1) {
			break // the last bucket ends with time
		}
		n += s.Counts[i]
	}
	return max(n, 0)
}

// First returns the earliest instant at which a head can fall due. It is
// 2^63-1 if there is none.
func (s *Sidecar) First() int64 {
	for i, n := range s.Counts {
		if n > 0 {
			return s.Since + bucketStart(i)
		}
	}
	return math.MaxInt64
}

const (
	// A purge of fewer heads than minDue is left to the longest wait.
	minDue = 64

	// dueShare is the share of heads that has to be due, as a divisor. To purge
	// a region that is 5 % expired makes Pebble rewrite twenty times of what is
	// freed.
	dueShare = 4
)

// Worth tells whether a purge at now is worth it: a quarter of the heads is
// due, or one may have been due for so long as wait.
func (s *Sidecar) Worth(now int64, wait time.Duration) bool {
	if due := s.Due(now); due >= minDue && due >= s.records/dueShare {
		return true
	}
	first := s.First()
	return first <= now && now-first >= int64(wait)
}

// unitBits is how wide the first buckets are: 2^26 ns.
const unitBits = 26

// bucketOf returns the bucket that counts deadline in a sidecar that counts
// from since.
func bucketOf(since, deadline int64) int {
	if deadline <= since {
		return 0
	}
	u := uint64(deadline-since) >> unitBits
	if u < 4 {
		return int(u)
	}
	e := bits.Len64(u) - 3
	return 4*(e+1) + int(u>>e) - 4
}

// bucketStart returns how long after since bucket i begins.
func bucketStart(i int) int64 {
	if i < 4 {
		return int64(i) << unitBits
	}
	return int64(4+i%4) << (i/4 - 1) << unitBits
}
