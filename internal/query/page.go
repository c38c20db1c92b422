package query

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"

	"tallyroll/internal/web"
)

//go:embed page
var pageFiles embed.FS

const (
	// pagePolicy allows the page its own scripts, styles, pictures and calls, and nothing else.
	pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
		"base-uri 'none'; form-action 'none'; frame-ancestors "
	pageIndex = "index.html"
	// pageVersion stands in the index for the hash of all files. It is part of their paths, so browsers may
	// keep them for ever, and modules, which import each other by relative paths, are always of one build.
	pageVersion = "VERSION"
	// pagePreloads stands in the index for links to all modules that main.js imports. Without them, a browser
	// would find one after the other.
	pagePreloads = "PRELOADS"
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
	frames  FrameAncestors
}

// FrameAncestors are those whose pages may show the page in a frame; the zero value allows none.
type FrameAncestors struct{ sources []string }

func (f *FrameAncestors) UnmarshalText(text []byte) error {
	*f = FrameAncestors{}
	for source := range strings.SplitSeq(string(text), ",") {
		source = strings.TrimSpace(source)
		if source == "self" {
			f.sources = append(f.sources, "'self'")
			continue
		}
		var origins web.Origins
		err := origins.Name(source)
		if err == nil && strings.ContainsAny(source, ";'") { // the policy would have another directive
			err = errors.New("without ; and '")
		}
		if err != nil {
			return fmt.Errorf("self, or %w", err)
		}
		f.sources = append(f.sources, source)
	}
	return nil
}

// set tells browsers who may show the page: X-Frame-Options for old ones, which know no list of origins.
func (f FrameAncestors) set(h http.Header) {
	sources := cmp.Or(strings.Join(f.sources, " "), "'none'")
	h.Set("Content-Security-Policy", pagePolicy+sources)
	if option := map[string]string{"'none'": "DENY", "'self'": "SAMEORIGIN"}[sources]; option != "" {
		h.Set("X-Frame-Options", option)
	}
}

// newPage names the files' version by a sum of all of them, so that a browser never mixes files of two
// releases.
func newPage(frames FrameAncestors) *page {
	p := &page{files: make(map[string][]byte), frames: frames}
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
	var links strings.Builder
	for _, name := range withImports(p.files, "main.js")[1:] {
		fmt.Fprintf(&links, "<link rel=\"modulepreload\" href=\"page/%s/%s\">\n", pageVersion, name)
	}
	index := bytes.Replace(p.files[pageIndex], []byte(pagePreloads+"\n"), []byte(links.String()), 1)
	p.files[pageIndex] = bytes.ReplaceAll(index, []byte(pageVersion), []byte(p.version))
	return p
}

var imported = regexp.MustCompile(`from "\./([^"]+)"`)

// withImports returns the modules, and all that they import.
func withImports(files map[string][]byte, modules ...string) []string {
	for i := 0; i < len(modules); i++ {
		for _, m := range imported.FindAllSubmatch(files[modules[i]], -1) {
			if name := string(m[1]); !slices.Contains(modules, name) {
				modules = append(modules, name)
			}
		}
	}
	return modules
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
	h.Set("X-Content-Type-Options", "nosniff")
	if ext := path.Ext(name); ext != ".js" && ext != ".css" { // which are no documents: 7 KB for all of them
		p.frames.set(h)
		h.Set("Referrer-Policy", "no-referrer") // the address names counters
	}
	h.Set("Cache-Control", cacheControl)
	h.Set("ETag", `W/"`+p.version+`"`) // weak: the middleware compresses
	_, _ = w.Write(p.files[name])      // the client may be gone
}
