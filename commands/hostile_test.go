package commands_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gabiondb/gabion/commands"
)

// attack is what a process of attackers is told to do. It is a process of its
// own so that what it takes is not counted as the server's, neither memory nor
// files, of which a process may have few.
type attack struct {
	Addr    string
	Clients int
	Head    string // that each of them sends, and then
	Again   string // over and over, as fast as the server takes it
	Slowly  bool   // or a byte each time
	Polled  bool   // the head is one request, and is sent until a poller has the connection
}

const attackVariable = "GABION_TEST_ATTACK"

func TestMain(m *testing.M) {
	if os.Getenv(attackVariable) == "" {
		os.Exit(m.Run())
	}
	var a attack
	if err := json.NewDecoder(os.Stdin).Decode(&a); err != nil {
		panic(err)
	}
	a.run()
}

// run connects and attacks, and tells when all are connected. It reads nothing but
// what it has to. It returns when it is told to, whereupon the end of the process
// resets the connections.
func (a *attack) run() {
	var dialers sync.WaitGroup
	conns := make(chan net.Conn, a.Clients) // which closes none as garbage
	turns := make(chan struct{}, a.Clients)
	for range a.Clients {
		turns <- struct{}{}
	}
	close(turns)
	for range 64 {
		dialers.Go(func() {
			for range turns {
				c, err := net.Dial("tcp", a.Addr)
				if err != nil {
					fmt.Println(err)
					os.Exit(1)
				}
				go a.client(c)
				_ = c.(*net.TCPConn).SetLinger(0) // it ends with a reset
				conns <- c
			}
		})
	}
	dialers.Wait()
	fmt.Println("connected")
	io.Copy(io.Discard, os.Stdin)
	runtime.KeepAlive(conns)
}

func (a *attack) client(c net.Conn) {
	if a.Polled {
		for range commands.EnoughPolled {
			io.WriteString(c, a.Head)
			c.Read(make([]byte, 100))
		}
	}
	if _, err := io.WriteString(c, a.Head); err != nil || a.Again == "" {
		return
	}
	if a.Slowly {
		for i := 0; ; i++ {
			if _, err := c.Write([]byte{a.Again[i%len(a.Again)]}); err != nil {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}
	for {
		if _, err := io.WriteString(c, a.Again); err != nil {
			return
		}
	}
}

// attack has another process attack the server. The returned function ends it.
func (f *fixture) attack(a attack) (end func()) {
	f.t.Helper()
	a.Addr = f.addr
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), attackVariable+"=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	end = sync.OnceFunc(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			f.t.Errorf("the attackers: %v", err)
		}
	})
	f.t.Cleanup(end)
	if err := json.NewEncoder(in).Encode(a); err != nil {
		f.t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "connected\n" {
		f.t.Fatalf("the attackers say %q, %v", line, err)
	}
	return end
}

// needFiles skips the test where the process may not have n files open. Go has
// raised the limit as far as it may be.
func needFiles(t *testing.T, n uint64) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || uint64(limit.Cur) < n {
		t.Skipf("%d files may be open, the test needs %d (ulimit -Hn)", limit.Cur, n)
	}
}

// memory returns the bytes that are in use of the heap, after what nobody uses has
// been collected, and of stacks.
func memory() int64 {
	runtime.GC()
	runtime.GC() // what was in a sync.Pool outlives the first
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// connected asks how many connections there are.
func connected(c *wire) int {
	c.t.Helper()
	return c.figure("clients", "connected_clients")
}

// calls makes calls of a good client, which know the answer to each.
type calls struct {
	*wire
	n int64
}

func (c *calls) make() {
	c.t.Helper()
	const limit = 1_000_000
	for range commands.EnoughPolled + 2 {
		if got, want := c.ask(words("CL.THROTTLE good 999999 1 1")), ints(0, limit, limit-1-c.n, -1, c.n+1); got != want {
			c.t.Fatalf("a good client's call: %q, want %q", got, want)
		}
		c.n++
	}
	if got := c.ask(words("CL.PROBE good 999999 1 1 1000000") + words("PING") + words("EXISTS good")); !strings.HasSuffix(got, "+PONG\r\n:1\r\n") {
		c.t.Fatalf("a good client's call: %q", got)
	}
}

// recovers waits until the attackers have gone, and holds that nothing is left
// of them.
func (c *calls) recovers(before int64, goroutines int) {
	c.t.Helper()
	eventually(c.t, "the attackers' connections end", func() bool { return connected(c.wire) == 1 })
	released(c.wire)
	if got := c.ask(words("INFO stats")); !strings.Contains(got, "\r\nconnection_panics:0\r\n") {
		c.t.Errorf("INFO stats = %q", got)
	}
	// Pools let go of their memory in the second collection. The rest is what
	// the store and the tables of connections have grown by.
	memory()
	const slack = 8 << 20
	if after := memory(); after > before+slack {
		c.t.Errorf("%d bytes are in use after the attack, %d were before", after, before)
	}
	eventually(c.t, "the attackers' goroutines end", func() bool { return runtime.NumGoroutine() <= goroutines })
	c.make()
}

// maxIdle is how many bytes a connection may take that has nothing to do, or
// half of a small request.
const maxIdle = 32 << 10

// TestTenThousandConnections has as many as there may be, drops them all at
// once, and does so again: in the middle of a request, and after one.
func TestTenThousandConnections(t *testing.T) {
	const most = 10_000
	if testing.Short() {
		t.Skip("as many connections take a while")
	}
	needFiles(t, most+100)
	f := serve(t, commands.Config{})
	good := &calls{wire: f.dial()}
	good.make()
	before, goroutines := memory(), runtime.NumGoroutine()
	for _, head := range []string{"", "*2\r\n$4\r\nECHO\r\n$1000\r\nhalf", words("EXISTS k")} {
		end := f.attack(attack{Clients: most - 1, Head: head, Polled: strings.HasSuffix(head, "\r\n")})
		eventually(t, "all are served", func() bool { return connected(good.wire) == most })
		if strings.HasSuffix(head, "\r\n") && runtime.GOOS == "linux" {
			eventually(t, "pollers have them", func() bool { return runtime.NumGoroutine() <= goroutines })
		}
		if got, want := f.dial().rest(), "-ERR max number of clients reached\r\n"; got != want {
			t.Errorf("one client too many got %q, want %q", got, want)
		}
		good.make()
		each := (memory() - before) / (most - 1)
		t.Logf("%d bytes each, having sent %d", each, len(head))
		if each > maxIdle {
			t.Errorf("a connection that has sent %d bytes takes %d, want no more than %d", len(head), each, maxIdle)
		}
		end()
		good.recovers(before, goroutines)
	}
}

// TestConnectionsInTurns resets one connection after the other, at any point of
// a request or a reply.
func TestConnectionsInTurns(t *testing.T) {
	f := serve(t, commands.Config{})
	good := &calls{wire: f.dial()}
	good.make()
	before, goroutines := memory(), runtime.NumGoroutine()
	all := throttle + strings.Repeat(words("COMMAND DOCS"), 3)
	n := 10_000
	if testing.Short() {
		n = 1000
	}
	for i := range n {
		nc, err := net.Dial("tcp", f.addr)
		if err != nil {
			t.Fatal(err)
		}
		part := i % (len(all) + 1)
		io.WriteString(nc, all[:part])
		if i%2 == 0 {
			nc.(*net.TCPConn).SetLinger(0) // a reset, and no address in use
		}
		if part >= len(throttle) && i%4 == 0 {
			nc.Read(make([]byte, 10))
		}
		nc.Close()
		if i%500 == 0 {
			good.make()
		}
	}
	good.recovers(before, goroutines)
}

// TestWorst has many clients each take the most that they can, of all sorts,
// while another one is served.
func TestWorst(t *testing.T) {
	args := func(name string, n int, arg string) string {
		all := make([]string, n)
		all[0] = name
		for i := range all[1:] {
			all[i+1] = arg
		}
		return request(all...)
	}
	several := func(key, quantity string) string {
		return request(slices.Concat([]string{"CL.MTHROTTLE", "ALL", "128"}, slices.Repeat([]string{key, "9", "1", "1", "1"}, 127), []string{key, "9", "1", "1", quantity})...)
	}
	long := strings.Repeat("x", 1<<20-64)
	for name, a := range map[string]attack{
		"half of a large request":      {Head: args("EXISTS", 2, long)[:1<<20-100]},
		"half of many arguments":       {Head: args("EXISTS", 1024, "k")[:1000*7]},
		"many arguments":               {Head: args("EXISTS", 1024, "k")},
		"large replies":                {Again: request("ECHO", long)},
		"large replies to little":      {Again: words("COMMAND DOCS")},
		"lists of clients":             {Again: "CLIENT LIST\r\n"},
		"long names":                   {Head: request("CLIENT", "SETNAME", long) + request("CLIENT", "SETINFO", "LIB-NAME", long) + request("CLIENT", "SETINFO", "LIB-VER", long)},
		"long names with HELLO":        {Head: request("HELLO", "3", "SETNAME", long)},
		"small charges":                {Again: strings.Repeat("CL.THROTTLE k 1 1 1\r\n", 5000)},
		"small looks":                  {Again: strings.Repeat("TTL k\n", 10_000)},
		"large commands":               {Again: args("DEL", 1024, strings.Repeat("k", 1000))},
		"charges of several keys":      {Again: several("k", "0") + several(strings.Repeat("k", 4096), "1")},
		"charges of several, refused":  {Again: several("k", "x") + several(strings.Repeat("k", 4097), "1")},
		"a byte at a time, never done": {Head: "*2\r\n$4\r\nECHO\r\n$1000000\r\n", Again: "x", Slowly: true},
		"a word at a time":             {Again: "PING\r\n", Slowly: true},
		"empty lines":                  {Again: strings.Repeat("\r\n*0\r\n*-1\r\n", 1000)},
		"passwords":                    {Again: strings.Repeat(request("AUTH", "default", "x")+request("AUTH", "x", long[:10_000]), 10)},
		"reads of all keys":            {Again: "KEYS *\r\nSCAN 0 COUNT 10000\r\nDBSIZE\r\nKEYS x*\r\n"},
	} {
		t.Run(name, func(t *testing.T) {
			testWorst(t, a)
		})
	}
}

// maxWorst is how many bytes a connection may take at worst, and maxLarge how
// many the large runs of all of them, beyond the shared buffers.
const (
	maxWorst = 96 << 10
	maxLarge = 24 << 20
)

func testWorst(t *testing.T, a attack) {
	const sharedBuffers = 16 << 20
	a.Clients = 300
	if a.Again != "" && !a.Slowly {
		a.Clients = 8 // who keep the processors busy
	}
	if testing.Short() {
		a.Clients /= 4
	}
	keys := strings.HasPrefix(a.Again, "KEYS")
	if keys {
		a.Clients = 4
	}
	f := serve(t, commands.Config{MaxBuffers: sharedBuffers})
	good := &calls{wire: f.dial()}
	good.make()
	if keys {
		n := 100_000
		if testing.Short() {
			n = 10_000
		}
		fill(t, f, n)
	}
	before, goroutines := memory(), runtime.NumGoroutine()
	end := f.attack(a)
	most := int64(0)
	for range 3 {
		good.make()
		if n := connected(good.wire); n < 1 || n > a.Clients+1 {
			t.Errorf("connected_clients is %d", n)
		}
		if n := buffers(good.wire); n > sharedBuffers {
			t.Errorf("%d bytes are held, want no more than %d", n, sharedBuffers)
		}
		most = max(most, memory()-before)
	}
	end()
	t.Logf("%d of them take %d bytes", a.Clients, most)
	want := 2*sharedBuffers + maxLarge + int64(a.Clients)*maxWorst
	if testing.Short() {
		want *= 2 // these runs are for the race detector, which has pools forget at random what they hold
	}
	if most > want {
		t.Errorf("%d connections take %d bytes, want no more than %d", a.Clients, most, want)
	}
	good.recovers(before, goroutines)
}

// fill makes n keys.
func fill(t *testing.T, f *fixture, n int) {
	t.Helper()
	c := f.dial()
	defer c.Close()
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "CL.THROTTLE key:%d 0 1 1000000\r\n", i)
	}
	sent := c.sending(b.String())
	c.expect(strings.Repeat(ints(0, 1, 0, -1, 1_000_000), n))
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
}

// Half requests, however many, are gone after a minute.
func TestManyHalfRequests(t *testing.T) {
	inBubble(t, commands.Config{}, func(t *testing.T, f *fixture) {
		watch := f.pipe()
		const n = 1000
		var halves []*wire
		for range n {
			c := f.pipe()
			c.send("*2\r\n$4\r\nECHO\r\n$100000\r\n" + strings.Repeat("x", 20_000))
			halves = append(halves, c)
		}
		synctest.Wait()
		if got := connected(watch); got != n+1 {
			t.Errorf("connected_clients is %d, want %d", got, n+1)
		}
		if got, want := buffers(watch), n*(16<<10); got != want {
			t.Errorf("%d bytes are held, want %d", got, want)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := connected(watch); got != 1 {
			t.Errorf("connected_clients is %d after a minute, want 1", got)
		}
		if got := buffers(watch); got != 0 {
			t.Errorf("%d bytes are still held", got)
		}
		for _, c := range halves {
			if got := c.rest(); got != "" {
				t.Fatalf("%q, want the end", got)
			}
		}
	})
}

// TestBoundsToTheByte reaches the bounds and goes one beyond each.
func TestBoundsToTheByte(t *testing.T) {
	f := serve(t, commands.Config{})
	c := f.dial()
	sized := func(n int) string { // a request of n bytes
		overhead := len(request("ECHO", strings.Repeat("x", n-100))) - (n - 100)
		return request("ECHO", strings.Repeat("x", n-overhead))
	}
	whole := sized(1 << 20)
	if len(whole) != 1<<20 {
		t.Fatalf("a request of %d bytes", len(whole))
	}
	payload := len(whole) - len("*2\r\n$4\r\nECHO\r\n$1000000\r\n\r\n")
	c.send(whole)
	c.expect(fmt.Sprintf("$%d\r\n%s\r\n", payload, strings.Repeat("x", payload)))
	key, id := strings.Repeat("k", 4096), strings.Repeat("i", 64)
	script{
		{request("CL.THROTTLE", key, "4", "1", "10"), ints(0, 5, 4, -1, 10)},
		{request("CL.THROTTLE", key+"k", "4", "1", "10"), badKey},
		{request("QUOTA.TAKE", "q", id, "1", "10", "1000"), ints(1, 1, 0)},
		{request("QUOTA.TAKE", "q", id, "1", "10", "1000"), ints(1, 1, 1)},
		{request("QUOTA.TAKE", key, id, "1", "10", "1000"), "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n"},
	}.play(t, c)
	if got := c.ask(request("QUOTA.TAKE", "q", id+"i", "1", "10", "1000")); !strings.HasPrefix(got, "-INVALID request-id") {
		t.Errorf("an id of 65 bytes: %q", got)
	}
	c.send(sized(1<<20 + 1))
	if got, want := c.rest(), "-ERR Protocol error: too big request\r\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
