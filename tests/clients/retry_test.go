package clients_test

import (
	"bufio"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// delivery is one request to a collect that is played.
type delivery struct{ key, token, body string }

// collectPlayed is a server in the place of collect. Its answers are played one after the other.
type collectPlayed struct {
	*httptest.Server
	mu  sync.Mutex
	got []delivery
}

func startFakeCollect(t *testing.T, answers ...http.HandlerFunc) *collectPlayed {
	t.Helper()
	c := &collectPlayed{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/hits" {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		c.mu.Lock()
		c.got = append(c.got, delivery{r.Header.Get("Idempotency-Key"), r.Header.Get("Authorization"), string(body)})
		n := len(c.got)
		c.mu.Unlock()
		if n > len(answers) {
			t.Errorf("request %d comes after the last answer", n)
			n = len(answers)
		}
		answers[n-1](w, r)
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *collectPlayed) deliveries() []delivery {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.got
}

func answer(status int, body string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body) // the client may be gone
	}
}

// breakOff ends the connection in place of an answer: the client cannot know what was stored.
func breakOff(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

// A producer sends hits again, with the same key, until the answer is that they are stored. It does not
// repeat what is wrong, and prints what it is.
func TestProducersSendAgainWithTheSameKey(t *testing.T) {
	t.Parallel()
	for _, the := range languages {
		if !the.collect {
			continue
		}
		t.Run(the.name, func(t *testing.T) {
			t.Parallel()
			need(t, the.program)
			stored := answer(http.StatusAccepted, `{"stored":2,"stream":"HITS","sequence":1}`)
			busy := `{"title":"Service Unavailable","status":503,"detail":"NATS is away"}`
			collect := startFakeCollect(t, answer(http.StatusServiceUnavailable, busy, "Retry-After", "0"), breakOff,
				answer(http.StatusTooManyRequests, busy, "Retry-After", "1"), stored)
			mustRun(t, the.producer, "checkout\n/cart\n", nil, "COLLECT_URL="+collect.URL, "COLLECT_TOKEN=secret")
			got := collect.deliveries()
			if len(got) != 4 {
				t.Fatalf("%d requests", len(got))
			}
			for i, d := range got {
				if d != got[0] || d.key == "" || d.token != "Bearer secret" || !strings.Contains(d.body, "checkout") || !strings.Contains(d.body, "/cart") {
					t.Errorf("request %d is %+v, the first was %+v", i+1, d, got[0])
				}
			}
			again := startFakeCollect(t, stored)
			mustRun(t, the.producer, "checkout\n/cart\n", nil, "COLLECT_URL="+again.URL)
			if other := again.deliveries()[0]; other.key == got[0].key || other.token != "" {
				t.Errorf("the next run sends %+v", other)
			}
			refuses := startFakeCollect(t, answer(http.StatusBadRequest, `{"title":"Bad Request","status":400,"detail":"hit 2: key is empty"}`))
			mustFail(t, "hit 2: key is empty", the.producer, "checkout\n\n", nil, "COLLECT_URL="+refuses.URL)
		})
	}
}

// The producer of NATS goes on until there is a stream, and stores each message once.
func TestGoProducerWaitsForTheStream(t *testing.T) {
	t.Parallel()
	server := stack.SharedNATS(t)
	cmd := example(t, "go/producer", nil, "NATS_URL="+server.URL())
	cmd.Stdin = strings.NewReader("checkout\n/cart\n")
	errs, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewScanner(errs)
	if !lines.Scan() || !strings.Contains(lines.Text(), "not stored yet") {
		t.Errorf("without a stream the producer says %q", lines.Text())
	}
	stream, err := server.JetStream().CreateStream(t.Context(), jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}})
	require.NoError(t, err)
	for lines.Scan() {
		t.Log(lines.Text())
	}
	require.NoError(t, cmd.Wait(), "the producer ends with")
	message, err := stream.GetMsg(t.Context(), 1)
	require.NoError(t, err)
	if message.Header.Get(nats.MsgIdHdr) == "" || !strings.Contains(string(message.Data), `"/cart"`) {
		t.Errorf("stored: %v %s", message.Header, message.Data)
	}
	info, err := stream.Info(t.Context())
	if err != nil || info.State.Msgs != 1 {
		t.Errorf("the stream has %+v %v", info, err)
	}
}
