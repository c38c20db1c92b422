package query

import (
	"bufio"
	"cmp"
	"crypto/sha256"
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

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/query/limitapi"
	"tallyroll/internal/web"
	"tallyroll/internal/web/access"
	"tallyroll/tests/apitest"
	"tallyroll/tests/stack"
)

// writeTokens writes entries of a name, which is the secret, and fields. A change is whole at once, as those
// of a careful operator are.
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

// useFile has the service read tokens from a file with these entries.
func useFile(t testing.TB, entries ...string) func(*Settings) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokens.yml")
	writeTokens(t, file, entries...)
	return func(s *Settings) { s.TokensFile = file }
}

// sendAs sends a request with a token, and returns what came: of a stream, the beginning.
func sendAs(t *testing.T, server *httptest.Server, token string, r apitest.Request) (int, string) {
	t.Helper()
	headers := []string{"Authorization", "Bearer " + token}
	for name, values := range r.Header {
		headers = append(headers, name, values[0])
	}
	resp := send(t, server, r.Method, r.Target, r.Body, headers...)
	defer resp.Body.Close()
	if resp.Header.Get("Content-Type") != "text/event-stream" {
		return resp.StatusCode, string(apitest.ReadBody(t, resp))
	}
	lines, text := bufio.NewScanner(resp.Body), ""
	for lines.Scan() && strings.Count(text, "data:") < strings.Count(r.Target, "key=") {
		text += lines.Text() + "\n"
	}
	return resp.StatusCode, text
}

// A token sees and changes what it may, and nothing else, whichever way it tries. Each way is shown to work
// with a token that may.
func TestTokenKeepsToItsOwn(t *testing.T) {
	t.Parallel()
	redis, now := stack.Redis(t), apitest.Now()
	const theirs = 300007 // of more digits than times share by chance
	var samples []apitest.Sample
	for key, n := range map[string]int64{"a.x": 3, "a.y.z": 5, "a": theirs, "aOTHER": theirs, "b.OTHER": theirs, "b.a.OTHER": theirs, "b.two": theirs, "zOTHER.x": theirs, "ſ.OTHER": theirs} {
		samples = append(samples, apitest.NewSample(key, now.Add(-10*time.Minute), n))
	}
	apitest.Seed(t, redis.Client(), now, samples...)
	apitest.SeedUniques(t, redis.Client(), "b.OTHER", now.Add(-10*time.Minute), strings.Split("abcdefg", "")...)
	s := serveRedis(t, redis.URL(), now, useFile(t,
		"narrow may: [read, take, erase], prefixes: [a.], limits: ['login:a.']", "reader may: [read], prefixes: [a.]", "taker may: [take], prefixes: [a.]",
		"keeper may: [admin], limits: ['login:a.']", "operator may: [admin]", "full may: [read, take, erase, admin]"))
	runHealth(t, s)
	h := s.handler()
	awaitReady(t, h, http.StatusOK)
	server := startServer(t, h)

	export := "/v1/export?from=" + fmt.Sprint(now.Add(-50*time.Minute).UnixMilli())
	var fill []string
	for _, ago := range []int{0, 1, 50} {
		fill = append(fill, fmt.Sprintf("{%dm}", ago), fmt.Sprint(now.Add(-time.Duration(ago)*time.Minute).UnixMilli()))
	}
	ways := apitest.ReadRequests(t, "testdata/rights.txt")
	for i, w := range ways {
		ways[i].Target = strings.NewReplacer(fill...).Replace(w.Target)
	}
	everything := apitest.Request{Method: http.MethodGet, Target: export}
	_, before := sendAs(t, server, "full", everything)
	for _, w := range ways {
		as := cmp.Or(w.Options["as"], "narrow")
		status, body := sendAs(t, server, as, w)
		if own := w.Options["own"]; status != w.Status || !strings.Contains(body, own) {
			t.Errorf("%s: status %d, want %d and %q: %s", w, status, w.Status, own, body)
		}
		if w.Want != "" && strings.Contains(body, w.Want) || strings.Contains(body, fmt.Sprint(theirs)) || status == http.StatusOK && strings.Contains(body, "OTHER") {
			t.Errorf("%s: the token sees what is not its own: %s", w, body)
		}
		if status == http.StatusForbidden && body != "" && !strings.Contains(body, "token "+as) {
			t.Errorf("%s: the problem does not name the token: %s", w, body)
		}
		// The same about counters that do not exist has the same answer.
		rename := strings.NewReplacer("OTHER", "NOONE", "300007", "300006")
		absent := w
		absent.Target, absent.Body = rename.Replace(w.Target), rename.Replace(w.Body)
		if w.Status != http.StatusForbidden || absent.Target == w.Target && absent.Body == w.Body {
			continue
		}
		if missing, text := sendAs(t, server, as, absent); missing != status || text != rename.Replace(body) {
			t.Errorf("%s: without the counter the answer is %d %s, and with it %d %s", w, missing, text, status, body)
		}
	}
	_, after := sendAs(t, server, "full", everything)
	require.Equal(t, before, after, "the counters")
	for _, w := range ways {
		want := cmp.Or(w.Options["full"], "200")
		if status, body := sendAs(t, server, "full", w); fmt.Sprint(status) != want || !strings.Contains(body, w.Want) {
			t.Errorf("%s, with all rights: status %d, want %s and %s: %s", w, status, want, w.Want, body)
		}
	}
	checkRoutes(t, h, ways)
}

// checkRoutes fails if a documented route has no right, or if no way is tried at it.
func checkRoutes(t *testing.T, h http.Handler, ways []apitest.Request) {
	t.Helper()
	tried := make(map[string]bool)
	for _, w := range ways {
		u, err := url.Parse(w.Target)
		require.NoError(t, err)
		route := w.Method + " " + u.Path
		if strings.HasPrefix(u.Path, limitapi.AuthzPath+"/") {
			route = limitapi.AuthzPath + "/{limit}"
		} else if limitapi.IsAuthz(u.Path) {
			route = limitapi.AuthzPath
		}
		tried[route] = true
	}
	var document struct{ Paths map[string]map[string]any }
	require.NoError(t, json.Unmarshal(apitest.ReadBody(t, apitest.Send(h, http.MethodGet, "/openapi.json", "")), &document))
	open := []string{"/healthz", "/readyz", "/readyz/answers", "/readyz/takes", "/metrics"}
	documented := make(map[string]bool)
	for path, methods := range document.Paths {
		for method := range methods {
			route := strings.ToUpper(method) + " " + path
			if limitapi.IsAuthz(path) {
				route = path
			}
			if slices.Contains(open, path) {
				continue
			}
			documented[route] = true
			if rights[route] == "" || !tried[route] {
				t.Errorf("%s: add it to rights and to testdata/rights.txt, or to the open routes of this test", route)
			}
		}
	}
	for route := range rights {
		require.True(t, documented[route], "%s has a right and is not documented", route)
	}
	// A route that has been given no right is closed to every token.
	require.Equal(t, web.TokenLacksRight.Type(), refuseRight(new(access.Token), "GET /v1/new").Type)
}

// Pages about the process and the page itself need no token, or no probe could ask and nobody could enter
// one. All else does, however its path is written. What is listened to ends with its token.
func TestTokensAreNeededForCountersAndLimits(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens.yml")
	writeTokens(t, file, "shop may: [read]", "gone may: [read]")
	s := serveFake(t, func(s *Settings) { s.TokensFile = file },
		func(s *Settings) { _ = s.Tokens.UnmarshalText([]byte("first, second")) })
	runHealth(t, s.service)
	h := s.handler()
	server := startServer(t, h)
	for _, name := range []string{"second", "shop"} {
		requireTotals(t, apitest.Send(h, http.MethodGet, goodTarget, "", "Authorization", "Bearer "+name))
	}
	for _, target := range []string{goodTarget, "/v1/total", "/v1/nothing", "/v1/", "/v1", "/probe?key=a&window=1h"} {
		apitest.RequireProblem(t, apitest.Send(h, http.MethodGet, target, "", "Authorization", "Bearer third"), http.StatusUnauthorized)
	}
	for _, target := range []string{"/healthz", "/metrics", "/openapi.json", "/docs", "/", "/page/" + newPage(FrameAncestors{}).version + "/main.js"} {
		require.Equal(t, http.StatusOK, apitest.Send(h, http.MethodGet, target, "").StatusCode, target)
	}
	for _, path := range []string{"//v1/total", "/x/../v1/total", "/./v1/total", "/%76%31/total", "/v1%2Ftotal"} {
		require.NotEqual(t, http.StatusOK, send(t, server, http.MethodGet, path+"?key=a&window=1h", "").StatusCode,
			path)
	}
	ended := make(map[string]chan struct{})
	for _, name := range []string{"shop", "gone"} {
		resp := send(t, server, http.MethodGet, "/v1/live?key=a&window=1h", "", "Authorization", "Bearer "+name)
		require.Equal(t, http.StatusOK, resp.StatusCode)
		over := make(chan struct{})
		ended[name] = over
		go func() { _, _ = io.Copy(io.Discard, resp.Body); close(over) }()
	}
	writeTokens(t, file, "shop may: [read]")
	s.server.Files.Reload()
	<-ended["gone"]
	select {
	case <-ended["shop"]:
		t.Error("what a token that is as it was listens to has ended")
	default:
	}
	apitest.RequireProblem(t, apitest.Send(h, http.MethodGet, goodTarget, "", "Authorization", "Bearer gone"), http.StatusUnauthorized)
}

// The log names the token that has reset a limit or erased counters: one of a setting by the beginning of its
// SHA-256.
func TestLogNamesTheTokenThatChangesSomething(t *testing.T) {
	t.Parallel()
	s := serveFake(t, useFile(t, "shop may: [erase, admin], prefixes: [a.], limits: [login]"),
		func(s *Settings) { _ = s.Tokens.UnmarshalText([]byte("secret")) })
	log := new(apitest.Log)
	s.erasures.audit.log = zerolog.New(log)
	h := s.handler()
	for _, c := range []struct{ token, target, line string }{
		{"shop", "/v1/limit?limit=login&key=alice", `"token":"shop","limit":"login","key":"alice","message":"limit reset"`},
		{"secret", "/v1/limit?limit=login&key=bob", `"token":"2bb80d53","limit":"login","key":"bob","message":"limit reset"`},
		{"shop", "/v1/counters?key=a.x", `"token":"shop","key":"a.x","erased":1,"message":"counters erased"`},
		{"shop", "/v1/counters?prefix=a.&confirm=0",
			`"token":"shop","prefix":"a.","erased":0,"message":"counters erased"`},
	} {
		apitest.RequireProblem(t, apitest.Send(h, http.MethodDelete, c.target, ""), http.StatusUnauthorized)
		resp := apitest.Send(h, http.MethodDelete, c.target, "", "Authorization", "Bearer "+c.token)
		require.Less(t, resp.StatusCode, 300, c.target)
		require.Contains(t, log.String(), `"audit":true,"from":"192.0.2.1",`+c.line)
	}
	require.Equal(t, 4, strings.Count(log.String(), "audit"))
	require.NotContains(t, log.String(), "secret")
	s.erasures.on = false
	p := apitest.RequireProblem(t, apitest.Send(h, http.MethodDelete, "/v1/counters?key=a.x", "", "Authorization",
		"Bearer shop"), http.StatusForbidden)
	require.Equal(t, web.EraseOff.Type(), p.Type)
	require.Contains(t, p.Detail, "QUERY_ERASE")
}

// The page and programs learn what can be used, and what a token may.
func TestAboutNamesFeaturesAndWhatTheTokenMay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mode         limitapi.TakeMode
		limitsFile   bool
		nats, limits bool
	}{
		{limitapi.TakeNamed, false, false, false}, {limitapi.TakeNamed, true, true, true}, {limitapi.TakeAny, false, false, true},
		{limitapi.TakeOff, true, false, false},
	} {
		s := serveFake(t, func(s *Settings) {
			if s.Take = c.mode; !c.limitsFile {
				s.LimitsFile = ""
			}
		})
		s.status.AsksNATS = c.nats
		text := get(t, s.handler(), "/v1/about")
		require.Contains(t, text, fmt.Sprintf(`"features":{"nats":%t,"limits":%t,"uniques":true,"watch":%t}`, c.nats,
			c.limits, c.nats))
		require.NotContains(t, text, "token")
	}
	s := serveFake(t, useFile(t, "shop may: [read, take], prefixes: [shop.], until: 2999-01-01"))
	resp := apitest.Send(s.handler(), http.MethodGet, "/v1/about", "", "Authorization", "Bearer shop")
	require.Contains(t, string(apitest.ReadBody(t, resp)), `"token":{"name":"shop","may":["read","take"],"prefixes":["shop."],"until":"2999-01-01T00:00:00Z"}`)
	require.Contains(t, resp.Header.Values("Vary"), "Authorization")
}
