package engine

import (
	"strings"
	"sync"

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
	return d.file(func() (vfs.File, error) {
		// Pebble makes a manifest and the marker that names it without a sync
		// between them, so a power cut could leave the second alone.
		if strings.HasPrefix(d.PathBase(name), "marker.manifest.") {
			if err := syncDir(d.FS, d.PathDir(name)); err != nil {
				return nil, err
			}
		}
		return d.FS.Create(name, category)
	}), nil
}

func (d *disk) ReuseForWrite(oldname, newname string, category vfs.DiskWriteCategory) (vfs.File, error) {
	return d.file(func() (vfs.File, error) { return d.FS.ReuseForWrite(oldname, newname, category) }), nil
}

// file returns the file that open opens or, when the disk fails or has failed,
// one that is nowhere.
func (d *disk) file(open func() (vfs.File, error)) vfs.File {
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
	return d.track(f)
}

// nowhere returns a file that is on no disk.
func nowhere() vfs.File {
	f, _ := vfs.NewMem().Create("nowhere", vfs.WriteCategoryUnspecified)
	return f
}

func (d *disk) track(f vfs.File) vfs.File {
	t := &diskFile{File: f, disk: d}
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

func (d *disk) OpenDir(name string) (vfs.File, error) {
	f, err := d.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return d.track(f), nil
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
	disk *disk
}

func (f *diskFile) Write(p []byte) (int, error) {
	f.disk.failure.attempt(func() error {
		_, err := f.File.Write(p)
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
