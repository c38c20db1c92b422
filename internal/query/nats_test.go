package query

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/natsconn"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/query/answer/scope"
	"tallyroll/internal/web"
	"tallyroll/internal/window"
	"tallyroll/tests/apitest"
	"tallyroll/tests/stack"
)

// serveNATS answers requests until the test ends or stop is called, which waits.
func serveNATS(t *testing.T, s *service, url string) (stop func()) {
	t.Helper()
	var settings natsconn.Settings
	require.NoError(t, settings.URL.UnmarshalText([]byte(url)))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	s.nats.namespace = apitest.Namespace
	go func() { ended <- s.nats.serve(ctx, settings) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("serve NATS: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// awaitServices waits until so many processes answer pings.
func awaitServices(t *testing.T, conn *nats.Conn, want int) {
	t.Helper()
	stack.Eventually(t, fmt.Sprintf("%d services", want), func() (bool, string) {
		inbox, err := conn.SubscribeSync(nats.NewInbox())
		require.NoError(t, err)
		defer func() { _ = inbox.Unsubscribe() }()
		require.NoError(t, conn.PublishRequest("$SRV.PING."+serviceName, inbox.Subject, nil))
		n := 0
		for ; n <= want; n++ {
			if _, err := inbox.NextMsg(300 * time.Millisecond); err != nil {
				break
			}
		}
		return n == want, fmt.Sprint(n)
	})
}

func request(t *testing.T, conn *nats.Conn, name, body string) *nats.Msg {
	t.Helper()
	msg, err := conn.Request(apitest.Namespace+"."+name, []byte(body), stack.Hung)
	require.NoErrorf(t, err, "%s %s", name, body)
	return msg
}

// A NATS that refuses query ends it only if an operator has chosen that one. The one at the default address
// may belong to another program.
func TestNATSThatRefusesQueryEndsItIfItWasChosen(t *testing.T) {
	t.Parallel()
	broker := stack.NATS(t, func(o *server.Options) { o.Username, o.Password = "somebody", "else" })
	s := serveFake(t)
	var log apitest.Log
	s.nats.log = zerolog.New(&log)
	settings := natsconn.Settings{}
	require.NoError(t, settings.URL.UnmarshalText([]byte(broker.URL())))
	require.NoError(t, s.nats.serve(t.Context(), settings))
	require.Equal(t, 1, log.Count("doing without NATS: set NATS_URL to where it is, or to nothing if you have no NATS"), log.String())
	families, err := s.nats.metrics.Registry.Gather()
	require.NoError(t, err)
	for _, f := range families { // it rings nobody
		require.NotEqual(t, "tallyroll_nats_up", f.GetName())
	}
	settings.URLGiven = true
	var usage setting.UsageError
	require.ErrorAs(t, s.nats.serve(t.Context(), settings), &usage)
}

// Requests over NATS have the answers of HTTP, and refusals that clients of micro read. testdata/nats.txt has
// them.
func TestRequestsOverNATSAreAnsweredAsOverHTTP(t *testing.T) {
	t.Parallel()
	broker, redis, now := stack.NATS(t), stack.Redis(t), apitest.Now()
	apitest.Seed(t, redis.Client(), now, apitest.NewSample("api", now.Add(-time.Minute), 5), apitest.NewSample("b", now, 1))
	apitest.SeedUniques(t, redis.Client(), "api", now.Add(-time.Minute), "ann", "bob")
	s := serveRedis(t, redis.URL(), now, countNamed)
	serveNATS(t, s, broker.URL())
	conn, h := broker.Conn(), s.handler()
	awaitServices(t, conn, 1)
	fill := strings.NewReplacer("{30s}", fmt.Sprint(now.Add(-30*time.Second).UnixMilli()))
	for _, c := range apitest.ReadRequests(t, "testdata/nats.txt") {
		msg := request(t, conn, c.Target, fill.Replace(c.Body))
		if c.Status == http.StatusOK {
			require.Equal(t, strings.TrimSpace(get(t, h, fill.Replace(c.Want))), string(msg.Data), c.String())
			require.Empty(t, msg.Header)
			continue
		}
		var p web.Problem
		require.NoErrorf(t, json.Unmarshal(msg.Data, &p), "%s: %s", c, msg.Data)
		require.Equal(t, c.Status, p.Status, c.String())
		require.Contains(t, p.Detail, c.Want, c.String())
		require.Equal(t, []string{fmt.Sprint(c.Status), p.Detail},
			[]string{msg.Header.Get(micro.ErrorCodeHeader), msg.Header.Get(micro.ErrorHeader)})
	}
	for i := range 6 { // the last is refused, which is an answer and no error
		msg := request(t, conn, "take", `{"limit":"login","key":"b"}`)
		require.Contains(t, string(msg.Data), fmt.Sprintf(`"allowed":%t`, i < 5))
		require.Empty(t, msg.Header)
	}
	for _, c := range [][2]string{{"take", `"lease":"a"`}, {"renew", `"held":true`}, {"release", `"released":true`}, {"release", `"released":false`}} {
		require.Contains(t, string(request(t, conn, c[0], `{"limit":"exports","key":"b","lease":"a"}`).Data), c[1])
	}
	require.Contains(t, string(request(t, conn, "take", `{"limit":"login","key":"c","n":2,"id":"r"}`).Data), `"allowed":true`)
	require.Contains(t, string(request(t, conn, "settle", `{"limit":"login","key":"c","n":1,"id":"r"}`).Data), `"settled":1`)
	require.Contains(t, string(request(t, conn, "return", `{"limit":"login","key":"c"}`).Data), `"remaining":5`)
	require.Equal(t, "400", request(t, conn, "take", `{"limit":"login","key":"c","n":-1}`).Header.Get(micro.ErrorCodeHeader))
	redis.Stop()
	require.Equal(t, "503", request(t, conn, "total", `{"keys":["api"],"windows":["10m"]}`).Header.Get(micro.ErrorCodeHeader))

	// What nats micro asks.
	ask := func(subject string, into any) {
		t.Helper()
		msg, err := conn.Request(subject, nil, stack.Hung)
		require.NoError(t, err, subject)
		require.NoErrorf(t, json.Unmarshal(msg.Data, into), "%s", msg.Data)
	}
	stack.Eventually(t, "statistics of all endpoints", func() (bool, string) { // a request is counted after its answer has gone
		var stats micro.Stats
		ask("$SRV.STATS."+serviceName, &stats)
		for _, e := range stats.Endpoints {
			if e.NumRequests == 0 || e.Subject != apitest.Namespace+"."+e.Name || e.QueueGroup != serviceName {
				return false, fmt.Sprintf("%+v", e)
			}
		}
		return len(stats.Endpoints) == 12, fmt.Sprintf("%+v", stats)
	})
	var ping micro.Ping
	ask("$SRV.PING", &ping)
	var info micro.Info
	ask("$SRV.INFO."+serviceName+"."+ping.ID, &info)
	require.Equal(t, []string{micro.PingResponseType, serviceName, apitest.Namespace},
		[]string{ping.Type, ping.Name, ping.Metadata["namespace"]})
	require.Equal(t, []string{micro.InfoResponseType, ping.ID}, []string{info.Type, info.ID})
	require.Len(t, info.Endpoints, 12)
}

// meeting is a reader that answers only when as many ask at once.
type meeting struct {
	scope.Counters
	wait *sync.WaitGroup
}

func (m meeting) Answer(ctx context.Context, questions []window.Question) (window.Answers, error) {
	m.wait.Done()
	m.wait.Wait()
	return m.Counters.Answer(ctx, questions)
}

// Requests are answered concurrently, once where two services run, and those under way are answered when it
// stops.
func TestRequestsOverNATSAreAnsweredOnceAndConcurrently(t *testing.T) {
	t.Parallel()
	broker := stack.NATS(t)
	conn := broker.Conn()
	var wait sync.WaitGroup
	s := serveFake(t)
	setReader(s.service, meeting{s.reader, &wait})
	stop := serveNATS(t, s.service, broker.URL())
	awaitServices(t, conn, 1)

	const n = 8
	wait.Add(n + 1)
	inbox, err := conn.SubscribeSync(nats.NewInbox())
	require.NoError(t, err)
	ask := func(n int) {
		for range n {
			require.NoError(t, conn.PublishRequest(apitest.Namespace+".total", inbox.Subject, []byte(`{"keys":["a"],"windows":["10m"]}`)))
		}
	}
	receive := func(n int) {
		for range n {
			msg, err := inbox.NextMsg(stack.Hung)
			require.NoError(t, err)
			require.Empty(t, msg.Header)
		}
	}
	ask(n)
	go func() { wait.Done(); wait.Wait(); stop() }() // it stops while the last are being answered
	receive(n)
	stop()

	for range 2 {
		serveNATS(t, serveFake(t).service, broker.URL())
	}
	awaitServices(t, conn, 2)
	ask(20)
	receive(20)
	msg, err := inbox.NextMsg(300 * time.Millisecond) // a second answer would come at once
	require.ErrorIs(t, err, nats.ErrTimeout, "answered twice: %+v", msg)
}

func TestVersionIsOneThatMicroTakes(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"v1.2.3": "1.2.3", "1.2.3-rc.1": "1.2.3-rc.1", "unknown": "0.0.0-runknown", "0012345": "0.0.0-r0012345", "v1.2-3-gabc-dirty": "0.0.0-rv1-2-3-gabc-dirty",
	} {
		require.Equal(t, want, semanticVersion(version), version)
	}
}
