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
	page := docsPage{Title: hostile, Version: hostile, About: hostile, Home: hostile, Groups: []docsGroup{{Name: strings.ToLower(hostile), About: hostile, Guides: []Guide{{Name: hostile, Title: hostile}}, Operations: []docsOperation{{
		ID: hostile, Method: hostile, Path: hostile, Summary: hostile, About: hostile, Curl: []string{hostile}, Try: hostile, TryBody: hostile,
		Parameters: []docsField{field}, Fields: []docsField{field},
		Responses: []docsResponse{{Status: hostile, About: hostile, Example: hostile, Fields: []docsField{field}}},
	}}}}}
	written := strings.Replace(string(page.html()), "<script>"+docsJS+"</script>", "", 1)
	if strings.Contains(written, "<script") || strings.Contains(written, `"">`) || strings.Contains(written, "%!") {
		t.Errorf("%s", written)
	}
	// 2 of the title, 2 of what it is about, 2 of the way back, 4 of the group's name, 1 of what it is about, 2 of the guide,
	// 4 of the list, 5 of the heading, a line to paste, 5 to try, 3 fields with 4, and 3 of the answer.
	if got, want := strings.Count(written, html.EscapeString(hostile)), 2+2+2+4+1+2+4+5+1+5+3*4+3; got != want {
		t.Errorf("%d texts on the page, want %d: %s", got, want, written)
	}
}

// A guide leads to the other guides' pages here, shows the paths of what is not here, and brings no markup of its own.
func TestGuides(t *testing.T) {
	t.Parallel()
	const text = "# A `guide` & more\n\n<!-- prints: x -->\nSome **bold `code`** and <script>.\n\n- one [two](limits.md#a-b)\n- [`f`](../deploy/x\"y.yml)\n" +
		"- [out](https://example.org/), [bad](javascript:alert(1))\n\n| a | b |\n| --- | --- |\n| `x\\|y` | 1 |\n\n## A guide, again\n![picture](a.png)\n"
	title := Title{Name: "T", Guides: []Guide{{Name: "limits", Title: "Limits"}}}
	page := string(guidePage(title, Guide{Name: "g", Title: "<G>", Text: text}))
	for _, want := range []string{
		"<title>T: &lt;G&gt;</title>",
		`<h1 id="a-guide--more">A <code>guide</code> &amp; more</h1>`,
		"Some <strong>bold <code>code</code></strong> and ",
		`<a href="/docs/limits#a-b" rel="noreferrer">two</a>`,
		`<span title="deploy/x&quot;y.yml, in the repository"><code>f</code></span>`,
		`<a href="https://example.org/" rel="noreferrer">out</a>`,
		`<div class="scroll"><table>`, "<td><code>x|y</code></td>", "</table></div>",
		`<h2 id="a-guide-again">`, "<p>picture</p>",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("%s is not in\n%s", want, page)
		}
	}
	for _, bad := range []string{"<script", "href=\"javascript", "prints: x", "<img"} {
		if strings.Contains(page, bad) {
			t.Errorf("%s is in\n%s", bad, page)
		}
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
