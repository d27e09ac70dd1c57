package engine_test

import (
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// TestOpenDefaults opens a store on the disk with no options, in a directory
// that has to be made.
func TestOpenDefaults(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	for range 2 {
		l, err := engine.Open(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		charge(t, l, 0, 1, limit.PerDay(10))
		if _, err := engine.Open(dir, nil); !errors.Is(err, engine.ErrInUse) {
			t.Errorf("Open of a store in use: %v", err)
		}
		closeChecked(t, l)
	}
	opts := engine.Options{}
	l, err := engine.Open(dir, &opts)
	if err != nil {
		t.Fatal(err)
	}
	defer closeChecked(t, l)
	if opts.SyncInterval != 0 || opts.CacheSize != 0 || opts.BlockCacheSize != 0 || opts.Logger != nil || opts.FS != nil {
		t.Errorf("Open has changed the options to %+v", opts)
	}
	if d, err := l.Probe(nth(0), limit.PerDay(10), 0); d.Remaining != 8 || err != nil {
		t.Errorf("Probe = %+v, %v, want 8 remaining", d, err)
	}
}

// TestOptionsOutOfRange has Open refuse what makes no sense, and make no store.
func TestOptionsOutOfRange(t *testing.T) {
	for name, opts := range map[string]engine.Options{
		"Durability":       {Durability: engine.Never + 1},
		"SyncInterval":     {SyncInterval: -1},
		"CacheSize":        {CacheSize: -1},
		"BlockCacheSize":   {BlockCacheSize: -1},
		"QuotaMaxLimit":    {QuotaMaxLimit: engine.MaxLimit + 1},
		"QuotaMaxWindow":   {QuotaMaxWindow: engine.MaxWindow + 1},
		"RollingMaxWindow": {RollingMaxWindow: -1},
	} {
		fs := vfs.NewMem()
		opts.FS = fs
		_, err := engine.Open("store", &opts)
		if !errors.Is(err, limit.ErrInvalid) || !strings.Contains(err.Error(), "option "+name+" ") {
			t.Errorf("Open = %v, want %v that names %s", err, limit.ErrInvalid, name)
		}
		if _, err := fs.Stat("store"); err == nil {
			t.Errorf("Open with a wrong %s has made a directory", name)
		}
	}
}

// TestOpenByOtherNames opens a store on the disk that is open already, by
// another name of its directory.
func TestOpenByOtherNames(t *testing.T) {
	t.Chdir(t.TempDir())
	open(t, "store", engine.Options{FS: vfs.Default})
	if err := os.Symlink("store", "link"); err != nil {
		t.Skip(err)
	}
	abs, err := filepath.Abs("store")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{abs, "./store", "store/", "../" + filepath.Base(filepath.Dir(abs)) + "/store", "link"} {
		if _, err := engine.Open(dir, nil); !errors.Is(err, engine.ErrInUse) {
			t.Errorf("Open(%q) of a store in use: %v", dir, err)
		}
	}
}

// TestOpenInUse opens a store in memory twice.
func TestOpenInUse(t *testing.T) {
	opts := engine.Options{FS: vfs.NewMem()}
	l := open(t, "store", opts)
	if _, err := engine.Open("store", &opts); !errors.Is(err, engine.ErrInUse) {
		t.Errorf("Open of a store in use: %v", err)
	}
	charge(t, l, 0, 1, limit.PerDay(10))
	open(t, "other", opts)
	reopen(t, l, "store", opts)
}

// refused has Open refuse the store in dir with want, and leave nothing behind:
// no lock, no goroutine, no other byte in the store.
func refused(t *testing.T, fs vfs.FS, dir string, want error) {
	t.Helper()
	var before, after map[string]string
	look := func(all *map[string]string) {
		edit(t, fs, dir, func(db *pebble.DB) error {
			*all = contents(t, db)
			return nil
		})
	}
	look(&before)
	others := goleak.IgnoreCurrent()
	_, err := engine.Open(dir, &engine.Options{FS: fs})
	if !errors.Is(err, want) {
		t.Errorf("Open: %v, want %v", err, want)
	}
	if found := goleak.Find(others); found != nil {
		t.Errorf("Open: %v, and leaves goroutines: %v", err, found)
	}
	if look(&after); !maps.Equal(before, after) {
		t.Errorf("Open: %v, and has changed the store", err)
	}
}

func TestOpenForeignStore(t *testing.T) {
	fs := vfs.NewMem()
	opts := &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatMinSupported, Logger: quiet{}}
	db, err := pebble.Open("theirs", opts)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Set([]byte("theirs"), []byte("value"), pebble.Sync); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := engine.Open("theirs", &engine.Options{FS: fs}); !errors.Is(err, engine.ErrForeign) {
			t.Errorf("Open: %v, want %v", err, engine.ErrForeign)
		}
		d, err := pebble.Peek("theirs", fs)
		if err != nil {
			t.Fatal(err)
		}
		if d.FormatMajorVersion != pebble.FormatMinSupported {
			t.Errorf("the store now has the format %v", d.FormatMajorVersion)
		}
	}
	refused(t, fs, "theirs", engine.ErrForeign)
}

// TestOpenDamagedStore opens stores whose identity or mark is not what this
// version writes. Mended, each opens again.
func TestOpenDamagedStore(t *testing.T) {
	for _, c := range []struct {
		name, key, value string
		want             error
	}{
		{"a newer format", codec.MetaIdentity, string(codec.AppendIdentity(nil, codec.Identity{Format: codec.Format + 1})), engine.ErrNewerFormat},
		{"a newer version", codec.MetaIdentity, string([]byte{codec.Version + 1, 0x90}), engine.ErrNewerFormat},
		{"another writer", codec.MetaIdentity, "\x01\x93\xa6nobody\x01\x02", engine.ErrForeign},
		{"an empty identity", codec.MetaIdentity, "", engine.ErrForeign},
		{"no identity", codec.MetaIdentity, "delete", engine.ErrForeign},
		{"an empty mark", codec.MetaMark, "", engine.ErrCorrupt},
		{"a mark of no number", codec.MetaMark, "\x01\x91\xc0", engine.ErrCorrupt},
	} {
		t.Run(c.name, func(t *testing.T) {
			opts := engine.Options{FS: vfs.NewMem()}
			l := open(t, "store", opts)
			charge(t, l, 0, 1, limit.PerDay(10))
			closeChecked(t, l)

			key := []byte(metaKey(c.key))
			var whole string
			edit(t, opts.FS, "store", func(db *pebble.DB) error {
				whole = contents(t, db)[string(key)]
				if c.value == "delete" {
					return db.Delete(key, pebble.Sync)
				}
				return db.Set(key, []byte(c.value), pebble.Sync)
			})
			refused(t, opts.FS, "store", c.want)
			edit(t, opts.FS, "store", func(db *pebble.DB) error {
				return db.Set(key, []byte(whole), pebble.Sync)
			})
			l = open(t, "store", opts)
			if d, err := l.Probe(nth(0), limit.PerDay(10), 0); d.Remaining != 9 || err != nil {
				t.Errorf("Probe = %+v, %v, want 9 remaining", d, err)
			}
		})
	}
}

// TestOpenOtherDirectory opens directories that are in use for something else.
func TestOpenOtherDirectory(t *testing.T) {
	for _, files := range []string{"notes.txt", "app.log", "LOCKSMITHS", "LOCK data.db", "000001.sst", "1.log CURRENT"} {
		t.Run(files, func(t *testing.T) {
			dir := t.TempDir()
			for _, name := range strings.Fields(files) {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			before := list(t, vfs.Default, dir)
			if _, err := engine.Open(dir, nil); !errors.Is(err, engine.ErrForeign) {
				t.Errorf("Open: %v, want %v", err, engine.ErrForeign)
			}
			if after := list(t, vfs.Default, dir); !maps.Equal(before, after) {
				t.Errorf("Open has left %q, want %q", after, before)
			}
		})
	}
}

// list returns the files in dir and what they hold.
func list(t *testing.T, fs vfs.FS, dir string) map[string]string {
	t.Helper()
	names, err := fs.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, name := range names {
		f, err := fs.Open(fs.PathJoin(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(f)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		all[name] = string(b)
	}
	return all
}

// TestOpenNoDirectory opens what can't be a directory.
func TestOpenNoDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	others := goleak.IgnoreCurrent()
	for _, dir := range []string{file, filepath.Join(file, "below")} {
		if l, err := engine.Open(dir, nil); err == nil {
			t.Errorf("Open(%q) succeeds", dir)
			l.Close()
		}
	}
	if found := goleak.Find(others); found != nil {
		t.Error(found)
	}
}

// TestCorruptRecord damages the record of one key.
func TestCorruptRecord(t *testing.T) {
	opts := engine.Options{FS: vfs.NewMem()}
	l := open(t, "store", opts)
	rate := limit.PerDay(10)
	charge(t, l, 0, 20, rate)
	closeChecked(t, l)
	edit(t, opts.FS, "store", func(db *pebble.DB) error {
		for head := range contents(t, db) {
			if _, key, err := (codec.Keyspace{}).ParseHead(nil, []byte(head)); err == nil && string(key) == string(nth(7)) {
				return db.Set([]byte(head), []byte{codec.Version, 0x91, 0xc0}, pebble.Sync)
			}
		}
		return errors.New("the key is not there")
	})

	l, err := engine.Open("store", &opts)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // unchecked: it is damaged
	for i := range 20 {
		ops := []engine.Op{
			{Verb: engine.OpProbe, Key: nth(i), Rate: rate, N: 1},
			{Verb: engine.OpStat, Key: nth(i)},
			{Verb: engine.OpThrottle, Key: nth(i), Rate: rate, N: 1},
		}
		for _, r := range l.Do(ops, nil) {
			if i == 7 && !errors.Is(r.Err, engine.ErrCorrupt) || i != 7 && r.Err != nil {
				t.Errorf("key %d: %v", i, r.Err)
			}
		}
	}
	kinds := make(map[string]int)
	if _, err := l.Scan(0, 100, func(_ []byte, s engine.Stat) { kinds[s.Kind.String()]++ }); err != nil || kinds["gcra"] != 19 || kinds["unknown"] != 1 {
		t.Errorf("Scan finds %v, %v, want 19 of gcra and 1 unknown", kinds, err)
	}
	if n, err := l.Len(); n != 20 || err != nil {
		t.Errorf("Len = %d, %v, want 20", n, err)
	}
	if err := l.Failure(); err != nil {
		t.Errorf("Failure = %v, want none", err)
	}
	for _, want := range []bool{true, false} {
		if found, err := l.Reset(nth(7)); found != want || err != nil {
			t.Errorf("Reset = %t, %v, want %t", found, err, want)
		}
	}
	if d, err := l.Throttle(nth(7), rate, 1); d.Remaining != 9 || err != nil {
		t.Errorf("Throttle after Reset = %+v, %v, want 9 remaining", d, err)
	}
	if err := l.Check(); err != nil {
		t.Errorf("the store is damaged after Reset: %v", err)
	}
}
