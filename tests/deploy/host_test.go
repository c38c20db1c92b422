package deploy_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// url is an endpoint.
type url string

func (u url) URL() string { return string(u) }

// The lines that start the servers without containers do so as they are written in
// their files and in the README, on loopback, with their data where they were started.
func TestHostServers(t *testing.T) {
	readme := read(t, filepath.Join(root(t), "README.md"))
	dir := t.TempDir()
	require.NoError(t, os.Symlink(filepath.Join(root(t), "deploy"), filepath.Join(dir, "deploy")))
	t.Setenv("PATH", filepath.Dir(stack.NATSServer(t))+string(filepath.ListSeparator)+os.Getenv("PATH"))
	launch := func(name string, args string) {
		line := regexp.MustCompile(`(?m)^#   (.*` + name + ` .*)$`).FindStringSubmatch(read(t, filepath.Join(root(t), "deploy/host", strings.TrimSuffix(name, "-server")+".conf")))
		if line == nil {
			t.Fatalf("deploy/host has no line to start %s with", name)
		}
		require.Contains(t, readme, "\n"+line[1], "how the README starts %s", name)
		log, err := os.Create(filepath.Join(dir, name+".log"))
		require.NoError(t, err)
		defer log.Close()
		cmd := exec.Command("sh", "-c", line[1]+" "+args)
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, log, log
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // the shell and its child
			_ = cmd.Wait()
			if t.Failed() {
				t.Logf("log of %s:\n%s", name, read(t, log.Name()))
			}
		})
	}
	natsPort, monitor, redisPort := stack.FreePort(t), stack.FreePort(t), stack.FreePort(t)
	launch("nats-server", fmt.Sprintf("--port %d --http_port %d", natsPort, monitor))
	launch("redis-server", fmt.Sprintf("--port %d", redisPort))
	natsURL, redisURL := url(fmt.Sprintf("nats://127.0.0.1:%d", natsPort)), url(fmt.Sprintf("redis://127.0.0.1:%d/0", redisPort))

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stack.Ingest(t, natsURL, redisURL)
	query := stack.Query(t, redisURL)
	conn, err := nats.Connect(natsURL.URL())
	require.NoError(t, err)
	defer conn.Close()
	if _, err := conn.RequestWithContext(ctx, "hits.a", nil); err != nil { // JetStream acknowledges it
		t.Fatal(err)
	}
	stack.EventuallyTotal(t, query.URL(), "a", "1h", 1)

	client := redis.NewClient(&redis.Options{Addr: fmt.Sprintf("127.0.0.1:%d", redisPort)})
	defer client.Close()
	if got := client.ConfigGet(ctx, "*").Val(); got["bind"] != "127.0.0.1 -::1" || got["protected-mode"] != "yes" {
		t.Errorf("Redis is bound to %q, protected-mode %s", got["bind"], got["protected-mode"])
	}
	for _, path := range []string{"data/redis/appendonlydir", "data/nats/jetstream"} {
		if info, err := os.Stat(filepath.Join(dir, path)); err != nil || !info.IsDir() {
			t.Errorf("there is no %s where the servers were started: %v", path, err)
		}
	}
	if runtime.GOOS == "linux" { // where all of 127/8 is loopback: a server on every address has this one, too
		for _, port := range []int{natsPort, monitor, redisPort} {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.2:%d", port))
			if err != nil {
				t.Errorf("port %d is open on more than 127.0.0.1: %v", port, err)
				continue
			}
			_ = l.Close()
		}
	}
}

// What is right for a container is right without one, except for addresses and directories.
func TestHostRedisIsTheContainers(t *testing.T) {
	var got [2]map[string]string
	for i, file := range []string{"deploy/redis.conf", "deploy/host/redis.conf"} {
		require.NoError(t, os.MkdirAll(filepath.Join(t.TempDir(), "data/redis"), 0o755))
		// The harness gives the directory on the command line, after one that does not exist there.
		text := strings.Replace(read(t, filepath.Join(root(t), file)), "\ndir data/redis\n", "\n", 1)
		conf := filepath.Join(t.TempDir(), "redis.conf")
		require.NoError(t, os.WriteFile(conf, []byte(text), 0o600))
		var err error
		got[i], err = stack.Redis(t, stack.RedisConfig(conf)).Client().ConfigGet(t.Context(), "*").Result()
		require.NoError(t, err)
	}
	for setting, want := range map[string]string{
		"appendonly": "yes", "appendfsync": "everysec", "maxmemory-policy": "noeviction", "save": "", "lazyfree-lazy-expire": "yes",
	} {
		require.Equal(t, want, got[0][setting], "%s", setting)
	}
	may := map[string]bool{"protected-mode": true, "port": true, "dir": true}
	for setting, want := range got[0] {
		if have := got[1][setting]; have != want && !may[setting] {
			t.Errorf("%s is %q, in the container %q", setting, have, want)
		}
	}
}

func TestHostNATSIsTheContainers(t *testing.T) {
	var got [2]reflect.Value
	for i, file := range []string{"deploy/nats.conf", "deploy/host/nats.conf"} {
		opts, err := server.ProcessConfigFile(filepath.Join(root(t), file))
		require.NoError(t, err)
		got[i] = reflect.ValueOf(opts).Elem()
	}
	may := map[string]bool{"ConfigFile": true, "Host": true, "HTTPHost": true, "StoreDir": true}
	for field, want := range got[0].Fields() {
		if !field.IsExported() || may[field.Name] {
			continue
		}
		if have := got[1].FieldByIndex(field.Index); !reflect.DeepEqual(have.Interface(), want.Interface()) {
			t.Errorf("%s is %v, in the container %v", field.Name, have, want)
		}
	}
	for _, name := range []string{"Host", "HTTPHost"} {
		require.Equal(t, "127.0.0.1", got[1].FieldByName(name).String(), "%s", name)
	}
}
