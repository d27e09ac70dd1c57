package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/gabiondb/gabion/engine"
)

// parseFlags sets the flags among args in fs and returns the operands, which
// may stand between them. Unlike pflag it takes a dash with a digit behind it
// for an operand: no flag looks so, and what is wrong with a negative number
// is for the one who wants a number to say.
func parseFlags(fs *pflag.FlagSet, args []string) (operands []string, err error) {
	var flags []string
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		switch {
		case arg == "--":
			operands = append(operands, args...)
			args = nil
		case !isFlag(arg):
			operands = append(operands, arg)
		default:
			flags = append(flags, arg)
			if takesNext(fs, arg) && len(args) > 0 {
				flags = append(flags, args[0])
				args = args[1:]
			}
		}
	}
	return operands, fs.Parse(flags)
}

func isFlag(arg string) bool {
	return len(arg) > 1 && arg[0] == '-' && (arg[1] < '0' || arg[1] > '9')
}

// takesNext tells whether the value of the flag arg is the argument after it.
// The flags of one letter take none.
func takesNext(fs *pflag.FlagSet, arg string) bool {
	name, long := strings.CutPrefix(arg, "--")
	if !long {
		return false
	}
	f := fs.Lookup(name) // finds nothing for name=value
	return f != nil && f.NoOptDefVal == ""
}

// durabilityFlag is an engine.Durability as a flag.
type durabilityFlag engine.Durability

func (d *durabilityFlag) String() string { return engine.Durability(*d).String() }
func (d *durabilityFlag) Type() string   { return "always|interval|never" }

func (d *durabilityFlag) Set(s string) error {
	for _, known := range []engine.Durability{engine.Always, engine.Interval, engine.Never} {
		if s == known.String() {
			*d = durabilityFlag(known)
			return nil
		}
	}
	return fmt.Errorf("must be always, interval or never")
}

// sizeFlag is a positive number of bytes as a flag: 268435456, 256MiB.
type sizeFlag int64

var sizeUnits = []struct {
	name  string
	bytes int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

func (n *sizeFlag) Type() string { return "size" }

func (n *sizeFlag) String() string {
	for _, u := range sizeUnits {
		if v := int64(*n); v > 0 && v%u.bytes == 0 {
			return strconv.FormatInt(v/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(*n), 10)
}

func (n *sizeFlag) Set(s string) error {
	unit := int64(1)
	for _, u := range sizeUnits {
		if rest, ok := strings.CutSuffix(s, u.name); ok {
			s, unit = rest, u.bytes
			break
		}
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v <= 0 || v > math.MaxInt64/unit {
		return fmt.Errorf("must be a number of bytes, like 268435456 or 256MiB")
	}
	*n = sizeFlag(v * unit)
	return nil
}

// capFlags are the flags of what quotas and rolling lists may ask for. Those
// that a verb doesn't have keep their defaults.
type capFlags struct {
	quotaMaxLimit  int64
	quotaMaxWindow time.Duration
	rollMaxWindow  time.Duration
}

var capNames = []string{"quota-max-limit", "quota-max-window", "roll-max-window"}

func (c *capFlags) addQuota(fs *pflag.FlagSet) {
	fs.Int64Var(&c.quotaMaxLimit, "quota-max-limit", 10_000, "the largest limit of a quota; up to 2^53-1")
	fs.DurationVar(&c.quotaMaxWindow, "quota-max-window", 24*time.Hour, "the longest window of a quota; up to 87600h, ten years")
}

func (c *capFlags) addRolling(fs *pflag.FlagSet) {
	fs.DurationVar(&c.rollMaxWindow, "roll-max-window", 24*time.Hour, "the longest window of a rolling list; up to 87600h, ten years")
}

// check refuses values that make no sense.
func (c *capFlags) check(fs *pflag.FlagSet) error {
	switch {
	case fs.Changed("quota-max-limit") && (c.quotaMaxLimit < 1 || c.quotaMaxLimit > engine.MaxLimit):
		return usagef("--quota-max-limit must be 1 to %d", engine.MaxLimit)
	case fs.Changed("quota-max-window") && (c.quotaMaxWindow < time.Millisecond || c.quotaMaxWindow > engine.MaxWindow):
		return usagef("--quota-max-window must be 1ms to %v", engine.MaxWindow)
	case fs.Changed("roll-max-window") && (c.rollMaxWindow < time.Millisecond || c.rollMaxWindow > engine.MaxWindow):
		return usagef("--roll-max-window must be 1ms to %v", engine.MaxWindow)
	}
	return nil
}

// set puts the caps into opts.
func (c *capFlags) set(opts *engine.Options) {
	opts.QuotaMaxLimit = c.quotaMaxLimit
	opts.QuotaMaxWindow = c.quotaMaxWindow
	opts.RollingMaxWindow = c.rollMaxWindow
}
