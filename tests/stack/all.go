package stack

import (
	"os"
	"testing"
)

// All reports whether every round of every test runs, as in `make test-all`. `make test` tests every promise once.
func All() bool { return os.Getenv("TEST_ALL") == "1" }

// OnlyInAll skips a test that `make test` leaves to `make test-all`.
func OnlyInAll(t testing.TB) {
	t.Helper()
	if !All() {
		t.Skip("only in make test-all")
	}
}
