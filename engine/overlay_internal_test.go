package engine

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gabiondb/gabion/engine/limit"
)

// TestOverlay stages request records and chunks, ends windows and lists, and
// lets the store fall behind. What the overlay doesn't know the store has to.
func TestOverlay(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	var o overlay
	round, applied := uint64(1), uint64(0)
	truth, stored := map[string]limit.Request{}, []map[string]limit.Request{{}} // stored by round
	windows := [][]byte{[]byte("q1a"), []byte("q1b"), []byte("q2a")}
	known, cleared := 0, 0
	for range 20_000 {
		window, id := windows[rng.IntN(3)], fmt.Sprint(rng.IntN(8))
		name := string(window) + id
		switch n := rng.IntN(20); {
		case n < 8:
			if _, ok := truth[name]; ok {
				break
			}
			r := limit.Request{Cost: 1 + rng.Int64N(5), Used: 10}
			o.at(round).addRequest(window, id, r)
			truth[name] = r
		case n < 10:
			keys := map[string]bool{}
			for _, key := range o.requestKeys(nil, window) {
				keys[string(key)] = true
			}
			for key := range truth {
				if key[:3] != string(window) {
					continue
				}
				if _, ok := stored[applied][key]; !ok && !keys[key] {
					t.Fatalf("%q is neither stored nor among %v", key, keys)
				}
				delete(truth, key)
			}
			o.at(round).clearRequests(window)
			cleared++
		case n < 13:
			stored = append(stored, maps.Clone(truth))
			round++
		case n < 16:
			applied = min(round-1, applied+rng.Uint64N(3))
			o.prune(applied)
		}
		want, ok := truth[name]
		got, isKnown := o.request(window, id)
		if isKnown {
			known++
		} else {
			got = stored[applied][name]
		}
		if got != want {
			t.Fatalf("request(%q, %q) = %v, want %v %t", window, id, got, want, ok)
		}
	}
	if known < 1000 || cleared < 1000 {
		t.Errorf("%d were known and %d windows cleared, want 1000", known, cleared)
	}
}

// TestOverlayChunks seals chunks of a list and starts it anew.
func TestOverlayChunks(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 0))
	key := []byte("list")
	var o overlay
	round, applied := uint64(1), uint64(0)
	var live []*limit.Chunk
	stored := [][]*limit.Chunk{nil} // by round
	next, found := int64(0), 0
	for range 20_000 {
		switch n := rng.IntN(20); {
		case n < 8:
			c := &limit.Chunk{Runs: []limit.Run{{Stamp: rng.Int64(), Ordinal: next}}}
			next += 1 + rng.Int64N(4)
			c.Next = next
			o.at(round).addChunk(key, c)
			live = append(slices.Clone(live), c)
		case n < 9:
			staged := o.chunksIn(key, limit.Span{From: 0, To: next})
			for _, c := range live {
				if !slices.Contains(stored[applied], c) && !slices.Contains(staged, c.Runs[0].Ordinal) {
					t.Fatalf("chunk %d is neither stored nor among %v", c.Runs[0].Ordinal, staged)
				}
			}
			live, next = nil, 0
		case n < 13:
			stored = append(stored, live)
			round++
		case n < 16:
			applied = min(round-1, applied+rng.Uint64N(3))
			o.prune(applied)
		}
		for _, want := range live {
			got := o.chunk(key, want.Next-1)
			if got != nil {
				found++
			} else if slices.Contains(stored[applied], want) {
				got = want
			}
			if got != want {
				t.Fatalf("chunk(%d) = %+v, want %+v", want.Next-1, got, want)
			}
		}
	}
	if found < 1000 {
		t.Errorf("%d were found, want 1000", found)
	}
}
