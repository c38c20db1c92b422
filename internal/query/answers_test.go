package query

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/answer"
	"tallyroll/internal/window"
	"tallyroll/tests/asking"
)

// answersFile has the answers to recorded, with every header. UPDATE_ANSWERS=1 writes it anew.
var answersFile = filepath.Join("testdata", "answers.txt")

const betweenAnswers = "----\n"

// recorded are requests, each with the method, the target, the body and headers, parted by spaces.
var recorded = []string{
	"GET /v1/total?key=api-1&window=24h",
	"HEAD /v1/total?key=api-1&window=24h",
	"GET /v1/total?key=api-1&key=young&key=lost&window=1h&window=59m",
	"GET /v1/total?key=%3Cb%3E%26%22%5C%E2%80%A8%E2%98%83&window=1h",
	"GET /v1/total?key=a,b&window=today&tz=Europe/Berlin",
	"GET /v1/total?key=api-1&window=15m&at=2026-11-21T09:30:00.25Z",
	"GET /v1/total?key=api-1&from=1795250000000&to=1795253600000",
	"GET /v1/total?key=%3Cb%3E%26%22%5C%E2%80%A8%E2%98%83&from=1795250000000&to=1795253600000",
	`GET /v1/total?key=api-1&from=1795250000000&to=1795253600000 - If-None-Match:W/"049974f2be71a6e6"`,
	"GET /v1/total?key=api-1&from=1795250000000&to=1795253600000 - If-None-Match:*",
	"HEAD /v1/total?key=api-1&from=1795250000000&to=1795253600000 - If-None-Match:*",
	"GET /v1/total?key=api-1&from=1795250000000",
	"GET /v1/total?prefix=shop.&window=1h&window=15m",
	"GET /v1/total?prefix=shop.&group=1&window=1h",
	"GET /v1/total?prefix=none.&group=2&window=1h",
	"GET /v1/total?prefix=shop.&from=1795250000000&to=1795253600000",
	"GET /v1/total?key=api-1&window=24h - Accept:text/html",
	"GET /v1/total?key=api-1&window=24h - Accept-Encoding:gzip",
	"GET /v1/total?key=api-1&window=24h - Origin:https://a.example",
	`POST /v1/total {"keys":["api-1","<b>&\"\\☃"],"windows":["1h","24h"]}`,
	`POST /v1/total {"keys":["api-1"],"windows":["1h"],"at":1795253600000} If-None-Match:*`,
	`POST /v1/total {"keys":["api-1"],"from":"2026-11-21T09:00:00Z","to":null}`,
	`POST /v1/total {"prefix":"shop.","group":1,"windows":["week"],"tz":"Europe/Berlin"}`,
	`POST /v1/total {"keys":["api-1"],"windows":["1h"]} Content-Type:text/plain Accept:text/html`,

	"GET /v1/total",
	"GET /v1/total?key=a&window=1h&a<b>=1",
	"GET /v1/total?key=a&window=1h&at=1&at=2",
	"GET /v1/total?key=a&window=1h&at=",
	"GET /v1/total?key=a%zz&window=1h",
	"GET /v1/total?key=a;window=1h",
	"GET /v1/total?key=<a>%00&window=1h",
	"GET /v1/total?key=a&window=2d",
	"GET /v1/total?key=a&key=b&key=c&key=d&window=1h",
	"GET /v1/total?key=unavailable&window=1h",
	"GET /v1/total?key=foreign&window=1h",
	"DELETE /v1/total",
	"POST /v1/total",
	"POST /v1/total key=a&window=1h",
	"POST /v1/total?key=a {}",
	`POST /v1/total {"keys":["a"]`,
	`POST /v1/total {"keys":["a"],"<window>":["1h"]}`,
	`POST /v1/total {"keys":"a"}`,
	`POST /v1/total {"keys":["a"],"windows":["1h"]}{}`,
	`POST /v1/total {"keys":["a"],"windows":["1h"],"at":{}}`,
	"POST /v1/total {\"keys\":[\"\xff\"]}",

	"GET /v1/series?key=api-1",
	"GET /v1/series?key=api-1&key=<b>&step=5m",
	"GET /v1/series?prefix=shop.&group=1",
	"GET /v1/series?key=api-1&from=1795250000000&to=1795253600000",
	"GET /v1/series?key=api-1 - Accept:text/csv",
	"GET /v1/series?key=api-1&format=csv - Accept-Encoding:gzip",
	"GET /v1/series?key=api-1&format=xml",
	"GET /v1/series?key=api-1&step=",
	"GET /v1/series",
	"GET /v1/top?window=1h&limit=5",
	"GET /v1/top?window=1h&limit=0",
	"GET /v1/top?window=1h&at=2026-11-21T09:30:00Z",
	"GET /v1/top",
	"GET /v1/counters?prefix=shop.&limit=3",
	"GET /v1/counters?after=",
	"GET /v1/counters?limit=x",
	"GET /v1/about?window=1h",
	"GET /probe?key=api-1&key=<b>&window=1h",
	"GET /probe?top=2&window=1h",
	"GET /probe?prefix=shop.&window=1h",
	"GET /probe?window=1h",
	"GET /probe?key=a&window=1h&b=1",
	"HEAD /v1/live?key=api-1&window=1m",
	"GET /v1/live?key=api-1",
	"GET /v1/live?key=api-1&window=1m&as_of=1",
	"GET /v1/streams",
	"GET /v1/streams?a=1",
	"GET /v1/rejects?limit=3",
	"GET /v1/rejects?limit=101",

	`POST /v1/take {"limit":"login","key":"alice"}`,
	`POST /v1/take {"take":[{"limit":"login","key":"alice"},{"limit":"per-hour","key":"<b>"}],"n":2}`,
	`POST /v1/take {"key":"alice","window":"1m","max":100}`,
	`POST /v1/take {"limit":"nothing","key":"alice"}`,
	`POST /v1/take {"limit":"login"`,
	`POST /v1/take?limit=login {"limit":"login"}`,
	"GET /v1/limit?limit=login&key=alice",
	"GET /v1/limit?key=api-1&window=1m&max=100",
	"GET /v1/limit?key=api-1&window=1m&max=x",
	"GET /v1/limit?limit=login",
	"DELETE /v1/limit?limit=login&key=alice",
	"DELETE /v1/limit?limit=login&key=",
	"GET /v1/authz?limit=login&key_header=X-Api-Key - X-Api-Key:alice",
	"GET /v1/authz?limit=login",
	"GET /v1/authz?limit=login&limit=per-hour&key_header=X-Api-Key - X-Api-Key:alice",
	"GET /v1/authz?limit=login&lim=a",
	"POST /v1/authz/per-agent/cart {} User-Agent:curl",
	"GET /v1/authz/nothing/cart",
	"GET /v1/nothing",
}

// The answers to recorded requests are the same to the last byte: clients compare tags, keep what they may, and parse
// what they get.
func TestRecordedAnswers(t *testing.T) {
	t.Parallel()
	var got bytes.Buffer
	h := onRecorder(t).handler()
	for _, request := range recorded {
		writeAnswer(t, &got, h, request)
	}
	if os.Getenv("UPDATE_ANSWERS") != "" {
		require.NoError(t, os.WriteFile(answersFile, got.Bytes(), 0o600))
	}
	want, err := os.ReadFile(answersFile)
	require.NoError(t, err)
	gotBlocks, wantBlocks := strings.Split(got.String(), betweenAnswers), strings.Split(string(want), betweenAnswers)
	if len(gotBlocks) != len(wantBlocks) {
		t.Errorf("%d answers, want %d", len(gotBlocks), len(wantBlocks))
	}
	for i := range min(len(gotBlocks), len(wantBlocks)) {
		if gotBlocks[i] != wantBlocks[i] {
			t.Errorf("got\n%s\nwant\n%s", gotBlocks[i], wantBlocks[i])
		}
	}
}

// writeAnswer sends a request as recorded writes it, and writes what came.
func writeAnswer(t *testing.T, out *bytes.Buffer, h http.Handler, request string) {
	t.Helper()
	parts := append(strings.Split(request, " "), "")
	var headers []string
	for _, header := range parts[min(3, len(parts)-1) : len(parts)-1] {
		name, value, _ := strings.Cut(header, ":")
		headers = append(headers, name, value)
	}
	body := parts[2]
	if body == "-" {
		body = ""
	}
	resp := asking.Ask(h, parts[0], parts[1], body, headers...)
	fmt.Fprintf(out, "%q\n%d\n", request, resp.StatusCode)
	for _, name := range slices.Sorted(maps.Keys(resp.Header)) {
		fmt.Fprintf(out, "%s: %q\n", name, resp.Header[name])
	}
	data := asking.ReadAll(t, resp)
	if resp.Header.Get("Content-Encoding") != "" {
		data = []byte("(compressed)")
	}
	out.Write(data)
	out.WriteString(betweenAnswers)
}

// onRecorder is a service with answers of all kinds, which are always the same.
func onRecorder(t *testing.T) *service {
	t.Helper()
	s, f := onFake(t)
	watched(t, s)
	readFrom(s, recordedReader{f})
	s.answers.MaxKeys, s.live.MaxKeys = 3, 3
	require.NoError(t, s.origins.UnmarshalText([]byte("https://a.example")))
	return s
}

// recordedReader answers with numbers that differ.
type recordedReader struct{ *asking.FakeReader }

func (r recordedReader) Answer(ctx context.Context, questions []window.Question) (window.Answers, error) {
	out, err := r.FakeReader.Answer(ctx, questions)
	if err != nil {
		return out, err
	}
	out.AsOf -= 1500
	for i, q := range questions {
		a, n := &out.Answers[i], int64(len(q.Counter))
		a.Estimate = window.Estimate{Total: 10*n + int64(i), Lower: 9*n + int64(i), Upper: 11*n + int64(i)}
		switch q.Counter {
		case "young":
			a.CountingSince = 0
		case "lost":
			a.Complete, a.Estimate = false, window.Estimate{}
		case "unavailable":
			return out, context.DeadlineExceeded
		case "foreign":
			return out, &window.ForeignError{Key: "test:{0}:h:1m:1:<a>", Err: context.Canceled}
		}
	}
	return out, nil
}

func (r recordedReader) Names(ctx context.Context, q window.NamesQuestion) (window.Names, error) {
	out, err := r.FakeReader.Names(ctx, q)
	out.Now, out.Complete, out.CountingSince, out.CompleteSince = out.AsOf, true, answer.SinceExample.UnixMilli(), answer.SinceExample.UnixMilli()
	if q.Prefix != "none." {
		out.Counters = []string{"shop.a.<b>", "shop.a.c", "shop.d"}
	}
	return out, err
}

func (r recordedReader) Top(ctx context.Context, asked window.Span, limit int) (window.Top, error) {
	out, err := r.FakeReader.Top(ctx, asked, limit)
	if err == nil {
		out.CountingSince = answer.SinceExample.Add(time.Millisecond).UnixMilli()
		out.Counters = append(out.Counters, window.TopCounter{Counter: "<b>&\u2028"})
	}
	return out, err
}
