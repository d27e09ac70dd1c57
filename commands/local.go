package commands

import (
	"bufio"
	"bytes"
	"errors"
	"sync"

	"github.com/gabiondb/gabion/commands/internal/resp"
	"github.com/gabiondb/gabion/engine"
)

// Local carries out commands on a limiter of this process, as a Server would
// for a Client, but without a connection and a password. Its methods are safe
// for concurrent use, but one call waits for another.
type Local struct {
	mu      sync.Mutex // guards session
	session *session
}

// NewLocal returns a Local for l, which stays the caller's to close.
func NewLocal(l *engine.Limiter) *Local {
	s := NewServer(l, Config{}).newSession("local", "local")
	s.run = new(run)
	return &Local{session: s}
}

// Do carries out a command and returns its reply, as Client.Do does.
func (l *Local) Do(args ...string) (any, error) {
	if len(args) == 0 {
		return nil, errors.New("commands: no command")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	request := make([][]byte, len(args))
	for i, arg := range args {
		request[i] = []byte(arg)
	}
	s := l.session
	s.out = s.out[:0]
	s.do(request)
	s.settle()
	reply, err := resp.ReadReply(bufio.NewReader(bytes.NewReader(s.out)))
	if err != nil {
		return nil, err
	}
	return split(reply)
}
