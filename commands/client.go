package commands

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/gabiondb/gabion/commands/internal/resp"
)

// ClientConfig holds the settings of a Client.
type ClientConfig struct {
	// Password is given to the server first, unless it is empty.
	Password string

	// Timeout bounds the time that connecting takes, and that each call of Do
	// takes. The default is no bound but that of the context.
	Timeout time.Duration
}

// Client is a connection to a server. Its methods are safe for concurrent use,
// but one call waits for another.
type Client struct {
	cfg ClientConfig
	nc  net.Conn

	mu  sync.Mutex // guards what follows, and is held during a call
	r   *bufio.Reader
	out []byte
	err error // that has ended the connection
}

// Dial connects to the server at addr, a host and a port. ctx bounds the time
// that takes, and nothing afterwards.
func Dial(ctx context.Context, addr string, cfg ClientConfig) (*Client, error) {
	if cfg.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, cfg.Timeout)
		defer cancel()
	}
	var dialer net.Dialer
	nc, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, nc: nc, r: bufio.NewReader(nc)}
	if cfg.Password != "" {
		stop := context.AfterFunc(ctx, func() { nc.SetDeadline(time.Unix(1, 0)) })
		_, err := c.Do("AUTH", cfg.Password)
		if !stop() {
			err = ctx.Err()
		}
		if err != nil {
			nc.Close()
			return nil, err
		}
	}
	return c, nil
}

// Do sends a command and returns its reply:
//
//	an integer                          int64
//	a string, whether simple or not     string
//	nothing                             nil
//	an array                            []any
//	a map                               []any: a key, its value, the next key …
//
// An error reply is returned as an Error. Any other error, a time-out among
// them, ends the connection, and doesn't tell whether the command was carried
// out.
func (c *Client) Do(args ...string) (any, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, c.err
	}
	reply, err := c.roundTrip(args)
	if err != nil {
		c.err = fmt.Errorf("commands: the connection was given up: %w", err)
		c.nc.Close()
		return nil, err
	}
	return split(reply)
}

func (c *Client) roundTrip(args []string) (any, error) {
	if c.cfg.Timeout > 0 {
		if err := c.nc.SetDeadline(time.Now().Add(c.cfg.Timeout)); err != nil {
			return nil, err
		}
	}
	c.out = resp.AppendRequest(c.out[:0], args...)
	if _, err := c.nc.Write(c.out); err != nil {
		return nil, err
	}
	return resp.ReadReply(c.r)
}

// split tells an error reply from the others.
func split(reply any) (any, error) {
	if err, ok := reply.(Error); ok {
		return nil, err
	}
	return reply, nil
}

// Close closes the connection. A call of Do that is under way fails.
func (c *Client) Close() error { return c.nc.Close() }
