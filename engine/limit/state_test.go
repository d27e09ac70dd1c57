package limit_test

import (
	"testing"

	"github.com/gabiondb/gabion/engine/limit"
)

func TestState(t *testing.T) {
	full := limit.State{
		GCRA:    limit.GCRAState{Deadline: 7, Short: 1, Count: 2},
		Quota:   limit.QuotaState{Deadline: 8, Used: 1, Limit: 1, Window: 1},
		Rolling: &limit.RollingState{Deadline: 9, Next: 1, Runs: []limit.Run{{Stamp: 1}}},
	}
	for _, test := range []struct {
		kind     limit.Kind
		deadline int64
		name     string
	}{
		{limit.KindNone, 0, "none"},
		{limit.KindGCRA, 7, "gcra"},
		{limit.KindQuota, 8, "quota"},
		{limit.KindRolling, 9, "rolling"},
		{255, 0, "unknown"},
	} {
		s := full
		s.Kind = test.kind
		if got := s.Deadline(); got != test.deadline {
			t.Errorf("Deadline() of kind %d = %d, want %d", test.kind, got, test.deadline)
		}
		if got := test.kind.String(); got != test.name {
			t.Errorf("Kind(%d).String() = %q, want %q", test.kind, got, test.name)
		}
	}
	if got := (limit.State{}).Deadline(); got != 0 {
		t.Errorf("Deadline() of the zero state = %d, want 0", got)
	}
}
