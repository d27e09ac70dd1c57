package main

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestRestoreDamaged(t *testing.T) {
	backup := damagedStore(t)
	dir := filepath.Join(t.TempDir(), "restored")
	var stdout, stderr bytes.Buffer
	status := run([]string{"restore", backup, "--dir", dir}, &stdout, &stderr)
	want := "gabion: " + backup + " is damaged: nothing was made of it, gabion check tells what is wrong and what mends it\n"
	if status != exitError || stderr.String() != want {
		t.Errorf("restore exits with %d and %q, want %d and %q", status, stderr.String(), exitError, want)
	}
	if entries, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(entries) > 0 {
		t.Errorf("%v are left, %v", entries, err)
	}
}

// TestBackupUnderLoad backs a server up while clients charge its keys, kills it
// and serves what is restored. Every charge that was acknowledged before the
// backup began is there.
func TestBackupUnderLoad(t *testing.T) {
	rng := rand.New(rand.NewPCG(newSeed(t), 0))
	root := keptDir(t)
	backups, restored := filepath.Join(root, "backups"), filepath.Join(root, "restored")
	gabion := func(args ...string) {
		if out, err := gabionCommand(t, args...).CombinedOutput(); err != nil {
			t.Errorf("gabion %s: %v\n%s", args, err, out)
		}
	}
	rounds := []string{"always", "interval", "never"}
	if testing.Short() {
		rounds = rounds[:1]
	}
	for _, durability := range rounds {
		server := startServer(t, filepath.Join(root, durability), "--durability", durability, "--backup-dir", backups)
		l := &load{t: t, quota: "quota"}
		var before, after [loadKeys]int64
		var once sync.Once
		l.run(server.addr, rng, func(answers int64) {
			if answers < 3000 {
				return
			}
			go once.Do(func() { // the load goes on
				defer server.cmd.Process.Kill()
				l.mu.Lock()
				for key := range before {
					before[key] = int64(len(l.keys[key].acks))
				}
				l.mu.Unlock()
				gabion("backup", "--addr", server.addr, durability)
				l.mu.Lock()
				for key := range after {
					after[key] = l.keys[key].sent
				}
				l.mu.Unlock()
			})
		})
		server.wait()
		gabion("check", "--dir", filepath.Join(backups, durability))
		gabion("restore", "--dir", filepath.Join(restored, durability), filepath.Join(backups, durability))
		server = startServer(t, filepath.Join(restored, durability))
		c := dialClient(t, server.addr)
		for key := range before {
			if n := charged(t, c, key); n < before[key] || n > after[key] {
				t.Errorf("%s: key:%d was charged %d, want %d to %d", durability, key, n, before[key], after[key])
			}
		}
		t.Logf("%s: backed up after %d charges of key:0, and before %d", durability, before[0], after[0])
	}
}

// TestBackupDirRefused starts servers with directories for backups that can't be.
func TestBackupDirRefused(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	store := filepath.Join(dir, "store")
	for backups, want := range map[string]string{
		store:                           "lies in the store",
		filepath.Join(store, "backups"): "lies in the store",
		file:                            "can't make the directory for backups",
		filepath.Join(file, "backups"):  "can't make the directory for backups",
	} {
		var out bytes.Buffer
		status := run([]string{"serve", "--dir", store, "--addr", "127.0.0.1:0", "--backup-dir", backups}, &out, &out)
		if status != exitError || !strings.Contains(out.String(), want) {
			t.Errorf("serve --backup-dir %s: status %d, %q, want %d and %q", backups, status, &out, exitError, want)
		}
	}
}
