package e2e_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// redisAt is a Redis that is reached at a URL.
type redisAt string

func (r redisAt) URL() string { return string(r) }

func TestAClusterOverTLSCountsForAUserOfFewRights(t *testing.T) {
	t.Parallel()
	certificate := stack.NewCertificate(t)
	trust, cert, key := "REDIS_CA="+certificate.CertFile, "REDIS_CERT="+certificate.CertFile, "REDIS_KEY="+certificate.KeyFile
	cluster := stack.Cluster(t, 0, stack.RedisTLS(certificate))
	for _, node := range cluster.Nodes {
		stack.NewUser(t, node, "counter", secret, stack.RightsOf(t, "ingest")...)
	}
	redis := redisAt("rediss+cluster://counter:" + secret + "@" + cluster.Nodes[0].TLSAddr() + "?addr=" + cluster.Nodes[1].TLSAddr())
	s := &system{t: t, nats: stack.NATS(t)}
	s.js = s.nats.JetStream()
	s.ingest = stack.Ingest(t, s.nats, redis, trust, cert, key)
	s.query = stack.Query(t, redis, trust, cert, key)
	counters := []string{"a", "b", "c", "d", "e"} // on several shards
	for _, counter := range counters {
		s.send("hits."+counter, "")
	}
	for _, counter := range counters {
		s.awaitTotal(counter, 1)
	}
	require.NotContains(t, s.ingest.Logs(), "NOPERM")
	require.NotContains(t, s.ingest.Logs(), secret)

	wrong := strings.Replace(string(redis), secret, "wr0ng", 1)
	for name, c := range map[string]struct {
		env  []string
		want string
	}{
		"another password":         {[]string{"REDIS_URL=" + wrong, trust, cert, key}, "REDIS_URL"},
		"no certificate":           {[]string{"REDIS_URL=" + string(redis), trust}, "REDIS_CERT"},
		"no authority":             {[]string{"REDIS_URL=" + string(redis), cert, key}, "REDIS_CA"},
		"half a certificate":       {[]string{"REDIS_URL=" + string(redis), trust, cert}, "REDIS_KEY"},
		"certificates without TLS": {[]string{"REDIS_URL=redis://127.0.0.1:1", cert, key}, "rediss"},
		"a URL of one server":      {[]string{"REDIS_URL=redis://" + cluster.Nodes[0].Addr()}, "write redis+cluster://"},
	} {
		code, out := runToEnd(t, "ingest", nil, append(c.env, "NATS_URL="+s.nats.URL(), "INGEST_ADDR=127.0.0.1:0")...)
		if code != 2 || !strings.Contains(out, c.want) || strings.Contains(out, "wr0ng") {
			t.Errorf("with %s ingest ends with %d and %q", name, code, out)
		}
	}
}
