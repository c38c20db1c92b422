package collect

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
)

// named is a rig whose callers need a token: shop has a prefix, all has none, and reader may not count.
func named(t *testing.T, env ...string) *rig {
	t.Helper()
	file := tokensOf(t, "shop may: [count], prefixes: [shop.]", "all may: [read, count]", "reader may: [read, take, erase, admin]")
	return newRig(t, nil, append(env, "COLLECT_TOKENS_FILE="+file)...)
}

func TestTokensOpenHits(t *testing.T) {
	t.Parallel()
	r := named(t)
	for _, header := range []string{"", "Bearer wrong", "Basic shop"} {
		resp, answer := r.post(`{"key":"shop.a"}`, "Authorization", header)
		refused(t, resp, answer, http.StatusUnauthorized)
		require.Equal(t, "Bearer", resp.Header.Get("WWW-Authenticate"), header)
	}
	resp, answer := r.post(`[{"key":"shop.a"},{"key":"blog"},{"key":"shop.b"},{"key":"shop"}]`, "Authorization", "Bearer shop")
	p := refused(t, resp, answer, http.StatusForbidden)
	if len(p.Errors) != 2 || p.Errors[0].Location != "body[1]" || p.Errors[1].Location != "body[3]" || !strings.Contains(p.Errors[0].Message, `"shop."`) {
		t.Errorf("the answer names %+v", p.Errors)
	}
	resp, answer = r.post(`{"key":"shop.a"}`, "Authorization", "Bearer reader")
	require.Contains(t, refused(t, resp, answer, http.StatusForbidden).Detail, "the token reader lacks the right count")
	require.Zero(t, r.messages())
	r.stored(`{"key":"shop.a","n":2}`, "Authorization", "Bearer shop")
	r.stored(`{"key":"blog"}`, "Authorization", "Bearer all")
	if counts := r.counts(); len(counts) != 2 || counts["shop.a"] != 2 || counts["blog"] != 1 {
		t.Errorf("stored is %v", counts)
	}
}

// Two callers may use the same Idempotency-Key for different hits.
func TestCallersKeysNeverMeet(t *testing.T) {
	t.Parallel()
	r := named(t)
	for _, c := range []struct{ token, key string }{{"shop", "1"}, {"all", "1"}, {"all", "shop:1"}, {"all", `shop"1`}} {
		if got := r.stored(`{"key":"shop.`+c.token+`"}`, "Authorization", "Bearer "+c.token, keyHeader, c.key); got.Duplicate {
			t.Errorf("%+v: a duplicate", c)
		}
	}
	if got := r.stored(`{"key":"shop.shop"}`, "Authorization", "Bearer shop", keyHeader, "1"); !got.Duplicate {
		t.Error("the same caller's retry is stored again")
	}
}

// ask sends a request as a browser does for a page of that origin.
func (r *rig) ask(method, target, body, origin string, headers ...string) *http.Response {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), method, r.url+target, strings.NewReader(body))
	require.NoError(r.t, err)
	if origin != "" {
		req.Header.Set("Origin", origin)
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { resp.Body.Close() })
	return resp
}

// Pages count within the prefix, without a token, and from the allowed origins alone.
func TestPagesCount(t *testing.T) {
	t.Parallel()
	r := named(t, pageVariables...)
	const shop, evil = "https://shop.example.com", "https://evil.example"
	for _, c := range []struct {
		method, target, body, origin string
		headers                      []string
		status                       int
	}{
		{"POST", beaconPath, `{"key":"/cart"}`, shop, []string{"Content-Type", "text/plain;charset=UTF-8"}, 204},
		{"POST", beaconPath, `[{"key":"/cart","n":5},{"key":"b"}]`, shop, []string{"Content-Type", "application/json", keyHeader, "1"}, 204},
		{"POST", beaconPath, `{"key":"b"}`, shop, []string{keyHeader, "1"}, 204}, // the key is not looked at
		{"GET", gifPath + "?key=/cart&r=0.1", "", "", []string{"Referer", shop + "/"}, 200},
		{"GET", gifPath + "?key=c&n=2", "", shop, nil, 200},
		{"POST", beaconPath, `{"key":"/cart"}`, evil, nil, 403},
		{"POST", beaconPath, `{"key":"/cart"}`, "", []string{"Authorization", "Bearer all"}, 403},
		{"GET", gifPath + "?key=/cart", "", "", []string{"Referer", evil + "/"}, 403},
		{"GET", gifPath + "?key=/cart", "", "", nil, 403},
		{"POST", beaconPath, `[{"key":"/cart"},{"key":"b","ts":1}]`, shop, nil, 400},
		{"POST", hitsPath, `{"key":"/cart"}`, shop, []string{"Authorization", "Bearer all"}, 403},
		{"POST", hitsPath, `{"key":"/cart"}`, "", []string{"Authorization", "Bearer all", "Sec-Fetch-Site", "same-site"}, 403},
	} {
		resp := r.ask(c.method, c.target, c.body, c.origin, c.headers...)
		require.EqualValues(t, c.status, resp.StatusCode, c)
		if kind := resp.Header.Get("Content-Type"); c.status == 200 && (kind != "image/gif" || resp.ContentLength != 43 || resp.Header.Get("Cross-Origin-Resource-Policy") != "cross-origin" || resp.Header.Get("Cache-Control") != "no-store") {
			t.Errorf("%+v: %v", c, resp.Header)
		}
		if got := resp.Header.Get("Access-Control-Allow-Origin"); c.target != hitsPath && (got == shop) != (c.origin == shop) || got == evil {
			t.Errorf("%+v: allowed is %q", c, got)
		}
	}
	counts := r.counts()
	if len(counts) != 3 || counts["web./cart"] != 7 || counts["web.b"] != 2 || counts["web.c"] != 2 {
		t.Errorf("stored is %v", counts)
	}
}

// What says whom a hit is of is stored as it came: of a request, of a page, and in an event.
func TestUniqueIsPassedOn(t *testing.T) {
	t.Parallel()
	r := named(t, pageVariables...)
	const shop = "https://shop.example.com"
	longest := strings.Repeat("é", hit.MaxUnique/2)
	bearer := []string{"Authorization", "Bearer all"}
	for _, c := range []struct {
		target, body, origin string
		headers              []string
		status               int
	}{
		{hitsPath, `{"unique":"v\u00311","key":"a","n":2}`, "", bearer, 202},
		{hitsPath, `[{"key":"a","unique":"a \"quote\"\n"},{"key":"a"}]`, "", bearer, 202},
		{hitsPath, "{\"key\":\"a\",\"unique\":\"" + longest + "\"}\n{\"key\":\"a\",\"unique\":\"😀\"}", "", append(bearer, "Content-Type", "application/x-ndjson", keyHeader, "1"), 202},
		{beaconPath, `{"key":"b","unique":"v2"}`, shop, nil, 204},
		{hitsPath, `{"key":"a","unique":"` + longest + `x"}`, "", bearer, 400},
		{hitsPath, `{"key":"a","unique":17}`, "", bearer, 400},
		{beaconPath, `{"key":"b","unique":""}`, shop, nil, 400},
	} {
		resp := r.ask("POST", c.target, c.body, c.origin, c.headers...)
		require.EqualValues(t, c.status, resp.StatusCode, c.body)
	}
	want := []string{"a×2 of v11", "a×1 of a \"quote\"\n a×1", "a×1 of " + longest + " a×1 of 😀", "web.b×1 of v2"}
	var got []string
	d := decoder()
	for seq := range r.messages() {
		m, err := r.stream.GetMsg(t.Context(), seq+1)
		require.NoError(t, err)
		hits, _ := d.Decode("", m.Time.UnixMilli(), m.Data)
		for i := range hits {
			hits[i].At = hit.NoTime
		}
		got = append(got, text(hits...))
	}
	require.Equal(t, want, got)
}
