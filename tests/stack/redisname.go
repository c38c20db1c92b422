package stack

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// NamedRedis is a master and a replica behind a name that leads new connections to the master, such as the
// primary endpoint of a managed Redis. Nothing ends the connections that a demoted master has.
type NamedRedis struct {
	Master, Replica *RedisServer
	t               testing.TB
	certificate     *Certificate // nil without [RedisTLS]
	name            *Balancer
}

// RedisByName starts the servers with the options.
func RedisByName(t testing.TB, opts ...RedisOption) *NamedRedis {
	t.Helper()
	var o redisOptions
	for _, opt := range opts {
		opt(&o)
	}
	opts = append(opts[:len(opts):len(opts)], RedisArgs("--repl-diskless-sync-delay", "0"))
	n := &NamedRedis{Master: Redis(t, opts...), Replica: Redis(t, opts...), t: t, certificate: o.tls}
	n.name = NewBalancer(t, n.addr(n.Master))
	n.Follow()
	return n
}

func (n *NamedRedis) addr(s *RedisServer) string {
	if n.certificate != nil {
		return s.TLSAddr()
	}
	return s.Addr()
}

// URL is the name's.
func (n *NamedRedis) URL() string { return "redis://" + n.name.Addr() + "/0" }

// Follow makes the replica one of the master, also after [RedisServer.CutReplicas], and waits until it has
// the master's data.
func (n *NamedRedis) Follow() {
	n.t.Helper()
	require.NoError(n.t, n.Master.Client().Do(n.t.Context(), "acl", "setuser", "default", "+psync", "+sync").Err())
	n.replicaOf(n.Replica, strings.Replace(n.addr(n.Master), ":", " ", 1))
	Eventually(n.t, "the replica to follow", func() (bool, string) { // a link that is up may not carry anything yet
		info := n.Master.Client().Info(context.Background(), "replication").Val()
		return strings.Count(info, "state=online") == 1, info
	})
}

// Demote makes the master a replica whose master does not answer.
func (n *NamedRedis) Demote() {
	n.t.Helper()
	n.replicaOf(n.Master, "127.0.0.1 1")
}

// Promote makes the replica master, and the name lead to it. The old master is the replica then, without a
// link.
func (n *NamedRedis) Promote() {
	n.t.Helper()
	n.replicaOf(n.Replica, "no one")
	n.Master, n.Replica = n.Replica, n.Master
	n.name.MoveTo(n.addr(n.Master))
}

func (n *NamedRedis) replicaOf(s *RedisServer, master string) {
	n.t.Helper()
	host, port, _ := strings.Cut(master, " ")
	require.NoError(n.t, s.Client().ReplicaOf(n.t.Context(), host, port).Err())
}
