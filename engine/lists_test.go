package engine_test

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

func TestDefine(t *testing.T) {
	l := open(t, "store", engine.Options{RollingMaxWindow: time.Hour})
	w := limit.Rolling{Limit: 3, Window: time.Minute, Pause: true}
	other := w
	other.Pause = false
	for _, c := range []struct {
		name string
		w    limit.Rolling
		want error
	}{
		{"mail", w, nil},
		{"mail", w, nil},
		{"mail", other, engine.ErrDefined},
		{"sms", other, nil},
		{"off", limit.Rolling{Limit: -1, Window: time.Hour}, nil},
		{"\x00", w, nil},
		{strings.Repeat("x", engine.MaxKeyLen), w, nil},
		{strings.Repeat("x", engine.MaxKeyLen+1), w, engine.ErrInvalidKey},
		{"", w, engine.ErrInvalidKey},
		{"long", limit.Rolling{Limit: 3, Window: time.Hour + 1}, limit.ErrInvalid},
		{"short", limit.Rolling{Limit: 3}, limit.ErrInvalid},
		{"wide", limit.Rolling{Limit: limit.MaxLimit + 1, Window: time.Hour}, limit.ErrInvalid},
	} {
		before, undefined := l.Named(c.name)
		if err := l.Define(c.name, c.w); !errors.Is(err, c.want) {
			t.Errorf("Define(%.9q, %+v) = %v, want %v", c.name, c.w, err, c.want)
		}
		switch list, err := l.Named(c.name); {
		case undefined == nil:
			if list != before || err != nil {
				t.Errorf("Define has changed %q", c.name)
			}
		case c.want != nil:
			if list != nil || !errors.Is(err, engine.ErrUndefined) {
				t.Errorf("Named(%.9q) = %v, %v, want %v", c.name, list, err, engine.ErrUndefined)
			}
		case err != nil || list.Policy() != c.w:
			t.Errorf("Named(%.9q) = %+v, %v, want policy %+v", c.name, list, err, c.w)
		}
	}
}

// TestList uses a list by its name and by its key.
func TestList(t *testing.T) {
	clock := newManualClock(epoch)
	opts := engine.Options{Now: clock.Now, FS: vfs.NewMem()}
	l := open(t, "store", opts)
	w := limit.Rolling{Limit: 2, Window: time.Minute}
	define := func() *engine.List {
		if err := l.Define("mail", w); err != nil {
			t.Fatal(err)
		}
		list, err := l.Named("mail")
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	list := define()
	want := limit.Admission{Allowed: true, Count: 1, Limit: 2}
	if got, err := list.Allow(); got != want || err != nil {
		t.Errorf("Allow = %+v, %v, want %+v", got, err, want)
	}
	if got, err := list.Increment(2); got != 3 || err != nil {
		t.Errorf("Increment(2) = %d, %v, want 3", got, err)
	}
	clock.Advance(time.Second)
	if got, err := l.Wait([]byte("mail"), w); got != 59*time.Second || err != nil {
		t.Errorf("Wait = %v, %v, want 59s", got, err)
	}

	// The events are kept, the name is not.
	closed := list
	l = reopen(t, l, "store", opts)
	if _, err := closed.Peek(); err != engine.ErrClosed {
		t.Errorf("Peek of a closed limiter's list = %v, want %v", err, engine.ErrClosed)
	}
	if _, err := l.Named("mail"); !errors.Is(err, engine.ErrUndefined) {
		t.Errorf("Named = %v, want %v", err, engine.ErrUndefined)
	}
	list = define()
	if got, err := list.Peek(); got != 2 || err != nil {
		t.Errorf("Peek = %d, %v, want 2", got, err)
	}
	if got, err := list.Wait(); got != 59*time.Second || err != nil {
		t.Errorf("Wait = %v, %v, want 59s", got, err)
	}
	for _, want := range []bool{true, false} {
		if got, err := list.Reset(); got != want || err != nil {
			t.Errorf("Reset = %t, %v, want %t", got, err, want)
		}
	}
	if got, err := l.Peek([]byte("mail"), w); got != 0 || err != nil {
		t.Errorf("Peek = %d, %v, want 0", got, err)
	}
}

// TestDefineRace has many callers define one name with two policies, one of
// which is then everybody's.
func TestDefineRace(t *testing.T) {
	l := open(t, "store", engine.Options{})
	policies := []limit.Rolling{{Limit: 1, Window: time.Hour}, {Limit: 2, Window: time.Hour}}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			mine := policies[i%2]
			err := l.Define("mail", mine)
			list, notNamed := l.Named("mail")
			if notNamed != nil || (err == nil) != (list.Policy() == mine) || err != nil && !errors.Is(err, engine.ErrDefined) {
				t.Errorf("Define(%+v) = %v, and then Named = %+v, %v", mine, err, list, notNamed)
			}
		})
	}
	wg.Wait()
}
