package collect

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
	"tallyroll/internal/hit"
	"tallyroll/internal/web"
	"tallyroll/tests/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

// rig is the service in the test's own process, on a real NATS server.
type rig struct {
	*service
	t      testing.TB
	nats   broker
	js     jetstream.JetStream
	stream jetstream.Stream
	url    string
}

// broker is a NATS server.
type broker interface {
	URL() string
	JetStream() jetstream.JetStream
}

// settingsOf are the defaults and some others, KEY=value.
func settingsOf(t testing.TB, env ...string) Settings {
	t.Helper()
	var s Settings
	require.NoError(t, boot.Parse(&s, env...))
	return s
}

// newRig starts the service. The stream HITS takes hits.> unless change makes it another.
func newRig(t testing.TB, change func(*jetstream.StreamConfig), env ...string) *rig {
	t.Helper()
	return newRigOn(t, stack.NATS(t), change, env...)
}

func newRigOn(t testing.TB, server broker, change func(*jetstream.StreamConfig), env ...string) *rig {
	t.Helper()
	r := &rig{t: t, nats: server}
	r.js = r.nats.JetStream()
	config := jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}}
	if change != nil {
		change(&config)
	}
	var err error
	r.stream, err = r.js.CreateStream(t.Context(), config)
	require.NoError(t, err)
	r.serve(env...)
	return r
}

// serve starts the service and waits until it is ready.
func (r *rig) serve(env ...string) {
	r.t.Helper()
	s, err := newService(settingsOf(r.t, append([]string{"NATS_URL=" + r.nats.URL()}, env...)...), zerolog.New(zerolog.NewTestWriter(r.t)).Level(zerolog.WarnLevel))
	require.NoError(r.t, err)
	r.service = s
	server := httptest.NewServer(s.handler())
	ctx, stop := context.WithCancel(context.Background())
	served, end := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.publish(ctx, served) }()
	r.t.Cleanup(func() {
		stop()
		server.Close()
		end()
		if err := <-ended; err != nil {
			r.t.Error(err)
		}
		if n, b := s.gate.requests.Load(), s.gate.bytes.Load(); n != 0 || b != 0 {
			r.t.Errorf("at the end, %d requests and %d bytes are held", n, b)
		}
	})
	r.url = server.URL
	stack.Eventually(r.t, "the service to be ready", func() (bool, string) {
		why := s.target.whyNotReady(s.conn())
		return why == "", why
	})
}

// post sends a body with headers, name and value in turn.
func (r *rig) post(body string, headers ...string) (*http.Response, []byte) {
	r.t.Helper()
	return r.send(bytes.NewReader([]byte(body)), headers...)
}

func (r *rig) send(body io.Reader, headers ...string) (*http.Response, []byte) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.url+hitsPath, body)
	require.NoError(r.t, err)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(r.t, err)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	require.NoError(r.t, err)
	return resp, answer
}

// stored posts a body that must be stored.
func (r *rig) stored(body string, headers ...string) receipt {
	r.t.Helper()
	resp, answer := r.post(body, headers...)
	var got receipt
	if err := json.Unmarshal(answer, &got); resp.StatusCode != http.StatusAccepted || err != nil {
		r.t.Fatalf("%s %v: status %d, %s (%v)", excerptOf(body), headers, resp.StatusCode, answer, err)
	}
	return got
}

// refused checks that an answer is a problem with this status.
func refused(t testing.TB, resp *http.Response, answer []byte, status int) web.Problem {
	t.Helper()
	var p web.Problem
	err := json.Unmarshal(answer, &p)
	if resp.StatusCode != status || err != nil || p.Status != status || p.Detail == "" || resp.Header.Get("Content-Type") != web.ProblemType {
		t.Fatalf("status %d, %s, %s (%v); want a problem of status %d", resp.StatusCode, resp.Header.Get("Content-Type"), answer, err, status)
	}
	if !slices.ContainsFunc(web.Kinds(), func(k *web.Kind) bool {
		return k.Type() == p.Type && k.Status == p.Status && cmp.Or(k.Title, http.StatusText(k.Status)) == p.Title
	}) {
		t.Errorf("%s is of no kind that the page lists", answer)
	}
	if strings.ContainsAny(p.Detail, "\n") {
		t.Errorf("detail has several lines: %q", p.Detail)
	}
	if status == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") == "" {
		t.Errorf("no Retry-After: %s", answer)
	}
	return p
}

// refuses posts a body that must be refused with a status.
func (r *rig) refuses(status int, body string, headers ...string) web.Problem {
	r.t.Helper()
	resp, answer := r.post(body, headers...)
	return refused(r.t, resp, answer, status)
}

// messages is how many messages the stream has.
func (r *rig) messages() uint64 {
	r.t.Helper()
	info, err := r.stream.Info(r.t.Context())
	require.NoError(r.t, err)
	return info.State.Msgs
}

// counts is what a worker makes of everything in the stream.
func (r *rig) counts() map[string]int64 {
	r.t.Helper()
	info, err := r.stream.Info(r.t.Context())
	require.NoError(r.t, err)
	out := make(map[string]int64)
	d := decoder()
	for seq := info.State.FirstSeq; seq <= info.State.LastSeq && info.State.Msgs > 0; seq++ {
		m, err := r.stream.GetMsg(r.t.Context(), seq)
		require.NoError(r.t, err)
		hits, rejects := d.Decode("collect", m.Time.UnixMilli(), m.Data)
		if len(rejects) > 0 {
			r.t.Fatalf("a worker refuses %s: %+v", m.Data, rejects)
		}
		for _, h := range hits {
			out[string(h.Counter)] += h.N
		}
	}
	return out
}

// decoder is a worker's, with tiers that hold every time.
func decoder() *hit.Decoder {
	return hit.NewDecoder(hit.Limits{MaxAhead: 10 * time.Second, MaxHits: 10_000, Place: func([]byte, int64, int64) (uint64, string) { return 0, "" }})
}

func excerptOf(s string) string { return web.Excerpt(s) }
