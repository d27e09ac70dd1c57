package codec_test

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gabiondb/gabion/codec"
	"github.com/gabiondb/gabion/engine/limit"
)

// What the bytes of an example may stand for, besides states and identities.
type (
	head struct {
		prefix string
		seed   uint64
		key    string
	}
	meta struct{ prefix, name string }
	mark int64
)

// example is one line of a text of examples: bytes, and what they mean.
type example struct {
	line  string
	bytes []byte
	value any // head, meta, limit.State, codec.Identity or mark
}

// examples returns the examples in the file at path: all lines that have an =,
// save comments, and in a Markdown file only those of fenced blocks.
func examples(t testing.TB, path string) []example {
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var list []example
	markdown, fenced := strings.HasSuffix(path, ".md"), false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		left, right, ok := strings.Cut(line, " = ")
		if !ok || strings.HasPrefix(line, "#") || markdown && !fenced {
			continue
		}
		b, err := hex.DecodeString(strings.ReplaceAll(left, " ", ""))
		if err != nil {
			t.Fatalf("%s: %s: %v", path, line, err)
		}
		list = append(list, example{line, b, parseValue(t, right)})
	}
	if len(list) < 5 {
		t.Fatalf("%s has %d examples", path, len(list))
	}
	return list
}

func parseValue(t testing.TB, text string) any {
	var h head
	if scan(text, "head prefix %q seed %d key %q", &h.prefix, &h.seed, &h.key) {
		return h
	}
	var m meta
	if scan(text, "meta prefix %q name %q", &m.prefix, &m.name) {
		return m
	}
	s := limit.State{Kind: limit.GCRA}
	if scan(text, "gcra deadline %d", &s.GCRA.Deadline) ||
		scan(text, "gcra deadline %d short %d count %d", &s.GCRA.Deadline, &s.GCRA.Short, &s.GCRA.Count) {
		return s
	}
	var id codec.Identity
	if scan(text, "identity format %d seed %d", &id.Format, &id.Seed) {
		return id
	}
	var now mark
	if scan(text, "mark now %d", &now) {
		return now
	}
	t.Fatalf("cannot read %q", text)
	return nil
}

// scan reads text, all of it, as fmt.Sscanf does.
func scan(text, format string, args ...any) bool {
	var rest string
	n, _ := fmt.Sscanf(text+" .", format+" %s", append(args, &rest)...)
	return n == len(args)+1 && rest == "."
}

func (e example) check(t *testing.T) {
	var got []byte
	switch v := e.value.(type) {
	case head:
		k := codec.Keyspace{Prefix: []byte(v.prefix), Seed: v.seed}
		want := k.Slice([]byte(v.key))
		got = k.AppendHead(nil, want, []byte(v.key))
		slice, key, err := k.ParseHead(nil, e.bytes)
		if slice != want || string(key) != v.key || err != nil {
			t.Errorf("%s: ParseHead = %d, %q, %v, want %d, %q", e.line, slice, key, err, want, v.key)
		}
	case meta:
		if v.name != codec.MetaIdentity && v.name != codec.MetaMark {
			t.Errorf("%s: there is no such name", e.line)
		}
		got = codec.Keyspace{Prefix: []byte(v.prefix)}.AppendMeta(nil, v.name)
	case limit.State:
		got = codec.AppendState(nil, v)
		checkState(t, e.bytes, v)
	case codec.Identity:
		got = codec.AppendIdentity(nil, v)
		checkIdentity(t, e.bytes, v)
	case mark:
		got = codec.AppendMark(nil, int64(v))
		checkMark(t, e.bytes, int64(v))
	}
	if !bytes.Equal(got, e.bytes) {
		t.Errorf("%s: written as % x", e.line, got)
	}
}

func TestGolden(t *testing.T) {
	for _, e := range examples(t, "testdata/v1.txt") {
		e.check(t)
	}
}

func TestFormatExamples(t *testing.T) {
	for _, e := range examples(t, "FORMAT.md") {
		e.check(t)
	}
}

func TestNoAllocations(t *testing.T) {
	k := codec.Keyspace{Prefix: []byte("app/"), Seed: 1}
	key := []byte("user:\x00:12345678901")
	h := k.AppendHead(nil, 0x1234, key)
	record := codec.AppendState(nil, fraction)
	value := codec.AppendMark(nil, 1_700_000_000_000_000_001)
	identity := codec.AppendIdentity(nil, codec.Identity{Format: codec.Format, Seed: 1})
	buf := make([]byte, 0, 64)
	for name, f := range map[string]func(){
		"Slice":            func() { k.Slice(key) },
		"AppendHead":       func() { k.AppendHead(buf, 0x1234, key) },
		"AppendSliceStart": func() { k.AppendSliceStart(buf, 0x1234) },
		"ParseHead":        func() { k.ParseHead(buf, h) },
		"AppendMeta":       func() { k.AppendMeta(buf, codec.MetaMark) },
		"AppendState":      func() { codec.AppendState(buf, fraction) },
		"DecodeState":      func() { codec.DecodeState(record) },
		"AppendMark":       func() { codec.AppendMark(buf, 1_700_000_000_000_000_001) },
		"DecodeMark":       func() { codec.DecodeMark(value) },
		"DecodeIdentity":   func() { codec.DecodeIdentity(identity) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}
