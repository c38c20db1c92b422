package e2e_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// Each program names the state of Redis that it meets, and the remedy.
func TestCausesOfRedisAreNamed(t *testing.T) {
	t.Parallel()
	certificate := stack.NewCertificate(t)
	broker, plain, tls := stack.NATS(t), stack.Redis(t), stack.Redis(t, stack.RedisTLS(certificate))
	hidden := stack.Redis(t, stack.RedisArgs("--cluster-enabled", "yes", "--cluster-preferred-endpoint-type", "unknown-endpoint"))
	require.NoError(t, hidden.Client().Do(t.Context(), "cluster", "addslotsrange", 0, 16383).Err())
	nameless := stack.Redis(t, stack.RedisArgs("--cluster-enabled", "yes", "--cluster-preferred-endpoint-type", "hostname"))
	require.NoError(t, nameless.Client().Do(t.Context(), "cluster", "addslotsrange", 0, 16383).Err())
	locked := stack.Redis(t)
	require.NoError(t, locked.Client().Do(t.Context(), "acl", "setuser", "default", ">secret", "resetpass", ">secret").Err())
	for _, c := range []struct{ name, url, cause, remedy string }{
		{"TLS where there is none", strings.Replace(plain.URL(), "redis:", "rediss:", 1), "did not answer the TLS handshake", "write redis:// in REDIS_URL"},
		{"no TLS where it is needed", "redis://" + tls.TLSAddr() + "/0", "as a server with TLS does", "write rediss:// in REDIS_URL"},
		{"nodes without an address", strings.Replace(hidden.URL(), "redis:", "redis+cluster:", 1), "announce no address", "cluster-announce-ip"},
		{"nodes without a name", strings.Replace(nameless.URL(), "redis:", "redis+cluster:", 1), "announce no address", "cluster-announce-ip"},
		{"a password", locked.URL(), "Redis refused the credentials", "REDIS_PASSWORD"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			redis := stack.TLSEndpoint(stack.Certificate{}, c.url)
			query := stack.Query(t, redis, stack.NoWait)
			query.WaitForLog(c.cause)
			query.WaitForLog(c.remedy)
			if strings.HasPrefix(c.cause, "Redis refused") {
				code, out := runToEnd(t, "ingest", nil, "NATS_URL="+broker.URL(), "REDIS_URL="+c.url, "INGEST_ADDR=127.0.0.1:0")
				require.Equal(t, 2, code, out)
				require.Contains(t, out, c.remedy)
				return
			}
			ingest := stack.Ingest(t, broker, redis, stack.NoWait)
			ingest.WaitForLog(c.cause)
			ingest.WaitForLog(c.remedy)
		})
	}
}

// A full Redis is named as such, with what fills it, by all that it refuses. query answers.
func TestAFullRedisIsNamed(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	ingest := stack.Ingest(t, s.nats, s.redis)
	s.query = stack.Query(t, s.redis)
	for i := range 300 { // all shards have names
		s.send(fmt.Sprint("hits.web.", i), "")
	}
	s.send("hits.web.a", "")
	s.awaitTotal("web.a", 1)
	s.awaitAllCounted()
	maxMemory := func(bytes string) {
		require.NoError(t, s.redis.Client().ConfigSet(t.Context(), "maxmemory", bytes).Err())
	}
	maxMemory("1")
	s.send("hits.web.a", "")
	eventuallySays(t, ingest.URL()+"/readyz", http.StatusServiceUnavailable, `names read begin with "web.": commit shard`)
	require.Regexp(t, `Redis is full: maxmemory is 1B, and 100 % of \d+ names read begin with \\"web\.\\": commit shard`, ingest.Logs())
	s.awaitTotal("web.a", 1)
	ingest.Stop()
	env := []string{"NATS_URL=" + s.nats.URL(), "REDIS_URL=" + s.redis.URL()}
	for _, args := range [][]string{{"audit"}, {"ingest", "--retier", "1s/1m,1m/1h"}, {"ingest", "--complete-from", "2026-01-01"}} {
		code, out := runToEnd(t, args[0], args[1:], env...)
		require.NotZero(t, code, args)
		require.Contains(t, out, args[0]+": Redis is full: ")
		require.Contains(t, out, "bound the names with INGEST_MAX_NAMES, then erase some, or raise maxmemory")
	}
	stack.Ingest(t, s.nats, s.redis, stack.NoWait).WaitForLog("Redis is full: write layout")
	maxMemory("0")
	s.awaitTotal("web.a", 2)
}

// A user who may not use CLIENT counts all the same: only its connections have no name.
func TestNameOfAConnectionIsNoCondition(t *testing.T) {
	t.Parallel()
	s := startServers(t)
	stack.NewUser(t, s.redis, "nameless", "secret", "~*", "&*", "+@all", "-client")
	redis := stack.TLSEndpoint(stack.Certificate{}, strings.Replace(s.redis.URL(), "redis://", "redis://nameless:secret@", 1))
	stack.Ingest(t, s.nats, redis)
	s.query = stack.Query(t, redis)
	s.send("hits.a", "")
	s.awaitTotal("a", 1)
}

// Each program names the state of NATS that it meets, and the remedy.
func TestCausesOfNATSAreNamed(t *testing.T) {
	t.Parallel()
	without := stack.NATS(t, func(o *server.Options) { o.JetStream = false })
	redis := stack.Redis(t)
	rules := file(t, "watch.yml", "targets: {t: {nats: alerts.t}}\nrules:\n- {name: a, key: a, window: 1m, above: 5, to: [t]}\n")
	for program, env := range map[string][]string{
		"ingest": {"INGEST_ADDR=127.0.0.1:0"}, "watch": {"WATCH_ADDR=127.0.0.1:0", "WATCH_FILE=" + rules}, "publish": nil,
	} {
		t.Run("no JetStream: "+program, func(t *testing.T) {
			t.Parallel()
			code, out := runToEndWith(t, program, strings.NewReader("a\n"), nil, append(env, "NATS_URL="+without.URL(), "REDIS_URL="+redis.URL())...)
			require.Equal(t, 2, code, out)
			require.Contains(t, out, "NATS has no JetStream")
			require.Contains(t, out, "start nats-server with -js")
		})
		t.Run("no TLS: "+program, func(t *testing.T) {
			t.Parallel()
			code, out := runToEndWith(t, program, strings.NewReader("a\n"), nil, append(env, "NATS_URL="+strings.Replace(without.URL(), "nats:", "tls:", 1), "REDIS_URL="+redis.URL())...)
			require.Equal(t, 2, code, out)
			require.Contains(t, out, "NATS has no TLS")
			require.Contains(t, out, "write nats:// in NATS_URL")
		})
	}
	stack.Collect(t, without, stack.NoWait).WaitForLog("start nats-server with -js")

	broker := stack.NATS(t)
	_, err := broker.JetStream().CreateStream(t.Context(), jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}, NoAck: true})
	require.NoError(t, err)
	stack.Collect(t, broker, stack.NoWait).WaitForLog("no_ack")
	stack.Ingest(t, broker, redis).WaitForLog("no_ack")
	code, out := runToEndWith(t, "publish", strings.NewReader("a\n"), []string{"--format", "lines"}, "NATS_URL="+broker.URL())
	require.Equal(t, 2, code, out) // it would send the hits again for ever
	require.Contains(t, out, "no_ack: false")
}
