package api

import (
	"bytes"
	"cmp"
	"embed"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"path"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/swaggest/swgui/v5/static"

	"tallyroll/internal/web"
)

//go:embed docs.html
var docsHTML string

//go:embed docs
var docsFiles embed.FS

// docsPolicy allows the page the embedded scripts, styles and pictures of Swagger UI, and calls to the API.
const docsPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// RoutePages adds the document, and the page that shows it. All operations must have been described.
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

func (a *API) routeDocs() {
	home := ""
	if a.title.Home != "" {
		home = fmt.Sprintf(`<a href="%s">← %s</a>`, a.title.Home, html.EscapeString(a.title.Name))
	}
	page := strings.NewReplacer("TITLE", html.EscapeString(a.title.Name), "HOME", home, "KINDS", kindRows()).Replace(docsHTML)
	a.mux.HandleFunc("GET /docs", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Security-Policy", docsPolicy)
		sendDocs(w, "docs.html", []byte(page))
	})
	a.mux.HandleFunc("GET /docs/{file}", serveDocsFile)
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

func kindRows() string {
	var out strings.Builder
	for _, k := range web.Kinds() {
		fmt.Fprintf(&out, "<tr id=\"problem-%s\"><td><code>%[1]s</code></td><td>%d %s</td><td>%s</td></tr>\n",
			k.Name, k.Status, html.EscapeString(cmp.Or(k.Title, http.StatusText(k.Status))), html.EscapeString(k.Do))
	}
	return out.String()
}

var docsTypes = map[string]string{".html": "text/html", ".css": "text/css", ".js": "text/javascript"}

func sendDocs(w http.ResponseWriter, name string, data []byte) {
	w.Header().Set("Content-Type", docsTypes[path.Ext(name)]+"; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "max-age=3600")
	_, _ = w.Write(data) // the client may be gone
}
