// Package e2e_test proves the main job from outside: it builds the programs,
// starts real servers, publishes, kills, and asks.
package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/url"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

// system is the whole of Tallyroll on its own servers, so the tests run side by side.
type system struct {
	t      *testing.T
	redis  *stack.RedisServer
	nats   *stack.NATSEmbedded
	ingest *stack.Service
	query  *stack.Service
	js     jetstream.JetStream
}

func start(t *testing.T, ingestEnv ...string) *system {
	t.Helper()
	s := &system{t: t, redis: stack.Redis(t), nats: stack.NATS(t)}
	s.ingest = stack.Ingest(t, s.nats, s.redis, ingestEnv...)
	s.query = stack.Query(t, s.redis)
	s.js = s.nats.JetStream()
	return s
}

// publish runs the publish program on an input and returns its last line.
func (s *system) publish(stdin io.Reader, args ...string) string {
	s.t.Helper()
	return s.oneShot("publish", "tallyroll", stdin, args...)
}

// allCounted waits until every shard has counted all that is stored by now.
func (s *system) allCounted() {
	s.t.Helper()
	stored := time.Now()
	stack.Eventually(s.t, "all shards to have counted what is stored", func() (bool, string) {
		asOf := ask[topList](s, "/v1/top", url.Values{"window": {"1h"}}).AsOf
		return asOf.After(stored), asOf.String()
	})
}

// redrive runs the program redrive and returns its output.
func (s *system) redrive(args ...string) string {
	s.t.Helper()
	return s.oneShot("redrive", "tallyroll", nil, args...)
}

// oneShot runs a program that ends by itself.
func (s *system) oneShot(program, namespace string, stdin io.Reader, args ...string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Minute)
	defer cancel()
	cmd := stack.Command(ctx, s.t, program, args, []string{"NATS_URL=" + s.nats.URL(), "TALLYROLL_NAMESPACE=" + namespace})
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &errs
	if err := cmd.Run(); err != nil {
		s.t.Fatalf("%s %v: %v\n%s%s", program, args, err, out.String(), errs.String())
	}
	return out.String()
}

// send publishes one message and waits until it is stored.
func (s *system) send(subject, body string) *jetstream.PubAck {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), stack.Hung)
	defer cancel()
	ack, err := s.js.Publish(ctx, subject, []byte(body))
	require.NoErrorf(s.t, err, "publish to %s", subject)
	return ack
}

// rejects waits for n messages in HITS_REJECTED and returns them.
func (s *system) rejects(n uint64) []*jetstream.RawStreamMsg {
	s.t.Helper()
	stream, err := s.js.Stream(s.t.Context(), "HITS_REJECTED")
	require.NoError(s.t, err)
	stack.Eventually(s.t, "rejects", func() (bool, string) {
		info, err := stream.Info(s.t.Context())
		if err != nil {
			return false, err.Error()
		}
		return info.State.Msgs >= n, fmt.Sprintf("%d messages", info.State.Msgs)
	})
	var out []*jetstream.RawStreamMsg
	for seq := range n {
		msg, err := stream.GetMsg(s.t.Context(), seq+1)
		require.NoError(s.t, err)
		out = append(out, msg)
	}
	return out
}
