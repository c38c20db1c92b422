package stack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// wallClock moves the wall clock that the C library returns. libfaketime would do it too, but cannot be
// loaded together with jemalloc, which redis-server is linked with.
const wallClock = `
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long offset;

__attribute__((constructor)) static void init(void) {
	const char *text = getenv("CLOCK_OFFSET");
	if (text) offset = atol(text);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
	int failed = syscall(SYS_clock_gettime, clock, at);
	if (!failed && clock == CLOCK_REALTIME) at->tv_sec += offset;
	return failed;
}

int gettimeofday(struct timeval *at, void *zone) {
	struct timespec now;
	(void)zone;
	if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
	at->tv_sec = now.tv_sec;
	at->tv_usec = now.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *at) {
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	if (at) *at = now.tv_sec;
	return now.tv_sec;
}
`

// RedisClockAhead starts redis-server with a wall clock that is ahead by whole
// seconds (negative: behind). It needs a C compiler, as the race detector does, and Linux.
func RedisClockAhead(t testing.TB, ahead time.Duration) RedisOption {
	t.Helper()
	source := filepath.Join(t.TempDir(), "wallclock.c")
	library := source + ".so"
	require.NoError(t, os.WriteFile(source, []byte(wallClock), 0o600))
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", library, source).CombinedOutput(); err != nil {
		t.Fatalf("build a library that moves the clock of redis-server: %v\n%s", err, out)
	}
	return func(o *redisOptions) {
		o.env = append(o.env, "LD_PRELOAD="+library, fmt.Sprintf("CLOCK_OFFSET=%.0f", ahead.Seconds()))
	}
}
