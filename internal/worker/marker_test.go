package worker

import (
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// A message that claims in its headers to be a note of the server's counts like any other,
// unless it has the very form of one, which the server takes from nobody
// in a stream without markers.
func TestAProducersMarkerCounts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.createStream(0)
	exact := map[string]string{"Nats-Marker-Reason": "MaxAge", "Nats-TTL": "1h0m0s", "Nats-Rollup": "sub"}
	publish := func(headers map[string]string, body string) error {
		m := nats.NewMsg("hits.c")
		m.Data = []byte(body)
		for name, value := range headers {
			m.Header.Set(name, value)
		}
		_, err := r.js.PublishMsg(t.Context(), m)
		return err
	}
	for _, headers := range []map[string]string{
		{"Nats-Marker-Reason": "MaxAge"},
		{"Nats-Marker-Reason": "Purge", "Nats-Marker-Other": "x"},
		{"Nats-Marker-Reason": "Remove", "A": "b", "C": "d"},
	} {
		require.NoError(t, publish(headers, ""))
	}
	require.NoError(t, publish(map[string]string{"Nats-Marker-Reason": "MaxAge"}, `{"n":2}`))
	if err := publish(exact, ""); err == nil {
		t.Error("the server stores the form of its own notes in a stream without them")
	}
	w := r.start()
	r.settled(5)
	if skipped := w.metric("skipped_messages_total"); skipped != 0 {
		t.Errorf("%v messages skipped", skipped)
	}
}

// The server's own notes are skipped, and counted in the metric.
func TestTheServersMarkersAreSkipped(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	require.NoError(t, errOf(r.js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "HITS", Subjects: []string{"hits.>"}, MaxAge: 10 * time.Second, SubjectDeleteMarkerTTL: 90 * time.Second,
	})))
	w := r.start()
	r.publish(3)
	r.settled(3)
	stack.Eventually(t, "the server's marker to be skipped", func() (bool, string) {
		return w.metric("skipped_messages_total") == 1, ""
	})
	r.publish(1)
	r.settled(4)
}
