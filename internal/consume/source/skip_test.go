package source

import (
	"testing"

	"github.com/nats-io/nats.go"
)

// A message without a body is a hit, unless its headers say that the body is missing. A body counts.
func TestMessagesThatSayTheyHaveNoBodyCountNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		header nats.Header
		want   string // without a body
	}{
		{nats.Header{}, ""},
		{nats.Header{"Nats-Msg-Id": {"1"}}, ""},
		{nats.Header{"KV-Operation": {"DEL"}}, SkippedNoValue},
		{nats.Header{"KV-Operation": {"PURGE"}, "Nats-Rollup": {"sub"}, "Nats-TTL": {"1h0m0s"}}, SkippedNoValue},
		{nats.Header{"KV-Operation": {"PUT"}}, ""},
		{nats.Header{"Nats-Msg-Size": {"11"}}, SkippedNoValue},
		{nats.Header{"Nats-Msg-Size": {"0"}}, ""}, // the original was empty, too
		{nats.Header{"Nats-Marker-Reason": {"MaxAge"}, "Nats-TTL": {"1h0m0s"}, "Nats-Rollup": {"sub"}}, SkippedMarker},
		{nats.Header{"Nats-Schedule": {"@at"}, "Nats-Schedule-Target": {"hits.due"}}, SkippedSchedule},
		{nats.Header{"Tallyroll-Namespace": {"other"}}, SkippedNamespace},
	} {
		j := &JetStream{namespace: "test"}
		if got := j.skipReason(&nats.Msg{Header: c.header}); got != c.want {
			t.Errorf("%v without a body: %q, want %q", c.header, got, c.want)
		}
		want := c.want
		if want == SkippedNoValue || want == SkippedMarker {
			want = ""
		}
		if got := j.skipReason(&nats.Msg{Header: c.header, Data: []byte("{}")}); got != want {
			t.Errorf("%v with a body: %q, want %q", c.header, got, want)
		}
	}
}
