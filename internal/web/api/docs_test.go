package api

import (
	"cmp"
	"net/http"
	"strings"
	"testing"

	"tallyroll/internal/web"
)

// The type of every problem leads to where the page explains it.
func TestProblemTypes(t *testing.T) {
	t.Parallel()
	rows := kindRows()
	seen := make(map[string]bool)
	for _, k := range web.Kinds() {
		path, id, _ := strings.Cut(k.Type(), "#")
		if path != "/docs" || !strings.Contains(rows, `id="`+id+`"`) || k.Do == "" || seen[id] {
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
