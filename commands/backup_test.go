package commands_test

import (
	"context"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/gabiondb/gabion/commands"
	"github.com/gabiondb/gabion/engine"
)

func TestBackup(t *testing.T) {
	fs := vfs.NewMem()
	f := serveStore(t, commands.Config{BackupDir: "backups"}, engine.Options{FS: fs})
	const refused = "-ERR the name of a backup is 1 to 128 of A-Z a-z 0-9 . _ - and begins with a letter or digit\r\n"
	c := f.dial()
	for _, step := range []struct{ request, want string }{
		{words("CL.THROTTLE user:42 15 30 60"), ints(0, 16, 15, -1, 2)},
		{words("BACKUP 2026-11-30_a.b"), "+OK\r\n"},
		{words("BACKUP 2026-11-30_a.b"), "-ERR backup: backups/2026-11-30_a.b: file already exists, and is not empty\r\n"},
		{words("BACKUP a.partial"), "-ERR backup: backups/a.partial: a name with .partial at its end is for what is not complete\r\n"},
		{words("backup b") + words("CL.THROTTLE user:42 15 30 60"), "+OK\r\n" + ints(0, 16, 14, -1, 4)},
		{request("BACKUP", ""), refused},
		{words("BACKUP ."), refused},
		{words("BACKUP .."), refused},
		{words("BACKUP .hidden"), refused},
		{words("BACKUP a/b"), refused},
		{words("BACKUP ../../etc"), refused},
		{words(`BACKUP a\b`), refused},
		{words("BACKUP c:"), refused},
		{request("BACKUP", "a b"), refused},
		{request("BACKUP", "a\x00"), refused},
		{request("BACKUP", "\xc1"), refused},
		{request("BACKUP", strings.Repeat("a", 129)), refused},
		{words("BACKUP"), "-ERR wrong number of arguments for 'backup' command\r\n"},
		{words("CONFIG GET backup-dir"), "*2\r\n$10\r\nbackup-dir\r\n$7\r\nbackups\r\n"},
	} {
		if got := c.ask(step.request); got != step.want {
			t.Errorf("%q: %q, want %q", step.request, got, step.want)
		}
	}
	if names, err := fs.List("backups"); err != nil || len(names) != 2 {
		t.Errorf("the backups are %q, %v, want two", names, err)
	}
	l, err := engine.Open("backups/b", &engine.Options{FS: fs, Now: f.now})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := commands.NewLocal(l).Do("PTTL", "user:42"); got != int64(2000) || err != nil {
		t.Errorf("PTTL = %v, %v, want 2000", got, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func TestBackupIsOff(t *testing.T) {
	c := serve(t, commands.Config{}).dial()
	if got, want := c.ask(words("BACKUP a")), "-ERR backups are off, the server was started without --backup-dir\r\n"; got != want {
		t.Errorf("BACKUP replies %q, want %q", got, want)
	}
}

// TestBackupUnderWay holds a backup up. Other connections are served, but for
// another backup, and a server that stops gives it up.
func TestBackupUnderWay(t *testing.T) {
	fs, begun, proceed := vfs.NewMem(), make(chan struct{}), make(chan struct{})
	hook := errorfs.InjectorFunc(func(op errorfs.Op) error {
		if strings.HasPrefix(op.Path, "backups/a.partial/MANIFEST") && op.Kind == errorfs.OpCreate {
			close(begun)
			<-proceed
		}
		return nil
	})
	f := serveStore(t, commands.Config{BackupDir: "backups"}, engine.Options{FS: errorfs.Wrap(fs, hook), NoPurge: true})
	f.dial().send(words("BACKUP a"))
	<-begun
	c := f.dial()
	if got, want := c.ask(words("BACKUP b")+words("DBSIZE")), "-ERR another backup is being made\r\n:0\r\n"; got != want {
		t.Errorf("while a backup is being made: %q, want %q", got, want)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := f.server.Shutdown(ctx); err != context.Canceled {
		t.Errorf("Shutdown() = %v, want %v", err, context.Canceled)
	}
	close(proceed)
	if err := f.server.Shutdown(context.Background()); err != nil { // waits for its connection
		t.Errorf("Shutdown() = %v", err)
	}
	if names, err := fs.List("backups"); err != nil || len(names) > 0 {
		t.Errorf("%q are left, %v", names, err)
	}
}
