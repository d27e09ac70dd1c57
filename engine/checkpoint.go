package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// partial is what the name of a store ends with while Checkpoint or Restore is
// making it.
const partial = ".partial"

// whole returns an error if dir has the name of a store that is being made. It
// may look like a whole one.
func whole(dir string, fsys vfs.FS) error {
	if dir = fsys.PathJoin(dir); strings.HasSuffix(dir, partial) {
		return fmt.Errorf("%w: %s is a copy that is being made, or was cut off and is to be removed", ErrForeign, dir)
	}
	return nil
}

// Checkpoint makes a copy of the store in dir, which must not exist or be empty
// (then it is made anew), and not lie in the store. The copy holds everything
// that was answered before Checkpoint was called, whatever the durability, and of
// what is changed meanwhile everything up to some instant. Calls go on meanwhile.
// The copy is a store like one that a crash has left, for Open, Check and Restore.
//
// Tables are shared with the copy, by links, where the file system can do that:
// then making it takes next to no time and no space at first, but damage to such
// a table is damage to both. Nothing that is done to either changes the other.
//
// The copy is made under the name of dir with ".partial" behind it, which must
// not be there either, and gets its own when it is complete and on disk. So dir
// never holds a part of one. What a crash leaves under the other name is to be
// removed. A ctx that ends makes Checkpoint give up, with ctx's error. One that
// fails leaves nothing, as far as the file system lets it, and is no failure of
// the store.
//
// In a store of an application's it returns errors.ErrUnsupported: what Sync has
// seen to the disk is in the checkpoints that the application makes.
func (l *Limiter) Checkpoint(ctx context.Context, dir string) error {
	if !l.calls.enter() {
		return ErrClosed
	}
	defer l.calls.exit()
	if l.lent {
		return fmt.Errorf("engine: make a checkpoint: %w: the store is the application's", errors.ErrUnsupported)
	}
	if err := l.checkpoint.lock(ctx); err != nil {
		return err
	}
	defer l.checkpoint.unlock()
	// The store has yet to get what was answered without waiting for it.
	if err := l.Sync(); err != nil {
		return err
	}
	err := makeStore(l.opts.FS, dir, l.store.dir, func(temp string) error {
		err := l.copyTo(ctx, temp)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		// What Pebble has copied may be less than it believes to be there.
		if failed := l.failure.get(); failed != nil {
			return failed
		}
		return err
	})
	if err != nil && !errors.Is(err, ErrStorage) {
		err = fmt.Errorf("engine: make a checkpoint: %w", err)
	}
	return err
}

// copyTo has Pebble make a checkpoint in dir.
func (l *Limiter) copyTo(ctx context.Context, dir string) error {
	if !l.disk.manifest.Load() {
		if err := l.beginManifest(); err != nil {
			return err
		}
	}
	return l.disk.setAside(ctx, dir, func() error { return l.db.Checkpoint(dir) })
}

// beginManifest has Pebble begin a manifest. When it opens a store without a log,
// which is what a crash leaves while it opens one, it goes on without, and a
// checkpoint would get an empty one, until the first table is written.
func (l *Limiter) beginManifest() error {
	unused := l.keys.AppendMeta(nil, "")
	if err := l.db.Delete(unused, pebble.NoSync); err != nil {
		return storageError(err)
	}
	return l.flush()
}

// Restore makes a store in dir, which must not exist or be empty, from the one
// in backup, which nobody may have open meanwhile: one that Checkpoint has made,
// or any other. It copies the files, without links, checks the copy, as Check
// does, and reports what it holds. The backup is not changed. dir never holds a
// part of a store: the copy is made under another name, as by Checkpoint.
//
// A backup that is damaged is refused, with ErrDamaged and a report of what is
// wrong with it, unless none of that needs a remedy.
//
// Of opts it takes what Check takes. progress, unless it is nil, is called with
// how much is done, and of how much, which stays the same. A ctx that ends makes
// Restore give up, between two files or when all is checked, with ctx's error.
//
// Other errors: limit.ErrInvalid, ErrInUse, ErrForeign, ErrNewerFormat, or what
// Pebble and the file system say.
func Restore(ctx context.Context, backup, dir string, opts *Options, progress func(done, of int)) (Report, error) {
	o, err := opts.complete()
	if err != nil {
		return Report{}, err
	}
	if progress == nil {
		progress = func(int, int) {}
	}
	r, err := restore(ctx, backup, dir, &o, progress)
	if err != nil {
		return r, fmt.Errorf("engine: restore %s: %w", backup, err)
	}
	return r, nil
}

func restore(ctx context.Context, backup, dir string, opts *Options, progress func(done, of int)) (r Report, err error) {
	fsys := opts.FS
	if fsys == defaultFS {
		if backup, err = realPath(backup); err != nil {
			return r, err
		}
	}
	if err := whole(backup, fsys); err != nil {
		return r, err
	}
	if found, err := peek(backup, fsys); err != nil {
		return r, err
	} else if !found.Exists {
		return r, fmt.Errorf("%w: there is none in %s", ErrForeign, backup)
	}
	// Whoever opens a store makes this file. Where it is missing nobody has the
	// backup open, and to make it would change the backup.
	if _, err := fsys.Stat(fsys.PathJoin(backup, "LOCK")); err == nil {
		locked, err := lock(backup, fsys)
		if err != nil {
			return r, err
		}
		defer locked.Close()
	}
	err = makeStore(fsys, dir, backup, func(temp string) error {
		// Copying and checking are given half of the way each.
		const half, all = ScanEnd, 2 * ScanEnd
		if err := copyFiles(ctx, fsys, backup, temp, func(done, of int64) { progress(int(done*half/of), all) }); err != nil {
			return err
		}
		if r, err = check(temp, opts, func(slices int) { progress(half+slices, all) }); err != nil {
			return err
		}
		if !r.harmless() {
			return ErrDamaged
		}
		return ctx.Err()
	})
	return r, err
}

// harmless tells whether no answer depends on what is wrong.
func (r *Report) harmless() bool {
	return r.Damaged == int64(len(r.Damage)) && !slices.ContainsFunc(r.Damage, func(d Damage) bool { return d.Remedy != RemedyNone })
}

// copyFiles makes the directory to and copies the files of the store in from to
// it.
func copyFiles(ctx context.Context, fsys vfs.FS, from, to string, progress func(done, of int64)) error {
	names, err := fsys.List(from)
	if err != nil {
		return err
	}
	var files []string
	var done, of int64
	sizes := make(map[string]int64)
	for _, name := range names {
		info, err := fsys.Stat(fsys.PathJoin(from, name))
		if err != nil {
			return err
		}
		if !info.IsDir() && name != "LOCK" {
			files = append(files, name)
			sizes[name] = info.Size()
			of += info.Size()
		}
	}
	if err := fsys.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, name := range files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := vfs.Copy(fsys, fsys.PathJoin(from, name), fsys.PathJoin(to, name)); err != nil {
			return err
		}
		done += sizes[name]
		progress(done, max(of, 1))
	}
	return syncDir(fsys, to)
}

// makeStore has fill make a store, and puts it in dir once fill has returned:
// whatever happens, and be it a power cut, there is no store in dir or a whole
// one. fill gets the name of a directory that does not exist, and syncs what it
// puts there. dir must not lie in the directory outside.
func makeStore(fsys vfs.FS, dir, outside string, fill func(temp string) error) (err error) {
	if dir == "" {
		return errors.New("no directory is named")
	}
	if fsys == defaultFS {
		if dir, err = filepath.Abs(dir); err != nil {
			return err
		}
		if dir, err = realName(dir); err != nil {
			return err
		}
	}
	dir = fsys.PathJoin(dir) // without a slash at the end
	if strings.HasSuffix(dir, partial) {
		return fmt.Errorf("%s: a name with %s at its end is for what is not complete", dir, partial)
	}
	found, err := emptyDir(fsys, dir)
	if err != nil {
		return err
	}
	if contains(fsys, outside, dir) {
		return fmt.Errorf("%s lies in %s", dir, outside)
	}
	if err := makeDir(fsys, fsys.PathDir(dir)); err != nil {
		return err
	}
	temp := dir + partial
	if _, err := fsys.Stat(temp); !errors.Is(err, fs.ErrNotExist) {
		if err == nil {
			err = fmt.Errorf("%s: %w: it is being made, or was cut off and is to be removed", temp, fs.ErrExist)
		}
		return err
	}

	if found {
		// One that is a mount point, say, can't be put in the place of, and it
		// is better to know that at once.
		if err := fsys.Remove(dir); err != nil {
			return err
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, makeDir(fsys, dir))
			}
		}()
	}
	err = fill(temp)
	if err == nil {
		err = fsys.Rename(temp, dir)
	}
	if err == nil {
		if err = syncDir(fsys, fsys.PathDir(dir)); err == nil {
			return nil
		}
		// Nobody is to find what nobody was told of, or a half of it.
		if again := fsys.Rename(dir, temp); again != nil {
			return errors.Join(err, again)
		}
	}
	return errors.Join(err, fsys.RemoveAll(temp))
}

// emptyDir tells whether dir is there. It returns an error if dir is anything
// but an empty directory.
func emptyDir(fsys vfs.FS, dir string) (found bool, err error) {
	info, err := fsys.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if !info.IsDir() {
		return false, fmt.Errorf("%s: %w", dir, fs.ErrExist)
	}
	names, err := fsys.List(dir)
	if err == nil && len(names) > 0 {
		err = fmt.Errorf("%s: %w, and is not empty", dir, fs.ErrExist)
	}
	return true, err
}

// realName is realPath for an absolute name that need not be there.
func realName(name string) (string, error) {
	real, err := filepath.EvalSymlinks(name)
	if above := filepath.Dir(name); errors.Is(err, fs.ErrNotExist) && above != name {
		above, err = realName(above)
		return filepath.Join(above, filepath.Base(name)), err
	}
	return real, err
}

// contains tells whether name is, or lies in, the directory dir.
func contains(fsys vfs.FS, dir, name string) bool {
	for ; name != dir; name = fsys.PathDir(name) {
		if fsys.PathDir(name) == name {
			return false
		}
	}
	return true
}
