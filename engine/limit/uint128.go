package limit

import "math/bits"

// uint128 is an unsigned integer of 128 bits. Products of two int64 take 126,
// which leaves room for the one sum that Take makes of them.
type uint128 struct{ hi, lo uint64 }

func from64(x uint64) uint128 { return uint128{lo: x} }

func mul(x, y uint64) uint128 {
	hi, lo := bits.Mul64(x, y)
	return uint128{hi, lo}
}

func (x uint128) add(y uint128) uint128 {
	lo, carry := bits.Add64(x.lo, y.lo, 0)
	hi, _ := bits.Add64(x.hi, y.hi, carry)
	return uint128{hi, lo}
}

// sub returns x - y, which must not be negative.
func (x uint128) sub(y uint128) uint128 {
	lo, borrow := bits.Sub64(x.lo, y.lo, 0)
	hi, _ := bits.Sub64(x.hi, y.hi, borrow)
	return uint128{hi, lo}
}

func (x uint128) cmp(y uint128) int {
	switch {
	case x == y:
		return 0
	case x.hi < y.hi || x.hi == y.hi && x.lo < y.lo:
		return -1
	}
	return 1
}

func (x uint128) max(y uint128) uint128 {
	if x.cmp(y) < 0 {
		return y
	}
	return x
}

// div returns x / y rounded down. The quotient must fit in 64 bits.
func (x uint128) div(y uint64) uint64 {
	q, _ := bits.Div64(x.hi, x.lo, y)
	return q
}

// divCeil returns x / y rounded up. The quotient must fit in 64 bits.
func (x uint128) divCeil(y uint64) uint64 {
	q, r := bits.Div64(x.hi, x.lo, y)
	if r != 0 {
		q++
	}
	return q
}
