package stack

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// shared are the servers that the tests of a package have in common: started at first use, stopped by [Main].
var shared struct {
	sync.Mutex
	cleanups  []func()
	redis     *RedisServer
	databases []int // that no test has
	nats      *NATSEmbedded
}

// sharedDatabases is more than tests run at once. Redis looks for expired keys in 16 databases per 100 ms.
const sharedDatabases = 64

// sharedTB starts a shared server on behalf of the first test that needs it; what it cleans up waits for
// [Main].
type sharedTB struct{ testing.TB }

func (s sharedTB) Cleanup(f func()) { shared.cleanups = append(shared.cleanups, f) }
func (s sharedTB) Failed() bool     { return false } // that test may be over
func (s sharedTB) TempDir() string {
	dir, err := os.MkdirTemp("", "tallyroll-shared-")
	require.NoError(s.TB, err)
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// stopShared stops the shared servers at the end of a package's tests.
func stopShared() {
	for _, stop := range slices.Backward(shared.cleanups) {
		stop()
	}
}

// RedisDatabase is a test's own database of the redis-server that the tests of a package share.
type RedisDatabase struct {
	url    string
	client *redis.Client
}

// SharedRedis gives the test an empty database of one redis-server per package, for tests that leave the
// server alone: those that stop, pause or configure it, count its commands or use FLUSHALL or pub/sub start
// their own with [Redis]. The package hands its TestMain to [Main].
func SharedRedis(t testing.TB) *RedisDatabase {
	t.Helper()
	needsServers(t)
	shared.Lock()
	defer shared.Unlock()
	if shared.redis == nil {
		shared.redis = Redis(sharedTB{t}, RedisArgs("--databases", fmt.Sprint(sharedDatabases)))
		for n := range sharedDatabases {
			shared.databases = append(shared.databases, n)
		}
	}
	if len(shared.databases) == 0 {
		t.Fatalf("all %d databases of the shared Redis are taken", sharedDatabases)
	}
	server, n := shared.redis, shared.databases[0]
	shared.databases = shared.databases[1:]
	d := &RedisDatabase{url: fmt.Sprintf("redis://%s/%d", server.Addr(), n), client: newRedisClient(server.Addr(), n)}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the end of the log of the shared redis:\n%s", tail(server.Logs(), logTail))
		}
		err := d.client.FlushDB(context.Background()).Err()
		_ = d.client.Close()
		if err == nil {
			shared.Lock()
			shared.databases = append(shared.databases, n)
			shared.Unlock()
		}
	})
	return d
}

// URL is the redis:// address of the database.
func (d *RedisDatabase) URL() string { return d.url }

// Client is the test's own client, closed when the test ends. It repeats no command.
func (d *RedisDatabase) Client() *redis.Client { return d.client }

// NATSAccount is a test's own account of the NATS server that the tests of a package share.
type NATSAccount struct {
	clients
	address string
}

// SharedNATS gives the test an account with JetStream on one NATS server per package, inside the test
// process: its streams and subjects have any names, and no other test sees them. Tests that stop or configure
// the server start their own with [NATS]. The package hands its TestMain to [Main].
func SharedNATS(t testing.TB) *NATSAccount {
	t.Helper()
	needsServers(t)
	shared.Lock()
	defer shared.Unlock()
	if shared.nats == nil {
		users := &accountPerUser{}
		n := NATS(sharedTB{t}, func(o *server.Options) { o.CustomClientAuthentication = users })
		users.server.Store(n.srv)
		shared.nats = n
	}
	name := rand.Text()
	account, _ := shared.nats.srv.LookupOrRegisterAccount(name)
	require.NoError(t, account.EnableJetStream(nil, nil))
	a := &NATSAccount{address: fmt.Sprintf("nats://%s:any@%s", name, address(shared.nats.opts.Port))}
	a.clients = clients{t, a.URL}
	return a
}

// URL is the nats:// address with the account's user.
func (a *NATSAccount) URL() string { return a.address }

// accountPerUser lets the user of an account in, whose name is the account's.
type accountPerUser struct{ server atomic.Pointer[server.Server] }

func (a *accountPerUser) Check(c server.ClientAuthentication) bool {
	account, err := a.server.Load().LookupAccount(c.GetOpts().Username)
	if err != nil {
		return false
	}
	c.RegisterUser(&server.User{Username: account.Name, Account: account})
	return true
}
