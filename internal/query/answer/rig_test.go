package answer_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/query/answer"
	"tallyroll/internal/query/answer/scope"
	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window"
	"tallyroll/internal/window/erase"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/apitest"
	"tallyroll/tests/stack"
)

// today is now in these tests, by a held clock. It lies so far ahead that Redis, by its own clock, lets
// nothing expire.
var today = time.Date(2040, 11, 21, 10, 0, 30, 0, time.UTC)

// rig is a Service whose questions are asked in the words of the HTTP interface.
type rig struct {
	*answer.Service
	http.Handler
	client redis.UniversalClient
	store  *schema.Store
	reader *read.Reader
	now    time.Time
}

func newRig(t testing.TB, url string) *rig {
	t.Helper()
	client := stack.ProgramClient(t, url)
	r := &rig{client: client, store: schema.NewStore(client, apitest.Namespace), now: today}
	r.store.MaxLogBytes = 1 // hits are in hashes alone, as those of a busy counter
	stack.WatchClock(client).Hold(&r.now)
	r.reader = read.NewReader(r.store)
	r.reader.Local = func() time.Time { return r.now }
	r.Service = newService(erase.Eraser{Reader: r.reader})
	r.Handler = handlerOf(r.Service)
	return r
}

func newService(reader scope.Counters) *answer.Service {
	return &answer.Service{
		Reader: scope.Authorize(reader), Redis: answer.NewSource(well{}, stack.Hung, zerolog.Nop(), prometheus.NewRegistry()),
		Namespace: apitest.Namespace, MaxKeys: 1000, MaxSum: 1000, MaxProbe: 500,
	}
}

// well is a Redis of which nothing bad is known.
type well struct{}

func (well) Why() string   { return "" }
func (well) RequestCheck() {}

// count stores hits as a worker would, in a namespace with these tiers.
func (r *rig) count(t testing.TB, tiers string, hits []apitest.Sample) {
	t.Helper()
	layout := layoutOf(t, tiers)
	require.NoError(t, r.store.EnsureLayout(t.Context(), layout))
	require.NoError(t, r.store.AddStream(t.Context(), "HITS"))
	apitest.Commit(t, r.store, layout, r.now, 1, hits)
}

// layoutOf returns the layout of the other tests, with other tiers if tiers is not empty.
func layoutOf(t testing.TB, tiers string) window.Layout {
	t.Helper()
	layout := apitest.Layout(t)
	if tiers != "" {
		var err error
		layout.Tiers, err = window.ParseTiers(tiers)
		require.NoError(t, err)
	}
	return layout
}

// mustGet decodes the answer to GET, which must have status 200.
func mustGet[T any](t testing.TB, h http.Handler, path string, params ...url.Values) (out T) {
	t.Helper()
	all := make(url.Values)
	for _, values := range params {
		for name, given := range values {
			all[name] = append(all[name], given...)
		}
	}
	resp := apitest.Send(h, http.MethodGet, path+"?"+all.Encode(), "")
	data := apitest.ReadBody(t, resp)
	if err := json.Unmarshal(data, &out); err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s?%s: %d %v: %s", path, all.Encode(), resp.StatusCode, err, data)
	}
	return out
}

// handlerOf routes questions to a Service, without what internal/query adds to the answers.
func handlerOf(d *answer.Service) http.Handler {
	mux := http.NewServeMux()
	a := api.New(mux, api.Title{Every: func(*api.API, *huma.Operation) {}})
	on := func(method, path string) huma.Operation {
		return a.Operation(huma.Operation{OperationID: method + path, Method: method, Path: path})
	}
	totals := jsonOf(func(ctx context.Context, in *answer.Input) (any, error) {
		found, _, err := d.Totals(ctx, in)
		return found, err
	})
	uniques := jsonOf(func(ctx context.Context, in *answer.Input) (any, error) {
		found, _, err := d.Uniques(ctx, in)
		return found, err
	})
	api.AnswerQuery(a, on("GET", "/v1/total"), func(ctx context.Context, p *answer.TotalParams) (*output, error) { return totals(ctx, p.Input()) })
	api.AnswerBody(a, on("POST", "/v1/total"), func(ctx context.Context, b *answer.TotalBody) (*output, error) { return totals(ctx, b.Input()) })
	api.AnswerQuery(a, on("GET", "/v1/uniques"), func(ctx context.Context, p *answer.WindowsParams) (*output, error) { return uniques(ctx, p.Input()) })
	api.AnswerBody(a, on("POST", "/v1/uniques"), func(ctx context.Context, b *answer.UniquesBody) (*output, error) { return uniques(ctx, b.Input()) })
	api.AnswerQuery(a, on("GET", "/v1/series"), func(ctx context.Context, p *answer.SeriesParams) (*api.RawOutput, error) {
		lines, err := d.Series(ctx, p.Input())
		return inFormat(p.Format, &lines, err)
	})
	api.AnswerBody(a, on("POST", "/v1/series"), func(ctx context.Context, b *answer.SeriesBody) (*output, error) {
		lines, err := d.Series(ctx, b.Input())
		if err != nil {
			return nil, err
		}
		return &output{Body: lines.JSON()}, nil
	})
	api.AnswerQuery(a, on("GET", "/v1/top"), func(ctx context.Context, p *answer.TopParams) (*api.RawOutput, error) {
		top, err := d.Top(ctx, web.InQuery, &p.TopQuestion)
		return inFormat(p.Format, &top, err)
	})
	api.AnswerQuery(a, on("GET", "/v1/counters"), api.OverHTTP(d.Counters))
	api.AnswerQuery(a, on("DELETE", "/v1/counters"), jsonOf(func(ctx context.Context, p *answer.EraseParams) (any, error) { return d.Erase(ctx, p) }))
	api.AnswerQuery(a, on("GET", "/v1/about"), jsonOf(func(ctx context.Context, _ *api.NoParams) (any, error) {
		about, err := d.About(ctx, answer.Features{NATS: true})
		about.TimeZones = "2026f of /usr/share/zoneinfo" // not this machine's
		return about, err
	}))
	api.AnswerQuery(a, on("GET", "/probe"), func(ctx context.Context, p *answer.ProbeParams) (*api.RawOutput, error) {
		text, err := d.Probe(ctx, p)
		return &api.RawOutput{Body: text}, err
	})
	export := func(w http.ResponseWriter, r *http.Request, p *answer.ExportParams) error {
		e, err := d.Export(r.Context(), p)
		if err != nil {
			return err
		}
		return e.Write(r.Context(), func(part []byte) error { _, err := w.Write(part); return err })
	}
	api.HandleQuery[answer.ExportParams, huma.StreamResponse](a, on("GET", "/v1/export"), export)
	return apitest.BufferBodies(mux)
}

func inFormat(format string, found answer.Table, err error) (*api.RawOutput, error) {
	switch {
	case err != nil:
		return nil, err
	case format == answer.CSV.Name:
		return &api.RawOutput{Body: found.CSV()}, nil
	}
	return &api.RawOutput{Body: append(api.Encode(found.JSON()), '\n')}, nil
}

type output = api.JSONOutput[any]

func jsonOf[P any](find func(context.Context, *P) (any, error)) func(context.Context, *P) (*output, error) {
	return func(ctx context.Context, p *P) (*output, error) {
		found, err := find(ctx, p)
		return &output{Body: found}, err
	}
}
