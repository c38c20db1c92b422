package api_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/tests/apitest"
)

// thingsParams, thingsBody and things are of the operations in testdata/requests.txt.
type thingsParams struct {
	Keys    []string          `query:"key,explode"`
	Window  string            `query:"window" hint:"duration"`
	At      api.Moment        `query:"at"`
	Limit   api.Number        `query:"limit" hint:"a whole number from 1 to 10"`
	Any     string            `query:"header.NAME" hint:"the value of a header"`
	Headers map[string]string `headers:"header."`
}

type named struct {
	Name string `json:"name"`
}

type thingsBody struct {
	Keys  []string          `json:"keys"`
	At    api.Moment        `json:"at"`
	Limit api.Number        `json:"limit"`
	One   *named            `json:"one"`
	Many  []named           `json:"many"`
	Named map[string]string `json:"named"`
}

type things struct {
	Keys    []string          `json:"keys"`
	Window  string            `json:"window"`
	At      int64             `json:"at"`
	Limit   int64             `json:"limit"`
	Headers map[string]string `json:"headers,omitempty"`
}

func findThings(_ context.Context, part string, p *thingsParams) (out things, err error) {
	out.Keys, out.Window, out.Headers = p.Keys, "0s", p.Headers
	for _, key := range p.Keys {
		if err := api.CheckKey("key", key); err != nil {
			return out, web.InputProblem(err, part)
		}
	}
	if p.Window != "" {
		window, err := api.ParseDuration("window", p.Window)
		if err != nil {
			return out, web.InputProblem(err, part)
		}
		out.Window = window.String()
	}
	if p.At != "" {
		if out.At, err = p.At.Milli("at", time.Time.UnixMilli); err != nil {
			return out, web.InputProblem(err, part)
		}
	}
	out.Limit, err = p.Limit.Parse("limit", 5, 1, 10)
	return out, web.InputProblem(err, part)
}

// newThings serves the operations, with bodies read as by an edge.
func newThings() http.Handler {
	mux := http.NewServeMux()
	a := api.New(mux, api.Title{Name: "Things <&>", Home: "/", Tokens: "Any.", Groups: []api.Group{{"Ask", "All."}}, Every: func(a *api.API, op *huma.Operation) { a.NeedToken(op) }})
	a.Within("Ask")
	operation := func(method, path string) huma.Operation {
		return a.Operation(huma.Operation{OperationID: method + path[len("/v1/"):], Method: method, Path: path, Responses: api.SuccessOnly("Things.", things{})})
	}
	api.AnswerQuery(a, operation(http.MethodGet, "/v1/things"), api.OverHTTP(findThings))
	api.AnswerQuery(a, operation(http.MethodGet, "/v1/none"), func(context.Context, *api.NoParams) (*api.NoOutput, error) { return new(api.NoOutput), nil })
	api.AnswerBody(a, operation(http.MethodPost, "/v1/things"), func(ctx context.Context, b *thingsBody) (*api.JSONOutput[things], error) {
		out, err := findThings(ctx, web.InBody, &thingsParams{Keys: b.Keys, At: b.At, Limit: b.Limit})
		return &api.JSONOutput[things]{out}, err
	})
	a.DescribeStatus(api.MetricsPage("up 1"))
	a.RoutePages()
	return apitest.BufferBodies(mux)
}

func TestRequestsAreReadOrRefused(t *testing.T) {
	t.Parallel()
	h := newThings()
	for _, r := range apitest.ReadRequests(t, "testdata/requests.txt") {
		resp := r.Send(h)
		if r.Status == http.StatusOK {
			require.Equal(t, r.Want, strings.TrimSpace(string(apitest.ReadBody(t, resp))), "%s", r)
			continue
		}
		place, detail, _ := strings.Cut(r.Want, " ")
		p := apitest.RequireProblem(t, resp, r.Status)
		at, message := "-", p.Detail
		if len(p.Errors) > 0 {
			at, message = p.Errors[0].Location, p.Errors[0].Message
		}
		if at != place || !strings.Contains(message, detail) || len(p.Detail) > 500 || strings.Contains(p.Detail, "callback") {
			t.Errorf("%s: %s: %.600s", r, at, p.Detail)
		}
	}
}

// A parameter without a hint would be refused with half a sentence: the fault shows at start.
func TestParametersNeedHints(t *testing.T) {
	t.Parallel()
	type params struct {
		Name string `query:"name"`
	}
	a := api.New(http.NewServeMux(), api.Title{Name: "Things"})
	op := huma.Operation{OperationID: "get", Method: http.MethodGet, Path: "/", Responses: api.SuccessOnly("A.", things{})}
	require.PanicsWithValue(t, "api_test.params.Name: the tag hint is missing", func() {
		api.HandleQuery[params, api.NoOutput](a, op, nil)
	})
}

type brokenBody struct{ err error }

func (b brokenBody) Read([]byte) (int, error) { return 0, b.err }

type timeoutError struct{ error }

func (timeoutError) Timeout() bool { return true }

func (timeoutError) Temporary() bool { return true }

// A body of the greatest size is read; one that is larger or ends early is the client's fault.
func TestBodiesHaveABound(t *testing.T) {
	t.Parallel()
	h := newThings()
	require.Equal(t, http.StatusOK, apitest.Send(h, http.MethodPost, "/v1/things", "{}"+strings.Repeat(" ", api.MaxBody-2)).StatusCode)
	p := apitest.RequireProblem(t, apitest.Send(h, http.MethodPost, "/v1/things", "{}"+strings.Repeat(" ", api.MaxBody-1)), http.StatusRequestEntityTooLarge)
	require.Contains(t, p.Detail, "body: larger than 1048576 bytes")
	for err, status := range map[error]int{io.ErrUnexpectedEOF: http.StatusBadRequest, timeoutError{errors.New("late")}: http.StatusRequestTimeout} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/things", io.MultiReader(strings.NewReader("{"), brokenBody{err})))
		apitest.RequireProblem(t, w.Result(), status)
	}
}

// The document describes what was registered, and its pages lead to it and explain every type of problem.
func TestDocumentAndItsPage(t *testing.T) {
	t.Parallel()
	h := newThings()
	var doc struct {
		Paths map[string]map[string]struct {
			Tags     []string
			Security []map[string][]string
		}
	}
	require.NoError(t, json.Unmarshal(apitest.ReadBody(t, apitest.Send(h, http.MethodGet, "/openapi.json", "")), &doc))
	require.Equal(t, []string{"Ask"}, doc.Paths["/v1/things"]["post"].Tags)
	require.NotEmpty(t, doc.Paths["/v1/none"]["get"].Security)
	require.Empty(t, doc.Paths["/metrics"]["get"].Security)
	page := string(apitest.ReadBody(t, apitest.Send(h, http.MethodGet, "/docs", "")))
	require.Contains(t, page, `<a href="/">← Things &lt;&amp;&gt;</a>`)
	require.Contains(t, page, `<a href="/docs/ask#/Ask/POSTthings"><code>POST /v1/things</code></a>`)
	group := string(apitest.ReadBody(t, apitest.Send(h, http.MethodGet, "/docs/ask", "")))
	require.Contains(t, group, `data-group="Ask"`)
	require.Contains(t, group, `<a href="/docs/ask" aria-current="page">Ask</a>`)
	require.Equal(t, "gzip", apitest.Send(h, http.MethodGet, "/docs/swagger-ui.css", "").Header.Get("Content-Encoding"))
	apitest.RequireProblem(t, apitest.Send(h, http.MethodGet, "/docs/nothing", ""), http.StatusNotFound)

	seen := make(map[string]bool)
	for _, k := range web.Kinds() {
		path, id, _ := strings.Cut(k.Type(), "#")
		require.Equal(t, "/docs", path)
		require.Contains(t, page, `id="`+id+`"`)
		require.False(t, seen[id] || k.Do == "", "%+v", k)
		seen[id] = true
		p := web.NewProblem(k.Status, "detail")
		if k.Title != "" {
			p.OfKind(k)
		}
		require.Equal(t, k.Type(), p.Type)
		require.Equal(t, cmp.Or(k.Title, http.StatusText(k.Status)), p.Title)
	}
	require.Equal(t, "about:blank", web.NewProblem(http.StatusTeapot, "detail").Type)
}

// A tag changes with the content only.
func TestTagIsOfTheContent(t *testing.T) {
	t.Parallel()
	control, tag := api.CacheHeaders(1, "a")
	_, same := api.CacheHeaders(1, "a")
	_, other := api.CacheHeaders(1, "b")
	require.Equal(t, "no-cache", control)
	require.Equal(t, tag, same)
	require.NotEqual(t, tag, other)
	w := httptest.NewRecorder()
	(&api.RawOutput{ContentType: "text/csv", CacheControl: control, ETag: tag, Vary: []string{"Accept"}, Body: []byte("a,b\n")}).Write(w)
	require.Equal(t, http.Header{"Content-Type": {"text/csv"}, "Cache-Control": {"no-cache"}, "Etag": {tag}, "Vary": {"Accept"}}, w.Header())
	require.Equal(t, "a,b\n", w.Body.String())
}
