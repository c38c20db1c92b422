package api

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/web"
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

// serveDocs renders the document for the address in the client's request, so that people can paste
// the example commands. The page loads nothing from anywhere.
func serveDocs(api *huma.OpenAPI, tokens bool, now func() time.Time) http.Handler {
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
	if web.UnderV1(a) != web.UnderV1(b) {
		if web.UnderV1(a) {
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
	if paths, ok := op.Metadata[tryoutKey].(Tryouts); ok {
		for _, path := range paths(now) {
			out.Curl = append(out.Curl, curl(op.Method, base+path, body, tokens && web.UnderV1(op.Path)))
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
		if contentType != web.ProblemType { // the example says it all
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

// docsFields lists the fields of a schema, nested ones by their path; of a choice, those of the first.
func docsFields(registry huma.Registry, s *huma.Schema, prefix string) []docsField {
	s = dereferenced(registry, s)
	if len(s.OneOf) > 0 {
		s = dereferenced(registry, s.OneOf[0])
	}
	var out []docsField
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		p := s.Properties[name]
		out = append(out, docsField{
			Name: prefix + name, Type: docsType(registry, p), About: p.Description, Example: firstExample(p), Required: slices.Contains(s.Required, name),
		})
		if p.Items != nil && len(dereferenced(registry, p.Items).Properties) > 0 {
			out = append(out, docsFields(registry, p.Items, prefix+name+"[].")...)
		}
	}
	return out
}

func docsType(registry huma.Registry, s *huma.Schema) string {
	s = dereferenced(registry, s)
	switch {
	case len(s.OneOf) > 0:
		var types []string
		for _, one := range s.OneOf {
			types = append(types, docsType(registry, one))
		}
		return strings.Join(types, " or ")
	case s.Items != nil:
		return "list of " + docsType(registry, s.Items)
	case s.Format == "date-time":
		return "time"
	}
	return s.Type
}

func dereferenced(registry huma.Registry, s *huma.Schema) *huma.Schema {
	for s.Ref != "" {
		s = registry.SchemaFromRef(s.Ref)
	}
	return s
}

func firstExample(s *huma.Schema) string {
	if len(s.Examples) == 0 {
		return ""
	}
	if text, ok := s.Examples[0].(string); ok {
		return text
	}
	return Compact(s.Examples[0])
}

func indented(v any) string {
	var out bytes.Buffer
	if err := json.Indent(&out, []byte(Compact(v)), "", "  "); err != nil {
		panic(fmt.Errorf("indent an example: %w", err)) // json.Marshal has just written it
	}
	return out.String()
}

// Compact is the JSON of a value of our own.
func Compact(v any) string {
	out, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Errorf("encode an example: %w", err)) // our own types always encode
	}
	return string(out)
}
