package outbox

import (
	"context"
	"fmt"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

func TestInterruptEndsThoughThereIsNoStream(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	s := Start(ctx, stack.NATS(t).Conn(ConnOptions()...), zerolog.Nop(), "hits.publish", func(int) { t.Error("nothing takes it") })
	m := NewMessage()
	m.Hits, m.Body = 3, []byte(`{"key":"a"}`)
	require.NoError(t, s.Submit(m))
	cancel()
	<-s.ended
	if err := s.Submit(NewMessage()); err == nil {
		t.Fatal("a Sender that has ended takes messages")
	}
	if s.Close() == nil {
		t.Fatal("it ends as if the message were stored")
	}
}

// However often the server stops and starts, each message is stored once.
func TestSenderSurvivesRestarts(t *testing.T) {
	t.Parallel()
	server := stack.NATS(t)
	stream := hits(t, server, jetstream.StreamConfig{})
	stored := make(chan int, 10_000)
	s := Start(t.Context(), server.Conn(ConnOptions()...), zerolog.Nop(), "hits.publish", func(hits int) { stored <- hits })
	const messages = 3000
	restarted := make(chan struct{})
	go func() {
		defer close(restarted)
		for range 3 {
			for range messages / 4 {
				<-stored
			}
			server.Stop()
			server.Start()
		}
	}()
	for i := range messages {
		m := NewMessage()
		m.Hits, m.Body = 1, fmt.Appendf(m.Body, "c-%d", i)
		require.NoError(t, s.Submit(m))
	}
	<-restarted
	if err := s.Close(); err != nil || len(stored) != messages/4 {
		t.Errorf("%d more are stored, %v", len(stored), err)
	}
	seen := map[string]bool{}
	for _, m := range contents(t, stream) {
		if seen[string(m.Data)] {
			t.Errorf("%s is stored twice", m.Data)
		}
		seen[string(m.Data)] = true
	}
	require.Len(t, seen, messages)
}

// A message with a Once is stored where it belongs or not at all, and Done receives which.
func TestMessageWithAnExpectationIsStoredThereOrNotAtAll(t *testing.T) {
	t.Parallel()
	server := stack.NATS(t)
	stream := hits(t, server, jetstream.StreamConfig{MaxMsgSize: 500})
	fates := make(chan Outcome, 1)
	s := Start(t.Context(), server.Conn(ConnOptions()...), zerolog.Nop(), "", func(int) {})
	send := func(subject, id string, size int) Outcome {
		m := NewMessage()
		m.Hits, m.Body = 1, append(m.Body, make([]byte, size)...)
		m.Once = &Once{Subject: subject, ID: id, Done: func(f Outcome) { fates <- f }}
		require.NoError(t, s.Submit(m))
		return <-fates
	}
	if f := send("hits.a", "a", 1); !f.Stored || f.Seq != 1 || f.Repeat {
		t.Errorf("the first: %+v", f)
	}
	if f := send("hits.a", "a", 1); !f.Repeat || f.Stored && !f.Duplicate {
		t.Errorf("the first once more: %+v", f)
	}
	if f := send("hits.a", "b", 1); f.Stored || f.Code != codeWrongLast || f.Last != 1 {
		t.Errorf("another first: %+v", f)
	}
	if f := send("hits.b", "b", 1); !f.Stored || f.Seq != 2 {
		t.Errorf("the first of another subject: %+v", f)
	}
	if f := send("hits.c", "c", 600); f.Stored || f.Code != CodeTooLarge {
		t.Errorf("one that is too large: %+v", f)
	}
	if err := s.Close(); err != nil || len(contents(t, stream)) != 2 {
		t.Error(err)
	}
}

// A refusal that no repetition can change ends a Sender with JetStream's text, whether or not a message has a
// Once.
func TestSenderEndsIfMessagesDoNotSuitTheStream(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		config jetstream.StreamConfig
		seal   bool
		want   string
	}{
		{config: jetstream.StreamConfig{AllowMsgCounter: true, AllowDirect: true}, want: "message counter increment is missing (10169)"},
		{seal: true, want: "sealed stream (10109)"},
	} {
		server := stack.NATS(t)
		stream := hits(t, server, test.config)
		if test.seal {
			config := stream.CachedInfo().Config
			config.Sealed = true
			_, err := server.JetStream().UpdateStream(t.Context(), config)
			require.NoError(t, err)
		}
		for _, once := range []*Once{nil, {Subject: "hits.once", ID: "a", Done: func(Outcome) { t.Error("it is stored") }}} {
			s := Start(t.Context(), server.Conn(ConnOptions()...), zerolog.Nop(), "hits.publish", func(int) { t.Error("it is stored") })
			m := NewMessage()
			m.Hits, m.Body, m.Once = 1, []byte(`{"key":"a"}`), once
			require.NoError(t, s.Submit(m))
			require.ErrorContains(t, s.Close(), test.want)
		}
	}
}
