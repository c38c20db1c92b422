package query

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"

	"tallyroll/internal/web"
)

//go:embed page
var pageFiles embed.FS

const (
	// pagePolicy allows the page its own scripts, styles, pictures and calls, and nothing else.
	pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	pageIndex = "index.html"
	// pageVersion stands in the index for the hash of all files. It is part of their paths, so browsers may
	// keep them for ever, and modules, which import each other by relative paths, are always of one build.
	pageVersion = "VERSION"
)

var pageTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

type page struct {
	files   map[string][]byte
	version string
}

// newPage names the files' version by a sum of all of them, so that a browser never mixes files of two
// releases.
func newPage() *page {
	p := &page{files: make(map[string][]byte)}
	sum := sha256.New()
	entries, err := pageFiles.ReadDir("page")
	for _, entry := range entries {
		data, errRead := pageFiles.ReadFile("page/" + entry.Name())
		err = errors.Join(err, errRead)
		fmt.Fprintf(sum, "%s %d\n%s", entry.Name(), len(data), data)
		p.files[entry.Name()] = data
	}
	if err != nil {
		panic(fmt.Errorf("read the embedded page: %w", err)) // the build has put it there
	}
	p.version = hex.EncodeToString(sum.Sum(nil)[:8])
	p.files[pageIndex] = bytes.ReplaceAll(p.files[pageIndex], []byte(pageVersion), []byte(p.version))
	return p
}

func isPage(path string) bool { return path == "/" || strings.HasPrefix(path, "/page/") }

// register adds the page, which needs no token: it holds no counts, and asks for a token itself.
func (p *page) register(mux *http.ServeMux) {
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		p.serve(w, pageIndex, "no-cache")
	})
	mux.HandleFunc("GET /page/{version}/{file}", func(w http.ResponseWriter, r *http.Request) {
		name, keep := r.PathValue("file"), "public, max-age=31536000, immutable"
		if p.files[name] == nil || name == pageIndex {
			web.NewProblem(http.StatusNotFound, fmt.Sprintf("the page has no file %s", web.Excerpt(name))).Write(w)
			return
		}
		if r.PathValue("version") != p.version {
			keep = "no-store" // another build's page asks, during an upgrade
		}
		p.serve(w, name, keep)
	})
}

func (p *page) serve(w http.ResponseWriter, name, cacheControl string) {
	h := w.Header()
	h.Set("Content-Type", pageTypes[path.Ext(name)])
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer") // the address names counters
	h.Set("Cache-Control", cacheControl)
	h.Set("ETag", `W/"`+p.version+`"`) // weak: the middleware compresses
	_, _ = w.Write(p.files[name])      // the client may be gone
}
