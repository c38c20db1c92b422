package query

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/gate"
	"tallyroll/internal/web/api"
	"tallyroll/tests/asking"
)

// document is the part of an OpenAPI document that the test looks at.
type document struct {
	OpenAPI string
	Info    struct{ Title, Description string }
	Paths   map[string]map[string]struct {
		OperationID, Summary, Description string
		Tags                              []string
		Security                          []map[string][]string
		Parameters                        []struct {
			Name, Description string
			Required          bool
			Schema            schema
		}
		RequestBody *struct{ Content map[string]media }
		Responses   map[string]struct {
			Description string
			Content     map[string]media
		}
	}
	Components struct{ Schemas map[string]schema }
}

type media struct {
	Schema  schema
	Example any
}

type schema struct {
	Ref         string `json:"$ref"`
	Type        any
	Description string
	Examples    []any
	Properties  map[string]schema
	Items       *schema
	OneOf       []schema
}

func TestOpenAPI(t *testing.T) {
	t.Parallel()
	for _, tokens := range []string{"", "secret"} {
		s, _ := onFake(t)
		if tokens != "" {
			useTokens(t, s, tokens)
		}
		var doc document
		data := asking.ReadAll(t, asking.Ask(s.handler(), http.MethodGet, "/openapi.json", ""))
		require.NoError(t, json.Unmarshal(data, &doc))
		var bounds []string // nothing else may be null
		for name, s := range doc.Components.Schemas {
			for field, is := range s.Properties {
				if types, several := is.Type.([]any); several && slices.Contains(types, any("null")) {
					bounds = append(bounds, name+"."+field)
				}
			}
		}
		slices.Sort(bounds)
		if want := []string{"Change.as_of", "Change.lower", "Change.total", "Change.upper", "Standing.as_of", "Standing.lower", "Standing.total", "Standing.upper", "SumGroup.upper", "TopAnswer.floor", "TopTotal.upper", "Total.upper", "Unique.upper"}; !slices.Equal(bounds, want) || strings.Count(string(data), `"null"`) != len(want) {
			t.Errorf("%q may be null, and %d in all; want %q", bounds, strings.Count(string(data), `"null"`), want)
		}
		if !strings.HasPrefix(doc.OpenAPI, "3.1.") || doc.Info.Title == "" || doc.Info.Description == "" {
			t.Errorf("OpenAPI %s, %+v", doc.OpenAPI, doc.Info)
		}
		for _, want := range []string{
			"/v1/total", "/v1/uniques", "/v1/series", "/v1/top", "/v1/counters", "/v1/about", "/v1/export", "/v1/live", "/v1/streams", "/v1/rejects", "/probe",
			"/v1/take", "/v1/limit", "/v1/limits", "/v1/authz", "/v1/authz/{limit}", "/healthz", "/readyz", "/readyz/answers", "/readyz/takes", "/metrics",
		} {
			if doc.Paths[want] == nil {
				t.Errorf("%s is missing", want)
			}
		}
		for path, item := range doc.Paths {
			for method, op := range item {
				at := method + " " + path
				if len(op.Tags) != 1 {
					t.Errorf("%s has the tags %q, want one", at, op.Tags)
				}
				if op.OperationID == "" || op.Summary == "" || op.Description == "" {
					t.Errorf("%s is not described", at)
				}
				for _, p := range op.Parameters {
					if p.Description == "" || len(p.Schema.Examples) == 0 {
						t.Errorf("%s: parameter %s has no description or example", at, p.Name)
					}
				}
				if op.RequestBody != nil && op.RequestBody.Content["application/json"].Example == nil {
					t.Errorf("%s: the body has no example", at)
				}
				for status, r := range op.Responses {
					if r.Description == "" {
						t.Errorf("%s: %s is not described", at, status)
					}
					for contentType, m := range r.Content {
						if m.Example == nil {
							t.Errorf("%s: %s as %s has no example", at, status, contentType)
						}
					}
				}
				if answersFromRedis(path) {
					success := "200"
					if method == "delete" && path == gate.LimitPath {
						success = "204"
					}
					for _, status := range []string{success, "400", "413", "500", "503"} {
						if _, ok := op.Responses[status]; !ok {
							t.Errorf("%s: %s is missing", at, status)
						}
					}
					_, unauthorized := op.Responses["401"]
					if (tokens != "") != unauthorized || (tokens != "") != (len(op.Security) > 0) {
						t.Errorf("%s: with tokens %q: 401 %v, security %v", at, tokens, unauthorized, op.Security)
					}
				}
				for _, never := range []string{"422", "default"} {
					if _, ok := op.Responses[never]; ok {
						t.Errorf("%s: %s is described and never sent", at, never)
					}
				}
			}
		}
		for name, s := range doc.Components.Schemas {
			for field, p := range s.Properties {
				if p.Description == "" {
					t.Errorf("%s.%s has no description", name, field)
				}
				if len(p.Examples) == 0 && p.Ref == "" && (p.Items == nil || p.Items.Ref == "") {
					t.Errorf("%s.%s has no example", name, field)
				}
			}
		}
	}
}

// The page leads to nothing that is elsewhere, and each of its files is there.
func TestDocs(t *testing.T) {
	t.Parallel()
	s, _ := onFake(t)
	h := s.handler()
	resp := asking.Ask(h, http.MethodGet, "/docs", "")
	page := string(asking.ReadAll(t, resp))
	const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	if got := resp.Header.Get("Content-Security-Policy"); resp.StatusCode != http.StatusOK || got != policy {
		t.Fatalf("status %d, policy %q", resp.StatusCode, got)
	}
	for _, want := range []string{`<a href="/">← Tallyroll</a>`, `href="/openapi.json"`, `<tr id="problem-not-found">`} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %s", want)
		}
	}
	types := map[string]string{"/docs": "text/html; charset=utf-8"}
	for _, m := range regexp.MustCompile(`(?:src|href)="([^"]+\.(js|css))"`).FindAllStringSubmatch(page, -1) {
		types[m[1]] = map[string]string{"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8"}[m[2]]
	}
	for target, want := range types {
		resp := asking.Ask(h, http.MethodGet, target, "")
		if got := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || got != want || resp.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: status %d, type %s", target, resp.StatusCode, got)
		}
	}
	if len(types) != 5 {
		t.Errorf("the page and its files are %v", types)
	}
	asking.Refused(t, asking.Ask(h, http.MethodGet, "/docs/nothing", ""), http.StatusNotFound)
}

// Every documented JSON example, and the body that is sent for it, is what its schema says.
func TestExamplesFollowTheirSchemas(t *testing.T) {
	t.Parallel()
	s, _ := onFake(t)
	mux := http.NewServeMux()
	doc := newAPI(mux, tokensOf(t, "x"))
	s.registerTotal(doc)
	s.registerSeries(doc)
	s.live.Register(doc)
	s.registerAbout(doc)
	s.gate.Register(doc, mux)
	s.status.Register(doc)
	registry := doc.OpenAPI().Components.Schemas
	checked := 0
	check := func(at string, content *huma.MediaType, mode huma.ValidateMode) {
		t.Helper()
		if content.Schema == nil || content.Example == nil {
			return
		}
		var example any
		require.NoError(t, json.Unmarshal(api.Encode(content.Example), &example))
		result := &huma.ValidateResult{}
		huma.Validate(registry, content.Schema, huma.NewPathBuffer(nil, 0), mode, example, result)
		for _, err := range result.Errors {
			t.Errorf("%s: %v", at, err)
		}
		checked++
	}
	for path, item := range doc.OpenAPI().Paths {
		for _, op := range []*huma.Operation{item.Get, item.Post, item.Delete} {
			if op == nil {
				continue
			}
			if op.RequestBody != nil {
				check(op.Method+" "+path, op.RequestBody.Content["application/json"], huma.ModeWriteToServer)
			}
			for status, response := range op.Responses {
				for contentType, content := range response.Content {
					if strings.HasSuffix(contentType, "json") {
						check(op.Method+" "+path+" "+status, content, huma.ModeReadFromServer)
					}
				}
			}
		}
	}
	if checked < 40 {
		t.Errorf("only %d examples were checked", checked)
	}
}
