package engine

import (
	"cmp"
	"context"
	"io"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// disk is a file system as Pebble is to see it.
//
// Pebble has no other answer to many failures of the disk than to end the
// process: it panics when it can't close a log, begin the next or sync a
// directory, and takes it for granted that Logger.Fatalf does not return. So
// Pebble never hears of a change that fails. The failure is latched instead,
// and from then on nothing changes the disk any more, as if the process had
// ended there, while Pebble goes on in peace until it is closed.
type disk struct {
	vfs.FS
	failure *failure

	mu    sync.Mutex
	files map[*diskFile]struct{} // those that are open; guarded by mu

	aside    atomic.Pointer[aside] // where a checkpoint is being made, or nil
	manifest atomic.Bool           // Pebble has begun a manifest
}

func newDisk(fs vfs.FS, f *failure) *disk {
	return &disk{FS: fs, failure: f, files: make(map[*diskFile]struct{})}
}

// abandon closes the files that Pebble leaves open when it can't open a store.
// Nothing that it may still be about to do reaches the disk.
func (d *disk) abandon(err error) {
	_ = d.failure.set(err)
	d.mu.Lock()
	defer d.mu.Unlock()
	for f := range d.files {
		_ = f.File.Close()
	}
	clear(d.files)
}

// attempt makes a change to the disk, unless the disk has failed, and latches
// the error if that fails.
func (f *failure) attempt(change func() error) {
	if f.get() != nil {
		return
	}
	if err := change(); err != nil {
		_ = f.set(err)
	}
}

func (d *disk) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if a := d.asideOf(name); a != nil {
		return a.track(d.FS.Create(name, category))
	}
	return d.file(name, func() (vfs.File, error) {
		// Pebble makes a manifest and the marker that names it without a sync
		// between them, so a power cut could leave the second alone.
		if strings.HasPrefix(d.PathBase(name), "marker.manifest.") {
			if err := syncDir(d.FS, d.PathDir(name)); err != nil {
				return nil, err
			}
		}
		f, err := d.FS.Create(name, category)
		if strings.HasPrefix(d.PathBase(name), "MANIFEST-") && err == nil {
			d.manifest.Store(true)
		}
		return f, err
	}), nil
}

func (d *disk) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return d.file(newname, func() (vfs.File, error) { return d.FS.ReuseForWrite(oldname, newname, category) }), nil
}

// file returns the file that open opens or, when the disk fails or has failed,
// one that is nowhere.
func (d *disk) file(name string, open func() (vfs.File, error)) vfs.File {
	var f vfs.File
	ok := false
	d.failure.attempt(func() (err error) {
		f, err = open()
		ok = err == nil
		return err
	})
	if !ok {
		f = nowhere()
	}
	return d.track(name, f)
}

// nowhere returns a file that is on no disk.
func nowhere() vfs.File {
	f, _ := vfs.NewMem().Create("nowhere", vfs.WriteCategoryUnspecified)
	return f
}

func (d *disk) track(name string, f vfs.File) vfs.File {
	t := &diskFile{File: f, disk: d, name: name}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.files[t] = struct{}{}
	return t
}

// syncDir makes the names in a directory durable.
func syncDir(fsys vfs.FS, name string) error {
	dir, err := fsys.OpenDir(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// Open opens a file that is still being written up to where it ends now. A log
// may be one that is used again, with another's records behind its own: one that
// is read while it grows could show old ones before new ones, which is damage.
func (d *disk) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := d.FS.Open(name, opts...)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for w := range d.files {
		if w.name == name {
			return &prefixFile{f, w.written.Load()}, nil
		}
	}
	return f, nil
}

func (d *disk) OpenDir(name string) (vfs.File, error) {
	if a := d.asideOf(name); a != nil {
		return a.track(d.FS.OpenDir(name))
	}
	f, err := d.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return d.track(name, f), nil
}

func (d *disk) Rename(oldname, newname string) error {
	d.failure.attempt(func() error { return d.FS.Rename(oldname, newname) })
	return nil
}

// Remove returns the errors of the disk: a file too many does no harm.
func (d *disk) Remove(name string) error {
	if d.failure.get() != nil {
		return nil
	}
	return d.FS.Remove(name)
}

// List latches errors too: while Pebble opens a store and compacts it at the
// same time it does not survive one.
func (d *disk) List(name string) (names []string, err error) {
	if d.asideOf(name) != nil {
		return d.FS.List(name)
	}
	d.failure.attempt(func() error {
		names, err = d.FS.List(name)
		return err
	})
	return names, nil
}

func (d *disk) Unwrap() vfs.FS { return d.FS }

// diskFile is a file that Pebble writes, or a directory.
type diskFile struct {
	vfs.File
	disk    *disk
	name    string
	written atomic.Int64 // bytes
}

func (f *diskFile) Write(p []byte) (int, error) {
	f.disk.failure.attempt(func() error {
		n, err := f.File.Write(p)
		f.written.Add(int64(n))
		return err
	})
	return len(p), nil
}

func (f *diskFile) Sync() error {
	f.disk.failure.attempt(f.File.Sync)
	return nil
}

func (f *diskFile) SyncData() error {
	f.disk.failure.attempt(f.File.SyncData)
	return nil
}

func (f *diskFile) SyncTo(length int64) (fullSync bool, err error) {
	f.disk.failure.attempt(func() error {
		fullSync, err = f.File.SyncTo(length)
		return err
	})
	return fullSync, nil
}

// Stat latches errors too: Pebble asks how long a log is that it begins in the
// place of an old one, and does not survive it.
func (f *diskFile) Stat() (info vfs.FileInfo, err error) {
	f.disk.failure.attempt(func() error {
		info, err = f.File.Stat()
		return err
	})
	if info == nil {
		return nowhere().Stat()
	}
	return info, nil
}

func (f *diskFile) Close() error {
	f.disk.mu.Lock()
	_, open := f.disk.files[f]
	delete(f.disk.files, f)
	f.disk.mu.Unlock()
	if open {
		if err := f.File.Close(); err != nil && f.disk.failure.get() == nil {
			_ = f.disk.failure.set(err)
		}
	}
	return nil
}

// prefixFile is a file that shows no more than its first bytes.
type prefixFile struct {
	vfs.File
	left int64 // bytes
}

func (f *prefixFile) Read(p []byte) (int, error) {
	if f.left == 0 {
		return 0, io.EOF
	}
	n, err := f.File.Read(p[:min(int64(len(p)), f.left)])
	f.left -= int64(n)
	return n, err
}

// aside is a directory in which Pebble makes a checkpoint. What fails there, or
// in syncing the directory above it, is no failure of the store, and Pebble
// hears of it, but for directories that can't be synced: there it panics. Only
// the goroutine that makes the checkpoint opens, syncs and closes files.
type aside struct {
	ctx    context.Context
	dir    string
	failed error                   // of a sync
	files  map[*asideFile]struct{} // those that are open
}

// setAside takes what happens in dir while fn runs for the making of a
// checkpoint. Once ctx has ended nothing more is written there.
func (d *disk) setAside(ctx context.Context, dir string, fn func() error) error {
	a := &aside{ctx: ctx, dir: dir, files: make(map[*asideFile]struct{})}
	d.aside.Store(a)
	defer d.aside.Store(nil)
	err := fn()
	// When it fails Pebble leaves some open.
	for f := range a.files {
		_ = f.File.Close()
	}
	return cmp.Or(a.failed, err)
}

// asideOf returns what name is a part of, or nil if it is the store's own.
func (d *disk) asideOf(name string) *aside {
	a := d.aside.Load()
	if a != nil && (name == a.dir || d.PathDir(name) == a.dir || name == d.PathDir(a.dir)) {
		return a
	}
	return nil
}

func (a *aside) track(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	t := &asideFile{f, a}
	a.files[t] = struct{}{}
	return t, nil
}

// asideFile is a file of a checkpoint, or a directory.
type asideFile struct {
	vfs.File
	aside *aside
}

func (f *asideFile) Write(p []byte) (int, error) {
	if err := cmp.Or(f.aside.failed, f.aside.ctx.Err()); err != nil {
		return 0, err
	}
	return f.File.Write(p)
}

func (f *asideFile) Sync() error {
	if err := f.File.Sync(); err != nil {
		f.aside.failed = cmp.Or(f.aside.failed, err)
	}
	return nil
}

func (f *asideFile) Close() error {
	delete(f.aside.files, f)
	return f.File.Close()
}
