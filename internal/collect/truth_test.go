package collect

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// ready is the answer of /readyz.
func (r *rig) ready() (status int, body string) {
	r.t.Helper()
	resp, err := http.Get(r.url + "/readyz")
	require.NoError(r.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(r.t, err)
	return resp.StatusCode, string(text)
}

// becomes waits until /readyz has a status, and says something.
func (r *rig) becomes(want int, says string) {
	r.t.Helper()
	stack.Eventually(r.t, fmt.Sprint("/readyz to be ", want), func() (bool, string) {
		status, body := r.ready()
		return status == want && strings.Contains(body, says), body
	})
}

// Without a stream nothing is stored, and every answer says which setting to change.
func TestNoStream(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	require.NoError(t, r.js.DeleteStream(t.Context(), "HITS"))
	resp, answer := r.post(`{"key":"a"}`)
	if p := refused(t, resp, answer, http.StatusServiceUnavailable); !strings.Contains(p.Detail, "COLLECT_SUBJECT") || !strings.Contains(p.Detail, "hits.collect") {
		t.Error(p.Detail)
	}
	r.becomes(http.StatusServiceUnavailable, "COLLECT_SUBJECT")
	var err error
	r.stream, err = r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}})
	require.NoError(t, err)
	r.stored(`{"key":"b"}`)
	if got := r.counts(); got["a"] != 0 || got["b"] != 1 {
		t.Error(got)
	}
	r.becomes(http.StatusOK, "")
}

// A stream that refuses stores nothing, and the answer says so.
func TestStreamFull(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *jetstream.StreamConfig) { c.MaxMsgs, c.Discard = 1, jetstream.DiscardNew })
	r.stored(`{"key":"a"}`)
	for _, key := range []string{"", "k"} {
		headers := []string{keyHeader, key}
		if key == "" {
			headers = nil
		}
		require.Contains(t, r.refuses(http.StatusServiceUnavailable, `{"key":"b"}`, headers...).Detail, "maximum messages exceeded")
	}
	if got := r.counts(); got["a"] != 1 || got["b"] != 0 {
		t.Error(got)
	}
	if status, body := r.ready(); status != http.StatusServiceUnavailable || !strings.Contains(body, "maximum messages exceeded") {
		t.Errorf("/readyz of a service that can store nothing: %d, %s", status, body)
	}
	require.NoError(t, r.stream.Purge(t.Context()))
	r.stored(`{"key":"c"}`)
	if status, body := r.ready(); status != http.StatusOK {
		t.Errorf("/readyz after a hit was stored: %d, %s", status, body)
	}
}

// While NATS is away, nothing is taken; as soon as it is back, hits are.
func TestNATSAway(t *testing.T) {
	t.Parallel()
	server := stack.NATS(t)
	r := newRigOn(t, server, nil)
	server.Stop()
	r.becomes(http.StatusServiceUnavailable, "")
	resp, answer := r.post(`{"key":"a"}`)
	require.Contains(t, refused(t, resp, answer, http.StatusServiceUnavailable).Detail, "nothing of this request is stored")
	server.Start()
	r.becomes(http.StatusOK, "")
	r.stored(`{"key":"b"}`)
	if got := r.counts(); got["a"] != 0 || got["b"] != 1 {
		t.Error(got)
	}
}

// What was sent to a server that does not answer is unknown. It is never said to be not stored, and with its key
// it can be sent again.
func TestUnknown(t *testing.T) {
	t.Parallel()
	server := stack.NATSProcess(t)
	r := newRigOn(t, server, nil, "COLLECT_TIMEOUT=1s")
	r.stored(`{"key":"before"}`)
	server.Pause()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			resp, answer := r.post(fmt.Sprintf(`{"key":"c%d"}`, i), keyHeader, fmt.Sprint("k", i))
			if p := refused(t, resp, answer, http.StatusGatewayTimeout); !strings.Contains(p.Detail, keyHeader) || !strings.Contains(p.Detail, "COLLECT_TIMEOUT") {
				t.Error(p.Detail)
			}
		})
	}
	wg.Wait()
	server.Resume()
	for i := range 8 {
		stack.Eventually(t, "the retry", func() (bool, string) {
			resp, answer := r.post(fmt.Sprintf(`{"key":"c%d"}`, i), keyHeader, fmt.Sprint("k", i))
			return resp.StatusCode == http.StatusAccepted, string(answer)
		})
	}
	counts := r.counts()
	for i := range 8 {
		require.EqualValues(t, 1, counts[fmt.Sprintf("c%d", i)])
	}
}

// If there is no room, requests are refused at once, and small ones beside large ones are not.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, "COLLECT_MAX_WAITING=200000", "COLLECT_MAX_REQUESTS=3", "COLLECT_MAX_BODY=150000")
	large := strings.Repeat("{\"key\":\"a\"}\n", 9000)
	arriving, rest := io.Pipe()
	defer rest.Close()
	first := make(chan int, 1)
	go func() {
		resp, err := http.Post(r.url+hitsPath, "", arriving)
		if err != nil {
			first <- 0
			return
		}
		defer resp.Body.Close()
		first <- resp.StatusCode
	}()
	if _, err := rest.Write([]byte(large)); err != nil {
		t.Fatal(err)
	}
	stack.Eventually(t, "the large body to be in memory", func() (bool, string) {
		n := r.gate.bytes.Load()
		return n > 100_000, fmt.Sprint(n)
	})
	resp, answer := r.post(large)
	require.Contains(t, refused(t, resp, answer, http.StatusServiceUnavailable).Detail, "COLLECT_MAX_WAITING")
	r.stored(`{"key":"small"}`)
	stack.Eventually(t, "the other requests to leave", func() (bool, string) {
		n := r.gate.requests.Load()
		return n == 1, fmt.Sprint(n)
	})
	for r.gate.requests.Load() < r.gate.maxRequests {
		r.gate.requests.Add(1)
	}
	resp, answer = r.post(`{"key":"b"}`)
	require.Contains(t, refused(t, resp, answer, http.StatusServiceUnavailable).Detail, "COLLECT_MAX_REQUESTS")
	r.gate.requests.Store(1) // the first
	require.NoError(t, rest.Close())
	require.EqualValues(t, http.StatusAccepted, <-first)
	if got := r.counts(); got["a"] != 9000 || got["small"] != 1 || got["b"] != 0 {
		t.Error(got)
	}
}

// When the service stops, what waits is stored or answered, in time.
func TestStop(t *testing.T) {
	t.Parallel()
	server := stack.NATSProcess(t)
	if _, err := server.JetStream().CreateStream(t.Context(), jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}}); err != nil {
		t.Fatal(err)
	}
	collect := stack.Collect(t, server)
	server.Pause()
	defer server.Resume()
	type end struct {
		status int
		body   []byte
		err    error
	}
	ended := make(chan end, 1)
	go func() {
		resp, err := http.Post(collect.URL()+hitsPath, "", bytes.NewReader([]byte(`{"key":"a"}`)))
		if err != nil {
			ended <- end{err: err}
			return
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		ended <- end{resp.StatusCode, body, err}
	}()
	stack.Eventually(t, "the request to be under way", func() (bool, string) {
		_, body, err := stack.Do(http.MethodGet, collect.URL()+"/metrics", nil)
		return bytes.Contains(body, []byte("tallyroll_collect_requests 1")), fmt.Sprint(err)
	})
	if code := collect.Stop(); code != 0 {
		t.Errorf("exit code %d\n%s", code, collect.Logs())
	}
	got := <-ended
	var p struct{ Detail string }
	if err := json.Unmarshal(got.body, &p); got.err != nil || got.status != http.StatusGatewayTimeout || err != nil {
		t.Errorf("%+v %s", got, got.body)
	}
}
