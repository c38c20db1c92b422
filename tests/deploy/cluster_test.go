package deploy_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// With deploy/nats-partitions.conf producers publish to hits.<counter> as ever,
// and four streams share the messages.
func TestPartitions(t *testing.T) {
	t.Parallel()
	dir := natsFiles(t)
	file := filepath.Join(dir, "nats.conf")
	without := read(t, file)
	with := strings.Replace(without, "\n# include nats-partitions.conf", "\ninclude nats-partitions.conf", 1)
	if with == without {
		t.Fatal("deploy/nats.conf has no line to include nats-partitions.conf with")
	}
	require.NoError(t, os.WriteFile(file, []byte(with), 0o600))
	fourStreamsShare(t, file)
}

// fourStreamsShare publishes through a server with this configuration.
func fourStreamsShare(t *testing.T, file string) {
	t.Helper()
	n, redis := stack.NATSProcess(t, "--config", file), stack.Redis(t)
	stack.Ingest(t, n, redis, "INGEST_PARTITIONS=4")
	query := stack.Query(t, redis)

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	js := n.JetStream()
	const counters = 40
	name := func(i int) string { return fmt.Sprintf("shop.checkout-%d.eu", i) }
	for i := range counters {
		if _, err := js.Publish(ctx, "hits."+name(i), nil); err != nil {
			t.Fatal(err)
		}
		if err := js.Conn().Publish("hits."+name(i), []byte(`{"n":2}`)); err != nil { // not acknowledged
			t.Fatal(err)
		}
	}
	for i := range counters {
		stack.EventuallyTotal(t, query.URL(), name(i), "1h", 3)
	}
	for i := range 4 {
		stream, err := js.Stream(ctx, fmt.Sprintf("HITS_%d", i))
		require.NoError(t, err)
		if got := stream.CachedInfo().State.Msgs; got == 0 || got == 2*counters {
			t.Errorf("HITS_%d holds %d of %d messages, want a share", i, got, 2*counters)
		}
	}
	if _, err := js.Stream(ctx, "HITS"); err == nil {
		t.Error("there is a stream HITS beside the partitions")
	}
}

// natsFiles is a directory with the configuration of NATS, in which the store is
// the directory and the HTTP server's port a free one.
func natsFiles(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	here := strings.NewReplacer("store_dir: /data", fmt.Sprintf("store_dir: %q", dir), "http_port: 8222", fmt.Sprintf("http_port: %d", stack.FreePort(t)))
	for _, name := range []string{"nats.conf", "nats-cluster.conf", "nats-partitions.conf", "nats-partitioned.conf"} {
		text := here.Replace(read(t, filepath.Join(root(t), "deploy", name)))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	return dir
}

// deploy/nats-cluster.conf makes one cluster of three servers that differ in
// their environment alone.
func TestNATSClusterConfig(t *testing.T) {
	t.Setenv("NATS_NAME", "nats-1")
	opts, err := server.ProcessConfigFile(filepath.Join(natsFiles(t), "nats-cluster.conf"))
	require.NoError(t, err)
	if opts.ServerName != "nats-1" || opts.Cluster.Name != "tallyroll" || opts.Cluster.Port != 6222 || len(opts.Routes) != 3 || !opts.JetStream {
		t.Errorf("server %q of cluster %+v with %d routes, JetStream %v", opts.ServerName, opts.Cluster, len(opts.Routes), opts.JetStream)
	}
	for i, route := range opts.Routes {
		if want := fmt.Sprintf("nats-%d:6222", i); route.Host != want {
			t.Errorf("route %d goes to %s, want %s", i, route.Host, want)
		}
	}
}
