package live

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/redisconn"
	"tallyroll/internal/query/answer"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/apitest"
	"tallyroll/tests/stack"
)

// rig is /v1/live behind the edge of a server.
type rig struct {
	*Live
	server web.Server
}

func newRig(read readTotals) *rig {
	metrics := web.NewMetrics("query", 1)
	settings := Settings{MaxClients: 100, MaxQuestions: 500, MaxKeys: 1000}
	return &rig{New(settings, read, metrics.Registry), web.Server{Metrics: metrics, Log: zerolog.Nop()}}
}

// onRedis asks a Redis whose clock stands at now.
func onRedis(t testing.TB, url string, now time.Time) *rig {
	t.Helper()
	var u redisconn.URL
	require.NoError(t, u.UnmarshalText([]byte(url)))
	client := redisconn.Settings{URL: u, Namespace: apitest.Namespace}.Client()
	t.Cleanup(func() { _ = client.Close() })
	stack.WatchClock(client).Hold(&now)
	reader := read.NewReader(schema.NewStore(client, apitest.Namespace))
	reader.Local = func() time.Time { return now }
	redis := answer.NewSource(well{}, stack.Hung, zerolog.Nop(), prometheus.NewRegistry())
	return newRig(func(ctx context.Context, questions []window.Question) (window.Answers, error) {
		return answer.Read(ctx, redis, func(ctx context.Context) (window.Answers, error) { return reader.Answer(ctx, questions) })
	})
}

// well is a Redis of which nothing bad is known.
type well struct{}

func (well) Why() string   { return "" }
func (well) RequestCheck() {}

// start serves, and runs the hub until stop or the end of the test, when the clients have gone.
func (r *rig) start(t testing.TB, configure func(*httptest.Server)) (server *httptest.Server, stop func()) {
	t.Helper()
	server = httptest.NewUnstartedServer(r.handler())
	if configure != nil {
		configure(server)
	}
	if server.EnableHTTP2 {
		server.StartTLS()
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	stop = sync.OnceFunc(r.hub.run())
	t.Cleanup(stop)
	return server, stop
}

func (r *rig) handler() http.Handler {
	mux := http.NewServeMux()
	r.Register(api.New(mux, api.Title{Every: func(*api.API, *huma.Operation) {}}))
	r.server.RouteStatus(mux, func(context.Context) string { return "" })
	return r.server.Wrap(mux, func(w *web.Response, req *http.Request, _ string, h http.Handler) { h.ServeHTTP(w, req) })
}
