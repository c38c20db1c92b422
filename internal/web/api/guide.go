package api

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"tallyroll/internal/web"
)

// serveGuides answers with a guide as a page. The pages load nothing at all.
func serveGuides(title Title) http.Handler {
	policy := "default-src 'none'; style-src " + hashed(docsCSS) + "; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i := slices.IndexFunc(title.Guides, func(g Guide) bool { return g.Name == r.PathValue("guide") })
		if i < 0 {
			web.NewProblem(http.StatusNotFound, fmt.Sprintf("there is no guide %s: /docs lists them", web.Excerpt(r.PathValue("guide")))).Write(w)
			return
		}
		sendPage(w, guidePage(title, title.Guides[i]), policy)
	})
}

func guidePage(title Title, guide Guide) []byte {
	m := &markup{}
	m.head(title.Name + ": " + guide.Title)
	m.home("/docs", title.Name+": the API")
	m.add("<main class=\"guide\">\n")
	(&guideWriter{markup: m, known: title.Guides}).write(guide.Text)
	m.add("</main>\n</body>\n</html>\n")
	return m.Bytes()
}

// guideWriter writes the part of Markdown that the pages of docs/ use: headings, paragraphs, lists, tables, code, and
// in text code, bold and links. Everything else is text.
type guideWriter struct {
	*markup
	known []Guide
	list  string // the open list's element, empty outside of one
}

var (
	heading  = regexp.MustCompile(`^(#{1,4}) (.*)$`)
	listItem = regexp.MustCompile(`^(-|\d+\.) (.*)$`)
	comment  = regexp.MustCompile(`(?s)<!--.*?-->\n?`)
	picture  = regexp.MustCompile(`!\[([^]]*)\]\([^)]*\)`)
	inline   = regexp.MustCompile("``(.+?)``|`([^`]+)`|\\*\\*(.+?)\\*\\*|\\[((?:[^]`]|`[^`]*`)+)\\]\\(([^)]+)\\)")
	notSlug  = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

func (g *guideWriter) write(text string) {
	lines := strings.Split(comment.ReplaceAllString(text, ""), "\n")
	for i := 0; i < len(lines); {
		i += g.block(lines[i:])
	}
	g.endList()
}

// block writes what begins at the first line, and returns how many lines that were.
func (g *guideWriter) block(lines []string) int {
	line := lines[0]
	item := listItem.FindStringSubmatch(line)
	switch {
	case strings.TrimSpace(line) == "":
		return 1
	case g.list != "" && strings.HasPrefix(line, "  "): // a further paragraph, or code, of an item
		n := run(lines, func(l string) bool {
			return strings.HasPrefix(l, "  ") && listItem.FindString(strings.TrimSpace(l)) == "" || l == line
		})
		g.WriteString("<p>")
		g.text(strings.Join(trimmed(lines[:n]), " "))
		g.WriteString("</p>\n")
		return n
	case item != nil:
		return g.item(lines, item)
	}
	g.endList()
	switch h := heading.FindStringSubmatch(line); {
	case h != nil:
		level := fmt.Sprint(len(h[1]))
		g.add("<h"+level+" id=\"%s\">", slug(h[2]))
		g.text(h[2])
		g.add("</h" + level + ">\n")
		return 1
	case strings.HasPrefix(line, "```"):
		n := 1 + run(lines[1:], func(l string) bool { return !strings.HasPrefix(l, "```") })
		g.add("<pre>%s</pre>\n", strings.Join(lines[1:n], "\n"))
		return n + 1
	case strings.HasPrefix(line, "    "):
		n := run(lines, func(l string) bool { return strings.HasPrefix(l, "    ") })
		g.add("<pre>%s</pre>\n", strings.ReplaceAll(strings.Join(lines[:n], "\n")[4:], "\n    ", "\n"))
		return n
	case strings.HasPrefix(line, "|"):
		n := run(lines, func(l string) bool { return strings.HasPrefix(l, "|") })
		g.table(lines[:n])
		return n
	}
	n := run(lines, func(l string) bool {
		return strings.TrimSpace(l) != "" && listItem.FindString(l) == "" && !strings.HasPrefix(l, "```") && !strings.HasPrefix(l, "|") && heading.FindString(l) == ""
	})
	g.WriteString("<p>")
	g.text(strings.Join(lines[:n], " "))
	g.WriteString("</p>\n")
	return n
}

// run is how many lines a block has: at least one.
func run(lines []string, within func(string) bool) int {
	n := slices.IndexFunc(lines, func(l string) bool { return !within(l) })
	if n < 0 {
		return len(lines)
	}
	return max(1, n)
}

func trimmed(lines []string) (out []string) {
	for _, l := range lines {
		out = append(out, strings.TrimSpace(l))
	}
	return out
}

func (g *guideWriter) item(lines, item []string) int {
	list := "ul"
	if item[1] != "-" {
		list = "ol"
	}
	if g.list != list {
		g.endList()
		g.list = list
		g.add("<" + list + ">\n")
	}
	n := 1 + runOn(lines[1:])
	g.WriteString("<li>")
	g.text(strings.Join(append([]string{item[2]}, trimmed(lines[1:n])...), " "))
	g.WriteString("\n")
	return n
}

// runOn is how many lines belong to the item that has begun.
func runOn(lines []string) int {
	n := slices.IndexFunc(lines, func(l string) bool { return !strings.HasPrefix(l, "  ") })
	if n < 0 {
		return len(lines)
	}
	return n
}

func (g *guideWriter) endList() {
	if g.list != "" {
		g.add("</" + g.list + ">\n")
		g.list = ""
	}
}

// table writes rows, of which the second only divides the head from the rest.
func (g *guideWriter) table(rows []string) {
	g.WriteString("<div class=\"scroll\"><table>\n")
	for i, row := range rows {
		if i == 1 {
			continue
		}
		cell := "td"
		if i == 0 {
			cell = "th"
		}
		g.WriteString("<tr>")
		for _, text := range cells(row) {
			g.add("<" + cell + ">")
			g.text(text)
			g.add("</" + cell + ">")
		}
		g.WriteString("</tr>\n")
	}
	g.WriteString("</table></div>\n")
}

// cells splits a row where a bar is neither escaped nor code.
func cells(row string) (out []string) {
	row = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(row), "|"), "|")
	cell, code := "", false
	for i := 0; i < len(row); i++ {
		switch {
		case row[i] == '\\' && i+1 < len(row) && row[i+1] == '|':
			cell += "|"
			i++
			continue
		case row[i] == '`':
			code = !code
		case row[i] == '|' && !code:
			out = append(out, strings.TrimSpace(cell))
			cell = ""
			continue
		}
		cell += row[i : i+1]
	}
	return append(out, strings.TrimSpace(cell))
}

// text writes text with what is marked in it.
func (g *guideWriter) text(text string) {
	text = picture.ReplaceAllString(text, "$1")
	for {
		at := inline.FindStringSubmatchIndex(text)
		if at == nil {
			g.add("%s", text)
			return
		}
		part := func(n int) string {
			if at[2*n] < 0 {
				return ""
			}
			return text[at[2*n]:at[2*n+1]]
		}
		g.add("%s", text[:at[0]])
		switch {
		case part(1)+part(2) != "":
			g.add("<code>%s</code>", strings.TrimSpace(part(1)+part(2)))
		case part(3) != "":
			g.WriteString("<strong>")
			g.text(part(3))
			g.WriteString("</strong>")
		default:
			g.link(part(4), part(5))
		}
		text = text[at[1]:]
	}
}

// link leads to another guide, or elsewhere. Files of the repository are not here: their path is shown.
func (g *guideWriter) link(text, target string) {
	file, anchor, _ := strings.Cut(target, "#")
	name := strings.TrimSuffix(file, ".md")
	switch {
	case file == "", strings.HasPrefix(target, "https://"):
	case slices.ContainsFunc(g.known, func(k Guide) bool { return k.Name == name }):
		target = "/docs/" + name
		if anchor != "" {
			target += "#" + anchor
		}
	default:
		g.add("<span title=\"%s, in the repository\">", strings.TrimPrefix(file, "../"))
		g.text(text)
		g.WriteString("</span>")
		return
	}
	g.add("<a href=\"%s\" rel=\"noreferrer\">", target)
	g.text(text)
	g.WriteString("</a>")
}

// slug is the anchor that a heading has on the usual sites of repositories.
func slug(heading string) string {
	return strings.ReplaceAll(notSlug.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}
