package boot

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

// Managed reports whether a service manager has started this program and wants to be told of its states.
func Managed() bool { return os.Getenv("NOTIFY_SOCKET") != "" }

// Notify tells the service manager that started this program in which state it is: systemd with Type=notify, by a
// datagram of lines to the socket in NOTIFY_SOCKET. Without that variable it does nothing. A manager that does not
// listen is no reason to fail.
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

// lookEvery is how often a program that is not ready yet looks whether it is.
const lookEvery = 100 * time.Millisecond

// announced is whether the manager has been told that the program is ready.
var announced atomic.Bool

// Announce tells the service manager why the program is not ready yet, and that it is ready, once. It returns then, or
// when ctx ends. why returns what /readyz says.
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

// notifyReload reads files again by a call of read, and tells the service manager when that begins and ends. A program
// that is not ready yet says nothing: the end would tell that it is.
func notifyReload(read func()) {
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
