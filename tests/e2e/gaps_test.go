package e2e_test

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
	"tallyroll/tests/stack"
)

// declare waits until everything is counted, and declares that no older hits are missing, since yesterday: a
// stream with gaps cannot tell what its own limits discarded before. complete reports whether the totals of a
// day then are.
func (s *system) declare() (complete func() bool) {
	s.t.Helper()
	s.awaitAllCounted()
	code, out := runToEnd(s.t, "ingest", []string{"--complete-from", time.Now().UTC().AddDate(0, 0, -1).Format(time.DateOnly), "--by", "alice"},
		"NATS_URL="+s.nats.URL(), "REDIS_URL="+s.redis.URL(), "INGEST_ADDR=127.0.0.1:0")
	require.Zero(s.t, code, out)
	return func() bool {
		s.t.Helper()
		s.awaitAllCounted()
		return stack.TotalOf(s.t, s.query.URL(), "any", "24h").Complete
	}
}

// discarded is how many messages the worker has reported as discarded.
func (s *system) discarded() (n string) {
	s.t.Helper()
	_, body, err := stack.Do(http.MethodGet, s.ingest.URL()+"/metrics", nil)
	require.NoError(s.t, err)
	for _, found := range regexp.MustCompile(`(?m)^tallyroll_ingest_discarded_messages_total\S* ([1-9]\S*)`).FindAllSubmatch(body, -1) {
		n += string(found[1]) + " "
	}
	return strings.TrimSpace(n)
}

// auditLacksNothing runs audit, which must find no difference, and nothing that the streams lack.
func (s *system) auditLacksNothing() {
	s.t.Helper()
	code, out := runToEnd(s.t, "audit", nil, "NATS_URL="+s.nats.URL(), "REDIS_URL="+s.redis.URL())
	require.Zero(s.t, code, out)
	require.Contains(s.t, out, "the streams still hold everything that was counted")
}

// A stream that begins with a later sequence, by its first_seq, lacks nothing before that. What it discards
// from there on is reported as of any other.
func TestAStreamWithAFirstSequenceLacksNothing(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	for name, first := range map[string]uint64{"HITS_EMPTY": 5, "HITS_FULL": 1000} {
		_, err := s.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name + ".*"}, FirstSeq: first})
		require.NoError(t, err)
	}
	s.send("HITS_FULL.a", `{"n":3}`)
	s.ingest = stack.Ingest(t, s.nats, s.redis, "INGEST_STREAMS=HITS_*")
	s.query = stack.Query(t, s.redis)
	s.awaitTotal("a", 3)
	complete := s.declare()
	require.True(t, complete())
	s.ingest.Stop() // the next one finds cursors of which one names no message
	s.send("HITS_EMPTY.b", "")
	require.EqualValues(t, 1001, s.send("HITS_FULL.a", "").Sequence)
	s.ingest.Start()
	s.awaitTotals(map[string]int64{"a": 4, "b": 1})
	require.True(t, complete())
	require.Empty(t, s.discarded())
	s.auditLacksNothing()

	s.ingest.Stop()
	for range 3 {
		s.send("HITS_FULL.a", "")
	}
	stream, err := s.js.Stream(t.Context(), "HITS_FULL")
	require.NoError(t, err)
	require.NoError(t, stream.Purge(t.Context(), jetstream.WithPurgeSequence(1004)))
	s.ingest.Start()
	s.awaitTotal("a", 5)
	require.False(t, complete())
	require.Equal(t, "2", s.discarded())
}

// What a mirror's filter leaves out is no loss, does not hold as_of back, and the log and /v1/streams report
// that losses cannot be told from it.
func TestWhatAMirrorLeavesOutIsNoLoss(t *testing.T) {
	t.Parallel()
	for name, mirror := range map[string]*jetstream.StreamSource{
		"filter":     {Name: "SHOP", FilterSubject: "shop.paid.*"},
		"transforms": {Name: "SHOP", SubjectTransforms: []jetstream.SubjectTransformConfig{{Source: "shop.paid.*", Destination: "shop.paid.{{wildcard(1)}}"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServers(t)
			s.createStream("SHOP", "shop.>")
			s.createStream("HITS", "hits.>")
			publish := func() {
				t.Helper()
				for i := range 10 {
					s.send("shop.viewed.x", "")
					if i%5 == 2 {
						s.send("shop.paid.de", `{"key":"paid"}`)
					}
				}
			}
			publish()
			_, err := s.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "HITS_PAID", Mirror: mirror, MaxAge: 48 * time.Hour})
			require.NoError(t, err)
			s.ingest = stack.Ingest(t, s.nats, s.redis, "INGEST_STREAMS=HITS,HITS_PAID")
			s.query = s.startQuery()
			s.awaitTotal("paid", 2)
			complete := s.declare() // it ends with a message that the mirror leaves out, and as_of passes it
			require.True(t, complete())
			publish()
			s.awaitTotal("paid", 4)
			s.ingest.Stop()
			publish()
			s.ingest.Start()
			s.awaitTotal("paid", 6)
			require.True(t, complete())
			require.Empty(t, s.discarded())
			const gaps = "mirrors only some subjects"
			s.ingest.WaitForLog(gaps)
			eventuallySays(t, s.query.URL()+"/v1/streams", http.StatusOK, gaps)
		})
	}
}

// A schedule counts when its message comes, once, and not when it is stored. That the server removes it then
// is no loss.
func TestAScheduleCountsWhenItsMessageComes(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	if version := s.nats.Conn().ConnectedServerVersion(); version < hit.ServerHeaders[hit.ScheduleHeader] {
		t.Skipf("NATS has schedules from 2.12 on, and this one is %s", version)
	}
	_, err := s.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}, AllowMsgSchedules: true, MaxAge: 48 * time.Hour})
	require.NoError(t, err)
	stream, err := s.js.Stream(t.Context(), "HITS")
	require.NoError(t, err)
	schedule := func(id string) {
		t.Helper()
		m := nats.NewMsg("hits.schedule." + id)
		m.Data = []byte(`{"key":"later","n":5}`)
		m.Header.Set(hit.ScheduleHeader, "@at "+time.Now().Add(time.Second).UTC().Format(time.RFC3339))
		m.Header.Set(hit.ScheduleTarget, "hits.due")
		_, err := s.js.PublishMsg(t.Context(), m)
		require.NoError(t, err)
	}
	fired := func(messages uint64) {
		t.Helper()
		stack.Eventually(t, "the schedules to fire", func() (bool, string) {
			info, err := stream.Info(t.Context())
			return err == nil && info.State.LastSeq == messages, fmt.Sprintf("%+v %v", info.State, err)
		})
	}
	schedule("a") // before any worker
	schedule("b")
	fired(4)
	s.ingest = stack.Ingest(t, s.nats, s.redis)
	s.query = s.startQuery()
	s.awaitTotal("later", 10)
	complete := s.declare()
	require.True(t, complete())
	schedule("c") // while one runs
	s.awaitTotal("later", 15)
	schedule("d")
	s.awaitAllCounted() // the cursor names the schedule
	s.ingest.Stop()
	schedule("e")
	fired(10)
	s.ingest.Start()
	s.awaitTotal("later", 25)
	require.True(t, complete())
	require.Empty(t, s.discarded())
	s.ingest.WaitForLog("allow_msg_schedules")
	eventuallySays(t, s.query.URL()+"/v1/streams", http.StatusOK, "allow_msg_schedules")
	total := ask[stack.Answer](s, "/v1/total", url.Values{"key": {"later"}, "window": {"1h"}}).Totals[0]
	require.True(t, total.Is(25), "%+v", total)
	code, out := runToEnd(t, "audit", nil, "NATS_URL="+s.nats.URL(), "REDIS_URL="+s.redis.URL())
	require.Zero(t, code, out)
	require.Contains(t, out, "0 differences")
}

// Servers refuse the headers by which they mark messages in a stream without the setting, from the version on
// with which each came. Earlier ones store them for anyone.
func TestServersKeepTheirHeadersToThemselves(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	s.createStream("HITS", "hits.>")
	version := s.nats.Conn().ConnectedServerVersion()
	for name, headers := range map[string]nats.Header{
		hit.IncrementHeader: {hit.IncrementHeader: {"+1"}},
		hit.ScheduleHeader:  {hit.ScheduleHeader: {"@at 2026-11-27T10:00:00Z"}, hit.ScheduleTarget: {"hits.due"}},
		hit.MarkerHeader:    {hit.MarkerHeader: {"MaxAge"}, "Nats-TTL": {"1h0m0s"}, "Nats-Rollup": {"sub"}},
	} {
		m := nats.NewMsg("hits.a")
		m.Header = headers
		_, err := s.js.PublishMsg(t.Context(), m)
		if since := hit.ServerHeaders[name]; since == "" || (err != nil) != (version >= since) && name != hit.MarkerHeader || name == hit.MarkerHeader && err == nil {
			t.Errorf("%s came with %q, and %s answers %v", name, since, version, err)
		}
	}
}
