package commands_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gabiondb/gabion/commands"
	"github.com/gabiondb/gabion/engine"
)

func TestRefund(t *testing.T) {
	f := serve(t, commands.Config{})
	c := f.dial()
	valid := []string{"CL.REFUND", "k", "4", "1", "10", "1"}
	for i := 2; i < len(valid); i++ {
		withEach(notIntegers, valid, i, notInteger).playInVain(t, f, c)
		withEach([]string{"-1"}, valid, i, notInteger).playInVain(t, f, c)
	}
	withEach([]string{"", strings.Repeat("k", engine.MaxKeyLen+1)}, valid, 1, badKey).playInVain(t, f, c)
	script{
		{"CL.REFUND k 4 1 10", "-ERR wrong number of arguments for 'cl.refund' command\r\n"},
		{"CL.REFUND k 4 1 10 1 1", "-ERR wrong number of arguments for 'cl.refund' command\r\n"},
		{"CL.REFUND k 4 0 10 1", "-ERR zero rates are not supported\r\n"},
		{"CL.REFUND k 4 1 0 1", "-ERR zero rates are not supported\r\n"},
		{"CL.REFUND k 9223372036854775807 1 10 1", notInteger},
		{"CL.REFUND k 4 1 9223372037 1", notInteger},
		{"CL.REFUND k 4 1 10 1", ints(0, 5, 5, -1, 0)}, // there is nothing to give back
		{"CL.REFUND k 9223372036854775806 9223372036854775807 9223372036 9223372036854775807", ints(0, math.MaxInt64, math.MaxInt64, -1, 0)},
		{"EXISTS k", ":0\r\n"},
	}.playInVain(t, f, c)
	script{
		{"CL.THROTTLE k 4 1 10 5", ints(0, 5, 0, -1, 50)},
		{"CL.REFUND k 4 1 10 2", ints(0, 5, 2, -1, 30)},
		{"TTL k", ":30\r\n"},
		{"CL.REFUND k 4 1 10 2", ints(0, 5, 4, -1, 10)}, // it is not the same again
	}.play(t, c)
	script{
		{"CL.REFUND k 4 1 10 0", ints(0, 5, 4, -1, 10)},
		{"CL.REFUND k 0 1 5 0", ints(1, 1, 0, 5, 10)}, // by another rate the key is in debt
	}.playInVain(t, f, c)
	script{
		{"CL.REFUND k 4 1 10 9223372036854775807", ints(0, 5, 5, -1, 0)},
		{"EXISTS k", ":0\r\n"},
	}.play(t, c)
}

func TestSeveralArguments(t *testing.T) {
	f := serve(t, commands.Config{})
	c := f.dial()
	key := strings.Repeat("k", engine.MaxKeyLen)
	script{{"CL.THROTTLE a 4 1 10 1", ints(0, 5, 4, -1, 10)}}.play(t, c)
	blocks := func(n int) string { return strings.Repeat(" k 4 1 10 1", n) }
	for _, name := range []string{"CL.MTHROTTLE", "CL.MPROBE"} {
		arity := "-ERR wrong number of arguments for '" + strings.ToLower(name) + "' command\r\n"
		for _, mode := range []string{"ALL", "EACH"} {
			valid := []string{name, mode, "2", "a", "4", "1", "10", "1", "b", "4", "1", "10", "1"}
			for _, i := range []int{2, 4, 5, 6, 7, 9, 10, 11, 12} {
				withEach(notIntegers, valid, i, notInteger).playInVain(t, f, c)
				withEach([]string{"-1", "-9223372036854775808"}, valid, i, notInteger).playInVain(t, f, c)
			}
			for _, i := range []int{3, 8} {
				withEach([]string{"", key + "k"}, valid, i, badKey).playInVain(t, f, c)
				withEach([]string{"0"}, valid, i+2, "-ERR zero rates are not supported\r\n").playInVain(t, f, c)
				withEach([]string{"0"}, valid, i+3, "-ERR zero rates are not supported\r\n").playInVain(t, f, c)
				withEach([]string{"9223372036854775807"}, valid, i+1, notInteger).playInVain(t, f, c)
				withEach([]string{"9223372037"}, valid, i+3, notInteger).playInVain(t, f, c)
			}
			withEach([]string{"0", "129", "205", "9223372036854775807"}, valid, 2, notInteger).playInVain(t, f, c)
			withEach([]string{"1", "3", "12", "128"}, valid, 2, syntaxError).playInVain(t, f, c)
			withEach([]string{"", "ANY", "AL", "ALLE", "EACHE", "2", "\x00", strings.Repeat("ALL", 1000)}, valid, 1, syntaxError).playInVain(t, f, c)
			script{
				{name, arity},
				{name + " " + mode, arity},
				{name + " " + mode + " 1", arity},
				{name + " " + mode + " 0", arity},
				{name + " " + mode + " 1 k 4 1 10", arity},
				{name + " " + mode + " 2" + blocks(1) + " k 4 1 10", syntaxError}, // here no quantity may be left out
				{name + " " + mode + " 2" + blocks(2) + " 1", syntaxError},
				{name + " " + mode + " 127" + blocks(128), syntaxError},
				{name + " " + mode + " 128" + blocks(129), syntaxError},
				{name + " " + mode + " 129" + blocks(129), notInteger},
				{name + " " + mode + " 204" + blocks(204), notInteger}, // 1,023 arguments
				// A charge that can't be stored is an error for all of them.
				{name + " " + mode + " 2 b 4 1 10 1 c 9223372036854775806 1 9223372036 9223372036854775807",
					"-ERR value is out of range, its result can't be stored\r\n"},
				{"EXISTS b c k", ":0\r\n"},
			}.playInVain(t, f, c)
		}
	}
	script{
		{"cl.mthrottle all 1 " + key + " 4 1 10 1", decisions(0, -1, []int64{0, 5, 4, -1, 10})},
		{"cl.mprobe Each 1 " + key + " 4 1 10 1", decisions(0, -1, []int64{0, 5, 3, -1, 20})},
		{"CL.MTHROTTLE eACH 1 " + key + " 4 1 10 1", decisions(0, -1, []int64{0, 5, 3, -1, 20})},
	}.play(t, c)
	if got := c.ask(words("CL.MTHROTTLE ALL 204" + blocks(204) + " x")); got != notInteger { // 1,024 arguments
		t.Errorf("1,024 arguments: %q, want %q", got, notInteger)
	}
	c.send(words("CL.MTHROTTLE ALL 204" + blocks(204) + " x y"))
	if got, want := c.rest(), "-ERR Protocol error: "; !strings.HasPrefix(got, want) {
		t.Errorf("1,025 arguments: %q, want %q", got, want)
	}
}

// What asks for the most that there is, or for one key as often as there may be
// charges.
func TestSeveralAtTheirBounds(t *testing.T) {
	f := serve(t, commands.Config{})
	c := f.dial()
	const all = "9223372036854775807"
	untouched := []int64{0, 5, 5, -1, 0}
	script{
		{"CL.MTHROTTLE ALL 2 a 4 1 10 1 b 4 1 10 " + all, decisions(1, -1, untouched, []int64{1, 5, 5, -1, 0})},
		{"CL.MTHROTTLE ALL 2 a 4 1 10 " + all + " a 4 1 10 " + all, decisions(2, -1, []int64{1, 5, 5, -1, 0}, []int64{1, 5, 5, -1, 0})},
		{"CL.MTHROTTLE ALL 2 a 9223372036854775806 " + all + " 1 " + all + " a 9223372036854775806 " + all + " 1 " + all,
			decisions(1, -1, []int64{0, math.MaxInt64, math.MaxInt64, -1, 0}, []int64{1, math.MaxInt64, math.MaxInt64, -1, 0})},
		{"CL.MTHROTTLE EACH 2 b 4 1 10 " + all + " b 4 1 10 " + all, decisions(2, -1, []int64{1, 5, 5, -1, 0}, []int64{1, 5, 5, -1, 0})},
		{"CL.MTHROTTLE ALL 2 a 4 1 10 0 b 4 1 10 0", decisions(0, -1, untouched, untouched)},
		{"EXISTS a b", ":0\r\n"},
	}.playInVain(t, f, c)

	same := " 128" + strings.Repeat(" k 127 1 10 1", 128)
	var rows, denied [][]int64
	for i := range int64(128) {
		rows = append(rows, []int64{0, 128, 127 - i, -1, 10 * (i + 1)})
		denied = append(denied, []int64{1, 128, 0, 10 * (i + 1), 1280})
	}
	script{{"CL.MPROBE ALL" + same, decisions(0, -1, rows...)}}.playInVain(t, f, c)
	script{{"CL.MTHROTTLE ALL" + same, decisions(0, -1, rows...)}}.play(t, c)
	script{{"CL.MTHROTTLE ALL" + same, decisions(128, 1280, denied...)}}.playInVain(t, f, c)
	f.set(1280*time.Second - 1)
	// Only the last of them finds too little. Nothing is charged for the others.
	for i := range denied {
		denied[i] = []int64{0, 128, 127, -1, 1}
	}
	denied[127] = []int64{1, 128, 127, 1, 1}
	script{{"CL.MTHROTTLE ALL" + same, decisions(1, 1, denied...)}}.playInVain(t, f, c)
	f.set(1280 * time.Second)
	script{{"CL.MTHROTTLE EACH" + same, decisions(0, -1, rows...)}}.play(t, c)
}

// A pipeline of the largest calls is answered in order.
func TestPipelineOfSeveral(t *testing.T) {
	f := serve(t, commands.Config{})
	c := f.dial()
	const calls, limit = 100, 1_000_000
	var requests, want strings.Builder
	for i := range int64(calls) {
		args := []string{"CL.MTHROTTLE", []string{"ALL", "EACH"}[i%2], "128"}
		var rows [][]int64
		for j := range int64(128) {
			args = append(args, fmt.Sprint("k", j), "999999", "1", "1", fmt.Sprint(j))
			rows = append(rows, []int64{0, limit, limit - (i+1)*j, -1, (i + 1) * j})
		}
		requests.WriteString(request(args...))
		want.WriteString(decisions(0, -1, rows...))
		if i%3 == 0 { // the next one ends a run elsewhere
			requests.WriteString(words("CL.PROBE k127 999999 1 1 0") + words("CL.MTHROTTLE ALL 2 k0 1 1 1 1 k0 x 1 1 1"))
			want.WriteString(ints(0, limit, limit-(i+1)*127, -1, (i+1)*127) + notInteger)
		}
	}
	if got := c.ask(requests.String()); got != want.String() {
		t.Errorf("\n got %.300q\nwant %.300q", got, want.String())
	}
}

// Whatever keys clients charge together, in whatever order, what was let through
// is what has been charged, and never more than a key's limit.
func TestSeveralOfManyClients(t *testing.T) {
	const clients, calls, keys, limit = 16, 50, 8, 60
	seed := rand.Uint64()
	t.Logf("the seed is %d", seed)
	f := serve(t, commands.Config{})
	var (
		mu     sync.Mutex // guards spent and denied
		spent  [keys]int64
		denied int
		wg     sync.WaitGroup
	)
	for i := range clients {
		client, err := commands.Dial(context.Background(), f.addr, commands.ClientConfig{Timeout: patience})
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		wg.Go(func() {
			for range calls {
				var asked [keys]int64
				var blocks []string
				n := 1 + rng.IntN(keys)
				for range n {
					key, quantity := rng.IntN(keys), rng.Int64N(3)
					asked[key] += quantity
					blocks = append(blocks, fmt.Sprint("k", key), fmt.Sprint(limit-1), "1", "1000000", fmt.Sprint(quantity))
				}
				reply, err := client.Do(slices.Concat([]string{"CL.MTHROTTLE", "ALL", fmt.Sprint(n)}, blocks)...)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if reply.([]any)[0] != int64(0) {
					denied++
				} else {
					for key, quantity := range asked {
						spent[key] += quantity
					}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	c := f.dial()
	for key, spent := range spent {
		want := ints(0, limit, limit-spent, -1, spent*1_000_000)
		if got := c.ask(words(fmt.Sprintf("CL.PROBE k%d %d 1 1000000 0", key, limit-1))); spent > limit || got != want {
			t.Errorf("key %d, of which %d of %d have been let through: %q, want %q", key, spent, limit, got, want)
		}
	}
	if denied == 0 || denied == clients*calls {
		t.Errorf("%d calls of %d were denied", denied, clients*calls)
	}
}
