package e2e_test

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"tallyroll/tests/stack"
)

type topList struct {
	AsOf   time.Time `json:"as_of"`
	Window string    `json:"window"`
	Floor  int64     `json:"floor"`
	Top    []stack.Total
}

type namesPage struct {
	AsOf     time.Time `json:"as_of"`
	Counters []string  `json:"counters"`
	Next     string    `json:"next"`
}

// Counters of very different sizes, counted by a worker that is killed in
// between: the list has the largest, with the totals of /v1/total, and the pages
// of names have them all.
func TestTopListsTheLargestCountersAndCountersAllNames(t *testing.T) {
	t.Parallel()
	s := start(t)
	const counters = 300
	want := map[string]int64{}
	load := func() {
		var b strings.Builder
		for i := range counters {
			name := fmt.Sprintf("shop.%03d", i)
			n := int64(1 + 3000/(1+i))
			want[name] += n
			fmt.Fprintf(&b, `{"key":%q,"n":%d}`+"\n", name, n)
		}
		s.publish(strings.NewReader(b.String()), "--format", "ndjson", "--batch", "7")
		s.awaitAllCounted()
	}
	s.send("hits.first", "") // there is no layout, and no answer, before the stream is taken
	want["first"]++
	s.awaitTotal("first", 1)
	load()
	s.ingest.Kill()
	s.ingest.Start()
	load()

	for _, window := range []string{"1h", "1d"} {
		const limit = 25
		list := ask[topList](s, "/v1/top", url.Values{"window": {window}, "limit": {fmt.Sprint(limit)}})
		if len(list.Top) != limit || list.Window != window || list.AsOf.IsZero() {
			t.Fatalf("%+v", list)
		}
		listed := map[string]bool{}
		var keys []string
		for _, c := range list.Top {
			keys = append(keys, c.Key)
			if listed[c.Key] = true; c.Total != want[c.Key] || c.Lower > c.Total || c.Upper < c.Total {
				t.Errorf("%+v; %d were published", c, want[c.Key])
			}
		}
		for name, n := range want {
			if n > list.Floor && !listed[name] {
				t.Errorf("%s with %d hits is missing; the floor is %d", name, n, list.Floor)
			}
		}
		for i, total := range stack.PostTotal(t, s.query.URL(), keys, []string{window}).Totals {
			if c := list.Top[i]; c.Total != total.Total || c.Lower != total.Lower || c.Upper != total.Upper {
				t.Errorf("%+v in the list and %+v as a total", c, total)
			}
		}
	}

	var names []string
	for params := (url.Values{"prefix": {"shop."}, "limit": {"70"}}); ; {
		page := ask[namesPage](s, "/v1/counters", params)
		if names = append(names, page.Counters...); page.Next == "" {
			break
		}
		params.Set("after", page.Next)
	}
	if len(names) != counters || !slices.IsSorted(names) || names[0] != "shop.000" {
		t.Errorf("%d names: %q", len(names), names)
	}
}
