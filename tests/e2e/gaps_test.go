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

// declare waits until everything is counted, and declares that no older hits are missing, since yesterday: no
// stream can tell what there was before it. complete reports whether the totals of a
// day then are.
func (s *system) declare() (complete func() bool) {
	s.t.Helper()
	code, out := s.declareSinceYesterday()
	require.Zero(s.t, code, out)
	return func() bool {
		s.t.Helper()
		s.awaitAllCounted()
		return stack.TotalOf(s.t, s.query.URL(), "any", "24h").Complete
	}
}

func (s *system) declareSinceYesterday() (code int, out string) {
	s.t.Helper()
	s.awaitAllCounted()
	return runToEnd(s.t, "ingest", []string{"--complete-from", time.Now().UTC().AddDate(0, 0, -1).Format(time.DateOnly), "--by", "alice"},
		"NATS_URL="+s.nats.URL(), "REDIS_URL="+s.redis.URL(), "INGEST_ADDR=127.0.0.1:0")
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

// A mirror that starts later by its configuration lacks nothing before that, whether a worker finds it whole
// or sees it begin.
func TestAMirrorThatStartsLaterLacksNothing(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*jetstream.StreamSource, time.Time){
		"sequence":              func(m *jetstream.StreamSource, _ time.Time) { m.OptStartSeq = 6 },
		"time":                  func(m *jetstream.StreamSource, at time.Time) { m.OptStartTime = &at },
		"sequence and a filter": func(m *jetstream.StreamSource, _ time.Time) { m.OptStartSeq, m.FilterSubject = 6, "shop.paid.*" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServers(t)
			shop := s.createStream("SHOP", "shop.>")
			for range 5 {
				s.send("shop.paid.de", `{"key":"early"}`)
			}
			s.send("shop.viewed.x", `{"key":"viewed"}`)
			later, err := shop.GetMsg(t.Context(), 6)
			require.NoError(t, err)
			s.send("shop.paid.de", `{"key":"paid"}`)
			mirror := func(name string) {
				t.Helper()
				source := &jetstream.StreamSource{Name: "SHOP"}
				start(source, later.Time)
				_, err := s.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Mirror: source})
				require.NoError(t, err)
			}
			mirror("HITS_WHOLE")
			s.ingest = stack.Ingest(t, s.nats, s.redis, "INGEST_STREAMS=HITS_*")
			s.query = s.startQuery()
			s.awaitTotal("paid", 1)
			mirror("HITS_SEEN")
			s.awaitTotal("paid", 2)
			require.True(t, s.declare()())
			require.Empty(t, s.discarded())
		})
	}
}

// What was changed while no worker read proves nothing about what was discarded meanwhile: limits, what a
// mirror copies, and that sequences may be missing.
func TestSettingsOfNowProveNothingAboutThePast(t *testing.T) {
	t.Parallel()
	filter := func(subject string) *jetstream.StreamSource {
		return &jetstream.StreamSource{Name: "SHOP", FilterSubject: subject}
	}
	mirror := jetstream.StreamConfig{Name: "HITS", Mirror: filter("shop.paid.*"), MaxMsgs: 10}
	plain := jetstream.StreamConfig{Name: "HITS", Subjects: []string{"shop.>"}, MaxMsgs: 10}
	for name, c := range map[string]struct {
		config   jetstream.StreamConfig
		edit     func(*jetstream.StreamConfig)
		messages int // while no worker reads
		recreate bool
		forget   bool // Redis forgets everything
	}{
		"filter, limit removed":              {config: mirror, edit: func(c *jetstream.StreamConfig) { c.MaxMsgs = -1 }, messages: 20},
		"filter, limit removed, empty Redis": {config: mirror, edit: func(c *jetstream.StreamConfig) { c.MaxMsgs = -1 }, messages: 20, forget: true},
		"another filter":                     {config: mirror, edit: func(c *jetstream.StreamConfig) { c.Mirror = filter("shop.>") }, recreate: true},
		"promoted":                           {config: mirror, edit: func(c *jetstream.StreamConfig) { c.Mirror, c.Subjects = nil, []string{"hits.>"} }},
		"schedules allowed":                  {config: plain, edit: func(c *jetstream.StreamConfig) { c.AllowMsgSchedules = true }, messages: 20},
		"schedules, limit raised": {
			config: func() jetstream.StreamConfig { c := plain; c.AllowMsgSchedules = true; return c }(),
			edit:   func(c *jetstream.StreamConfig) { c.MaxMsgs = 100 }, messages: 20,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServers(t)
			if c.config.Mirror != nil {
				s.createStream("SHOP", "shop.>")
			}
			stream, err := s.js.CreateStream(t.Context(), c.config)
			require.NoError(t, err)
			s.send("shop.viewed.x", `{"key":"viewed"}`)
			s.send("shop.paid.de", `{"key":"paid"}`)
			s.ingest = stack.Ingest(t, s.nats, s.redis, "INGEST_STREAMS=HITS")
			s.query = s.startQuery()
			s.awaitTotal("paid", 1)
			complete := s.declare()
			require.True(t, complete())
			s.ingest.Stop()
			last := uint64(2)
			for range c.messages {
				last = s.send("shop.paid.de", `{"key":"paid"}`).Sequence
			}
			stack.Eventually(t, "the messages to be stored", func() (bool, string) {
				info, err := stream.Info(t.Context())
				return err == nil && info.State.LastSeq == last, fmt.Sprintf("%+v %v", info.State, err)
			})
			c.edit(&c.config)
			if c.recreate {
				require.NoError(t, s.js.DeleteStream(t.Context(), "HITS"))
				_, err = s.js.CreateStream(t.Context(), c.config)
			} else {
				_, err = s.js.UpdateStream(t.Context(), c.config)
			}
			require.NoError(t, err)
			if c.forget {
				s.loseRedis()
			}
			s.ingest.Start()
			if c.forget { // and the declaration with it
				s.awaitTotal("paid", 10)
				code, out := s.declareSinceYesterday()
				require.Equal(t, 1, code, out)
			}
			require.False(t, complete())
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
	s.send("hits.first", "") // or nothing would prove that a message was not discarded before the schedules
	schedule("a")            // before any worker
	schedule("b")
	fired(5)
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
	fired(11)
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
