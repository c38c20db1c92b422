package status

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/answer"
	"tallyroll/internal/answer/scope"
	"tallyroll/internal/web/api"
	"tallyroll/tests/apitest"
	"tallyroll/tests/stack"
)

// newStatus returns a service and its routes. Without js, it has no connection to NATS yet.
func newStatus(t *testing.T, reader scope.Namespace, timeout time.Duration, js jetstream.JetStream) (*Status, http.Handler, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewRegistry()
	redis := answer.NewSource(NewHealth(reader, timeout, zerolog.Nop(), registry), timeout, zerolog.Nop(), registry)
	s := New(reader, redis, apitest.Namespace, true, zerolog.Nop(), registry)
	if js != nil {
		s.Connected(js)
	}
	mux := http.NewServeMux()
	s.Register(api.New(mux, api.Title{Every: func(*api.API, *huma.Operation) {}}))
	return s, mux, registry
}

// onNATS is a service with a NATS and no Redis.
func onNATS(t *testing.T) (*Status, http.Handler, jetstream.JetStream) {
	t.Helper()
	js := stack.NATS(t).JetStream()
	s, h, _ := newStatus(t, &apitest.FakeReader{Now: apitest.FakeNow}, stack.Hung, js)
	return s, h, js
}

// awaitAnswer returns an answer that is as it should be. Answers may be a second old.
func awaitAnswer[A any](t *testing.T, h http.Handler, target string, fine func(A) bool) (out A) {
	t.Helper()
	stack.Eventually(t, target, func() (bool, string) {
		resp := apitest.Send(h, http.MethodGet, target, "")
		data := apitest.ReadBody(t, resp)
		out = *new(A)
		err := json.Unmarshal(data, &out)
		return resp.StatusCode == http.StatusOK && err == nil && fine(out), fmt.Sprintf("%d %s %v", resp.StatusCode, data, err)
	})
	return out
}

func get[A any](t *testing.T, h http.Handler, target string) A {
	t.Helper()
	return awaitAnswer(t, h, target, func(A) bool { return true })
}

// checkRefusals asks for targets that are refused with 400, each with a part of its detail.
func checkRefusals(t *testing.T, h http.Handler, details map[string]string) {
	t.Helper()
	for target, detail := range details {
		if p := apitest.RequireProblem(t, apitest.Send(h, http.MethodGet, target, ""), http.StatusBadRequest); !strings.Contains(p.Detail, detail) {
			t.Errorf("%s: %s, want %s", target, p.Detail, detail)
		}
	}
}

func createStream(t *testing.T, js jetstream.JetStream, name, subject string) jetstream.Stream {
	t.Helper()
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subject}})
	require.NoError(t, err)
	return stream
}

func publish(t *testing.T, js jetstream.JetStream, subject, body string, header nats.Header) {
	t.Helper()
	_, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: subject, Data: []byte(body), Header: header})
	require.NoError(t, err)
}
