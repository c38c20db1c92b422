package consume

import (
	"context"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// If another account exports its JetStream to this one, the answers to a request for messages come through
// that export, and the server takes a message without body and headers for the end of them (nats-server 2.15,
// processServiceImport in client.go). Such a message is an ordinary hit. So across accounts the feed reads with
// a push consumer, whose messages come on a delivery subject that the account imports as a stream. The
// server waits for an answer to its flow control before it has 32 MiB under way that the feed has not taken.

const (
	flowControlStart  = "$JS.FC."
	flowControlHeader = "Nats-Consumer-Stalled" // of a heartbeat, if an answer was lost
)

func (j *jetStreamSource) pushed(ctx context.Context, config jetstream.ConsumerConfig) (*jetstream.ConsumerInfo, error) {
	config.DeliverSubject = j.js.Conn().NewInbox()
	config.FlowControl, config.IdleHeartbeat = true, heartbeat
	consumer, err := j.handle.CreatePushConsumer(ctx, config)
	if err != nil {
		return nil, err
	}
	return consumer.CachedInfo(), nil
}

// isPushed reports whether the server sends messages without being asked for them.
func (r *jetStreamFeed) isPushed() bool { return r.consumer.Config.DeliverSubject != "" }

// flowControl returns the subject on which the server waits to be told that everything before m was taken. It is
// empty if m asks for no such answer.
func flowControl(m *nats.Msg) string {
	switch {
	case strings.HasPrefix(m.Reply, flowControlStart):
		return m.Reply
	case m.Reply == "":
		return m.Header.Get(flowControlHeader)
	}
	return ""
}
