package limit

// State is what one key holds: its kind, and the state of that kind. The zero
// value is an absent key.
type State struct {
	Kind Kind
	GCRA GCRAState // where Kind is GCRA
}

// Deadline returns the first instant at which the state can no longer be told
// from an absent key, in nanoseconds since the Unix epoch; 0 for an absent key.
func (s State) Deadline() int64 {
	switch s.Kind {
	case GCRA:
		return s.GCRA.Deadline
	}
	return 0
}
