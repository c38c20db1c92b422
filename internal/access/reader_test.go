package access

import (
	"context"
	"testing"

	"tallyroll/internal/window"
)

// pages is Counters with a page of an export for each prefix.
type pages struct {
	Counters
	prefix string
	at     window.ExportPlace
}

func (p *pages) ExportPage(_ context.Context, e window.Export, at window.ExportPlace) (window.ExportPage, error) {
	p.prefix, p.at = e.Prefix, at
	return window.ExportPage{Next: window.ExportPlace{Counter: e.Prefix + "last"}}, nil
}

// A place of an export is what its bearer says it is. Inside of a counter that is not the token's, nothing is read.
func TestForgedPlaces(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		at     window.ExportPlace
		prefix string // of the export
		want   window.ExportPlace
		read   string // the prefix that is read
		more   bool
	}{
		{window.ExportPlace{}, "", window.ExportPlace{}, "a.", true},
		{window.ExportPlace{Counter: "a.x", Inside: 5}, "", window.ExportPlace{Counter: "a.x", Inside: 5}, "a.", true},
		{window.ExportPlace{Counter: "a", Inside: 5}, "", window.ExportPlace{Counter: "a"}, "a.", true},
		{window.ExportPlace{Counter: "b.x", Inside: 5}, "", window.ExportPlace{Counter: "b.x"}, "c.", false},
		{window.ExportPlace{Counter: "c.x", Inside: 5}, "", window.ExportPlace{Counter: "c.x", Inside: 5}, "c.", false},
		{window.ExportPlace{Counter: "c.x", Inside: 5}, "a.b", window.ExportPlace{Counter: "c.x"}, "a.b", false},
		{window.ExportPlace{Counter: "z", Inside: 5}, "", window.ExportPlace{Counter: "z"}, "c.", false},
	} {
		asked := &pages{}
		ctx := With(t.Context(), grant{name: "t", may: allRights, prefixes: []string{"a.", "c."}}.start())
		page, err := NewReader(asked).ExportPage(ctx, window.Export{Prefix: c.prefix}, c.at)
		if err != nil || asked.at != c.want || asked.prefix != c.read || page.More != c.more {
			t.Errorf("%+v of %q: read %+v of %q, more %v, %v", c.at, c.prefix, asked.at, asked.prefix, page.More, err)
		}
	}
}
