package limit

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

func (x uint128) big() *big.Int {
	b := new(big.Int).SetUint64(x.hi)
	return b.Lsh(b, 64).Or(b, new(big.Int).SetUint64(x.lo))
}

// word returns a number of any magnitude, often at the end of a range.
func word(rng *rand.Rand) uint64 {
	ends := []uint64{0, 1, 2, math.MaxInt64 - 1, math.MaxInt64, math.MaxInt64 + 1, math.MaxUint64 - 1, math.MaxUint64}
	if rng.IntN(2) == 0 {
		return ends[rng.IntN(len(ends))]
	}
	return rng.Uint64() >> rng.IntN(64)
}

func TestUint128(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	words := new(big.Int).Lsh(big.NewInt(1), 64)
	fits := func(b *big.Int, bits int) bool { return b.Sign() >= 0 && b.BitLen() <= bits }
	divided := 0
	for range 100_000 {
		x, y, z := uint128{word(rng), word(rng)}, uint128{word(rng), word(rng)}, word(rng)
		if rng.IntN(4) == 0 {
			y.hi = x.hi
		}
		bx, by, bz := x.big(), y.big(), new(big.Int).SetUint64(z)

		if got, want := from64(z).big(), bz; got.Cmp(want) != 0 {
			t.Fatalf("from64(%d) = %d", z, got)
		}
		if got, want := mul(x.lo, z).big(), new(big.Int).Mul(from64(x.lo).big(), bz); got.Cmp(want) != 0 {
			t.Fatalf("mul(%d, %d) = %d, want %d", x.lo, z, got, want)
		}
		if got, want := x.cmp(y), bx.Cmp(by); got != want {
			t.Fatalf("%d.cmp(%d) = %d, want %d", bx, by, got, want)
		}
		want := bx
		if bx.Cmp(by) < 0 {
			want = by
		}
		if got := x.max(y).big(); got.Cmp(want) != 0 {
			t.Fatalf("%d.max(%d) = %d, want %d", bx, by, got, want)
		}
		if want := new(big.Int).Add(bx, by); fits(want, 128) {
			if got := x.add(y).big(); got.Cmp(want) != 0 {
				t.Fatalf("%d.add(%d) = %d, want %d", bx, by, got, want)
			}
		}
		if want := new(big.Int).Sub(bx, by); fits(want, 128) {
			if got := x.sub(y).big(); got.Cmp(want) != 0 {
				t.Fatalf("%d.sub(%d) = %d, want %d", bx, by, got, want)
			}
		}
		if z == 0 {
			continue
		}
		quotient, rest := new(big.Int).DivMod(bx, bz, new(big.Int))
		if fits(quotient, 64) {
			divided++
			if got := x.div(z); got != quotient.Uint64() {
				t.Fatalf("%d.div(%d) = %d, want %d", bx, z, got, quotient)
			}
		}
		if rest.Sign() > 0 {
			quotient.Add(quotient, big.NewInt(1))
		}
		if quotient.Cmp(words) < 0 {
			if got := x.divCeil(z); got != quotient.Uint64() {
				t.Fatalf("%d.divCeil(%d) = %d, want %d", bx, z, got, quotient)
			}
		}
	}
	if divided < 10_000 {
		t.Errorf("%d divisions tried, want 10000 or more", divided)
	}
}
