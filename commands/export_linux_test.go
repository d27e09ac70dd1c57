package commands

const MaxLate = maxLate

// LateTurns returns how many turns of a poller are late, at most.
func (s *Server) LateTurns() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pollers {
		n = max(n, int(p.lateTurns.Load()))
	}
	return n
}

// Polled is what is known of a connection that a poller has.
type Polled struct {
	Active         int64 // when it last sent something
	Last           string
	Received, Sent uint64 // bytes of all connections
}

// Polled returns what is known of the only connection there is, if a poller has it.
func (s *Server) Polled() (p Polled, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.open {
		if _, ok = c.nc.(descriptor); ok {
			p = Polled{c.active.Load(), c.last.Load().name, s.stats.received.Load(), s.stats.sent.Load()}
		}
	}
	return p, ok
}
