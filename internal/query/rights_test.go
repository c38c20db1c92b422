package query

import (
	"bufio"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/access"
	"tallyroll/internal/boot"
	"tallyroll/internal/buildinfo"
	"tallyroll/internal/gate"
	"tallyroll/internal/web"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// tokensFile writes a file of tokens, whose secrets are their names.
func tokensFile(t testing.TB, entries ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens.yml")
	writeTokens(t, path, entries...)
	return path
}

// writeTokens writes entries of a name and fields. A change is whole at once, as those of a careful operator are.
func writeTokens(t testing.TB, path string, entries ...string) {
	t.Helper()
	text := "tokens:\n"
	for _, e := range entries {
		name, fields, _ := strings.Cut(e, " ")
		text += fmt.Sprintf("  - {name: %s, sha256: %x, %s}\n", name, sha256.Sum256([]byte(name)), fields)
	}
	require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
	require.NoError(t, os.Rename(path+".new", path))
}

func fileSettings(file string) Settings {
	settings := testSettings
	settings.TokensFile = file
	return settings
}

// way is a way to see or to change counters that a token is not about, or to use a right that it has not.
type way struct {
	name, method, target, body string
	headers                    []string
	as                         string // the token; narrow by default
	status                     int    // that it gets; 403 by default
	// proof is in the answer to a token that may all this, and not in the other one's; %d is the hits of the others.
	proof string
	full  int // the status with that token; 200 by default
}

// others are counters outside of the prefix a., with othersHits each. They are written much like those inside.
var others = []string{
	"b.OTHER", "a", "aOTHER", "A.OTHER", "a OTHER", " a.OTHER", "ab.OTHER", "b.a.OTHER", "á.OTHER", "ａ.OTHER", "а.OTHER", "a․OTHER", "a/OTHER", "%61.OTHER",
	"a,OTHER", "\\.OTHER", "zOTHER.x", "ſ.OTHER", "…OTHER",
}

const othersHits, othersUniques = 7919, 7

func q(text string) string { return url.QueryEscape(text) }

// ways are what is tried. Those that change something come last, so that they are shown to work after all others.
func ways(now time.Time, fullResume, ownResume string) []way {
	hits := fmt.Sprintf(":%d", othersHits)
	then := func(ago time.Duration) string { return fmt.Sprint(now.Add(-ago).UnixMilli()) }
	out := []way{
		{name: "an array with one of another", target: "/v1/total?key=a.x&key=b.OTHER&window=1h", proof: hits},
		{name: "the same, the other way round", target: "/v1/total?key=b.OTHER&key=a.x&window=1h", proof: hits},
		{name: "several windows", target: "/v1/total?key=b.OTHER&window=1h&window=30m", proof: hits},
		{name: "an earlier moment", target: "/v1/total?key=b.OTHER&window=30m&at=" + then(0), proof: hits},
		{name: "a range", target: "/v1/total?key=b.OTHER&from=" + then(50*time.Minute) + "&to=" + then(0), proof: hits},
		{name: "a percent sign more", target: "/v1/total?key=%62.OTHER&window=1h", proof: hits},
		{name: "escaped dots", target: "/v1/total?key=b%2EOTHER&window=1h", proof: hits},
		{name: "a plus", target: "/v1/total?key=a+OTHER&window=1h", proof: hits},
		{name: "a path with a dot", target: "/v1/./total?key=b.OTHER&window=1h", proof: hits},
		{name: "an escaped path", target: "/%761/t%6ftal?key=b.OTHER&window=1h", proof: hits},
		{name: "two tokens", target: "/v1/total?key=b.OTHER&window=1h", headers: []string{"Authorization", "Bearer another"}, proof: hits},
		{name: "headers of proxies", target: "/v1/total?key=b.OTHER&window=1h", headers: []string{"X-Forwarded-User", "full", "X-Original-Url", "/v1/about", "X-Forwarded-For", "127.0.0.1", "Forwarded", "for=127.0.0.1"}, proof: hits},
		{name: "a method override", method: http.MethodPost, target: "/v1/total", body: `{"keys":["b.OTHER"],"windows":["1h"]}`, headers: []string{"X-Http-Method-Override", "GET"}, proof: hits},
		{name: "HEAD", method: http.MethodHead, target: "/v1/total?key=b.OTHER&window=1h"},

		{name: "a body", method: http.MethodPost, target: "/v1/total", body: `{"keys":["a.x","b.OTHER"],"windows":["1h"]}`, proof: hits},
		{name: "a body with escapes", method: http.MethodPost, target: "/v1/total", body: `{"keys":["\u0062.OTHER"],"windows":["1h"]}`, proof: hits},
		{name: "a body with a prefix", method: http.MethodPost, target: "/v1/total", body: `{"prefix":"b.","windows":["1h"]}`, proof: fmt.Sprint(3 * othersHits)},
		{name: "a body with a wider prefix", method: http.MethodPost, target: "/v1/total", body: `{"prefix":"a","group":1,"windows":["1h"]}`, proof: hits},
		{name: "a sum", target: "/v1/total?prefix=b.&window=1h", proof: fmt.Sprint(3 * othersHits)},
		{name: "a wider sum", target: "/v1/total?prefix=a&window=1h", proof: `"total"`},
		{name: "a sum in groups", target: "/v1/total?prefix=a&group=1&window=1h", proof: "aOTHER"},
		{name: "a sum in capitals", target: "/v1/total?prefix=A.&window=1h", proof: hits},
		{name: "a sum in another alphabet", target: "/v1/total?prefix=" + q("а.") + "&window=1h", proof: hits},

		{name: "uniques", target: "/v1/uniques?key=b.OTHER&window=1h", proof: fmt.Sprintf(`"estimate":%d`, othersUniques)},
		{name: "uniques beside mine", target: "/v1/uniques?key=a.x&key=b.OTHER&window=1h", proof: fmt.Sprintf(`"estimate":%d`, othersUniques)},
		{name: "uniques of a range", target: "/v1/uniques?key=b.OTHER&from=" + then(50*time.Minute), proof: fmt.Sprintf(`"estimate":%d`, othersUniques)},
		{name: "uniques by a body", method: http.MethodPost, target: "/v1/uniques", body: `{"keys":["a.x","b.OTHER"],"windows":["1h"]}`, proof: fmt.Sprintf(`"estimate":%d`, othersUniques)},
		{name: "uniques step by step", target: "/v1/series?key=b.OTHER&of=uniques", proof: fmt.Sprintf(",%d]", othersUniques)},
		{name: "a table of uniques", target: "/v1/series?key=a.x&key=b.OTHER&of=uniques&format=csv", proof: fmt.Sprintf(",%d,", othersUniques)},

		{name: "a series", target: "/v1/series?key=b.OTHER", proof: fmt.Sprintf(",%d]", othersHits)},
		{name: "a table", target: "/v1/series?key=b.OTHER&format=csv", proof: fmt.Sprintf(",%d,", othersHits)},
		{name: "a table by Accept", target: "/v1/series?key=b.OTHER", headers: []string{"Accept", "text/csv"}, proof: fmt.Sprintf(",%d,", othersHits)},
		{name: "a table of groups", target: "/v1/series?group=2&format=csv&limit=100", status: http.StatusOK, proof: "OTHER"},
		{name: "several series", target: "/v1/series?key=a.x&key=b.OTHER", proof: fmt.Sprintf(",%d]", othersHits)},
		{name: "days", target: "/v1/series?key=b.OTHER&step=1d", proof: fmt.Sprintf(",%d]", othersHits)},
		{name: "a sum of series", target: "/v1/series?prefix=b.", proof: fmt.Sprintf(",%d]", 3*othersHits)},
		{name: "a wider sum of series", target: "/v1/series?prefix=a", proof: `"points"`},
		{name: "groups", target: "/v1/series?group=2&limit=100", status: http.StatusOK, proof: "OTHER"},
		{name: "groups with an empty prefix", target: "/v1/series?prefix=&group=2&limit=100", status: http.StatusOK, proof: "OTHER"},
		{name: "the other groups", target: "/v1/series?group=2&limit=1", status: http.StatusOK, proof: `"groups":21`},

		{name: "the largest", target: "/v1/top?window=1h", status: http.StatusOK, proof: "OTHER"},
		{name: "the floor", target: "/v1/top?window=1h&limit=1", status: http.StatusOK, proof: fmt.Sprintf(`"floor":%d`, othersHits)},
		{name: "the largest with a prefix", target: "/v1/top?window=1h&prefix=b.", proof: "OTHER"},
		{name: "the largest with a wider prefix", target: "/v1/top?window=1h&prefix=a", proof: "OTHER"},
		{name: "the largest groups", target: "/v1/top?window=1h&group=1&limit=100", status: http.StatusOK, proof: "OTHER"},
		{name: "the largest groups with an empty prefix", target: "/v1/top?window=1h&group=1&limit=100&prefix=", status: http.StatusOK, proof: "OTHER"},
		{name: "the largest of before", target: "/v1/top?window=30m&at=" + then(time.Minute), status: http.StatusOK, proof: "OTHER"},

		{name: "names", target: "/v1/counters", status: http.StatusOK, proof: "OTHER"},
		{name: "names with totals", target: "/v1/counters?totals=1", status: http.StatusOK, proof: hits},
		{name: "names with a prefix", target: "/v1/counters?prefix=b.", proof: "OTHER"},
		{name: "names with a wider prefix", target: "/v1/counters?prefix=a", proof: "OTHER"},
		{name: "names in capitals", target: "/v1/counters?prefix=A", proof: "OTHER"},
		{name: "names that match", target: "/v1/counters?match=other", status: http.StatusOK, proof: "OTHER"},
		{name: "names that match as Unicode folds", target: "/v1/counters?match=" + q("ſ"), status: http.StatusOK, proof: "ſ.OTHER"},
		{name: "names after mine", target: "/v1/counters?after=a.zzz", status: http.StatusOK, proof: "b.OTHER"},
		{name: "names after the end of mine", target: "/v1/counters?after=b.", status: http.StatusOK, proof: "b.OTHER"},
		{name: "names after and matching", target: "/v1/counters?after=a&match=OTHER&limit=1", status: http.StatusOK, proof: "OTHER"},

		{name: "an export", target: "/v1/export?from=" + then(50*time.Minute), status: http.StatusOK, proof: "OTHER"},
		{name: "an export with a prefix", target: "/v1/export?prefix=b.&from=" + then(50*time.Minute), proof: "OTHER"},
		{name: "an export with a wider prefix", target: "/v1/export?prefix=a&from=" + then(50*time.Minute), proof: "OTHER"},
		{name: "an export by lines", target: "/v1/export?format=ndjson&from=" + then(50*time.Minute), status: http.StatusOK, proof: "OTHER"},
		{name: "an export from another counter on", target: "/v1/export?after=b&from=" + then(50*time.Minute), status: http.StatusOK, proof: "b.OTHER"},
		{name: "somebody's export of a prefix", target: "/v1/export?resume=" + ownResume, proof: "b.OTHER"},
		{name: "somebody's export of all", target: "/v1/export?resume=" + fullResume, status: http.StatusOK, proof: "b.OTHER"},
		{name: "somebody's export that is empty", target: "/v1/export?resume=" + alteredToken(ownResume, func(t map[string]any) { t["t"] = t["f"] }), proof: "key,from"},
		{name: "a forged place inside a counter", target: "/v1/export?resume=" + alteredToken(fullResume, func(t map[string]any) { t["c"], t["i"] = "b.OTHE", t["f"] }), status: http.StatusOK, proof: "b.OTHER"},

		{name: "live", target: "/v1/live?key=b.OTHER&window=1h", proof: hits},
		{name: "live beside mine", target: "/v1/live?key=a.x&key=b.OTHER&window=1h", proof: hits},
		{name: "live again", target: "/v1/live?key=b.OTHER&window=1h", headers: []string{"Last-Event-ID", "1-1-1-true"}, proof: hits},

		{name: "a probe", target: "/probe?key=b.OTHER&window=1h", proof: fmt.Sprintf(" %d", othersHits)},
		{name: "a probe beside mine", target: "/probe?key=a.x&key=b.OTHER&window=1h", proof: fmt.Sprintf(" %d", othersHits)},
		{name: "a probe of the largest", target: "/probe?top=20&window=1h", status: http.StatusOK, proof: "OTHER"},
		{name: "a probe of a prefix", target: "/probe?prefix=b.&window=1h", proof: "OTHER"},
		{name: "a probe of a wider prefix", target: "/probe?prefix=a&window=1h", proof: "OTHER"},

		{name: "a judgement", target: "/v1/limit?key=b.OTHER&window=1h&max=10", proof: `"allowed":false`},
		{name: "a judgement in a body", target: "/v1/limit?key=b.OTHER&window=1h&max=9007199254740992&n=0", proof: fmt.Sprint(1<<53 - othersHits)},
		{name: "a judgement that fails open", target: "/v1/limit?key=b.OTHER&window=1h&max=10&fail=open", proof: `"allowed":false`},

		{name: "a judgement without read", as: "taker", target: "/v1/limit?key=a.x&window=1h&max=10", proof: `"allowed"`},
		{name: "a total without read", as: "operator", target: "/v1/total?key=a.x&window=1h", proof: `"total"`},
		{name: "about without read", as: "taker", target: "/v1/about", proof: `"tiers"`},
		{name: "a take without take", as: "reader", method: http.MethodPost, target: "/v1/take", body: `{"limit":"login","key":"alice"}`, proof: `"allowed"`},
		{name: "numbers without take", as: "reader", method: http.MethodPost, target: "/v1/take", body: `{"key":"a.x","window":"1m","max":10}`, proof: `"allowed"`},
		{name: "a renewal without take", as: "reader", method: http.MethodPost, target: "/v1/renew", body: `{"limit":"exports","key":"alice","lease":"a"}`, proof: `lease-ended`, full: http.StatusConflict},
		{name: "a release without take", as: "reader", method: http.MethodPost, target: "/v1/release", body: `{"limit":"exports","key":"alice","lease":"a"}`, proof: `"released":false`},
		{name: "a look without take", as: "reader", target: "/v1/limit?limit=login&key=alice", proof: `"allowed"`},
		{name: "a proxy's question without take", as: "reader", target: "/v1/authz?limit=per-agent", proof: `"allowed"`},
		{name: "the same by POST", as: "reader", method: http.MethodPost, target: "/v1/authz?limit=per-agent", proof: `"allowed"`},
		{name: "Envoy's question without take", as: "reader", target: "/v1/authz/per-agent/x/y", proof: `"allowed"`},
		{name: "states of rules without read", target: "/v1/watch", as: "taker", proof: "NATS_URL", full: http.StatusNotImplemented}, // and TestWatchOfAToken
		{name: "states of rules about a key", target: "/v1/watch?key=b.OTHER", proof: "NATS_URL", full: http.StatusNotImplemented},
		{name: "limits without admin", target: "/v1/limits", proof: `"login"`},
		{name: "streams without admin", target: "/v1/streams", proof: "NATS_URL", full: http.StatusNotImplemented},
		{name: "rejects without admin", target: "/v1/rejects", proof: "NATS_URL", full: http.StatusNotImplemented},

		{name: "a reset without admin", method: http.MethodDelete, target: "/v1/limit?limit=login&key=alice", full: http.StatusNoContent},
		{name: "erasing without erase", as: "reader", method: http.MethodDelete, target: "/v1/counters?key=a.x", proof: `"erased":1`},
		{name: "erasing", method: http.MethodDelete, target: "/v1/counters?key=b.OTHER", proof: `"erased":1`},
		{name: "erasing a prefix", method: http.MethodDelete, target: "/v1/counters?prefix=b.&confirm=2", proof: `"erased":2`},
		{name: "erasing what contains mine", method: http.MethodDelete, target: "/v1/counters?prefix=a&confirm=8", proof: `"erased":8`},
	}
	for _, key := range others { // each is a name that a sloppy comparison could take for one of a.
		out = slices.Insert(out, 0, way{name: "the counter " + key, target: "/v1/total?key=" + q(key) + "&window=1h", proof: hits})
	}
	return out
}

// alteredToken changes what a token of an export says, as whoever has one can.
func alteredToken(token string, change func(map[string]any)) string {
	all, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		panic(err)
	}
	var says map[string]any
	decoder := json.NewDecoder(strings.NewReader(string(all[6:])))
	decoder.UseNumber()
	if err := decoder.Decode(&says); err != nil {
		panic(err)
	}
	change(says)
	body, _ := json.Marshal(says)
	sum := sha256.Sum256(body)
	return base64.RawURLEncoding.EncodeToString(append(sum[:6], body...))
}

// send sends a way's request with a token, and returns what came: of a stream, the beginning.
func (w way) send(t *testing.T, server *httptest.Server, token string) (int, string) {
	t.Helper()
	method := w.method
	if method == "" {
		method = http.MethodGet
	}
	req, err := http.NewRequestWithContext(t.Context(), method, server.URL+w.target, strings.NewReader(w.body))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+token)
	for i := 0; i < len(w.headers); i += 2 {
		req.Header.Add(w.headers[i], w.headers[i+1])
	}
	resp, err := server.Client().Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	if resp.Header.Get("Content-Type") == "text/event-stream" {
		lines, text := bufio.NewScanner(resp.Body), ""
		for lines.Scan() && strings.Count(text, "data:") < strings.Count(w.target, "key=") {
			text += lines.Text() + "\n"
		}
		return resp.StatusCode, text
	}
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body)
}

// A token sees and changes what it may, and nothing else, whichever way it tries. Each way is shown to work with a token
// that may.
func TestATokenKeepsToItsOwn(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	samples := []asking.Sample{asking.Hits("a.x", now.Add(-10*time.Minute), 3), asking.Hits("a.y.z", now.Add(-10*time.Minute), 5), asking.Hits("b.two", now.Add(-10*time.Minute), othersHits)}
	for _, name := range others {
		samples = append(samples, asking.Hits(name, now.Add(-10*time.Minute), othersHits))
	}
	asking.Seed(t, redis.Client(), now, samples...)
	asking.Came(t, redis.Client(), "b.OTHER", now.Add(-10*time.Minute), strings.Split("abcdefg", "")...)
	settings := fileSettings(tokensFile(t,
		"narrow may: [read, take, erase], prefixes: [a.]",
		"reader may: [read], prefixes: [a.]", "taker may: [take], prefixes: [a.]", "operator may: [admin]",
		"full may: [read, take, erase, admin]",
	))
	s := onRedisWith(t, redis.URL(), now, settings)
	watched(t, s)
	h := s.handler()
	eventuallyReady(t, h, http.StatusOK)
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	resumeOf := func(query string) string {
		return asking.Ask(h, http.MethodHead, "/v1/export?from="+fmt.Sprint(now.Add(-50*time.Minute).UnixMilli())+query, "", "Authorization", "Bearer full").Header.Get(resumeHeader)
	}
	all := ways(now, resumeOf(""), resumeOf("&prefix=b."))
	if len(all) < 60 {
		t.Fatalf("%d ways", len(all))
	}
	everything := way{target: "/v1/export?from=" + fmt.Sprint(now.Add(-50*time.Minute).UnixMilli())}
	_, before := everything.send(t, server, "full")
	for _, w := range all {
		as, want := w.as, w.status
		if as == "" {
			as = "narrow"
		}
		if want == 0 {
			want = http.StatusForbidden
		}
		status, body := w.send(t, server, as)
		if status != want {
			t.Errorf("%s: status %d, want %d: %s", w.name, status, want, body)
		}
		if w.proof != "" && strings.Contains(body, w.proof) || strings.Contains(body, fmt.Sprint(othersHits)) || status == http.StatusOK && strings.Contains(body, "OTHER") {
			t.Errorf("%s: the token sees what is not its own: %s", w.name, body)
		}
		if status == http.StatusForbidden && body != "" && !strings.Contains(body, "token "+as) {
			t.Errorf("%s: the problem does not name the token: %s", w.name, body)
		}
		// The same about counters that do not exist has the same answer.
		rename := strings.NewReplacer("OTHER", "NOONE", "7919", "7918")
		absent := w
		absent.target, absent.body = rename.Replace(w.target), rename.Replace(w.body)
		if want != http.StatusForbidden || absent.target == w.target && absent.body == w.body {
			continue
		}
		if missing, text := absent.send(t, server, as); missing != status || text != rename.Replace(body) {
			t.Errorf("%s: without the counter the answer is %d %s, and with it %d %s", w.name, missing, text, status, body)
		}
	}
	if _, after := everything.send(t, server, "full"); after != before {
		t.Errorf("the counters have changed from\n%s\nto\n%s", before, after)
	}
	for _, w := range all {
		want := w.full
		if want == 0 {
			want = http.StatusOK
		}
		if status, body := w.send(t, server, "full"); status != want || !strings.Contains(body, w.proof) {
			t.Errorf("%s, with all rights: status %d, want %d and %s: %s", w.name, status, want, w.proof, body)
		}
	}
	checkRoutes(t, h, all)
}

// checkRoutes fails if a documented route has no right, or if no way is tried at it.
func checkRoutes(t *testing.T, h http.Handler, all []way) {
	t.Helper()
	tried := make(map[string]bool)
	for _, w := range all {
		u, err := url.Parse(w.target)
		require.NoError(t, err)
		for _, route := range []string{w.method + " " + u.Path, "GET " + u.Path} {
			if _, ok := rights[strings.TrimSpace(route)]; ok {
				tried[route] = true
				break
			}
		}
		if strings.HasPrefix(u.Path, gate.AuthzPath+"/") {
			tried[gate.AuthzPath+"/{limit}"] = true
		} else if gate.IsAuthz(u.Path) {
			tried[gate.AuthzPath] = true
		}
	}
	var document struct{ Paths map[string]map[string]any }
	require.NoError(t, json.Unmarshal(asking.ReadAll(t, asking.Ask(h, http.MethodGet, "/openapi.json", "")), &document))
	open := []string{"/healthz", "/readyz", "/readyz/answers", "/readyz/takes", "/metrics"}
	documented := make(map[string]bool)
	for path, methods := range document.Paths {
		if slices.Contains(open, path) {
			continue
		}
		for method := range methods {
			route := strings.ToUpper(method) + " " + path
			if gate.IsAuthz(path) {
				route = path
			}
			documented[route] = true
			if rights[route] == "" {
				t.Errorf("%s needs no right: add it to rights, or to the open routes of this test", route)
			}
			if !tried[route] {
				t.Errorf("no way is tried at %s", route)
			}
		}
	}
	for route := range rights {
		if !documented[route] {
			t.Errorf("%s has a right and is not documented", route)
		}
	}
}

// A route that nobody has given a right is closed to every token.
func TestARouteWithoutARight(t *testing.T) {
	t.Parallel()
	tokens := tokensOf(t, "secret")
	r := httptest.NewRequest(http.MethodGet, "/v1/new", nil)
	r.Header.Set("Authorization", "Bearer secret")
	token, p := tokens.Find(r)
	if p != nil {
		t.Fatal(p)
	}
	if p := refuseRight(token, "GET /v1/new"); p == nil || p.Type != web.TokenLacksRight.Type() {
		t.Errorf("%+v", p)
	}
}

// The lists of a token with prefixes have exactly what they would have if there were no other counters.
func TestNarrowListsAreExact(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	at := now.Add(-10 * time.Minute)
	var samples []asking.Sample
	var own []string
	for i := range 40 {
		for k, prefix := range []string{"a.", "a", "b.", "c.", "c.deep.", "d", "z"} {
			name := fmt.Sprintf("%s%02d", prefix, i)
			samples = append(samples, asking.Hits(name, at, int64(1+i*7+k)), asking.Hits(name, at.Add(-5*time.Minute), 2))
			if strings.HasPrefix(name, "a.") || strings.HasPrefix(name, "c.") || strings.HasPrefix(name, "zz") {
				own = append(own, name)
			}
		}
	}
	slices.Sort(own)
	asking.Seed(t, redis.Client(), now, samples...)
	s := onRedisWith(t, redis.URL(), now, fileSettings(tokensFile(t, "own may: [read], prefixes: [zz, c.deep., c., a., nobody.]", "full may: [read]")))
	h := s.handler()
	get := func(as, target string, into any) {
		t.Helper()
		resp := asking.Ask(h, http.MethodGet, target, "", "Authorization", "Bearer "+as)
		data := asking.ReadAll(t, resp)
		if resp.StatusCode != http.StatusOK || into != nil && json.Unmarshal(data, into) != nil {
			t.Fatalf("%s: %d %s", target, resp.StatusCode, data)
		}
	}
	type page struct {
		Counters []string
		Totals   []struct {
			Key   string
			Total int64
		}
		Next string
	}
	for _, limit := range []int{1, 7, 40, 80, 1000} {
		for _, match := range []string{"", "1", "deep", "nothing"} {
			var want, found []string
			for _, name := range own {
				if strings.Contains(name, match) {
					want = append(want, name)
				}
			}
			for after, pages := "", 0; ; pages++ {
				var p page
				target := fmt.Sprintf("/v1/counters?limit=%d&totals=1", limit)
				if match != "" {
					target += "&match=" + match
				}
				if after != "" {
					target += "&after=" + q(after)
				}
				get("own", target, &p)
				found = append(found, p.Counters...)
				if len(p.Counters) > limit || len(p.Totals) != len(p.Counters) {
					t.Fatalf("limit %d: %+v", limit, p)
				}
				if after = p.Next; after == "" {
					break
				}
				if pages > len(own)+3 {
					t.Fatalf("limit %d: the pages have no end", limit)
				}
			}
			if !slices.Equal(found, want) {
				t.Errorf("limit %d, match %q: %d names, want %d:\n%q", limit, match, len(found), len(want), found)
			}
		}
	}
	var top, sums struct {
		Floor int64
		Top   []struct {
			Key   string
			Total int64
		}
	}
	get("own", "/v1/top?window=1h&limit=3", &top)
	if len(top.Top) != 3 || top.Top[0].Key != "c.deep.39" || top.Top[1].Key != "c.39" || top.Top[2].Key != "a.39" || top.Floor != 1+38*7+4+2 {
		t.Errorf("%+v", top)
	}
	get("own", "/v1/top?window=1h&group=1", &sums)
	var each int64
	for _, smp := range samples {
		if slices.Contains(own, smp.Key) {
			each += smp.N
		}
	}
	var sum int64
	for _, g := range sums.Top {
		sum += g.Total
	}
	if len(sums.Top) != 2 || sum != each {
		t.Errorf("the groups are %+v and have %d hits, want %d", sums, sum, each)
	}

	rows := func(as, more string) (out []string) {
		t.Helper()
		resp := asking.Ask(h, http.MethodGet, "/v1/export?from="+fmt.Sprint(now.Add(-50*time.Minute).UnixMilli())+more, "", "Authorization", "Bearer "+as)
		data := string(asking.ReadAll(t, resp))
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d %s", more, resp.StatusCode, data)
		}
		return strings.Split(strings.TrimSpace(data), "\n")
	}
	for _, after := range []string{"", "&after=a.20", "&after=b", "&after=c.deep.39", "&after=zzz"} {
		want := slices.DeleteFunc(rows("full", after), func(row string) bool {
			key, _, _ := strings.Cut(row, ",")
			return key != "key" && !slices.Contains(own, key)
		})
		for _, cells := range []int64{0, 1000, 300} { // with few cells, a page has a few counters
			limited(t, s, cells, 0)
			if found := rows("own", after); !slices.Equal(found, want) {
				t.Errorf("%d cells, %s: %d rows, want %d:\n%s", cells, after, len(found), len(want), strings.Join(found, "\n"))
			}
		}
		limited(t, s, 0, 0)
	}
}

// What is listened to ends with its token, and a token that is gone or over is refused.
func TestTokensEnd(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	asking.Seed(t, redis.Client(), now, asking.Hits("a.x", now.Add(-5*time.Minute), 3))
	const kept = "kept may: [read]"
	file := tokensFile(t, kept, "gone may: [read]", "changed may: [read], prefixes: [a.]", "old may: [read], until: 2020-01-01", "later may: [read], until: 2999-01-01T12:00:00+02:00")
	s := onRedisWith(t, redis.URL(), now, fileSettings(file))
	files := buildinfo.NewFiles(prometheus.NewRegistry(), zerolog.Nop())
	s.tokens, _ = access.New(access.Settings{Program: "QUERY", File: file}, files)
	watched(t, s)
	h := s.handler()
	eventuallyReady(t, h, http.StatusOK)
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	ask := func(as string) int {
		return asking.Ask(h, http.MethodGet, "/v1/total?key=a.x&window=1h", "", "Authorization", "Bearer "+as).StatusCode
	}
	if ask("later") != http.StatusOK || ask("old") != http.StatusUnauthorized {
		t.Error("the token until 2999 is refused, or one that has ended is not")
	}
	over := make(map[string]chan struct{})
	for _, as := range []string{"kept", "gone", "changed"} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/v1/live?key=a.x&window=1h", nil)
		req.Header.Set("Authorization", "Bearer "+as)
		resp, err := server.Client().Do(req)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatal(as, err, resp)
		}
		t.Cleanup(func() { resp.Body.Close() })
		ended := make(chan struct{})
		over[as] = ended
		go func() { _, _ = io.Copy(io.Discard, resp.Body); close(ended) }()
	}
	writeTokens(t, file, kept, "changed may: [read], prefixes: [b.]")
	files.Reload()
	<-over["gone"]
	<-over["changed"]
	select {
	case <-over["kept"]:
		t.Error("what a token that is as it was listens to has ended")
	default:
	}
	if ask("kept") != http.StatusOK || ask("changed") != http.StatusForbidden {
		t.Errorf("kept: %d, changed: %d", ask("kept"), ask("changed"))
	}
}

// The log says which token has reset a limit or erased a counter.
func TestAuditNamesTheToken(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), asking.Now()
	asking.Seed(t, redis.Client(), now, asking.Hits("a.x", now.Add(-5*time.Minute), 3))
	var u boot.Tokens
	require.NoError(t, u.UnmarshalText([]byte("secret")))
	settings := fileSettings(tokensFile(t, "shop may: [erase, admin], prefixes: [a.]"))
	settings.Tokens = u
	s := onRedisWith(t, redis.URL(), now, settings)
	log := new(asking.Log)
	s.log = zerolog.New(log)
	h := s.handler()
	for _, r := range [][2]string{{"shop", "/v1/limit?limit=login&key=alice"}, {"secret", "/v1/limit?limit=login&key=bob"}, {"shop", "/v1/counters?key=a.x"}} {
		if resp := asking.Ask(h, http.MethodDelete, r[1], "", "Authorization", "Bearer "+r[0]); resp.StatusCode >= 300 {
			t.Errorf("%s: %s", r, resp.Status)
		}
	}
	for _, want := range []string{
		`"audit":true,"from":"192.0.2.1","token":"shop","limit":"login","key":"alice","message":"limit reset"`,
		`"audit":true,"from":"192.0.2.1","token":"2bb80d53","limit":"login","key":"bob","message":"limit reset"`,
		`"audit":true,"from":"192.0.2.1","token":"shop","key":"a.x","erased":1,"message":"counters erased"`,
	} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %s in %s", want, log)
		}
	}
}

// The page and programs learn what a token may.
func TestAboutTellsOfTheToken(t *testing.T) {
	t.Parallel()
	s, _ := onFakeWith(t, &fakeLimiter{}, fileSettings(tokensFile(t, "shop may: [read, take], prefixes: [shop.], until: 2999-01-01")))
	resp := asking.Ask(s.handler(), http.MethodGet, "/v1/about", "", "Authorization", "Bearer shop")
	if text := string(asking.ReadAll(t, resp)); !strings.Contains(text, `"token":{"name":"shop","may":["read","take"],"prefixes":["shop."],"until":"2999-01-01T00:00:00Z"}`) {
		t.Error(text)
	}
	if vary := resp.Header.Values("Vary"); !slices.Contains(vary, "Authorization") {
		t.Errorf("Vary is %q", vary)
	}
	s, _ = onFake(t)
	if text := string(asking.ReadAll(t, asking.Ask(s.handler(), http.MethodGet, "/v1/about", ""))); strings.Contains(text, "token") {
		t.Error(text)
	}
}
