package stack

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"
)

// RedisClockAhead starts redis-server with a wall clock that is ahead by some seconds
// (negative: behind), by libfaketime. Without that library the test is skipped.
func RedisClockAhead(t testing.TB, ahead time.Duration) RedisOption {
	t.Helper()
	var found []string
	for _, pattern := range []string{"/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1", "/usr/local/lib/faketime/libfaketime.so.1"} {
		some, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, some...)
	}
	if len(found) == 0 {
		t.Skip("libfaketime is missing, which moves the clock of redis-server: install your system's package (faketime on Debian)")
	}
	return func(o *redisOptions) {
		o.env = append(o.env, "LD_PRELOAD="+found[0], fmt.Sprintf("FAKETIME=%+d", int(ahead.Seconds())),
			"DONT_FAKE_MONOTONIC=1", "FAKETIME_DONT_FAKE_MONOTONIC=1")
	}
}
