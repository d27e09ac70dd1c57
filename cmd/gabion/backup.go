package main

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/spf13/pflag"

	"github.com/gabiondb/gabion/engine"
)

func backupVerb() verb {
	return verb{
		name:     "backup",
		operands: "DEST",
		min:      1, max: 1,
		summary: "copy a store, also while a server has it",
		help: `
DEST is a directory that does not exist or is empty. With --addr it is a plain
name: the server makes the copy on its own machine, in the directory that it was
started with (serve --backup-dir), and goes on answering. The copy holds all
that was answered before. It is a store: gabion check tells what is in it, and
gabion restore makes a store to serve from it.

Where the file system can, tables are linked, so that a copy on the same disk
takes hardly any time and space; but damage to such a table is damage to both.
For a backup that outlives the disk, copy it to another. Damage is copied along,
unseen: gabion check tells of it.

A copy that is cut off is called DEST.partial, and is to be removed.

Example:
  $ gabion backup --addr 127.0.0.1:6380 2026-11-30
  backup      /var/backups/gabion/2026-11-30, at 127.0.0.1:6380
`,
		flags: func(fs *pflag.FlagSet) action {
			t := targetFlags(fs)
			fs.Lookup("timeout").Usage = "with --addr: how long to wait for the connection; the copy takes what it takes"
			return func(p *program, operands []string) error {
				if operands[0] == "" {
					return usagef("DEST must not be empty")
				}
				if err := t.check(); err != nil {
					return err
				}
				if t.remote() {
					return p.backupRemote(t, operands[0])
				}
				return p.backup(t, operands[0])
			}
		},
	}
}

// backup copies the store of t to dest.
func (p *program) backup(t *target, dest string) error {
	l, err := t.openStore(p, false)
	if err != nil {
		return err
	}
	ctx, stop := interruptible()
	defer stop()
	_, clear := p.progress("copying the store")
	err = l.Checkpoint(ctx, dest)
	clear()
	if errors.Is(err, context.Canceled) {
		err = errors.New("interrupted: there is no backup")
	}
	if err = errors.Join(err, l.Close()); err != nil {
		return err
	}
	_, err = fmt.Fprintf(p.stdout, "backup      %s\n", dest)
	return err
}

// backupRemote has the server of t copy its store under that name.
func (p *program) backupRemote(t *target, name string) error {
	c, err := t.dial(0)
	if err != nil {
		return err
	}
	defer c.Close()
	_, clear := p.progress("the server is copying its store")
	_, err = c.Do("BACKUP", name)
	clear()
	if err != nil {
		return err
	}
	reply, err := c.Do("CONFIG", "GET", "backup-dir")
	if err != nil {
		return fmt.Errorf("the backup was made, but where it is the server didn't say: %w", err)
	}
	where := name
	if pair, ok := reply.([]any); ok && len(pair) == 2 {
		where = path.Join(fmt.Sprint(pair[1]), name)
	}
	_, err = fmt.Fprintf(p.stdout, "backup      %s, at %s\n", where, t.addr)
	return err
}

func restoreVerb() verb {
	return verb{
		name:     "restore",
		operands: "BACKUP",
		min:      1, max: 1,
		summary: "make a store from a backup",
		help: `
BACKUP is a directory that gabion backup has made, or any other store that no
server has open. It is copied, and stays as it is. The copy is checked, as by
gabion check, before it is put in place: from a backup that is damaged nothing
is made, unless no answer depends on what is wrong.

A copy that is cut off is called DIR.partial, and is to be removed.

Example:
  $ gabion restore --dir /var/lib/gabion /var/backups/gabion/2026-11-30
  restored    /var/lib/gabion, from /var/backups/gabion/2026-11-30
  mark        2026-11-30T12:00:00Z
  keys        82 live, 20 expired
`,
		flags: func(fs *pflag.FlagSet) action {
			dir := fs.String("dir", defaultDir, "make the store in this `directory`, which must not exist or be empty")
			return func(p *program, operands []string) error {
				switch {
				case *dir == "":
					return usagef("--dir must not be empty")
				case operands[0] == "":
					return usagef("BACKUP must not be empty")
				}
				return p.restore(operands[0], *dir)
			}
		},
	}
}

// restore makes a store in dir from backup.
func (p *program) restore(backup, dir string) error {
	if err := checkExists(backup); err != nil {
		return err
	}
	opts := &engine.Options{}
	if p.tune != nil {
		p.tune(opts)
	}
	ctx, stop := interruptible()
	defer stop()
	progress, clear := p.progress("copying the backup")
	r, err := engine.Restore(ctx, backup, dir, opts, progress)
	clear()
	switch {
	case errors.Is(err, context.Canceled):
		return errors.New("interrupted: nothing was restored")
	case errors.Is(err, engine.ErrDamaged):
		return fmt.Errorf("%s is damaged: nothing was made of it, gabion check tells what is wrong and what mends it", backup)
	case err != nil:
		return stopFirst(backup, err)
	}
	mark := "none"
	if !r.Mark.IsZero() {
		mark = r.Mark.UTC().Format(time.RFC3339Nano)
	}
	_, err = fmt.Fprintf(p.stdout, "restored    %s, from %s\nmark        %s\nkeys        %d live, %d expired\n", dir, backup, mark,
		r.GCRA.Live+r.Quota.Live+r.Rolling.Live, r.GCRA.Expired+r.Quota.Expired+r.Rolling.Expired)
	return err
}
