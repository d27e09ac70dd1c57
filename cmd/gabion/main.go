// Gabion keeps rate limits on disk and answers for them: to Redis clients as a
// server, and to a shell as a command.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/gabiondb/gabion/engine"
)

// The exit statuses.
const (
	exitOK     = 0 // answered
	exitError  = 1 // not answered; standard error says why
	exitUsage  = 2 // not understood
	exitDenied = 3 // answered "denied", and --exit-code was given
)

// errDenied makes the program exit with exitDenied.
var errDenied = errors.New("denied")

// usageError is a command line that makes no sense.
type usageError struct {
	verb string // whose help to point at, filled in by runVerb
	err  error
}

func usagef(format string, args ...any) error {
	return &usageError{err: fmt.Errorf(format, args...)}
}

func (e *usageError) Error() string {
	return fmt.Sprintf("%v; see \"%s --help\"", e.err, strings.TrimSpace("gabion "+e.verb))
}

func (e *usageError) Unwrap() error { return e.err }

// program is what the verbs have in common with the world.
type program struct {
	stdout, stderr io.Writer

	// tune, if set, changes the options that a store is opened with: a test
	// has its own clock and file system.
	tune func(*engine.Options)
}

// verb is one thing that the program can do.
type verb struct {
	name     string
	operands string // as the help spells them
	min, max int    // how many operands there may be; max < 0 sets no bound
	summary  string // one line
	help     string // what the summary leaves open, and an example

	// flags declares the verb's flags in fs and returns what runs the verb
	// once they have been parsed.
	flags func(fs *pflag.FlagSet) action
}

// action runs a verb on its operands.
type action func(p *program, operands []string) error

// verbs returns all of them, in the order of the help.
func verbs() []verb {
	return []verb{
		serveVerb(),
		throttleVerb(), probeVerb(), refundVerb(), quotaVerb(), rollVerb(),
		getVerb(), ttlVerb(), delVerb(), lsVerb(),
		checkVerb(), compactVerb(), backupVerb(), restoreVerb(), versionVerb(),
	}
}

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run carries out the command line args, which leave out the program's name,
// and returns the exit status.
func run(args []string, stdout, stderr io.Writer) int {
	p := &program{stdout: stdout, stderr: stderr}
	return p.run(args)
}

// openStore opens the store in dir.
func (p *program) openStore(dir string, opts *engine.Options) (*engine.Limiter, error) {
	if p.tune != nil {
		p.tune(opts)
	}
	return engine.Open(dir, opts)
}

func (p *program) run(args []string) int {
	err := p.dispatch(args)
	var usage *usageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errDenied):
		return exitDenied
	case errors.Is(err, syscall.EPIPE):
		return exitError // the reader has left, as head does: that is no news
	}
	fmt.Fprintf(p.stderr, "gabion: %v%s\n", err, remedy(err))
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitError
}

// remedy says what to do about a failure of the storage, if that is plain.
func remedy(err error) string {
	switch {
	case !errors.Is(err, engine.ErrStorage):
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return ": make room for the store, then try again"
	case errors.Is(err, syscall.EFBIG):
		return ": let the process write larger files (ulimit -f), then try again"
	}
	return ""
}

func (p *program) dispatch(args []string) error {
	if len(args) == 0 {
		return usagef("no verb")
	}
	name, args := args[0], args[1:]
	switch name {
	case "help", "--help", "-h":
		if len(args) == 0 {
			return p.printHelp()
		}
		name, args = args[0], []string{"--help"}
	case "--version":
		name = "version"
	}
	for _, v := range verbs() {
		if v.name == name {
			return p.runVerb(v, args)
		}
	}
	return usagef("unknown verb %q", name)
}

func (p *program) runVerb(v verb, args []string) error {
	fs := pflag.NewFlagSet(v.name, pflag.ContinueOnError)
	fs.Usage = func() {} // the error says enough
	fs.SortFlags = false
	act := v.flags(fs)
	operands, err := parseFlags(fs, args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return p.printVerbHelp(v, fs)
	case err != nil:
		err = &usageError{err: err}
	case len(operands) < v.min:
		err = usagef("too few arguments: want %s", v.operands)
	case v.max >= 0 && len(operands) > v.max:
		err = usagef("too many arguments: want %s", cmp.Or(v.operands, "none"))
	default:
		err = act(p, operands)
	}
	var usage *usageError
	if errors.As(err, &usage) {
		usage.verb = v.name
	}
	return err
}

func (p *program) printHelp() error {
	var b strings.Builder
	b.WriteString("Gabion keeps rate limits on disk and answers for them.\n\nUsage:\n")
	for _, v := range verbs() {
		fmt.Fprintf(&b, "  gabion %-9s %s\n", v.name, v.summary)
	}
	b.WriteString(`
"gabion VERB --help" tells more. serve, check, compact and restore work on a
store that nobody else has open (--dir), the other verbs on such a store or
through the server that has it (--addr). They exit with 0 when they were
answered, 1 on an error and 2 on wrong usage; with --exit-code, the verbs that
decide exit with 3 on a denial.
`)
	_, err := io.WriteString(p.stdout, b.String())
	return err
}

func (p *program) printVerbHelp(v verb, fs *pflag.FlagSet) error {
	usage := []string{"gabion", v.name}
	if v.operands != "" {
		usage = append(usage, v.operands)
	}
	flags := ""
	if fs.HasFlags() {
		usage = append(usage, "[flags]")
		flags = "\nFlags:\n" + fs.FlagUsages()
	}
	_, err := fmt.Fprintf(p.stdout, "Usage:\n  %s\n\n%s%s.\n%s%s",
		strings.Join(usage, " "), strings.ToUpper(v.summary[:1]), v.summary[1:], v.help, flags)
	return err
}

// interruptible returns a context that ends when the process is told to.
func interruptible() (ctx context.Context, stop func()) {
	return signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
}
