package query

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/access"
	"tallyroll/internal/live"
	"tallyroll/internal/window"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// A key that something else has written is named to whoever runs into it, with a
// status that does not tell to wait, and to nobody else. Its type may be another one, or its value.
func TestForeignKeys(t *testing.T) {
	t.Parallel()
	server, now := stack.Redis(t), asking.Now()
	client := server.Client()
	shard := asking.Layout(t).ShardOf(window.HashCounter([]byte("a")))
	stringInstead := func(key string) error { return client.Set(t.Context(), key, "mine", 0).Err() }
	hashInstead := func(key string) error { return client.HSet(t.Context(), key, "created", "mine").Err() }
	all := []string{"/v1/total?key=a&window=10m", "/v1/series?key=a", "/v1/live?key=a&window=10m", "/v1/top?window=10m", "/v1/counters"}
	// Of the same shard or not, b's key is in order.
	others := []string{"/v1/total?key=b&window=10m", "/v1/series?key=b", "/v1/live?key=b&window=10m"}
	for _, c := range []struct {
		name, pattern string
		spoil         func(key string) error
		asked, fine   []string
		notReady      bool
	}{
		{"cells of another type", fmt.Sprintf("test:{%d}:h:1m:*:a", shard), stringInstead, all[:3], others, false},
		{"cells of another kind", fmt.Sprintf("test:{%d}:h:1m:*:a", shard), hashInstead, all[:3], others, false},
		{"a cursor of another type", fmt.Sprintf("test:{%d}:cursor:HITS", shard), stringInstead, all, nil, false},
		{"a cursor of another kind", fmt.Sprintf("test:{%d}:cursor:HITS", shard), hashInstead, all, nil, false},
		{"a summary of another type", fmt.Sprintf("test:{%d}:top:1h:*", shard), hashInstead, all[3:4], all[:3], false},
		{"a summary of another kind", fmt.Sprintf("test:{%d}:top:1h:*", shard), stringInstead, all[3:4], all[:3], false},
		{"names of another type", fmt.Sprintf("test:{%d}:names:*", shard), stringInstead, all[4:], all[:4], false},
		{"streams of another type", "test:streams", stringInstead, all, nil, true},
		{"streams of another kind", "test:streams", hashInstead, all, nil, true},
		{"a layout of another type", "test:layout", hashInstead, all, nil, true},
		{"a layout of another kind", "test:layout", stringInstead, all, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.NoError(t, client.FlushAll(t.Context()).Err())
			asking.Seed(t, client, now, asking.Hits("a", now.Add(-time.Minute), 3), asking.Hits("b", now.Add(-time.Minute), 4))
			keys := stack.Scan(t, client, c.pattern)
			if len(keys) == 0 {
				t.Fatalf("there is no %s", c.pattern)
			}
			for _, key := range keys {
				require.NoError(t, client.Del(t.Context(), key).Err())
				require.NoError(t, c.spoil(key))
			}
			s := onRedis(t, server.URL(), now)
			watched(t, s)
			h := s.handler()
			for _, target := range c.asked {
				resp := asking.Ask(h, http.MethodGet, target, "")
				p := asking.Refused(t, resp, http.StatusInternalServerError)
				named := false
				for _, key := range keys {
					named = named || strings.Contains(p.Detail, key)
				}
				if !named || resp.Header.Get("Retry-After") != "" {
					t.Errorf("%s: %q, Retry-After %q; want the key %v named", target, p.Detail, resp.Header.Get("Retry-After"), keys)
				}
			}
			for _, target := range c.fine {
				method := http.MethodGet
				if strings.HasPrefix(target, live.Path) {
					method = http.MethodHead // it would not end otherwise
				}
				if resp := asking.Ask(h, method, target, ""); resp.StatusCode != http.StatusOK {
					t.Errorf("%s: %d %s", target, resp.StatusCode, asking.ReadAll(t, resp))
				}
			}
			if !c.notReady {
				eventuallyReady(t, h, http.StatusOK)
				return
			}
			eventuallyReady(t, h, http.StatusServiceUnavailable)
			stack.Eventually(t, "/readyz to name the key", func() (bool, string) {
				text := string(asking.ReadAll(t, asking.Ask(h, http.MethodGet, "/readyz/answers", "")))
				return strings.Contains(text, keys[0]), text
			})
		})
	}
}

// In a batch one key fails the request, which names it; a listener at /v1/live
// beside it goes on.
func TestForeignKeyBesideOthers(t *testing.T) {
	t.Parallel()
	server, now := stack.Redis(t), asking.Now()
	client := server.Client()
	asking.Seed(t, client, now, asking.Hits("a", now.Add(-time.Minute), 3), asking.Hits("b", now.Add(-time.Minute), 4))
	for _, key := range stack.Scan(t, client, "test:*:h:1m:*:a") {
		require.NoError(t, client.Set(t.Context(), key, "mine", redis.KeepTTL).Err())
	}
	s := onRedis(t, server.URL(), now)
	h := s.handler()
	p := asking.Refused(t, asking.Ask(h, http.MethodPost, "/v1/total", `{"keys":["b","a"],"windows":["10m","1h"]}`), http.StatusInternalServerError)
	if !strings.Contains(p.Detail, ":h:1m:") || !strings.HasSuffix(strings.SplitN(p.Detail, " is not Tallyroll's", 2)[0], ":a") {
		t.Errorf("detail %q", p.Detail)
	}
	watched(t, s)
	beside := make(chan string)
	go func() { beside <- firstEvent(t, h, "key=b&window=10m") }()
	if p := asking.Refused(t, asking.Ask(h, http.MethodGet, "/v1/live?key=a&window=10m", ""), http.StatusInternalServerError); !strings.Contains(p.Detail, ":a") {
		t.Errorf("a is told %q", p.Detail)
	}
	if event := <-beside; !strings.Contains(event, `"total":4`) {
		t.Errorf("b is told %s", event)
	}
}

// The clock of this machine is four minutes behind: answers are right, and a metric says by how much.
func TestAnswersGoByTheClockOfRedis(t *testing.T) {
	t.Parallel()
	server, now := stack.Redis(t), asking.Now()
	asking.Seed(t, server.Client(), now, asking.Hits("a", now.Add(-time.Minute), 3))
	s := onRedis(t, server.URL(), now)
	local := now.Add(-4 * time.Minute)
	s.answers.Reader.(access.Reader).Namespace.(*window.Reader).Local = func() time.Time { return local }
	holdClock(s, local)
	h := s.handler()
	got := answered(t, asking.Ask(h, http.MethodGet, "/v1/total?key=a&window=10m", "")).Totals[0]
	if got.Total != 3 || got.Lower != 3 || !got.To.Equal(now) {
		t.Errorf("%+v", got)
	}
	if text := string(asking.ReadAll(t, asking.Ask(h, http.MethodGet, "/metrics", ""))); !strings.Contains(text, "\ntallyroll_query_clock_difference_seconds{clock=\"redis\"} 240\n") {
		t.Errorf("no clock is 240 s ahead in\n%s", text)
	}
}
