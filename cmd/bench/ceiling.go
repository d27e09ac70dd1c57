package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"

	"github.com/tidwall/redcon"
)

// bareServerEnv makes this program the bare server.
const bareServerEnv = "GABION_BENCH_BARE_SERVER"

const bareServing = "serving at "

// bareServer answers CL.THROTTLE as if the key had never been charged, and keeps
// nothing: what a server in Go costs that does no more than talk.
func bareServer() error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(bareServing + ln.Addr().String())
	answer := [5]int64{0, wireLimit, wireLimit - 1, -1, wireInterval}
	return redcon.Serve(ln, func(conn redcon.Conn, cmd redcon.Command) {
		if !strings.EqualFold(string(cmd.Args[0]), "CL.THROTTLE") {
			conn.WriteError("ERR unknown command")
			return
		}
		conn.WriteArray(len(answer))
		for _, n := range answer {
			conn.WriteInt64(n)
		}
	}, nil, nil)
}

// startBare starts this program again, as the bare server.
func startBare(r *Run) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), bareServerEnv+"=1")
	return startServer(r.Context, cmd, func(line string) (string, bool) {
		return strings.CutPrefix(line, bareServing)
	})
}
