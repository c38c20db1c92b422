package e2e_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// canary is in every unique value of the test, and nowhere else.
const canary = "c4n4ry"

// A unique value is hashed, and forgotten. Whatever becomes of its hit, it is in no log, in no key or file of
// Redis and in no answer. JetStream alone holds it, in the producer's message.
func TestUniqueValuesAreKeptNowhere(t *testing.T) {
	t.Parallel()
	rules := file(t, "rules.yml", "- {stream: HITS, subject: hits.events, count: [{key: events, unique: '{unique}/{x}'}]}\n")
	s := start(t, "LOG_LEVEL=debug", "INGEST_MAX_HITS=20", "INGEST_RULES="+rules)
	query := s.startQuery("QUERY_ERASE=on", "LOG_LEVEL=debug")
	collect := stack.Collect(t, s.nats, "LOG_LEVEL=debug")
	var printed strings.Builder // by programs that end
	once := func(program, stdin string, args ...string) {
		t.Helper()
		code, out := runToEndWith(t, program, strings.NewReader(stdin), args, "NATS_URL="+s.nats.URL(), "REDIS_URL="+s.redis.URL(), "LOG_LEVEL=debug", "INGEST_MAX_HITS=20")
		require.Zerof(t, code, "%s %v: %s", program, args, out)
		printed.WriteString(out)
	}
	hit := func(n int) string { return fmt.Sprintf(`{"key":"visitors","unique":"%s-%d"}`, canary, n) }
	bad := []string{
		`"` + canary + strings.Repeat("x", 600) + `"`, `["` + canary + `"]`, `{"` + canary + `":1}`, `"` + canary + `\ud83d"`, "\"" + canary + "\xff\"",
		`"` + canary, canary, `"` + canary + `","n":0`, `"` + canary + `","ts":1`, `"` + canary + `","uniq":"` + canary + `"`,
		fmt.Sprintf(`"%s","ts":%d`, canary, time.Now().Add(time.Hour).UnixMilli()),
	}
	for i, value := range bad {
		s.send("hits.x", hit(i)+"\n"+`{"key":"visitors","unique":`+value+`}`)
		s.send("hits.events", `[{"x":1,"unique":`+value+`},{"unique":"`+canary+`"},{"x":1,"unique":"`+canary+`"}]`)
	}
	s.send("hits.x", strings.Repeat(hit(1)+"\n", 21)) // too many
	bodies := []string{hit(100)}
	for _, value := range bad {
		bodies = append(bodies, `{"key":"visitors","unique":`+value+`}`)
	}
	for _, body := range bodies {
		_, answer := post(collect, body)
		require.NotContains(t, answer, canary)
	}
	once("publish", strings.Join(append(bodies, hit(200)), "\n")+"\n", "--format", "ndjson")
	once("publish", canary+` - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 1`+"\n", "--unique", "host", "--rebase", "now")
	stack.EventuallyTotal(t, query.URL(), "visitors", "24h", int64(len(bad)+1+2)) // sent; by collect; by publish
	refused := s.countRejects()
	if refused < uint64(2*len(bad)) {
		t.Errorf("%d rejects", refused)
	}
	once("redrive", "", "--dry-run", "--ts", "now", "--reason", "bad_json,bad_key,bad_count,bad_unique,future,too_late,too_large")
	once("redrive", "", "--ts", "now")
	once("redrive", "", "--reason", "bad_unique,bad_json,bad_count")
	s.send("hits.last", "")
	s.awaitTotal("last", 1)
	s.awaitAllCounted()
	once("audit", "")

	ask := func() {
		t.Helper()
		from := url.QueryEscape(time.Now().Add(-time.Hour).Format(time.RFC3339))
		for _, path := range []string{
			"/v1/rejects?limit=100", "/v1/rejects?limit=100&reason=bad_unique", "/v1/total?key=visitors&window=24h", "/v1/uniques?key=visitors&key=events&window=24h", "/v1/series?key=visitors&of=uniques",
			"/v1/top?window=1h", "/v1/counters?totals=1", "/v1/export?step=15m&from=" + from, "/v1/streams", "/v1/about", "/probe?key=visitors&window=1h", "/metrics", "/",
		} {
			status, answer, err := stack.Do(http.MethodGet, query.URL()+path, nil)
			if err != nil || status != http.StatusOK || bytes.Contains(answer, []byte(canary)) {
				t.Errorf("%s: status %d, %v: %s", path, status, err, answer)
			}
			if strings.HasPrefix(path, "/v1/rejects") && strings.Count(string(answer), "…") < len(bad) {
				t.Errorf("%s hides too little, or shows nothing: %s", path, answer)
			}
		}
	}
	ask()
	holds := func(what, text string) {
		t.Helper()
		if at := strings.Index(text, canary); at >= 0 {
			t.Errorf("%s: …%q…", what, text[max(0, at-200):min(len(text), at+100)])
		}
	}
	scan := func() (keys int) {
		t.Helper()
		for _, key := range stack.Scan(t, s.redis.Client(), "*") {
			keys++
			holds("a key", key)
			ctx, client := t.Context(), s.redis.Client()
			var value any
			switch kind := client.Type(ctx, key).Val(); kind {
			case "string":
				value = client.Get(ctx, key).Val()
			case "hash":
				value = client.HGetAll(ctx, key).Val()
			case "zset":
				value = client.ZRange(ctx, key, 0, -1).Val()
			case "none": // it has expired
			default:
				t.Errorf("%s is a %s", key, kind)
			}
			holds(key, fmt.Sprint(value))
		}
		return keys
	}
	if keys := scan(); keys < 20 {
		t.Errorf("%d keys", keys)
	}
	if status, answer, err := stack.Do(http.MethodDelete, query.URL()+"/v1/counters?key=visitors", nil); status != http.StatusOK || err != nil {
		t.Errorf("erase: status %d, %v: %s", status, err, answer)
	}
	scan()
	ask()
	s.ingest.Stop()
	query.Stop()
	collect.Stop()
	for name, text := range map[string]string{"ingest": s.ingest.Logs(), "query": query.Logs(), "collect": collect.Logs(), "publish, redrive or audit": printed.String()} {
		holds(name, text)
		if len(text) < 100 {
			t.Errorf("%s has said too little: %q", name, text)
		}
	}
	require.NoError(t, filepath.WalkDir(s.redis.Dir(), func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			holds(path, read(t, path))
		}
		return err
	}))
}
