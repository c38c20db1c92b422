package e2e_test

import (
	"net/http"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// A backup, a stream that sources another, and a republish count no hit twice. The worker stays ready, names
// them, and as_of moves. The proof agrees.
func TestCopiesOnTheSameServerCountNothing(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	for _, config := range []jetstream.StreamConfig{
		{Name: "HITS", Subjects: []string{"hits.>"}, RePublish: &jetstream.RePublish{Destination: "again.>"}},
		{Name: "HITS_BACKUP", Mirror: &jetstream.StreamSource{Name: "HITS"}},
		{Name: "HITS_V2", Sources: []*jetstream.StreamSource{{Name: "HITS"}}},
		{Name: "HITS_AGAIN", Subjects: []string{"again.>"}},
	} {
		_, err := s.js.CreateStream(t.Context(), config)
		require.NoError(t, err)
	}
	s.ingest = stack.Ingest(t, s.nats, s.redis)
	s.query = s.startQuery()
	const hits = 20
	for range hits {
		s.send("hits.a", `{"key":"a"}`)
	}
	s.send("again.own", `{"key":"a"}`)
	s.awaitTotal("a", hits+1)
	s.awaitAllCounted()
	for _, copied := range []string{"HITS_BACKUP: it mirrors HITS", "HITS_V2 holds copies of messages of HITS", "HITS_AGAIN holds copies of messages of HITS", "INGEST_STREAMS"} {
		eventuallySays(t, s.ingest.URL()+"/readyz", http.StatusOK, copied)
		s.ingest.WaitForLog(copied)
	}
	eventuallySays(t, s.ingest.URL()+"/metrics", http.StatusOK, `tallyroll_ingest_skipped_messages_total{reason="copy",stream="HITS_V2"} 20`)
	s.awaitTotal("a", hits+1)
	s.requireAudit(0, "audit: 21 hits, 1 counters, 0 differences\n")

	s.ingest.Kill() // what is skipped stays skipped
	s.send("hits.a", `{"key":"a"}`)
	s.ingest.Start()
	s.awaitTotal("a", hits+2)
	s.awaitAllCounted()
	s.requireAudit(0, "audit: 22 hits, 1 counters, 0 differences\n")
}
