package puback

import (
	"fmt"

	"github.com/nats-io/nats.go"
)

// Listen hands the answers that come for messages with replies below inbox to into, until ended is closed
// or stop is called. It bounds nothing: whoever sends bounds how many messages wait for an answer.
func Listen(conn *nats.Conn, into chan<- Answer, ended <-chan struct{}) (inbox string, stop func(), err error) {
	inbox = conn.NewInbox()
	sub, err := conn.Subscribe(inbox+".*", func(m *nats.Msg) {
		a, ok := Parse(m)
		if !ok {
			return
		}
		select {
		case into <- a:
		case <-ended: // nobody reads them any more
		}
	})
	if err != nil {
		return "", nil, fmt.Errorf("subscribe to acknowledgements on %s: %w", inbox, err)
	}
	stop = func() { _ = sub.Unsubscribe() } // it fails if the connection is closed, which ends it too
	if err := sub.SetPendingLimits(-1, -1); err != nil {
		stop()
		return "", nil, fmt.Errorf("subscribe to acknowledgements on %s: %w", inbox, err)
	}
	return inbox, stop, nil
}
