package e2e_test

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// ownNATS is a NATS server with a setup of its own, as the programs reach it.
type ownNATS struct {
	env   []string            // settings of every program
	near  *nats.Conn          // a producer where the programs are
	owner jetstream.JetStream // where the streams are
}

// requireExactCounts runs ingest, query and publish, and compares: hits, with and without a body, before and
// after the loss of Redis, rejects, the answer of /v1/streams, and what publish prints.
func (o ownNATS) requireExactCounts(t *testing.T) {
	t.Helper()
	redis := stack.Redis(t)
	ingest := stack.Ingest(t, nil, redis, slices.Concat(o.env, []string{"INGEST_WORKER=one"})...)
	query := stack.Query(t, redis, o.env...)
	stream, err := o.owner.Stream(t.Context(), "HITS")
	require.NoError(t, err)
	const own, empty = 40, 60
	code, out := runToEndWith(t, "publish", strings.NewReader(strings.Repeat(`{"key":"own","n":2}`+"\n", own)+`{"key":"own","ts":1}`+"\n"),
		[]string{"--format", "ndjson", "--batch", "7"}, o.env...)
	require.Zero(t, code, out)
	require.Contains(t, out, "published 41 hits")
	for i := range empty + 1 {
		subject, body := "hits.empty", "" // an empty body is a hit, and the next message comes all the same
		if i%3 == 0 {
			body = "{}"
		}
		if i == empty {
			subject, body = "hits.bad", "no hit"
		}
		_, err := o.near.Request(subject, []byte(body), stack.Hung)
		require.NoError(t, err)
	}
	const loss = "after the loss of Redis"
	for _, when := range []string{"at first", loss} {
		if when == loss { // all is read again, and rejects are compared with those stored
			require.NoError(t, redis.Client().FlushAll(t.Context()).Err())
		}
		stack.EventuallyTotal(t, query.URL(), "empty", "1h", empty)
		stack.EventuallyTotal(t, query.URL(), "own", "1h", 2*own)
		info, err := stream.Info(t.Context())
		require.NoError(t, err)
		got := eventuallyAnswers(t, query.URL()+"/v1/streams", "all messages to be applied, "+when, func(a streamsAnswer) bool {
			return len(a.Streams) == 1 && a.Streams[0].Applied == info.State.LastSeq && a.Streams[0].Worker == "one" && a.Streams[0].Rejects == 2
		})
		if s := got.Streams[0]; s.Stream != "HITS" || !s.Exists || s.Last != info.State.LastSeq {
			t.Errorf("%s: %+v", when, s)
		}
		rejected, err := o.owner.Stream(t.Context(), "HITS_REJECTED")
		require.NoError(t, err)
		require.EqualValues(t, 2, rejected.CachedInfo().State.Msgs, when)
		list := eventuallyAnswers(t, query.URL()+"/v1/rejects", "the rejects", func(a rejectsAnswer) bool { return len(a.Rejects) == 2 })
		if r := list.Rejects[0]; r.Reason != "bad_json" || r.Body != "no hit" {
			t.Errorf("%s: %+v", when, r)
		}
	}
	require.Zero(t, ingest.Stop())
	for _, p := range []*stack.Service{ingest, query} {
		require.NotContains(t, p.Logs(), secret)
	}
}

// jetStreamOf is the JetStream of a connection.
func jetStreamOf(t *testing.T, conn *nats.Conn) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	return js
}

// accountsInDeploy are those of deploy/nats-accounts.conf: one has the streams, the other one counts them.
func accountsInDeploy(t *testing.T) string {
	t.Helper()
	return strings.ReplaceAll(read(t, "../../deploy/nats-accounts.conf"), "PASSWORD", secret)
}

// startNATSWith starts a server with the accounts and users of a configuration.
func startNATSWith(t *testing.T, config string) *stack.NATSEmbedded {
	t.Helper()
	path := file(t, "nats.conf", config)
	return stack.NATS(t, func(o *server.Options) {
		parsed, err := server.ProcessConfigFile(path)
		require.NoError(t, err)
		o.Accounts, o.Users, o.Nkeys = parsed.Accounts, parsed.Users, parsed.Nkeys
	})
}

// The streams belong to another account, which exports its JetStream to this one.
func TestStreamsOfAnotherAccountAreCounted(t *testing.T) {
	t.Parallel()
	n := startNATSWith(t, accountsInDeploy(t))
	ownNATS{
		env: []string{"NATS_URL=" + n.URL(), "NATS_USER=tally", "NATS_PASSWORD=" + secret,
			"NATS_JS_API_PREFIX=JS.streams.API", "NATS_INBOX_PREFIX=_INBOX_tallyroll"},
		near:  n.Conn(nats.UserInfo("tally", secret)),
		owner: jetStreamOf(t, n.Conn(nats.UserInfo("streams", secret))),
	}.requireExactCounts(t)
}

// Without the import of the delivery subjects no message comes. The worker then reads nothing, and logs
// what is missing.
func TestDeliverySubjectsThatAreNotImportedAreNamed(t *testing.T) {
	t.Parallel()
	config := strings.Replace(accountsInDeploy(t), `{stream: {account: STREAMS, subject: "_INBOX_tallyroll.>"}}`, "", 1)
	n, redis := startNATSWith(t, config), stack.Redis(t)
	ingest := stack.Ingest(t, n, redis, stack.NoWait, "NATS_USER=tally", "NATS_PASSWORD="+secret,
		"NATS_JS_API_PREFIX=JS.streams.API", "NATS_INBOX_PREFIX=_INBOX_tallyroll")
	ingest.WaitForLog("does its account import the delivery subjects below _INBOX_tallyroll (NATS_INBOX_PREFIX)?")
}

// An NKey is enough to say who a program is.
func TestNKeyIsAnIdentity(t *testing.T) {
	t.Parallel()
	pair, err := nkeys.CreateUser()
	require.NoError(t, err)
	seed, err := pair.Seed()
	require.NoError(t, err)
	public, err := pair.PublicKey()
	require.NoError(t, err)
	n := startNATSWith(t, fmt.Sprintf("accounts { A { jetstream: enabled, users: [{nkey: %s}, {user: tally, password: %s}] } }", public, secret))
	owner := n.Conn(nats.UserInfo("tally", secret))
	ownNATS{[]string{"NATS_URL=" + n.URL(), "NATS_NKEY=" + file(t, "user.nk", string(seed))}, owner, jetStreamOf(t, owner)}.requireExactCounts(t)
}

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
		return err == nil && info.Domain == "leaf", fmt.Sprint(info, err)
	})
	return leaf, hub
}

// The programs are at the hub, the streams in the domain of the leaf node.
func TestStreamsOfALeafNodeAreCounted(t *testing.T) {
	t.Parallel()
	leaf, hub := leafAndHub(t)
	ownNATS{[]string{"NATS_URL=" + hub.URL(), "NATS_JS_DOMAIN=leaf"}, hub.Conn(), leaf.JetStream()}.requireExactCounts(t)
	_, err := hub.JetStream().Stream(t.Context(), "HITS_REJECTED")
	require.Error(t, err, "the hub's own domain has a stream of rejects")
}

// A leaf node that comes back is found again, and what it has stored meanwhile counts.
func TestALeafNodeThatWasAwayIsCountedAgain(t *testing.T) {
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
	_, err := js.Publish(t.Context(), "hits.a", nil)
	require.NoError(t, err)
	stack.EventuallyTotal(t, query.URL(), "a", "1h", 1)
	leaf.Stop()
	ingest.WaitForLog("streams could not be listed")
	leaf.Start()
	stack.Eventually(t, "the leaf node to store a hit", func() (bool, string) {
		_, err := js.Publish(t.Context(), "hits.a", nil, jetstream.WithMsgID("second"))
		return err == nil, fmt.Sprint(err)
	})
	stored := time.Now()
	stack.EventuallyTotal(t, query.URL(), "a", "1h", 2)
	stack.Eventually(t, "as_of to move again", func() (bool, string) {
		_, asOf, err := stack.FetchTotal(query.URL(), "a", "1h")
		return err == nil && asOf.After(stored), asOf.String()
	})
}

// A stream of the hub copies one of the leaf node's domain, as a mirror or as a source.
func TestCopiesOfALeafNodesStreamAreCounted(t *testing.T) {
	t.Parallel()
	leaf, hub := leafAndHub(t)
	origin, near := leaf.JetStream(), hub.JetStream()
	_, err := origin.CreateStream(t.Context(), jetstream.StreamConfig{Name: "EDGE", Subjects: []string{"edge.>"}})
	require.NoError(t, err)
	from := &jetstream.StreamSource{Name: "EDGE", External: &jetstream.ExternalStream{APIPrefix: "$JS.leaf.API"}}
	_, err = near.CreateStream(t.Context(), jetstream.StreamConfig{Name: "HITS_MIRROR", Mirror: from})
	require.NoError(t, err)
	_, err = near.CreateStream(t.Context(), jetstream.StreamConfig{Name: "HITS_SOURCED", Sources: []*jetstream.StreamSource{from}})
	require.NoError(t, err)
	redis := stack.Redis(t)
	stack.Ingest(t, hub, redis, "INGEST_STREAMS=HITS_*")
	query := stack.Query(t, redis)
	for range 50 {
		_, err := origin.Publish(t.Context(), "edge.x", []byte(`{"key":"copied"}`))
		require.NoError(t, err)
	}
	stack.EventuallyTotal(t, query.URL(), "copied", "1h", 100) // by each of the two
}

// Certificates that do not fit are not waited for: the error names whose and which setting.
func TestNATSOverTLSDemandsCertificatesThatFit(t *testing.T) {
	t.Parallel()
	ours, other := stack.NewCertificate(t), stack.NewCertificate(t)
	config, err := server.GenTLSConfig(&server.TLSConfigOpts{CertFile: ours.CertFile, KeyFile: ours.KeyFile, CaFile: ours.CertFile, Verify: true, Timeout: 5})
	require.NoError(t, err)
	n := stack.NATS(t, func(o *server.Options) { o.TLS, o.TLSVerify, o.TLSTimeout, o.TLSConfig = true, true, 5, config })
	plain := stack.NATS(t)
	overTLS := func(n *stack.NATSEmbedded) string {
		return "NATS_URL=" + strings.Replace(n.URL(), "nats://", "tls://", 1)
	}
	ca, cert, key := "NATS_CA="+ours.CertFile, "NATS_CERT="+ours.CertFile, "NATS_KEY="+ours.KeyFile
	for name, c := range map[string]struct {
		env  []string
		want string
	}{
		"an unknown authority":         {[]string{overTLS(n), cert, key}, "set NATS_CA"},
		"no client certificate":        {[]string{overTLS(n), ca}, "set NATS_CERT"},
		"another client certificate":   {[]string{overTLS(n), ca, "NATS_CERT=" + other.CertFile, "NATS_KEY=" + other.KeyFile}, "set NATS_CERT"},
		"a key of another certificate": {[]string{overTLS(n), ca, cert, "NATS_KEY=" + other.KeyFile}, "NATS_CERT"},
		"a server without TLS":         {[]string{overTLS(plain)}, "NATS_URL"},
	} {
		if code, out := runToEnd(t, "publish", []string{"--count", "1"}, c.env...); code != 2 || !strings.Contains(out, c.want) {
			t.Errorf("%s: publish ends with %d and %q, want code 2 and %q", name, code, out, c.want)
		}
	}
	ingest := stack.Ingest(t, nil, stack.Redis(t), overTLS(n), ca, cert, key)
	require.Zero(t, ingest.Stop())
}
