package collect

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/setting"
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

// broker is a NATS server, or an account of one.
type broker interface {
	URL() string
	JetStream() jetstream.JetStream
}

// parseSettings reads the defaults and some others, KEY=value.
func parseSettings(t testing.TB, env ...string) (s Settings) {
	t.Helper()
	require.NoError(t, setting.Parse(&s, env...))
	return s
}

// newOfflineService is a service that has no connection to NATS.
func newOfflineService(t *testing.T, env ...string) *service {
	t.Helper()
	s, err := newService(parseSettings(t, env...), zerolog.Nop())
	require.NoError(t, err)
	return s
}

// newRig starts the service. The stream HITS takes hits.> unless change makes it another.
func newRig(t testing.TB, change func(*jetstream.StreamConfig), env ...string) *rig {
	t.Helper()
	return newRigOn(t, stack.SharedNATS(t), change, env...)
}

// newRigWithTokens is a rig whose callers need a token: shop has a prefix, all has none, and reader may not
// count.
func newRigWithTokens(t *testing.T, env ...string) *rig {
	t.Helper()
	file := writeTokens(t, "shop may: [count], prefixes: [shop.]", "all may: [read, count]", "reader may: [read, take, erase, admin]")
	return newRig(t, nil, append(env, "COLLECT_TOKENS_FILE="+file)...)
}

// writeTokens writes a file of tokens, whose secrets are their names.
func writeTokens(t *testing.T, entries ...string) (path string) {
	t.Helper()
	text := "tokens:\n"
	for _, entry := range entries {
		name, fields, _ := strings.Cut(entry, " ")
		text += fmt.Sprintf("  - {name: %s, sha256: %x, %s}\n", name, sha256.Sum256([]byte(name)), fields)
	}
	path = filepath.Join(t.TempDir(), "tokens.yml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func newRigOn(t testing.TB, server broker, change func(*jetstream.StreamConfig), env ...string) *rig {
	t.Helper()
	r := &rig{t: t, nats: server, js: server.JetStream()}
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
	log := zerolog.New(zerolog.NewTestWriter(r.t)).Level(zerolog.WarnLevel)
	s, err := newService(parseSettings(r.t, append([]string{"NATS_URL=" + r.nats.URL()}, env...)...), log)
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
		if n, b := s.budget.Requests(), s.budget.Bytes(); n != 0 || b != 0 {
			r.t.Errorf("at the end, %d requests and %d bytes are held", n, b)
		}
	})
	r.url = server.URL
	stack.Eventually(r.t, "the service to be ready", func() (bool, string) {
		why := s.storage.whyNotReady()
		return why == "", why
	})
}

// post sends a body with headers, name and value in turn.
func (r *rig) post(body string, headers ...string) (*http.Response, []byte) {
	r.t.Helper()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, r.url+hitsPath, strings.NewReader(body))
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

// mustStore posts a body that must be stored.
func (r *rig) mustStore(body string, headers ...string) receipt {
	r.t.Helper()
	resp, answer := r.post(body, headers...)
	var got receipt
	if err := json.Unmarshal(answer, &got); resp.StatusCode != http.StatusAccepted || err != nil {
		r.t.Fatalf("%s %v: status %d, %s (%v)", web.Excerpt(body), headers, resp.StatusCode, answer, err)
	}
	return got
}

// checkProblem checks that an answer is a problem with this status.
func checkProblem(t testing.TB, resp *http.Response, answer []byte, status int) web.Problem {
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

// mustRefuse posts a body that must be refused with a status.
func (r *rig) mustRefuse(status int, body string, headers ...string) web.Problem {
	r.t.Helper()
	resp, answer := r.post(body, headers...)
	return checkProblem(r.t, resp, answer, status)
}

// storedMessages are all that the stream has.
func (r *rig) storedMessages() (all []*jetstream.RawStreamMsg) {
	r.t.Helper()
	info, err := r.stream.Info(r.t.Context())
	require.NoError(r.t, err)
	for seq := info.State.FirstSeq; seq <= info.State.LastSeq && info.State.Msgs > 0; seq++ {
		m, err := r.stream.GetMsg(r.t.Context(), seq)
		require.NoError(r.t, err)
		all = append(all, m)
	}
	return all
}

// countHits is what a worker makes of everything in the stream.
func (r *rig) countHits() map[string]int64 {
	r.t.Helper()
	out := make(map[string]int64)
	d := newDecoder()
	for _, m := range r.storedMessages() {
		hits, rejects := d.Decode("collect", m.Time.UnixMilli(), m.Data)
		require.Empty(r.t, rejects, "a worker refuses %s", m.Data)
		for _, h := range hits {
			out[string(h.Counter)] += h.N
		}
	}
	return out
}

// newDecoder is a worker's, with tiers that hold every time.
func newDecoder() *hit.Decoder { return hit.NewDecoder(decoderLimits) }

var decoderLimits = hit.Limits{
	MaxAhead: 10 * time.Second, MaxHits: 10_000, Place: func([]byte, int64, int64) (uint64, string) { return 0, "" },
}
