package query

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"tallyroll/internal/status"
	"tallyroll/internal/window"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// Marks are answered in the order of their time: the newest of those that the range touches.
func TestMarks(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	store := window.NewStore(redis.Client(), asking.Namespace)
	at := func(minutes int64) int64 { return now.UnixMilli() - 60_000*minutes }
	for _, m := range []window.Mark{
		{At: at(50), Until: at(40), Kind: window.MarkLate, Stream: "HITS", Detail: "was behind"},
		{At: at(30), Kind: window.MarkTiers, Detail: "other tiers", Event: "an event"},
		{At: at(20), Kind: window.MarkRules, Stream: "HITS", Detail: "other rules"},
	} {
		if err := store.PutMark(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	h := onRedis(t, redis.URL(), now).handler()
	for query, want := range map[string][]string{
		"":                                     {window.MarkLate, window.MarkTiers, window.MarkRules},
		"?limit=2":                             {window.MarkTiers, window.MarkRules},
		fmt.Sprint("?from=", at(45)):           {window.MarkLate, window.MarkTiers, window.MarkRules},
		fmt.Sprint("?from=", at(39)):           {window.MarkTiers, window.MarkRules},
		fmt.Sprint("?to=", at(20)):             {window.MarkLate, window.MarkTiers},
		fmt.Sprint("?to=", at(30), "&limit=1"): {window.MarkLate},
		fmt.Sprintf("?from=%d&to=%d", at(38), at(31)):                              {},
		"?from=" + time.UnixMilli(at(30)).UTC().Format("2006-01-02T15:04:05.000Z"): {window.MarkTiers, window.MarkRules},
	} {
		marks := decoded(t, h, "/v1/marks"+query, func(status.MarksAnswer) bool { return true }).Marks
		kinds := []string{}
		for _, m := range marks {
			kinds = append(kinds, m.Kind)
		}
		if !slices.Equal(kinds, want) {
			t.Errorf("%s: %q, want %q", query, kinds, want)
		}
	}
	body := string(asking.ReadAll(t, asking.Ask(h, http.MethodGet, fmt.Sprint("/v1/marks?to=", at(25)), "")))
	moment := func(minutes int64) string { return time.UnixMilli(at(minutes)).UTC().Format(time.RFC3339Nano) }
	if want := fmt.Sprintf(`{"marks":[{"at":%q,"until":%q,"kind":"late","stream":"HITS","detail":"was behind"},{"at":%q,"kind":"tiers","detail":"other tiers"}]}`, moment(50), moment(40), moment(30)); strings.TrimSpace(body) != want {
		t.Errorf("%s\nwant\n%s", body, want)
	}
	for query, detail := range map[string]string{
		"limit=0": "limit: ", "limit=1001": "from 1 to 1000", "from=x": "from: ", "to=": "to: it is empty", "from=2&to=2": "is not before to",
		"window=1h": "unknown parameter", "to=1&to=2": "2 times",
	} {
		if p := asking.Refused(t, asking.Ask(h, http.MethodGet, "/v1/marks?"+query, ""), http.StatusBadRequest); !strings.Contains(p.Detail, detail) {
			t.Errorf("%s: %s, want %s", query, p.Detail, detail)
		}
	}
}

// Nothing is marked in a namespace in which nobody has counted, and a key that something else has written to is named.
func TestNoMarks(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	h := onRedis(t, redis.URL(), now).handler()
	if body := string(asking.ReadAll(t, asking.Ask(h, http.MethodGet, "/v1/marks", ""))); strings.TrimSpace(body) != `{"marks":[]}` {
		t.Errorf("%s", body)
	}
	if err := redis.Client().Set(t.Context(), asking.Namespace+":marks", "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	h = onRedis(t, redis.URL(), now).handler()
	if p := asking.Refused(t, asking.Ask(h, http.MethodGet, "/v1/marks", ""), http.StatusInternalServerError); !strings.Contains(p.Detail, asking.Namespace+":marks") {
		t.Errorf("%s", p.Detail)
	}
}
