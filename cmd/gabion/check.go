package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/pflag"

	"github.com/gabiondb/gabion/engine"
)

// errDamaged is what check ends with when it has named what is wrong.
var errDamaged = errors.New("the store is damaged")

func checkVerb() verb {
	return verb{
		name:    "check",
		summary: "look for damage in a store, and change nothing",
		help: `
It reads the whole of a store that no server has open, tells what is in it, and
names each damage with what can be done about it. The exit status is 0 if there
is none, and 1 otherwise. What has expired is still on disk, and no damage.

A store that was cut off by a crash is whole up to its mark. That its log has
lost its end can't be told from a crash: "closed in good order" is missing then.

Sidecars tell where expired records are. They are stale after a crash, which is
no damage either.

Example:
  $ gabion check
  store       ./gabion-data, format 1
  mark        2026-11-30T12:00:00Z
  bytes       4823

                    live     expired
  gcra                80          20
  quota                1           0
  rolling              1           0
  all keys            82          20   19.6 % expired
  requests             3           0

  chunks               2
  sidecars            80   0 stale, 0 missing
  unreadable           0

  no damage
`,
		flags: func(fs *pflag.FlagSet) action {
			dir := fs.String("dir", defaultDir, "check the store in this `directory`; no server may have it open")
			asJSON := fs.Bool("json", false, "answer with one object")
			return func(p *program, _ []string) error {
				if *dir == "" {
					return usagef("--dir must not be empty")
				}
				r, err := p.check(*dir)
				if err != nil {
					return err
				}
				if *asJSON {
					err = p.printJSON(newReportJSON(*dir, &r))
				} else {
					err = printReport(p.stdout, *dir, &r)
				}
				if err == nil && r.Damaged > 0 {
					err = errDamaged
				}
				return err
			}
		},
	}
}

// check checks the store in dir. How far it is shows on standard error, if that
// is a terminal.
func (p *program) check(dir string) (engine.Report, error) {
	if err := checkExists(dir); err != nil {
		return engine.Report{}, err
	}
	opts := &engine.Options{}
	if p.tune != nil {
		p.tune(opts)
	}
	progress, clear := p.progress("reading the tables")
	defer clear()
	r, err := engine.Check(dir, opts, func(slices int) { progress(slices, engine.ScanEnd) })
	return r, stopFirst(dir, err)
}

// stopFirst returns err, or what to do about a store in dir that is in use.
func stopFirst(dir string, err error) error {
	if errors.Is(err, engine.ErrInUse) {
		return fmt.Errorf("%s is in use by another process: stop that first", dir)
	}
	return err
}

// printReport writes r for people.
func printReport(w io.Writer, dir string, r *engine.Report) error {
	out := bufio.NewWriter(w)
	if r.Format > 0 { // it could be opened
		printContents(out, dir, r)
	}
	for _, d := range r.Damage {
		out.WriteString("damage: ")
		if d.Key != nil {
			fmt.Fprintf(out, "key %q: ", d.Key)
		}
		fmt.Fprintf(out, "%s\n  %s\n", d.What, advice(d.Remedy))
	}
	switch more := r.Damaged - int64(len(r.Damage)); {
	case r.Damaged == 0:
		out.WriteString("no damage\n")
	case more > 0:
		fmt.Fprintf(out, "%d damages, %d of them not named\n", r.Damaged, more)
	}
	return out.Flush()
}

func printContents(out io.Writer, dir string, r *engine.Report) {
	mark := "none"
	if !r.Mark.IsZero() {
		mark = r.Mark.UTC().Format(time.RFC3339Nano)
	}
	if r.Clean {
		mark += ", closed in good order"
	}
	fmt.Fprintf(out, "store       %s, format %d\nmark        %s\nbytes       %d\n\n", dir, r.Format, mark, r.Bytes)

	fmt.Fprintf(out, "%-10s %11s %11s\n", "", "live", "expired")
	count := func(name string, c engine.Count, note string) {
		fmt.Fprintf(out, "%-10s %11d %11d%s\n", name, c.Live, c.Expired, note)
	}
	all := engine.Count{
		Live:    r.GCRA.Live + r.Quota.Live + r.Rolling.Live,
		Expired: r.GCRA.Expired + r.Quota.Expired + r.Rolling.Expired,
	}
	share := ""
	if n := all.Live + all.Expired; n > 0 {
		share = fmt.Sprintf("   %.1f %% expired", 100*float64(all.Expired)/float64(n))
	}
	count("gcra", r.GCRA, "")
	count("quota", r.Quota, "")
	count("rolling", r.Rolling, "")
	count("all keys", all, share)
	count("requests", r.Requests, "")

	fmt.Fprintf(out, "\n%-10s %11d\n", "chunks", r.Chunks)
	fmt.Fprintf(out, "%-10s %11d   %d stale, %d missing\n", "sidecars", r.Sidecars, r.StaleSidecars, r.MissingSidecars)
	fmt.Fprintf(out, "%-10s %11d\n\n", "unreadable", r.Unreadable)
}

// advice says what can be done about a damage.
func advice(r engine.Remedy) string {
	switch r {
	case engine.RemedyReset:
		return "what mends it: forget the key, with gabion del"
	case engine.RemedyNone:
		return "nothing has to be done: no answer depends on it"
	}
	return "what mends it: a backup of the store"
}

// reportJSON is what check --json prints.
type reportJSON struct {
	Dir        string       `json:"dir"`
	Format     uint64       `json:"format"`
	Mark       *time.Time   `json:"mark"` // null if there is none
	Clean      bool         `json:"clean"`
	Bytes      int64        `json:"bytes"`
	GCRA       countJSON    `json:"gcra"`
	Quota      countJSON    `json:"quota"`
	Rolling    countJSON    `json:"rolling"`
	Requests   countJSON    `json:"requests"`
	Chunks     int64        `json:"chunks"`
	Sidecars   int64        `json:"sidecars"`
	Stale      int64        `json:"stale_sidecars"`
	Missing    int64        `json:"missing_sidecars"`
	Unreadable int64        `json:"unreadable"`
	Damaged    int64        `json:"damaged"`
	Damage     []damageJSON `json:"damage"`
}

type countJSON struct {
	Live    int64 `json:"live"`
	Expired int64 `json:"expired"`
}

type damageJSON struct {
	keyJSON
	What   string `json:"what"`
	Remedy string `json:"remedy"`
}

func newReportJSON(dir string, r *engine.Report) *reportJSON {
	out := &reportJSON{
		Dir:        dir,
		Format:     r.Format,
		Clean:      r.Clean,
		Bytes:      r.Bytes,
		GCRA:       countJSON(r.GCRA),
		Quota:      countJSON(r.Quota),
		Rolling:    countJSON(r.Rolling),
		Requests:   countJSON(r.Requests),
		Chunks:     r.Chunks,
		Sidecars:   r.Sidecars,
		Stale:      r.StaleSidecars,
		Missing:    r.MissingSidecars,
		Unreadable: r.Unreadable,
		Damaged:    r.Damaged,
		Damage:     []damageJSON{},
	}
	if !r.Mark.IsZero() {
		mark := r.Mark.UTC()
		out.Mark = &mark
	}
	for _, d := range r.Damage {
		out.Damage = append(out.Damage, damageJSON{newKeyJSON(string(d.Key)), d.What, d.Remedy.String()})
	}
	return out
}
