package engine_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine"
)

// reopen closes l, whose store is in dir of opts.FS, and opens it again.
func reopen(t testing.TB, l *engine.Limiter, dir string, opts engine.Options) *engine.Limiter {
	t.Helper()
	closeChecked(t, l)
	return open(t, dir, opts)
}

// flush writes what Pebble has in memory to tables.
func flush(t testing.TB, l *engine.Limiter) {
	t.Helper()
	if err := l.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := l.DB().Flush(); err != nil {
		t.Fatal(err)
	}
}

// compact flushes, and has Pebble rewrite all tables into its last level.
func compact(t testing.TB, l *engine.Limiter) {
	t.Helper()
	flush(t, l)
	if err := l.DB().Compact(context.Background(), []byte{0}, []byte{0xff}, false); err != nil {
		t.Fatal(err)
	}
}

// contents returns all keys and values as they lie in db.
func contents(t testing.TB, db pebble.Reader) map[string]string {
	t.Helper()
	it, err := db.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer it.Close()
	all := map[string]string{}
	for it.First(); it.Valid(); it.Next() {
		all[string(it.Key())] = string(it.Value())
	}
	if err := it.Error(); err != nil {
		t.Fatal(err)
	}
	return all
}

// records returns the record of each key that lies in the store of l, expired
// or not.
func records(t testing.TB, l *engine.Limiter) map[string]string {
	t.Helper()
	all := map[string]string{}
	for head, record := range contents(t, l.DB()) {
		if _, key, err := (codec.Keyspace{}).ParseHead(nil, []byte(head)); err == nil {
			all[string(key)] = record
		}
	}
	return all
}

// storedMark returns the mark that lies in the store of l, 0 if none does.
func storedMark(t testing.TB, l *engine.Limiter) int64 {
	t.Helper()
	value, ok := contents(t, l.DB())[metaKey(codec.MetaMark)]
	if !ok {
		return 0
	}
	mark, err := codec.DecodeMark([]byte(value))
	if err != nil {
		t.Fatal(err)
	}
	return mark.Now
}

// metaKey returns the key of a meta value in a store of its own.
func metaKey(name string) string {
	return string(codec.Keyspace{}.AppendMeta(nil, name))
}

// edit changes the store in dir behind its limiter's back, while it is closed.
func edit(t testing.TB, fs vfs.FS, dir string, change func(*pebble.DB) error) {
	t.Helper()
	db, err := pebble.Open(dir, &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatNewest, Logger: quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := change(db); err != nil {
		t.Error(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// quiet is a logger for Pebble that says nothing, but ends the process as
// loudly as any.
type quiet struct{}

func (quiet) Infof(string, ...any)              {}
func (quiet) Errorf(string, ...any)             {}
func (quiet) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// nth returns the i-th of the keys that tests make up.
func nth(i int) []byte { return fmt.Appendf(nil, "key:%06d", i) }
