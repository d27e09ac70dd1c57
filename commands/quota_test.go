package commands_test

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gabiondb/gabion/commands"
	"github.com/gabiondb/gabion/engine"
	"github.com/gabiondb/gabion/engine/limit"
)

const badRequestID = "-INVALID request-id is not 1 to 64 of A-Z a-z 0-9 _ -\r\n"

func TestQuotaArguments(t *testing.T) {
	f := serve(t, commands.Config{})
	c := f.dial()
	key := strings.Repeat("k", engine.MaxKeyLen)
	id := strings.Repeat("i", limit.MaxRequestIDLen)
	for _, name := range []string{"QUOTA.TAKE", "QUOTA.PROBE"} {
		arity := "-ERR wrong number of arguments for '" + strings.ToLower(name) + "' command\r\n"
		valid := []string{name, "k", "id", "1", "5", "1000"}
		for i, field := range map[int]string{3: "cost", 4: "limit", 5: "window-ms"} {
			want := "-INVALID " + field + " is not an integer or out of range\r\n"
			withEach(notIntegers, valid, i, want).playInVain(t, f, c)
			withEach([]string{"-1", "-9223372036854775808"}, valid, i, want).playInVain(t, f, c)
		}
		withEach([]string{"0", "6", "9223372036854775807"}, valid, 3, "-INVALID cost is outside 1..5\r\n").playInVain(t, f, c)
		withEach([]string{"0", "10001", "9223372036854775807"}, valid, 4, "-INVALID limit is outside 1..10000\r\n").playInVain(t, f, c)
		// As nanoseconds, one of these is more than 63 bits and another more than 64.
		withEach([]string{"0", "86400001", "9223372036855", "18446744073710", "9223372036854775807"},
			valid, 5, "-INVALID window-ms is outside 1..86400000\r\n").playInVain(t, f, c)
		withEach([]string{
			"", id + "i", strings.Repeat("i", 100_000), "a b", "a.b", "a:b", "a/b", "a+b", "a\x00", "\x00", "\n", "ä", "\xff",
			"[", "`", "{", "@",
		}, valid, 2, badRequestID).playInVain(t, f, c)
		withEach([]string{"", key + "k"}, valid, 1, "-INVALID key is not 1 to 4096 bytes long\r\n").playInVain(t, f, c)
		script{
			{name, arity},
			{name + " k", arity},
			{name + " k id 1 5", arity},
			{name + " k id 1 5 1000 1", arity},
		}.playInVain(t, f, c)
	}
	refund := []string{"QUOTA.REFUND", "k", "id"}
	withEach([]string{"", id + "i", "a b", "\x00", "ä"}, refund, 2, badRequestID).playInVain(t, f, c)
	withEach([]string{"", key + "k"}, refund, 1, "-INVALID key is not 1 to 4096 bytes long\r\n").playInVain(t, f, c)
	script{
		{"QUOTA.REFUND k", "-ERR wrong number of arguments for 'quota.refund' command\r\n"},
		{"QUOTA.REFUND k id 1", "-ERR wrong number of arguments for 'quota.refund' command\r\n"},
		{"QUOTA.REFUND k id", ints(0, 0, 0)},
		{"QUOTA.GET", "-ERR wrong number of arguments for 'quota.get' command\r\n"},
		{"QUOTA.GET k 5", "-ERR wrong number of arguments for 'quota.get' command\r\n"},
		{request("QUOTA.GET", ""), "-INVALID key is not 1 to 4096 bytes long\r\n"},
		{request("QUOTA.GET", key+"k"), "-INVALID key is not 1 to 4096 bytes long\r\n"},
		{"DBSIZE", ":0\r\n"},
	}.playInVain(t, f, c)

	// What is just right.
	script{
		{"quota.Take " + key + " " + id + " 10000 10000 86400000", ints(1, 10000, 0)},
		{"QUOTA.TAKE k AZaz09_- 1 1 1", ints(1, 1, 0)},
		{"QUOTA.TAKE id - 1 2 1", ints(1, 1, 0)},
		{"QUOTA.TAKE id _ 1 2 1", ints(1, 2, 0)},
		{"quota.get " + key, ints(10000, 10000, 86400000, 86400000)},
	}.play(t, c)
}

func TestQuotaCaps(t *testing.T) {
	f := serveStore(t, commands.Config{}, engine.Options{QuotaMaxLimit: limit.MaxLimit, QuotaMaxWindow: limit.MaxWindow})
	c := f.dial()
	script{
		{"QUOTA.TAKE k a 9007199254740991 9007199254740991 315360000000", ints(1, limit.MaxLimit, 0)},
		{"QUOTA.TAKE k b 1 9007199254740991 315360000000", ints(0, limit.MaxLimit, 0)},
		{"QUOTA.GET k", ints(limit.MaxLimit, limit.MaxLimit, 315360000000, 315360000000)},
		{"PTTL k", ":315360000000\r\n"},
	}.play(t, c)
	script{
		{"QUOTA.TAKE l a 1 9007199254740992 1000", "-INVALID limit is outside 1..9007199254740991\r\n"},
		{"QUOTA.TAKE l a 1 1 315360000001", "-INVALID window-ms is outside 1..315360000000\r\n"},
	}.playInVain(t, f, c)

	f = serveStore(t, commands.Config{}, engine.Options{QuotaMaxLimit: 5, QuotaMaxWindow: time.Second})
	script{
		{"QUOTA.PROBE k a 1 6 1000", "-INVALID limit is outside 1..5\r\n"},
		{"QUOTA.PROBE k a 1 5 1001", "-INVALID window-ms is outside 1..1000\r\n"},
		{"QUOTA.PROBE k a 1 5 1000", ints(1, 1, 0)},
	}.playInVain(t, f, f.dial())
}

// Of what may be wrong with a request, the first in this order is told: the
// arguments, the kind, the policy, the id, and only then whether there is room.
func TestQuotaOrderOfChecks(t *testing.T) {
	const (
		conflict = "-CONFLICT request was accepted at another cost\r\n"
		policy   = "-POLICY another limit or window is in force until the window closes\r\n"
	)
	f := serve(t, commands.Config{})
	c := f.dial()
	script{
		{"QUOTA.TAKE k a 3 5 1000", ints(1, 3, 0)},
		{"QUOTA.TAKE k b 2 5 1000", ints(1, 5, 0)},
	}.play(t, c)
	for _, name := range []string{"QUOTA.TAKE", "QUOTA.PROBE"} {
		script{
			{name + " k a 3 5 86400001", "-INVALID window-ms is outside 1..86400000\r\n"},
			{name + " k a 7 6 1000", "-INVALID cost is outside 1..6\r\n"},
			{name + " k a 3 6 1000", policy},
			{name + " k a 3 5 1001", policy},
			{name + " k a 1 6 1000", policy},
			{name + " k c 1 6 1000", policy},
			{name + " k a 1 5 1000", conflict},
			{name + " k a 5 5 1000", conflict},
			{name + " k a 3 5 1000", ints(1, 3, 1)},
			{name + " k b 2 5 1000", ints(1, 5, 1)},
			{name + " k c 1 5 1000", ints(0, 5, 0)},
			{name + " k A 3 5 1000", ints(0, 5, 0)}, // another id
		}.playInVain(t, f, c)
	}
	f.set(time.Second)
	script{
		{"QUOTA.PROBE k a 1 6 2000", ints(1, 1, 0)},
		{"QUOTA.TAKE k a 1 6 2000", ints(1, 1, 0)},
		{"QUOTA.TAKE k a 3 5 1000", policy},
	}.play(t, c)
}

func TestQuotaGet(t *testing.T) {
	f := serve(t, commands.Config{})
	c := f.dial()
	script{{"QUOTA.GET k", "$-1\r\n"}}.playInVain(t, f, c)
	script{{"QUOTA.TAKE k a 2 5 1800", ints(1, 2, 0)}}.play(t, c)
	script{{"QUOTA.GET k", ints(2, 5, 1800, 1800)}}.playInVain(t, f, c)
	f.set(time.Millisecond + 1)
	script{
		{"QUOTA.TAKE k b 3 5 1800", ints(1, 5, 0)},
		{"QUOTA.TAKE k c 1 5 1800", ints(0, 5, 0)},
		{"QUOTA.GET k", ints(5, 5, 1800, 1799)},
	}.play(t, c)
	f.set(1800*time.Millisecond - 1)
	script{{"QUOTA.GET k", ints(5, 5, 1800, 1)}}.playInVain(t, f, c)
	f.set(1800 * time.Millisecond)
	script{{"QUOTA.GET k", "$-1\r\n"}}.playInVain(t, f, c)
	c.ask(words("HELLO 3"))
	script{
		{"QUOTA.GET k", "_\r\n"},
		{"QUOTA.TAKE k a 2 5 1800", ints(1, 2, 0)},
		{"QUOTA.GET k", ints(2, 5, 1800, 1800)},
	}.play(t, c)
}

func TestQuotaRefund(t *testing.T) {
	const refunded = "-CONFLICT request was refunded\r\n"
	f := serve(t, commands.Config{})
	c := f.dial()
	script{
		{"QUOTA.TAKE k a 2 5 1000", ints(1, 2, 0)},
		{"QUOTA.TAKE k b 3 5 1000", ints(1, 5, 0)},
		{"QUOTA.TAKE k c 1 5 1000", ints(0, 5, 0)},
		{"QUOTA.REFUND k a", ints(1, 3, 0)},
	}.play(t, c)
	script{
		{"QUOTA.REFUND k a", ints(1, 3, 1)},
		{"QUOTA.REFUND k c", ints(0, 3, 0)}, // was denied
		{"QUOTA.REFUND k A", ints(0, 3, 0)},
		{"QUOTA.TAKE k a 2 5 1000", refunded},
		{"QUOTA.TAKE k a 1 5 1000", refunded},
		{"QUOTA.PROBE k a 2 5 1000", refunded},
		{"QUOTA.TAKE k a 2 6 1000", "-POLICY another limit or window is in force until the window closes\r\n"},
		{"QUOTA.GET k", ints(3, 5, 1000, 1000)},
	}.playInVain(t, f, c)
	script{
		{"QUOTA.TAKE k c 2 5 1000", ints(1, 5, 0)},
		{"QUOTA.REFUND k b", ints(1, 2, 0)},
		{"QUOTA.REFUND k c", ints(1, 0, 0)},
		{"QUOTA.GET k", ints(0, 5, 1000, 1000)}, // it stays open
	}.play(t, c)
	f.set(time.Second)
	script{{"QUOTA.REFUND k b", ints(0, 0, 0)}}.playInVain(t, f, c)
	script{{"QUOTA.TAKE k a 1 9 2000", ints(1, 1, 0)}}.play(t, c)
}

func TestQuotaRefundOfOneRequestAtOnce(t *testing.T) {
	f := serve(t, commands.Config{})
	script{
		{"QUOTA.TAKE k other 2 5 60000", ints(1, 2, 0)},
		{"QUOTA.TAKE k id 3 5 60000", ints(1, 5, 0)},
	}.play(t, f.dial())
	got := f.atOnce(50, func(int) []string { return strings.Fields("QUOTA.REFUND k id") })
	want := map[string]int{"[1 2 0]": 1, "[1 2 1]": 49}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("replies %v, want %v", got, want)
	}
	script{{"QUOTA.GET k", ints(2, 5, 60000, 60000)}}.play(t, f.dial())
}

// atOnce has n connections send a request each at the same time, and counts the
// replies.
func (f *fixture) atOnce(n int, args func(i int) []string) map[string]int {
	f.t.Helper()
	clients := make([]*commands.Client, n)
	for i := range clients {
		client, err := commands.Dial(context.Background(), f.addr, commands.ClientConfig{Timeout: patience})
		if err != nil {
			f.t.Fatal(err)
		}
		defer client.Close()
		clients[i] = client
	}
	var (
		mu      sync.Mutex // guards replies
		replies = make(map[string]int)
		callers sync.WaitGroup
		start   = make(chan struct{})
	)
	for i, client := range clients {
		callers.Go(func() {
			<-start
			reply, err := client.Do(args(i)...)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				reply = err
			}
			replies[fmt.Sprint(reply)]++
		})
	}
	close(start)
	callers.Wait()
	return replies
}

func TestQuotaOfDistinctRequestsAtOnce(t *testing.T) {
	f := serve(t, commands.Config{})
	got := f.atOnce(20, func(i int) []string {
		return strings.Fields(fmt.Sprintf("QUOTA.TAKE k id-%d 1 5 60000", i))
	})
	want := map[string]int{"[1 1 0]": 1, "[1 2 0]": 1, "[1 3 0]": 1, "[1 4 0]": 1, "[1 5 0]": 1, "[0 5 0]": 15}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("replies %v, want %v", got, want)
	}
	script{{"QUOTA.GET k", ints(5, 5, 60000, 60000)}}.play(t, f.dial())
}

func TestQuotaOfOneRequestAtOnce(t *testing.T) {
	f := serve(t, commands.Config{})
	c := f.dial()
	script{{"QUOTA.TAKE k before 2 5 60000", ints(1, 2, 0)}}.play(t, c)
	got := f.atOnce(200, func(int) []string { return strings.Fields("QUOTA.TAKE k id 3 5 60000") })
	want := map[string]int{"[1 5 0]": 1, "[1 5 1]": 199}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("replies %v, want %v", got, want)
	}
	script{{"QUOTA.GET k", ints(5, 5, 60000, 60000)}}.play(t, c)
}
