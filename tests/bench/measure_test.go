package bench_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
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
	options := redis.Options{Addr: r.redis.Addr(), MaxRetries: -1, ReadTimeout: time.Minute, WriteTimeout: time.Minute}
	r.rdb = redis.NewClient(&options)
	t.Cleanup(func() { _ = r.rdb.Close() })
	return r
}

// empty empties Redis and its file.
func (r *rig) empty(t testing.TB) {
	t.Helper()
	require.NoError(t, r.rdb.FlushAll(t.Context()).Err())
	require.NoError(t, r.rdb.BgRewriteAOF(t.Context()).Err())
	stack.Eventually(t, "an empty append-only file", func() (bool, string) {
		info := infoOf(t, r.rdb, "persistence")
		return infoField(info, "aof_rewrite_in_progress") == 0 && infoField(info, "aof_rewrite_scheduled") == 0, info
	})
}

// dataBytes is what Redis holds, without its clients' buffers.
func (r *rig) dataBytes(t testing.TB) int64 {
	t.Helper()
	info := infoOf(t, r.rdb, "memory")
	return infoField(info, "used_memory") - infoField(info, "mem_clients_normal") - infoField(info, "mem_aof_buffer")
}

// stat is a figure of Redis since its statistics were reset.
func (r *rig) stat(t testing.TB, name string) int64 {
	t.Helper()
	return infoField(infoOf(t, r.rdb, "stats"), name)
}

func infoOf(t testing.TB, server *redis.Client, section string) string {
	t.Helper()
	info, err := server.Info(t.Context(), section).Result()
	require.NoError(t, err)
	return info
}

func infoField(info, name string) int64 {
	_, rest, _ := strings.Cut("\n"+info, "\n"+name+":")
	value, _, _ := strings.Cut(rest, "\r")
	n, _ := strconv.ParseInt(value, 10, 64)
	return n
}

var commandCalls = regexp.MustCompile(`(?m)^cmdstat_([^:]+):calls=(\d+)`)

// observers are commands that only the benchmark sends, to look and to measure.
var observers = []string{"hget", "exists", "info", "ping", "bgrewriteaof"}

// callsOf are the commands that a server has run since its statistics were reset, by name, those inside
// scripts and transactions too.
func callsOf(t testing.TB, server *redis.Client) map[string]int64 {
	t.Helper()
	calls := map[string]int64{}
	for _, m := range commandCalls.FindAllStringSubmatch(infoOf(t, server, "commandstats"), -1) {
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
	for name, n := range callsOf(t, r.rdb) {
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
		sum += ticks(t, procFields(b)[11:13]) // utime, stime
	}
	return sum
}

// procFields are the fields of a process's stat from the state on, behind the name in parentheses.
func procFields(stat []byte) []string {
	return strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
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

// clock reads processor seconds.
type clock func() float64

func cpuOf(t testing.TB, pids ...int) clock {
	return func() float64 { return cpuSeconds(t, pids...) }
}

// start returns a clock that begins now.
func (c clock) start() clock {
	before := c()
	return func() float64 { return c() - before }
}

// cpuSince reads how many seconds of processor the processes have used since this call.
func cpuSince(t testing.TB, pids ...int) clock {
	t.Helper()
	return cpuOf(t, pids...).start()
}

// peakMiB is the most memory that processes have held (VmHWM), this one left out.
func peakMiB(t testing.TB, pids ...int) (sum float64) {
	t.Helper()
	for _, pid := range pids {
		if pid == os.Getpid() {
			continue
		}
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		require.NoError(t, err)
		_, rest, _ := strings.Cut(string(b), "\nVmHWM:")
		value, _, _ := strings.Cut(rest, "kB")
		kb, err := strconv.Atoi(strings.TrimSpace(value))
		require.NoError(t, err)
		sum += float64(kb) / 1024
	}
	return sum
}

// hitsCounted asks a worker's metrics how many hits are committed for certain.
func hitsCounted(w *stack.Service) (sum int, err error) {
	return sumOfMetric(w, "tallyroll_ingest_hits_total")
}

// sumOfMetric is the sum of a metric over its labels.
func sumOfMetric(w *stack.Service, name string) (sum int, err error) {
	body, err := fetch(http.DefaultClient, w.URL()+"/metrics")
	for line := range strings.Lines(string(body)) {
		if strings.HasPrefix(line, name+"{") || strings.HasPrefix(line, name+" ") {
			n, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
			if err != nil {
				return 0, err
			}
			sum += int(n)
		}
	}
	return sum, err
}

func mustFetch(t testing.TB, client *http.Client, url string) []byte {
	t.Helper()
	body, err := fetch(client, url)
	require.NoError(t, err)
	return body
}

func fetch(client *http.Client, url string) ([]byte, error) {
	var body bytes.Buffer
	resp, err := client.Get(url)
	if err == nil {
		err = readAnswer(resp, &body)
	}
	return body.Bytes(), err
}

// getOnce returns an error if the answer is not a good one.
func getOnce(client *http.Client, url string) error {
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	return readAnswer(resp, io.Discard)
}

// postOnce posts a body and reads the answer.
func postOnce(client *http.Client, url, kind, body string, answer io.Writer) error {
	resp, err := client.Post(url, kind, strings.NewReader(body))
	if err != nil {
		return err
	}
	return readAnswer(resp, answer)
}

// errRefused is a 503: Redis had no time to answer within the two seconds that a request may wait, as on a
// machine that has too much to do.
var errRefused = errors.New("refused: 503")

// readAnswer reads the whole answer, which must be a good one.
func readAnswer(resp *http.Response, to io.Writer) error {
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusServiceUnavailable {
		return errRefused
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		return fmt.Errorf("%s: %s %s", resp.Request.URL, resp.Status, text)
	}
	_, err := io.Copy(to, resp.Body)
	if status := resp.Trailer.Get("Grpc-Status"); err == nil && strings.Trim(status, "0") != "" {
		err = fmt.Errorf("%s: status %s of gRPC", resp.Request.URL, status)
	}
	return err
}

// press lets clients ask, each again when it has its answer, while more returns true: ask and more get the
// client and how often it has asked. It returns how long each answer took, and how many were refused.
func press(
	t testing.TB, clients int, more func(n int) bool, ask func(client, n int) error,
) (all []time.Duration, refused int) {
	t.Helper()
	var mu sync.Mutex
	var asking sync.WaitGroup
	for client := range clients {
		asking.Go(func() {
			var took []time.Duration
			mine := 0
			for n := 0; more(n); n++ {
				began := time.Now()
				err := ask(client, n)
				if errors.Is(err, errRefused) {
					mine++
					continue
				}
				if err != nil {
					t.Error(err)
					break
				}
				took = append(took, time.Since(began))
			}
			mu.Lock()
			defer mu.Unlock()
			all, refused = append(all, took...), refused+mine
		})
	}
	asking.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return all, refused
}

// during is true for a time that begins now.
func during(length time.Duration) func(int) bool {
	began := time.Now()
	return func(int) bool { return time.Since(began) < length }
}

// atLeast is true n times, and then as long as more is.
func atLeast(n int, more func(int) bool) func(int) bool {
	return func(asked int) bool { return asked < n || more(asked) }
}

// percentile of durations with three digits, 0 if there are none.
func percentile(d []time.Duration, p float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(d))
	took := sorted[min(len(sorted)-1, int(float64(len(sorted))*p/100))]
	unit := time.Nanosecond
	for took >= 1000*unit {
		unit *= 10
	}
	return took.Round(unit)
}
