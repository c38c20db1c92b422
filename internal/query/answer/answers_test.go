package answer_test

import (
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/window"
	"tallyroll/tests/apitest"
	"tallyroll/tests/stack"
	"tallyroll/tests/windowtest"
)

// Every question in testdata has the answer that follows it there. testdata/README says how they are written.
// UPDATE_ANSWERS=1 writes the answers again.
func TestAnswersAreThoseOfTestdata(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t)
	files, err := filepath.Glob(filepath.Join("testdata", "*.txt"))
	require.NoError(t, err)
	for _, file := range files {
		s := &script{t: t, url: server.URL(), sparse: filepath.Base(file) == "all.txt"}
		apitest.CheckTranscript(t, file, s.ask, s.prepare)
	}
}

// script does what the lines of a file say.
type script struct {
	t   *testing.T
	url string
	*rig
	tiers   string
	sparse  bool // with logs and a sum of all hits
	streams map[string]window.Cursor
	hits    []apitest.Sample // not stored yet
	seq     uint64
}

func (s *script) ask(question string) string {
	s.commit()
	method, target, _ := strings.Cut(question, " ")
	target, body, _ := strings.Cut(target, " ")
	resp := apitest.Send(s, method, target, body)
	if resp.StatusCode != http.StatusOK {
		p := apitest.RequireProblem(s.t, resp, resp.StatusCode)
		return fmt.Sprintf("%d %s\n", p.Status, p.Detail)
	}
	out := ""
	for line := range strings.Lines(string(apitest.ReadBody(s.t, resp))) {
		if !strings.HasPrefix(line, "# ") { // of Prometheus' format
			out += line
		}
	}
	return out
}

func (s *script) prepare(words []string) {
	s.t.Helper()
	switch words[0] {
	case "empty": // Redis, from now on with these tiers
		s.rig = newRig(s.t, s.url)
		require.NoError(s.t, s.client.FlushAll(s.t.Context()).Err())
		s.seq, s.streams, s.tiers = 0, map[string]window.Cursor{}, strings.Join(words[1:], "")
	case "now":
		s.now = s.moment(words[1])
	case "bounds":
		for _, bound := range words[1:] {
			name, value, _ := strings.Cut(bound, "=")
			set := map[string]func(int){
				"keys": func(n int) { s.MaxKeys = n }, "sum": func(n int) { s.MaxSum = n }, "probe": func(n int) { s.MaxProbe = n },
				"cells": func(n int) { s.reader.MaxCells = int64(n) }, "points": func(n int) { s.reader.MaxPoints = int64(n) },
				"unique_cells": func(n int) { s.reader.MaxUniqueCells = int64(n) },
			}[name]
			require.NotNil(s.t, set, name)
			set(s.number(value))
		}
	case "stream":
		cursor := window.Cursor{}
		for _, field := range words[2:] {
			name, value, _ := strings.Cut(field, "=")
			switch at := s.moment(value); name {
			case "since":
				cursor.Created, cursor.Stored = at.UnixNano(), at.UnixNano()
			case "as_of":
				cursor.AsOf = at.UnixMilli()
			case "lost_before":
				cursor.IncompleteBefore = at.UnixMilli()
			default:
				s.t.Fatalf("a stream has no %s", name)
			}
		}
		s.streams[words[1]] = cursor
	case "hits":
		for _, hit := range words[2:] {
			n, at, _ := strings.Cut(hit, "@")
			s.hits = append(s.hits, apitest.NewSample(s.name(words[1]), s.moment(at), int64(s.number(n))))
		}
		if len(s.streams) == 0 {
			s.streams["HITS"] = window.Cursor{Created: s.now.Add(-12 * time.Hour).UnixNano(), Stored: s.now.UnixNano(), AsOf: s.now.UnixMilli()}
		}
	case "visitors":
		for _, came := range words[2:] {
			n, at, _ := strings.Cut(came, "@")
			who := make([]string, s.number(n))
			for i := range who {
				who[i] = fmt.Sprint("visitor-", i)
			}
			apitest.SeedUniques(s.t, s.client, s.name(words[1]), s.moment(at), who...)
		}
	case "layout":
		text := s.client.Get(s.t.Context(), "test:layout").Val()
		require.NoError(s.t, s.client.Set(s.t.Context(), "test:layout", strings.Replace(text, words[1], words[2], 1), 0).Err())
	default:
		s.t.Fatalf("there is no word %s", words[0])
	}
}

// name reads the name of a counter, written as in a query string.
func (s *script) name(text string) string {
	name, err := url.QueryUnescape(text)
	require.NoError(s.t, err)
	return name
}

func (s *script) number(text string) int {
	n, err := strconv.Atoi(text)
	require.NoError(s.t, err)
	return n
}

// moment reads a time of the day, a time with its date, or how long before now.
func (s *script) moment(text string) time.Time {
	s.t.Helper()
	if ago, ok := strings.CutPrefix(text, "-"); ok {
		length, err := human.ParseDuration(ago)
		if err != nil {
			length, err = time.ParseDuration(ago)
		}
		require.NoError(s.t, err)
		return s.now.Add(-length)
	}
	if !strings.Contains(text, "T") {
		text = s.now.Format("2006-01-02T") + text + "Z"
	}
	at, err := time.Parse(time.RFC3339, text)
	require.NoError(s.t, err)
	return at
}

// commit commits what the lines before a question have said.
func (s *script) commit() {
	if len(s.streams) == 0 || len(s.hits) == 0 && s.seq > 0 {
		return
	}
	ctx, layout := s.t.Context(), layoutOf(s.t, s.tiers)
	require.NoError(s.t, s.rig.store.EnsureLayout(ctx, layout))
	s.seq++
	for name, cursor := range s.streams {
		require.NoError(s.t, s.rig.store.AddStream(ctx, name))
		if cursor.Created == 0 {
			continue
		}
		cursor.Seq = s.seq
		batch := window.NewBatch(layout)
		for _, h := range s.hits {
			windowtest.AddHits(batch, h.Key, h.At.UnixMilli(), cursor.AsOf, h.N)
		}
		require.NoError(s.t, windowtest.CommitAll(ctx, s.rig.store, layout, name, batch, cursor))
		s.hits = nil
	}
}
