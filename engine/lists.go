package engine

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/gabiondb/gabion/engine/limit"
)

var (
	// ErrDefined is returned by Define for a name that has another policy.
	ErrDefined = errors.New("engine: name is defined with another policy")

	// ErrUndefined is returned by Named for a name that has no policy.
	ErrUndefined = errors.New("engine: name is not defined")
)

// lists holds the policies that were defined by name.
type lists struct {
	mu     sync.RWMutex
	byName map[string]*List
}

// A List is a rolling list together with its policy. Its methods are those of
// Limiter for that key and policy.
type List struct {
	l      *Limiter
	key    []byte
	policy limit.Rolling
}

// Define gives the rolling list whose key is name a policy, so that it is
// written down once and not at every call. It holds as long as the Limiter is
// open, and is not kept in the store. To define a name again with the same
// policy does nothing.
//
// Errors: ErrInvalidKey, ErrDefined, limit.ErrInvalid.
func (l *Limiter) Define(name string, w limit.Rolling) error {
	if err := checkKey([]byte(name)); err != nil {
		return err
	}
	if err := l.checkRolling(w); err != nil {
		return err
	}
	l.lists.mu.Lock()
	defer l.lists.mu.Unlock()
	if old, ok := l.lists.byName[name]; ok {
		if old.policy != w {
			return fmt.Errorf("%w: %q", ErrDefined, name)
		}
		return nil
	}
	if l.lists.byName == nil {
		l.lists.byName = make(map[string]*List)
	}
	l.lists.byName[name] = &List{l: l, key: []byte(name), policy: w}
	return nil
}

// Named returns the list that was defined by this name. The error is
// ErrUndefined if none was.
func (l *Limiter) Named(name string) (*List, error) {
	l.lists.mu.RLock()
	defer l.lists.mu.RUnlock()
	if list, ok := l.lists.byName[name]; ok {
		return list, nil
	}
	return nil, fmt.Errorf("%w: %q", ErrUndefined, name)
}

// Policy returns the list's policy.
func (n *List) Policy() limit.Rolling { return n.policy }

// Allow records an event if there is room for it.
func (n *List) Allow() (limit.Admission, error) { return n.l.Allow(n.key, n.policy) }

// Increment records as many of amount events as there is room for.
func (n *List) Increment(amount int64) (total int64, err error) {
	return n.l.Increment(n.key, n.policy, amount)
}

// Peek counts the live events.
func (n *List) Peek() (int64, error) { return n.l.Peek(n.key, n.policy) }

// Wait tells how long until there is room.
func (n *List) Wait() (time.Duration, error) { return n.l.Wait(n.key, n.policy) }

// Reset forgets all events, and tells whether there were any.
func (n *List) Reset() (bool, error) { return n.l.Reset(n.key) }
