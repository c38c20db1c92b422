package stack

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Tests that start servers or programs share a budget of slots, over all test processes of this user on this machine:
// two per processor, or TALLYROLL_TEST_SLOTS. More at once are no faster (CONTRIBUTING.md says how that was measured),
// and they make every program under test slow.
//
// A slot is a locked file, so the kernel frees it if its process dies. A test holds one slot together with its subtests:
// if each took one of its own, parents could hold them all while their subtests wait.
var budget struct {
	sync.Mutex
	held map[string]*slot // by the name of the test
}

type slot struct {
	users int
	file  func() *os.File // locked; the first call waits for it
}

// needsServers skips a test under -short, which `make quick` sets. Otherwise it waits until the test has a slot, which
// the test keeps until its end.
func needsServers(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("it starts servers or programs, and -short leaves those out")
	}
	name, _, _ := strings.Cut(t.Name(), "/")
	budget.Lock()
	s := budget.held[name]
	if s == nil {
		s = &slot{file: sync.OnceValue(lockSlot)}
		if budget.held == nil {
			budget.held = map[string]*slot{}
		}
		budget.held[name] = s
	}
	s.users++
	budget.Unlock()
	t.Cleanup(func() {
		budget.Lock()
		defer budget.Unlock()
		if s.users--; s.users == 0 {
			delete(budget.held, name)
			_ = s.file().Close()
		}
	})
	s.file()
}

// lockSlot waits until one of the slots is free and locks it.
func lockSlot() *os.File {
	slots := 2 * runtime.NumCPU()
	if n, err := strconv.Atoi(os.Getenv("TALLYROLL_TEST_SLOTS")); err == nil && n > 0 {
		slots = n
	}
	dir := filepath.Join(os.TempDir(), "tallyroll-test-slots-"+strconv.Itoa(os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		panic("directory of the slots for tests: " + err.Error())
	}
	for ; ; time.Sleep(50 * time.Millisecond) {
		for i := range slots {
			file, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(i)), os.O_CREATE|os.O_RDWR, 0o600)
			if err != nil {
				panic("slot for a test: " + err.Error())
			}
			if syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
				return file
			}
			_ = file.Close()
		}
	}
}
