package engine

import (
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/gabiondb/gabion/engine/limit"
)

// Durability is what a limiter promises when it has answered.
type Durability uint8

const (
	// Always answers when the disk has it: nothing that was answered is ever
	// lost. It is the default.
	Always Durability = iota

	// Interval answers at once and syncs every SyncInterval: a crash loses at
	// most that much plus the length of one sync, whole operations only, the
	// newest first.
	Interval

	// Never answers at once and asks for no sync: a crash, or a kill of the
	// process, may lose whatever has not reached the disk by then, the newest
	// first.
	Never
)

// String returns the name of the durability as the command line spells it.
func (d Durability) String() string {
	switch d {
	case Always:
		return "always"
	case Interval:
		return "interval"
	case Never:
		return "never"
	}
	return "unknown"
}

const (
	// MaxLimit is the largest limit that a quota or a rolling list can have,
	// 2^53-1.
	MaxLimit = limit.MaxLimit

	// MaxWindow is the longest window that either can have, ten years.
	MaxWindow = limit.MaxWindow
)

// The defaults of Options of the same names.
const (
	DefaultCacheSize      = 160 << 20
	DefaultBlockCacheSize = 160 << 20

	DefaultPurgePace    = 2_000_000
	DefaultPurgeWait    = 10 * time.Minute
	DefaultPurgeAhead   = 48 * time.Hour
	DefaultPurgeConfirm = 10 * time.Minute
)

// Options are the settings of a Limiter. The zero value is the safe one.
type Options struct {
	// Durability is when a call returns. The default is Always.
	Durability Durability

	// SyncInterval is the time between syncs under Interval, and between
	// writes to the store under Never. The default is 10 ms.
	SyncInterval time.Duration

	// CacheSize bounds the memory that decoded states take, in bytes. The
	// default is 160 MiB, which holds about a million short keys.
	CacheSize int64

	// BlockCacheSize is the size of Pebble's cache of table blocks, in bytes.
	// Memtables, up to 64 MiB, count for it, and with CGO_ENABLED=0 blocks take a
	// quarter more than they count for. The default is 160 MiB. A store with more
	// keys than CacheSize holds gains most by this one: a short key takes a third
	// there of what it takes decoded.
	BlockCacheSize int64

	// QuotaMaxLimit and QuotaMaxWindow are the largest limit and the longest
	// window of a quota. The defaults are 10,000 and 24 hours; up to
	// MaxLimit and MaxWindow are possible.
	QuotaMaxLimit  int64
	QuotaMaxWindow time.Duration

	// RollingMaxWindow is the longest window of a rolling list. The default is
	// 24 hours; up to MaxWindow is possible.
	RollingMaxWindow time.Duration

	// NoPurge leaves what has expired on disk, where only calls of Purge and
	// Compact remove it. That changes no answer.
	NoPurge bool

	// PurgePace is how many records a second the purge looks at, at most. The
	// default is 2,000,000.
	PurgePace int64

	// PurgeWait is the longest that an expired record stays before the purge
	// deletes it, as long as PurgePace suffices. Most go much sooner: as soon
	// as a quarter of those around them has expired. The default is 10 minutes.
	PurgeWait time.Duration

	// PurgeAhead and PurgeConfirm bound what a wall clock that is wrong when
	// the store is opened can have the purge delete. It deletes what was over
	// PurgeAhead after the newest time that the store has seen, plus the time
	// since it was opened; and anything that is over once the wall clock has
	// been within a second of the engine's for PurgeConfirm. The defaults are
	// 48 hours and 10 minutes.
	PurgeAhead   time.Duration
	PurgeConfirm time.Duration

	// Prefix is what all keys of a limiter in the store of an application begin
	// with, 1 to MaxPrefixLen bytes. No key of the application's may begin with
	// it, so it had best end in a byte that these do not have there, like a slash.
	// It is for New, which requires it.
	Prefix []byte

	// Events has the purge follow what Pebble does in the store of an application.
	// It is for New, and may be nil.
	Events *Events

	// Now is the wall clock. The default is time.Now together with the
	// system's monotonic clock: see the package comment. One that is set here
	// is read for every operation and may be stepped at will; going back, it
	// is taken to stand still, as it is after the year 2200, and as long as it is
	// behind the newest time that the store has seen. So a test had best have a
	// store of its own. It must be safe for concurrent use.
	Now func() time.Time

	// Logger is told what an operator should know. The default discards.
	Logger *slog.Logger

	// FS is the file system that holds the store. The default is the disk's.
	FS vfs.FS

	// For tests.
	memTableSize uint64  // in bytes; 0 is 16 MiB
	system       *system // what the default clock reads; nil is this one
}
