package codec

import "encoding/binary"

const (
	// Sidecars is how many sidecars a store can have. Each is about
	// SlicesPerSidecar slices that follow one another.
	Sidecars         = 256
	SlicesPerSidecar = Slices / Sidecars

	// SidecarBuckets is how many buckets a sidecar has. FORMAT.md tells which
	// deadlines each of them counts.
	SidecarBuckets = 144

	// maxSidecarCount is the largest count that a sidecar keeps for a bucket, so
	// that the sum of all of a store fits into an int64.
	maxSidecarCount = 1 << 47
)

// Sidecar sums up the deadlines of the heads in SlicesPerSidecar slices: how
// many of them lie in which stretch of time. It is a hint where heads may be
// due; only the record of a head tells whether that one is.
type Sidecar struct {
	Since  int64                 // what the buckets count from, in nanoseconds since the Unix epoch
	Counts [SidecarBuckets]int64 // heads by bucket, 0..2^47
}

// AppendSidecar appends the value of s. A count outside of 0..2^47 is taken for
// the nearest one inside. It panics if Since is negative.
func AppendSidecar(dst []byte, s *Sidecar) []byte {
	if s.Since < 0 {
		panic("codec: negative time of a sidecar")
	}
	dst = append(dst, Version, codeFixarray|2)
	dst = appendUint(dst, uint64(s.Since))
	dst = append(dst, 0, 0)
	start := len(dst)
	skipped := uint64(0)
	for _, n := range s.Counts {
		if n <= 0 {
			skipped++
			continue
		}
		dst = binary.AppendUvarint(dst, skipped)
		dst = binary.AppendUvarint(dst, uint64(min(n, maxSidecarCount)))
		skipped = 0
	}
	return closeBin(dst, start)
}

// DecodeSidecar returns the sidecar that b holds. Errors wrap ErrCorrupt or
// ErrVersion.
func DecodeSidecar(b []byte) (Sidecar, error) {
	r := open(b)
	s := Sidecar{Since: r.int()}
	bucket := uint64(0)
	for pairs := r.bin(); len(pairs) > 0; bucket++ {
		skipped, rest, ok := cutUvarint(pairs)
		n := uint64(0)
		if ok {
			n, rest, ok = cutUvarint(rest)
		}
		bucket += min(skipped, SidecarBuckets) // which is past the end, and no sum wraps around
		if !ok || n == 0 || n > maxSidecarCount || bucket >= SidecarBuckets {
			r.fail("malformed bucket")
			break
		}
		s.Counts[bucket] = int64(n)
		pairs = rest
	}
	if err := r.finish(); err != nil {
		return Sidecar{}, err
	}
	return s, nil
}
