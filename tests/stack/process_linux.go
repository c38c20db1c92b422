package stack

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithParent has the kernel kill the child when the test process ends
// without cleaning up: a panic, a test time limit, a kill.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// halted reports whether all threads of a process are stopped: a stop reaches
// them one by one.
func halted(pid int) (bool, string) {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(stats) == 0 {
		return false, fmt.Sprintf("process %d has no threads", pid)
	}
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // this thread has just ended
		}
		// The state follows the name, which is in parentheses and may hold any character.
		_, rest, _ := bytes.Cut(b[bytes.LastIndexByte(b, ')')+1:], []byte(" "))
		if len(rest) == 0 || rest[0] != 'T' {
			return false, fmt.Sprintf("%s: %.1s", path, rest)
		}
	}
	return true, ""
}

// OpenTerminal makes a pseudo-terminal: what is written to theirs is read from ours.
func OpenTerminal(columns int) (ours, theirs *os.File, err error) {
	if ours, err = os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0); err != nil {
		return nil, nil, err
	}
	fd := int(ours.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0) // unlocked
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: uint16(columns)})
	}
	if err == nil {
		theirs, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	}
	if err != nil {
		return nil, nil, errors.Join(err, ours.Close())
	}
	return ours, theirs, nil
}

// residentBytes is VmRSS of a process.
func residentBytes(pid int) (int64, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if value, ok := strings.CutPrefix(s.Text(), "VmRSS:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(value, " kB")), 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("%s has no VmRSS", f.Name())
}
