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

// What the bytes of an example may stand for, besides the types of package
// limit, identities, marks and sidecars.
type (
	head struct {
		prefix string
		seed   uint64
		key    string
	}
	chunkKey struct {
		head
		ordinal int64
	}
	requestKey struct {
		prefix   string
		deadline int64
		key, id  string
	}
	sidecarKey struct {
		prefix string
		n      uint8
	}
	meta struct{ prefix, name string }
)

// example is one line of a text of examples: bytes, and what they mean.
type example struct {
	line  string
	bytes []byte
	value any
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
	var c chunkKey
	if scan(text, "chunk prefix %q seed %d key %q ordinal %d", &c.prefix, &c.seed, &c.key, &c.ordinal) {
		return c
	}
	var r requestKey
	if scan(text, "request prefix %q deadline %d key %q id %q", &r.prefix, &r.deadline, &r.key, &r.id) {
		return r
	}
	var s sidecarKey
	if scan(text, "sidecar prefix %q number %d", &s.prefix, &s.n) {
		return s
	}
	var m meta
	if scan(text, "meta prefix %q name %q", &m.prefix, &m.name) {
		return m
	}
	var g limit.GCRAState
	if scan(text, "gcra deadline %d", &g.Deadline) ||
		scan(text, "gcra deadline %d short %d count %d", &g.Deadline, &g.Short, &g.Count) {
		return limit.State{Kind: limit.KindGCRA, GCRA: g}
	}
	var q limit.QuotaState
	if scan(text, "quota deadline %d used %d limit %d window %d", &q.Deadline, &q.Used, &q.Limit, &q.Window) {
		return limit.State{Kind: limit.KindQuota, Quota: q}
	}
	var request limit.Request
	if scan(text, "request cost %d used %d", &request.Cost, &request.Used) {
		return request
	}
	if scan(text, "request cost %d used %d refunded", &request.Cost, &request.Used) {
		request.Refunded = true
		return request
	}
	what, runs, _ := strings.Cut(text, " runs ")
	var l limit.RollingState
	if scan(what, "rolling deadline %d front %d first %d next %d", &l.Deadline, &l.Front, &l.First, &l.Next) {
		l.Runs = parseRuns(t, runs)
		return limit.State{Kind: limit.KindRolling, Rolling: &l}
	}
	var chunk limit.Chunk
	if scan(what, "chunk next %d after %d", &chunk.Next, &chunk.After) {
		chunk.Runs = parseRuns(t, runs)
		return &chunk
	}
	what, heads, _ := strings.Cut(text, " buckets ")
	what, due, _ := strings.Cut(what, " deadlines ")
	var side codec.Sidecar
	if scan(what, "sidecar since %d", &side.Since) {
		parseHeads(t, &side, heads, due)
		return side
	}
	var id codec.Identity
	if scan(text, "identity format %d seed %d", &id.Format, &id.Seed) {
		return id
	}
	var now int64
	if scan(text, "mark now %d", &now) {
		return codec.Mark{Now: now}
	}
	if scan(text, "mark now %d clean", &now) {
		return codec.Mark{Now: now, Clean: true}
	}
	t.Fatalf("cannot read %q", text)
	return nil
}

// parseRuns reads runs as ordinal@stamp. n*events@gap is n more of them, each
// so many events and nanoseconds after the one before it.
func parseRuns(t testing.TB, text string) []limit.Run {
	var runs []limit.Run
	for _, item := range strings.Fields(text) {
		var n int
		var run limit.Run
		switch {
		case scan(item, "%d@%d", &run.Ordinal, &run.Stamp):
			runs = append(runs, run)
		case scan(item, "%d*%d@%d", &n, &run.Ordinal, &run.Stamp) && len(runs) > 0:
			for range n {
				last := runs[len(runs)-1]
				runs = append(runs, limit.Run{Stamp: last.Stamp + run.Stamp, Ordinal: last.Ordinal + run.Ordinal})
			}
		default:
			t.Fatalf("cannot read the run %q", item)
		}
	}
	return runs
}

// parseHeads adds heads to s: as count@bucket, or as count@deadline.
func parseHeads(t testing.TB, s *codec.Sidecar, buckets, deadlines string) {
	for _, item := range strings.Fields(buckets) {
		var n int64
		var bucket int
		if !scan(item, "%d@%d", &n, &bucket) || bucket < 0 || bucket >= codec.SidecarBuckets {
			t.Fatalf("cannot read the bucket %q", item)
		}
		s.Counts[bucket] += n
	}
	for _, item := range strings.Fields(deadlines) {
		var n, deadline int64
		if !scan(item, "%d@%d", &n, &deadline) {
			t.Fatalf("cannot read the deadline %q", item)
		}
		s.Counts[bucketOf(s.Since, deadline)] += n
	}
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
	case chunkKey:
		k := codec.Keyspace{Prefix: []byte(v.prefix), Seed: v.seed}
		want := k.Slice([]byte(v.key))
		got = k.AppendChunkKey(nil, want, []byte(v.key), v.ordinal)
		slice, key, ordinal, err := k.ParseChunkKey(nil, e.bytes)
		if slice != want || string(key) != v.key || ordinal != v.ordinal || err != nil {
			t.Errorf("%s: ParseChunkKey = %d, %q, %d, %v, want %d, %q, %d", e.line, slice, key, ordinal, err, want, v.key, v.ordinal)
		}
	case requestKey:
		k := codec.Keyspace{Prefix: []byte(v.prefix)}
		got = k.AppendRequestKey(nil, v.deadline, []byte(v.key), v.id)
		deadline, key, id, err := k.ParseRequestKey(nil, e.bytes)
		if deadline != v.deadline || string(key) != v.key || id != v.id || err != nil {
			t.Errorf("%s: ParseRequestKey = %d, %q, %q, %v, want %d, %q, %q", e.line, deadline, key, id, err, v.deadline, v.key, v.id)
		}
	case sidecarKey:
		k := codec.Keyspace{Prefix: []byte(v.prefix)}
		got = k.AppendSidecarKey(nil, v.n)
		if n, err := k.ParseSidecarKey(e.bytes); n != v.n || err != nil {
			t.Errorf("%s: ParseSidecarKey = %d, %v, want %d", e.line, n, err, v.n)
		}
	case meta:
		if v.name != codec.MetaIdentity && v.name != codec.MetaMark {
			t.Errorf("%s: there is no such name", e.line)
		}
		got = codec.Keyspace{Prefix: []byte(v.prefix)}.AppendMeta(nil, v.name)
	case limit.State:
		got = codec.AppendState(nil, v)
		checkState(t, e.bytes, v)
	case limit.Request:
		got = codec.AppendRequest(nil, v)
		checkRequest(t, e.bytes, v)
	case *limit.Chunk:
		got = codec.AppendChunk(nil, v)
		checkChunk(t, e.bytes, v)
	case codec.Identity:
		got = codec.AppendIdentity(nil, v)
		checkIdentity(t, e.bytes, v)
	case codec.Sidecar:
		got = codec.AppendSidecar(nil, &v)
		checkSidecar(t, e.bytes, v)
	case codec.Mark:
		got = codec.AppendMark(nil, v)
		checkMark(t, e.bytes, v)
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

// A decision appends to what it decodes and to buffers of its own, and so
// allocates nothing but what outlives it.
func TestAllocations(t *testing.T) {
	k := codec.Keyspace{Prefix: []byte("app/"), Seed: 1}
	key := []byte("user:\x00:12345678901")
	h := k.AppendHead(nil, 0x1234, key)
	c := k.AppendChunkKey(nil, 0x1234, key, 50)
	r := k.AppendRequestKey(nil, quota.Quota.Deadline, key, "order-1")
	s := k.AppendSidecarKey(nil, 0x12)
	gcraRecord := codec.AppendState(nil, fraction)
	quotaRecord := codec.AppendState(nil, quota)
	list, chunk := rolling(limit.MaxRuns), sealed(50)
	rollingRecord := codec.AppendState(nil, list)
	chunkValue := codec.AppendChunk(nil, chunk)
	requestValue := codec.AppendRequest(nil, request)
	markValue := codec.AppendMark(nil, codec.Mark{Now: 1_700_000_000_000_000_001, Clean: true})
	sidecar := crowded(codec.SidecarBuckets)
	sidecarValue := codec.AppendSidecar(nil, &sidecar)
	identity := codec.AppendIdentity(nil, codec.Identity{Format: codec.Format, Seed: 1})
	buf := make([]byte, 0, 512)
	for name, c := range map[string]struct {
		want float64
		f    func()
	}{
		"Slice":              {0, func() { k.Slice(key) }},
		"AppendHead":         {0, func() { k.AppendHead(buf, 0x1234, key) }},
		"AppendSliceStart":   {0, func() { k.AppendSliceStart(buf, 0x1234) }},
		"ParseHead":          {0, func() { k.ParseHead(buf, h) }},
		"AppendChunkKey":     {0, func() { k.AppendChunkKey(buf, 0x1234, key, 50) }},
		"ParseChunkKey":      {0, func() { k.ParseChunkKey(buf, c) }},
		"AppendRequestKey":   {0, func() { k.AppendRequestKey(buf, quota.Quota.Deadline, key, "order-1") }},
		"AppendRequestStart": {0, func() { k.AppendRequestStart(buf, quota.Quota.Deadline) }},
		"ParseRequestKey":    {1, func() { k.ParseRequestKey(buf, r) }}, // the id
		"AppendSidecarKey":   {0, func() { k.AppendSidecarKey(buf, 0x12) }},
		"ParseSidecarKey":    {0, func() { k.ParseSidecarKey(s) }},
		"HeadSlices":         {0, func() { k.HeadSlices(h, s) }},
		"AppendMeta":         {0, func() { k.AppendMeta(buf, codec.MetaMark) }},
		"AppendState gcra":   {0, func() { codec.AppendState(buf, fraction) }},
		"DecodeState gcra":   {0, func() { codec.DecodeState(gcraRecord) }},
		"AppendState quota":  {0, func() { codec.AppendState(buf, quota) }},
		"DecodeState quota":  {0, func() { codec.DecodeState(quotaRecord) }},
		"AppendState list":   {0, func() { codec.AppendState(buf, list) }},
		"DecodeState list":   {2, func() { codec.DecodeState(rollingRecord) }}, // the state and its runs
		"AppendChunk":        {0, func() { codec.AppendChunk(buf, chunk) }},
		"DecodeChunk":        {2, func() { codec.DecodeChunk(chunkValue) }}, // the chunk and its runs
		"AppendRequest":      {0, func() { codec.AppendRequest(buf, request) }},
		"AppendRequest back": {0, func() { codec.AppendRequest(buf, refunded) }},
		"DecodeRequest":      {0, func() { codec.DecodeRequest(requestValue) }},
		"DecodeDeadline":     {0, func() { codec.DecodeDeadline(quotaRecord) }},
		"AppendSidecar":      {0, func() { codec.AppendSidecar(buf, &sidecar) }},
		"DecodeSidecar":      {0, func() { codec.DecodeSidecar(sidecarValue) }},
		"AppendMark":         {0, func() { codec.AppendMark(buf, codec.Mark{Now: 1_700_000_000_000_000_001, Clean: true}) }},
		"DecodeMark":         {0, func() { codec.DecodeMark(markValue) }},
		"DecodeIdentity":     {0, func() { codec.DecodeIdentity(identity) }},
	} {
		if n := testing.AllocsPerRun(100, c.f); n != c.want {
			t.Errorf("%s allocates %v times, want %v", name, n, c.want)
		}
	}
}
