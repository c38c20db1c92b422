//go:build race

package stack

// raceEnabled: the tests run with the race detector, so the binaries do too.
const raceEnabled = true
