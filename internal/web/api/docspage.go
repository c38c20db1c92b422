package api

import (
	"bytes"
	"cmp"
	"fmt"
	"html"
	"net/http"
	"strconv"

	"tallyroll/internal/web"
)

// markup is unfinished HTML. Formats are constants of this file; every value put into a
// format is escaped, as text or as a quoted attribute. A template would do the same, but
// the linker keeps every exported method in a program that uses templates: 9 MB of query.
type markup struct{ bytes.Buffer }

// html writes the page.
func (p docsPage) html() []byte {
	m := new(markup)
	m.add(`<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>%s: the API</title>
<style>`, p.Title)
	m.WriteString(docsCSS)
	m.add(`</style>
</head>
<body>
<header>
<h1>%s <small>%s</small></h1>
<p>%s</p>
`, p.Title, p.Version, p.About)
	if p.Tokens {
		m.add("<p>Every call under <code>/v1</code> needs the header <code>Authorization: Bearer</code> with a token.</p>\n")
	}
	m.add(`<p>The same for machines: <a href="/openapi.json">openapi.json</a> (OpenAPI 3.1) and ` +
		`<a href="/openapi-3.0.json">openapi-3.0.json</a>.</p>
</header>
<nav aria-label="Operations"><ul>
`)
	for _, op := range p.Operations {
		m.add("<li><a href=\"#%s\"><code>%s %s</code></a> %s</li>\n", op.ID, op.Method, op.Path, op.Summary)
	}
	m.add("</ul></nav>\n<main>\n")
	for _, op := range p.Operations {
		m.operation(op)
	}
	m.kinds()
	m.add("</main>\n</body>\n</html>\n")
	return m.Bytes()
}

func (m *markup) operation(op docsOperation) {
	m.add("<section aria-labelledby=\"%s\">\n<h2 id=\"%s\"><code>%s %s</code></h2>\n<p>%s</p>\n", op.ID, op.ID, op.Method, op.Path, op.About)
	if len(op.Curl) > 0 {
		m.add("<pre>")
		for _, line := range op.Curl {
			m.add("%s\n", line)
		}
		m.add("</pre>\n")
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
