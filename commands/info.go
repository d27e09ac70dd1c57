package commands

import (
	"fmt"
	"net"
	"os"
	"runtime"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gabiondb/gabion/commands/internal/resp"
)

func serverCommands() []*command {
	return []*command{
		{
			name: "info", arity: -1, run: runInfo, acl: catDangerous,
			tips:    []string{"nondeterministic_output", "request_policy:all_shards", "response_policy:special"},
			summary: "Tells about the server",
			group:   "server", complexity: "O(1)",
			arguments: []argument{{name: "section", kind: "string", optional: true, multiple: true}},
		},
		{
			name: "time", arity: 1, run: runTime, flags: fast,
			tips:    []string{"nondeterministic_output"},
			summary: "Tells the time on the clock that keys expire by",
			group:   "server", complexity: "O(1)",
		},
		backupCommand(),
		{
			name: "config", arity: -2,
			summary: "A container for commands about the configuration",
			group:   "server", complexity: "Depends on subcommand.",
			subcommands: []*command{{
				name: "config|get", arity: -3, run: runConfigGet, flags: admin,
				summary: "Tells the parameters that match a pattern",
				group:   "server", complexity: "O(N) where N is the number of patterns",
				arguments: []argument{{name: "parameter", kind: "string", multiple: true}},
			}},
		},
	}
}

func runTime(s *session, _ [][]byte) error {
	now := s.srv.limiter.Now()
	s.out = resp.AppendArrayLen(s.out, 2)
	s.out = resp.AppendBulk(s.out, strconv.FormatInt(now.Unix(), 10))
	s.out = resp.AppendBulk(s.out, strconv.Itoa(now.Nanosecond()/1000))
	return nil
}

// parameters returns the names and values that CONFIG GET knows. Tools for
// Redis ask for some of them; they can't be changed while the server runs.
func (s *Server) parameters() [][2]string {
	return [][2]string{
		{"appendonly", "yes"}, // what was answered is in a log on disk, or soon
		{"backup-dir", s.cfg.BackupDir},
		{"databases", "1"},
		{"maxclients", strconv.Itoa(s.cfg.MaxClients)},
		{"proto-max-bulk-len", strconv.Itoa(resp.MaxRequest)},
		{"save", ""},
		{"timeout", strconv.FormatInt(seconds(s.cfg.IdleTimeout), 10)},
	}
}

func runConfigGet(s *session, args [][]byte) error {
	var found [][2]string
	for _, p := range s.srv.parameters() {
		if slices.ContainsFunc(args[2:], func(pattern []byte) bool { return globMatch(pattern, []byte(p[0])) }) {
			found = append(found, p)
		}
	}
	s.appendMap(len(found))
	for _, p := range found {
		s.appendPair(p[0], p[1])
	}
	return nil
}

// section is a part of INFO.
type section struct {
	name    string
	write   func(*report, *session) error
	special bool // only when asked for, or all are
}

var sections = []section{
	{name: "Server", write: (*report).server},
	{name: "Clients", write: (*report).clients},
	{name: "Memory", write: (*report).memory},
	{name: "Persistence", write: (*report).persistence},
	{name: "Expiry", write: (*report).expiry},
	{name: "Stats", write: (*report).stats},
	{name: "Replication", write: (*report).replication},
	{name: "Commandstats", write: (*report).commandStats, special: true},
	{name: "Keyspace", write: (*report).keyspace},
}

func runInfo(s *session, args [][]byte) error {
	var r report
	for _, section := range sections {
		asked := len(args) == 1 && !section.special
		for _, arg := range args[1:] {
			asked = asked || equalFold(arg, strings.ToLower(section.name)) || equalFold(arg, "all") || equalFold(arg, "everything") ||
				equalFold(arg, "default") && !section.special
		}
		if !asked {
			continue
		}
		if len(r) > 0 {
			r = append(r, "\r\n"...)
		}
		r = fmt.Appendf(r, "# %s\r\n", section.name)
		if err := section.write(&r, s); err != nil {
			return err
		}
	}
	s.out = resp.AppendVerbatim(s.out, s.version, r)
	return nil
}

// report is the text of INFO.
type report []byte

func (r *report) line(name string, value any) { *r = fmt.Appendf(*r, "%s:%v\r\n", name, value) }

func (r *report) server(s *session) error {
	uptime := s.srv.uptime()
	r.line("redis_version", compatible)
	r.line("gabion_version", s.srv.cfg.Version)
	r.line("redis_mode", "standalone")
	r.line("os", runtime.GOOS+" "+runtime.GOARCH)
	r.line("arch_bits", strconv.IntSize)
	r.line("go_version", runtime.Version())
	r.line("process_id", os.Getpid())
	if addr, ok := s.srv.address().(*net.TCPAddr); ok {
		r.line("tcp_port", addr.Port)
	}
	r.line("server_time_usec", s.srv.limiter.Now().UnixMicro())
	r.line("uptime_in_seconds", int64(uptime/time.Second))
	r.line("uptime_in_days", int64(uptime/(24*time.Hour)))
	return nil
}

func (r *report) clients(s *session) error {
	r.line("connected_clients", len(s.srv.clients()))
	r.line("maxclients", s.srv.cfg.MaxClients)
	r.line("blocked_clients", 0)
	return nil
}

func (r *report) memory(s *session) error {
	samples := []metrics.Sample{{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}}
	metrics.Read(samples)
	used := samples[0].Value.Uint64() - samples[1].Value.Uint64() - uint64(s.srv.cfg.Ballast)
	m := s.srv.limiter.Metrics()
	r.line("used_memory", used)
	r.line("used_memory_human", fmt.Sprintf("%.2fM", float64(used)/(1<<20)))
	r.line("state_cache_bytes", m.CacheBytes)
	r.line("state_cache_entries", m.CacheEntries)
	r.line("client_buffers_bytes", s.srv.buffered.Load())
	r.line("maxmemory", 0)
	return nil
}

func (r *report) persistence(s *session) error {
	m := s.srv.limiter.Metrics()
	r.line("loading", 0)
	r.line("disk_bytes", m.DiskBytes)
	r.line("table_bytes", m.TableBytes)
	r.line("commit_rounds", m.Rounds)
	r.line("records_written", m.Writes)
	r.line("flushes", m.Flushes)
	r.line("compactions", m.Compactions)
	return nil
}

func (r *report) expiry(s *session) error {
	m := s.srv.limiter.Metrics()
	r.line("live_records_estimate", m.Records-m.Expired)
	r.line("expired_records_estimate", m.Expired)
	r.line("purge_backlog_estimate", m.Backlog)
	r.line("purged_records", m.Purged)
	r.line("purged_bytes", m.PurgedBytes)
	r.line("purge_passes", m.PurgePasses)
	last := int64(0)
	if !m.LastPurge.IsZero() {
		last = m.LastPurge.Unix()
	}
	r.line("last_purge_time", last)
	r.line("purge_behind_seconds", seconds(m.PurgeBehind))
	r.line("oldest_view_ms", m.OldestView.Milliseconds())
	return nil
}

func (r *report) stats(s *session) error {
	stats := &s.srv.stats
	calls := uint64(0)
	for _, c := range s.srv.table.byName {
		calls += c.calls.Load()
	}
	m := s.srv.limiter.Metrics()
	r.line("total_connections_received", stats.connections.Load())
	r.line("total_commands_processed", calls)
	r.line("total_net_input_bytes", stats.received.Load())
	r.line("total_net_output_bytes", stats.sent.Load())
	r.line("rejected_connections", stats.refused.Load())
	r.line("acl_access_denied_auth", stats.authFailures.Load())
	r.line("protocol_errors", stats.protocolErrors.Load())
	r.line("connection_panics", stats.panics.Load())
	r.line("expired_keys", m.Purged)
	r.line("state_cache_hits", m.CacheHits)
	r.line("state_cache_misses", m.CacheMisses)
	return nil
}

func (r *report) replication(*session) error {
	r.line("role", "master")
	r.line("connected_slaves", 0)
	return nil
}

func (r *report) commandStats(s *session) error {
	for _, c := range s.srv.table.all() {
		calls, rejected := c.calls.Load(), c.rejected.Load()
		if calls == 0 && rejected == 0 {
			continue
		}
		r.line("cmdstat_"+c.name, fmt.Sprintf("calls=%d,rejected_calls=%d,failed_calls=%d", calls, rejected, c.failed.Load()))
	}
	return nil
}

func (r *report) keyspace(s *session) error {
	m := s.srv.limiter.Metrics()
	if n := m.Records - m.Expired; n > 0 {
		r.line("db0", fmt.Sprintf("keys=%d,expires=%d,avg_ttl=0,estimate=1", n, n))
	}
	return nil
}
