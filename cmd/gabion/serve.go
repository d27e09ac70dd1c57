package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/gabiondb/gabion/commands"
	"github.com/gabiondb/gabion/engine"
)

// serveFlags are the flags of serve.
type serveFlags struct {
	set *pflag.FlagSet

	dir, addr      string
	durability     durabilityFlag
	syncInterval   time.Duration
	cacheSize      sizeFlag
	blockCacheSize sizeFlag
	caps           capFlags
	purge          bool
	purgePace      int64
	purgeWait      time.Duration
	purgeAhead     time.Duration
	purgeConfirm   time.Duration

	maxClients      int
	maxBuffers      sizeFlag
	idleTimeout     time.Duration
	writeTimeout    time.Duration
	shutdownTimeout time.Duration
	backupDir       string
	passwordFile    string
	allowNoPassword bool

	logFormat string
	logLevel  slog.Level
}

func serveVerb() verb {
	return verb{
		name:    "serve",
		summary: "answer Redis clients from a store on disk",
		help: `
The store is made if the directory is not there. SIGTERM or SIGINT stops the
server: it answers what it has read, syncs, and exits with 0; a second signal
ends it at once, which loses nothing that --durability promises. If the disk
fails, the server exits with 1, for whoever supervises it to start it again.

There is no TLS. An address that other machines can reach is refused without
a password.

Example:
  $ gabion serve --dir /var/lib/gabion --addr 127.0.0.1:6380
  $ redis-cli -p 6380 CL.THROTTLE user:42 15 30 60
`,
		flags: func(fs *pflag.FlagSet) action {
			f := serveFlags{set: fs, cacheSize: engine.DefaultCacheSize, blockCacheSize: engine.DefaultBlockCacheSize, maxBuffers: 256 << 20}
			fs.StringVar(&f.dir, "dir", defaultDir, "the `directory` of the store")
			fs.StringVar(&f.addr, "addr", "127.0.0.1:6380", "listen at this `host:port`")
			fs.Var(&f.durability, "durability", "answer when the disk has it, or sync every interval, or never")
			fs.DurationVar(&f.syncInterval, "sync-interval", 10*time.Millisecond, "the time between syncs with interval, between writes with never")
			fs.Var(&f.cacheSize, "cache-size", "the most memory for decoded keys")
			fs.Var(&f.blockCacheSize, "block-cache-size", "memory for blocks of the store's tables, and for memtables")
			f.caps.addQuota(fs)
			f.caps.addRolling(fs)
			fs.BoolVar(&f.purge, "purge", true, "delete expired keys from the disk; they are answered as absent either way")
			fs.Int64Var(&f.purgePace, "purge-pace", engine.DefaultPurgePace, "look at this many records a second, at most, for expired ones")
			fs.DurationVar(&f.purgeWait, "purge-wait", engine.DefaultPurgeWait, "the longest that an expired key stays on disk; most go much sooner")
			fs.DurationVar(&f.purgeAhead, "purge-ahead", engine.DefaultPurgeAhead, "how far the wall clock may be ahead of the store at the start for the purge to trust it at once")
			fs.DurationVar(&f.purgeConfirm, "purge-confirm", engine.DefaultPurgeConfirm, "how long the wall clock has to go right before the purge trusts it in any case")
			fs.IntVar(&f.maxClients, "max-clients", 10000, "how many connections may be open")
			fs.Var(&f.maxBuffers, "max-buffers", "the most memory for large requests and unsent replies of all connections")
			fs.DurationVar(&f.idleTimeout, "idle-timeout", 0, "close a connection that has been silent for so long; 0 never does")
			fs.DurationVar(&f.writeTimeout, "write-timeout", time.Minute, "close a connection that has not taken its replies for so long")
			fs.DurationVar(&f.shutdownTimeout, "shutdown-timeout", 10*time.Second, "how long to wait for connections on SIGTERM")
			fs.StringVar(&f.backupDir, "backup-dir", "", "let clients have the store copied to this `directory`, by BACKUP; without it they can't")
			fs.StringVar(&f.passwordFile, "password-file", "", "clients must AUTH with the first line of this `file`")
			fs.BoolVar(&f.allowNoPassword, "allow-no-password", false, "listen without a password at an address that is not loopback")
			fs.StringVar(&f.logFormat, "log-format", "text", "log to standard error as `text|json`")
			fs.TextVar(&f.logLevel, "log-level", slog.LevelInfo, "the least `level` to log: debug, info, warn or error")
			return func(p *program, _ []string) error { return f.serve(p) }
		},
	}
}

// check refuses values that make no sense.
func (f *serveFlags) check() error {
	switch {
	case f.dir == "":
		return usagef("--dir must not be empty")
	case f.addr == "":
		return usagef("--addr must not be empty")
	case f.syncInterval <= 0:
		return usagef("--sync-interval must be positive")
	case f.purgePace <= 0:
		return usagef("--purge-pace must be positive")
	case f.purgeWait < time.Second:
		return usagef("--purge-wait must be 1s or longer")
	case f.purgeAhead <= 0:
		return usagef("--purge-ahead must be positive")
	case f.purgeConfirm <= 0:
		return usagef("--purge-confirm must be positive")
	case f.maxClients <= 0:
		return usagef("--max-clients must be positive")
	case f.idleTimeout < 0:
		return usagef("--idle-timeout must not be negative")
	case f.writeTimeout <= 0:
		return usagef("--write-timeout must be positive")
	case f.shutdownTimeout < 0:
		return usagef("--shutdown-timeout must not be negative")
	case f.set.Changed("backup-dir") && f.backupDir == "":
		return usagef("--backup-dir must not be empty")
	case f.logFormat != "text" && f.logFormat != "json":
		return usagef("--log-format must be text or json")
	}
	return f.caps.check(f.set)
}

func (f *serveFlags) logger(w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: f.logLevel}
	if f.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

func (f *serveFlags) serve(p *program) error {
	if err := f.check(); err != nil {
		return err
	}
	// A log that nobody reads any more is no reason to end.
	signal.Ignore(syscall.SIGPIPE)
	log := f.logger(p.stderr)
	password, err := f.password(log)
	if err != nil {
		return err
	}
	addr, err := resolve(f.addr, password != "" || f.allowNoPassword)
	if err != nil {
		return err
	}
	dir, err := filepath.Abs(f.dir)
	if err != nil {
		return err
	}
	backupDir := f.backupDir
	if backupDir != "" {
		if backupDir, err = filepath.Abs(backupDir); err != nil {
			return err
		}
	}

	ballast := newBallast(int64(f.cacheSize), int64(f.blockCacheSize))
	defer runtime.KeepAlive(ballast)
	opts := &engine.Options{
		Durability:     engine.Durability(f.durability),
		SyncInterval:   f.syncInterval,
		CacheSize:      int64(f.cacheSize),
		BlockCacheSize: int64(f.blockCacheSize),
		NoPurge:        !f.purge,
		PurgePace:      f.purgePace,
		PurgeWait:      f.purgeWait,
		PurgeAhead:     f.purgeAhead,
		PurgeConfirm:   f.purgeConfirm,
		Logger:         log,
	}
	f.caps.set(opts)
	l, err := p.openStore(dir, opts)
	if errors.Is(err, engine.ErrInUse) {
		return fmt.Errorf("%s is in use by another process: stop it, or choose another --dir", dir)
	}
	if err != nil {
		return err
	}
	if backupDir != "" {
		if err := makeBackupDir(backupDir, dir); err != nil {
			return errors.Join(err, l.Close())
		}
	}
	// Until here a signal just ends the process; nobody has been answered.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	// Listening comes after opening, so that a port that is open is a server
	// that answers.
	ln, err := net.ListenTCP("tcp", addr)
	if err != nil {
		return errors.Join(fmt.Errorf("can't listen: %w", err), l.Close())
	}
	log.Info("serving",
		"addr", ln.Addr().String(),
		"dir", dir,
		"durability", f.durability.String(),
		"format", engine.Format,
		"version", version())

	srv := commands.NewServer(l, commands.Config{
		Password:     password,
		MaxClients:   f.maxClients,
		MaxBuffers:   int64(f.maxBuffers),
		IdleTimeout:  f.idleTimeout,
		WriteTimeout: f.writeTimeout,
		BackupDir:    backupDir,
		Ballast:      int64(len(ballast)),
		Logger:       log,
		Version:      version(),
	})
	if opts.Durability != engine.Never {
		defer spareProcessor()() // the server has counted those that there are
	}
	err = f.serveUntil(signals, log, srv, ln, l)
	if closeErr := l.Close(); closeErr != nil && err == nil {
		err = fmt.Errorf("can't close the store: %w", closeErr)
	}
	if err == nil {
		log.Info("stopped")
	}
	return err
}

// newBallast returns a part of the heap that nobody touches, so it takes no memory.
// Go's collector begins when the heap is twice what was live, and has the ballast
// for live. Without it the heap of a small store is collected every few seconds,
// and for the milliseconds that takes requests wait for the processors. If the
// environment says how far the heap may grow there is none.
func newBallast(cacheSize, blockCacheSize int64) []byte {
	const most = 1 << 30
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return nil
	}
	return make([]byte, (min(cacheSize, most)+min(blockCacheSize, most))/4)
}

// spareProcessor lets Go run one more thread than it would by itself, unless the
// environment says how many: a thread that syncs counts as running until the
// runtime's monitor takes notice, which is about when the sync is over. Meanwhile
// Go does not follow changes of what the process may use. undo puts an end to it.
func spareProcessor() (undo func()) {
	if os.Getenv("GOMAXPROCS") != "" {
		return func() {}
	}
	n := runtime.GOMAXPROCS(0)
	runtime.GOMAXPROCS(n + 1)
	return func() { runtime.GOMAXPROCS(n) }
}

// makeBackupDir makes the directory for backups, unless it is there. It must not
// lie in the store's.
func makeBackupDir(dir, store string) error {
	for _, resolve := range []func(string) (string, error){filepath.Abs, filepath.EvalSymlinks} {
		from, err1 := resolve(store)
		to, err2 := resolve(dir)
		if err1 != nil || err2 != nil {
			continue // it is not there yet
		}
		if way, err := filepath.Rel(from, to); err == nil && filepath.IsLocal(way) {
			return fmt.Errorf("--backup-dir %s lies in the store", dir)
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("can't make the directory for backups: %w", err)
	}
	return nil
}

// serveUntil serves until a signal, a failure of the store or one of the
// listener, and then lets the connections finish.
func (f *serveFlags) serveUntil(signals <-chan os.Signal, log *slog.Logger, srv *commands.Server, ln net.Listener, l *engine.Limiter) error {
	var serveErr error // once done is closed
	done := make(chan struct{})
	go func() {
		defer close(done)
		serveErr = srv.Serve(ln)
	}()

	var failure error
	select {
	case <-done:
		failure = fmt.Errorf("can't go on serving: %w", serveErr)
	case <-l.Failed():
		log.Error("stopping", "error", l.Failure())
		failure = l.Failure()
	case sig := <-signals:
		// A second signal ends the process at once, as it would any other.
		signal.Reset(syscall.SIGINT, syscall.SIGTERM)
		log.Info("stopping", "signal", sig.String())
	}

	ctx, cancel := context.WithTimeout(context.Background(), f.shutdownTimeout)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		log.Warn("some connections were cut off", "error", err)
	}
	<-done
	return failure
}

// password returns the password that clients must give, or "".
func (f *serveFlags) password(log *slog.Logger) (string, error) {
	if !f.set.Changed("password-file") {
		return "", nil
	}
	if worldReadable(f.passwordFile) {
		log.Warn("any user of this machine can read the password", "file", f.passwordFile)
	}
	return readPassword(f.passwordFile)
}

// resolve returns the address to listen at. One that other machines can reach
// is refused unless public is set.
func resolve(hostport string, public bool) (*net.TCPAddr, error) {
	addr, err := net.ResolveTCPAddr("tcp", hostport)
	if err != nil {
		return nil, fmt.Errorf("can't listen: %w", err)
	}
	if !addr.IP.IsLoopback() && !public {
		return nil, fmt.Errorf("refusing to listen at %s, where other machines can reach it, without a password: give --password-file, or --allow-no-password if the network is trusted", hostport)
	}
	return addr, nil
}
