package e2e_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"tallyroll/tests/stack"
)

// A whole log published with its own times is too old: publish says so itself.
func TestPublishSaysWhatWasRejected(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.send("hits.another", `{"ts":1}`) // another producer's reject
	var log strings.Builder
	for range 1500 {
		log.WriteString(`h - - [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 5` + "\n")
	}
	// It waits some seconds for the workers; on a busy machine they may need longer.
	stack.Eventually(t, "rejects in the last line", func() (bool, string) {
		line := s.publish(strings.NewReader(log.String()))
		return strings.HasPrefix(line, "published 1500 hits in ") &&
			strings.HasSuffix(line, "; rejected so far: 1,500 too_late (older than every tier: --rebase now shifts a log's times)\n"), line
	})
	stack.Eventually(t, "no rejects in the last line", func() (bool, string) {
		line := s.publish(strings.NewReader(log.String()), "--rebase", "now")
		return strings.HasSuffix(line, "; skipped 0 bad lines; rejected so far: none\n"), line
	})
}

// What ingest would refuse, publish refuses first, and names; what it takes, counts.
func TestPublishRefusesWhatIngestRefuses(t *testing.T) {
	t.Parallel()
	s := start(t)
	bad := []string{
		`{"key":"\ud83d"}`, `{"key":"x\uDE00"}`, `{"key":"\ud83d\ud83d\ude00"}`, `{"key":"\ud83d\\ude00"}`, `{"key":"\ufffd\ud83d"}`,
		`{"key":"a","ts":253402300800000}`, `{"key":"a","ts":9007199254740992}`, `{"key":"a","ts":-62135596800001}`, `{"key":"a","ts":"0000-01-01T00:00:00Z"}`,
		`{"key":"a","n":1099511627777}`, `{"key":"a","n":0}`, `{"key":"a","n":1.0}`, `{"key":"a","n":"7"}`,
		`{"key":"a","count":7}`, `{"key":"a","N":7}`, `{"Key":"a"}`, `{"key":"a","value":7}`, `{"key":"a","time":1}`, `{"key":"a","timestamp":1}`,
		`{"key":""}`, `{"key":"a\u0085"}`, "{\"key\":\"\xff\"}", `{"key":"` + strings.Repeat("x", 513) + `"}`, `[{"key":"a"}]`, `{"key":"a"} x`,
	}
	good := []string{
		`{"key":"\ufffd"}`, `{"key":"\ud83d\ude00"}`, `{"key":"\ufffd\\ud83d"}`, `{"x":"\ud83d","key":"\ufffd"}`,
		`{"key":"a","n":1099511627776}`, fmt.Sprintf(`{"key":"a","ts":%d}`, time.Now().UnixMilli()), `{"id":"7","key":"a","other":[1]}`,
	}
	line := s.publish(strings.NewReader(strings.Join(append(bad, good...), "\n")), "--format", "ndjson")
	for _, want := range []string{fmt.Sprintf("published %d hits", len(good)), fmt.Sprintf("skipped %d bad lines (first: line 1: key has half of a surrogate pair)", len(bad))} {
		if !strings.Contains(line, want) {
			t.Errorf("%q does not say %q", line, want)
		}
	}
	stack.EventuallyTotal(t, s.query.URL(), "a", "24h", 1<<40+2)
	stack.EventuallyTotal(t, s.query.URL(), "\ufffd", "24h", 2)

	// Nothing of it was rejected, and the decoder refuses the same lines when another producer sends them.
	for _, l := range bad {
		s.send("hits.raw", l)
	}
	for i, r := range s.rejects(uint64(len(bad)) - 1) { // an array is a body, though no line
		if got := string(r.Data); i < len(bad)-2 && got != bad[i] {
			t.Errorf("reject %d is %q, want %q", i, got, bad[i])
		}
	}
}
