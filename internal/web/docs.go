package web

import (
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"time"

	"github.com/danielgtaylor/huma/v2"
)

//go:embed docs.css
var docsCSS string

// docsPage is the OpenAPI document as the page shows it.
type docsPage struct {
	Title      string
	Version    string
	About      string
	Tokens     bool
	Operations []docsOperation
}

type docsOperation struct {
	ID, Method, Path, Summary, About string
	Parameters, Fields               []docsField
	Curl                             []string
	Responses                        []docsResponse
}

type docsField struct {
	Name, Type, About, Example string
	Required                   bool
}

type docsResponse struct {
	Status, About, Example string
	Fields                 []docsField
}

// ServeDocs renders the document for the address in the client's request, so that people can paste
// the example commands. The page loads nothing from anywhere.
func ServeDocs(api *huma.OpenAPI, tokens bool, now func() time.Time) http.Handler {
	sum := sha256.Sum256([]byte(docsCSS))
	policy := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page := newDocsPage(api, tokens, baseURL(r), now()).html()
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", policy)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(page) // the client may be gone
	})
}

var plainHost = regexp.MustCompile(`^[A-Za-z0-9.:\[\]-]+$`)

// baseURL is the address of the service as the client wrote it. A Host that
// would need quotes in a shell is not repeated.
func baseURL(r *http.Request) string {
	host := r.Host
	if !plainHost.MatchString(host) {
		host = "localhost:8080"
	}
	if r.TLS != nil {
		return "https://" + host
	}
	return "http://" + host
}

func newDocsPage(api *huma.OpenAPI, tokens bool, base string, now time.Time) docsPage {
	page := docsPage{
		Title: api.Info.Title, Version: api.Info.Version, About: api.Info.Description, Tokens: tokens,
	}
	for _, path := range slices.SortedFunc(maps.Keys(api.Paths), pathsOfQuestionsFirst) {
		item := api.Paths[path]
		for _, op := range []*huma.Operation{item.Get, item.Post, item.Delete} {
			if op != nil {
				page.Operations = append(page.Operations, docsOf(api.Components.Schemas, op, tokens, base, now))
			}
		}
	}
	return page
}

// pathsOfQuestionsFirst puts /v1 before the pages about the process.
func pathsOfQuestionsFirst(a, b string) int {
	if UnderV1(a) != UnderV1(b) {
		if UnderV1(a) {
			return -1
		}
		return 1
	}
	return cmp.Compare(a, b)
}

func docsOf(registry huma.Registry, op *huma.Operation, tokens bool, base string, now time.Time) docsOperation {
	out := docsOperation{ID: op.OperationID, Method: op.Method, Path: op.Path, Summary: op.Summary, About: op.Description}
	for _, p := range op.Parameters {
		out.Parameters = append(out.Parameters, docsField{
			Name: p.Name, Type: docsType(registry, p.Schema), About: p.Description, Example: firstExample(p.Schema), Required: p.Required,
		})
	}
	body := ""
	if op.RequestBody != nil {
		content := op.RequestBody.Content["application/json"]
		out.Fields = docsFields(registry, content.Schema, "")
		body = Compact(content.Example)
	}
	if paths, ok := op.Metadata[TryoutKey].(Tryouts); ok {
		for _, path := range paths(now) {
			out.Curl = append(out.Curl, curl(op.Method, base+path, body, tokens && UnderV1(op.Path)))
		}
	}
	for _, status := range slices.Sorted(maps.Keys(op.Responses)) {
		response := op.Responses[status]
		d := docsResponse{Status: status, About: response.Description}
		if len(response.Content) == 0 {
			out.Responses = append(out.Responses, d)
			continue
		}
		contentType, content := shown(response.Content)
		if text, ok := content.Example.(string); ok {
			d.Example = text
		} else {
			d.Example = indented(content.Example)
		}
		if contentType != ProblemType { // the example says it all
			d.Fields = docsFields(registry, content.Schema, "")
		}
		out.Responses = append(out.Responses, d)
	}
	return out
}

// shown picks the form of an answer that the page shows: JSON, if the answer has that form.
func shown(content map[string]*huma.MediaType) (contentType string, form *huma.MediaType) {
	if form, ok := content["application/json"]; ok {
		return "application/json", form
	}
	contentType = slices.Min(slices.Collect(maps.Keys(content)))
	return contentType, content[contentType]
}

// curl is a line for a shell. Examples hold no single quotes.
func curl(method, address, body string, token bool) string {
	line := "curl -sS"
	if method == http.MethodDelete {
		line += " -X DELETE"
	}
	if token {
		line += ` -H "Authorization: Bearer $TOKEN"`
	}
	if body != "" {
		line += " -H 'Content-Type: application/json' -d '" + body + "'"
	}
	if u, err := url.Parse(address); err == nil && u.RawQuery == "" {
		return line + " " + address
	}
	return line + " '" + address + "'" // & and ? mean something to a shell
}
