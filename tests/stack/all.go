package stack

import (
	"os"
	"testing"
)

// MoreInAll is what a test logs that has more in `make test-all` than in `make test`, which lists it in a file by that.
const MoreInAll = "more of this test runs in make test-all"

// All reports whether a test is to run all of its rounds, as in `make test-all`. `make test` tests every promise once.
func All(t testing.TB) bool {
	t.Helper()
	all := os.Getenv("TEST_ALL") == "1"
	if !all {
		t.Log(MoreInAll)
	}
	return all
}

// Rounds is how many rounds of a test run: some in `make test`, all in `make test-all`.
func Rounds(t testing.TB, some, all int) int {
	t.Helper()
	if All(t) {
		return all
	}
	return some
}

// OnlyInAll skips a test that `make test` leaves to `make test-all`.
func OnlyInAll(t testing.TB) {
	t.Helper()
	if !All(t) {
		t.SkipNow()
	}
}
