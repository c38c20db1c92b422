package api

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	tables "github.com/yuin/goldmark/extension/ast"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"

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
	markdown := goldmark.New(
		goldmark.WithExtensions(extension.Table),
		goldmark.WithParserOptions(parser.WithAutoHeadingID(), parser.WithASTTransformers(util.Prioritized(guideNodes{title.Guides}, 0))),
		goldmark.WithRendererOptions(renderer.WithNodeRenderers(util.Prioritized(wideTables{}, 0))),
	)
	if err := markdown.Convert([]byte(guide.Text), m, parser.WithContext(parser.NewContext(parser.WithIDs(anchors{})))); err != nil {
		panic(fmt.Errorf("write guide %s: %w", guide.Name, err)) // memory takes it
	}
	m.add("</main>\n</body>\n</html>\n")
	return m.Bytes()
}

// guideNodes changes what stands in a guide for this place: links to other guides lead to their pages here, links to
// files of the repository show the path instead, pictures are their text, and comments are gone.
type guideNodes struct{ known []Guide }

// Transform implements parser.ASTTransformer.
func (g guideNodes) Transform(document *ast.Document, _ text.Reader, _ parser.Context) {
	var all []ast.Node // first, because what is changed is not to be walked
	_ = ast.Walk(document, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if entering {
			all = append(all, n)
		}
		return ast.WalkContinue, nil
	})
	for _, n := range all {
		switch n := n.(type) {
		case *ast.HTMLBlock:
			n.Parent().RemoveChild(n.Parent(), n)
		case *ast.Image:
			unwrap(n)
		case *ast.Link:
			g.link(n)
		}
	}
}

func (g guideNodes) link(n *ast.Link) {
	target := string(n.Destination)
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
		path := util.EscapeHTML([]byte(strings.TrimPrefix(file, "../")))
		n.Parent().InsertBefore(n.Parent(), n, markupNode(fmt.Sprintf("<span title=\"%s, in the repository\">", path)))
		n.Parent().InsertAfter(n.Parent(), n, markupNode("</span>"))
		unwrap(n)
		return
	}
	n.Destination = []byte(target)
	n.SetAttributeString("rel", []byte("noreferrer"))
}

// unwrap puts the children of a node in its place.
func unwrap(n ast.Node) {
	parent := n.Parent()
	for child := n.FirstChild(); child != nil; child = n.FirstChild() {
		parent.InsertBefore(parent, n, child)
	}
	parent.RemoveChild(parent, n)
}

func markupNode(html string) ast.Node {
	n := ast.NewString([]byte(html))
	n.SetCode(true) // or it would be escaped
	return n
}

// wideTables writes tables that scroll by themselves if they are wider than the page.
type wideTables struct{}

// RegisterFuncs implements renderer.NodeRenderer.
func (wideTables) RegisterFuncs(r renderer.NodeRendererFuncRegisterer) {
	r.Register(tables.KindTable, func(w util.BufWriter, _ []byte, _ ast.Node, entering bool) (ast.WalkStatus, error) {
		tags := "</table></div>\n"
		if entering {
			tags = "<div class=\"scroll\"><table>\n"
		}
		_, err := w.WriteString(tags)
		return ast.WalkContinue, err
	})
}

var notSlug = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)

// anchors are those that headings have on the usual sites of repositories.
type anchors struct{}

// Generate implements parser.IDs.
func (anchors) Generate(heading []byte, _ ast.NodeKind) []byte {
	return []byte(strings.ReplaceAll(notSlug.ReplaceAllString(strings.ToLower(string(heading)), ""), " ", "-"))
}

// Put implements parser.IDs.
func (anchors) Put([]byte) {}
