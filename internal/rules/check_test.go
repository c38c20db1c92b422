package rules

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
)

// What a Checker takes in JSON, a Decoder takes for a CloudEvent with a time, alone and in a batch. What it refuses, the
// Decoder refuses, too, but for times that are no RFC 3339.
func FuzzChecker(f *testing.F) {
	const good = `{"specversion":"1.0","type":"a","source":"b","id":"c","time":"2026-11-21T10:00:00Z","data":{}}`
	for _, event := range []string{
		good, strings.Replace(good, "1.0", "0.3", 1), strings.Replace(good, `"a"`, "null", 1), strings.Replace(good, `"b"`, `""`, 1), strings.Replace(good, `"c"`, `"\ud800"`, 1),
		strings.Replace(good, "2026", "0000", 1), strings.Replace(good, `"2026-11-21T10:00:00Z"`, "5", 1), strings.Replace(good, "specversion", `spec\u0076ersion`, 1), "{}", "", "[]", good + good,
	} {
		f.Add(event)
	}
	set, err := Parse([]byte("- {stream: S, subject: e, format: cloudevents, count: [{key: counter}]}"))
	require.NoError(f, err)
	structured := nats.Header{"Content-Type": {"application/cloudevents+json"}}.Get // as collect publishes them
	f.Fuzz(func(t *testing.T, event string) {
		event = strings.Trim(event, " \t\r\n")
		is, refused := NewChecker().JSON([]byte(event))
		d := NewDecoder(set.For("S"), hit.Limits{MaxHits: 10, MaxAhead: time.Second, Place: func([]byte, int64, int64) (uint64, string) { return 0, "" }})
		stored := time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC).UnixMilli()
		for _, body := range []string{event, "[" + event + "]"} {
			hits, rejects, _ := d.Decode(Message{Subject: "e", Header: structured, Stored: stored, Body: []byte(body)})
			switch {
			case refused == nil && (len(hits) != 1 || len(rejects) > 0):
				t.Errorf("%q is taken, and makes %d hits and %+v", body, len(hits), rejects)
			case refused == nil && (is.Source == "" || is.ID == ""):
				t.Errorf("%q is %+v", body, is)
			case refused != nil && len(hits) == 1 && len(rejects) == 0 && !strings.HasPrefix(event, "[") &&
				!strings.Contains(refused.Detail, "time is") && !strings.Contains(refused.Detail, "surrogate") && hit.IsObject([]byte(event)):
				t.Errorf("%q is refused (%s), and counts", body, refused.Detail)
			}
		}
	})
}

// The headers of a request are checked as a Decoder reads those of the message that is made of them.
func TestCheckHeader(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, value, want string
	}{
		{"", "", ""},
		{"Ce-Id", "", "ce-id is missing"},
		{"Ce-Specversion", "2", "ce-specversion is"},
		{"Ce-Time", "noon", "ce-time is"},
		{"Ce-Time", "0000-01-01T00:00:00Z", "ce-time is"},
		{"Ce-Time", "2026-11-21T10%3A00:00Z", ""},
		{"Ce-Specversion", `"1.0"`, ""},
		{"Ce-Id", `"1"`, ""},
		{"Ce-Id", "%31", ""},
		{"Ce-Id", `"\%31"`, ""},
		{"Ce-Id", `""`, "ce-id is missing"},
		{"Ce-Id", `"1`, "ce-id is text, \"\\\"1\": it begins with a quote"},
		{"Ce-Id", "%FF", "ce-id is text, \"%FF\": allowed is valid UTF-8"},
		{"Ce-Unread", "%C0%A0", "ce-unread is text, \"%C0%A0\": allowed is valid UTF-8"},
	} {
		request := map[string][]string{"Ce-Specversion": {"1.0"}, "Ce-Type": {"a"}, "Ce-Source": {"/%C3%A4"}, "Ce-Id": {"1"}, "Content-Type": {"text/plain"}, "Accept": {"x"}}
		if c.name != "" {
			request[c.name] = []string{c.value}
		}
		var is Identity
		message, refused := BinaryHeaders(request)
		if refused == nil {
			is, refused = NewChecker().Header(message)
		}
		switch {
		case c.want == "" && (refused != nil || is != Identity{"/ä", "1"}):
			t.Errorf("%s: %q: %+v, %v", c.name, c.value, is, refused)
		case c.want != "" && (refused == nil || !strings.Contains(refused.Detail, c.want)):
			t.Errorf("%s: %q: %v, want %q", c.name, c.value, refused, c.want)
		}
	}
}

func TestEventHeader(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"ce-id": true, "Ce-Id": true, "ce_id": true, "Content-Type": true, "content-type": true,
		"ce-": false, "ce": false, "cex-id": false, nats.MsgIdHdr: false, "Nats-Expected-Stream": false, "Tallyroll-Subject": false, "": false,
	} {
		require.Equal(t, want, EventHeader(name), !want)
	}
}
