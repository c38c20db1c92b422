package counts_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
	"tallyroll/internal/limit"
	"tallyroll/internal/limit/counts"
	"tallyroll/internal/platform/natsconn"
	"tallyroll/tests/apitest"
	"tallyroll/tests/stack"
)

// newCounts counts at a NATS server. Its lines are in log.
func newCounts(t *testing.T, url string) (c *counts.Counts, registry *prometheus.Registry, log *apitest.Log) {
	t.Helper()
	at := natsconn.Settings{}
	require.NoError(t, at.URL.UnmarshalText([]byte(url)))
	registry, log = prometheus.NewRegistry(), new(apitest.Log)
	return counts.New(counts.Settings{Subject: "hits.limits"}, &at, "test", zerolog.New(log), registry), registry, log
}

func addStream(t *testing.T, js jetstream.JetStream) jetstream.Stream {
	t.Helper()
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}})
	require.NoError(t, err)
	return stream
}

// stored is what the messages of a stream count, and how many they are.
func stored(t *testing.T, stream jetstream.Stream) (sums map[string]int64, messages int) {
	t.Helper()
	info, err := stream.Info(t.Context())
	require.NoError(t, err)
	sums = map[string]int64{}
	for seq := uint64(1); seq <= info.State.LastSeq; seq++ {
		m, err := stream.GetMsg(t.Context(), seq)
		require.NoError(t, err)
		require.Equal(t, "hits.limits", m.Subject)
		require.NotEmpty(t, m.Header.Get(nats.MsgIdHdr))
		for line := range bytes.Lines(m.Data) {
			one := struct {
				Key string
				N   int64
				All bool
			}{N: 1, All: true}
			require.NoError(t, json.Unmarshal(line, &one))
			require.False(t, one.All, "the sum of all hits leaves them out")
			sums[one.Key] += one.N
		}
	}
	return sums, int(info.State.LastSeq)
}

// What is decided counts as the table in docs/limits-counters.md says, which has the same rows.
func TestWhatIsDecidedCounts(t *testing.T) {
	t.Parallel()
	server, broker := stack.Redis(t), stack.NATS(t)
	stream := addStream(t, broker.JetStream())
	c, registry, _ := newCounts(t, broker.URL())
	stop := c.Start()
	for i, one := range cases {
		p := &player{t: t, name: fmt.Sprint("case", i), redis: server, counts: c}
		p.limiter = p.connect(server.URL())
		one.do(p)
		p.limiter.Wait()
	}
	stop()
	require.Zero(t, dropped(t, registry))
	got := make([]counted, len(cases))
	sums, messages := stored(t, stream)
	require.Less(t, messages, 40, "hits are not sent one by one")
	ofLimits, sumsOfKeys := map[string]int64{}, map[string]int64{}
	for name, n := range sums {
		if of, ok := strings.CutPrefix(name, "sum."); ok {
			ofLimits[of] = n
			continue
		}
		sumsOfKeys[name[:strings.LastIndex(name, ".")]] += n
		parts := regexp.MustCompile(`^(\w+)\.case(\d+)(?::(\w+))?\.(?:other)?k$`).FindStringSubmatch(name)
		require.NotNil(t, parts, name)
		var i int
		_, _ = fmt.Sscan(parts[2], &i)
		if got[i] == nil {
			got[i] = counted{}
		}
		got[i][strings.TrimSuffix(parts[1]+"."+parts[3], ".")] += n
	}
	require.Equal(t, sumsOfKeys, ofLimits, "a counter without {key} has the hits of all keys")
	for i, one := range cases {
		if len(one.want)+len(got[i]) > 0 {
			require.Equal(t, one.want, got[i], one.name)
		}
	}
	var names, rows []string
	for _, one := range cases {
		names = append(names, one.name)
	}
	text, err := os.ReadFile("../../../docs/limits-counters.md")
	require.NoError(t, err)
	_, table, found := strings.Cut(string(text), "| what happens | what counts |\n| --- | --- |\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	for line := range strings.Lines(table) {
		row, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		rows = append(rows, row)
	}
	require.Equal(t, names, rows, "the rows in docs/limits-counters.md")
}

// dropped is the metric of hits that are in no counter.
func dropped(t *testing.T, registry *prometheus.Registry) float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	require.Equal(t, "tallyroll_limit_hits_dropped_total", families[0].GetName())
	return families[0].GetMetric()[0].GetCounter().GetValue()
}

var usage = limit.CounterNames{"usage.{limit}.{key}"}

// While NATS is away, or has no stream, hits stay added up. They arrive once, and none is lost.
func TestHitsWaitForNATS(t *testing.T) {
	t.Parallel()
	broker := stack.NATS(t)
	broker.Stop()
	c, registry, _ := newCounts(t, broker.URL())
	stop := c.Start()
	for i := range 1000 {
		c.Add(usage, "pro", fmt.Sprint(i%10), 2)
	}
	c.Add(usage, "pro", "large", hit.MaxN)
	c.Add(usage, "pro", "large", 1)
	broker.Start()
	js := broker.JetStream()
	c.Add(usage, "pro", "0", 1)
	stream := addStream(t, js)
	stack.Eventually(t, "the first hits", func() (bool, string) {
		sums, _ := stored(t, stream)
		return sums["usage.pro.9"] == 200, fmt.Sprint(sums)
	})
	broker.Stop()
	c.Add(usage, "pro", "1", 1)
	broker.Start()
	stream, err := broker.JetStream().Stream(t.Context(), "HITS")
	require.NoError(t, err)
	stack.Eventually(t, "the others", func() (bool, string) {
		sums, _ := stored(t, stream)
		return sums["usage.pro.0"] == 201 && sums["usage.pro.1"] == 201 && sums["usage.pro.large"] == hit.MaxN+1, fmt.Sprint(sums)
	})
	c.Add(usage, "pro", "last", 1)
	stop()
	sums, _ := stored(t, stream)
	require.Equal(t, int64(1), sums["usage.pro.last"], "the end sends what is added up")
	require.Zero(t, dropped(t, registry))
}

// Nothing is dialed before there is a hit.
func TestNothingIsDialedWithoutHits(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	dialed := make(chan struct{})
	go func() {
		for one, err := listener.Accept(); err == nil; one, err = listener.Accept() {
			one.Close()
			dialed <- struct{}{}
		}
	}()
	c, _, _ := newCounts(t, "nats://"+listener.Addr().String())
	c.Start()()
	stop := c.Start()
	select {
	case <-dialed:
		t.Error("NATS was dialed without a hit")
	default:
	}
	c.Add(usage, "pro", "a", 1)
	<-dialed
	go func() {
		for range dialed {
		}
	}()
	stop()
}

// A subject that no stream takes, or that refuses, is in one line until its messages are stored.
func TestRefusedMessagesAreReportedOnce(t *testing.T) {
	t.Parallel()
	broker := stack.NATS(t)
	c, _, log := newCounts(t, broker.URL())
	stop := c.Start()
	await := func(want string) {
		stack.Eventually(t, want, func() (bool, string) { return strings.Contains(log.String(), want), log.String() })
	}
	c.Add(usage, "pro", "a", 1)
	await("no stream takes LIMITS_SUBJECT")
	refusals := make(chan bool)
	refusing, err := broker.Conn().Subscribe("hits.limits", func(m *nats.Msg) {
		_ = m.Respond([]byte(`{"error": {"code": 503, "err_code": 10077, "description": "maximum messages exceeded"}}`))
		refusals <- true
	})
	require.NoError(t, err)
	for range 3 {
		<-refusals
	}
	require.NoError(t, refusing.Unsubscribe())
	addStream(t, broker.JetStream())
	await("are stored again")
	stop()
	require.Equal(t, 1, strings.Count(log.String(), "are not stored"), log.String())
}

// Memory is bounded. What is dropped is in the metric and in the log, and so is what the end cannot send.
func TestHitsThatAreDroppedAreReported(t *testing.T) {
	t.Parallel()
	c, registry, log := newCounts(t, "nats://127.0.0.1:1")
	stop := c.Start()
	for i := range counts.MaxCounters + 5 {
		c.Add(usage, "pro", fmt.Sprint(i), 3)
	}
	c.Add(usage, "pro", "0", 1)
	require.InDelta(t, 15, dropped(t, registry), 0)
	require.Contains(t, log.String(), "too many counters wait for NATS")
	stop()
	require.InDelta(t, 3*(counts.MaxCounters+5)+1, dropped(t, registry), 0)
	require.Contains(t, log.String(), "before the end of the program")
}
