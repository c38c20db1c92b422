package query

import (
	"encoding/json"
	"html"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/gate"
	"tallyroll/internal/live"
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
		if err := json.Unmarshal(data, &doc); err != nil {
			t.Fatal(err)
		}
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

// What the documentation shows can be sent, and is answered.
func TestDocumentedRequests(t *testing.T) {
	t.Parallel()
	s, _ := onFake(t)
	watched(t, s)
	h := s.handler()
	eventuallyReady(t, h, http.StatusOK)
	mux := http.NewServeMux()
	doc := newAPI(mux, tokensOf(t, ""))
	s.registerTotal(doc)
	s.registerSeries(doc)
	s.live.Register(doc)
	s.registerTop(doc)
	s.registerCounters(doc)
	s.registerErase(doc)
	s.registerAbout(doc)
	s.registerExport(doc)
	s.gate.Register(doc, mux)
	s.registerProbe(doc)
	doc.DescribeStatus(statusPages(true)...)
	tried := 0
	for path, item := range doc.OpenAPI().Paths {
		for _, op := range []*huma.Operation{item.Get, item.Post, item.Delete} {
			if op == nil {
				continue
			}
			try, ok := op.Metadata["tryout"].(api.Tryouts)
			if !ok {
				t.Errorf("%s %s has nothing to try", op.Method, path)
				continue
			}
			for _, target := range try(asking.FakeNow) {
				body := ""
				if op.RequestBody != nil {
					body = api.Compact(op.RequestBody.Content["application/json"].Example)
				}
				method := op.Method
				if path == live.Path {
					method = http.MethodHead // it would not end otherwise
				}
				if resp := asking.Ask(h, method, target, body, "User-Agent", "curl"); resp.StatusCode/100 != 2 {
					t.Errorf("%s %s: status %d: %s", op.Method, target, resp.StatusCode, asking.ReadAll(t, resp))
				}
				tried++
			}
		}
	}
	if tried < 20 {
		t.Errorf("only %d requests were tried", tried)
	}
}

var fromElsewhere = regexp.MustCompile(`(?i)<script|<link|<img|<iframe|src=|@import|url\(|href="(https?:)?//`)

// ownOrShown is what the page may have: its one script, and text that people copy.
var ownOrShown = regexp.MustCompile(`(?s)<script>.*</script>\n</body>|<pre>.*?</pre>|<code>.*?</code>|href="https://`)

func TestDocs(t *testing.T) {
	t.Parallel()
	s, _ := onFake(t)
	h := s.handler()
	resp := asking.Ask(h, http.MethodGet, "/docs", "")
	page := string(asking.ReadAll(t, resp))
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != "text/html; charset=utf-8" {
		t.Fatalf("status %d, type %s", resp.StatusCode, resp.Header.Get("Content-Type"))
	}
	if found := fromElsewhere.FindString(ownOrShown.ReplaceAllString(page, "")); found != "" {
		t.Errorf("the page has %q", found)
	}
	if policy := resp.Header.Get("Content-Security-Policy"); !strings.Contains(policy, "default-src 'none'") {
		t.Errorf("policy %q", policy)
	}
	text := html.UnescapeString(page)
	at := 0
	for _, group := range []string{"Count", "Ask", "Limit", "Operate"} {
		next := strings.Index(page, `<h2 class="group" id="group-`+strings.ToLower(group)+`">`+group)
		if next <= at {
			t.Errorf("the group %s is missing, or too early", group)
		}
		at = next
	}
	pages := make(map[string]string) // of guides, each rendered once
	pageOf := func(path string) string {
		if _, there := pages[path]; !there {
			pages[path] = string(asking.ReadAll(t, asking.Ask(h, http.MethodGet, path, "")))
		}
		return pages[path]
	}
	for _, target := range regexp.MustCompile(`href="(/docs/[a-z]+)"`).FindAllStringSubmatch(page, -1) {
		resp := asking.Ask(h, http.MethodGet, target[1], "")
		guide := string(asking.ReadAll(t, resp))
		if resp.StatusCode != http.StatusOK || !strings.Contains(guide, "<h1") || strings.Contains(guide, "raw HTML omitted") || !strings.Contains(guide, `<a href="/docs">`) || fromElsewhere.MatchString(ownOrShown.ReplaceAllString(guide, "")) || !strings.Contains(resp.Header.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("%s: status %d, %v: %.300s", target[1], resp.StatusCode, resp.Header, guide)
		}
		for _, link := range regexp.MustCompile(`href="/docs/([a-z]+)#([^"]+)"`).FindAllStringSubmatch(guide, -1) {
			if !strings.Contains(pageOf("/docs/"+link[1]), ` id="`+link[2]+`"`) {
				t.Errorf("%s leads to %s, which is not in %s", target[1], link[2], link[1])
			}
		}
	}
	asking.Refused(t, asking.Ask(h, http.MethodGet, "/docs/nothing", ""), http.StatusNotFound)
	for _, want := range []string{
		`<a href="/">← Tallyroll</a>`, "Guide: Questions and how to ask them", `<form class="try" data-method="GET"`,
		"GET /v1/total", "POST /v1/total", "as_of", "totals[].lower", "prefers-color-scheme", "required",
		"curl -sS 'http://tallyroll.test/v1/total?key=api-1&window=24h'", `"points": [`, "unfinished_from", "openapi.json",
		`-d '{"keys":["api-1","/cart"],"windows":["1h","24h"]}' http://tallyroll.test/v1/total`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %s", want)
		}
	}
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
		if err := json.Unmarshal([]byte(api.Compact(content.Example)), &example); err != nil {
			t.Fatal(err)
		}
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
