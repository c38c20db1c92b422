package access

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"tallyroll/internal/web"
	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
)

// StartToken returns a token with all rights about names that begin with one of these.
func StartToken(prefixes ...string) *Token {
	return grant{name: "shop", may: allRights, prefixes: prefixes}.start()
}

// others are counters outside of the prefix a., written much like those inside.
var others = []string{
	"b.x", "a", "aOTHER", "A.x", "a x", " a.x", "ab.x", "b.a.x", "á.x", "ａ.x", "а.x", "a․x", "a/x", "%61.x", "a,x", "\\.x", "ſ.x", "…",
}

// A question that names another's counter or prefix does not reach the counters, whatever else it names.
func TestReaderRefusesWhatTheTokenIsNotAbout(t *testing.T) {
	t.Parallel()
	r := Authorize(struct{ Counters }{}) // panics if it is asked
	ctx := With(t.Context(), StartToken("a.", "c."))
	for _, name := range others {
		questions := []window.Question{{Counter: "a.x"}, {Counter: name}}
		lines := []window.SeriesQuestion{{Counter: "a.x"}, {Counter: name}}
		for method, ask := range map[string]func() error{
			"Answer":       func() error { _, err := r.Answer(ctx, questions); return err },
			"Uniques":      func() error { _, err := r.Uniques(ctx, questions); return err },
			"Series":       func() error { _, err := r.Series(ctx, lines); return err },
			"UniqueSeries": func() error { _, err := r.UniqueSeries(ctx, lines); return err },
			"SeriesSums":   func() error { _, err := r.SeriesSums(ctx, lines[0], []string{"a.x", name}, nil, 0); return err },
			"SeriesSums 2": func() error { _, err := r.SeriesSums(ctx, lines[1], nil, nil, 0); return err },
			"Top":          func() error { _, err := r.Top(ctx, window.Span{}, 1); return err },
			"Names":        func() error { _, err := r.Names(ctx, read.NamesQuestion{Prefix: name}); return err },
			"BeginExport":  func() error { _, err := r.BeginExport(ctx, read.ExportQuestion{Prefix: name}); return err },
			"ExportPage": func() error {
				_, err := r.ExportPage(ctx, read.Export{Prefix: name}, read.ExportPlace{})
				return err
			},
			"Erase":       func() error { _, err := r.Erase(ctx, []string{"a.x", name}); return err },
			"EraseListed": func() error { _, err := r.EraseListed(ctx, name, ""); return err },
			"Fall":        func() error { _, _, err := r.Fall(ctx, name, time.Hour, 1); return err },
		} {
			err := ask()
			p := web.ProblemOf(err)
			if err == nil || p.Status != http.StatusForbidden || p.Type != web.KeyOutsidePrefix.Type() || !strings.Contains(p.Detail, `the token shop, which is about names that begin with "a." or "c."`) {
				t.Errorf("%s of %q: %v", method, name, err)
			}
		}
	}
}

// exportPages is Counters with one page of an export for each prefix.
type exportPages struct {
	Counters
	prefix string
	at     read.ExportPlace
}

func (p *exportPages) ExportPage(_ context.Context, e read.Export, at read.ExportPlace) (read.ExportPage, error) {
	p.prefix, p.at = e.Prefix, at
	return read.ExportPage{Next: read.ExportPlace{Counter: e.Prefix + "last"}}, nil
}

// A place of an export is what its bearer says it is. Inside of a counter that is not the token's, nothing is
// read.
func TestForgedPlaceOfAnExportReadsOnlyTheTokensCounters(t *testing.T) {
	t.Parallel()
	type place = read.ExportPlace
	for _, c := range []struct {
		at     place
		prefix string // of the export
		want   place
		read   string // the prefix that is read
		more   bool
	}{
		{place{}, "", place{}, "a.", true},
		{place{Counter: "a.x", Inside: 5}, "", place{Counter: "a.x", Inside: 5}, "a.", true},
		{place{Counter: "a", Inside: 5}, "", place{Counter: "a"}, "a.", true},
		{place{Counter: "b.x", Inside: 5}, "", place{Counter: "b.x"}, "c.", false},
		{place{Counter: "c.x", Inside: 5}, "", place{Counter: "c.x", Inside: 5}, "c.", false},
		{place{Counter: "c.x", Inside: 5}, "a.b", place{Counter: "c.x"}, "a.b", false},
		{place{Counter: "z", Inside: 5}, "", place{Counter: "z"}, "c.", false},
	} {
		asked := &exportPages{}
		page, err := Authorize(asked).ExportPage(With(t.Context(), StartToken("a.", "c.")), read.Export{Prefix: c.prefix}, c.at)
		if err != nil || asked.at != c.want || asked.prefix != c.read || page.More != c.more {
			t.Errorf("%+v of %q: read %+v of %q, more %v, %v", c.at, c.prefix, asked.at, asked.prefix, page.More, err)
		}
	}
}
