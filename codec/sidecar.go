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
)

// Sidecar is what the store keeps of a sidecar: how many heads fall due in
// which stretch of time.
type Sidecar struct {
	Since  int64                 // what the buckets count from, in nanoseconds since the Unix epoch
	Counts [SidecarBuckets]int64 // heads by bucket
}

// AppendSidecar appends the value of s. A count below 0 is taken for 0, and a
// Since below 0 is not allowed.
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
		dst = binary.AppendUvarint(dst, uint64(n))
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
		var n uint64
		if ok {
			n, rest, ok = cutUvarint(rest)
		}
		bucket += min(skipped, SidecarBuckets)
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

// maxSidecarCount is the largest count of a bucket, so that no sum of them
// overflows.
const maxSidecarCount = 1 << 48
