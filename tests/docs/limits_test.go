package docs_test

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

const limitsPage = "../../docs/limits.md"

// limitsPages are those whose examples the test runs.
var limitsPages = []string{limitsPage, "../../docs/limits-counters.md", "../../docs/limits-proxies.md", "../../docs/limits-outages.md"}

// The examples run one after the other on the same servers, with the settings that the page names.
func TestLimits(t *testing.T) {
	t.Parallel()
	page := readPage(t, limitsPage)
	start := regexp.MustCompile(`(?m)^(QUERY_LIMITS_FILE=\S+) (QUERY_TRUSTED_PROXIES=\S+) make run$`).FindStringSubmatch(page)
	if start == nil {
		t.Fatal("the page does not say how to start")
	}
	file := strings.Replace(start[1], "=deploy", "="+absolute(t, "../../deploy"), 1)
	nats, redis := stack.SharedNATS(t), stack.SharedRedis(t)
	stack.Ingest(t, nats, redis)
	query := stack.Query(t, redis, file, start[2], "QUERY_TAKE=any") // make run sets any
	ran := 0
	var all []example
	for _, page := range limitsPages {
		all = append(all, examples(t, page)...)
	}
	for _, e := range all {
		if e.language == "yaml" {
			path := filepath.Join(t.TempDir(), "limits.yml")
			require.NoError(t, os.WriteFile(path, []byte(e.code), 0o600))
			stack.Query(t, redis, "QUERY_LIMITS_FILE="+path)
			continue
		}
		if e.language == "text" || e.language == "promql" {
			continue
		}
		t.Run(fmt.Sprintf("%s at line %d", e.language, e.line), func(t *testing.T) {
			ran++
			if e.prints == nil {
				t.Error("the example does not say what it prints")
			}
			e.run(t, t.TempDir(), "Q="+query.URL())
		})
	}
	require.GreaterOrEqual(t, ran, 10)
}

func readPage(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	out, err := filepath.Abs(path)
	require.NoError(t, err)
	return out
}

// redisAs is a Redis with a user who has these rights and no other.
type redisAs struct {
	server *stack.RedisServer
	user   string
}

func (r redisAs) URL() string { return "redis://" + r.user + ":s3cret@" + r.server.Addr() + "/0" }

// newUser has the rights of a user in deploy/redis-users.acl.
func newUser(t *testing.T, server *stack.RedisServer, name string) redisAs {
	t.Helper()
	stack.NewUser(t, server, name, "s3cret", stack.RightsOf(t, name)...)
	return redisAs{server, name}
}

// The rights in deploy/redis-users.acl are enough for what the pages say.
func TestRightsForLimits(t *testing.T) {
	t.Parallel()
	redis := stack.Redis(t)
	stack.Ingest(t, stack.NATS(t), redis)
	limits := "QUERY_LIMITS_FILE=" + absolute(t, "../../deploy/examples/limits.yml")
	start := func(name string) *stack.Service {
		return stack.Query(t, newUser(t, redis, name), limits, "QUERY_TAKE=any")
	}
	answersTotals := func(query *stack.Service) {
		t.Helper()
		if total, _, err := stack.FetchTotal(query.URL(), "a", "1h"); err != nil || total.Total != 0 {
			t.Errorf("total: %+v %v", total, err)
		}
	}
	for _, name := range []string{"query-take", "tallyroll"} {
		query := start(name)
		answersTotals(query)
		for _, policy := range []string{"cells", "log", "stream", "fixed"} {
			// Redis forgets scripts if it is restarted: the first take sends it again.
			require.NoError(t, redis.Client().ScriptFlush(t.Context()).Err())
			body := map[string]any{"key": name, "window": "1h", "max": 10, "policy": policy}
			for _, step := range []struct{ n, status, remaining int }{
				{4, 200, 6}, {6, 200, 0}, {1, 429, 0}, {-3, 200, 3}, {-100, 200, 10}, {-1, 200, 10}, {10, 200, 0},
			} {
				path := "/v1/take"
				if body["n"] = step.n; step.n < 0 {
					path, body["n"] = "/v1/return", -step.n
				}
				status, answer, err := stack.Do(http.MethodPost, query.URL()+path, body)
				if err != nil || status != step.status || !strings.Contains(string(answer), fmt.Sprintf(`"remaining":%d,`, step.remaining)) || strings.Contains(string(answer), `"local"`) {
					t.Errorf("%s, %s: a take of %d: %d %s %v", name, policy, step.n, status, answer, err)
				}
			}
			reset := fmt.Sprintf("%s/v1/limit?key=%s&window=1h&policy=%s", query.URL(), name, policy)
			if status, answer, err := stack.Do(http.MethodDelete, reset, nil); err != nil || status >= 300 {
				t.Errorf("%s, %s: reset: %d %s %v", name, policy, status, answer, err)
			}
		}
	}
	for _, name := range []string{"query-take", "tallyroll"} {
		query, of := start(name), map[string]any{"limit": "per-client-hour", "key": name + " settles"}
		for _, step := range []struct {
			path, id string
			n        int
			want     string
		}{
			{"take", "a", 4, `"remaining":4996,`}, {"take", "a", 4, `"repeated":true`}, {"settle", "a", 3, `"remaining":4997,`},
			{"settle", "a", 5, `"remaining":4995,`}, {"return", "b", 5, `"remaining":5000,`}, {"return", "b", 5, `"repeated":true`},
		} {
			body := maps.Clone(of)
			body["n"], body["id"] = step.n, step.id
			status, answer, err := stack.Do(http.MethodPost, query.URL()+"/v1/"+step.path, body)
			if err != nil || status != http.StatusOK || !strings.Contains(string(answer), step.want) || strings.Contains(string(answer), `"local"`) {
				t.Errorf("%s: %s %s: %d %s %v", name, step.path, step.id, status, answer, err)
			}
		}
	}
	query := start("query")
	answersTotals(query)
	status, answer, err := stack.Do(http.MethodPost, query.URL()+"/v1/take", map[string]any{"limit": "login", "key": "a"})
	if err != nil || status != http.StatusServiceUnavailable || !strings.Contains(string(answer), "right") {
		t.Errorf("a take of a user who may only read: %d %s %v", status, answer, err)
	}
}
