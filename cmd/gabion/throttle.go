package main

import "github.com/spf13/pflag"

func throttleVerb() verb {
	return verb{
		name:     "throttle",
		operands: "KEY MAX_BURST COUNT PERIOD [QUANTITY]",
		min:      4, max: 5,
		summary: "decide whether an event may pass now, and charge it",
		help: `
COUNT events per PERIOD seconds may pass, evenly spaced, and up to MAX_BURST
more ahead of time. QUANTITY (1) is how many ask at once; 0 only looks. A
directory without a store gets one. The answer is

  [limited, limit, remaining, retry_after, reset_after]

limited is 1 for a denial. retry_after is -1 if the event has passed, or never
can. Both times are in seconds.

Example:
  $ gabion throttle user:42 15 30 60
  [0,16,15,-1,2]
`,
		flags: decideFlags("CL.THROTTLE", true),
	}
}

func probeVerb() verb {
	return verb{
		name:     "probe",
		operands: "KEY MAX_BURST COUNT PERIOD [QUANTITY]",
		min:      4, max: 5,
		summary: "tell what throttle would answer now, and change nothing",
		help: `
The arguments and the answer are those of throttle.

Example:
  $ gabion probe user:42 15 30 60 10
  [0,16,6,-1,20]
`,
		flags: decideFlags("CL.PROBE", false),
	}
}

func refundVerb() verb {
	return verb{
		name:     "refund",
		operands: "KEY MAX_BURST COUNT PERIOD QUANTITY",
		min:      5, max: 5,
		summary: "give events back that throttle has charged",
		help: `
The answer is that of "gabion probe" for a QUANTITY of 0: how KEY stands
afterwards. More than KEY owes makes it whole and no more. To refund twice gives
back twice, so don't repeat one whose outcome is unknown.

Example:
  $ gabion throttle user:42 15 30 60 10
  [0,16,6,-1,20]
  $ gabion refund user:42 15 30 60 4
  [0,16,10,-1,12]
`,
		flags: func(fs *pflag.FlagSet) action {
			t := targetFlags(fs)
			return func(p *program, operands []string) error {
				return t.do(p, false, func(d doer) error {
					return p.decide(d, denial{}, append([]string{"CL.REFUND"}, operands...)...)
				})
			}
		},
	}
}

// decideFlags declares the flags of a verb that runs command, which answers
// with five integers, the first of them 1 for a denial.
func decideFlags(command string, create bool) func(*pflag.FlagSet) action {
	return func(fs *pflag.FlagSet) action {
		t := targetFlags(fs)
		exitCode := exitCodeFlag(fs)
		return func(p *program, operands []string) error {
			return t.do(p, create, func(d doer) error {
				return p.decide(d, denial{value: 1, exit: *exitCode}, append([]string{command}, operands...)...)
			})
		}
	}
}

func exitCodeFlag(fs *pflag.FlagSet) *bool {
	return fs.Bool("exit-code", false, "exit with 3 on a denial")
}

// denial tells what to make of the first integer of a reply.
type denial struct {
	value int64 // that says no
	exit  bool  // whether the exit status is to say so
}

// decide runs a command and prints the reply.
func (p *program) decide(d doer, no denial, args ...string) error {
	reply, err := d.Do(args...)
	if err != nil {
		return err
	}
	if err := p.printJSON(reply); err != nil {
		return err
	}
	if row, ok := reply.([]any); ok && no.exit && len(row) > 0 && row[0] == no.value {
		return errDenied
	}
	return nil
}
