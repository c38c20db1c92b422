package e2e_test

import (
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// leafAndHub starts a hub and a leaf node, each with a JetStream domain.
func leafAndHub(t *testing.T) (leaf, hub *stack.NATSEmbedded) {
	t.Helper()
	port := stack.FreePort(t)
	hub = stack.NATS(t, func(o *server.Options) {
		o.JetStreamDomain = "hub"
		o.LeafNode.Host, o.LeafNode.Port = "127.0.0.1", port
	})
	leaf = stack.NATS(t, func(o *server.Options) {
		o.JetStreamDomain = "leaf"
		o.LeafNode.ReconnectInterval = 100 * time.Millisecond
		o.LeafNode.Remotes = []*server.RemoteLeafOpts{{URLs: []*url.URL{{Scheme: "nats", Host: "127.0.0.1:" + strconv.Itoa(port)}}}}
	})
	far, err := jetstream.NewWithDomain(hub.Conn(), "leaf")
	require.NoError(t, err)
	stack.Eventually(t, "the leaf node's JetStream to answer at the hub", func() (bool, string) {
		info, err := far.AccountInfo(t.Context())
		if err != nil {
			return false, err.Error()
		}
		return info.Domain == "leaf", info.Domain
	})
	return leaf, hub
}

// The programs are at the hub, the streams in the domain of the leaf node.
func TestStreamsOfALeafNode(t *testing.T) {
	t.Parallel()
	leaf, hub := leafAndHub(t)
	ownNATS{
		env:   []string{"NATS_URL=" + hub.URL(), "NATS_JS_DOMAIN=leaf"},
		near:  hub.Conn(),
		owner: leaf.JetStream(),
	}.countsExactly(t)
	if _, err := hub.JetStream().Stream(t.Context(), "HITS_REJECTED"); err == nil {
		t.Error("the hub's own domain has a stream of rejects")
	}
}

// A leaf node that comes back is found again, and what it has stored meanwhile counts.
func TestALeafNodeAway(t *testing.T) {
	t.Parallel()
	leaf, hub := leafAndHub(t)
	redis := stack.Redis(t)
	leaf.Stop()
	ingest := stack.Ingest(t, hub, redis, stack.NoWait, "NATS_JS_DOMAIN=leaf")
	ingest.WaitForLog("waiting for JetStream in the domain leaf")
	leaf.Start()
	ingest.WaitReady()
	query := stack.Query(t, redis)
	js := leaf.JetStream()
	send := func() {
		t.Helper()
		if _, err := js.Publish(t.Context(), "hits.a", nil); err != nil {
			t.Fatal(err)
		}
	}
	send()
	stack.EventuallyTotal(t, query.URL(), "a", "1h", 1)
	leaf.Stop()
	ingest.WaitForLog("streams could not be listed")
	_, before, err := stack.FetchTotal(query.URL(), "a", "1h")
	require.NoError(t, err)
	leaf.Start()
	stack.Eventually(t, "the leaf node to store a hit", func() (bool, string) {
		_, err := js.Publish(t.Context(), "hits.a", nil, jetstream.WithMsgID("second"))
		return err == nil, "no answer"
	})
	stack.EventuallyTotal(t, query.URL(), "a", "1h", 2)
	stack.Eventually(t, "as_of to move again", func() (bool, string) {
		_, asOf, err := stack.FetchTotal(query.URL(), "a", "1h")
		return err == nil && asOf.After(before.Add(time.Second)), asOf.String()
	})
}

// A stream of the hub copies one of the leaf node's domain, as a mirror or as a source.
func TestCopiesOfALeafNodesStream(t *testing.T) {
	t.Parallel()
	leaf, hub := leafAndHub(t)
	redis := stack.Redis(t)
	origin := leaf.JetStream()
	if _, err := origin.CreateStream(t.Context(), jetstream.StreamConfig{Name: "EDGE", Subjects: []string{"edge.>"}}); err != nil {
		t.Fatal(err)
	}
	from := &jetstream.StreamSource{Name: "EDGE", External: &jetstream.ExternalStream{APIPrefix: "$JS.leaf.API"}}
	for _, config := range []jetstream.StreamConfig{
		{Name: "HITS_MIRROR", Mirror: from},
		{Name: "HITS_SOURCED", Sources: []*jetstream.StreamSource{from}},
	} {
		if _, err := hub.JetStream().CreateStream(t.Context(), config); err != nil {
			t.Fatal(err)
		}
	}
	stack.Ingest(t, hub, redis, "INGEST_STREAMS=HITS_*")
	query := stack.Query(t, redis)
	for range 50 {
		if _, err := origin.Publish(t.Context(), "edge.x", []byte(`{"key":"copied"}`)); err != nil {
			t.Fatal(err)
		}
	}
	stored := time.Now()
	stack.EventuallyTotal(t, query.URL(), "copied", "1h", 100) // by each of the two
	stack.Eventually(t, "as_of to pass the last hit", func() (bool, string) {
		_, asOf, err := stack.FetchTotal(query.URL(), "copied", "1h")
		return err == nil && asOf.After(stored), asOf.String()
	})
}
