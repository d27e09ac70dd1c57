package main

import (
	"strings"

	"github.com/spf13/pflag"
)

func rollVerb() verb {
	return verb{
		name:     "roll",
		operands: "allow|incr|peek|wait KEY LIMIT WINDOW [AMOUNT]",
		min:      4, max: 5,
		summary: "let LIMIT events pass in any span of WINDOW",
		help: `
WINDOW is in milliseconds, or has a unit.

  allow  record an event if there is room: [allowed, count, limit, wait-ms]
  incr   record as many of AMOUNT (1) events as there is room for; the answer is
         how many there would be with all of them, so all fitted if it is at
         most LIMIT
  peek   count the live events
  wait   tell in how many milliseconds there is room; 0 for now, -1 for never

"gabion del KEY" forgets all events. With allow and incr a directory without a
store gets one.

Example:
  $ gabion roll allow login:42 3 10s
  [1,1,3,0]
`,
		flags: func(fs *pflag.FlagSet) action {
			t := targetFlags(fs)
			t.caps.addRolling(fs)
			pause := fs.Bool("pause", false, "with allow and incr: once a check has failed, stay shut until calls come slower than LIMIT per WINDOW")
			exitCode := exitCodeFlag(fs)
			return func(p *program, operands []string) error {
				what, args := operands[0], operands[1:]
				records := what == "allow" || what == "incr"
				switch {
				case !records && what != "peek" && what != "wait":
					return usagef("unknown %q: want allow, incr, peek or wait", what)
				case len(args) > 3 && what != "incr":
					return usagef("only incr takes an AMOUNT")
				case *pause && !records:
					return usagef("--pause is for allow and incr")
				case *exitCode && what != "allow":
					return usagef("--exit-code is for allow")
				}
				args[2] = windowMillis(args[2])
				if *pause {
					args = append(args, "PAUSE")
				}
				return t.do(p, records, func(d doer) error {
					return p.decide(d, denial{value: 0, exit: *exitCode}, append([]string{"ROLL." + strings.ToUpper(what)}, args...)...)
				})
			}
		},
	}
}
