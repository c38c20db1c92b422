package query

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/query/answer"
	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
	"tallyroll/tests/apitest"
)

// Each request in testdata/answers.txt has the answer that follows it there, to the last byte: clients
// compare tags, keep what they may, and parse what they get. A request has a method, a target, a body or -,
// and headers. Of the answer's headers, Cache-Control and Vary are left out if they are the usual ones.
// UPDATE_ANSWERS=1 writes the answers again. A line that is no request has a late hit come. What is answered
// to questions about counters is tested in internal/query/answer.
func TestEndpointsAnswerAsRecorded(t *testing.T) {
	t.Parallel()
	s, r := serveRecorder(t)
	h := s.handler()
	ask := func(request string) string { return recordAnswer(t, h, request) }
	apitest.CheckTranscript(t, filepath.Join("testdata", "answers.txt"), ask, func([]string) { r.late++ })
}

// usualHeaders are left out where answers have them.
var usualHeaders = map[string]string{"Cache-Control": "no-store", "Vary": "Origin, Accept-Encoding"}

// recordAnswer sends a request, and returns status, type, headers and body of the answer.
func recordAnswer(t *testing.T, h http.Handler, request string) string {
	t.Helper()
	if plain, err := strconv.Unquote(request); err == nil {
		request = plain
	}
	parts := append(strings.Split(request, " "), "", "")
	var headers []string
	for _, header := range parts[3:] {
		if name, value, ok := strings.Cut(header, ":"); ok {
			headers = append(headers, name, value)
		}
	}
	resp := apitest.Send(h, parts[0], parts[1], strings.TrimPrefix(parts[2], "-"), headers...)
	var out strings.Builder
	fmt.Fprintf(&out, "%s\n", strings.TrimSpace(fmt.Sprint(resp.StatusCode, " ", resp.Header.Get("Content-Type"))))
	resp.Header.Del("Content-Type")
	for name := range usualHeaders {
		if resp.Header[name] == nil {
			resp.Header.Set(name, "none")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(resp.Header)) {
		if value := strings.Join(resp.Header[name], ", "); value != usualHeaders[name] {
			fmt.Fprintf(&out, "%s: %s\n", name, value)
		}
	}
	body := string(apitest.ReadBody(t, resp))
	if resp.Header.Get("Content-Encoding") != "" {
		body = "(compressed)"
	}
	out.WriteString(body)
	if !strings.HasSuffix(out.String(), "\n") {
		out.WriteString("\n")
	}
	return out.String()
}

// serveRecorder returns a service with answers of all kinds, which are always the same.
func serveRecorder(t *testing.T, change ...func(*Settings)) (*service, *recordedReader) {
	t.Helper()
	s := serveFake(t, change...)
	r := &recordedReader{FakeReader: s.reader}
	setReader(s.service, r)
	runHealth(t, s.service)
	s.questions.MaxKeys, s.live.MaxKeys = 3, 3
	require.NoError(t, s.middleware.origins.UnmarshalText([]byte("https://a.example")))
	return s.service, r
}

// recordedReader answers with numbers that differ.
type recordedReader struct {
	*apitest.FakeReader
	late int64 // hits that have come late
}

func (r *recordedReader) Answer(ctx context.Context, questions []window.Question) (window.Answers, error) {
	out, err := r.FakeReader.Answer(ctx, questions)
	if err != nil {
		return out, err
	}
	out.AsOf -= 1500
	for i, q := range questions {
		a, n := &out.Answers[i], int64(len(q.Counter))
		a.Estimate = window.Estimate{Total: 10*n + int64(i) + r.late, Lower: 9*n + int64(i), Upper: 11*n + int64(i)}
		switch q.Counter {
		case "young":
			a.CountingSince = 0
		case "lost":
			a.Complete, a.Estimate = false, window.Estimate{}
		case "behind":
			out.AsOf -= 3501
		case "unavailable":
			return out, context.DeadlineExceeded
		case "foreign":
			return out, &window.ForeignError{Key: "test:{0}:h:1m:1:<a>", Err: context.Canceled}
		}
	}
	return out, nil
}

// Fall finds what Answer does, and that hits which are too many will have left in a minute.
func (r *recordedReader) Fall(ctx context.Context, counter string, length time.Duration, most int64) (window.Answers,
	time.Duration, error) {
	out, err := r.Answer(ctx, []window.Question{{Counter: counter, Span: window.Last(length)}})
	if err != nil || out.Answers[0].Total <= most {
		return out, 0, err
	}
	return out, time.Minute, nil
}

func (r *recordedReader) Uniques(ctx context.Context, questions []window.Question) (window.Answers, error) {
	return r.Answer(ctx, questions)
}

func (r *recordedReader) Series(ctx context.Context, questions []window.SeriesQuestion) ([]window.Series, error) {
	out, err := r.FakeReader.Series(ctx, questions)
	for i := range out {
		out[i].Counts[0] += r.late
	}
	return out, err
}

func (r *recordedReader) Names(ctx context.Context, q read.NamesQuestion) (read.Names, error) {
	out, err := r.FakeReader.Names(ctx, q)
	out.Now, out.Complete, out.CountingSince, out.CompleteSince = out.AsOf, true, answer.SinceExample.UnixMilli(), answer.SinceExample.UnixMilli()
	if q.Prefix != "none." {
		out.Counters = []string{"shop.a.<b>", "shop.a.c", "shop.d"}
	}
	return out, err
}

func (r *recordedReader) Top(ctx context.Context, asked window.Span, limit int, prefixes ...string) (read.Top, error) {
	out, err := r.FakeReader.Top(ctx, asked, limit)
	if err == nil {
		out.CountingSince = answer.SinceExample.Add(time.Millisecond).UnixMilli()
		out.Counters = append(out.Counters, read.TopCounter{Counter: "<b>&\u2028", Answer: window.Answer{Estimate: window.Estimate{Total: 1, Upper: 1}}})
	}
	return out, err
}
