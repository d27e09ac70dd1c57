package engine_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/engine"
)

// logBlock is what a log is made of. Damage to a block is noticed when a later
// one tells that the damaged one had been synced.
const logBlock = 32 << 10

// TestDamagedFirstLog damages the log of a store that has just been made, one
// byte at a time. Either it is refused or all that was acknowledged is there.
//
// Two kinds of damage go unnoticed by Pebble and are left out: to the log's
// last block, which looks like a write that a power cut has left half done, and
// the one bit that makes the number of an even log odd in the header of a
// record, which looks like the log's end.
func TestDamagedFirstLog(t *testing.T) {
	const batch, damages = 16, 300
	rng := rand.New(rand.NewPCG(newSeed(t), 0))
	fs := vfs.NewCrashableMem()
	l := open(t, "store", engine.Options{FS: fs, Now: tickingClock()})
	charged := 0
	for logSize(t, fs) < 3*logBlock+logBlock/2 {
		var ops []engine.Op
		for range batch {
			ops = append(ops, engine.Op{Key: fmt.Appendf(nil, "key-%d", charged), Rate: bucket(10), N: 1})
			charged++
		}
		for _, r := range l.Do(ops, nil) {
			if r.Err != nil {
				t.Fatal(r.Err)
			}
		}
	}
	left := fs.CrashClone(vfs.CrashCloneCfg{})
	refused := 0
	for range damages {
		damaged := left.CrashClone(vfs.CrashCloneCfg{})
		at := rng.Int64N(3 * logBlock)
		damage(t, damaged, newestLog(t, damaged), at)
		l, err := engine.Open("store", &engine.Options{FS: damaged, Now: tickingClock()})
		if err != nil {
			refused++
			continue
		}
		if n, err := l.Len(); n != int64(charged) || err != nil {
			t.Errorf("byte %d damaged: Len = %d, %v, want %d", at, n, err, charged)
		}
		closeChecked(t, l)
	}
	if refused == 0 {
		t.Errorf("none of %d damaged stores was refused", damages)
	}
}

func logSize(t *testing.T, fs vfs.FS) int64 {
	t.Helper()
	info, err := fs.Stat(newestLog(t, fs))
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func newestLog(t *testing.T, fs vfs.FS) string {
	t.Helper()
	names, err := fs.List("store")
	if err != nil {
		t.Fatal(err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.HasSuffix(name, ".log") })
	return fs.PathJoin("store", slices.Max(names))
}

// damage flips every other bit of a byte of a file.
func damage(t *testing.T, fs vfs.FS, name string, at int64) {
	t.Helper()
	f, err := fs.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0b0101_0101
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
}
