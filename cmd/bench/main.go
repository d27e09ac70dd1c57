// Command bench runs gabion and its peers side by side on this machine, in turn
// and several times, and reports medians and ratios.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

func main() {
	asChild()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second interrupt is not waited for
	switch err := bench(ctx, os.Args[1:], os.Stdout, os.Stderr); {
	case errors.Is(err, pflag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// asChild does what another process of this program wants done in one of its own,
// if it has been started for that, and ends.
func asChild() {
	if os.Getenv(bareServerEnv) != "" {
		fmt.Fprintln(os.Stderr, bareServer())
		os.Exit(1)
	}
	if job, ok := os.LookupEnv(storeJobEnv); ok {
		fmt.Fprintln(os.Stderr, doStoreJob(job, os.Stdout))
		os.Exit(1)
	}
}

// tables returns all that there is to measure, in the order of the report.
func tables() []*Table {
	return slices.Concat(processTables(), wireTables(), scaleTables())
}

// withoutRedis is the --only that chooses what needs no other program.
const withoutRedis = "^(in process|scale)/"

const usage = `Runs gabion and its peers side by side on this machine, in turn and several times,
and reports medians and ratios. All of it takes long: --list names what there is,
and --only chooses from it.

  bench                                  measure everything
  bench --only 'in process/one hot key'  measure a part
  bench --rounds 1 --time 100ms          see whether all of it runs here
  bench --from a.json --from b.json      measure nothing, report what they hold

While it runs, leave the machine alone. The report is written as text (also to
standard output), as Markdown and as a plot, and all samples as JSON. An interrupt
ends the measurement and reports what there is, a second one ends it all. Samples
are written as they come: --from reports those of a run that was cut off.

Flags:
`

func bench(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := pflag.NewFlagSet("bench", pflag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.SortFlags = false
	flags.Usage = func() { fmt.Fprintln(stdout, usage+strings.TrimRight(flags.FlagUsagesWrapped(100), "\n")) }
	list := flags.Bool("list", false, "list what there is to measure, and measure nothing")
	only := flags.String("only", "", "measure only what matches this `regexp` as section/table/subject, and what that is compared with")
	rounds := flags.Int("rounds", 5, "how often to measure everything")
	length := flags.Duration("time", time.Second, "how long to measure each figure, each time")
	dir := flags.String("dir", "", "the `directory` to put stores into, on the disk to measure (default: the one for temporary files)")
	out := flags.String("out", "bench-results", "the `directory` to put report.txt, report.md, report.svg and samples.json into; a samples.json of before is kept")
	from := flags.StringArray("from", nil, "measure nothing, and report what this `samples.json` holds; of several, the last that has samples of a subject")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("what is %q? There are flags only", flags.Arg(0))
	}
	if *rounds < 1 || *length <= 0 {
		return errors.New("--rounds and --time have to be positive")
	}
	pattern, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	r := &Report{Settings: Settings{Rounds: *rounds, Time: *length}}
	if len(*from) == 0 {
		r.Tables = tables()
	} else if r, err = readSamples(*from); err != nil {
		return err
	}
	r.Tables = choose(r.Tables, pattern)
	if len(r.Tables) == 0 {
		return fmt.Errorf("nothing matches --only %q; --list lists what there is", *only)
	}
	if *list {
		for _, t := range r.Tables {
			for _, s := range t.Subjects {
				fmt.Fprintln(stdout, t.path(s.Name))
			}
		}
		return nil
	}
	if len(*from) > 0 {
		if err := makeRoom(*out); err != nil {
			return err
		}
		return r.write(*out, stdout)
	}
	for _, t := range r.Tables {
		if programs := t.missing(); len(programs) > 0 {
			return fmt.Errorf("%q needs %s, which redis 7 has: install it (redis-server and redis-tools of Debian, redis of Homebrew), or leave out what needs it: --only '%s'",
				t.Section, strings.Join(programs, " and "), withoutRedis)
		}
	}
	stores, err := os.MkdirTemp(*dir, "gabion-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(stores)
	if err := makeRoom(*out); err != nil {
		return err // now rather than after an hour
	}

	r.Settings.Samples = filepath.Join(*out, samplesFile)
	r.Machine = machine(ctx, stores, r.Settings)
	err = r.measure(ctx, stores, stderr)
	return errors.Join(r.write(*out, stdout), err)
}

const samplesFile = "samples.json"

// makeRoom makes the directory of a report, unless it is there, and keeps the
// samples of a report before under another name.
func makeRoom(dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	samples := filepath.Join(dir, samplesFile)
	info, err := os.Stat(samples)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	earlier := fmt.Sprintf("samples-%s.json", info.ModTime().UTC().Format("20060102T150405"))
	return os.Rename(samples, filepath.Join(dir, earlier))
}

// write writes the report into a directory and to stdout.
func (r *Report) write(dir string, stdout io.Writer) error {
	return errors.Join(
		writeFile(filepath.Join(dir, samplesFile), r.writeSamples),
		writeFile(filepath.Join(dir, "report.txt"), r.writeText),
		writeFile(filepath.Join(dir, "report.md"), r.writeMarkdown),
		writeFile(filepath.Join(dir, "report.svg"), r.writePlot),
		r.writeText(stdout),
	)
}

// writeFile puts a file in the place of the one that has its name. At no time is
// there a part of one.
func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name + ".new")
	if err != nil {
		return err
	}
	if err := errors.Join(write(f), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
