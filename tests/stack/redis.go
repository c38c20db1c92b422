package stack

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/redisconn"
	"tallyroll/internal/platform/setting"
)

// Lines that go-redis writes to standard error by itself while a server is
// away on purpose would hide the tests' own. The switch is a global of that
// library without a lock, so it is set before there is any client.
func init() { redisconn.Quiet() }

// RedisServer is a redis-server process with an append-only file.
type RedisServer struct {
	*Process
	dir     string
	tlsPort int
	client  func() *redis.Client
}

// RedisOption changes how redis-server is started.
type RedisOption func(*redisOptions)

type redisOptions struct {
	config string
	args   []string
	env    []string
	tls    *Certificate
}

// RedisConfig starts redis-server with a configuration file in place of the
// harness's own settings. Port, address and directory remain the harness's.
func RedisConfig(path string) RedisOption {
	return func(o *redisOptions) { o.config = path }
}

// RedisArgs are further arguments; of two for the same setting the last holds.
func RedisArgs(args ...string) RedisOption {
	return func(o *redisOptions) { o.args = append(o.args, args...) }
}

// Redis starts a redis-server or valkey-server from the PATH. Without one the test fails.
func Redis(t testing.TB, opts ...RedisOption) *RedisServer {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		path, err = exec.LookPath("valkey-server")
	}
	if err != nil {
		t.Fatal("no redis-server and no valkey-server on the PATH: `make test` installs it, or use your system's package (redis-server on Debian, redis on macOS)")
	}
	var o redisOptions
	for _, opt := range opts {
		opt(&o)
	}
	dir := t.TempDir()
	t.Cleanup(func() { // a child of the killed server may still write a file of its data
		Eventually(t, "the end of "+dir, func() (bool, string) {
			err := os.RemoveAll(dir)
			return err == nil, fmt.Sprint(err)
		})
	})
	s := &RedisServer{dir: dir}
	if o.tls != nil {
		s.tlsPort = FreePort(t)
		o.args = append(o.args, o.tls.args(s.tlsPort)...)
	}
	s.Process = newProcess(t, "redis", path, func(port int) (args, env []string) {
		if o.config != "" {
			args = append(args, o.config)
		}
		args = append(args, "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir)
		if o.config == "" {
			args = append(args, "--save", "", "--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction")
		}
		return append(args, o.args...), o.env
	})
	s.client = sync.OnceValue(func() *redis.Client {
		c := newRedisClient(s.Addr(), 0)
		t.Cleanup(func() { _ = c.Close() })
		return c
	})
	s.ready = s.answers
	s.Start()
	return s
}

// Start starts the server. If it was killed while it rewrote its append-only file, which a worker asks for,
// its first start can fail: see docs/operations.md.
func (s *RedisServer) Start() {
	s.t.Helper()
	if err := s.start(); err != nil {
		if !strings.Contains(s.Logs(), "Unexpected end of file reading the append only file") {
			s.t.Fatalf("start redis: %v\n%s", err, tail(s.Logs(), 20))
		}
		s.t.Log("Redis was killed while it rewrote its append-only file: it is started once more")
		s.Process.Start()
	}
}

// newRedisClient repeats nothing by itself: a test that counts must not count twice.
func newRedisClient(addr string, database int) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: addr, DB: database, MaxRetries: -1, ContextTimeoutEnabled: true,
		DialTimeout: 5 * time.Second, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second,
	})
}

// ProgramClient is a client as the programs make it from REDIS_URL.
func ProgramClient(t testing.TB, url string) redis.UniversalClient {
	t.Helper()
	return ProgramClientOf(t, tlsEndpoint{url: url})
}

// ProgramClientOf is a client as the programs make it from their settings.
func ProgramClientOf(t testing.TB, redis Endpoint) redis.UniversalClient {
	t.Helper()
	var settings redisconn.Settings
	require.NoError(t, setting.Parse(&settings, RedisEnv(redis)...))
	client := settings.Client()
	t.Cleanup(func() { _ = client.Close() })
	return client
}

var processID = regexp.MustCompile(`process_id:(\d+)`)

// answers reports whether this very process serves the port and has its data loaded.
func (s *RedisServer) answers() (bool, string) {
	c := newRedisClient(s.Addr(), 0)
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := c.Ping(ctx).Err(); err != nil {
		return false, err.Error()
	}
	info, err := c.Info(ctx, "server").Result()
	if err != nil {
		return false, err.Error()
	}
	id := processID.FindStringSubmatch(info)
	if r := s.current(); id == nil || id[1] != strconv.Itoa(r.pid) {
		return false, fmt.Sprintf("%s is served by %v, not by process %d", s.Addr(), id, r.pid)
	}
	return true, ""
}

// CutReplicas ends replication until the server is started again: a replica
// keeps what it has, and is refused what comes.
func (s *RedisServer) CutReplicas() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, command := range []string{"acl setuser default -psync -sync", "client kill type replica"} {
		var args []any
		for word := range strings.FieldsSeq(command) {
			args = append(args, word)
		}
		require.NoErrorf(s.t, s.Client().Do(ctx, args...).Err(), "%s", command)
	}
}

// IsValkey reports whether the server is a Valkey.
func (s *RedisServer) IsValkey() bool {
	s.t.Helper()
	info, err := s.Client().Info(s.t.Context(), "server").Result()
	require.NoError(s.t, err)
	return strings.Contains(info, "valkey_version:")
}

// URL is the redis:// address of database 0.
func (s *RedisServer) URL() string { return "redis://" + s.Addr() + "/0" }

// Dir is where it keeps its data: the append-only file is in appendonlydir there.
func (s *RedisServer) Dir() string { return s.dir }

// Client is the test's own client, closed when the test ends. It repeats no command.
func (s *RedisServer) Client() *redis.Client { return s.client() }

// Scan lists the keys that match a pattern, of a cluster those of all masters, in order, each once.
func Scan(t testing.TB, client redis.UniversalClient, pattern string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	var mu sync.Mutex
	var keys []string
	scan := func(ctx context.Context, server redis.Cmdable) error {
		it := server.Scan(ctx, 0, pattern, 1000).Iterator()
		for it.Next(ctx) {
			mu.Lock()
			keys = append(keys, it.Val())
			mu.Unlock()
		}
		return it.Err()
	}
	var err error
	if cluster, ok := client.(*redis.ClusterClient); ok {
		err = cluster.ForEachMaster(ctx, func(ctx context.Context, node *redis.Client) error { return scan(ctx, node) })
	} else {
		err = scan(ctx, client)
	}
	require.NoErrorf(t, err, "scan %s", pattern)
	slices.Sort(keys)
	return slices.Compact(keys) // SCAN may return a key twice while the table grows
}

// NewUser makes a user of Redis, who has these rights and no others.
func NewUser(t testing.TB, server *RedisServer, name, password string, rights ...string) {
	t.Helper()
	args := []any{"acl", "setuser", name, "reset", "on", ">" + password}
	for _, word := range rights {
		args = append(args, word)
	}
	require.NoErrorf(t, server.Client().Do(t.Context(), args...).Err(), "make the user %s", name)
}

// RightsOf are those of a user in deploy/redis-users.acl, as ACL SETUSER takes them.
func RightsOf(t testing.TB, user string) (words []string) {
	t.Helper()
	users, err := os.ReadFile("../../deploy/redis-users.acl") // from any package with tests of programs
	for up := "../../../"; os.IsNotExist(err) && len(up) < 20; up += "../" {
		users, err = os.ReadFile(up + "deploy/redis-users.acl")
	}
	require.NoError(t, err)
	for line := range strings.Lines(string(users)) {
		if words := strings.Fields(line); len(words) > 4 && words[1] == user {
			return words[4:] // behind user, the name, on and the password
		}
	}
	t.Fatalf("deploy/redis-users.acl has no user %s", user)
	return nil
}
