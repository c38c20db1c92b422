// Package systemd notifies a service manager of the state of a program (sd_notify).
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
	_ = conn.SetWriteDeadline(time.Now().Add(time.Second)) // a full socket must not block the program
	_, _ = conn.Write([]byte(strings.Join(lines, "\n")))
}

const checkEvery = 100 * time.Millisecond

var announced atomic.Bool

// Announce notifies the service manager of why the program is not ready, until it is ready or ctx ends. why
// returns the reason, as in /readyz; "" if it is ready.
func Announce(ctx context.Context, why func(context.Context) string) {
	if !Managed() {
		return
	}
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	for sent := ""; ; {
		reason := why(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case reason == "":
			announced.Store(true)
			Notify("READY=1", "STATUS=ready")
			return
		case reason != sent:
			Notify("STATUS=" + strings.ReplaceAll(reason, "\n", " "))
			sent = reason
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// Reload calls read, and notifies the service manager before and after. While the program is not ready
// it sends nothing, because the second message would report it as ready.
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
