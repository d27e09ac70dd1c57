package engine

import (
	"bytes"

	"github.com/gabiondb/gabion/engine/limit"
)

// overlay is what a shard has staged beside heads, request records and chunks,
// and what the store may not show yet: by round, the oldest first. It is
// guarded by its shard's mutex.
type overlay []*layer

// layer is what one round holds. Its maps are made when they are needed.
type layer struct {
	round    uint64
	requests map[string]limit.Request  // by their keys
	cleared  map[string]bool           // lower bounds of spans of request keys that were deleted before
	chunks   map[string][]*limit.Chunk // by the keys of their lists
}

// at returns the layer of round, which is the newest.
func (o *overlay) at(round uint64) *layer {
	if n := len(*o); n > 0 && (*o)[n-1].round == round {
		return (*o)[n-1]
	}
	y := &layer{round: round}
	*o = append(*o, y)
	return y
}

// prune drops what the store shows, now that round applied is.
func (o *overlay) prune(applied uint64) {
	for len(*o) > 0 && (*o)[0].round <= applied {
		(*o)[0] = nil
		*o = (*o)[1:]
	}
}

// request looks for the request record under key, in the span of its window
// that begins at lower. Unless it is known the store has to be asked.
func (o overlay) request(lower, key []byte) (r limit.Request, known bool) {
	for i := len(o) - 1; i >= 0; i-- {
		if r, ok := o[i].requests[string(key)]; ok {
			return r, true
		}
		if o[i].cleared[string(lower)] {
			return limit.Request{}, true
		}
	}
	return limit.Request{}, false
}

// chunk looks for the chunk of the list under key that holds ordinal. The
// newest that does is the list's: ordinals start anew when a list does.
func (o overlay) chunk(key []byte, ordinal int64) *limit.Chunk {
	for i := len(o) - 1; i >= 0; i-- {
		chunks := o[i].chunks[string(key)]
		for j := len(chunks) - 1; j >= 0; j-- {
			if c := chunks[j]; c.Runs[0].Ordinal <= ordinal && ordinal < c.Next {
				return c
			}
		}
	}
	return nil
}

func (y *layer) addRequest(key []byte, r limit.Request) {
	if y.requests == nil {
		y.requests = make(map[string]limit.Request)
	}
	y.requests[string(key)] = r
}

// clearRequests notes that all request records in the span from lower, to just
// before upper, have been deleted.
func (y *layer) clearRequests(lower, upper []byte) {
	for key := range y.requests {
		if k := []byte(key); bytes.Compare(lower, k) <= 0 && bytes.Compare(k, upper) < 0 {
			delete(y.requests, key)
		}
	}
	if y.cleared == nil {
		y.cleared = make(map[string]bool)
	}
	y.cleared[string(lower)] = true
}

func (y *layer) addChunk(key []byte, c *limit.Chunk) {
	if y.chunks == nil {
		y.chunks = make(map[string][]*limit.Chunk)
	}
	y.chunks[string(key)] = append(y.chunks[string(key)], c)
}
