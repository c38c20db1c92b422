package api

import (
	"cmp"
	"html"
	"net/http"
	"strings"
	"testing"

	"tallyroll/internal/web"
)

// Whatever the document says is text on the page, wherever it stands.
func TestDocsPageEscapes(t *testing.T) {
	t.Parallel()
	const hostile = `"><script>alert('1')</script>&%s`
	field := docsField{hostile, hostile, hostile, hostile, true}
	page := docsPage{Title: hostile, Version: hostile, About: hostile, Operations: []docsOperation{{
		ID: hostile, Method: hostile, Path: hostile, Summary: hostile, About: hostile, Curl: []string{hostile},
		Parameters: []docsField{field}, Fields: []docsField{field},
		Responses: []docsResponse{{Status: hostile, About: hostile, Example: hostile, Fields: []docsField{field}}},
	}}}
	written := string(page.html())
	if strings.Contains(written, "<script") || strings.Contains(written, `"">`) || strings.Contains(written, "%!") {
		t.Errorf("%s", written)
	}
	// 2 of the title, 2 of what it is about, 4 of the list, 5 of the heading, a line to try, 3 fields with 4, and 3 of the answer.
	if got, want := strings.Count(written, html.EscapeString(hostile)), 2+2+4+5+1+3*4+3; got != want {
		t.Errorf("%d texts on the page, want %d: %s", got, want, written)
	}
}

// The type of every problem leads to where the page explains it.
func TestProblemTypes(t *testing.T) {
	t.Parallel()
	page := string(docsPage{}.html())
	seen := make(map[string]bool)
	for _, k := range web.Kinds() {
		path, id, _ := strings.Cut(k.Type(), "#")
		if path != "/docs" || !strings.Contains(page, `id="`+id+`"`) || k.Do == "" || seen[id] {
			t.Errorf("%s of %+v leads nowhere", k.Type(), k)
		}
		seen[id] = true
		p := web.NewProblem(k.Status, "detail")
		if k.Title != "" {
			p.OfKind(k)
		}
		if p.Type != k.Type() || p.Title != cmp.Or(k.Title, http.StatusText(k.Status)) {
			t.Errorf("%+v, want %s", p, k.Type())
		}
	}
	if p := web.NewProblem(http.StatusTeapot, "detail"); p.Type != "about:blank" {
		t.Errorf("%+v", p)
	}
}
