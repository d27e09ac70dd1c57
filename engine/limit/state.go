package limit

// State is what one key holds: its kind, and the state of that kind. The zero
// value is an absent key.
type State struct {
	Kind  Kind
	GCRA  GCRAState  // where Kind is KindGCRA
	Quota QuotaState // where Kind is KindQuota

	// Rolling is set where Kind is KindRolling, and only there. It is a pointer
	// because the keys of other kinds, of which there may be millions in memory,
	// should not carry the size of a list.
	Rolling *RollingState
}

// Deadline returns the first instant at which the state can no longer be told
// from an absent key, in nanoseconds since the Unix epoch; 0 for an absent key.
func (s State) Deadline() int64 {
	switch s.Kind {
	case KindGCRA:
		return s.GCRA.Deadline
	case KindQuota:
		return s.Quota.Deadline
	case KindRolling:
		return s.Rolling.Deadline
	}
	return 0
}
