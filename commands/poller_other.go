//go:build !linux

package commands

// poller is for Linux alone.
type poller struct{}

func (*poller) wake() {}

// poll leaves c to its goroutine.
func (*Server) poll(*conn) bool { return false }
