package ttl_test

import (
	"bytes"
	"math"
	"reflect"
	"testing"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine/limit"
	"github.com/gabiondb/gabion/ttl"
)

const deadline = int64(1_700_000_060_000_000_000)

// states are heads of all kinds that are over at deadline.
var states = map[string]limit.State{
	"gcra":            {Kind: limit.KindGCRA, GCRA: limit.GCRAState{Deadline: deadline}},
	"gcra, fractions": {Kind: limit.KindGCRA, GCRA: limit.GCRAState{Deadline: deadline, Short: 2, Count: 3}},
	"quota":           {Kind: limit.KindQuota, Quota: limit.QuotaState{Deadline: deadline, Used: 2, Limit: 5, Window: 60_000_000_000}},
	"rolling": {Kind: limit.KindRolling, Rolling: &limit.RollingState{
		Deadline: deadline, Front: 40, First: 45, Next: 53,
		Runs: []limit.Run{{Stamp: deadline - 20, Ordinal: 50}, {Stamp: deadline - 10, Ordinal: 51}},
	}},
}

func TestFilter(t *testing.T) {
	for name, state := range states {
		record := codec.AppendState(nil, state)
		if s, err := codec.DecodeState(record); err != nil || !reflect.DeepEqual(s, state) {
			t.Fatalf("%s: DecodeState = %+v, %v", name, s, err)
		}
		keep, drop := ttl.Verdict{Deadline: deadline}, ttl.Verdict{Drop: true, Deadline: deadline, State: state}
		for _, test := range []struct {
			now  int64
			want ttl.Verdict
		}{
			{1, keep},
			{deadline - 1, keep},
			{deadline, drop}, // the first instant without it
			{deadline + 1, drop},
			{math.MaxInt64, drop},
		} {
			before := bytes.Clone(record)
			if got := ttl.Filter(record, test.now); !reflect.DeepEqual(got, test.want) {
				t.Errorf("%s: Filter at %d = %+v, want %+v", name, test.now, got, test.want)
			}
			if !bytes.Equal(record, before) {
				t.Errorf("%s: Filter has changed the record", name)
			}
		}
	}
}

// TestFilterKeepsDamaged cuts records short, lengthens them and changes their
// bytes. What can't be read is kept for ever.
func TestFilterKeepsDamaged(t *testing.T) {
	readable := 0 // deadlines of records that can't be read as a whole
	for name, state := range states {
		record := codec.AppendState(nil, state)
		damaged := [][]byte{nil, append(bytes.Clone(record), 0)}
		for i := range record {
			damaged = append(damaged, record[:i])
			for bit := range 8 {
				b := bytes.Clone(record)
				b[i] ^= 1 << bit
				damaged = append(damaged, b)
			}
		}
		for _, b := range damaged {
			if _, err := codec.DecodeState(b); err == nil {
				continue // it reads as something else
			}
			if d, err := codec.DecodeDeadline(b); err == nil && d <= deadline {
				readable++
			}
			if got := ttl.Filter(b, math.MaxInt64); !reflect.DeepEqual(got, ttl.Verdict{}) {
				t.Errorf("%s: Filter(%x) = %+v, want it kept", name, b, got)
			}
		}
	}
	if readable == 0 {
		t.Error("no record was damaged behind its deadline")
	}
}

// FuzzFilter holds the filter against what decodes the whole record.
func FuzzFilter(f *testing.F) {
	for _, state := range states {
		f.Add(codec.AppendState(nil, state), deadline-1)
		f.Add(codec.AppendState(nil, state), deadline)
	}
	f.Add([]byte{}, int64(1))
	f.Fuzz(func(t *testing.T, record []byte, now int64) {
		got := ttl.Filter(record, now)
		state, err := codec.DecodeState(record)
		over := err == nil && state.Deadline() <= now
		if got.Drop != over {
			t.Errorf("Filter(%x, %d) = %+v, and the record is %+v, %v", record, now, got, state, err)
		}
		if err == nil && got.Deadline != state.Deadline() {
			t.Errorf("Filter(%x, %d) = %+v, want deadline %d", record, now, got, state.Deadline())
		}
		if over && !reflect.DeepEqual(got.State, state) {
			t.Errorf("Filter(%x, %d) returns %+v, want %+v", record, now, got.State, state)
		}
		if !over && !reflect.DeepEqual(got.State, limit.State{}) {
			t.Errorf("Filter(%x, %d) keeps it and returns %+v", record, now, got.State)
		}
	})
}
