package faults_test

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"tallyroll/tests/stack"
)

// startLeaf starts two servers with a domain of JetStream each, and the leaf link between them through a
// proxy.
func startLeaf(t *testing.T) (hub, edge *stack.NATSEmbedded, link *proxy) {
	port := stack.FreePort(t)
	hub = stack.NATS(t, func(o *server.Options) {
		o.JetStreamDomain = "hub"
		o.LeafNode.Host, o.LeafNode.Port, o.LeafNode.NoAdvertise = "127.0.0.1", port, true // or the other would find a way past the proxy
	})
	link = startProxy(t, fmt.Sprintf("127.0.0.1:%d", port), nil)
	edge = stack.NATS(t, func(o *server.Options) {
		o.JetStreamDomain = "edge"
		o.LeafNode.ReconnectInterval = 100 * time.Millisecond
		o.LeafNode.Remotes = []*server.RemoteLeafOpts{{URLs: []*url.URL{{Scheme: "nats", Host: link.l.Addr().String()}}}}
	})
	return hub, edge, link
}
