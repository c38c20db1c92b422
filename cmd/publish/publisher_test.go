package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/outbox"
	"tallyroll/internal/platform/progress"
	"tallyroll/tests/apitest"
	"tallyroll/tests/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

// broker is a NATS server, or an account of one.
type broker interface {
	JetStream() jetstream.JetStream
	Conn(opts ...nats.Option) *nats.Conn
}

// createHits creates the stream that workers create.
func createHits(t *testing.T, b broker) jetstream.Stream {
	t.Helper()
	s, err := b.JetStream().CreateStream(t.Context(), jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}})
	require.NoError(t, err)
	return s
}

// countStored adds up what a stream holds.
func countStored(t *testing.T, s jetstream.Stream) (messages uint64, hits int64, byKey map[string]int64) {
	t.Helper()
	info, err := s.Info(t.Context())
	require.NoError(t, err)
	byKey = map[string]int64{}
	for seq := max(1, info.State.FirstSeq); seq <= info.State.LastSeq; seq++ {
		m, err := s.GetMsg(t.Context(), seq)
		require.NoError(t, err)
		decoder := json.NewDecoder(bytes.NewReader(m.Data))
		for decoder.More() {
			h := struct {
				Key string
				N   int64
			}{N: 1}
			require.NoErrorf(t, decoder.Decode(&h), "message %d", seq)
			byKey[h.Key] += h.N
			hits++
		}
	}
	return info.State.Msgs, hits, byKey
}

func parse(args ...string) (o options, err error) {
	fs := newFlags(&o)
	if err := fs.Read(args, "hits are read"); err != nil {
		return o, err
	}
	return o, o.check(fs)
}

func mustParse(t *testing.T, args ...string) options {
	t.Helper()
	o, err := parse(args...)
	require.NoError(t, err)
	return o
}

type outcome struct {
	report
	err error
}

// begin publishes in the background.
func begin(ctx context.Context, conn *nats.Conn, log io.Writer, opts options, in io.Reader) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		rep, err := publish(ctx, conn, zerolog.New(log), opts, in, progress.NewBar(io.Discard, "hits"))
		done <- outcome{rep, err}
	}()
	return done
}

func await(t *testing.T, done <-chan outcome) outcome {
	t.Helper()
	select {
	case o := <-done:
		return o
	case <-time.After(stack.Hung):
		t.Fatal("publish does not end")
		return outcome{}
	}
}

// publishAll publishes what in has.
func publishAll(t *testing.T, b broker, log io.Writer, in string, args ...string) outcome {
	t.Helper()
	return await(t, begin(t.Context(), b.Conn(outbox.ConnOptions()...), log, mustParse(t, args...), strings.NewReader(in)))
}

func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "c-%d\n", i)
	}
	return b.String()
}

// checkEachOnce checks that each of c-0 … c-<n-1> is stored once.
func checkEachOnce(t *testing.T, byKey map[string]int64, n int) {
	t.Helper()
	for i := range n {
		require.EqualValues(t, 1, byKey[fmt.Sprintf("c-%d", i)])
	}
	require.Len(t, byKey, n)
}

func TestPublishStoresEachHit(t *testing.T) {
	t.Parallel()
	b := stack.SharedNATS(t)
	s := createHits(t, b)
	o := publishAll(t, b, io.Discard, numbered(10_050), "--format", "lines")
	require.NoError(t, o.err)
	messages, hits, byKey := countStored(t, s)
	if messages != 51 || hits != 10_050 || o.tally.messages != 51 || o.tally.hits != 10_050 || o.open != 0 {
		t.Fatalf("stored %d messages with %d hits; report %v", messages, hits, o.report)
	}
	checkEachOnce(t, byKey, 10_050)
	info, err := s.Info(t.Context(), jetstream.WithSubjectFilter("hits.publish.*"))
	require.NoError(t, err)
	require.Len(t, info.State.Subjects, 51)
}

func TestPublishWaitsForTheStream(t *testing.T) {
	t.Parallel()
	b := stack.SharedNATS(t)
	var log apitest.Log
	// More messages than the window, so that reading has to stop as well.
	const hits = 2 * 256 * 10
	done := begin(t.Context(), b.Conn(outbox.ConnOptions()...), &log, mustParse(t, "--format", "lines", "--batch", "10"), strings.NewReader(numbered(hits)))
	stack.Eventually(t, "a line about the stream that is missing", func() (bool, string) {
		return strings.Contains(log.String(), "no stream takes hits.publish.*: is ingest running?"), log.String()
	})
	s := createHits(t, b)
	if o := await(t, done); o.err != nil || o.tally.hits != hits {
		t.Fatalf("%v, %v", o.report, o.err)
	}
	_, _, byKey := countStored(t, s)
	checkEachOnce(t, byKey, hits)
}

func TestInterruptKeepsWhatWasRead(t *testing.T) {
	t.Parallel()
	b := stack.SharedNATS(t)
	s := createHits(t, b)
	ctx, interrupt := context.WithCancel(t.Context())
	in, out := io.Pipe()
	defer out.Close()
	done := begin(ctx, b.Conn(outbox.ConnOptions()...), io.Discard, mustParse(t, "--format", "lines", "--batch", "10"), in)
	for _, text := range []string{numbered(25), "c-25\n"} { // the read of the next line begins when the ones before are taken
		_, err := io.WriteString(out, text)
		require.NoError(t, err)
	}
	interrupt()
	o := await(t, done)
	if o.err != nil || o.open != 0 {
		t.Fatalf("%v, %v", o.report, o.err)
	}
	_, hits, _ := countStored(t, s)
	if hits != o.tally.hits || hits > 26 {
		t.Fatalf("%d hits are stored, %d reported", hits, o.tally.hits)
	}
}

func TestPublishSplitsByTheServersLargestMessage(t *testing.T) {
	t.Parallel()
	b := stack.NATS(t, func(o *server.Options) { o.MaxPayload = 8 << 10 })
	s := createHits(t, b)
	var in strings.Builder
	for i := range 100 {
		fmt.Fprintf(&in, "%03d%s\n", i, strings.Repeat(`"`, hit.MaxName-3)) // escaped, nearly twice as long
	}
	o := publishAll(t, b, io.Discard, in.String(), "--format", "lines")
	if o.err != nil || o.tally.hits != 100 {
		t.Fatalf("%v, %v", o.report, o.err)
	}
	_, _, byKey := countStored(t, s)
	require.Len(t, byKey, 100)
}

func TestPublishGivesUpOnAStreamOfSmallMessages(t *testing.T) {
	t.Parallel()
	b := stack.SharedNATS(t)
	config := jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}, MaxMsgSize: 500}
	_, err := b.JetStream().CreateStream(t.Context(), config)
	require.NoError(t, err)
	require.ErrorContains(t, publishAll(t, b, io.Discard, numbered(1000), "--format", "lines").err, "lower --batch")
}

// The whole program: settings from the environment, the last line.
func TestProgramPublishesALog(t *testing.T) {
	b := stack.SharedNATS(t)
	s := createHits(t, b)
	t.Setenv("NATS_URL", b.URL())
	log := goodLine + "\n" + `h - - [17/May/2015:10:05:03 +0000] no request` + "\n" + goodLine + "\n"
	var stdout bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"--rebase", "2026-11-21T10:00:00Z"}, strings.NewReader(log), &stdout, io.Discard))
	line := stdout.String()
	if !strings.HasPrefix(line, "published 2 hits in 1 messages in ") || !strings.HasSuffix(line, "; skipped 1 bad lines (first: line 2: no request in quotes)\n") {
		t.Errorf("%q", line)
	}
	m, err := s.GetMsg(t.Context(), 1)
	require.NoError(t, err)
	one := `{"key":"/images/a.png","ts":1795255200000}`
	require.Equal(t, one+"\n"+one, string(m.Data))
}

// A log of another format than that of --format is a failure.
func TestLogWithoutAnyHitIsAFailure(t *testing.T) {
	t.Parallel()
	b := stack.SharedNATS(t)
	createHits(t, b)
	for log, want := range map[string]string{goodLine: "", "": "", "no hit\n" + goodLine: "", "no hit\nnor this\n": "no line was a hit"} {
		err := publishAll(t, b, io.Discard, log).err
		if want == "" {
			require.NoError(t, err, log)
			continue
		}
		require.ErrorContains(t, err, want, log)
	}
}

func TestPublishWarnsOfALogThatIsSurelyTooOld(t *testing.T) {
	t.Parallel()
	b := stack.SharedNATS(t)
	createHits(t, b)
	for rebase, want := range map[string]int{"": 1, "--rebase now": 0} {
		var log bytes.Buffer
		require.NoError(t, publishAll(t, b, &log, goodLine+"\n"+goodLine, strings.Fields(rebase)...).err)
		require.Equal(t, want, strings.Count(log.String(), "the first hit is dated 2015-05-17T10:05:03Z"), log.String())
	}
}
