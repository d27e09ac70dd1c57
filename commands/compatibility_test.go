package commands_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/gabiondb/gabion/commands"
)

// goRedis returns a client of f, which does not try again what has failed.
func goRedis(f *fixture, opts redis.Options) *redis.Client {
	opts.Addr, opts.PoolSize, opts.MaxRetries = f.addr, 4, -1
	opts.ReadTimeout, opts.WriteTimeout, opts.PoolTimeout = patience, patience, patience
	return redis.NewClient(&opts)
}

// doGoRedis calls a command that go-redis has no method for. c is a client or a
// pipeline.
func doGoRedis(ctx context.Context, c redis.Cmdable, args ...any) *redis.Cmd {
	return c.(interface {
		Do(context.Context, ...any) *redis.Cmd
	}).Do(ctx, args...)
}

func checkGoRedis(t *testing.T, cmd *redis.Cmd, want any) {
	t.Helper()
	if got, err := cmd.Result(); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v = %v, %v, want %v", cmd.Args(), got, err, want)
	}
}

func TestGoRedis(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			f := serve(t, commands.Config{Password: "open sesame"})
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			client := goRedis(f, redis.Options{Protocol: protocol, Password: "open sesame", ClientName: "joe"})
			defer client.Close()

			call := func(c redis.Cmdable, args ...any) *redis.Cmd { return doGoRedis(ctx, c, args...) }
			check := func(cmd *redis.Cmd, want ...any) {
				t.Helper()
				checkGoRedis(t, cmd, want)
			}
			check(call(client, "CL.THROTTLE", "k", 4, 1, 10), int64(0), int64(5), int64(4), int64(-1), int64(10))

			pipe := client.Pipeline()
			a := call(pipe, "CL.THROTTLE", "k", 4, 1, 10, 4)
			b := call(pipe, "CL.THROTTLE", "k", 4, 1, 10)
			n := pipe.Exists(ctx, "k", "l")
			bad := call(pipe, "CL.THROTTLE", "k", "x", 1, 10)
			if _, err := pipe.Exec(ctx); err == nil {
				t.Error("the pipeline hides its error")
			}
			check(a, int64(0), int64(5), int64(0), int64(-1), int64(50))
			check(b, int64(1), int64(5), int64(0), int64(10), int64(50))
			if n.Val() != 1 {
				t.Errorf("EXISTS = %v", n)
			}
			if err := bad.Err(); err == nil || err.Error() != "ERR value is not an integer or out of range" {
				t.Errorf("%v", bad)
			}

			if ttl := client.TTL(ctx, "k").Val(); ttl.Seconds() != 50 {
				t.Errorf("TTL = %v, want 50s", ttl)
			}
			if kind := client.Type(ctx, "k").Val(); kind != "gcra" {
				t.Errorf("TYPE = %q, want gcra", kind)
			}
			if name, err := client.ClientGetName(ctx).Result(); name != "joe" || err != nil {
				t.Errorf("CLIENT GETNAME = %q, %v", name, err)
			}
			if list, err := client.ClientList(ctx).Result(); err != nil || !strings.Contains(list, "name=joe") || !strings.Contains(list, "lib-name=go-redis") ||
				!strings.Contains(list, fmt.Sprintf("resp=%d", protocol)) {
				t.Errorf("CLIENT LIST = %q, %v", list, err)
			}
			if config, err := client.ConfigGet(ctx, "maxclients").Result(); err != nil || config["maxclients"] != "10000" {
				t.Errorf("CONFIG GET = %v, %v", config, err)
			}
			if infos, err := client.Command(ctx).Result(); err != nil || infos["cl.mthrottle"] == nil || infos["cl.mthrottle"].StepCount != 5 || infos["cl.probe"] == nil || !infos["cl.probe"].ReadOnly || infos["cl.throttle"].ReadOnly {
				t.Errorf("COMMAND = %v, %v", infos, err)
			}
			if _, err := client.Info(ctx).Result(); err != nil {
				t.Errorf("INFO: %v", err)
			}
			if at, err := client.Time(ctx).Result(); err != nil || !at.Equal(start) {
				t.Errorf("TIME = %v, %v, want %v", at, err, start)
			}

			var wg sync.WaitGroup
			for i := range 16 {
				wg.Go(func() {
					for j := range 50 {
						if err := call(client, "CL.THROTTLE", fmt.Sprintf("pool:%d:%d", i, j), 0, 1, 10).Err(); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			seen := make(map[string]bool)
			for iterator := client.Scan(ctx, 0, "pool:*", 100).Iterator(); iterator.Next(ctx); {
				if seen[iterator.Val()] {
					t.Errorf("SCAN returned %s twice", iterator.Val())
				}
				seen[iterator.Val()] = true
			}
			if len(seen) != 16*50 {
				t.Errorf("SCAN found %d keys, want %d", len(seen), 16*50)
			}
			if n := client.DBSize(ctx).Val(); n != 16*50+1 {
				t.Errorf("DBSIZE = %d, want %d", n, 16*50+1)
			}
			if err := client.FlushAll(ctx).Err(); err != nil || client.DBSize(ctx).Val() != 0 {
				t.Errorf("FLUSHALL: %v", err)
			}
			stranger := goRedis(f, redis.Options{Protocol: protocol, Password: "wrong"})
			defer stranger.Close()
			if err := stranger.Ping(ctx).Err(); err == nil || !strings.HasPrefix(err.Error(), "WRONGPASS") {
				t.Errorf("PING with a wrong password: %v", err)
			}
		})
	}
}

func TestGoRedisOnQuotasAndLists(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprintf("RESP%d", protocol), func(t *testing.T) {
			f := serve(t, commands.Config{})
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			client := goRedis(f, redis.Options{Protocol: protocol})
			defer client.Close()
			checkGoRedis(t, doGoRedis(ctx, client, "QUOTA.TAKE", "q", "order-1", 2, 5, 60000), []any{int64(1), int64(2), int64(0)})
			checkGoRedis(t, doGoRedis(ctx, client, "ROLL.ALLOW", "r", 3, 10000), []any{int64(1), int64(1), int64(3), int64(0)})

			steps := []struct {
				args []any
				want any // a string is the code of an error
			}{
				{[]any{"QUOTA.TAKE", "q", "order-1", 2, 5, 60000}, []any{int64(1), int64(2), int64(1)}},
				{[]any{"QUOTA.TAKE", "q", "order-2", 4, 5, 60000}, []any{int64(0), int64(2), int64(0)}},
				{[]any{"QUOTA.PROBE", "q", "order-2", 3, 5, 60000}, []any{int64(1), int64(5), int64(0)}},
				{[]any{"QUOTA.GET", "q"}, []any{int64(2), int64(5), int64(60000), int64(60000)}},
				{[]any{"QUOTA.TAKE", "q", "order-1", 1, 5, 60000}, "CONFLICT"},
				{[]any{"QUOTA.TAKE", "q", "order-1", 2, 6, 60000}, "POLICY"},
				{[]any{"QUOTA.TAKE", "q", "order 1", 2, 5, 60000}, "INVALID"},
				{[]any{"QUOTA.REFUND", "q", "order-1"}, []any{int64(1), int64(0), int64(0)}},
				{[]any{"QUOTA.REFUND", "q", "order-1"}, []any{int64(1), int64(0), int64(1)}},
				{[]any{"QUOTA.TAKE", "q", "order-1", 2, 5, 60000}, "CONFLICT"},
				{[]any{"ROLL.INCR", "r", 3, 10000, 3, "PAUSE"}, int64(4)},
				{[]any{"ROLL.PEEK", "r", 3, 10000}, int64(4)},
				{[]any{"ROLL.WAIT", "r", 3, 10000}, int64(10000)},
				{[]any{"ROLL.PEEK", "q", 3, 10000}, "WRONGTYPE"},
				{[]any{"CL.THROTTLE", "g", 4, 1, 10}, []any{int64(0), int64(5), int64(4), int64(-1), int64(10)}},
				{[]any{"CL.MTHROTTLE", "ALL", 2, "g", 4, 1, 10, 1, "h", 0, 1, 10, 2}, []any{int64(1), int64(-1),
					[]any{int64(0), int64(5), int64(4), int64(-1), int64(10)}, []any{int64(1), int64(1), int64(1), int64(-1), int64(0)}}},
				{[]any{"CL.MTHROTTLE", "EACH", 1, "g", 4, 1, 10, 2}, []any{int64(0), int64(-1), []any{int64(0), int64(5), int64(2), int64(-1), int64(30)}}},
				{[]any{"CL.MPROBE", "ALL", 1, "g", 4, 1, 10, 3}, []any{int64(1), int64(10), []any{int64(1), int64(5), int64(2), int64(10), int64(30)}}},
				{[]any{"CL.MPROBE", "ALL", 2, "g", 4, 1, 10, 3, "q", 4, 1, 10, 3}, "WRONGTYPE"},
				{[]any{"CL.REFUND", "g", 4, 1, 10, 2}, []any{int64(0), int64(5), int64(4), int64(-1), int64(10)}},
			}
			pipe := client.Pipeline()
			for _, step := range steps {
				doGoRedis(ctx, pipe, step.args...)
			}
			cmds, err := pipe.Exec(ctx)
			if err == nil {
				t.Error("the pipeline hides its errors")
			}
			for i, step := range steps {
				cmd := cmds[i].(*redis.Cmd)
				if code, ok := step.want.(string); !ok {
					checkGoRedis(t, cmd, step.want)
				} else if !redis.HasErrorPrefix(cmd.Err(), code) {
					t.Errorf("%v, want %s", cmd, code)
				}
			}
			if cmd := doGoRedis(ctx, client, "QUOTA.GET", "missing"); cmd.Err() != redis.Nil {
				t.Errorf("%v, want %v", cmd, redis.Nil)
			}
			for key, kind := range map[string]string{"g": "gcra", "q": "quota", "r": "rolling"} {
				if got := client.Type(ctx, key).Val(); got != kind {
					t.Errorf("TYPE %s = %q, want %s", key, got, kind)
				}
				if keys, _, err := client.ScanType(ctx, 0, "*", 10, kind).Result(); err != nil || !slices.Equal(keys, []string{key}) {
					t.Errorf("SCAN TYPE %s = %q, %v, want %s", kind, keys, err, key)
				}
			}
			if n := client.Del(ctx, "g", "q", "r").Val(); n != 3 {
				t.Errorf("DEL = %d, want 3", n)
			}
		})
	}
}

// A client of a cluster asks COMMAND where the keys are, to find the server that
// has them. There are no clusters of gabion, but there are such clients.
func TestGoRedisFindsKeys(t *testing.T) {
	a, b := serve(t, commands.Config{}), serve(t, commands.Config{})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	client := redis.NewClusterClient(&redis.ClusterOptions{
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{
				{Start: 0, End: 8191, Nodes: []redis.ClusterNode{{Addr: a.addr}}},
				{Start: 8192, End: 16383, Nodes: []redis.ClusterNode{{Addr: b.addr}}},
			}, nil
		},
		PoolSize: 4, MaxRetries: -1, ReadTimeout: patience, WriteTimeout: patience, PoolTimeout: patience,
	})
	defer client.Close()
	if err := client.Do(ctx, "TYPE", "any").Err(); err != nil { // until it has asked COMMAND, it guesses
		t.Fatal(err)
	}
	found := make(map[string]int)
	for i := range 50 {
		key := fmt.Sprintf("{%d}", i)
		for _, args := range [][]any{
			{"CL.MTHROTTLE", "ALL", 2, key + "g", 4, 1, 10, 1, key + "h", 4, 1, 10, 1},
			{"CL.MPROBE", "EACH", 1, key + "g", 4, 1, 10, 1},
			{"CL.REFUND", key + "h", 4, 1, 10, 0},
			{"QUOTA.TAKE", key + "q", "id", 1, 5, 60000},
			{"QUOTA.REFUND", key + "q", "id"},
		} {
			reply, err := client.Do(ctx, args...).Slice()
			if err != nil {
				t.Fatal(err)
			}
			switch args[0] {
			case "CL.MPROBE":
				if row := reply[2].([]any); row[2] != int64(3) {
					t.Errorf("%v = %v, want 3 remaining", args, reply)
				}
			case "CL.REFUND":
				if reply[2] != int64(4) {
					t.Errorf("%v = %v, want 4 remaining", args, reply)
				}
			case "QUOTA.REFUND":
				if reply[0] != int64(1) {
					t.Errorf("%v = %v, want it refunded", args, reply)
				}
			}
		}
		home, err := client.MasterForKey(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		if n := home.Exists(ctx, key+"g", key+"h", key+"q").Val(); n != 3 {
			t.Errorf("%d of 3 keys with %s are at home", n, key)
		}
		found[home.Options().Addr]++
	}
	if len(found) != 2 {
		t.Errorf("the keys are spread as %v, want both servers", found)
	}
}

// run runs a program to its end and returns what it prints.
func run(t *testing.T, stdin, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), tool(t, name), args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return string(out)
}

func TestRedisCLI(t *testing.T) {
	f := serve(t, commands.Config{})
	host, port, _ := net.SplitHostPort(f.addr)
	cli := func(stdin string, args ...string) string {
		t.Helper()
		return run(t, stdin, "redis-cli", append([]string{"-h", host, "-p", port}, args...)...)
	}
	for _, tt := range []struct {
		args, stdin, want string
	}{
		{"--no-raw CL.THROTTLE u 15 30 60", "", "1) (integer) 0\n2) (integer) 16\n3) (integer) 15\n4) (integer) -1\n5) (integer) 2\n"},
		{"-3 --no-raw CL.PROBE u 15 30 60", "", "1) (integer) 0\n2) (integer) 16\n3) (integer) 14\n4) (integer) -1\n5) (integer) 4\n"},
		{"-3 --json CL.THROTTLE u 15 30 60 20", "", ""},
		{"--no-raw CL.MTHROTTLE EACH 1 v 15 30 60 16", "", "1) (integer) 0\n2) (integer) -1\n" +
			"3) 1) (integer) 0\n   2) (integer) 16\n   3) (integer) 0\n   4) (integer) -1\n   5) (integer) 32\n"},
		{"-3 --no-raw CL.REFUND v 15 30 60 16", "", "1) (integer) 0\n2) (integer) 16\n3) (integer) 16\n4) (integer) -1\n5) (integer) 0\n"},
		{"TTL u", "", "2\n"},
		{"CL.THROTTLE u x", "", "ERR wrong number of arguments for 'cl.throttle' command\n\n"},
		{"", "SELECT 0\nPING\nEXISTS u v\nCLIENT SETNAME joe\nCLIENT GETNAME\n", "OK\nPONG\n1\nOK\njoe\n"},
		{"-3 CONFIG GET maxclients", "", "maxclients 10000\n"},
		{"--scan", "", "u\n"},
		{"--scan --pattern v*", "", ""},
		{"DBSIZE", "", "1\n"},
		{"DEL u", "", "1\n"},
		{"-r 3 PING", "", "PONG\nPONG\nPONG\n"},
	} {
		if strings.Contains(tt.args, "--json") && !strings.Contains(cli("", "--help"), "--json") {
			continue
		}
		want := tt.want
		if strings.Contains(tt.args, "--json") {
			want = "[1,16,15,-1,2]\n"
		}
		if got := cli(tt.stdin, strings.Fields(tt.args)...); got != want {
			t.Errorf("redis-cli %s: %q, want %q", tt.args, got, want)
		}
	}

	// The mass insertion of redis-cli sends everything and counts the replies.
	var mass strings.Builder
	const n = 20_000
	for i := range n {
		mass.WriteString(request("CL.THROTTLE", fmt.Sprint("mass:", i%100), "9", "1", "10"))
	}
	if got, want := cli(mass.String(), "--pipe"), fmt.Sprintf("errors: 0, replies: %d\n", n); !strings.HasSuffix(got, want) {
		t.Errorf("redis-cli --pipe: %q, want the end %q", got, want)
	}

	// It makes its help and its hints from COMMAND DOCS.
	colours := regexp.MustCompile(`\x1b\[[0-9]*m`)
	help := colours.ReplaceAllString(cli("help CL.THROTTLE\nhelp @ratelimit\nhelp client list\nhelp scan\n"), "")
	for _, want := range []string{
		"CL.THROTTLE key max_burst count period [quantity]",
		"summary: Charges a number of events to a key if its rate allows them",
		"CL.PROBE key max_burst count period [quantity]",
		"CL.REFUND key max_burst count period quantity",
		"CL.MTHROTTLE ALL|EACH n key max_burst count period quantity [key max_burst count period quantity ...]",
		"CL.MPROBE ALL|EACH n key max_burst count period quantity [key max_burst count period quantity ...]",
		"QUOTA.REFUND key request-id",
		"QUOTA.TAKE key request-id cost limit window-ms",
		"QUOTA.GET key",
		"ROLL.ALLOW key limit window-ms [PAUSE]",
		"ROLL.INCR key limit window-ms [amount] [PAUSE]",
		"SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]",
	} {
		if !strings.Contains(help, want) {
			t.Errorf("help of redis-cli does not say %q:\n%s", want, help)
		}
	}
}

func TestRedisBenchmark(t *testing.T) {
	f := serve(t, commands.Config{})
	host, port, _ := net.SplitHostPort(f.addr)
	for _, args := range [][]string{
		{"-P", "1"},
		{"-P", "16"},
		{"-P", "500", "-3"},
	} {
		out := run(t, "", "redis-benchmark", slices.Concat([]string{"-h", host, "-p", port, "-c", "20", "-n", "20000", "-r", "1000", "-q"}, args,
			strings.Fields("CL.THROTTLE key:__rand_int__ 100 100 1 1"))...)
		if !regexp.MustCompile(`requests per second`).MatchString(out) || strings.Contains(out, "Error") || strings.Contains(out, "WARNING") {
			t.Errorf("redis-benchmark %s: %q", args, out)
		}
	}
	got := f.dial().ask(words("INFO commandstats"))
	if !strings.Contains(got, "cmdstat_cl.throttle:calls=60") {
		t.Errorf("INFO commandstats = %q, want 60,000 calls of CL.THROTTLE", got)
	}
}
