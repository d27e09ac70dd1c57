package engine

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// failure is the first error that means that the store can't be trusted any
// more. Once it is set nothing is served: Pebble would go on showing what
// never reached the disk.
type failure struct {
	err    atomic.Pointer[error]
	failed chan struct{} // closed once err is set
}

// set latches err, unless another was first, and returns the one that is.
func (f *failure) set(err error) error {
	err = storageError(err)
	if f.err.CompareAndSwap(nil, &err) {
		close(f.failed)
	}
	return f.get()
}

// get returns the failure, which wraps ErrStorage, or nil.
func (f *failure) get() error {
	if err := f.err.Load(); err != nil {
		return *err
	}
	return nil
}

// storageError makes err, unless it is nil, one that wraps ErrStorage.
func storageError(err error) error {
	if err == nil || errors.Is(err, ErrStorage) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrStorage, err)
}

// troubles are what Pebble meets with in the background and goes on trying.
type troubles struct {
	mu     sync.Mutex
	coming *trouble // guarded by mu
}

// A trouble is an error, which is there once met is closed.
type trouble struct {
	err error
	met chan struct{}
}

// next returns the trouble that is met next.
func (ts *troubles) next() *trouble {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.coming == nil {
		ts.coming = &trouble{met: make(chan struct{})}
	}
	return ts.coming
}

func (ts *troubles) meet(err error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t := ts.coming; t != nil { // somebody wants to know
		t.err, ts.coming = err, nil
		close(t.met)
	}
}
