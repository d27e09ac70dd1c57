package engine

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/codec"
)

var defaultFS = vfs.Default

// store is a Pebble store, or the part of one that is ours.
type store struct {
	db      *pebble.DB
	dir     string // of one that was opened by its directory, and
	disk    *disk  // the file system that Pebble has it on
	failure failure
	trouble troubles
	lent    bool        // it is an application's, under a prefix
	opened  []io.Closer // what close closes, the last first
}

// slowDisk is how long one operation of the file system may take before the
// logger is told.
const slowDisk = 5 * time.Second

// open opens the store in dir, which is ours as a whole, and returns its mark.
// When it fails nothing is left open. Pebble calls written with the tables that
// it has flushed or compacted.
func (s *store) open(dir string, keys *codec.Keyspace, opts *Options, written func([]pebble.TableInfo)) (mark codec.Mark, err error) {
	if err := whole(dir, opts.FS); err != nil {
		return mark, err
	}
	if err := makeDir(opts.FS, dir); err != nil {
		return mark, fmt.Errorf("engine: make the store's directory: %w", err)
	}
	if dir, err = s.attach(dir, opts, false, written); err != nil {
		return mark, err
	}
	mark, made, err := s.identify(dir, keys)
	switch {
	case err != nil:
	case made:
		// Pebble makes the first log of a new store before it raises the
		// format, in one that can't tell a damaged record from the log's end.
		// A flush has it begin the next.
		err = s.flush()
	default:
		err = storageError(s.db.RatchetFormatMajorVersion(pebble.FormatNewest))
	}
	if err = cmp.Or(s.failure.get(), err); err != nil {
		return mark, errors.Join(err, s.close())
	}
	return mark, nil
}

// attach locks dir and opens the Pebble store in it, whoever it belongs to. It
// returns the directory by its one name. One that is read only has to be there,
// and is not changed. When attach fails nothing is left open.
func (s *store) attach(dir string, opts *Options, readOnly bool, written func([]pebble.TableInfo)) (_ string, err error) {
	log := &logger{log: opts.Logger, failure: &s.failure, trouble: &s.trouble}
	fsys := opts.FS
	if fsys == defaultFS {
		// Within a process the lock goes by the name of the directory.
		if dir, err = realPath(dir); err != nil {
			return "", fmt.Errorf("engine: find the store's directory: %w", err)
		}
	}
	fsys, health := vfs.WithDiskHealthChecks(fsys, slowDisk, nil, func(info vfs.DiskSlowInfo) {
		opts.Logger.Warn("slow disk", "operation", info.String())
	})
	s.opened = append(s.opened, health)
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	// Locking makes a file, so look first. Whatever else there is to say may
	// be due to somebody who has the store open.
	found, err := peek(dir, fsys)
	if errors.Is(err, ErrForeign) {
		return "", err
	}
	if readOnly && err == nil && !found.Exists {
		return "", fmt.Errorf("%w: there is none in %s", ErrForeign, dir)
	}
	locked, err := lock(dir, fsys)
	if err != nil {
		return "", err
	}
	s.opened = append(s.opened, locked)
	if found, err = peek(dir, fsys); err != nil {
		return "", err
	}
	// A store that turns out to be foreign is not to be raised to a format
	// that its owner can't read.
	format := pebble.FormatNewest
	if found.Exists {
		format = found.FormatMajorVersion
	}
	cache := pebble.NewCache(opts.BlockCacheSize)
	defer cache.Unref()
	disk := newDisk(fsys, &s.failure)
	s.dir, s.disk = dir, disk
	options := pebbleOptions(format, disk, cache, locked, log, written)
	options.ReadOnly = readOnly
	options.MemTableSize = cmp.Or(opts.memTableSize, options.MemTableSize)
	if s.db, err = pebble.Open(dir, options); err != nil {
		err = cmp.Or(s.failure.get(), err)
		disk.abandon(err)
		if pebble.IsCorruptionError(err) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, pebble.ErrDBNotPristine) ||
			strings.Contains(err.Error(), "object size mismatch") { // a table that is cut off: Pebble has no error for it
			return "", fmt.Errorf("%w: %s: %w%s", ErrDamaged, dir, err, detail(err))
		}
		return "", fmt.Errorf("engine: open the store in %s: %w", dir, err)
	}
	s.opened = append(s.opened, s.db)
	return dir, nil
}

// detail returns what Pebble knows of err beyond its words, such as the log that
// can't be read and where.
func detail(err error) string {
	if d := interface{ ErrorDetail() string }(nil); errors.As(err, &d) {
		return " (" + d.ErrorDetail() + ")"
	}
	return ""
}

// makeDir makes dir and the directories above it that are missing, so that a
// power cut leaves all of them.
func makeDir(fsys vfs.FS, dir string) error {
	var made []string // and the one that the first of them is in
	for at := dir; ; at = fsys.PathDir(at) {
		_, err := fsys.Stat(at)
		if err == nil || fsys.PathDir(at) == at {
			made = append(made, at)
			break
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		made = append(made, at)
	}
	if err := fsys.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if len(made) == 1 {
		return nil
	}
	for _, at := range made {
		if err := syncDir(fsys, at); err != nil {
			return err
		}
	}
	return nil
}

// realPath returns the one name of a directory that does not depend on the
// working directory or on links.
func realPath(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(dir)
}

// lock takes the lock of dir.
func lock(dir string, fsys vfs.FS) (*pebble.Lock, error) {
	l, err := pebble.LockDirectory(dir, fsys)
	if err == nil {
		return l, nil
	}
	// An error about the path is about making the lock file; any other means
	// that it is locked.
	if path := new(fs.PathError); errors.As(err, &path) {
		return nil, fmt.Errorf("engine: lock the store in %s: %w", dir, err)
	}
	return nil, fmt.Errorf("%w: %s: %w", ErrInUse, dir, err)
}

// peek looks at what is in dir. A directory of something else is refused.
func peek(dir string, fsys vfs.FS) (*pebble.DBDesc, error) {
	// In this order a store that is being made meanwhile is not taken for
	// something else.
	names, err := fsys.List(dir)
	if err != nil {
		return nil, fmt.Errorf("engine: look at %s: %w", dir, err)
	}
	found, err := pebble.Peek(dir, fsys)
	if err != nil {
		return nil, fmt.Errorf("engine: look at %s: %w", dir, err)
	}
	if found.Exists {
		return found, nil
	}
	for _, name := range names {
		if !partOfStore(name) {
			return nil, fmt.Errorf("%w: %s holds %q", ErrForeign, dir, name)
		}
	}
	return found, nil
}

// partOfStore tells whether a file of this name can be what is left of a store
// whose making was cut short, or belongs to the file system.
func partOfStore(name string) bool {
	if name == "LOCK" || name == "lost+found" {
		return true
	}
	for _, prefix := range []string{"MANIFEST-", "OPTIONS-", "marker.", "temporary."} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	number, isLog := strings.CutSuffix(name, ".log")
	return isLog && number != "" && strings.Trim(number, "0123456789") == ""
}

// identify reads who has written what lies under the prefix of keys, writes it
// if there is nothing (then made is true), sets the seed of keys and returns
// the mark. name is what errors call the store.
func (s *store) identify(name string, keys *codec.Keyspace) (mark codec.Mark, made bool, err error) {
	value, closer, err := s.db.Get(keys.AppendMeta(nil, codec.MetaIdentity))
	if errors.Is(err, pebble.ErrNotFound) {
		return codec.Mark{Clean: true}, true, s.create(name, keys)
	}
	if err != nil {
		return mark, false, storageError(err)
	}
	id, err := identityOf(name, value)
	closer.Close()
	if err != nil {
		return mark, false, err
	}
	keys.Seed = id.Seed
	value, closer, err = s.db.Get(keys.AppendMeta(nil, codec.MetaMark))
	if errors.Is(err, pebble.ErrNotFound) {
		return codec.Mark{Clean: true}, false, nil // nothing was ever written
	}
	if err != nil {
		return mark, false, storageError(err)
	}
	defer closer.Close()
	if mark, err = codec.DecodeMark(value); err != nil {
		return mark, false, fmt.Errorf("%w: the mark: %w", ErrCorrupt, err)
	}
	return mark, false, nil
}

// identityOf reads the identity of the store that errors call name, and refuses
// that of a store that is not ours or too new.
func identityOf(name string, value []byte) (codec.Identity, error) {
	id, err := codec.DecodeIdentity(value)
	switch {
	case errors.Is(err, codec.ErrVersion), err == nil && id.Format > codec.Format:
		return codec.Identity{}, fmt.Errorf("%w: %s; this version reads format %d and older", ErrNewerFormat, name, codec.Format)
	case err != nil:
		return codec.Identity{}, fmt.Errorf("%w: %s: %w", ErrForeign, name, err)
	}
	return id, nil
}

// create writes the identity of a new store, under the prefix of keys, and sets
// their seed.
func (s *store) create(name string, keys *codec.Keyspace) error {
	empty, err := isEmpty(s.db, keys)
	switch {
	case err != nil:
		return storageError(err)
	case !empty && s.lent:
		return fmt.Errorf("%w: %s has no identity, so no limiter has written it, or it was deleted in part", ErrForeign, name)
	case !empty:
		return fmt.Errorf("%w: %s is the store of another application", ErrForeign, name)
	}
	var seed [8]byte
	_, _ = rand.Read(seed[:]) // it never fails
	keys.Seed = binary.LittleEndian.Uint64(seed[:])

	b := s.db.NewBatch()
	id := codec.Identity{Format: codec.Format, Seed: keys.Seed}
	_ = b.Set(keys.AppendMeta(nil, codec.MetaIdentity), codec.AppendIdentity(nil, id), nil)
	if err := s.db.ApplyNoSyncWait(b, pebble.Sync); err != nil {
		return storageError(err)
	}
	if err := b.SyncWait(); err != nil {
		return storageError(err)
	}
	_ = b.Close()
	return nil
}

// flush writes what Pebble has in memory to tables.
func (s *store) flush() error {
	flushed, err := s.db.AsyncFlush()
	if err != nil {
		return storageError(err)
	}
	<-flushed
	return nil
}

// compact has Pebble rewrite its tables from lower to upper. It returns ctx's
// error, or one that wraps ErrStorage. Pebble goes on trying with a table that it
// can't read, and does not get to an end with one that is on no disk, so whatever
// fails in the background ends it.
func (s *store) compact(ctx context.Context, lower, upper []byte) error {
	compacting, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	trouble := s.trouble.next()
	go func() {
		select {
		case <-s.failure.failed:
			cancel(s.failure.get())
		case <-trouble.met:
			cancel(trouble.err)
		case <-compacting.Done():
		}
	}()
	err := s.db.Compact(compacting, lower, upper, true)
	if failed := s.failure.get(); failed != nil || err == nil {
		return failed
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return storageError(cmp.Or(context.Cause(compacting), err))
}

// lookup returns the value under key, and what frees it, or pebble.ErrNotFound.
func (s *store) lookup(key []byte) (value []byte, free io.Closer, err error) {
	defer s.recoverClosed(&err)
	return s.db.Get(key)
}

// iter returns an iterator over the keys from lower to just before upper.
func (s *store) iter(lower, upper []byte) (it *pebble.Iterator, err error) {
	defer s.recoverClosed(&err)
	return s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
}

// write makes b visible. With sync SyncWait of b returns when it is on disk.
func (s *store) write(b *pebble.Batch, sync bool) (err error) {
	defer s.recoverWrite(&err)
	if sync {
		return s.db.ApplyNoSyncWait(b, pebble.Sync)
	}
	return s.db.Apply(b, pebble.NoSync)
}

// recoverWrite makes a failure of a panic in the store of an application, since a
// round that was cut must come to an end there. Pebble panics where a store is closed,
// or can't take what was put into a batch.
func (s *store) recoverWrite(err *error) {
	r := recover()
	if r == nil {
		return
	}
	cause, ok := r.(error)
	switch {
	case !s.lent:
		panic(r)
	case isClosed(s.db):
		cause = errStoreClosed
	case !ok:
		cause = fmt.Errorf("a write has panicked: %v", r)
	}
	*err = s.failure.set(cause)
}

// isEmpty tells whether db holds no key at all under the prefix of keys.
func isEmpty(db *pebble.DB, keys *codec.Keyspace) (bool, error) {
	lower, upper := keys.Bounds()
	it, err := db.NewIter(&pebble.IterOptions{
		LowerBound: lower,
		UpperBound: upper,
		KeyTypes:   pebble.IterKeyTypePointsAndRanges,
	})
	if err != nil {
		return false, err
	}
	defer it.Close()
	return !it.First() && it.Error() == nil, it.Error()
}

// close closes what was opened, the last first.
func (s *store) close() error {
	var errs []error
	for _, c := range slices.Backward(s.opened) {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

func pebbleOptions(format pebble.FormatMajorVersion, fsys vfs.FS, cache *pebble.Cache, lock *pebble.Lock, log *logger, written func([]pebble.TableInfo)) *pebble.Options {
	opts := &pebble.Options{
		FormatMajorVersion: format,
		FS:                 fsys,
		Cache:              cache,
		Lock:               lock,
		Logger:             log,

		// 16 MiB fits the processor's caches better than more does.
		MemTableSize:                16 << 20,
		MemTableStopWritesThreshold: 4,
		L0CompactionThreshold:       8, // Pebble counts each sublevel twice: these are four
		L0StopWritesThreshold:       24,

		// Without it a range tombstone would stay in the memtable of a store
		// that goes quiet.
		FlushDelayDeleteRange: 5 * time.Second,

		EventListener: &pebble.EventListener{
			BackgroundError: func(err error) {
				log.Errorf("background work of the store: %v", err)
				log.trouble.meet(err)
			},
			// Pebble's own would end the process.
			DataCorruption: func(info pebble.DataCorruptionInfo) { log.Errorf("damaged data: %s", info) },
		},
	}
	if written != nil {
		opts.EventListener.FlushEnd = func(info pebble.FlushInfo) { written(info.Output) }
		opts.EventListener.CompactionEnd = func(info pebble.CompactionInfo) { written(info.Output.Tables) }
	}
	// Reads are not to cause compactions.
	opts.Experimental.ReadSamplingMultiplier = -1
	// A level has what the one above it has, if nothing else is said.
	opts.Levels[0].FilterPolicy = bloom.FilterPolicy(10)
	// Get never asks the filters of the last level.
	opts.Levels[len(opts.Levels)-1].FilterPolicy = pebble.NoFilterPolicy
	return opts
}

// logger tells our logger what Pebble has to say, and latches what Pebble
// would end the process for.
type logger struct {
	log     *slog.Logger
	failure *failure
	trouble *troubles
}

func (l *logger) Infof(format string, args ...any) {
	l.log.Debug("pebble: " + fmt.Sprintf(format, args...))
}

func (l *logger) Errorf(format string, args ...any) {
	if l.failure.get() != nil {
		return // Pebble misses what never reached the disk
	}
	l.log.Error("pebble: " + fmt.Sprintf(format, args...))
}

func (l *logger) Fatalf(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	l.log.Error("pebble: " + err.Error())
	_ = l.failure.set(err)
}
