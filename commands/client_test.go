package commands_test

import (
	"context"
	"errors"
	"net"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gabiondb/gabion/commands"
)

// doer is what Client and Local have in common.
type doer interface {
	Do(args ...string) (any, error)
}

func TestDo(t *testing.T) {
	f := serve(t, commands.Config{})
	client, err := commands.Dial(context.Background(), f.addr, commands.ClientConfig{Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for name, d := range map[string]doer{"client": client, "local": commands.NewLocal(f.limiter)} {
		t.Run(name, func(t *testing.T) {
			for _, tt := range []struct {
				args string
				want any
				err  error
			}{
				{"FLUSHALL", "OK", nil},
				{"CL.THROTTLE k 4 1 10", []any{int64(0), int64(5), int64(4), int64(-1), int64(10)}, nil},
				{"CL.THROTTLE k 4 1 10 5", []any{int64(1), int64(5), int64(4), int64(10), int64(10)}, nil},
				{"TTL k", int64(10), nil},
				{"ECHO x", "x", nil},
				{"CLIENT GETNAME", nil, nil},
				{"KEYS *", []any{"k"}, nil},
				{"CONFIG GET save", []any{"save", ""}, nil},
				{"CL.THROTTLE k", nil, commands.Error("ERR wrong number of arguments for 'cl.throttle' command")},
				{"NOSUCH", nil, commands.Error("ERR unknown command 'NOSUCH', with args beginning with: ")},
				{"DEL k", int64(1), nil},
			} {
				got, err := d.Do(strings.Fields(tt.args)...)
				if !reflect.DeepEqual(got, tt.want) || err != tt.err {
					t.Errorf("Do(%s) = %#v, %v, want %#v, %v", tt.args, got, err, tt.want, tt.err)
				}
			}
			if _, err := d.Do("HELLO", "3"); err != nil {
				t.Fatal(err)
			}
			if got, err := d.Do("CONFIG", "GET", "save"); err != nil || !reflect.DeepEqual(got, []any{"save", ""}) {
				t.Errorf("a map of RESP3 = %#v, %v", got, err)
			}
		})
	}
}

func TestDialAuthenticates(t *testing.T) {
	f := serve(t, commands.Config{Password: "open sesame"})
	if _, err := commands.Dial(context.Background(), f.addr, commands.ClientConfig{Password: "wrong"}); err == nil ||
		!strings.HasPrefix(err.Error(), "WRONGPASS ") {
		t.Errorf("Dial with a wrong password: %v", err)
	}
	c, err := commands.Dial(context.Background(), f.addr, commands.ClientConfig{Password: "open sesame"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got, err := c.Do("PING"); got != "PONG" || err != nil {
		t.Errorf("Do(PING) = %v, %v", got, err)
	}
	c, err = commands.Dial(context.Background(), f.addr, commands.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var reply commands.Error
	if _, err := c.Do("PING"); !errors.As(err, &reply) || !strings.HasPrefix(string(reply), "NOAUTH ") {
		t.Errorf("Do(PING) without a password: %v", err)
	}
}

// deaf listens, and answers nothing.
func deaf(t *testing.T) string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln.Addr().String()
}

func TestClientTimesOut(t *testing.T) {
	addr := deaf(t)
	c, err := commands.Dial(context.Background(), addr, commands.ClientConfig{Timeout: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Do("PING"); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Do() = %v, want a time-out", err)
	}
	// The next reply could be that of the call before.
	if _, err := c.Do("PING"); err == nil || !strings.Contains(err.Error(), "given up") {
		t.Errorf("Do() after a time-out = %v", err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := commands.Dial(ctx, addr, commands.ClientConfig{Password: "x"}); err != context.DeadlineExceeded {
		t.Errorf("Dial() = %v, want %v", err, context.DeadlineExceeded)
	}
}

func TestLocalNeedsACommand(t *testing.T) {
	f := serve(t, commands.Config{})
	if _, err := commands.NewLocal(f.limiter).Do(); err == nil {
		t.Error("Do() without arguments succeeded")
	}
}
