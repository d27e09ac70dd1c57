package codec

import (
	"fmt"
	"time"

	"github.com/gabiondb/gabion/engine/limit"
)

func appendQuota(dst []byte, s limit.QuotaState) []byte {
	dst = appendRecord(dst, 5, s.Deadline, limit.KindQuota)
	dst = appendUint(dst, uint64(s.Used))
	dst = appendUint(dst, uint64(s.Limit))
	return appendUint(dst, uint64(s.Window))
}

// quota reads the fields of a quota record that follow its kind.
func (r *reader) quota(deadline int64) limit.QuotaState {
	s := limit.QuotaState{
		Deadline: deadline,
		Used:     r.int(),
		Limit:    r.int(),
		Window:   time.Duration(r.int()),
	}
	if !s.Valid() {
		r.fail("impossible quota")
	}
	return s
}

// AppendRequest appends the value of the record of a request. It panics if r is
// the record of none.
func AppendRequest(dst []byte, r limit.Request) []byte {
	if !r.Valid() {
		panic(fmt.Sprintf("codec: no record for request %+v", r))
	}
	fields := byte(2)
	if r.Refunded {
		fields = 3
	}
	dst = append(dst, Version, codeFixarray|fields)
	dst = appendUint(dst, uint64(r.Cost))
	dst = appendUint(dst, uint64(r.Used))
	if r.Refunded {
		dst = append(dst, 1)
	}
	return dst
}

// DecodeRequest returns the record of a request that b holds; it is never that
// of none. Errors wrap ErrCorrupt or ErrVersion.
func DecodeRequest(b []byte) (limit.Request, error) {
	r := open(b)
	request := limit.Request{Cost: r.int(), Used: r.int()}
	if r.left > 0 {
		request.Refunded = r.flag("neither refunded nor another")
	}
	if !request.Valid() {
		r.fail("impossible request")
	}
	if err := r.finish(); err != nil {
		return limit.Request{}, err
	}
	return request, nil
}
