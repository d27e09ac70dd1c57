package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/gabiondb/gabion/commands"
	"github.com/gabiondb/gabion/engine"
)

// defaultDir is the store that serve opens, and with it the other verbs.
const defaultDir = "./gabion-data"

// doer carries out commands of the server's table and gives their replies:
// int64, string, nil or []any.
type doer interface {
	Do(args ...string) (any, error)
	Close() error
}

// target says where a verb runs: on a store of its own or through a server.
type target struct {
	flags        *pflag.FlagSet
	dir          string
	addr         string
	passwordFile string
	timeout      time.Duration
	caps         capFlags
}

func targetFlags(fs *pflag.FlagSet) *target {
	t := &target{flags: fs}
	fs.StringVar(&t.dir, "dir", defaultDir, "open the store in this `directory`; no server may have it open")
	fs.StringVar(&t.addr, "addr", "", "go through the server at this `host:port`")
	fs.StringVar(&t.passwordFile, "password-file", "", "with --addr: the first line of this `file` is the password")
	fs.DurationVar(&t.timeout, "timeout", 10*time.Second, "with --addr: how long to wait for the server")
	return t
}

// do opens the target, calls fn and closes it again. A store that is not there
// is made if create is set.
func (t *target) do(p *program, create bool, fn func(doer) error) error {
	if err := t.check(); err != nil {
		return err
	}
	d, err := t.open(p, create)
	if err != nil {
		return err
	}
	err = fn(d)
	if closeErr := d.Close(); err == nil {
		err = closeErr
	}
	return err
}

func (t *target) open(p *program, create bool) (doer, error) {
	if t.remote() {
		return t.dial(t.timeout)
	}
	l, err := t.openStore(p, create)
	if err != nil {
		return nil, err
	}
	return &local{commands.NewLocal(l), l}, nil
}

// openStore opens the store of a target that is no server.
func (t *target) openStore(p *program, create bool) (*engine.Limiter, error) {
	if !create {
		if err := checkExists(t.dir); err != nil {
			return nil, err
		}
	}
	// A store that is opened for a moment is left as large as it is.
	opts := &engine.Options{NoPurge: true}
	t.caps.set(opts)
	l, err := p.openStore(t.dir, opts)
	if errors.Is(err, engine.ErrInUse) {
		return nil, fmt.Errorf("%s is in use by another process: if that is a server, go through it with --addr", t.dir)
	}
	return l, err
}

// remote tells whether the target is a server. An empty address counts, so that
// a variable that a shell script forgot to set does not mean a store here.
func (t *target) remote() bool { return t.flags.Changed("addr") }

// check refuses flags that contradict each other.
func (t *target) check() error {
	if t.remote() && t.flags.Changed("dir") {
		return usagef("--dir and --addr exclude each other")
	}
	for _, name := range []string{"password-file", "timeout"} {
		if !t.remote() && t.flags.Changed(name) {
			return usagef("--%s is for --addr", name)
		}
	}
	for _, name := range capNames {
		if t.remote() && t.flags.Changed(name) {
			return usagef("--%s is for --dir: the server has its own", name)
		}
	}
	if err := t.caps.check(t.flags); err != nil {
		return err
	}
	if t.dir == "" {
		return usagef("--dir must not be empty")
	}
	if t.timeout <= 0 {
		return usagef("--timeout must be positive")
	}
	return nil
}

// dial connects to the server of t, and gives it so long for each answer; 0 sets
// no bound.
func (t *target) dial(timeout time.Duration) (doer, error) {
	cfg := commands.ClientConfig{Timeout: timeout}
	if t.flags.Changed("password-file") {
		var err error
		if cfg.Password, err = readPassword(t.passwordFile); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), t.timeout)
	defer cancel()
	c, err := commands.Dial(ctx, t.addr, cfg)
	if err != nil {
		return nil, fmt.Errorf("can't connect: %w", err)
	}
	return &remote{c, timeout}, nil
}

// local is a store opened for one run of the program.
type local struct {
	*commands.Local
	limiter *engine.Limiter
}

func (l *local) Close() error { return l.limiter.Close() }

// remote is a server.
type remote struct {
	*commands.Client
	timeout time.Duration
}

func (r *remote) Do(args ...string) (any, error) {
	reply, err := r.Client.Do(args...)
	var refusal commands.Error
	switch {
	case err == nil || errors.As(err, &refusal):
		return reply, err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, fmt.Errorf("no answer within %v: the server may or may not have carried it out", r.timeout)
	}
	return nil, fmt.Errorf("the connection broke, the server may or may not have carried it out: %w", err)
}

// checkExists returns an error if there is nothing in dir, so that a verb that
// only reads does not make a store by a slip of the pen.
func checkExists(dir string) error {
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		return nil
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("no store in %s", dir)
	}
	return err
}
