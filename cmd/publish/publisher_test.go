package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/boot"
	"tallyroll/internal/hit"
	"tallyroll/internal/outbox"
)

// broker is a NATS server that can be stopped and started again where it was.
type broker struct {
	t       *testing.T
	options server.Options
	server  *server.Server
}

func startBroker(t *testing.T) *broker {
	b := &broker{t: t, options: server.Options{
		Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
	}}
	b.start()
	b.options.Port = b.server.Addr().(*net.TCPAddr).Port
	t.Cleanup(b.stop)
	return b
}

func (b *broker) start() {
	b.t.Helper()
	options := b.options // the server changes its copy
	s, err := server.NewServer(&options)
	if err != nil {
		b.t.Fatal(err)
	}
	s.Start()
	if !s.ReadyForConnections(10 * time.Second) {
		b.t.Fatal("the NATS server does not start")
	}
	b.server = s
}

func (b *broker) stop() {
	b.server.Shutdown()
	b.server.WaitForShutdown()
}

func (b *broker) connect(more ...nats.Option) *nats.Conn {
	b.t.Helper()
	more = append(more, nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.ReconnectJitter(0, 0))
	conn, err := nats.Connect(fmt.Sprintf("nats://127.0.0.1:%d", b.options.Port), more...)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(conn.Close)
	return conn
}

func (b *broker) stream() jetstream.Stream {
	b.t.Helper()
	js, err := jetstream.New(b.connect())
	if err != nil {
		b.t.Fatal(err)
	}
	s, err := js.CreateOrUpdateStream(b.t.Context(), jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}})
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// counts adds up what a stream holds.
func counts(t *testing.T, s jetstream.Stream) (messages uint64, hits int64, byKey map[string]int64) {
	t.Helper()
	info, err := s.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	byKey = map[string]int64{}
	for seq := max(1, info.State.FirstSeq); seq <= info.State.LastSeq; seq++ {
		m, err := s.GetMsg(t.Context(), seq)
		if err != nil {
			t.Fatal(err)
		}
		decoder := json.NewDecoder(bytes.NewReader(m.Data))
		for decoder.More() {
			h := struct {
				Key string
				N   int64
			}{N: 1}
			if err := decoder.Decode(&h); err != nil {
				t.Fatalf("message %d: %v", seq, err)
			}
			byKey[h.Key] += h.N
			hits++
		}
	}
	return info.State.Msgs, hits, byKey
}

// logLines is a log that a test can wait for.
type logLines struct {
	mu   sync.Mutex
	text strings.Builder
	line chan struct{}
}

func newLogLines() *logLines { return &logLines{line: make(chan struct{}, 100)} }

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	select {
	case l.line <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logLines) waitFor(t *testing.T, part string) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for !strings.Contains(l.String(), part) {
		select {
		case <-l.line:
		case <-deadline:
			t.Fatalf("the log never says %q: %s", part, l.String())
		}
	}
}

func mustParse(t *testing.T, args ...string) options {
	t.Helper()
	o, _, err := parseFlags(args)
	if err != nil {
		t.Fatal(err)
	}
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
		rep, err := publish(ctx, conn, zerolog.New(log), opts, in, boot.NewBar(io.Discard, "hits"))
		done <- outcome{rep, err}
	}()
	return done
}

func await(t *testing.T, done <-chan outcome) outcome {
	t.Helper()
	select {
	case o := <-done:
		return o
	case <-time.After(60 * time.Second):
		t.Fatal("publish does not end")
		return outcome{}
	}
}

func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "c-%d\n", i)
	}
	return b.String()
}

// wantEachOnce checks that each of c-0 … c-<n-1> is stored once.
func wantEachOnce(t *testing.T, byKey map[string]int64, n int) {
	t.Helper()
	for i := range n {
		if got := byKey[fmt.Sprintf("c-%d", i)]; got != 1 {
			t.Fatalf("c-%d is stored %d times", i, got)
		}
	}
	if len(byKey) != n {
		t.Fatalf("%d counters, want %d", len(byKey), n)
	}
}

func TestPublishStoresEachHit(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	s := b.stream()
	o := await(t, begin(t.Context(), b.connect(outbox.ConnOptions()...), io.Discard, mustParse(t, "--format", "lines"), strings.NewReader(numbered(10_050))))
	if o.err != nil {
		t.Fatal(o.err)
	}
	messages, hits, byKey := counts(t, s)
	if messages != 51 || hits != 10_050 || o.tally.messages != 51 || o.tally.hits != 10_050 || o.open != 0 {
		t.Fatalf("stored %d messages with %d hits; report %v", messages, hits, o.report)
	}
	wantEachOnce(t, byKey, 10_050)
	info, err := s.Info(t.Context(), jetstream.WithSubjectFilter("hits.publish.*"))
	if err != nil {
		t.Fatal(err)
	}
	if len(info.State.Subjects) != 51 {
		t.Errorf("messages are spread over %d subjects, want 51", len(info.State.Subjects))
	}
}

func TestPublishWaitsForTheStream(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	log := newLogLines()
	// More messages than the window, so that reading has to stop as well.
	const hits = 2 * 256 * 10
	done := begin(t.Context(), b.connect(outbox.ConnOptions()...), log, mustParse(t, "--format", "lines", "--batch", "10"), strings.NewReader(numbered(hits)))
	log.waitFor(t, "no stream takes hits.publish.*: is ingest running?")
	s := b.stream()
	if o := await(t, done); o.err != nil || o.tally.hits != hits {
		t.Fatalf("%v, %v", o.report, o.err)
	}
	_, _, byKey := counts(t, s)
	wantEachOnce(t, byKey, hits)
}

func TestPublishSurvivesARestartOfTheServer(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	s := b.stream()
	const hits = 6000
	in, out := io.Pipe()
	half, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer out.Close()
		for i := range hits {
			if i == hits/2 {
				close(half) // from here on the server goes down while hits come in
			}
			if i == hits/2+hits/4 {
				<-stopped
			}
			if _, err := fmt.Fprintf(out, "c-%d\n", i); err != nil {
				return
			}
		}
	}()
	done := begin(t.Context(), b.connect(outbox.ConnOptions()...), io.Discard, mustParse(t, "--format", "lines", "--batch", "7"), in)
	<-half
	b.stop()
	close(stopped)
	b.start()
	o := await(t, done)
	if o.err != nil || o.tally.hits != hits {
		t.Fatalf("%v, %v", o.report, o.err)
	}
	_, stored, byKey := counts(t, s)
	if stored != hits {
		t.Errorf("%d hits are stored, want %d", stored, hits)
	}
	wantEachOnce(t, byKey, hits)
}

func TestInterruptKeepsWhatWasRead(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	s := b.stream()
	ctx, interrupt := context.WithCancel(t.Context())
	in, out := io.Pipe()
	defer out.Close()
	done := begin(ctx, b.connect(outbox.ConnOptions()...), io.Discard, mustParse(t, "--format", "lines", "--batch", "10"), in)
	if _, err := io.WriteString(out, numbered(25)); err != nil {
		t.Fatal(err)
	}
	// The read of the next line begins when the ones before are taken.
	if _, err := io.WriteString(out, "c-25\n"); err != nil {
		t.Fatal(err)
	}
	interrupt()
	o := await(t, done)
	if o.err != nil || o.open != 0 {
		t.Fatalf("%v, %v", o.report, o.err)
	}
	_, hits, _ := counts(t, s)
	if hits != o.tally.hits || hits > 26 {
		t.Fatalf("%d hits are stored, %d reported", hits, o.tally.hits)
	}
}

func TestPublishSplitsByTheServersLargestMessage(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	b.stop()
	b.options.MaxPayload = 8 << 10
	b.start()
	s := b.stream()
	var in strings.Builder
	for i := range 100 {
		fmt.Fprintf(&in, "%03d%s\n", i, strings.Repeat(`"`, hit.MaxName-3)) // escaped, nearly twice as long
	}
	o := await(t, begin(t.Context(), b.connect(outbox.ConnOptions()...), io.Discard, mustParse(t, "--format", "lines"), strings.NewReader(in.String())))
	if o.err != nil || o.tally.hits != 100 {
		t.Fatalf("%v, %v", o.report, o.err)
	}
	if _, _, byKey := counts(t, s); len(byKey) != 100 {
		t.Fatalf("%d counters are stored", len(byKey))
	}
}

func TestPublishGivesUpOnAStreamOfSmallMessages(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	js, err := jetstream.New(b.connect())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}, MaxMsgSize: 500}); err != nil {
		t.Fatal(err)
	}
	o := await(t, begin(t.Context(), b.connect(outbox.ConnOptions()...), io.Discard, mustParse(t, "--format", "lines"), strings.NewReader(numbered(1000))))
	if o.err == nil || !strings.Contains(o.err.Error(), "lower --batch") {
		t.Fatalf("%v, %v", o.report, o.err)
	}
}

// The whole program on a log: settings from the environment, the last line.
func TestRunPublishesALog(t *testing.T) {
	b := startBroker(t)
	s := b.stream()
	t.Setenv("NATS_URL", fmt.Sprintf("nats://127.0.0.1:%d", b.options.Port))
	log := goodLine + "\n" + `h - - [17/May/2015:10:05:03 +0000] no request` + "\n" + goodLine + "\n"
	var stdout bytes.Buffer
	if err := run(t.Context(), []string{"--rebase", "2026-11-21T10:00:00Z"}, strings.NewReader(log), &stdout, io.Discard); err != nil {
		t.Fatal(err)
	}
	line := stdout.String()
	if !strings.HasPrefix(line, "published 2 hits in 1 messages in ") || !strings.HasSuffix(line, "; skipped 1 bad lines (first: line 2: no request in quotes)\n") {
		t.Errorf("%q", line)
	}
	m, err := s.GetMsg(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	one := `{"key":"/images/a.png","ts":1795255200000}`
	if string(m.Data) != one+"\n"+one {
		t.Errorf("%s", m.Data)
	}
}

// Hits a second through the whole of it into a stream in memory.
func BenchmarkPublish(b *testing.B) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: b.TempDir(), NoSigs: true, NoLog: true})
	if err != nil {
		b.Fatal(err)
	}
	s.Start()
	defer s.Shutdown()
	if !s.ReadyForConnections(10 * time.Second) {
		b.Fatal("the NATS server does not start")
	}
	conn, err := nats.Connect(s.ClientURL(), outbox.ConnOptions()...)
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := js.CreateStream(b.Context(), jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}, Storage: jetstream.MemoryStorage}); err != nil {
		b.Fatal(err)
	}
	opts, _, err := parseFlags([]string{"--count", fmt.Sprint(b.N), "--counters", "1000"})
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	if _, err := publish(b.Context(), conn, zerolog.Nop(), opts, nil, boot.NewBar(io.Discard, "hits")); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "hits/s")
}

func TestPublishWarnsOfALogThatIsSurelyTooOld(t *testing.T) {
	t.Parallel()
	b := startBroker(t)
	b.stream()
	for _, c := range []struct {
		args []string
		warn bool
	}{{nil, true}, {[]string{"--rebase", "now"}, false}} {
		var log bytes.Buffer
		o := await(t, begin(t.Context(), b.connect(outbox.ConnOptions()...), &log, mustParse(t, c.args...), strings.NewReader(goodLine+"\n"+goodLine)))
		if o.err != nil {
			t.Fatal(o.err)
		}
		want := 0
		if c.warn {
			want = 1
		}
		if got := strings.Count(log.String(), "the first hit is dated 2015-05-17T10:05:03Z"); got != want {
			t.Errorf("%v: %d warnings, want %d: %s", c.args, got, want, log.String())
		}
	}
}
