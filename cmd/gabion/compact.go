package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/gabiondb/gabion/engine"
)

func compactVerb() verb {
	return verb{
		name:    "compact",
		summary: "delete what has expired, and free its space",
		help: `
It works on a store that no server has open. A server purges by itself while it
runs, and this is for when the space is wanted at once. It changes no answer.

What is over by a wall clock that is more than 48 hours ahead of the newest
charge in the store is kept, in case that clock is wrong; --trust-clock says
that it is right.

Example:
  $ gabion compact --dir /var/lib/gabion
  purged      1000000 records
  tables      28114072 bytes before, 986 after
`,
		flags: func(fs *pflag.FlagSet) action {
			dir := fs.String("dir", defaultDir, "compact the store in this `directory`; no server may have it open")
			trust := fs.Bool("trust-clock", false, "believe the wall clock, however far ahead it is")
			return func(p *program, _ []string) error {
				if *dir == "" {
					return usagef("--dir must not be empty")
				}
				return p.compact(*dir, *trust)
			}
		},
	}
}

// compact compacts the store in dir.
func (p *program) compact(dir string, trustClock bool) error {
	if err := checkExists(dir); err != nil {
		return err
	}
	opts := &engine.Options{NoPurge: true}
	if trustClock {
		opts.PurgeAhead = math.MaxInt64
	}
	l, err := p.openStore(dir, opts)
	if err != nil {
		return stopFirst(dir, err)
	}
	ctx, stop := interruptible()
	defer stop()
	before := l.Metrics()
	progress, clear := p.progress("purging")
	err = l.Compact(ctx, progress)
	clear()
	after := l.Metrics()
	switch {
	case errors.Is(err, context.Canceled):
		err = errors.New("interrupted: what has been done so far holds")
	case err != nil:
		what, _, _ := strings.Cut(err.Error(), "\n") // Pebble's errors go on for pages
		err = fmt.Errorf("%s: gabion check tells what is damaged", what)
	}
	if err = errors.Join(err, l.Close()); err != nil {
		return err
	}
	if after.PurgeBehind > 0 {
		fmt.Fprintf(p.stderr, "the clock is far ahead of the store, so what has expired in the last %v is kept: --trust-clock deletes it, too\n", after.PurgeBehind.Round(time.Second))
	}
	_, err = fmt.Fprintf(p.stdout, "purged      %d records\ntables      %d bytes before, %d after\n", after.Purged, before.TableBytes, after.TableBytes)
	return err
}
