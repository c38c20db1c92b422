package scope

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/setting"
	"tallyroll/internal/web"
	"tallyroll/internal/web/access"
	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
)

// others are counters outside of the prefix a., written much like those inside.
var others = []string{
	"b.x", "a", "aOTHER", "A.x", "a x", " a.x", "ab.x", "b.a.x", "á.x", "ａ.x", "а.x", "a․x", "a/x", "%61.x", "a,x", "\\.x", "ſ.x", "…",
}

// A question that names another's counter or prefix does not reach the counters, whatever else it names.
func TestReaderRefusesWhatTheTokenIsNotAbout(t *testing.T) {
	t.Parallel()
	r := Authorize(struct{ Counters }{}) // panics if it is asked
	ctx := Bearer(t, "a.", "c.")
	// A part of a sum is refused, too, unless it is an overflow counter that may have hits of the token's names.
	for _, name := range append([]string{"b.~other.1", "ab.~other.1", "c~other.x.~other.1"}, others...) {
		questions := []window.Question{{Counter: "a.x"}, {Counter: name, Part: true}}
		lines := []window.SeriesQuestion{{Counter: "a.x"}, {Counter: name}}
		for method, ask := range map[string]func() error{
			"Answer":       func() error { _, err := r.Answer(ctx, questions); return err },
			"Uniques":      func() error { _, err := r.Uniques(ctx, questions); return err },
			"Series":       func() error { _, err := r.Series(ctx, lines); return err },
			"UniqueSeries": func() error { _, err := r.UniqueSeries(ctx, lines); return err },
			"SeriesSums":   func() error { _, err := r.SeriesSums(ctx, lines[0], []string{"a.x", name}, nil, 0); return err },
			"SeriesSums 2": func() error { _, err := r.SeriesSums(ctx, lines[1], nil, nil, 0); return err },
			"Top":          func() error { _, err := r.Top(ctx, window.Span{}, 1); return err },
			"Top 2":        func() error { _, err := r.Top(ctx, window.Span{}, 1, "a.", name); return err },
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

// answers is Counters that answers every question.
type answers struct{ Counters }

func (answers) Answer(context.Context, []window.Question) (window.Answers, error) {
	return window.Answers{}, nil
}

func TestASumReadsTheOverflowOfWiderPrefixes(t *testing.T) {
	t.Parallel()
	r := Authorize(answers{})
	for _, name := range []string{"a.~other.1", "~other.12", "a.b.~other.1"} {
		question := window.Question{Counter: name, Part: true}
		_, err := r.Answer(Bearer(t, "c.", "a.b."), []window.Question{question})
		require.NoError(t, err, name)
		if question.Part = false; !strings.HasPrefix(name, "a.b.") {
			_, err = r.Answer(Bearer(t, "c.", "a.b."), []window.Question{question})
			require.Equal(t, http.StatusForbidden, web.ProblemOf(err).Status, name)
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
		page, err := Authorize(asked).ExportPage(Bearer(t, "a.", "c."), read.Export{Prefix: c.prefix}, c.at)
		if err != nil || asked.at != c.want || asked.prefix != c.read || page.More != c.more {
			t.Errorf("%+v of %q: read %+v of %q, more %v, %v", c.at, c.prefix, asked.at, asked.prefix, page.More, err)
		}
	}
}

// Bearer returns a context of the bearer of a token with all rights about names that begin with one of these.
func Bearer(t *testing.T, prefixes ...string) context.Context {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokens.yml")
	text := fmt.Sprintf("tokens:\n  - {name: shop, sha256: %x, may: [read, take, count, erase, admin], prefixes: [%q", sha256.Sum256([]byte("secret")), prefixes[0])
	for _, prefix := range prefixes[1:] {
		text += fmt.Sprintf(", %q", prefix)
	}
	require.NoError(t, os.WriteFile(file, []byte(text+"]}\n"), 0o600))
	tokens, err := access.New(access.TokenSettings{Program: "QUERY", File: file}, setting.NewFiles(zerolog.Nop(), func(string) func(error) { return func(error) {} }))
	require.NoError(t, err)
	request := httptest.NewRequest(http.MethodGet, "/", nil)
	request.Header.Set("Authorization", "Bearer secret")
	token, problem := tokens.Find(request)
	require.Nil(t, problem)
	return access.With(t.Context(), token)
}
