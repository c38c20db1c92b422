package query

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// cursorOf says, on every shard, how far a stream has been counted.
func cursorOf(t *testing.T, store *window.Store, stream string, c window.Cursor) {
	t.Helper()
	layout := asking.Layout(t)
	require.NoError(t, store.EnsureLayout(t.Context(), layout))
	require.NoError(t, store.AddStream(t.Context(), stream))
	for shard := range layout.Shards {
		w, err := store.OpenWriter(t.Context(), layout, stream, shard)
		require.NoError(t, err)
		if _, err := w.Commit(t.Context(), window.NewBatch(layout).Shard(shard), c); err != nil {
			t.Fatal(err)
		}
	}
}

// An answer is complete from the very moment on from which nothing is known to be
// missing, and not a millisecond before; as_of is that of the slowest stream.
func TestCompleteExactly(t *testing.T) {
	t.Parallel()
	now := asking.Now().Truncate(time.Millisecond)
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	const old = 100 * 24 * time.Hour
	cursor := func(created time.Time, incompleteBefore time.Time, asOf time.Time) window.Cursor {
		c := window.Cursor{Created: created.UnixNano(), Seq: 1, Stored: created.UnixNano(), AsOf: asOf.UnixMilli()}
		if !incompleteBefore.IsZero() {
			c.IncompleteBefore = incompleteBefore.UnixMilli()
		}
		return c
	}
	var never time.Time
	for _, c := range []struct {
		name    string
		streams []window.Cursor
		since   time.Time // complete from here on
		asOf    time.Time
	}{
		{"nothing is missing", []window.Cursor{cursor(ago(old), never, now)}, ago(24 * time.Hour), now},
		{"counting began inside", []window.Cursor{cursor(ago(10*time.Hour), never, now)}, ago(10 * time.Hour), now},
		{"discarded by retention or a purge", []window.Cursor{cursor(ago(old), ago(3*time.Hour), ago(time.Second))}, ago(3 * time.Hour), ago(time.Second)},
		{"a stream was added", []window.Cursor{cursor(ago(old), never, now), cursor(ago(time.Hour), never, ago(2*time.Second))}, ago(24 * time.Hour), ago(2 * time.Second)},
		{"the added one has discarded", []window.Cursor{cursor(ago(old), never, now), cursor(ago(time.Hour), ago(30*time.Minute), now)}, ago(30 * time.Minute), now},
		{"both have", []window.Cursor{cursor(ago(old), ago(5*time.Hour), now), cursor(ago(old), ago(4*time.Hour), now)}, ago(4 * time.Hour), now},
		{"discarded before counting began", []window.Cursor{cursor(ago(2*time.Hour), ago(9*time.Hour), now)}, ago(2 * time.Hour), now},
	} {
		t.Run(c.name, func(t *testing.T) {
			redis := stack.Redis(t)
			store := window.NewStore(redis.Client(), asking.Namespace)
			for i, cursor := range c.streams {
				cursorOf(t, store, fmt.Sprintf("HITS_%d", i), cursor)
			}
			h := onRedis(t, redis.URL(), now).handler()
			for from, want := range map[time.Time]bool{
				c.since: true, c.since.Add(time.Minute): true,
				c.since.Add(-time.Millisecond): false, c.since.Add(-time.Minute): false,
			} {
				if from.Before(ago(24 * time.Hour)) {
					continue // no tier reaches back so far
				}
				got := answered(t, asking.Ask(h, http.MethodGet, fmt.Sprintf("/v1/total?key=a&from=%d", from.UnixMilli()), ""))
				if got.Totals[0].Complete != want || !got.AsOf.Equal(c.asOf) {
					t.Errorf("from %v: complete %t as of %v, want %t as of %v", from, got.Totals[0].Complete, got.AsOf, want, c.asOf)
				}
			}
		})
	}
}

// A stream that is listed and has no cursor yet may hold hits of any time.
func TestNotCompleteBeforeAStreamIsRead(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	store := window.NewStore(redis.Client(), asking.Namespace)
	cursorOf(t, store, "HITS_0", window.Cursor{Created: now.Add(-time.Hour).UnixNano(), Seq: 1, Stored: 1, AsOf: now.UnixMilli()})
	require.NoError(t, store.AddStream(t.Context(), "HITS_1"))
	h := onRedis(t, redis.URL(), now).handler()
	got := answered(t, asking.Ask(h, http.MethodGet, "/v1/total?key=a&window=1m", ""))
	if got.Totals[0].Complete || got.AsOf.UnixMilli() != 0 {
		t.Errorf("complete %t as of %v", got.Totals[0].Complete, got.AsOf)
	}
}

// Every resource says 503 where Redis is away, and answers by itself when it is back.
func TestEveryResourceWithoutRedis(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	asking.Seed(t, redis.Client(), now, asking.Hits("a", now.Add(-time.Minute), 3))
	s := impatient(onRedis(t, redis.URL(), now))
	watched(t, s)
	h := s.handler()
	redis.Pause()
	for _, target := range []string{"/v1/total?key=a&window=10m", "/v1/series?key=a", "/v1/live?key=a&window=10m"} {
		resp := asking.Ask(h, http.MethodGet, target, "")
		asking.Refused(t, resp, http.StatusServiceUnavailable)
		if resp.Header.Get("Retry-After") == "" {
			t.Errorf("%s: no Retry-After", target)
		}
	}
	redis.Resume()
	eventuallyReady(t, h, http.StatusOK)
	for _, target := range []string{"/v1/total?key=a&window=10m", "/v1/series?key=a"} {
		stack.Eventually(t, target+" to be answered", func() (bool, string) {
			resp := asking.Ask(h, http.MethodGet, target, "")
			return resp.StatusCode == http.StatusOK, resp.Status
		})
	}
}

// What was stored after as_of is not known. So a window that reaches more than five seconds beyond it has no upper bound
// and is not complete, whoever asks in whatever way, and not a millisecond earlier.
func TestNothingIsExactWhileNobodyCounts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		behind time.Duration
		known  bool
	}{{5 * time.Second, true}, {5*time.Second + time.Millisecond, false}, {time.Hour, false}} {
		t.Run(c.behind.String(), func(t *testing.T) {
			redis, now := stack.Redis(t), asking.Now().Truncate(time.Millisecond)
			asOf := now.Add(-c.behind)
			hits := []asking.Sample{asking.Hits("shop.a", asOf.Add(-5*time.Minute), 3), asking.Hits("shop.b", asOf.Add(-5*time.Minute), 2)}
			asking.Seed(t, redis.Client(), asOf, hits...)
			s := onRedis(t, redis.URL(), now)
			watched(t, s)
			broker := stack.NATS(t)
			onNATS(t, s, broker.URL())
			services(t, broker.Conn(), 1)
			h := s.handler()
			upper := func(n int) string {
				if c.known {
					return fmt.Sprintf(`"upper":%d`, n)
				}
				return `"upper":null`
			}
			complete := fmt.Sprintf(`"complete":%t`, c.known)
			floor := `"floor":null`
			if c.known {
				floor = `"floor":0`
			}
			body := func(target, body string) string {
				t.Helper()
				method := http.MethodGet
				if body != "" {
					method = http.MethodPost
				}
				resp := asking.Ask(h, method, target, body)
				text := string(asking.ReadAll(t, resp))
				if resp.StatusCode != http.StatusOK {
					t.Errorf("%s: %s: %s", target, resp.Status, text)
				}
				return text
			}
			inWindow := `window=5h&` // begins hours before every hit, so that it cuts no cell that has some
			for target, want := range map[string][]string{
				"/v1/total?" + inWindow + "key=shop.a&key=never": {`"total":3,"lower":3,` + upper(3), `"total":0,"lower":0,` + upper(0), complete},
				"/v1/total?" + inWindow + "prefix=shop.&group=2": {`"total":5,"lower":5,` + upper(5), `"total":3,"lower":3,` + upper(3), `"total":2,"lower":2,` + upper(2), `"counters":2`, complete},
				"/v1/total?" + inWindow + "prefix=nobody":        {`"total":0,"lower":0,` + upper(0), `"counters":0`, complete},
				"/v1/top?window=5h&limit=1":                      {`"total":3,"lower":3,` + upper(3), complete},
				"/v1/top?window=5h":                              {floor},
				"/v1/counters":                                   {`"counters":["shop.a","shop.b"]`},
				fmt.Sprintf("/v1/series?key=shop.a&from=%d", now.Add(-5*time.Hour).UnixMilli()):                        {complete},
				"/v1/limit?key=shop.a&window=5h&max=9":                                                                 {`"allowed":true`, fmt.Sprintf(`"certain":%t`, c.known), complete},
				"/v1/limit?key=shop.a&window=5h&max=2":                                                                 {`"allowed":false`, fmt.Sprintf(`"certain":%t`, c.known), complete},
				"/v1/limit?key=shop.a&window=5h&max=2&fail=local":                                                      {`"allowed":false`, fmt.Sprintf(`"certain":%t`, c.known), complete},
				"/v1/limit?key=shop.a&window=5h&max=9&fail=open":                                                       {`"allowed":true`, `"remaining":6`, fmt.Sprintf(`"certain":%t`, c.known), complete},
				"/v1/limit?key=shop.a&window=5h&max=2&fail=open":                                                       {fmt.Sprintf(`"allowed":%t`, !c.known), `"remaining":0`, complete},
				fmt.Sprintf("/v1/total?key=shop.a&window=1h&at=%d", asOf.Add(5*time.Second).UnixMilli()):               {`"upper":3`, `"complete":true`}, // ends by then
				fmt.Sprintf("/v1/series?key=shop.a&from=%d&to=%d", asOf.Add(-time.Hour).UnixMilli(), asOf.UnixMilli()): {`"complete":true`},
			} {
				text := body(target, "")
				for _, want := range want {
					if !strings.Contains(text, want) {
						t.Errorf("%s: %s\nwant %s", target, text, want)
					}
				}
			}
			if text := body("/v1/total", `{"keys":["shop.a"],"windows":["5h"]}`); !strings.Contains(text, upper(3)+`,"cell":"1h",`+complete) {
				t.Errorf("POST: %s", text)
			}
			if text := string(request(t, broker.Conn(), "total", `{"keys":["shop.a"],"windows":["5h"]}`).Data); !strings.Contains(text, upper(3)) || !strings.Contains(text, complete) {
				t.Errorf("over NATS: %s", text)
			}
			if text := string(request(t, broker.Conn(), "limit", `{"key":"shop.a","window":"5h","max":9}`).Data); !strings.Contains(text, fmt.Sprintf(`"certain":%t`, c.known)) {
				t.Errorf("over NATS: %s", text)
			}
			if closed := asking.Ask(h, http.MethodGet, "/v1/limit?key=shop.a&window=5h&max=9&fail=closed", ""); c.known {
				decided(t, closed, 200)
			} else if p := asking.Refused(t, closed, 503); closed.Header.Get("Retry-After") != "1" || !strings.Contains(p.Detail, "fail is closed") {
				t.Errorf("%v %s", closed.Header, p.Detail)
			}
			probed := scraped(t, asking.Ask(h, http.MethodGet, "/probe?key=never&window=5h", ""))
			wantUpper, wantComplete := math.Inf(1), 0.0
			if c.known {
				wantUpper, wantComplete = 0, 1
			}
			if u, whole := probed[`tallyroll_window_hits_upper{key="never",window="5h"}`], probed[`tallyroll_window_hits_complete{key="never",window="5h"}`]; u != wantUpper || whole != wantComplete {
				t.Errorf("/probe: upper %v, complete %v", u, whole)
			}
			if event := firstEvent(t, h, "key=shop.a&window=5h"); !strings.Contains(event, upper(3)) || !strings.Contains(event, complete) {
				t.Errorf("live: %s", event)
			}
		})
	}
}

// The fail mode of a look at a counter decides while Redis is away, too.
func TestJudgeFailsWithoutRedis(t *testing.T) {
	t.Parallel()
	s, f := onFake(t)
	f.Err = context.DeadlineExceeded
	h := s.handler()
	for fail, status := range map[string]int{"": 503, "&fail=local": 503, "&fail=closed": 503, "&fail=open": 200} {
		resp := asking.Ask(h, http.MethodGet, "/v1/limit?key=a&window=1h&max=5"+fail, "")
		if status != 200 {
			asking.Refused(t, resp, status)
			continue
		}
		if got := decided(t, resp, status); !got.Allowed || got.Certain || got.Source != "local" || got.Remaining != 5 || got.Complete != nil {
			t.Errorf("%+v", got)
		}
	}
	for query, says := range map[string]string{
		"key=a&window=1h&max=5&fail=maybe": "fail: ", "limit=login&key=a&fail=open": "fail: only of a look at a counter", "key=a&window=1h&max=5&policy=log&fail=open": "fail: only",
	} {
		if p := asking.Refused(t, asking.Ask(h, http.MethodGet, "/v1/limit?"+query, ""), 400); !strings.Contains(p.Detail, says) {
			t.Errorf("%s: %s", query, p.Detail)
		}
	}
}
