package docs_test

import (
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// shelves are the pages below docs by what they are for, each with the word for it.
var shelves = []struct {
	name  string
	pages [][2]string
}{
	{"Start", [][2]string{{"count", "start/count.md"}, {"limit", "start/limit.md"}, {"alert", "start/alert.md"}}},
	{"Publish", [][2]string{{"payloads", "payloads.md"}, {"collect", "collect.md"}, {"rules", "rules.md"}}},
	{"Ask", [][2]string{{"queries", "queries.md"}, {"HTTP", "http.md"}, {"alerts", "watch.md"}, {"PromQL", "promql.md"}}},
	{"Limits", [][2]string{{"limits", "limits.md"}, {"counters", "limits-counters.md"}, {"proxies", "limits-proxies.md"}, {"outages", "limits-outages.md"}}},
	{"Run", [][2]string{{"install", "install.md"}, {"servers", "servers.md"}, {"settings", "settings.md"}, {"operations", "operations.md"}, {"metrics", "metrics.md"}, {"scaling", "scaling.md"}, {"disasters", "disasters.md"}}},
	{"Choose", [][2]string{{"adopt", "adopt.md"}}},
	{"Understand", [][2]string{{"design", "design.md"}, {"delivery", "delivery.md"}, {"benchmarks", "benchmarks.md"}, {"tables", "benchmarks-tables.md"}, {"alternatives", "alternatives.md"}}},
}

// The third line of each page shows where one is: the pages of its shelf, with this one in bold.
func TestPagesShowWhereTheyAre(t *testing.T) {
	shelved := 0
	for _, shelf := range shelves {
		for _, page := range shelf.pages {
			shelved++
			from, words := path.Dir(page[1]), make([]string, 0, len(shelf.pages))
			for _, other := range shelf.pages {
				words = append(words, "["+other[0]+"]("+relative(t, from, other[1])+")")
				if other == page {
					words[len(words)-1] = "**" + page[0] + "**"
				}
			}
			want := "[Tallyroll](" + relative(t, from, "../README.md") + ") › " + shelf.name + ": " + strings.Join(words, " · ")
			lines := strings.SplitN(readPage(t, "../../docs/"+page[1]), "\n", 4)
			require.Len(t, lines, 4, page[1])
			require.Equal(t, want, lines[2], "line 3 of docs/%s", page[1])
		}
	}
	pages := 0
	for _, p := range textPages(t) {
		if strings.Contains(p, "/docs/") {
			pages++
		}
	}
	require.Equal(t, pages, shelved, "pages below docs, and those on a shelf")
}

func relative(t *testing.T, from, to string) string {
	t.Helper()
	out, err := filepath.Rel(from, to)
	require.NoError(t, err)
	return out
}
