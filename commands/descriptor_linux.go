package commands

import (
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// descriptor is the socket of a connection that a poller has. Nothing waits for
// it: where that would be needed, the error is EAGAIN.
type descriptor int

// detached returns the socket of nc as a descriptor of its own, which stays open
// when nc is closed.
func detached(nc stream) (descriptor, bool) {
	var raw syscall.RawConn
	var err error
	switch nc := nc.(type) { // and no type that has one of these, and does more than it
	case *net.TCPConn:
		raw, err = nc.SyscallConn()
	case *net.UnixConn:
		if nc.LocalAddr().Network() != "unix" {
			return -1, false // a read of a part would lose the rest
		}
		raw, err = nc.SyscallConn()
	case socket:
		raw, err = nc.SyscallConn()
	default:
		return -1, false
	}
	if err != nil {
		return -1, false
	}
	fd := -1
	err = raw.Control(func(own uintptr) { fd, _ = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) })
	return descriptor(fd), err == nil && fd >= 0
}

func (d descriptor) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(int(d), b)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return 0, err
		case n == 0:
			return 0, io.EOF
		}
		return n, nil
	}
}

func (d descriptor) Write(b []byte) (int, error) {
	for {
		n, err := unix.Write(int(d), b)
		if err != unix.EINTR {
			return max(n, 0), err
		}
	}
}

func (d descriptor) Close() error { return unix.Close(int(d)) }

// abort has reading and writing fail. Unlike Close it may come from anywhere.
func (d descriptor) abort() { unix.Shutdown(int(d), unix.SHUT_RDWR) }

func (d descriptor) SetReadDeadline(time.Time) error  { return nil }
func (d descriptor) SetWriteDeadline(time.Time) error { return nil }

// socket is a socket that a goroutine serves again.
type socket struct{ *os.File }

func attached(d descriptor, name string) socket { return socket{os.NewFile(uintptr(d), name)} }

func (s socket) CloseWrite() error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	if err := raw.Control(func(fd uintptr) { result = unix.Shutdown(int(fd), unix.SHUT_WR) }); err != nil {
		return err
	}
	return result
}
