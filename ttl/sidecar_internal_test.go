package ttl

import (
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gabiondb/gabion/codec"
)

// TestBuckets looks at both ends of each bucket: they begin where the one
// before ends, and the last ends with time.
func TestBuckets(t *testing.T) {
	const since = 1_000
	for i := range codec.SidecarBuckets {
		start := bucketStart(i)
		if i > 0 && start <= bucketStart(i-1) {
			t.Errorf("bucket %d begins %d ns after since, bucket %d begins %d", i, start, i-1, bucketStart(i-1))
		}
		if start > math.MaxInt64-since {
			continue
		}
		if got := bucketOf(since, since+start); got != i {
			t.Errorf("bucketOf(%d, %d) = %d, want %d, which begins there", since, since+start, got, i)
		}
		if got := bucketOf(since, since+start-1); i > 0 && got != i-1 {
			t.Errorf("bucketOf(%d, %d) = %d, want %d, which ends there", since, since+start-1, got, i-1)
		}
	}
	for _, test := range []struct {
		since, deadline int64
		want            int
	}{
		{0, 1, 0},
		{0, math.MaxInt64, codec.SidecarBuckets - 1},
		{1, math.MaxInt64, codec.SidecarBuckets - 1},
		{100, 1, 0},
		{100, 99, 0},
		{math.MaxInt64, 1, 0},
		{math.MaxInt64, math.MaxInt64, 0},
		{math.MaxInt64 - 1<<unitBits, math.MaxInt64, 1},
	} {
		if got := bucketOf(test.since, test.deadline); got != test.want {
			t.Errorf("bucketOf(%d, %d) = %d, want %d", test.since, test.deadline, got, test.want)
		}
	}
}

// A deadline is known to a quarter of its distance, or to the width of the first
// buckets.
func TestBucketWidth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		since := rapid.Int64Range(0, math.MaxInt64).Draw(t, "since")
		deadline := rapid.Int64Range(since, math.MaxInt64).Draw(t, "deadline")
		i := bucketOf(since, deadline)
		if i < 0 || i >= codec.SidecarBuckets {
			t.Fatalf("bucketOf(%d, %d) = %d, outside of 0..%d", since, deadline, i, codec.SidecarBuckets-1)
		}
		distance := deadline - since
		if off := distance - bucketStart(i); off < 0 || off >= max(1<<unitBits, distance/4+1) {
			t.Fatalf("bucket %d begins %d ns after since, and holds what is %d after it", i, bucketStart(i), distance)
		}
	})
}

// TestGolden holds the buckets against the bytes in codec's testdata that say
// which deadlines they count.
func TestGolden(t *testing.T) {
	text, err := os.ReadFile("../codec/testdata/v1.txt")
	if err != nil {
		t.Fatal(err)
	}
	examples := 0
	for line := range strings.Lines(string(text)) {
		value, meaning, _ := strings.Cut(strings.TrimSpace(line), " = sidecar since ")
		head, deadlines, ok := strings.Cut(meaning, " deadlines ")
		if !ok {
			continue
		}
		examples++
		var since int64
		if _, err := fmt.Sscan(head, &since); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		s := Sidecar{Sidecar: codec.Sidecar{Since: since}}
		for _, item := range strings.Fields(deadlines) {
			var n, deadline int64
			if _, err := fmt.Sscanf(item, "%d@%d", &n, &deadline); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			for range n {
				s.Add(deadline)
			}
		}
		if got := hex.EncodeToString(codec.AppendSidecar(nil, &s.Sidecar)); got != strings.ReplaceAll(value, " ", "") {
			t.Errorf("%s: the value is %s", strings.TrimSpace(line), got)
		}
	}
	if examples < 5 {
		t.Errorf("%d examples, want 5 or more", examples)
	}
}
