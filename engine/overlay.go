package engine

import (
	"github.com/gabiondb/gabion/engine/limit"
	"github.com/gabiondb/gabion/ttl"
)

// overlay is what a shard has staged beside heads, request records and chunks,
// and what the store may not show yet: by round, the oldest first. It is
// guarded by its shard's mutex.
type overlay []*layer

// layer is what one round holds. Its maps are made when they are needed.
type layer struct {
	round   uint64
	windows map[string]stagedWindow   // by what the keys of their requests begin with
	chunks  map[string][]*limit.Chunk // by the keys of their lists
	purged  []purgedSlices
}

// purgedSlices tells that of the slices from first to just before end all
// records that were over at horizon are deleted, but for those that changed
// meanwhile: they are in the cache.
type purgedSlices struct {
	first, end int
	horizon    int64
}

// stagedWindow is what one round holds of one window of a quota.
type stagedWindow struct {
	cleared  bool                     // of all request records before these
	requests map[string]limit.Request // by id
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

// drop forgets what round has staged.
func (o *overlay) drop(round uint64) {
	if n := len(*o); n > 0 && (*o)[n-1].round == round {
		(*o)[n-1] = nil
		*o = (*o)[:n-1]
	}
}

// request looks for the record of the request id in window. Unless it is known
// the store has to be asked.
func (o overlay) request(window []byte, id string) (r limit.Request, known bool) {
	for i := len(o) - 1; i >= 0; i-- {
		w := o[i].windows[string(window)]
		if r, ok := w.requests[id]; ok || w.cleared {
			return r, true
		}
	}
	return limit.Request{}, false
}

// requestKeys appends the keys of the requests in window.
func (o overlay) requestKeys(dst [][]byte, window []byte) [][]byte {
	for _, y := range o {
		for id := range y.windows[string(window)].requests {
			dst = append(dst, append(window[:len(window):len(window)], id...))
		}
	}
	return dst
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

// chunksIn returns the ordinals under which chunks of the list under key have
// been staged in span.
func (o overlay) chunksIn(key []byte, span limit.Span) (ordinals []int64) {
	for _, y := range o {
		for _, c := range y.chunks[string(key)] {
			if first := c.Runs[0].Ordinal; span.From <= first && first < span.To {
				ordinals = append(ordinals, first)
			}
		}
	}
	return ordinals
}

// hasPurged tells whether the record with this deadline, which the store has
// shown of a key in slice that is not in the cache, is deleted by a round that
// comes after applied.
func (o overlay) hasPurged(applied uint64, slice uint16, deadline int64) bool {
	for _, y := range o {
		if y.round <= applied {
			continue
		}
		for _, p := range y.purged {
			if p.first <= int(slice) && int(slice) < p.end && ttl.Expired(deadline, p.horizon) {
				return true
			}
		}
	}
	return false
}

func (y *layer) addRequest(window []byte, id string, r limit.Request) {
	w := y.windows[string(window)]
	if w.requests == nil {
		w.requests = make(map[string]limit.Request)
		y.setWindow(window, w)
	}
	w.requests[id] = r
}

// clearRequests notes that all request records in window have been deleted.
func (y *layer) clearRequests(window []byte) {
	y.setWindow(window, stagedWindow{cleared: true})
}

func (y *layer) setWindow(window []byte, w stagedWindow) {
	if y.windows == nil {
		y.windows = make(map[string]stagedWindow)
	}
	y.windows[string(window)] = w
}

func (y *layer) addChunk(key []byte, c *limit.Chunk) {
	if y.chunks == nil {
		y.chunks = make(map[string][]*limit.Chunk)
	}
	y.chunks[string(key)] = append(y.chunks[string(key)], c)
}
