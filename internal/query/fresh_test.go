package query

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/query/answer"
	"tallyroll/internal/web"
	"tallyroll/tests/apitest"
	"tallyroll/tests/stack"
)

// runFresh reads for questions that wait until the test ends or stop is called, which waits.
func runFresh(t testing.TB, s *service) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = s.fresh.Run(ctx) })
	stop = func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return stop
}

// metric is the value of a metric without labels.
func metric(t testing.TB, h http.Handler, name string) int {
	t.Helper()
	found := regexp.MustCompile(`(?m)^tallyroll_query_` + name + ` (\d+)$`).FindStringSubmatch(get(t, h, "/metrics"))
	require.NotNil(t, found, name)
	n, err := strconv.Atoi(found[1])
	require.NoError(t, err)
	return n
}

// awaitWaiting waits until so many requests wait.
func awaitWaiting(t testing.TB, h http.Handler, want int) {
	t.Helper()
	stack.Eventually(t, fmt.Sprintf("%d requests to wait", want), func() (bool, string) {
		n := metric(t, h, "waiting_requests")
		return n == want, strconv.Itoa(n)
	})
}

// Each question, over HTTP and NATS, waits for the message that it names, and then its answer has it.
func TestEachQuestionWaitsForItsMessage(t *testing.T) {
	t.Parallel()
	broker, server, now := stack.NATS(t), stack.Redis(t), apitest.Now()
	apitest.Seed(t, server.Client(), now, apitest.NewSample("other", now.Add(-time.Minute), 5))
	s := serveRedis(t, server.URL(), now)
	runFresh(t, s)
	serveNATS(t, s, broker.URL())
	conn, h := broker.Conn(), s.handler()
	awaitServices(t, conn, 1)
	questions := map[string]string{ // to a part of the answer
		`GET /v1/total?key=new&window=10m&after=HITS:2&wait=10s`:                                            `"total":7,"lower":7,"upper":7`,
		`GET /v1/total?prefix=n&window=10m&after=HITS:1&after=HITS:2&wait=10s`:                              `"total":7,"lower":7,"upper":7`,
		`POST /v1/total {"keys":["new"],"windows":["10m"],"after":["HITS:2"],"max_age":"24h","wait":"10s"}`: `"total":7,"lower":7,"upper":7`,
		`GET /v1/uniques?key=new&window=10m&after=HITS:2&wait=10s`:                                          `"estimate":0`,
		`POST /v1/uniques {"keys":["new"],"windows":["10m"],"after":["HITS:2"],"wait":"10s"}`:               `"estimate":0`,
		`GET /v1/series?key=new&window=10m&after=HITS:2&wait=10s`:                                           `,7]`,
		`GET /v1/top?window=10m&after=HITS:2&wait=10s`:                                                      `{"key":"new","total":7`,
		`GET /v1/counters?after_message=HITS:2&wait=10s&after=m`:                                            `"counters":["new","other"]`,
		`GET /v1/limit?key=new&window=10m&max=10&n=3&after=HITS:2&wait=10s`:                                 `"allowed":true,"certain":true,"remaining":3`,
		`NATS total {"keys":["new"],"windows":["10m"],"after":["HITS:2"],"wait":"10s"}`:                     `"total":7,"lower":7,"upper":7`,
		`NATS uniques {"keys":["new"],"windows":["10m"],"after":["HITS:2"],"wait":"10s"}`:                   `"estimate":0`,
		`NATS series {"key":"new","window":"10m","after":["HITS:2"],"wait":"10s"}`:                          `,7]`,
		`NATS top {"window":"10m","after":["HITS:2"],"wait":"10s"}`:                                         `{"key":"new","total":7`,
		`NATS counters {"after_message":["HITS:2"],"wait":"10s"}`:                                           `"counters":["new","other"]`,
		`NATS limit {"key":"new","window":"10m","max":10,"n":3,"after":["HITS:2"],"wait":"10s"}`:            `"allowed":true,"certain":true,"remaining":3`,
	}
	var asked sync.WaitGroup
	for question, want := range questions {
		parts := append(strings.SplitN(question, " ", 3), "")
		asked.Go(func() {
			var text string
			for status := http.StatusServiceUnavailable; status == http.StatusServiceUnavailable; { // once, or this machine takes very long
				if parts[0] == "NATS" {
					msg, err := conn.Request(apitest.Namespace+"."+parts[1], []byte(parts[2]), stack.Hung)
					if err != nil {
						t.Error(err)
						return
					}
					text = string(msg.Data)
					status, _ = strconv.Atoi(msg.Header.Get(micro.ErrorCodeHeader))
				} else {
					resp := apitest.Send(h, parts[0], parts[1], parts[2])
					status, text = resp.StatusCode, string(apitest.ReadBody(t, resp))
				}
			}
			if !strings.Contains(text, want) {
				t.Errorf("%s: %s, want %s", question, text, want)
			}
		})
	}
	awaitWaiting(t, h, len(questions))
	apitest.SeedLate(t, server.Client(), now, apitest.NewSample("new", now.Add(-time.Minute), 7))
	asked.Wait()

	p := apitest.RequireProblem(t, apitest.Send(h, http.MethodGet, "/v1/top?window=10m&after=HITS:3&wait=0s", ""), http.StatusServiceUnavailable)
	require.Equal(t, web.NotYet.Type(), p.Type)
	require.Equal(t, "after: stream HITS is counted up to 2 of 3", p.Detail)
	resp := apitest.Send(h, http.MethodGet, "/v1/counters?after_message=OTHER:3", "")
	require.Equal(t, "after_message: stream \"OTHER\" is not counted here: counted are HITS", apitest.RequireProblem(t, resp, http.StatusBadRequest).Detail)
}

// An as_of that is older than max_age is refused, and so is a wait with fail=open, which otherwise allows
// what is unknown.
func TestAnAnswerThatIsTooOldIsRefused(t *testing.T) {
	t.Parallel()
	server, now := stack.Redis(t), apitest.Now()
	apitest.Seed(t, server.Client(), now.Add(-2*time.Second), apitest.NewSample("a", now.Add(-time.Minute), 5))
	s := serveRedis(t, server.URL(), now)
	runFresh(t, s)
	h := s.handler()
	require.Equal(t, http.StatusOK, apitest.Send(h, http.MethodGet, "/v1/total?key=a&window=10m&max_age=1h", "").StatusCode)
	for _, target := range []string{"/v1/total?key=a&window=10m", "/v1/limit?key=a&window=10m&max=10&fail=open"} {
		resp := apitest.Send(h, http.MethodGet, target+"&max_age=1s&wait=0s", "")
		require.Equal(t, "1", resp.Header.Get("Retry-After"))
		require.Equal(t, web.TooOld.Type(), apitest.RequireProblem(t, resp, http.StatusServiceUnavailable).Type)
	}
}

// A token with prefixes may name messages, and does not learn which streams there are.
func TestATokenWithPrefixesWaitsToo(t *testing.T) {
	t.Parallel()
	server, now := stack.Redis(t), apitest.Now()
	apitest.Seed(t, server.Client(), now, apitest.NewSample("shop.a", now.Add(-time.Minute), 5))
	s := serveRedis(t, server.URL(), now, useFile(t, `shop may: [read], prefixes: ["shop."]`, `ops may: [read, admin]`))
	runFresh(t, s)
	h := s.handler()
	ask := func(bearer, target string) *http.Response {
		return apitest.Send(h, http.MethodGet, target, "", "Authorization", "Bearer "+bearer)
	}
	require.Equal(t, http.StatusOK, ask("shop", "/v1/total?key=shop.a&window=1h&after=HITS:1").StatusCode)
	require.Equal(t, http.StatusForbidden, ask("shop", "/v1/total?key=a&window=1h&after=HITS:1").StatusCode)
	for bearer, want := range map[string]string{"shop": "message 3 of stream HITS is not counted yet", "ops": "stream HITS is counted up to 1 of 3"} {
		p := apitest.RequireProblem(t, ask(bearer, "/v1/total?key=shop.a&window=1h&after=HITS:3&wait=0s"), http.StatusServiceUnavailable)
		require.Equal(t, "after: "+want, p.Detail)
	}
	for bearer, want := range map[string]string{"shop": "", "ops": ": counted are HITS"} {
		p := apitest.RequireProblem(t, ask(bearer, "/v1/total?key=shop.a&window=1h&after=HIT:1"), http.StatusBadRequest)
		require.Equal(t, `after: stream "HIT" is not counted here`+want, p.Detail)
	}
}

// commandsOf is how many commands a Redis has executed, except for INFO.
func commandsOf(t testing.TB, client redis.UniversalClient) (n int) {
	t.Helper()
	text, err := client.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	for _, m := range regexp.MustCompile(`cmdstat_(\S+):calls=(\d+)`).FindAllStringSubmatch(text, -1) {
		if m[1] != "info" && m[1] != "hello" { // which a connection sends every few seconds
			calls, err := strconv.Atoi(m[2])
			require.NoError(t, err)
			n += calls
		}
	}
	return n
}

// However many requests wait, Redis executes the commands of one read at a time for all of them.
func TestRequestsThatWaitCostRedisNoMoreThanOne(t *testing.T) {
	t.Parallel()
	server, now := stack.Redis(t), apitest.Now()
	apitest.Seed(t, server.Client(), now, apitest.NewSample("a", now.Add(-time.Minute), 5))
	for _, n := range []int{10, 2000} {
		s := serveRedis(t, server.URL(), now)
		s.status.Reader = &apitest.FakeReader{Layout: apitest.Layout(t), Now: now} // or /metrics would read, too
		h := s.handler()
		reach := s.questions.Reader.Progress
		require.NoError(t, errOf(reach(t.Context())), "the connection is made, and the layout known")
		before := commandsOf(t, server.Client())
		require.NoError(t, errOf(reach(t.Context())))
		each := commandsOf(t, server.Client()) - before

		stop := runFresh(t, s)
		before = commandsOf(t, server.Client())
		var asked sync.WaitGroup
		for range n {
			asked.Go(func() {
				for { // once, or this machine takes very long
					resp := apitest.Send(h, http.MethodGet, "/v1/total?key=a&window=10m&after=HITS:2&wait=10s", "")
					if text := string(apitest.ReadBody(t, resp)); !strings.Contains(text, "counted up to 1 of 2") {
						if !strings.Contains(text, "the service is stopping") {
							t.Errorf("%d: %s", resp.StatusCode, text)
						}
						return
					}
				}
			})
		}
		awaitWaiting(t, h, n)
		reads := metric(t, h, "wait_reads_total")
		stack.Eventually(t, "some reads for all of them", func() (bool, string) {
			return metric(t, h, "wait_reads_total") >= reads+5, ""
		})
		stop()
		asked.Wait()
		reads, commands := metric(t, h, "wait_reads_total"), commandsOf(t, server.Client())-before
		t.Logf("%d requests: %d reads of %d commands, %d commands", n, reads, each, commands)
		require.LessOrEqual(t, commands, reads*each)
		require.GreaterOrEqual(t, commands, (reads-1)*each, "the last read may not have been sent")
	}
}

func errOf(_ any, err error) error { return err }

// Requests over NATS that wait hold up no others, and all of them are answered before the service stops.
func TestRequestsOverNATSWaitWithOthers(t *testing.T) {
	t.Parallel()
	broker, server, now := stack.NATS(t), stack.Redis(t), apitest.Now()
	apitest.Seed(t, server.Client(), now, apitest.NewSample("a", now.Add(-time.Minute), 5))
	s := serveRedis(t, server.URL(), now)
	runFresh(t, s)
	stop := serveNATS(t, s, broker.URL())
	conn, h := broker.Conn(), s.handler()
	awaitServices(t, conn, 1)
	inbox, err := conn.SubscribeSync(nats.NewInbox())
	require.NoError(t, err)
	const n = 3 * maxConcurrent
	sent := 0
	stack.Eventually(t, "all to wait", func() (bool, string) {
		answered, _, err := inbox.Pending() // none, unless this machine takes very long
		require.NoError(t, err)
		for ; sent < n+answered; sent++ {
			require.NoError(t, conn.PublishRequest(apitest.Namespace+".total", inbox.Subject, []byte(`{"keys":["a"],"windows":["10m"],"after":["HITS:2"],"wait":"10s"}`)))
		}
		waiting := metric(t, h, "waiting_requests")
		return waiting == n, fmt.Sprint(waiting, " wait, ", answered, " answered")
	})
	require.Contains(t, string(request(t, conn, "total", `{"keys":["a"],"windows":["10m"]}`).Data), `"total":5`)
	stopped := make(chan struct{})
	go func() { defer close(stopped); stop() }()
	awaitServices(t, conn, 0)
	apitest.SeedLate(t, server.Client(), now, apitest.NewSample("a", now.Add(-time.Minute), 2))
	for range sent {
		msg, err := inbox.NextMsg(stack.Hung)
		require.NoError(t, err)
		if msg.Header.Get(micro.ErrorCodeHeader) != "503" { // unless this machine takes very long
			require.Contains(t, string(msg.Data), `"total":7`)
		}
	}
	<-stopped
}

// A question that its caller may not ask, or that has a mistake, is refused before it waits: a caller who
// must not ask learns nothing about how far the streams are counted.
func TestRightsAndParametersAreCheckedBeforeTheWait(t *testing.T) {
	t.Parallel()
	broker, server, now := stack.NATS(t), stack.Redis(t), apitest.Now()
	apitest.Seed(t, server.Client(), now, apitest.NewSample("shop.a", now.Add(-time.Minute), 5))
	s := serveRedis(t, server.URL(), now, useFile(t, `shop may: [read, take], prefixes: ["shop."]`, `takes may: [take]`))
	runFresh(t, s)
	serveNATS(t, s, broker.URL())
	conn, h := broker.Conn(), s.handler()
	awaitServices(t, conn, 1)
	for _, c := range []struct {
		bearer, target, body string
		status               int
	}{
		{"shop", "/v1/total?key=a&window=1h", "", http.StatusForbidden},
		{"shop", "/v1/total?prefix=a&window=1h", "", http.StatusForbidden},
		{"shop", "/v1/total", `{"keys":["shop.a","a"],"windows":["1h"],"after":["HITS:9"],"wait":"0s"}`, http.StatusForbidden},
		{"shop", "/v1/uniques?key=a&window=1h", "", http.StatusForbidden},
		{"shop", "/v1/series?key=a&window=1h", "", http.StatusForbidden},
		{"shop", "/v1/series?prefix=a&window=1h", "", http.StatusForbidden},
		{"shop", "/v1/top?window=1h&prefix=a", "", http.StatusForbidden},
		{"shop", "/v1/counters?prefix=a", "", http.StatusForbidden},
		{"shop", "/v1/limit?key=a&window=1h&max=5", "", http.StatusForbidden},
		{"takes", "/v1/limit?key=shop.a&window=1h&max=5", "", http.StatusForbidden},
		{"shop", "/v1/total?key=shop.a&window=hour", "", http.StatusBadRequest},
		{"shop", "/v1/total?window=1h", "", http.StatusBadRequest},
		{"shop", "/v1/total?prefix=shop.&window=1h&group=0", "", http.StatusBadRequest},
		{"shop", "/v1/uniques?key=shop.a&window=hour", "", http.StatusBadRequest},
		{"shop", "/v1/series?key=shop.a&window=1h&step=x", "", http.StatusBadRequest},
		{"shop", "/v1/series?prefix=shop.&group=1&window=1h&limit=x", "", http.StatusBadRequest},
		{"shop", "/v1/top?window=hour", "", http.StatusBadRequest},
		{"shop", "/v1/counters?limit=0", "", http.StatusBadRequest},
		{"shop", "/v1/limit?key=shop.a&window=1h&max=x&fail=open", "", http.StatusBadRequest},
		{"shop", "/v1/total?key=shop.a&window=1h", "", http.StatusServiceUnavailable},
		{"shop", "/v1/limit?key=shop.a&window=1h&max=5&fail=open", "", http.StatusServiceUnavailable},
	} {
		method, after := http.MethodPost, ""
		if c.body == "" {
			method, after = http.MethodGet, "&after=HITS:9&wait=0s"
			if strings.HasPrefix(c.target, "/v1/counters") {
				after = "&after_message=HITS:9&wait=0s"
			}
		}
		resp := apitest.Send(h, method, c.target+after, c.body, "Authorization", "Bearer "+c.bearer)
		text := string(apitest.ReadBody(t, resp))
		if resp.StatusCode != c.status || c.status != http.StatusServiceUnavailable && strings.Contains(text, "HITS") {
			t.Errorf("%s: %d %s, want %d", c.target, resp.StatusCode, text, c.status)
		}
	}
	for _, body := range []string{`{"keys":["a"],"windows":["hour"]`, `{"keys":["a"]`, `{"windows":["1h"]`} {
		msg := request(t, conn, "total", body+`,"after":["HITS:9"],"wait":"0s"}`)
		require.Equal(t, "400", msg.Header.Get(micro.ErrorCodeHeader), "%s: %s", body, msg.Data)
	}
}

// Requests over NATS that have waited are answered a few at a time, as all others.
func TestRequestsOverNATSTakeASlotAgainAfterTheWait(t *testing.T) {
	t.Parallel()
	broker, server, now := stack.NATS(t), stack.Redis(t), apitest.Now()
	apitest.Seed(t, server.Client(), now, apitest.NewSample("a", now.Add(-time.Minute), 5))
	s := serveRedis(t, server.URL(), now)
	runFresh(t, s)
	var mu sync.Mutex
	answering, most := 0, 0
	count := func(by int) {
		mu.Lock()
		defer mu.Unlock()
		answering += by
		most = max(most, answering)
	}
	gate := make(chan struct{})
	s.nats.endpoints["total"] = overNATS(func(ctx context.Context, _ string, b *answer.TotalBody) (int, error) {
		return answer.Read(ctx, s.questions.Redis, func(ctx context.Context) (int, error) {
			if _, err := s.questions.Reader.Answer(ctx, nil); err != nil {
				return 0, err
			}
			count(1)
			defer count(-1)
			<-gate
			return 1, nil
		})
	})
	serveNATS(t, s, broker.URL())
	conn, h := broker.Conn(), s.handler()
	awaitServices(t, conn, 1)
	inbox, err := conn.SubscribeSync(nats.NewInbox())
	require.NoError(t, err)
	const n = 3 * maxConcurrent
	for range n {
		require.NoError(t, conn.PublishRequest(apitest.Namespace+".total", inbox.Subject, []byte(`{"keys":["a"],"windows":["10m"],"after":["HITS:2"],"wait":"10s"}`)))
	}
	awaitWaiting(t, h, n)
	apitest.SeedLate(t, server.Client(), now, apitest.NewSample("a", now.Add(-time.Minute), 2))
	awaitWaiting(t, h, 0)
	stack.Eventually(t, "as many answers as there are slots", func() (bool, string) {
		mu.Lock()
		defer mu.Unlock()
		return answering >= maxConcurrent, fmt.Sprint(answering)
	})
	close(gate)
	for range n {
		msg, err := inbox.NextMsg(stack.Hung)
		require.NoError(t, err)
		require.Equal(t, "1", string(msg.Data))
	}
	require.Equal(t, maxConcurrent, most)
}
