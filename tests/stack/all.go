package stack

import (
	"os"
	"testing"
)

// All reports whether a test is to run all of its rounds, as in `make test-all`. `make test` tests every
// promise once.
func All() bool { return os.Getenv("TEST_ALL") == "1" }

// Rounds is how many rounds of a test run: some in `make test`, all in `make test-all`.
func Rounds(some, all int) int {
	if All() {
		return all
	}
	return some
}

// OnlyInAll skips a test that `make test` leaves to `make test-all`.
func OnlyInAll(t testing.TB) {
	t.Helper()
	if !All() {
		t.Skip("only in make test-all")
	}
}
