package main

import (
	"math"
	"slices"
	"testing"

	"github.com/spf13/pflag"

	"github.com/gabiondb/gabion/engine"
)

func TestParseFlags(t *testing.T) {
	for _, c := range []struct {
		args, operands []string
		s              string
		b              bool
	}{
		{args: []string{}},
		{args: []string{"k", "1"}, operands: []string{"k", "1"}},
		{args: []string{"--str", "v", "k"}, operands: []string{"k"}, s: "v"},
		{args: []string{"k", "--str=v", "1"}, operands: []string{"k", "1"}, s: "v"},
		{args: []string{"k", "--str", "-1", "2"}, operands: []string{"k", "2"}, s: "-1"},
		{args: []string{"--str", "--", "--", "-b"}, operands: []string{"-b"}, s: "--"},
		{args: []string{"-1", "k", "-b", "-0x", "-"}, operands: []string{"-1", "k", "-0x", "-"}, b: true},
		{args: []string{"--bool", "k", "1"}, operands: []string{"k", "1"}, b: true},
		{args: []string{"--", "k", "--", "--bool"}, operands: []string{"k", "--", "--bool"}},
	} {
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		s := fs.String("str", "", "")
		b := fs.BoolP("bool", "b", false, "")
		operands, err := parseFlags(fs, c.args)
		if err != nil || !slices.Equal(operands, c.operands) || *s != c.s || *b != c.b {
			t.Errorf("parseFlags(%q) = %q, %v, with --str %q and --bool %v, want %q, with %q and %v",
				c.args, operands, err, *s, *b, c.operands, c.s, c.b)
		}
	}
}

func TestSizeFlag(t *testing.T) {
	for _, c := range []struct {
		in   string
		want sizeFlag // 0 for an error
		text string
	}{
		{"1", 1, "1"},
		{"1023", 1023, "1023"},
		{"1024", 1 << 10, "1KiB"},
		{"256MiB", 256 << 20, "256MiB"},
		{"1024MiB", 1 << 30, "1GiB"},
		{"3TiB", 3 << 40, "3TiB"},
		{"9223372036854775807", math.MaxInt64, "9223372036854775807"},
		{"8388607TiB", 8388607 << 40, "8388607TiB"},
		{in: "8388608TiB"},
		{in: "9223372036854775808"},
		{in: "0"},
		{in: "0MiB"},
		{in: "-1MiB"},
		{in: "MiB"},
		{in: "1.5GiB"},
		{in: "1MB"},
		{in: ""},
	} {
		var got sizeFlag
		err := got.Set(c.in)
		if got != c.want || (err == nil) != (c.want != 0) {
			t.Errorf("Set(%q) = %d, %v, want %d", c.in, got, err, c.want)
		}
		if err == nil && got.String() != c.text {
			t.Errorf("Set(%q) reads %q, want %q", c.in, got.String(), c.text)
		}
	}
}

func TestDurabilityFlag(t *testing.T) {
	for _, want := range []engine.Durability{engine.Always, engine.Interval, engine.Never} {
		var got durabilityFlag
		if err := got.Set(want.String()); err != nil || got != durabilityFlag(want) {
			t.Errorf("Set(%q) = %v, %v", want.String(), got.String(), err)
		}
	}
}
