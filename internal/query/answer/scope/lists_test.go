package scope_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/query/answer/scope"
	"tallyroll/internal/window"
	"tallyroll/internal/window/erase"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/apitest"
	"tallyroll/tests/stack"
)

// The lists and exports of a token with prefixes have exactly what they would have if there were no other
// counters.
func TestListsOfATokenAreAsIfThereWereNoOtherCounters(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), apitest.Now()
	var samples []apitest.Sample
	var own []string
	for i := range 40 {
		for _, prefix := range []string{"a.", "a", "b.", "c.", "c.deep.", "d", "z"} {
			name := fmt.Sprintf("%s%02d", prefix, i)
			samples = append(samples, apitest.NewSample(name, now.Add(-10*time.Minute), int64(1+i)), apitest.NewSample(name, now.Add(-5*time.Minute), 2))
			if strings.HasPrefix(name, "a.") || strings.HasPrefix(name, "c.") {
				own = append(own, name)
			}
		}
	}
	slices.Sort(own)
	apitest.Seed(t, redis.Client(), now, samples...)
	stack.WatchClock(redis.Client()).Hold(&now)
	all := read.NewReader(schema.NewStore(redis.Client(), apitest.Namespace))
	all.Local = func() time.Time { return now }
	r := scope.Authorize(erase.Eraser{Reader: all})
	ctx := scope.Bearer(t, "a.", "c.", "nobody.", "zz")

	for _, limit := range []int{1, 7, 40, 80, 1000} {
		for _, match := range []string{"", "1", "deep", "nothing"} {
			matches := func(name string) bool { return strings.Contains(name, match) }
			hour := window.Last(time.Hour)
			q := read.NamesQuestion{Limit: limit, Totals: &hour, Match: matches}
			if match == "" {
				q.Match = nil
			}
			var found []string
			for pages := 0; pages == 0 || q.After != ""; pages++ {
				page, err := r.Names(ctx, q)
				require.NoError(t, err)
				require.LessOrEqual(t, len(page.Counters), limit)
				require.Len(t, page.Answers, len(page.Counters))
				require.LessOrEqual(t, pages, len(own)+3, "the pages have no end")
				found = append(found, page.Counters...)
				q.After = page.Next
			}
			want := slices.DeleteFunc(slices.Clone(own), func(name string) bool { return !matches(name) })
			if !slices.Equal(found, want) {
				t.Errorf("limit %d, match %q: %d names, want %d:\n%q", limit, match, len(found), len(want), found)
			}
		}
	}

	top, err := r.Top(ctx, window.Last(time.Hour), 1000, "a.", "c.")
	require.NoError(t, err)
	var found []string
	for _, c := range top.Counters {
		found = append(found, c.Counter)
	}
	require.ElementsMatch(t, own, found)

	rows := func(reader scope.Counters, after string) (out []read.ExportRow) {
		e, err := reader.BeginExport(ctx, read.ExportQuestion{From: now.Add(-50 * time.Minute).UnixMilli(), To: window.Now})
		require.NoError(t, err)
		for at, more := (read.ExportPlace{Counter: after}), true; more; {
			page, err := reader.ExportPage(ctx, e, at)
			require.NoError(t, err)
			out, at, more = append(out, page.Rows...), page.Next, page.More
		}
		return out
	}
	for _, after := range []string{"", "a.20", "b", "c.deep.39", "zzz"} {
		all.MaxCells = 0
		want := slices.DeleteFunc(rows(erase.Eraser{Reader: all}, after), func(row read.ExportRow) bool { return !slices.Contains(own, row.Counter) })
		for _, all.MaxCells = range []int64{0, 1000, 300} { // with few cells, a page has a few counters
			if found := rows(r, after); !slices.Equal(found, want) {
				t.Errorf("%d cells, after %q: %d rows, want %d:\n%v", all.MaxCells, after, len(found), len(want), found)
			}
		}
	}
}
