package commands

import (
	"errors"
	"path/filepath"
	"strings"

	"github.com/gabiondb/gabion/engine"
)

const (
	errBackupOff   Error = "ERR backups are off, the server was started without --backup-dir"
	errBackupName  Error = "ERR the name of a backup is 1 to 128 of A-Z a-z 0-9 . _ - and begins with a letter or digit"
	errBackupTaken Error = "ERR another backup is being made"
)

// backupCommand makes a copy of the store on the server's machine. A client must
// not write where it likes there, so it chooses a name and nothing else.
func backupCommand() *command {
	return &command{
		name: "backup", arity: 2, run: runBackup, flags: admin,
		wireError: func(err error) Error {
			if what, ok := strings.CutPrefix(err.Error(), "engine: make a checkpoint: "); ok && !errors.Is(err, engine.ErrStorage) {
				return Error("ERR backup: " + what)
			}
			return wireError(err)
		},
		summary: "Makes a copy of the store in the server's directory for backups",
		group:   "server", complexity: "O(N) where N is the size of the store, O(1) where the file system can link its files",
		arguments: []argument{{name: "name", kind: "string"}},
	}
}

func runBackup(s *session, args [][]byte) error {
	dir := s.srv.cfg.BackupDir
	switch {
	case dir == "":
		return errBackupOff
	case !isBackupName(args[1]):
		return errBackupName
	case !s.srv.backup.TryLock():
		return errBackupTaken
	}
	defer s.srv.backup.Unlock()
	if err := s.srv.limiter.Checkpoint(s.srv.ctx, filepath.Join(dir, string(args[1]))); err != nil {
		return err
	}
	s.ok()
	return nil
}

func isBackupName(name []byte) bool {
	for i, c := range name {
		letter, digit := 'a' <= c|0x20 && c|0x20 <= 'z', '0' <= c && c <= '9'
		if !letter && !digit && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return 1 <= len(name) && len(name) <= 128
}
