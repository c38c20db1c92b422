package query

import (
	"context"
	"encoding/json"
	"errors"
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

	"tallyroll/internal/access"
	"tallyroll/internal/boot"
	"tallyroll/internal/gate"
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
	var once sync.Once
	stop = func() {
		cancel()
		once.Do(func() {
			if err := <-ended; err != nil {
				t.Errorf("serve NATS: %v", err)
			}
		})
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
func TestNATSThatRefuses(t *testing.T) {
	t.Parallel()
	broker := stack.NATS(t, func(o *server.Options) { o.Username, o.Password = "somebody", "else" })
	s, _ := onFake(t)
	var log asking.Log
	s.log = zerolog.New(&log)
	settings := boot.NATS{}
	require.NoError(t, settings.URL.UnmarshalText([]byte(broker.URL())))
	if err := s.serveNATS(t.Context(), settings, asking.Namespace); err != nil || log.Count("doing without NATS: set NATS_URL to where it is, or to nothing if there is none") != 1 {
		t.Errorf("%v, log %s", err, log.String())
	}
	settings.URLGiven = true
	var usage boot.UsageError
	if err := s.serveNATS(t.Context(), settings, asking.Namespace); !errors.As(err, &usage) {
		t.Errorf("the chosen one: %v", err)
	}
}

func TestRequests(t *testing.T) {
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
			if got, want := string(over.Data), strings.TrimSpace(string(asking.ReadAll(t, asking.Ask(h, http.MethodGet, c.target, "")))); got != want || len(over.Header) > 0 {
				t.Errorf("%s %s: %v\n%s\nwant\n%s", c.name, c.body, over.Header, got, want)
			}
		}
	})
	t.Run("takes", func(t *testing.T) {
		for i := range 6 { // the last is refused, which is an answer and no error
			msg := request(t, conn, "take", `{"limit":"login","key":"b"}`)
			var got gate.TakeAnswer
			if err := json.Unmarshal(msg.Data, &got); err != nil || len(msg.Header) > 0 || got.Allowed != (i < 5) || got.Limit != "login" {
				t.Errorf("take %d: %v %s: %v", i, msg.Header, msg.Data, err)
			}
		}
	})
	t.Run("places", func(t *testing.T) {
		for _, c := range [][2]string{{"take", `"lease":"a"`}, {"renew", `"held":true`}, {"release", `"released":true`}, {"release", `"released":false`}} {
			msg := request(t, conn, c[0], `{"limit":"exports","key":"b","lease":"a"}`)
			if !strings.Contains(string(msg.Data), c[1]) {
				t.Errorf("%s: %v %s", c[0], msg.Header, msg.Data)
			}
		}
	})
	t.Run("errors", func(t *testing.T) {
		for _, c := range []struct{ name, body, code, detail string }{
			{"total", "", "400", "body: it is empty"},
			{"total", "{", "400", "body: "},
			{"total", "\xff", "400", "UTF-8"},
			{"total", `{"keys":["a"],"window":"1h"}`, "400", `unknown field "window"`},
			{"total", `{"keys":["a\n"],"windows":["1h"]}`, "400", "control character"},
			{"total", `{"keys":["\ud800"],"windows":["1h"]}`, "400", "half of a surrogate pair"},
			{"series", `{"key":["a","\ud800"]}`, "400", "half of a surrogate pair"},
			{"series", `{"Key":"a"}`, "400", `unknown field "Key"`},
			{"counters", `{"prefix":"a","prefix":"b"}`, "400", `"prefix": it is given twice`},
			{"take", `{"limit":"login","key":"\udfff"}`, "400", "half of a surrogate pair"},
			{"take", `{"take":[{"limit":"login","key":"a","kEy":"b"}]}`, "400", `unknown field "kEy"`},
			{"total", `{"keys":["a"],"windows":["9w"]}`, "400", "reaches back"},
			{"uniques", "", "400", "body: it is empty"},
			{"uniques", `{"keys":["a"],"prefix":"a"}`, "400", `unknown field "prefix"`},
			{"uniques", `{"keys":["a"]}`, "400", "windows: it is missing"},
			{"uniques", `{"keys":["a"],"windows":["9w"]}`, "400", "UNIQUE_TIERS"},
			{"series", `{"key":null}`, "400", "key: it is missing"},
			{"series", `{"key":7}`, "400", ""},
			{"series", `{"key":"a","step":"1"}`, "400", "step: "},
			{"series", `{"key":"a","from":0}`, "400", "from: "},
			{"top", `{}`, "400", "window: it is missing"},
			{"top", `{"window":"1h","limit":"5"}`, "400", "limit: "},
			{"top", `{"window":"1h","limit":1001}`, "400", "limit: "},
			{"top", `{"window":"9w"}`, "400", "reaches back"},
			{"take", `{"limit":"logon","key":"a"}`, "400", "limit: "},
			{"take", `{"take":[{"limit":"login"}]}`, "400", "take[0].key: "},
			{"take", `{"limit":"login","key":"a","n":6}`, "400", "n: 6 hits"},
			{"take", `{"limit":7}`, "400", "limit: "},
			{"limit", `{"limit":"logon","key":"a"}`, "400", "limit: "},
			{"limit", `{"limit":"login"}`, "400", "key: "},
			{"limit", `{"key":"a","window":"1h","max":0}`, "400", "max: "},
			{"limit", `{"take":[]}`, "400", "unknown field"},
			{"renew", `{"limit":"login","key":"a","lease":"a"}`, "400", "limit: it has no places"},
			{"renew", `{"limit":"exports","key":"a"}`, "400", "lease: "},
			{"renew", `{"key":"a","lease":"a"}`, "400", "limit: it is missing"},
			{"renew", `{"limit":"exports","key":"a","lease":"a","n":1}`, "400", "unknown field"},
			{"release", `{"limit":"login","key":"a","lease":"a"}`, "400", "limit: it has no places"},
			{"release", `{"limit":"exports","key":"a"}`, "400", "lease: "},
			{"release", `{"limit":"exports","lease":"a"}`, "400", "key: "},
			{"release", `{"limit":"nothing","key":"a","lease":"a"}`, "400", "limit: "},
			{"about", `{"window":"1h"}`, "400", "unknown field \"window\": allowed are none"},
			{"about", `{`, "400", "body: "},
			{"about", `[]`, "400", "body: "},
			{"about", "\xff", "400", "UTF-8"},
			{"counters", `[]`, "400", "body: "},
			{"counters", `{"limit":0}`, "400", "limit: "},
			{"counters", `{"prefix":"a\u0000"}`, "400", "prefix: "},
			{"counters", `{"window":"1h"}`, "400", "unknown field"},
		} {
			msg := request(t, conn, c.name, c.body)
			var p web.Problem
			require.NoErrorf(t, json.Unmarshal(msg.Data, &p), "%s", msg.Data)
			if msg.Header.Get(micro.ErrorCodeHeader) != c.code || msg.Header.Get(micro.ErrorHeader) != p.Detail || !strings.Contains(p.Detail, c.detail) || fmt.Sprint(p.Status) != c.code {
				t.Errorf("%s %s: %v %s", c.name, c.body, msg.Header, msg.Data)
			}
		}
	})
	t.Run("what the service says of itself", func(t *testing.T) {
		// A request is counted after its answer has gone.
		stack.Eventually(t, "statistics of all endpoints", func() (bool, string) {
			msg, err := conn.Request("$SRV.STATS."+serviceName, nil, stack.Hung)
			if err != nil {
				return false, err.Error()
			}
			var stats micro.Stats
			if err := json.Unmarshal(msg.Data, &stats); err != nil || len(stats.Endpoints) != 10 {
				return false, fmt.Sprintf("%s: %v", msg.Data, err)
			}
			for _, e := range stats.Endpoints {
				if e.NumRequests < 5 || e.Subject != asking.Namespace+"."+e.Name || e.QueueGroup != serviceName {
					return false, fmt.Sprintf("%+v", e)
				}
			}
			return true, ""
		})
	})
	t.Run("what nats micro asks", func(t *testing.T) {
		ask := func(subject string, into any) {
			t.Helper()
			msg, err := conn.Request(subject, nil, stack.Hung)
			if err == nil {
				err = json.Unmarshal(msg.Data, into)
			}
			require.NoErrorf(t, err, "%s", subject)
		}
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
		if msg := request(t, conn, "total", `{"keys":["api"],"windows":["10m"]}`); msg.Header.Get(micro.ErrorCodeHeader) != "503" {
			t.Errorf("%v %s", msg.Header, msg.Data)
		}
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
func TestRequestsAtOnce(t *testing.T) {
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
	for range n {
		require.NoError(t, conn.PublishRequest(asking.Namespace+".total", inbox.Subject, []byte(`{"keys":["a"],"windows":["10m"]}`)))
	}
	go func() { wait.Done(); wait.Wait(); stop() }() // it stops while the last are being answered
	for range n {
		if msg, err := inbox.NextMsg(stack.Hung); err != nil || len(msg.Header) > 0 {
			t.Fatalf("%+v: %v", msg, err)
		}
	}
	stop()

	for range 2 {
		s, _ := onFake(t)
		onNATS(t, s, broker.URL())
	}
	services(t, conn, 2)
	for range 20 {
		require.NoError(t, conn.PublishRequest(asking.Namespace+".total", inbox.Subject, []byte(`{"keys":["a"],"windows":["10m"]}`)))
	}
	for range 20 {
		if _, err := inbox.NextMsg(stack.Hung); err != nil {
			t.Fatal(err)
		}
	}
	if msg, err := inbox.NextMsg(300 * time.Millisecond); err == nil {
		t.Errorf("answered twice: %s", msg.Data)
	}
}

func TestSemanticVersion(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"v1.2.3": "1.2.3", "1.2.3-rc.1": "1.2.3-rc.1", "unknown": "0.0.0-runknown", "0012345": "0.0.0-r0012345", "v1.2-3-gabc-dirty": "0.0.0-rv1-2-3-gabc-dirty",
	} {
		if got := semanticVersion(version); got != want {
			t.Errorf("%s: %s, want %s", version, got, want)
		}
	}
}
