package stack

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

const (
	masterName = "tallyroll"
	sentinels  = 3
)

// RedisSentinels is a Redis with replicas, and Sentinels that make one of them
// master where the master does not answer for a second.
type RedisSentinels struct {
	Servers   []*RedisServer // the first is master in the beginning
	Sentinels []*RedisServer
	t         testing.TB

	certificate *Certificate // nil without [RedisTLS]: then they talk in plain text
}

// port is where the Sentinels and the replicas reach a server.
func (s *RedisSentinels) port(server *RedisServer) int {
	if s.certificate != nil {
		return server.tlsPort
	}
	return server.Port()
}

// Sentinels starts a master, replicas, and three Sentinels. The options are the servers'.
func Sentinels(t testing.TB, replicas int, opts ...RedisOption) *RedisSentinels {
	t.Helper()
	var o redisOptions
	for _, opt := range opts {
		opt(&o)
	}
	s := &RedisSentinels{t: t, certificate: o.tls}
	opts = append(opts, RedisArgs("--repl-diskless-sync-delay", "0"))
	for i := range 1 + replicas {
		own := opts
		if i > 0 {
			own = append(own[:len(own):len(own)], RedisArgs("--replicaof", fmt.Sprint("127.0.0.1 ", s.port(s.Servers[0]))))
		}
		s.Servers = append(s.Servers, Redis(t, own...))
	}
	// A Sentinel asks a master for its replicas when it starts, and then every 10 s.
	Eventually(t, "the replicas", func() (bool, string) {
		info := s.Servers[0].Client().Info(context.Background(), "replication").Val()
		return strings.Count(info, "state=online") == replicas, info
	})
	for range sentinels {
		file := filepath.Join(t.TempDir(), "sentinel.conf") // it writes there what it learns
		text := fmt.Sprintf("sentinel monitor %[1]s 127.0.0.1 %[2]d 2\nsentinel down-after-milliseconds %[1]s 1000\nsentinel failover-timeout %[1]s 5000\n",
			masterName, s.port(s.Servers[0]))
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		own := []RedisOption{RedisConfig(file), RedisArgs("--sentinel")}
		if s.certificate != nil {
			own = append(own, RedisTLS(*s.certificate))
		}
		s.Sentinels = append(s.Sentinels, Redis(t, own...))
	}
	s.WaitOK()
	return s
}

// URL is the redis+sentinel:// address of all Sentinels, database 0.
func (s *RedisSentinels) URL() string {
	var addrs []string
	for _, sentinel := range s.Sentinels {
		addrs = append(addrs, sentinel.Addr())
	}
	return "redis+sentinel://" + addrs[0] + "/0?master_name=" + masterName + "&addr=" + strings.Join(addrs[1:], "&addr=")
}

// WaitOK waits until all Sentinels that run know each other and all servers, and
// agree on a master that runs; and the replicas that run have its data.
func (s *RedisSentinels) WaitOK() {
	s.t.Helper()
	Eventually(s.t, "the Sentinels to agree", func() (bool, string) {
		_, state := s.master()
		return state == "", state
	})
}

// Master is the server that all Sentinels say is the master.
func (s *RedisSentinels) Master() *RedisServer {
	s.t.Helper()
	s.WaitOK()
	master, state := s.master()
	if master == nil {
		s.t.Fatalf("no master: %s", state)
	}
	return master
}

// FailOver asks the Sentinels to make a replica master while the old one lives,
// and returns when they have.
func (s *RedisSentinels) FailOver() {
	s.t.Helper()
	old := s.Master()
	require.NoError(s.t, s.Sentinels[0].Client().Do(s.t.Context(), "sentinel", "failover", masterName).Err(), "sentinel failover")
	Eventually(s.t, "another master", func() (bool, string) {
		now, state := s.master()
		return now != nil && now != old && state == "", state
	})
}

func (s *RedisSentinels) master() (agreed *RedisServer, not string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, sentinel := range s.Sentinels {
		if !sentinel.Running() {
			continue
		}
		client := redis.NewSentinelClient(&redis.Options{Addr: sentinel.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true})
		says, err := client.Master(ctx, masterName).Result()
		_ = client.Close()
		if err != nil {
			return nil, err.Error()
		}
		if says["num-other-sentinels"] != fmt.Sprint(len(s.Sentinels)-1) || says["num-slaves"] != fmt.Sprint(len(s.Servers)-1) || says["flags"] != "master" {
			return nil, fmt.Sprint(says)
		}
		addr := net.JoinHostPort(says["ip"], says["port"])
		for _, server := range s.Servers {
			if address(s.port(server)) == addr && server.Running() {
				if agreed != nil && agreed != server {
					return nil, fmt.Sprintf("the Sentinels do not agree: %s and %s", agreed.Addr(), addr)
				}
				agreed = server
			}
		}
		if agreed == nil {
			return nil, "the master is still " + addr
		}
	}
	for _, server := range s.Servers {
		if server == agreed || !server.Running() {
			continue
		}
		info := server.Client().Info(ctx, "replication").Val()
		if !strings.Contains(info, fmt.Sprintf("master_port:%d\r", s.port(agreed))) {
			return nil, fmt.Sprintf("%s is not a replica of %s: %s", server.Addr(), agreed.Addr(), info)
		}
		if ok, state := server.replicates(ctx); !ok {
			return nil, state
		}
	}
	return agreed, ""
}
