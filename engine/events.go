package engine

import (
	"errors"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// Events tells limiters in a store of the application what Pebble does there in the
// background. So the purge follows the store's flushes and compactions, and Compact hears
// of those that fail, which it would else wait for until its context ends: of all of
// them, since what others have in the store is compacted with it. The zero value is
// ready for use; one is for one store, and for all limiters in it:
//
//	events := new(engine.Events)
//	listener := events.Listener()
//	db, err := pebble.Open(dir, &pebble.Options{EventListener: &listener})
//	…
//	l, err := engine.New(db, &engine.Options{Prefix: []byte("limits/"), Events: events})
//
// To have a listener of its own as well the application uses
// pebble.TeeEventListener. That leaves BackgroundError and DataCorruption to the
// two, where Pebble would log the one and end the process for the other; Listener has
// neither.
type Events struct {
	mu        sync.Mutex
	followers []follower // guarded by mu
}

type follower struct {
	store   *store
	written func([]pebble.TableInfo)
}

// Listener returns the listener to open the store with.
func (e *Events) Listener() pebble.EventListener {
	return pebble.EventListener{
		FlushEnd:      func(info pebble.FlushInfo) { e.tell(info.Output, info.Err) },
		CompactionEnd: func(info pebble.CompactionInfo) { e.tell(info.Output.Tables, info.Err) },
	}
}

// tell tells the followers which tables were written, or why none were. Pebble
// waits for it.
func (e *Events) tell(tables []pebble.TableInfo, err error) {
	if err != nil && isRoutine(err) {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, f := range e.followers {
		if err != nil {
			f.store.trouble.meet(err)
		} else {
			f.written(tables)
		}
	}
}

// isRoutine tells whether err is how Pebble reports what is no trouble: a flush of
// which there was nothing to write, for which it exports no error, and a compaction
// that it begins anew.
func isRoutine(err error) bool {
	return errors.Is(err, pebble.ErrCancelledCompaction) || err.Error() == "pebble: empty table"
}

// add and remove do nothing where there are no events.
func (e *Events) add(s *store, written func([]pebble.TableInfo)) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.followers = append(e.followers, follower{s, written})
}

func (e *Events) remove(s *store) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.followers = slices.DeleteFunc(e.followers, func(f follower) bool { return f.store == s })
}
