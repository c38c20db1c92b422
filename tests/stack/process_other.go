//go:build unix && !linux

package stack

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

func dieWithParent() *syscall.SysProcAttr { return nil }

func OpenTerminal(int) (ours, theirs *os.File, err error) {
	return nil, nil, errors.New("pseudo-terminals are made on Linux alone")
}

func ps(pid int, column string) (string, error) {
	out, err := exec.Command("ps", "-o", column+"=", "-p", strconv.Itoa(pid)).Output()
	return strings.TrimSpace(string(out)), err
}

func halted(pid int) (bool, string) {
	state, err := ps(pid, "state")
	return err == nil && strings.HasPrefix(state, "T"), state
}

func residentBytes(pid int) (int64, error) {
	out, err := ps(pid, "rss")
	if err != nil {
		return 0, fmt.Errorf("ps: %w", err)
	}
	kb, err := strconv.ParseInt(out, 10, 64)
	return kb << 10, err
}
