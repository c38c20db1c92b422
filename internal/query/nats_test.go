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
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nats.go/micro"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/access"
	"tallyroll/internal/boot"
	"tallyroll/internal/web"
	"tallyroll/internal/window"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// onNATS serves requests until the test ends or stop is called, which waits.
func onNATS(t *testing.T, s *service, url string) (stop func()) {
	t.Helper()
	var settings boot.NATS
	require.NoError(t, settings.URL.UnmarshalText([]byte(url)))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.serveNATS(ctx, settings, asking.Namespace) }()
	ending := sync.OnceFunc(func() {
		if err := <-ended; err != nil {
			t.Errorf("serve NATS: %v", err)
		}
	})
	stop = func() {
		cancel()
		ending()
	}
	t.Cleanup(stop)
	return stop
}

// services waits until so many processes answer pings, and returns them.
func services(t *testing.T, conn *nats.Conn, want int) {
	t.Helper()
	stack.Eventually(t, fmt.Sprintf("%d services", want), func() (bool, string) {
		inbox, err := conn.SubscribeSync(nats.NewInbox())
		if err != nil {
			return false, err.Error()
		}
		defer func() { _ = inbox.Unsubscribe() }()
		if err := conn.PublishRequest("$SRV.PING."+serviceName, inbox.Subject, nil); err != nil {
			return false, err.Error()
		}
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
	msg, err := conn.Request(asking.Namespace+"."+name, []byte(body), stack.Hung)
	require.NoErrorf(t, err, "%s %s", name, body)
	return msg
}

// A NATS that refuses query ends it only if somebody has chosen that one. The one at the default address may be anybody's.
func TestNATSThatRefusesQueryEndsItIfItWasChosen(t *testing.T) {
	t.Parallel()
	broker := stack.NATS(t, func(o *server.Options) { o.Username, o.Password = "somebody", "else" })
	s, _ := onFake(t)
	var log asking.Log
	s.log = zerolog.New(&log)
	settings := boot.NATS{}
	require.NoError(t, settings.URL.UnmarshalText([]byte(broker.URL())))
	require.NoError(t, s.serveNATS(t.Context(), settings, asking.Namespace))
	require.Equal(t, 1, log.Count("doing without NATS: set NATS_URL to where it is, or to nothing if there is none"), log.String())
	settings.URLGiven = true
	var usage boot.UsageError
	require.ErrorAs(t, s.serveNATS(t.Context(), settings, asking.Namespace), &usage)
}

func TestRequestsOverNATSAreAnsweredAsOverHTTP(t *testing.T) {
	t.Parallel()
	broker, redis, now := stack.NATS(t), stack.Redis(t), asking.Now()
	asking.Seed(t, redis.Client(), now, asking.Hits("api", now.Add(-time.Minute), 5), asking.Hits("b", now, 1))
	asking.Came(t, redis.Client(), "api", now.Add(-time.Minute), "ann", "bob")
	s := onRedis(t, redis.URL(), now)
	onNATS(t, s, broker.URL())
	conn := broker.Conn()
	services(t, conn, 1)
	h := s.handler()

	t.Run("the same as over HTTP", func(t *testing.T) {
		for _, c := range []struct{ name, body, target string }{
			{"total", `{"keys":["api"],"windows":["10m","1h"]}`, "/v1/total?key=api&window=10m&window=1h"},
			{"uniques", `{"keys":["api"],"windows":["10m","1h"]}`, "/v1/uniques?key=api&window=10m&window=1h"},
			{"series", `{"key":"api","of":"uniques"}`, "/v1/series?key=api&of=uniques"},
			{"series", `{"key":"api","step":"5m"}`, "/v1/series?key=api&step=5m"},
			{"series", `{"key":["api","b"]}`, "/v1/series?key=api&key=b"},
			{"series", `{"prefix":"a"}`, "/v1/series?prefix=a"},
			{"series", `{"prefix":"a","group":1,"limit":1,"step":"5m"}`, "/v1/series?prefix=a&group=1&limit=1&step=5m"},
			{"series", `{"group":1}`, "/v1/series?prefix=&group=1"},
			{"top", `{"window":"1h","prefix":"","group":1}`, "/v1/top?window=1h&prefix=&group=1"},
			{"counters", `{"match":"P","totals":true}`, "/v1/counters?match=p&totals=1"},
			{"top", `{"window":"10m","limit":1}`, "/v1/top?window=10m&limit=1"},
			{"top", fmt.Sprintf(`{"window":"5m","at":%d}`, now.Add(-30*time.Second).UnixMilli()), fmt.Sprintf("/v1/top?window=5m&at=%d", now.Add(-30*time.Second).UnixMilli())},
			{"counters", `{}`, "/v1/counters"},
			{"counters", `{"prefix":"a","limit":1,"after":null}`, "/v1/counters?prefix=a&limit=1"},
			{"counters", `{"after":"api"}`, "/v1/counters?after=api"},
			{"about", `{}`, "/v1/about"},
			{"about", ``, "/v1/about"},
			{"limit", `{"limit":"login","key":"a"}`, "/v1/limit?limit=login&key=a"},
			{"limit", `{"key":"api","window":"10m","max":7,"n":2}`, "/v1/limit?key=api&window=10m&max=7&n=2"},
		} {
			over := request(t, conn, c.name, c.body)
			want := strings.TrimSpace(string(asking.ReadAll(t, asking.Ask(h, http.MethodGet, c.target, ""))))
			require.Equal(t, want, string(over.Data), "%s %s", c.name, c.body)
			require.Empty(t, over.Header)
		}
	})
	t.Run("takes", func(t *testing.T) {
		for i := range 6 { // the last is refused, which is an answer and no error
			msg := request(t, conn, "take", `{"limit":"login","key":"b"}`)
			require.Contains(t, string(msg.Data), fmt.Sprintf(`"allowed":%t`, i < 5))
			require.Empty(t, msg.Header)
		}
	})
	t.Run("places", func(t *testing.T) {
		for _, c := range [][2]string{{"take", `"lease":"a"`}, {"renew", `"held":true`}, {"release", `"released":true`}, {"release", `"released":false`}} {
			require.Contains(t, string(request(t, conn, c[0], `{"limit":"exports","key":"b","lease":"a"}`).Data), c[1])
		}
	})
	t.Run("refusals", func(t *testing.T) { // by Redis's limiter too; others are in testdata/refused.txt
		for _, c := range [][3]string{
			{"total", `{"keys":["a"],"windows":["1x"]}`, `windows: "1x" is not a duration`},
			{"take", `{"limit":"login","key":"a","n":6}`, "n: 6 hits"},
			{"renew", `{"limit":"login","key":"a","lease":"a"}`, "limit: it has no places"},
			{"renew", `{"limit":"exports","key":"a"}`, "lease: "},
			{"release", `{"limit":"login","key":"a","lease":"a"}`, "limit: it has no places"},
			{"release", `{"limit":"exports","key":"a"}`, "lease: "},
		} {
			msg := request(t, conn, c[0], c[1])
			var p web.Problem
			require.NoErrorf(t, json.Unmarshal(msg.Data, &p), "%s", msg.Data)
			require.Equal(t, 400, p.Status, c)
			require.Contains(t, p.Detail, c[2])
			require.Equal(t, []string{"400", p.Detail}, []string{msg.Header.Get(micro.ErrorCodeHeader), msg.Header.Get(micro.ErrorHeader)})
		}
	})
	t.Run("what nats micro asks", func(t *testing.T) {
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
				if e.NumRequests == 0 || e.Subject != asking.Namespace+"."+e.Name || e.QueueGroup != serviceName {
					return false, fmt.Sprintf("%+v", e)
				}
			}
			return len(stats.Endpoints) == 10, fmt.Sprintf("%+v", stats)
		})
		var ping micro.Ping
		ask("$SRV.PING", &ping)
		var info micro.Info
		ask("$SRV.INFO."+serviceName+"."+ping.ID, &info)
		if ping.Type != micro.PingResponseType || ping.Name != serviceName || ping.Metadata["namespace"] != asking.Namespace || info.ID != ping.ID || info.Type != micro.InfoResponseType || len(info.Endpoints) != 10 {
			t.Errorf("%+v\n%+v", ping, info)
		}
	})
	t.Run("Redis away", func(t *testing.T) {
		redis.Stop()
		require.Equal(t, "503", request(t, conn, "total", `{"keys":["api"],"windows":["10m"]}`).Header.Get(micro.ErrorCodeHeader))
		redis.Start()
		stack.Eventually(t, "an answer", func() (bool, string) {
			msg := request(t, conn, "total", `{"keys":["api"],"windows":["10m"]}`)
			return len(msg.Header) == 0, string(msg.Data)
		})
	})
}

// meeting is a reader that answers only when so many ask at once.
type meeting struct {
	access.Counters
	wait *sync.WaitGroup
}

func (m meeting) Answer(ctx context.Context, questions []window.Question) (window.Answers, error) {
	m.wait.Done()
	m.wait.Wait()
	return m.Counters.Answer(ctx, questions)
}

// Requests are answered beside each other, one service's requests are answered
// once where two run, and those under way are answered when it stops.
func TestRequestsOverNATSAreAnsweredOnceAndBesideEachOther(t *testing.T) {
	t.Parallel()
	broker := stack.NATS(t)
	conn := broker.Conn()
	var wait sync.WaitGroup
	s, f := onFake(t)
	readFrom(s, meeting{f, &wait})
	stop := onNATS(t, s, broker.URL())
	services(t, conn, 1)

	const n = 8
	wait.Add(n + 1)
	inbox, err := conn.SubscribeSync(nats.NewInbox())
	require.NoError(t, err)
	ask := func(n int) {
		for range n {
			require.NoError(t, conn.PublishRequest(asking.Namespace+".total", inbox.Subject, []byte(`{"keys":["a"],"windows":["10m"]}`)))
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
		s, _ := onFake(t)
		onNATS(t, s, broker.URL())
	}
	services(t, conn, 2)
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

// withNATS is a service that has a Redis and a NATS_URL, and has connected to both.
func withNATS(t *testing.T, redisURL string, broker stack.Endpoint, now time.Time) (*service, http.Handler) {
	t.Helper()
	s := onRedis(t, redisURL, now)
	holdClock(s, now)
	s.status.AsksNATS, s.status.Namespace = true, asking.Namespace
	onNATS(t, s, broker.URL())
	h := s.handler()
	stack.Eventually(t, "a connection to NATS", func() (bool, string) {
		resp := asking.Ask(h, http.MethodGet, "/v1/rejects", "")
		return resp.StatusCode == http.StatusOK, resp.Status
	})
	return s, h
}

func makeStream(t *testing.T, js jetstream.JetStream, name, subject string) {
	t.Helper()
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subject}})
	require.NoError(t, err)
}

func publish(t *testing.T, js jetstream.JetStream, subject, body string, headers ...string) {
	t.Helper()
	m := nats.NewMsg(subject)
	m.Data = []byte(body)
	for i := 0; i < len(headers); i += 2 {
		m.Header.Set(headers[i], headers[i+1])
	}
	_, err := js.PublishMsg(t.Context(), m)
	require.NoError(t, err)
}

// beat writes a worker's key into the fleet's bucket, as a worker does.
func beat(t *testing.T, js jetstream.JetStream, id, token, value string) jetstream.KeyValue {
	t.Helper()
	kv, err := js.CreateOrUpdateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "tallyroll_" + asking.Namespace, Storage: jetstream.MemoryStorage})
	if err == nil {
		_, err = kv.PutString(t.Context(), id+".worker."+token, value)
	}
	require.NoError(t, err)
	return kv
}
