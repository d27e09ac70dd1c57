package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gabiondb/gabion/engine"
)

// sourceVersion is the version of a binary that was not built from a tagged
// module: the release that this source leads up to.
const sourceVersion = "0.1.0-dev"

const pebblePath = "github.com/cockroachdb/pebble/v2"

func versionVerb() verb {
	return verb{
		name:    "version",
		summary: "tell which gabion this is",
		help: `
It tells the versions of gabion, Go and Pebble, and the newest format of a
store that this gabion reads, which is the one that it writes.

Example:
  $ gabion version
  gabion 0.1.0 (go1.26.8, pebble v2.1.7, format 1)
`,
		flags: func(*pflag.FlagSet) action {
			return func(p *program, _ []string) error {
				_, err := fmt.Fprintf(p.stdout, "gabion %s (%s, pebble %s, format %d)\n",
					version(), runtime.Version(), pebbleVersion(), engine.Format)
				return err
			}
		},
	}
}

// version returns the version of the binary, without a v.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return sourceVersion
	}
	return strings.TrimPrefix(info.Main.Version, "v")
}

func pebbleVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == pebblePath {
				return m.Version
			}
		}
	}
	return "unknown"
}
