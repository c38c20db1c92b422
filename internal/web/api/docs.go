package api

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"tallyroll/internal/web"
)

//go:embed docs.css
var docsCSS string

//go:embed docs.js
var docsJS string

// docsPage is the OpenAPI document as the page shows it.
type docsPage struct {
	Title   string
	Version string
	About   string
	Tokens  bool
	Home    string
	Groups  []docsGroup
}

type docsGroup struct {
	Name, About string
	Guides      []Guide
	Operations  []docsOperation
}

type docsOperation struct {
	ID, Method, Path, Summary, About string
	Parameters, Fields               []docsField
	Curl                             []string
	Try, TryBody                     string // a path to send from the page; empty if there is none
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

// hashed is a source of a policy: the text itself.
func hashed(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// serveDocs renders the document for the address in the client's request, so that people can paste
// the example commands. The page loads nothing from anywhere, and asks only the service itself.
func serveDocs(a *API, now func() time.Time) http.Handler {
	policy := "default-src 'none'; style-src " + hashed(docsCSS) + "; script-src " + hashed(docsJS) + "; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sendPage(w, newDocsPage(a, baseURL(r), now()).html(), policy)
	})
}

func sendPage(w http.ResponseWriter, page []byte, policy string) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", policy)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(page) // the client may be gone
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

func newDocsPage(a *API, base string, now time.Time) docsPage {
	api := a.OpenAPI()
	page := docsPage{Title: api.Info.Title, Version: api.Info.Version, About: api.Info.Description, Tokens: a.tokens, Home: a.title.Home}
	for _, g := range a.title.Groups {
		group := docsGroup{Name: g.Name, About: g.About}
		for _, name := range g.Guides {
			if i := slices.IndexFunc(a.title.Guides, func(g Guide) bool { return g.Name == name }); i >= 0 {
				group.Guides = append(group.Guides, a.title.Guides[i])
			}
		}
		page.Groups = append(page.Groups, group)
	}
	var ungrouped docsGroup
	for _, op := range a.inOrder() {
		group := &ungrouped
		if i := slices.IndexFunc(page.Groups, func(g docsGroup) bool { return slices.Contains(op.Tags, g.Name) }); i >= 0 {
			group = &page.Groups[i]
		}
		group.Operations = append(group.Operations, docsOf(api.Components.Schemas, op, a.tokens, base, now))
	}
	if len(ungrouped.Operations) > 0 {
		page.Groups = append(page.Groups, ungrouped)
	}
	return page
}

// inOrder lists the operations as they were described, and others after them.
func (a *API) inOrder() (out []*huma.Operation) {
	paths := a.OpenAPI().Paths
	for _, path := range slices.SortedFunc(maps.Keys(paths), pathsOfQuestionsFirst) {
		item := paths[path]
		for _, op := range []*huma.Operation{item.Get, item.Post, item.Delete} {
			if op != nil {
				out = append(out, op)
			}
		}
	}
	place := func(op *huma.Operation) int {
		if at, known := a.order[op.OperationID]; known {
			return at
		}
		return len(a.order) + 1
	}
	slices.SortStableFunc(out, func(x, y *huma.Operation) int { return cmp.Compare(place(x), place(y)) })
	return out
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
			if out.Try == "" && op.Method != http.MethodDelete { // nobody deletes by trying
				out.Try, out.TryBody = path, body
			}
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

// markup is unfinished HTML. Formats are constants of this file; every value put into a
// format is escaped, as text or as a quoted attribute. A template would do the same, but
// the linker keeps every exported method in a program that uses templates: 9 MB of query.
type markup struct{ bytes.Buffer }

// html writes the page.
func (p docsPage) html() []byte {
	m := new(markup)
	m.head(p.Title + ": the API")
	m.add("<header>\n")
	m.home(p.Home, p.Title)
	m.add("<h1>%s <small>%s</small></h1>\n<p>%s</p>\n", p.Title, p.Version, p.About)
	if p.Tokens {
		m.add("<p>Every call under <code>/v1</code> needs the header <code>Authorization: Bearer</code> with a token.</p>\n")
	}
	m.add(`<p>The same for machines: <a href="/openapi.json">openapi.json</a> (OpenAPI 3.1).</p>
</header>
<nav aria-label="Operations">
`)
	for _, g := range p.Groups {
		m.add("<div>\n")
		if g.Name != "" {
			m.add("<h2><a href=\"#group-%s\">%s</a></h2>\n", strings.ToLower(g.Name), g.Name)
		}
		m.add("<ul>\n")
		for _, guide := range g.Guides {
			m.add("<li><a href=\"/docs/%s\">Guide: %s</a></li>\n", guide.Name, guide.Title)
		}
		for _, op := range g.Operations {
			m.add("<li><a href=\"#%s\"><code>%s %s</code></a> %s</li>\n", op.ID, op.Method, op.Path, op.Summary)
		}
		m.add("</ul>\n</div>\n")
	}
	m.add("</nav>\n<main>\n")
	for _, g := range p.Groups {
		if g.Name != "" {
			m.add("<h2 class=\"group\" id=\"group-%s\">%s</h2>\n<p>%s</p>\n", strings.ToLower(g.Name), g.Name, g.About)
		}
		for _, op := range g.Operations {
			m.operation(op, p.Home)
		}
	}
	m.kinds()
	m.add("</main>\n<script>")
	m.WriteString(docsJS)
	m.add("</script>\n</body>\n</html>\n")
	return m.Bytes()
}

// head begins a page.
func (m *markup) head(title string) {
	m.add(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>%s</title>
<style>`, title)
	m.WriteString(docsCSS)
	m.add("</style>\n</head>\n<body>\n")
}

// home is the way back to the service's page.
func (m *markup) home(address, name string) {
	if address != "" {
		m.add("<p><a href=\"%s\">← %s</a></p>\n", address, name)
	}
}

// try is what the page itself sends, with the token that it has kept. The script shows it.
func (m *markup) try(op docsOperation, home string) {
	m.add("<form class=\"try\" data-method=\"%s\" data-home=\"%s\" hidden>\n<label>Try it: <code>%s</code> <input name=\"path\" value=\"%s\" spellcheck=\"false\" autocomplete=\"off\"></label>\n", op.Method, home, op.Method, op.Try)
	if op.TryBody != "" {
		m.add("<label>Body <textarea name=\"body\" rows=\"2\" spellcheck=\"false\">%s</textarea></label>\n", op.TryBody)
	}
	m.add("<button>Send</button>\n<output></output>\n</form>\n")
}

func (m *markup) operation(op docsOperation, home string) {
	m.add("<section aria-labelledby=\"%s\">\n<h2 id=\"%s\"><code>%s %s</code></h2>\n<p>%s</p>\n", op.ID, op.ID, op.Method, op.Path, op.About)
	if len(op.Curl) > 0 {
		m.add("<pre>")
		for _, line := range op.Curl {
			m.add("%s\n", line)
		}
		m.add("</pre>\n")
	}
	if op.Try != "" {
		m.try(op, home)
	}
	m.fields("<h3>Parameters</h3>\n", op.Parameters)
	m.fields("<h3>Body (JSON)</h3>\n", op.Fields)
	m.add("<h3>Answers</h3>\n")
	for _, r := range op.Responses {
		open := "<details>"
		if r.Status == "200" {
			open = "<details open>"
		}
		m.WriteString(open)
		m.add("<summary><code>%s</code> %s</summary>\n", r.Status, r.About)
		if r.Example != "" {
			m.add("<pre>%s</pre>\n", r.Example)
		}
		m.fields("", r.Fields)
		m.add("</details>\n")
	}
	m.add("</section>\n")
}

// fields writes a table below its heading, or nothing if there are none.
func (m *markup) fields(heading string, fields []docsField) {
	if len(fields) == 0 {
		return
	}
	m.WriteString(heading)
	m.add(`<div class="scroll"><table>
<thead><tr><th scope="col">Name</th><th scope="col">Type</th><th scope="col">Meaning</th><th scope="col">Example</th></tr></thead>
<tbody>
`)
	for _, f := range fields {
		m.add("<tr><td><code>%s</code>", f.Name)
		if f.Required {
			m.add(` <span class="muted">required</span>`)
		}
		m.add("</td><td>%s</td><td>%s</td><td>", f.Type, f.About)
		if f.Example != "" {
			m.add("<code>%s</code>", f.Example)
		}
		m.add("</td></tr>\n")
	}
	m.add("</tbody></table></div>\n")
}

// kinds lists the kinds of problems where their types lead.
func (m *markup) kinds() {
	m.add(`<section aria-labelledby="problems">
<h2 id="problems">Problems</h2>
<p>The field <code>type</code> of a problem is <code>/docs#problem-</code> and one of these names. Names stay; the wording of <code>detail</code> may change.</p>
<div class="scroll"><table>
<thead><tr><th scope="col">Name</th><th scope="col">Status</th><th scope="col">What to do</th></tr></thead>
<tbody>
`)
	for _, k := range web.Kinds() {
		m.add("<tr id=\"problem-%s\"><td><code>%s</code></td><td><code>%s</code> %s</td><td>%s</td></tr>\n",
			k.Name, k.Name, strconv.Itoa(k.Status), cmp.Or(k.Title, http.StatusText(k.Status)), k.Do)
	}
	m.add("</tbody></table></div>\n</section>\n")
}

func (m *markup) add(format string, values ...string) {
	args := make([]any, len(values))
	for i, v := range values {
		args[i] = html.EscapeString(v)
	}
	fmt.Fprintf(m, format, args...)
}
