package stack

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
)

// NATSServers is how many servers a cluster of the tests has: the fewest that
// keep a majority when one is lost.
const NATSServers = 3

// NATSProcs is a NATS cluster with JetStream, each server a process.
type NATSProcs struct {
	clients
	Servers [NATSServers]*NATSProc
	Stores  [NATSServers]string // their folders
	monitor [NATSServers]string // their HTTP servers
}

// NATSCluster starts three servers and returns when they are one cluster. config
// is added to the configuration file of each.
func NATSCluster(t testing.TB, config ...string) *NATSProcs {
	t.Helper()
	c := &NATSProcs{}
	c.clients = clients{t, c.URL}
	var routes [NATSServers]string
	for i := range routes {
		routes[i] = "nats://" + address(FreePort(t))
	}
	for i := range c.Servers {
		monitor := address(FreePort(t))
		c.Stores[i] = t.TempDir()
		c.monitor[i] = "http://" + monitor
		text := fmt.Sprintf("server_name: %s\nhttp: %q\njetstream { store_dir: %q }\ncluster { name: test, listen: %q, routes: [%s] }\n%s\n",
			c.Name(i), monitor, c.Stores[i], strings.TrimPrefix(routes[i], "nats://"), strings.Join(routes[:], ", "), strings.Join(config, "\n"))
		file := filepath.Join(t.TempDir(), "nats.conf")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		server := &NATSProc{}
		server.Process = newProcess(t, "nats-server", NATSServer(t), func(port int) ([]string, []string) {
			return []string{"--addr", "127.0.0.1", "--port", strconv.Itoa(port), "--config", file}, nil
		})
		server.clients = clients{t, server.URL}
		// Ready for clients; one server alone has no JetStream.
		server.ready = func() (bool, string) {
			conn, err := nats.Connect(server.URL(), nats.Timeout(time.Second))
			if err != nil {
				return false, err.Error()
			}
			defer conn.Close()
			got := conn.ConnectedServerName()
			return got == c.Name(i), server.URL() + " is served by " + got
		}
		c.Servers[i] = server
		server.Start()
	}
	c.WaitCurrent()
	return c
}

// Name is the name of a server.
func (c *NATSProcs) Name(i int) string { return "test-" + strconv.Itoa(i) }

// URL is the addresses of all servers, comma-separated.
func (c *NATSProcs) URL() string {
	var urls []string
	for _, s := range c.Servers {
		urls = append(urls, s.URL())
	}
	return strings.Join(urls, ",")
}

// WaitCurrent waits until every server reports that it is healthy: there is a leader of JetStream, and the
// server has all that the leader has of every stream.
func (c *NATSProcs) WaitCurrent() {
	c.t.Helper()
	for i := range c.Servers {
		Eventually(c.t, c.Name(i)+" to be current", func() (bool, string) {
			resp, err := probe.Get(c.monitor[i] + "/healthz")
			if err != nil {
				return false, err.Error()
			}
			defer resp.Body.Close()
			return resp.StatusCode == http.StatusOK, resp.Status
		})
	}
}

// Leader waits until a stream has a leader, and is the index of that server.
func (c *NATSProcs) Leader(js jetstream.JetStream, stream string) (leader int) {
	c.t.Helper()
	Eventually(c.t, "a leader of "+stream, func() (bool, string) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		handle, err := js.Stream(ctx, stream)
		if err != nil {
			return false, err.Error()
		}
		cluster := handle.CachedInfo().Cluster
		if cluster == nil {
			return false, "no cluster"
		}
		leader = c.Index(cluster.Leader)
		return leader >= 0, "leader " + strconv.Quote(cluster.Leader)
	})
	return leader
}

// Of is the index of the server that a client of the given name is connected to,
// -1 where there is none.
func (c *NATSProcs) Of(client string) int {
	c.t.Helper()
	for i := range c.Servers {
		status, body, err := Do(http.MethodGet, c.monitor[i]+"/connz", nil)
		if err == nil && status == http.StatusOK && strings.Contains(string(body), fmt.Sprintf("\"name\": %q", client)) {
			return i
		}
	}
	return -1
}

// Index is the server of a name, -1 where there is none.
func (c *NATSProcs) Index(name string) int {
	for i := range c.Servers {
		if c.Name(i) == name {
			return i
		}
	}
	return -1
}

// StepDown asks the leader of a stream to hand over.
func (c *NATSProcs) StepDown(conn *nats.Conn, stream string) error {
	reply, err := conn.Request(jetstream.DefaultAPIPrefix+"STREAM.LEADER.STEPDOWN."+stream, nil, 5*time.Second)
	if err != nil {
		return err
	}
	if !strings.Contains(string(reply.Data), `"success":true`) {
		return fmt.Errorf("step down of %s: %s", stream, reply.Data)
	}
	return nil
}
