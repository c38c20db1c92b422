package stack

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
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
