package main

import (
	"bufio"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/gabiondb/gabion/commands"
)

func getVerb() verb {
	return verb{
		name:     "get",
		operands: "KEY",
		min:      1, max: 1,
		summary: "tell what a key holds and when it expires",
		help: `
The answer is an object, or null if the key is not there. pttl is how long the
key has to live, pexpiretime when it expires (Unix time), both in milliseconds.
Of a quota it tells also used, limit and window_ms. A key that is not UTF-8 is
shown as key_base64.

Example:
  $ gabion get user:42
  {"key":"user:42","type":"gcra","pttl":1993,"pexpiretime":1790000002000}
`,
		flags: func(fs *pflag.FlagSet) action {
			t := targetFlags(fs)
			return func(p *program, operands []string) error {
				return t.do(p, false, func(d doer) error {
					s, err := stat(d, operands[0])
					if err != nil {
						return err
					}
					return p.printJSON(s)
				})
			}
		},
	}
}

func ttlVerb() verb {
	return verb{
		name:     "ttl",
		operands: "KEY",
		min:      1, max: 1,
		summary: "tell how many seconds a key has to live",
		help: `
The answer is -2 if the key is not there.

Example:
  $ gabion ttl user:42
  2
`,
		flags: func(fs *pflag.FlagSet) action {
			t := targetFlags(fs)
			return func(p *program, operands []string) error {
				return t.do(p, false, func(d doer) error {
					n, err := doInt(d, "TTL", operands[0])
					if err != nil {
						return err
					}
					return p.printJSON(n)
				})
			}
		},
	}
}

// delBatch is how many keys del names in one command: a server takes no more
// than 1,024 arguments and 1 MiB, and a key may have 4 KiB.
const delBatch = 128

func delVerb() verb {
	return verb{
		name:     "del",
		operands: "KEY...",
		min:      1, max: -1,
		summary: "forget keys, so that their limits are whole again",
		help: `
The answer is how many of them were there.

Example:
  $ gabion del user:42 user:43
  1
`,
		flags: func(fs *pflag.FlagSet) action {
			t := targetFlags(fs)
			return func(p *program, operands []string) error {
				return t.do(p, false, func(d doer) error {
					var total int64
					for keys := range slices.Chunk(operands, delBatch) {
						n, err := doInt(d, append([]string{"DEL"}, keys...)...)
						if err != nil {
							return err
						}
						total += n
					}
					return p.printJSON(total)
				})
			}
		},
	}
}

// scanBatch is how many keys ls asks for at once.
const scanBatch = "1000"

func lsVerb() verb {
	return verb{
		name:    "ls",
		summary: "list the keys",
		help: `
One object for each key, in no particular order, as they are read: a key that
comes or goes meanwhile may be listed or not, any other is listed exactly once.
A key that is not UTF-8 is shown as key_base64.

Example:
  $ gabion ls --match 'user:*'
  {"key":"user:42"}
  {"key":"user:7"}
`,
		flags: func(fs *pflag.FlagSet) action {
			t := targetFlags(fs)
			match := fs.String("match", "", "only the keys that this `glob` matches: * ? [a-z] \\x")
			kind := fs.String("type", "", "only the keys that hold this `kind`: gcra, quota, rolling")
			long := fs.BoolP("long", "l", false, "tell of each key what get tells")
			return func(p *program, _ []string) error {
				var filter []string
				if fs.Changed("match") {
					filter = append(filter, "MATCH", *match)
				}
				if fs.Changed("type") {
					if !slices.Contains([]string{"gcra", "quota", "rolling"}, *kind) {
						return usagef("--type must be gcra, quota or rolling")
					}
					filter = append(filter, "TYPE", *kind)
				}
				return t.do(p, false, func(d doer) error { return list(p, d, filter, *long) })
			}
		},
	}
}

// list prints the keys that pass filter, the options of a SCAN.
func list(p *program, d doer, filter []string, long bool) error {
	out := bufio.NewWriter(p.stdout)
	for cursor := "0"; ; {
		next, keys, err := scan(d, cursor, filter)
		if err != nil {
			return err
		}
		for _, key := range keys {
			var line any = newKeyJSON(key)
			if long {
				s, err := stat(d, key)
				if err != nil {
					return err
				}
				if s == nil {
					continue // gone since the scan
				}
				line = s
			}
			if err := writeJSON(out, line); err != nil {
				return err
			}
		}
		if err := out.Flush(); err != nil {
			return err
		}
		if next == "0" {
			return nil
		}
		cursor = next
	}
}

// scan runs one SCAN from cursor and returns the cursor to go on from.
func scan(d doer, cursor string, filter []string) (next string, keys []string, err error) {
	reply, err := d.Do(append([]string{"SCAN", cursor, "COUNT", scanBatch}, filter...)...)
	if err != nil {
		return "", nil, err
	}
	row, _ := reply.([]any)
	if len(row) != 2 {
		return "", nil, fmt.Errorf("SCAN was answered with %v", reply)
	}
	next, ok := row[0].(string)
	batch, ok2 := row[1].([]any)
	if !ok || !ok2 {
		return "", nil, fmt.Errorf("SCAN was answered with %v", reply)
	}
	for _, key := range batch {
		s, ok := key.(string)
		if !ok {
			return "", nil, fmt.Errorf("SCAN was answered with %v", reply)
		}
		keys = append(keys, s)
	}
	return next, keys, nil
}

// statJSON is what get tells of a key.
type statJSON struct {
	keyJSON
	Type        string `json:"type"`
	PTTL        int64  `json:"pttl"`
	PExpireTime int64  `json:"pexpiretime"`

	*quotaJSON // of a quota
}

// quotaJSON is what get tells of a quota besides.
type quotaJSON struct {
	Used     int64 `json:"used"`
	Limit    int64 `json:"limit"`
	WindowMS int64 `json:"window_ms"`
}

// stat returns nil if the key is not there, or expires while it is asked after.
func stat(d doer, key string) (*statJSON, error) {
	reply, err := d.Do("TYPE", key)
	if err != nil {
		return nil, err
	}
	kind, ok := reply.(string)
	if !ok {
		return nil, fmt.Errorf("TYPE was answered with %v", reply)
	}
	at, err := doInt(d, "PEXPIRETIME", key)
	if err != nil {
		return nil, err
	}
	left, err := doInt(d, "PTTL", key)
	if err != nil {
		return nil, err
	}
	if kind == "none" || at < 0 || left < 0 {
		return nil, nil
	}
	s := &statJSON{newKeyJSON(key), kind, left, at, nil}
	if kind == "quota" {
		if s.quotaJSON, err = quotaOf(d, key); s.quotaJSON == nil {
			return nil, err
		}
	}
	return s, nil
}

// quotaOf returns nil if the window closes while it is asked after.
func quotaOf(d doer, key string) (*quotaJSON, error) {
	reply, err := d.Do("QUOTA.GET", key)
	var refusal commands.Error
	if errors.As(err, &refusal) && strings.HasPrefix(string(refusal), "WRONGTYPE ") {
		return nil, nil // it holds something else by now
	}
	if err != nil || reply == nil {
		return nil, err
	}
	row, ok := reply.([]any)
	if !ok || len(row) != 4 {
		return nil, fmt.Errorf("QUOTA.GET was answered with %v", reply)
	}
	var n [3]int64
	for i := range n {
		if n[i], ok = row[i].(int64); !ok {
			return nil, fmt.Errorf("QUOTA.GET was answered with %v", reply)
		}
	}
	return &quotaJSON{Used: n[0], Limit: n[1], WindowMS: n[2]}, nil
}

// doInt runs a command whose reply is an integer.
func doInt(d doer, args ...string) (int64, error) {
	reply, err := d.Do(args...)
	if err != nil {
		return 0, err
	}
	n, ok := reply.(int64)
	if !ok {
		return 0, fmt.Errorf("%s was answered with %v", args[0], reply)
	}
	return n, nil
}
