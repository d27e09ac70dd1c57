package commands_test

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/gabiondb/gabion/commands"
)

// TestIoredis has ioredis, as npm installs it, drive all kinds of keys by the
// script in testdata/ioredis.
func TestIoredis(t *testing.T) {
	if testing.Short() {
		t.Skip("installs ioredis, which takes a while")
	}
	node, npm := tool(t, "node"), tool(t, "npm")
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("testdata/ioredis")); err != nil {
		t.Fatal(err)
	}
	install := exec.CommandContext(t.Context(), npm, strings.Fields("ci --ignore-scripts --prefer-offline --no-audit --no-fund --loglevel=error")...)
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		if os.Getenv("CI") == "" {
			t.Skipf("npm can't install ioredis: %v: %s", err, out)
		}
		t.Fatalf("npm can't install ioredis, and this is CI: %v: %s", err, out)
	}
	for _, protocol := range []string{"2", "3"} {
		t.Run("RESP"+protocol, func(t *testing.T) {
			f := serve(t, commands.Config{})
			host, port, _ := net.SplitHostPort(f.addr)
			drive := exec.CommandContext(t.Context(), node, "drive.js", host, port, protocol)
			drive.Dir = dir
			if out, err := drive.CombinedOutput(); err != nil {
				t.Fatalf("drive.js: %v\n%s", err, out)
			}
			stats := f.dial().ask(words("INFO commandstats"))
			for _, want := range []string{
				"cl.throttle:calls=3,", "cl.probe:calls=1,", "cl.refund:calls=1,", "cl.mthrottle:calls=4,", "cl.mprobe:calls=1,",
				"quota.take:calls=212,", "quota.probe:calls=1,", "quota.get:calls=3,", "quota.refund:calls=2,",
				"roll.allow:calls=4,", "roll.incr:calls=2,", "roll.peek:calls=3,", "roll.wait:calls=1,", "flushall:calls=1,",
			} {
				if !strings.Contains(stats, "cmdstat_"+want) {
					t.Errorf("INFO commandstats = %q, want %s", stats, want)
				}
			}
			if strings.Contains(stats, "cmdstat_hello:calls=") != (protocol == "3") {
				t.Errorf("INFO commandstats = %q, want HELLO if it is RESP3", stats)
			}
		})
	}
}
