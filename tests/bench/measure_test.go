package bench_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// rig is the servers of all measurements: processes with their files on disk.
type rig struct {
	nats  *stack.NATSProc
	redis *stack.RedisServer
	js    jetstream.JetStream
	rdb   *redis.Client
}

func newRig(t testing.TB) *rig {
	t.Helper()
	r := &rig{
		nats: stack.NATSProcess(t),
		// A rewrite of the append-only file in the middle would be in the figures of one run only.
		redis: stack.Redis(t, stack.RedisArgs("--auto-aof-rewrite-percentage", "0")),
	}
	var err error
	if r.js, err = jetstream.New(r.nats.Conn(), jetstream.WithPublishAsyncMaxPending(8192)); err != nil {
		t.Fatal(err)
	}
	r.rdb = redis.NewClient(&redis.Options{Addr: r.redis.Addr(), MaxRetries: -1, ReadTimeout: time.Minute, WriteTimeout: time.Minute})
	t.Cleanup(func() { _ = r.rdb.Close() })
	return r
}

// empty empties Redis and its file.
func (r *rig) empty(t testing.TB) {
	t.Helper()
	ctx := t.Context()
	require.NoError(t, r.rdb.FlushAll(ctx).Err())
	require.NoError(t, r.rdb.BgRewriteAOF(ctx).Err())
	stack.Eventually(t, "an empty append-only file", func() (bool, string) {
		info, err := r.rdb.Info(ctx, "persistence").Result()
		if err != nil {
			return false, err.Error()
		}
		return infoField(info, "aof_rewrite_in_progress") == 0 && infoField(info, "aof_rewrite_scheduled") == 0, info
	})
}

// dataBytes is what Redis holds, without its clients' buffers.
func (r *rig) dataBytes(t testing.TB) int64 {
	t.Helper()
	info, err := r.rdb.Info(t.Context(), "memory").Result()
	require.NoError(t, err)
	return infoField(info, "used_memory") - infoField(info, "mem_clients_normal") - infoField(info, "mem_aof_buffer")
}

func infoField(info, name string) int64 {
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			return n
		}
	}
	return 0
}

var commandCalls = regexp.MustCompile(`(?m)^cmdstat_([^:]+):calls=(\d+)`)

// observers are commands that only the benchmark sends, to look and to measure.
var observers = []string{"hget", "exists", "info", "ping", "bgrewriteaof"}

// calls are the commands that Redis has run since its statistics were reset, by name, those inside scripts and
// transactions too.
func (r *rig) calls(t testing.TB) map[string]int64 {
	t.Helper()
	info, err := r.rdb.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	return callsIn(info)
}

func callsIn(info string) map[string]int64 {
	calls := map[string]int64{}
	for _, m := range commandCalls.FindAllStringSubmatch(info, -1) {
		name, _, _ := strings.Cut(m[1], "|")
		n, _ := strconv.ParseInt(m[2], 10, 64)
		calls[name] += n
	}
	return calls
}

// commands is how many commands the candidate has sent. leaveOut are those that it does not send and the
// benchmark does.
func (r *rig) commands(t testing.TB, leaveOut []string) (sum int64) {
	t.Helper()
	for name, n := range r.calls(t) {
		if !slices.Contains(leaveOut, name) && name != "config" && name != "client" && name != "hello" {
			sum += n
		}
	}
	return sum
}

func (r *rig) resetStats(t testing.TB) {
	t.Helper()
	require.NoError(t, r.rdb.ConfigResetStat(t.Context()).Err())
}

// cpuSeconds is the processor time that processes have used, user and system, in seconds.
func cpuSeconds(t testing.TB, pids ...int) (sum float64) {
	t.Helper()
	for _, pid := range pids {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		require.NoError(t, err)
		// Fields are counted from the state, behind the name in parentheses.
		sum += ticks(t, strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))[11:13]) // utime, stime
	}
	return sum
}

// ticks adds the kernel's ticks up to seconds.
func ticks(t testing.TB, fields []string) (sum float64) {
	t.Helper()
	for _, field := range fields {
		n, err := strconv.ParseFloat(field, 64)
		require.NoError(t, err)
		sum += n / 100 // USER_HZ: 100 on Linux
	}
	return sum
}

// redisClock reads how many seconds of processor Redis has used.
func (r *rig) redisClock(t testing.TB) func() float64 {
	return func() float64 { return cpuSeconds(t, r.redis.PID()) }
}

// cpuSince reads how many seconds of processor the processes have used since this call.
func cpuSince(t testing.TB, pids ...int) func() float64 {
	t.Helper()
	before := cpuSeconds(t, pids...)
	return func() float64 { return cpuSeconds(t, pids...) - before }
}

// peakBytes is the most memory that a process has held (VmHWM).
func peakBytes(t testing.TB, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			require.NoError(t, err)
			return kb << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}

// hitsCounted asks a worker's metrics how many hits are committed for certain.
func hitsCounted(w *stack.Service) (sum int, err error) {
	response, err := http.Get(w.URL() + "/metrics")
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(body)) {
		if strings.HasPrefix(line, "tallyroll_ingest_hits_total{") {
			n, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
			if err != nil {
				return 0, err
			}
			sum += int(n)
		}
	}
	return sum, nil
}
