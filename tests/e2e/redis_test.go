package e2e_test

import (
	"strings"
	"testing"

	"tallyroll/tests/stack"
)

// redisAt is a Redis that is reached at a URL.
type redisAt string

func (r redisAt) URL() string { return string(r) }

func TestTLSAndAUserOfFewRights(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T, stack.RedisOption) string{
		"one server": func(t *testing.T, tls stack.RedisOption) string {
			server := stack.Redis(t, tls)
			stack.NewUser(t, server, "counter", "s3cret", stack.RightsOf(t, "ingest")...)
			return "rediss://counter:s3cret@" + server.TLSAddr() + "/0"
		},
		"cluster": func(t *testing.T, tls stack.RedisOption) string {
			cluster := stack.Cluster(t, 0, tls)
			for _, node := range cluster.Nodes {
				stack.NewUser(t, node, "counter", "s3cret", stack.RightsOf(t, "ingest")...)
			}
			return "rediss+cluster://counter:s3cret@" + cluster.Nodes[0].TLSAddr() + "?addr=" + cluster.Nodes[1].TLSAddr()
		},
	} {
		t.Run(name, func(t *testing.T) {
			certificate := stack.NewCertificate(t)
			trust, cert, key := "REDIS_CA="+certificate.CertFile, "REDIS_CERT="+certificate.CertFile, "REDIS_KEY="+certificate.KeyFile
			redis := redisAt(start(t, stack.RedisTLS(certificate)))
			s := &system{t: t, nats: stack.NATS(t)}
			s.ingest = stack.Ingest(t, s.nats, redis, trust, cert, key)
			s.query = stack.Query(t, redis, trust, cert, key)
			s.js = s.nats.JetStream()
			for _, counter := range []string{"a", "b", "c", "d", "e"} { // on several shards
				s.send("hits."+counter, "")
				stack.EventuallyTotal(t, s.query.URL(), counter, "1h", 1)
			}
			if logs := s.ingest.Logs(); strings.Contains(logs, "NOPERM") || strings.Contains(logs, "s3cret") {
				t.Errorf("a right is missing, or the password is in the log: %s", logs)
			}

			wrong := strings.Replace(string(redis), "s3cret", "wr0ng", 1)
			for _, test := range []struct {
				name string
				env  []string
				want string
			}{
				{"another password", []string{"REDIS_URL=" + wrong, trust, cert, key}, "REDIS_URL"},
				{"no certificate", []string{"REDIS_URL=" + string(redis), trust}, "REDIS_CERT"},
				{"no authority", []string{"REDIS_URL=" + string(redis), cert, key}, "REDIS_CA"},
				{"half a certificate", []string{"REDIS_URL=" + string(redis), trust, cert}, "REDIS_KEY"},
				{"certificates without TLS", []string{"REDIS_URL=redis://127.0.0.1:1", cert, key}, "rediss"},
			} {
				code, out := ends(t, "ingest", nil, append(test.env, "NATS_URL="+s.nats.URL(), "INGEST_ADDR=127.0.0.1:0")...)
				if code != 2 || !strings.Contains(out, test.want) || strings.Contains(out, "wr0ng") {
					t.Errorf("with %s ingest ends with %d and %q", test.name, code, out)
				}
			}
		})
	}
}

func TestAnotherKindOfRedisThanTheURLSays(t *testing.T) {
	t.Parallel()
	nats := stack.NATS(t)
	one, cluster, sentinels := stack.Redis(t), stack.Cluster(t, 0), stack.Sentinels(t, 1)
	for url, want := range map[string]string{
		"redis+cluster://" + one.Addr():            "redis://",
		"redis://" + cluster.Nodes[0].Addr():       "redis+cluster://",
		"redis://" + sentinels.Sentinels[0].Addr(): "redis+sentinel://",
	} {
		code, out := ends(t, "ingest", nil, "NATS_URL="+nats.URL(), "REDIS_URL="+url, "INGEST_ADDR=127.0.0.1:0")
		if code != 2 || !strings.Contains(out, "write "+want) {
			t.Errorf("ingest with %s ends with %d and %q; want code 2 and %s", url, code, out, want)
		}
	}
}
