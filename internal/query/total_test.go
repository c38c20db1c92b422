package query

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/answer"
	"tallyroll/internal/hit"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

func TestTotal(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	asOf := now.Add(-200 * time.Millisecond)
	since := answer.Time(asOf.Add(-12 * time.Hour).UnixMilli()) // see commit
	minute := now.Truncate(time.Minute)
	odd := []string{"a,b", "/cart/1?x=y&z", "größe ☃", "100%25", "a+b c", strings.Repeat("k", hit.MaxName)}
	hits := []asking.Sample{
		asking.Hits("api", minute.Add(-10*time.Minute+5*time.Second), 10), // in the cell that a window of 10m cuts in half
		asking.Hits("api", minute.Add(-5*time.Minute), 5),
		asking.Hits("api", minute.Add(-30*time.Minute), 100),
		asking.Hits("other", minute.Add(-2*time.Minute), 7),
	}
	for i, key := range odd {
		hits = append(hits, asking.Hits(key, minute.Add(-time.Minute), int64(i+1)))
	}
	asking.Seed(t, redis.Client(), asOf, hits...)
	h := onRedis(t, redis.URL(), now).handler()
	get := func(t *testing.T, params url.Values) answer.TotalAnswer {
		t.Helper()
		return answered(t, asking.Ask(h, http.MethodGet, "/v1/total?"+params.Encode(), ""))
	}
	milli := func(at time.Time) string { return fmt.Sprint(at.UnixMilli()) }

	t.Run("counters and windows in order", func(t *testing.T) {
		got := get(t, url.Values{"key": {"api", "other", "never"}, "window": {"10m", "59m", "20h"}})
		want := []answer.Total{
			{Key: "api", Window: "10m", Total: 10, Lower: 5, Upper: 15, Cell: "1m"},
			{Key: "api", Window: "59m", Total: 115, Lower: 115, Upper: 115, Cell: "1m"},
			{Key: "api", Window: "20h", Total: 115, Lower: 115, Upper: 115, Cell: "1h"},
			{Key: "other", Window: "10m", Total: 7, Lower: 7, Upper: 7, Cell: "1m"},
			{Key: "other", Window: "59m", Total: 7, Lower: 7, Upper: 7, Cell: "1m"},
			{Key: "other", Window: "20h", Total: 7, Lower: 7, Upper: 7, Cell: "1h"},
			{Key: "never", Window: "10m", Cell: "1m"},
			{Key: "never", Window: "59m", Cell: "1m"},
			{Key: "never", Window: "20h", Cell: "1h"},
		}
		for i, w := range []time.Duration{10 * time.Minute, 59 * time.Minute, 20 * time.Hour} {
			for j := i; j < len(want); j += 3 {
				want[j].From, want[j].To, want[j].CountingSince = now.Add(-w), now, since
				want[j].Complete = !want[j].From.Before(since)
			}
		}
		if !slices.Equal(got.Totals, want) {
			t.Errorf("got  %+v\nwant %+v", got.Totals, want)
		}
		if !got.AsOf.Equal(asOf) {
			t.Errorf("as of %v, want %v", got.AsOf, asOf)
		}
	})
	t.Run("an earlier moment", func(t *testing.T) {
		for _, at := range []string{minute.Add(-5 * time.Minute).Format(time.RFC3339), milli(minute.Add(-5 * time.Minute))} {
			got := get(t, url.Values{"key": {"api"}, "window": {"10m"}, "at": {at}}).Totals[0]
			if got.Total != 10 || !got.To.Equal(minute.Add(-5*time.Minute)) || !got.From.Equal(minute.Add(-15*time.Minute)) {
				t.Errorf("at %s: %+v", at, got)
			}
		}
	})
	t.Run("an offset whose + became a space", func(t *testing.T) {
		at := minute.Add(-5 * time.Minute).In(time.FixedZone("", 3600)).Format(time.RFC3339)
		got := answered(t, asking.Ask(h, http.MethodGet, "/v1/total?key=api&window=10m&at="+at, "")).Totals[0]
		if got.Total != 10 {
			t.Errorf("at %s: %+v", at, got)
		}
	})
	t.Run("a clock a little ahead", func(t *testing.T) {
		got := get(t, url.Values{"key": {"api"}, "window": {"10m"}, "at": {milli(now.Add(time.Minute))}}).Totals[0]
		if !got.To.Equal(now) || got.Total != 10 {
			t.Errorf("got %+v, want what now answers", got)
		}
	})
	t.Run("a range", func(t *testing.T) {
		from, to := minute.Add(-31*time.Minute), minute.Add(-29*time.Minute)
		got := get(t, url.Values{"key": {"api"}, "from": {milli(from)}, "to": {milli(to)}}).Totals
		want := []answer.Total{{Key: "api", From: from, To: to, Total: 100, Lower: 100, Upper: 100, Cell: "1m", Complete: true, CountingSince: since}}
		if !slices.Equal(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		if got := get(t, url.Values{"key": {"api"}, "from": {milli(from)}}).Totals[0]; got.Total != 115 || !got.To.Equal(now) {
			t.Errorf("without to: %+v", got)
		}
	})
	t.Run("names with any bytes", func(t *testing.T) {
		byGet := get(t, url.Values{"key": odd, "window": {"10m"}})
		body, err := json.Marshal(map[string]any{"keys": odd, "windows": []string{"10m"}})
		require.NoError(t, err)
		byPost := answered(t, asking.Ask(h, http.MethodPost, "/v1/total", string(body)))
		for i, key := range odd {
			for _, got := range []answer.Total{byGet.Totals[i], byPost.Totals[i]} {
				if got.Key != key || got.Total != int64(i+1) {
					t.Errorf("got %+v, want %q with %d", got, key, i+1)
				}
			}
		}
	})
	t.Run("a comma does not split", func(t *testing.T) {
		got := answered(t, asking.Ask(h, http.MethodGet, "/v1/total?key=a,b&window=10m", ""))
		if len(got.Totals) != 1 || got.Totals[0].Key != "a,b" || got.Totals[0].Total != 1 {
			t.Errorf("got %+v", got.Totals)
		}
	})
	t.Run("post", func(t *testing.T) {
		at := minute.Add(-5 * time.Minute)
		for _, when := range []string{milli(at), `"` + milli(at) + `"`, `"` + at.Format(time.RFC3339) + `"`} {
			for _, contentType := range []string{"application/json", "application/x-www-form-urlencoded", "text/plain; charset=utf-8"} {
				got := answered(t, asking.Ask(h, http.MethodPost, "/v1/total", `{"keys":["api","other"],"windows":["10m"],"at":`+when+`}`, "Content-Type", contentType))
				if len(got.Totals) != 2 || got.Totals[0].Total != 10 || got.Totals[1].Total != 0 {
					t.Errorf("at %s as %s: %+v", when, contentType, got.Totals)
				}
			}
		}
		got := answered(t, asking.Ask(h, http.MethodPost, "/v1/total", fmt.Sprintf(`{"keys":["api"],"from":%s,"to":null,"windows":null}`, milli(minute.Add(-31*time.Minute)))))
		if len(got.Totals) != 1 || got.Totals[0].Total != 115 {
			t.Errorf("a range: %+v", got.Totals)
		}
	})
	t.Run("further than any tier", func(t *testing.T) {
		p := asking.Refused(t, asking.Ask(h, http.MethodGet, "/v1/total?key=api&window=2d", ""), http.StatusBadRequest)
		for _, want := range []string{"window: 2d", "1m cells reach back 1h", "1h cells reach back 1d"} {
			if !strings.Contains(p.Detail, want) {
				t.Errorf("detail %q, want %q in it", p.Detail, want)
			}
		}
		p = asking.Refused(t, asking.Ask(h, http.MethodPost, "/v1/total", `{"keys":["api"],"from":0}`), http.StatusBadRequest)
		if !strings.HasPrefix(p.Detail, "from: ") || p.Errors[0].Location != "body.from" {
			t.Errorf("problem %+v, want one about from", p)
		}
	})
}

func TestTotalOfNothingCounted(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	asking.Seed(t, redis.Client(), time.UnixMilli(0))
	got := answered(t, asking.Ask(onRedis(t, redis.URL(), now).handler(), http.MethodGet, "/v1/total?key=a&window=1m", ""))
	if want := time.Unix(0, 0).UTC(); got.AsOf != want {
		t.Errorf("as of %v, want %v", got.AsOf, want)
	}
}

// The answer has the contract's fields and no others.
func TestTotalFields(t *testing.T) {
	t.Parallel()
	s, f := onFake(t)
	f.Now = asking.FakeNow.Add(200 * time.Millisecond)
	for target, want := range map[string]string{
		"/v1/total?key=K&window=24h": "cell complete counting_since from key lower to total upper window",
		"/v1/total?key=K&from=" + url.QueryEscape(asking.FakeNow.Add(-time.Hour).Format(time.RFC3339)): "cell complete counting_since from key lower to total upper",
	} {
		resp := asking.Ask(s.handler(), http.MethodGet, target, "")
		if got := resp.Header.Get("Content-Type"); got != "application/json" {
			t.Errorf("content type %q", got)
		}
		if got := resp.Header.Get("Cache-Control"); got != "no-store" {
			t.Errorf("cache control %q", got)
		}
		if got := resp.Header.Get("Link"); got != "" {
			t.Errorf("link %q", got)
		}
		var answer map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(asking.ReadAll(t, resp), &answer))
		if got := strings.Join(slices.Sorted(maps.Keys(answer)), " "); got != "as_of totals" {
			t.Errorf("fields %s", got)
		}
		if got := string(answer["as_of"]); got != `"2026-11-21T10:00:00.2Z"` {
			t.Errorf("as of %s", got)
		}
		var totals []map[string]any
		if err := json.Unmarshal(answer["totals"], &totals); err != nil || len(totals) != 1 {
			t.Fatalf("totals %s: %v", answer["totals"], err)
		}
		if got := strings.Join(slices.Sorted(maps.Keys(totals[0])), " "); got != want {
			t.Errorf("%s: fields %s, want %s", target, got, want)
		}
		if got := totals[0]["to"]; got != "2026-11-21T10:00:00.2Z" {
			t.Errorf("to %v", got)
		}
	}
}
