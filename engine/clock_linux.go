package engine

import "golang.org/x/sys/unix"

// suspended returns how long the machine has been suspended since it booted,
// in nanoseconds: the boot time clock runs through a suspend, the monotonic
// one stands still.
func suspended() int64 {
	var boot, mono unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil || unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono) != nil {
		return 0
	}
	return boot.Nano() - mono.Nano()
}
