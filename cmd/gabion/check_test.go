package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

// damagedStore makes a store with two damages: the record of the key "user:42"
// is junk, and a key is none of ours.
func damagedStore(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	l, err := engine.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Throttle([]byte("user:42"), limit.PerDay(10), 1); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := pebble.Open(dir, &pebble.Options{FormatMajorVersion: pebble.FormatNewest, Logger: quiet{t}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}()
	it, err := db.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer it.Close()
	for it.First(); it.Valid(); it.Next() {
		if _, _, err := (codec.Keyspace{}).ParseHead(nil, it.Key()); err == nil {
			if err := db.Set(it.Key(), []byte("junk"), pebble.Sync); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := db.Set([]byte("zebra"), nil, pebble.Sync); err != nil {
		t.Fatal(err)
	}
	return dir
}

// quiet is a logger for Pebble that has nothing to say unless it has to.
type quiet struct{ t *testing.T }

func (quiet) Infof(string, ...any)                {}
func (q quiet) Errorf(format string, args ...any) { q.t.Logf(format, args...) }
func (q quiet) Fatalf(format string, args ...any) { q.t.Fatalf(format, args...) }

// runCheck runs gabion check and returns what it prints and its exit status.
func runCheck(args ...string) (stdout, stderr string, status int) {
	var out, err bytes.Buffer
	status = run(append([]string{"check"}, args...), &out, &err)
	return out.String(), err.String(), status
}

func TestCheckDamaged(t *testing.T) {
	dir := damagedStore(t)
	stdout, stderr, status := runCheck("--dir", dir)
	_, damages, found := strings.Cut(stdout, "unreadable           1\n\n")
	want := `damage: the store has a key that gabion does not write: 7a65627261
  what mends it: a backup of the store
damage: key "user:42": its record can't be read: codec: unknown version: 106, and 1 is the highest known
  what mends it: forget the key, with gabion del
`
	// Where there are sidecars, the one of the key says nothing true any more.
	damages, _, _ = strings.Cut(damages, "damage: sidecar")
	if !found || damages != want {
		t.Errorf("check prints\n%s\nwant at its end\n%s", stdout, want)
	}
	if status != exitError || stderr != "gabion: the store is damaged\n" {
		t.Errorf("check exits with %d and %q", status, stderr)
	}

	stdout, stderr, status = runCheck("--dir", dir, "--json")
	var r reportJSON
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatalf("%v: %s", err, stdout)
	}
	if r.Damaged < 2 || len(r.Damage) < 2 || r.Damage[0].Remedy != "restore" || r.Damage[1].Key != "user:42" || r.Damage[1].Remedy != "reset" {
		t.Errorf("check --json prints %s", stdout)
	}
	if status != exitError || stderr != "gabion: the store is damaged\n" {
		t.Errorf("check --json exits with %d and %q", status, stderr)
	}
}

func TestPrintReport(t *testing.T) {
	for _, c := range []struct {
		report engine.Report
		want   string
	}{
		{engine.Report{Damaged: 1, Damage: []engine.Damage{{What: "it can't be opened"}}},
			"damage: it can't be opened\n  what mends it: a backup of the store\n"},
		{engine.Report{Damaged: 3, Damage: []engine.Damage{{Key: []byte("a\xff"), What: "it is odd", Remedy: engine.RemedyNone}}},
			"damage: key \"a\\xff\": it is odd\n  nothing has to be done: no answer depends on it\n3 damages, 2 of them not named\n"},
	} {
		var b strings.Builder
		if err := printReport(&b, "dir", &c.report); err != nil || b.String() != c.want {
			t.Errorf("printReport prints %q, %v, want %q", b.String(), err, c.want)
		}
	}
}

func TestProgressBar(t *testing.T) {
	var b strings.Builder
	bar := progressBar{w: &b}
	for _, slices := range []int{1, engine.ScanEnd / 2, engine.ScanEnd/2 + 1, engine.ScanEnd} {
		bar.show(slices, engine.ScanEnd)
	}
	bar.clear()
	want := "\r[" + strings.Repeat("#", 20) + strings.Repeat(".", 20) + "]  50 %" +
		"\r[" + strings.Repeat("#", 40) + "] 100 %" +
		"\r\033[K"
	if b.String() != want {
		t.Errorf("the bar is drawn as %q, want %q", b.String(), want)
	}
}
