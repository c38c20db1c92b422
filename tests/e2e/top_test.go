package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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

// ask gets an answer of the query service.
func ask[T any](s *system, path string, params url.Values) T {
	s.t.Helper()
	var out T
	status, body, err := stack.Do(http.MethodGet, s.query.URL()+path+"?"+params.Encode(), nil)
	if err == nil && status == http.StatusOK {
		err = json.Unmarshal(body, &out)
	}
	if err != nil || status != http.StatusOK {
		s.t.Fatalf("%s?%s: status %d, %v: %s", path, params.Encode(), status, err, body)
	}
	return out
}

// Counters of very different sizes, counted by a worker that is killed in
// between: the list has the largest, with the totals of /v1/total, and the pages
// of names have them all.
func TestTopAndNames(t *testing.T) {
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
		s.allCounted()
	}
	s.send("hits.first", "") // there is no layout, and no answer, before the stream is taken
	want["first"]++
	stack.EventuallyTotal(t, s.query.URL(), "first", "1h", 1)
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

// Groups that have grown in two halves, with the worker killed in between: lines, the largest groups and the names that match
// add up to what was published.
func TestGroupsOfNames(t *testing.T) {
	t.Parallel()
	s := start(t)
	want := map[string]int64{}
	var all int64
	load := func() {
		var b strings.Builder
		for i := range 400 {
			region := []string{"eu", "us", "asia", "africa"}[i%4]
			n := int64(1 + (4-i%4)*3)
			want["shop."+region] += n
			all += n
			fmt.Fprintf(&b, `{"key":"shop.%s.Cart%03d","n":%d}`+"\n", region, i, n)
		}
		s.publish(strings.NewReader(b.String()), "--format", "ndjson", "--batch", "7")
		stack.Eventually(t, "all hits", func() (bool, string) {
			totals, err := stack.FetchTotals(s.query.URL(), url.Values{"prefix": {"shop."}, "window": {"1h"}})
			return err == nil && totals.Totals[0].Total == all, fmt.Sprintf("%+v %v, want %d", totals, err, all)
		})
	}
	s.send("hits.shop.eu", "") // there is no layout, and no answer, before the stream is taken
	want["shop.eu"]++
	all++
	stack.EventuallyTotal(t, s.query.URL(), "shop.eu", "1h", 1)
	load()
	s.ingest.Kill()
	s.ingest.Start()
	load()

	type lines struct {
		Step   string
		AsOf   time.Time `json:"as_of"`
		Series []struct {
			Key    string
			Points [][2]int64
		}
		Others struct {
			Groups int
			Points [][2]int64
		}
	}
	sum := func(points [][2]int64) (n int64) {
		for _, p := range points {
			n += p[1]
		}
		return n
	}
	got := ask[lines](s, "/v1/series", url.Values{"prefix": {"shop."}, "group": {"2"}, "limit": {"3"}})
	if len(got.Series) != 3 || got.Step != "1m" || got.AsOf.IsZero() || got.Others.Groups != 1 || sum(got.Others.Points) != want["shop.africa"] {
		t.Errorf("%+v", got)
	}
	for i, line := range got.Series {
		if line.Key != "shop."+[]string{"eu", "us", "asia"}[i] || sum(line.Points) != want[line.Key] {
			t.Errorf("line %d is %s with %d hits; want %v", i, line.Key, sum(line.Points), want)
		}
	}
	whole := ask[struct{ Points [][2]int64 }](s, "/v1/series", url.Values{"prefix": {"shop."}})
	if sum(whole.Points) != all {
		t.Errorf("the sum has %d hits, want %d", sum(whole.Points), all)
	}
	list := ask[topList](s, "/v1/top", url.Values{"prefix": {"shop."}, "group": {"2"}, "window": {"1h"}, "limit": {"3"}})
	if len(list.Top) != 3 || list.Floor != want["shop.africa"] {
		t.Errorf("%+v; want the floor %d", list, want["shop.africa"])
	}
	for i, one := range list.Top {
		if one.Key != got.Series[i].Key || one.Total != want[one.Key] || one.Lower > one.Total || one.Upper < one.Total {
			t.Errorf("%+v, want %d", one, want[one.Key])
		}
	}
	found := 0
	for params := (url.Values{"prefix": {"shop.us"}, "match": {"cART"}, "totals": {"1"}, "limit": {"30"}}); ; {
		page := ask[struct {
			Counters []string
			Totals   []stack.Total
			Next     string
		}](s, "/v1/counters", params)
		for i, name := range page.Counters {
			if one := page.Totals[i]; one.Key != name || one.Window != "24h" || one.Total != 20 { // 10 hits, twice
				t.Errorf("%s: %+v", name, one)
			}
		}
		if found += len(page.Counters); page.Next == "" {
			break
		}
		params.Set("after", page.Next)
	}
	if found != 100 {
		t.Errorf("%d counters match, want 100", found)
	}
}

type about struct {
	Version   string
	Namespace string
	Since     time.Time `json:"counting_since"`
	Tiers     []struct{ Cell, Window string }
	Windows   []string
	Steps     []string
	Features  map[string]bool
}

// A client that knows no tiers learns what it may ask, and is answered. Before a worker has run it is told so, as
// with any question. The call needs a token, may come from an allowed page, and goes over NATS, too.
func TestAboutTellsWhatToAsk(t *testing.T) {
	t.Parallel()
	s := &system{t: t, redis: stack.Redis(t), nats: stack.NATS(t)}
	s.query = stack.Query(t, s.redis, "NATS_URL="+s.nats.URL(), "QUERY_TOKENS=secret", "QUERY_CORS_ORIGINS=https://stats.example.com",
		"QUERY_TAKE=any", stack.NoWait)
	get := func(path, token string) (int, []byte, http.Header) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.query.URL()+path, nil)
		require.NoError(t, err)
		req.Header.Set("Origin", "https://stats.example.com")
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, []byte(err.Error()), nil
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp.StatusCode, body, resp.Header
	}
	stack.Eventually(t, "the problem that no worker has run", func() (bool, string) {
		status, body, header := get("/v1/about", "secret")
		_, total, _ := get("/v1/total?key=a&window=1m", "secret")
		return status == http.StatusServiceUnavailable && header.Get("Retry-After") != "" && strings.Contains(string(body), "start ingest") && string(total) == string(body), string(body)
	})
	if status, body, _ := get("/v1/about", "wrong"); status != http.StatusUnauthorized {
		t.Errorf("with a wrong token: %d %s", status, body)
	}
	s.ingest = stack.Ingest(t, s.nats, s.redis, "TIERS=1s/1m,1m/1d")
	var told about
	var over []byte
	stack.Eventually(t, "what can be asked", func() (bool, string) {
		status, body, header := get("/v1/about", "secret")
		told, over = about{}, bytes.TrimSpace(body)
		err := json.Unmarshal(body, &told)
		allowed := header.Get("Access-Control-Allow-Origin") == "https://stats.example.com" && header.Get("Cache-Control") == "no-store"
		return status == http.StatusOK && err == nil && allowed && !told.Since.IsZero(), fmt.Sprintf("%d %s %v %v", status, body, header, err)
	})
	if got := strings.Join(told.Windows, " "); got != "1m 5m 15m 1h 6h 24h" {
		t.Errorf("windows %s", got)
	}
	if fmt.Sprint(told.Tiers) != "[{1s 1m} {1m 1d}]" || told.Namespace != "tallyroll" || told.Version == "" ||
		fmt.Sprint(told.Features) != "map[limits:true nats:true uniques:true watch:true]" {
		t.Errorf("%+v", told)
	}
	for _, window := range told.Windows {
		if status, body, _ := get("/v1/total?key=a&window="+window, "secret"); status != http.StatusOK {
			t.Errorf("window %s: %d %s", window, status, body)
		}
	}
	for _, step := range told.Steps {
		if status, body, _ := get("/v1/series?key=a&step="+step, "secret"); status != http.StatusOK {
			t.Errorf("step %s: %d %s", step, status, body)
		}
	}
	token := regexp.MustCompile(`,"token":\{[^}]*\}`) // of which NATS knows none
	if !token.Match(over) {
		t.Errorf("%s does not say what the token may do", over)
	}
	stack.Eventually(t, "the same over NATS", func() (bool, string) {
		msg, err := s.nats.Conn().Request("tallyroll.about", nil, 5*time.Second)
		if err != nil {
			return false, err.Error()
		}
		return bytes.Equal(bytes.TrimSpace(msg.Data), token.ReplaceAll(over, nil)), string(msg.Data)
	})
}
