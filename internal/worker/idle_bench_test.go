package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
)

// BenchmarkIdleStreams lets a worker hold 200 idle streams, with the default settings. An
// operation is one second.
//
//	go test ./internal/worker -run '^$' -bench IdleStreams -benchtime 30x -cpuprofile cpu.out
//
// NATS and Redis are processes of their own. All figures are per stream and second: the processor time of the
// worker and of Redis, the commands that Redis executes, and the messages that NATS takes.
func BenchmarkIdleStreams(b *testing.B) {
	const streams = 200
	monitor := stack.FreePort(b)
	nats, redis := stack.NATSProcess(b, "--http_port", strconv.Itoa(monitor)), stack.Redis(b)
	js := nats.JetStream()
	for i := range streams {
		subject := fmt.Sprintf("idle.%d", i)
		require.NoError(b, errOf(js.CreateStream(b.Context(), jetstream.StreamConfig{Name: fmt.Sprintf("HITS_%d", i), Subjects: []string{subject}})))
		require.NoError(b, errOf(js.Publish(b.Context(), subject, nil)))
	}
	settings := parseSettings(b, "NATS_URL="+nats.URL(), "REDIS_URL="+redis.URL(), "TALLYROLL_NAMESPACE=bench",
		"INGEST_SUBJECT=idle.0", fmt.Sprintf("INGEST_ADDR=127.0.0.1:%d", stack.FreePort(b)))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, settings, zerolog.Nop(), nil, nil) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			b.Error(err)
		}
	}()
	reader := read.NewReader(schema.NewStore(redis.Client(), "bench"))
	begun := time.Now()
	stack.Eventually(b, "every stream is counted, and as_of has passed the beginning", func() (bool, string) {
		found, err := reader.Progress(b.Context())
		all := found.Streams
		fresh := 0
		for _, p := range all {
			if p.Counted && p.Applied == 1 && p.AsOf > begun.Add(2*time.Second).UnixMilli() {
				fresh++
			}
		}
		return fresh == streams, fmt.Sprintf("%d of %d: %v", fresh, streams, err)
	})

	before := idleCosts(b, redis, monitor)
	for b.Loop() {
		time.Sleep(time.Second)
	}
	after := idleCosts(b, redis, monitor)
	b.ReportMetric(0, "ns/op")
	for unit, now := range after {
		b.ReportMetric((now-before[unit])/streams/b.Elapsed().Seconds(), unit)
	}
}

// idleCosts are what has been used since the beginning.
func idleCosts(b *testing.B, redis *stack.RedisServer, monitor int) map[string]float64 {
	b.Helper()
	var self syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &self))
	info, err := redis.Client().Info(b.Context(), "stats", "cpu").Result()
	require.NoError(b, err)
	is := make(map[string]float64)
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		is[name], _ = strconv.ParseFloat(value, 64)
	}
	reply, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/varz", monitor))
	require.NoError(b, err)
	defer reply.Body.Close()
	var varz struct {
		Received float64 `json:"in_msgs"`
	}
	require.NoError(b, json.NewDecoder(reply.Body).Decode(&varz))
	return map[string]float64{
		"worker-ms":  float64(time.Duration(self.Utime.Nano()+self.Stime.Nano()).Microseconds()) / 1000,
		"redis-ms":   1000 * (is["used_cpu_user"] + is["used_cpu_sys"]),
		"redis-cmds": is["total_commands_processed"],
		"nats-msgs":  varz.Received,
	}
}
