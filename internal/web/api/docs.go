package api

import (
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"path"
	"slices"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/swaggest/swgui/v5/static"

	"tallyroll/internal/web"
)

//go:embed docs.html
var docsHTML string

var docsTemplate = template.Must(template.New("docs.html").
	Funcs(template.FuncMap{"statusText": http.StatusText}).
	Parse(docsHTML))

//go:embed docs
var docsFiles embed.FS

// docsPolicy allows the page the embedded scripts, styles and pictures of Swagger UI, and calls to the API.
const docsPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' " +
	"data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// RoutePages adds the document, and the pages that show it. All operations must have been described.
func (a *API) RoutePages() {
	a.mux.Handle("GET /openapi.json", serveOpenAPI(a.OpenAPI()))
	a.routeDocs()
}

// serveOpenAPI serves the document, encoded at the first request: few are made, and it takes longer than the
// rest of the start.
func serveOpenAPI(api *huma.OpenAPI) http.Handler {
	document := sync.OnceValue(func() []byte {
		var out bytes.Buffer
		text, err := api.MarshalJSON()
		if err == nil {
			err = json.Indent(&out, text, "", "  ")
		}
		if err != nil {
			panic(fmt.Errorf("encode the OpenAPI document: %w", err)) // our own types always encode
		}
		return out.Bytes()
	})
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(document()) // the client may be gone
	})
}

// docsPage is what docs.html shows: the operations of a group, or an index of the groups. A document without
// groups has one page for both.
type docsPage struct {
	Title Title
	Group string // empty on the index
	api   *huma.OpenAPI
}

func (p docsPage) ShowsOperations() bool { return p.Group != "" || len(p.Title.Groups) == 0 }

func (docsPage) Problems() []*web.Kind { return web.Kinds() }

// Operations returns a group's operations, by path.
func (p docsPage) Operations(group string) (out []*huma.Operation) {
	for _, path := range slices.Sorted(maps.Keys(p.api.Paths)) {
		item := p.api.Paths[path]
		for _, op := range []*huma.Operation{item.Get, item.Post, item.Put, item.Patch, item.Delete, item.Options} {
			if op != nil && slices.Contains(op.Tags, group) {
				out = append(out, op)
			}
		}
	}
	return out
}

func (a *API) routeDocs() {
	a.mux.HandleFunc("GET /docs/{file}", serveDocsFile)
	a.routeDocsPage("/docs", "")
	for _, g := range a.title.Groups {
		a.routeDocsPage(g.Page(), g.Name)
	}
}

func (a *API) routeDocsPage(path, group string) {
	var page bytes.Buffer
	if err := docsTemplate.Execute(&page, docsPage{a.title, group, a.OpenAPI()}); err != nil {
		panic(fmt.Errorf("write the page %s: %w", path, err)) // our own template always executes
	}
	a.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Security-Policy", docsPolicy)
		sendDocs(w, "docs.html", page.Bytes())
	})
}

// serveDocsFile serves a file of the page: ours, or one of Swagger UI, packed in its module.
func serveDocsFile(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("file")
	data, err := docsFiles.ReadFile("docs/" + name)
	if err != nil {
		data, err = static.FS.ReadFile(name + ".gz")
		if err != nil {
			web.NoRoute(w, r, http.NotFoundHandler())
			return
		}
		w.Header().Set("Content-Encoding", "gzip") // every browser takes it
	}
	sendDocs(w, name, data)
}

var docsTypes = map[string]string{".html": "text/html", ".css": "text/css", ".js": "text/javascript"}

func sendDocs(w http.ResponseWriter, name string, data []byte) {
	w.Header().Set("Content-Type", docsTypes[path.Ext(name)]+"; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "max-age=3600")
	_, _ = w.Write(data) // the client may be gone
}
