// Package systemd tells a service manager of the states of a program (sd_notify).
package systemd

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Managed reports whether a service manager has started this program and expects notifications.
func Managed() bool { return os.Getenv("NOTIFY_SOCKET") != "" }

// Notify sends the program's state to systemd (Type=notify): a datagram of lines to the socket in
// NOTIFY_SOCKET. Without that variable it does nothing. It ignores a manager that does not listen.
func Notify(lines ...string) {
	if !Managed() {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: os.Getenv("NOTIFY_SOCKET"), Net: "unixgram"})
	if err != nil {
		return
	}
	defer conn.Close()
	_ = conn.SetWriteDeadline(time.Now().Add(time.Second)) // a full socket must not hold the program up
	_, _ = conn.Write([]byte(strings.Join(lines, "\n")))
}

const lookEvery = 100 * time.Millisecond

var announced atomic.Bool

// Announce notifies the service manager of why the program is not ready, and once that it is. It returns
// then, or when ctx ends. why returns what /readyz answers.
func Announce(ctx context.Context, why func(context.Context) string) {
	if !Managed() {
		return
	}
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for said := ""; ; {
		reason := why(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case reason == "":
			announced.Store(true)
			Notify("READY=1", "STATUS=ready")
			return
		case reason != said:
			Notify("STATUS=" + strings.ReplaceAll(reason, "\n", " "))
			said = reason
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Reload calls read, and notifies the service manager before and after. While the program is not ready
// it sends nothing, because the second message would say that it is.
func Reload(read func()) {
	if !announced.Load() {
		read()
		return
	}
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // which every system has
	Notify("RELOADING=1", fmt.Sprintf("MONOTONIC_USEC=%d", now.Nano()/1000))
	read()
	Notify("READY=1")
}
