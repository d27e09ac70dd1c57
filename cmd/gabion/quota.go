package main

import (
	"strconv"
	"time"

	"github.com/spf13/pflag"
)

func quotaVerb() verb {
	return verb{
		name:     "quota",
		operands: "SUBJECT REQUEST-ID [COST [LIMIT [WINDOW]]]",
		min:      2, max: 5,
		summary: "spend a part of a quota on a request, once however often it is sent",
		help: `
A request may spend COST (1) of the LIMIT (5) that SUBJECT has in a WINDOW (60s;
milliseconds, or with a unit), which the first accepted request opens. The
answer is

  [accepted, used, replay]

A REQUEST-ID that was accepted in this window gets the answer that it got then,
with replay 1, and spends nothing. A directory without a store gets one.

With --refund what REQUEST-ID has spent in this window is given back, once, and
the id stays taken until the window closes. The answer is

  [refunded, used, replay]

Example:
  $ gabion quota alice order-1 2
  [1,2,0]
  $ gabion quota alice order-1 2
  [1,2,1]
  $ gabion quota --refund alice order-1
  [1,0,0]
`,
		flags: func(fs *pflag.FlagSet) action {
			t := targetFlags(fs)
			t.caps.addQuota(fs)
			exitCode := exitCodeFlag(fs)
			probe := fs.Bool("probe", false, "tell what the answer would be, and change nothing")
			refund := fs.Bool("refund", false, "give back what REQUEST-ID has spent; takes no COST")
			return func(p *program, operands []string) error {
				if *refund {
					switch {
					case len(operands) > 2:
						return usagef("--refund takes no COST")
					case *probe || *exitCode:
						return usagef("--refund excludes --probe and --exit-code")
					}
					return t.do(p, false, func(d doer) error {
						return p.decide(d, denial{}, append([]string{"QUOTA.REFUND"}, operands...)...)
					})
				}
				defaults := []string{"", "", "1", "5", "60000"}
				args := append(operands, defaults[len(operands):]...)
				args[4] = windowMillis(args[4])
				command := "QUOTA.TAKE"
				if *probe {
					command = "QUOTA.PROBE"
				}
				return t.do(p, !*probe, func(d doer) error {
					return p.decide(d, denial{value: 0, exit: *exitCode}, append([]string{command}, args...)...)
				})
			}
		},
	}
}

// windowMillis returns the milliseconds of a window that has a unit. What is no
// duration, or none of whole milliseconds, is left for the command to judge.
func windowMillis(s string) string {
	d, err := time.ParseDuration(s)
	if err != nil || d%time.Millisecond != 0 {
		return s
	}
	return strconv.FormatInt(d.Milliseconds(), 10)
}
