package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
)

// The load over the wire: charges of keys drawn at random, none of which is ever
// denied. An event leaks back after longer than a run takes, so that the keys
// tell at its end how many charges have been made.
const (
	wireConnections = 50
	wireLimit       = 100_000
	wireInterval    = 1000 // seconds for an event
	rollLimit       = 100_000
	rollWindow      = 86_400_000 // ms
	randomKey       = "key:__rand_int__"
)

// wireKeys is how many keys there are. A test makes do with fewer.
var wireKeys = 100_000

var (
	//go:embed gcra.lua
	gcraScript string
	//go:embed rolling.lua
	rollingScript string
)

// A wireLoad is a command by which a server limits, on randomKey.
type wireLoad struct {
	args    []string
	allowed int64    // the first integer of a reply that allows
	look    []string // tells how often the key has been charged
	charged func(reply any) (int64, error)
	stat    string // the name of the command in the server's INFO; "" if it has none
}

// with returns args for a key.
func with(args []string, key string) []any {
	full := make([]any, len(args))
	for i, arg := range args {
		if arg == randomKey {
			arg = key
		}
		full[i] = arg
	}
	return full
}

// throttleLoad makes the load of a command that has the arguments and the reply
// of CL.THROTTLE, after it has answered what it has to.
func throttleLoad(ctx context.Context, rdb *redis.Client, stat string, command ...string) (*wireLoad, error) {
	charge := func(key string, burst, count, period, quantity int) []string {
		return append(slices.Clone(command), key, fmt.Sprint(burst), fmt.Sprint(count), fmt.Sprint(period), fmt.Sprint(quantity))
	}
	const hour = 3600
	sequence := [][]int64{{0, 3, 2, -1, 1200}, {0, 3, 1, -1, 2400}, {0, 3, 0, -1, 3600}, {1, 3, 0, 1200, 3600}, {1, 3, 0, 1200, 3600}}
	if err := answers(ctx, rdb, charge("sequence", 2, 3, hour, 1), sequence, time.Second); err != nil {
		return nil, err
	}
	return &wireLoad{
		args:    charge(randomKey, wireLimit-1, wireLimit, wireLimit*wireInterval, 1),
		allowed: 0,
		look:    charge(randomKey, wireLimit-1, wireLimit, wireLimit*wireInterval, 0),
		charged: func(reply any) (int64, error) {
			row, err := integers(reply, 5)
			if err != nil {
				return 0, err
			}
			return row[1] - row[2], nil
		},
		stat: stat,
	}, nil
}

// rollingLoad does the same for one that has those of ROLL.ALLOW. look tells how
// many events there are.
func rollingLoad(ctx context.Context, rdb *redis.Client, stat string, look []string, command ...string) (*wireLoad, error) {
	record := func(key string, limit int) []string {
		return append(slices.Clone(command), key, fmt.Sprint(limit), fmt.Sprint(rollWindow))
	}
	sequence := [][]int64{{1, 1, 2, 0}, {1, 2, 2, rollWindow}, {0, 2, 2, rollWindow}, {0, 2, 2, rollWindow}}
	if err := answers(ctx, rdb, record("sequence", 2), sequence, time.Millisecond); err != nil {
		return nil, err
	}
	return &wireLoad{
		args:    record(randomKey, rollLimit),
		allowed: 1,
		look:    look,
		charged: func(reply any) (int64, error) {
			n, ok := reply.(int64)
			if !ok {
				return 0, fmt.Errorf("the reply is %v, not an integer", reply)
			}
			return n, nil
		},
		stat: stat,
	}, nil
}

// answers repeats a command and compares its replies with those that it has to
// give. Integers above a hundred are times, in units, which may have gone by.
func answers(ctx context.Context, rdb *redis.Client, command []string, sequence [][]int64, unit time.Duration) error {
	start := time.Now()
	for i, want := range sequence {
		reply, err := rdb.Do(ctx, with(command, "")...).Result()
		if err != nil {
			return err
		}
		row, err := integers(reply, len(want))
		if err != nil {
			return err
		}
		passed := int64(time.Since(start)/unit) + 1
		same := func(got, want int64) bool {
			return got == want || want > 100 && got < want && got >= want-passed
		}
		if !slices.EqualFunc(row, want, same) {
			return fmt.Errorf("call %d of %v answers %v, want %v", i+1, command, row, want)
		}
	}
	return nil
}

// integers returns a reply that has to be n of them.
func integers(reply any, n int) ([]int64, error) {
	array, _ := reply.([]any)
	row := make([]int64, 0, n)
	for _, e := range array {
		if i, ok := e.(int64); ok {
			row = append(row, i)
		}
	}
	if len(row) != n || len(array) != n {
		return nil, fmt.Errorf("the reply is %v, not %d integers", reply, n)
	}
	return row, nil
}

func gabionThrottle(ctx context.Context, rdb *redis.Client) (*wireLoad, error) {
	return throttleLoad(ctx, rdb, "cl.throttle", "CL.THROTTLE")
}

func gabionRolling(ctx context.Context, rdb *redis.Client) (*wireLoad, error) {
	look := []string{"ROLL.PEEK", randomKey, fmt.Sprint(rollLimit), fmt.Sprint(rollWindow)}
	return rollingLoad(ctx, rdb, "roll.allow", look, "ROLL.ALLOW")
}

func redisThrottle(ctx context.Context, rdb *redis.Client) (*wireLoad, error) {
	sha, err := rdb.ScriptLoad(ctx, gcraScript).Result()
	if err != nil {
		return nil, err
	}
	return throttleLoad(ctx, rdb, "evalsha", "EVALSHA", sha, "1")
}

func redisRolling(ctx context.Context, rdb *redis.Client) (*wireLoad, error) {
	sha, err := rdb.ScriptLoad(ctx, rollingScript).Result()
	if err != nil {
		return nil, err
	}
	return rollingLoad(ctx, rdb, "evalsha", []string{"ZCARD", randomKey}, "EVALSHA", sha, "1")
}

// bareThrottle is the load of the bare server, whose answers are always the same.
func bareThrottle(context.Context, *redis.Client) (*wireLoad, error) {
	return &wireLoad{args: []string{"CL.THROTTLE", randomKey, fmt.Sprint(wireLimit - 1), fmt.Sprint(wireLimit), fmt.Sprint(wireLimit * wireInterval), "1"}}, nil
}

// redisRate is the load of redis_rate: the call of its script that it makes.
func redisRate(ctx context.Context, rdb *redis.Client) (*wireLoad, error) {
	limiter := redis_rate.NewLimiter(rdb)
	for i, want := range []redis_rate.Result{{Allowed: 1, Remaining: 2}, {Allowed: 1, Remaining: 1}, {Allowed: 1, Remaining: 0}, {}, {}} {
		got, err := limiter.Allow(ctx, "sequence", redis_rate.PerHour(3))
		if err != nil {
			return nil, err
		}
		if got.Allowed != want.Allowed || got.Remaining != want.Remaining || (got.RetryAfter > 0) != (want.Allowed == 0) {
			return nil, fmt.Errorf("call %d of redis_rate answers %+v, want %d allowed, %d remaining", i+1, got, want.Allowed, want.Remaining)
		}
	}
	// The script is loaded now. What redis_rate sends to call it is what others
	// have to send.
	var capture captureHook
	watched := redis.NewClient(rdb.Options())
	defer watched.Close()
	watched.AddHook(&capture)
	limiter = redis_rate.NewLimiter(watched)
	rate := redis_rate.Limit{Rate: wireLimit, Burst: wireLimit, Period: wireLimit * wireInterval * time.Second}
	for _, quantity := range []int{1, 0} {
		if _, err := limiter.AllowN(ctx, "captured", rate, quantity); err != nil {
			return nil, err
		}
	}
	if len(capture.calls) != 2 || len(capture.calls[0]) < 4 {
		return nil, fmt.Errorf("redis_rate makes calls that are not understood: %v", capture.calls)
	}
	for _, call := range capture.calls {
		call[3] = randomKey // after EVALSHA, the script and the number of keys
	}
	return &wireLoad{
		args:    capture.calls[0],
		allowed: 1,
		look:    capture.calls[1],
		charged: func(reply any) (int64, error) {
			if array, _ := reply.([]any); len(array) == 4 {
				if remaining, ok := array[1].(int64); ok {
					return wireLimit - remaining, nil
				}
			}
			return 0, fmt.Errorf("redis_rate answers %v", reply)
		},
		stat: "evalsha",
	}, nil
}

// A captureHook keeps the arguments of each EVALSHA of a client.
type captureHook struct{ calls [][]string }

func (h *captureHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *captureHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *captureHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.EqualFold(cmd.Name(), "evalsha") {
			call := make([]string, len(cmd.Args()))
			for i, arg := range cmd.Args() {
				if f, ok := arg.(float64); ok {
					arg = strconv.FormatFloat(f, 'f', -1, 64) // as the client sends it
				}
				call[i] = fmt.Sprint(arg)
			}
			h.calls = append(h.calls, call)
		}
		return next(ctx, cmd)
	}
}

// A wire is a server under load.
type wire struct {
	*wireLoad
	ctx  context.Context
	addr string
	rdb  *redis.Client
	sent int64 // charges
}

// onWire starts a server, charges each key once, has it measured, and holds the
// charges that were sent against those that the keys have.
func onWire(r *Run, start func(*Run) (*server, error), load func(context.Context, *redis.Client) (*wireLoad, error), measure func(*wire) error) error {
	srv, err := start(r)
	if err != nil {
		return err
	}
	defer srv.stop()
	rdb := redis.NewClient(&redis.Options{
		Addr: srv.addr, Protocol: 2, DisableIdentity: true, MaxRetries: -1,
		ReadTimeout: time.Minute, WriteTimeout: time.Minute,
	})
	defer rdb.Close()
	err = func() error {
		load, err := load(r.Context, rdb)
		if err != nil {
			return err
		}
		w := &wire{wireLoad: load, ctx: r.Context, addr: srv.addr, rdb: rdb}
		if err := w.warmUp(); err != nil {
			return err
		}
		if err := measure(w); err != nil {
			return err
		}
		return w.account()
	}()
	if err != nil {
		return srv.explain(err)
	}
	return nil
}

// warmUp charges each key once.
func (w *wire) warmUp() error {
	w.sent += int64(wireKeys)
	return w.each(w.args, func(reply any) error {
		if row, ok := reply.([]any); !ok || len(row) == 0 || row[0] != w.allowed {
			return fmt.Errorf("the first charge of a key is not allowed: %v", reply)
		}
		return nil
	})
}

// account finds out whether each charge that was sent has been made, and made
// once.
func (w *wire) account() error {
	if w.look == nil {
		return nil
	}
	made := int64(0)
	err := w.each(w.look, func(reply any) error {
		n, err := w.charged(reply)
		made += n
		return err
	})
	if err == nil && made != w.sent {
		return fmt.Errorf("%d charges were sent, and %d made", w.sent, made)
	}
	return err
}

// each sends a command for each of the keys.
func (w *wire) each(args []string, replied func(reply any) error) error {
	const together = 5000
	for first := 0; first < wireKeys; first += together {
		pipe := w.rdb.Pipeline()
		for i := first; i < min(first+together, wireKeys); i++ {
			pipe.Do(w.ctx, with(args, fmt.Sprintf("key:%012d", i))...)
		}
		cmds, err := pipe.Exec(w.ctx)
		if err != nil {
			return err
		}
		for _, cmd := range cmds {
			if err := replied(cmd.(*redis.Cmd).Val()); err != nil {
				return err
			}
		}
	}
	return nil
}

// calls returns how many calls of the command the server has carried out, and
// how many it has refused or failed to.
func (w *wire) calls() (n, failed int64, err error) {
	if w.stat == "" {
		return 0, 0, nil
	}
	info, err := w.rdb.Info(w.ctx, "commandstats").Result()
	if err != nil {
		return 0, 0, err
	}
	line := regexp.MustCompile(`cmdstat_` + regexp.QuoteMeta(w.stat) + `:calls=(\d+),.*rejected_calls=(\d+),failed_calls=(\d+)`).FindStringSubmatch(info)
	if line == nil {
		return 0, 0, fmt.Errorf("the server does not tell how often it was called: %s", info)
	}
	var figures [3]int64
	for i := range figures {
		if figures[i], err = strconv.ParseInt(line[i+1], 10, 64); err != nil {
			return 0, 0, err
		}
	}
	return figures[0], figures[1] + figures[2], nil
}

// A benchmark is what redis-benchmark has measured. Times are in microseconds.
type benchmark struct {
	rate           float64 // commands per second
	p50, p99, p999 float64
}

// benchmark has redis-benchmark charge keys for about so long, after ever longer
// trials that tell how many that makes.
func (w *wire) benchmark(length time.Duration, pipeline int) (benchmark, error) {
	round := wireConnections * pipeline
	for n := max(4*round, 1000); ; n *= 10 {
		b, err := w.redisBenchmark(n, pipeline)
		if err != nil {
			return benchmark{}, err
		}
		if took := float64(n) / b.rate; took > length.Seconds()/10 {
			rounds := math.Ceil(b.rate * length.Seconds() / float64(round))
			return w.redisBenchmark(int(rounds)*round, pipeline)
		}
	}
}

// redisBenchmark has redis-benchmark charge n keys. It ends at the first error
// that it is answered.
func (w *wire) redisBenchmark(n, pipeline int) (b benchmark, err error) {
	before, failedBefore, err := w.calls()
	if err != nil {
		return b, err
	}
	host, port, _ := strings.Cut(w.addr, ":")
	args := append([]string{"-h", host, "-p", port, "-c", fmt.Sprint(wireConnections), "-P", fmt.Sprint(pipeline),
		"-r", fmt.Sprint(wireKeys), "-n", fmt.Sprint(n)}, w.args...)
	cmd := exec.CommandContext(w.ctx, "redis-benchmark", args...)
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("redis-benchmark: %w: %s", err, exit.Stderr)
		}
		return b, err
	}
	w.sent += int64(n)
	after, failed, err := w.calls()
	if err != nil {
		return b, err
	}
	if w.stat != "" && (after-before != int64(n) || failed > failedBefore) {
		return b, fmt.Errorf("of %d commands that redis-benchmark sent the server has had %d, and failed %d", n, after-before, failed-failedBefore)
	}
	return b, b.parse(string(out))
}

var (
	benchmarkRate  = regexp.MustCompile(`throughput summary: ([0-9.]+) requests per second`)
	benchmarkShare = regexp.MustCompile(`(?m)^([0-9.]+)% <= ([0-9.]+) milliseconds`)
)

// parse reads the output of redis-benchmark.
func (b *benchmark) parse(out string) error {
	rate := benchmarkRate.FindStringSubmatch(out)
	// The first list is made so that its lines lie ever closer together. The
	// line that follows a percentile is no better than it.
	percentiles, _, found := strings.Cut(out, "Cumulative distribution of latencies:")
	if rate == nil || !found {
		return fmt.Errorf("redis-benchmark reports what is not understood; its version 7 is needed:\n%s", out)
	}
	b.rate, _ = strconv.ParseFloat(rate[1], 64)
	shares := benchmarkShare.FindAllStringSubmatch(percentiles, -1)
	for _, p := range []struct {
		percent float64
		us      *float64
	}{{50, &b.p50}, {99, &b.p99}, {99.9, &b.p999}} {
		for _, line := range shares {
			if percent, _ := strconv.ParseFloat(line[1], 64); percent >= p.percent {
				ms, _ := strconv.ParseFloat(line[2], 64)
				*p.us = 1000 * ms
				break
			}
		}
	}
	if b.rate <= 0 || b.p50 <= 0 || b.p999 <= 0 {
		return fmt.Errorf("redis-benchmark measured nothing:\n%s", out)
	}
	return nil
}
