package e2e_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

var failedCommits = regexp.MustCompile(`tallyroll_ingest_failed_commits_total\{.*\} [1-9].*`)

// rotation is a system in which every connection to Redis and NATS uses a secret from a file, under load.
type rotation struct {
	t             *testing.T
	redis         *stack.RedisServer
	nats          *stack.NATSEmbedded
	dir           string
	ingest, query *stack.Service

	end    chan struct{}
	stored chan int
}

func (r *rotation) file(name string) string { return filepath.Join(r.dir, name) }

// put replaces a file as a whole, as Kubernetes and careful people do.
func (r *rotation) put(name, text string) {
	r.t.Helper()
	write(r.t, r.file(name+".new"), text)
	require.NoError(r.t, os.Rename(r.file(name+".new"), r.file(name)))
}

func (r *rotation) acl(args ...any) {
	r.t.Helper()
	require.NoError(r.t, r.redis.Client().Do(r.t.Context(), append([]any{"acl", "setuser", "counter"}, args...)...).Err())
}

// cutConnections ends all connections of the programs to Redis.
func (r *rotation) cutConnections() {
	r.t.Helper()
	require.NoError(r.t, r.redis.Client().Do(r.t.Context(), "client", "kill", "user", "counter").Err())
}

// allowOnly lets a user connect to NATS with a password and with no other, and the test without one.
func allowOnly(user, password string) func(*server.Options) {
	return func(o *server.Options) {
		o.Users, o.NoAuthUser = []*server.User{{Username: "test", Password: "test"}, {Username: user, Password: password}}, "test"
	}
}

// load publishes until end is closed, and then sends how many hits are stored.
func (r *rotation) load() {
	js := r.nats.JetStream()
	n := 0
	every := time.NewTicker(10 * time.Millisecond)
	defer every.Stop()
	for {
		select {
		case <-r.end:
			r.stored <- n
			return
		case <-every.C:
		}
		if _, err := js.Publish(r.t.Context(), "hits.a", nil); err != nil {
			r.t.Errorf("publish: %v", err)
			r.stored <- n
			return
		}
		n++
	}
}

// awaitProgress waits until hits that are published from now on are counted.
func (r *rotation) awaitProgress(after string) {
	r.t.Helper()
	was := int64(-1)
	stack.Eventually(r.t, "hits to be counted "+after, func() (bool, string) {
		total, asOf, err := stack.FetchTotal(r.query.URL(), "a", "1h")
		if err == nil && was < 0 {
			was = total.Total
		}
		fresh := err == nil && time.Since(asOf) < 3*time.Second
		return was >= 0 && total.Total > was && fresh, fmt.Sprintf("%+v as of %v, %v", total, asOf, err)
	})
}

// Secrets in files change while hits come in, in the order in which one should do it and in the other, and as
// files that cannot be used. All hits count, each once.
func TestSecretsAreRotatedUnderLoad(t *testing.T) {
	t.Parallel()
	r := &rotation{t: t, redis: stack.Redis(t), dir: t.TempDir(), end: make(chan struct{}), stored: make(chan int, 1)}
	r.nats = stack.NATS(t, allowOnly("counter", "n-one"))
	stack.NewUser(t, r.redis, "counter", "r-one", stack.RightsOf(t, "ingest")...)
	r.put("redis", "r-one\n")
	r.put("redis-url", "redis://counter:r-one@"+r.redis.Addr()+"/0\n")
	r.put("nats", "n-one\n")
	r.put("nats-url", "nats://counter:n-one@"+strings.TrimPrefix(r.nats.URL(), "nats://")+"\n")
	r.ingest = stack.Ingest(t, r.nats, redisAt("redis://counter@"+r.redis.Addr()+"/0"),
		"REDIS_PASSWORD_FILE="+r.file("redis"), "NATS_USER=counter", "NATS_PASSWORD_FILE="+r.file("nats"))
	r.query = stack.Query(t, nil, "REDIS_URL_FILE="+r.file("redis-url"), "NATS_URL_FILE="+r.file("nats-url"))
	r.query.WaitForLog("answering on NATS")
	go r.load()
	r.awaitProgress("at first")

	redis := func(password string) {
		r.put("redis", password)
		r.put("redis-url", "redis://counter:"+password+"@"+r.redis.Addr()+"/0")
	}
	r.acl(">r-two")
	redis("r-two")
	r.acl("<r-one")
	r.cutConnections()
	r.awaitProgress("with the second password of Redis")

	r.put("redis", "\n")
	r.put("redis-url", "redis://counter:r-broken@")
	for range 3 {
		r.cutConnections()
		r.awaitProgress("with a file that cannot be used")
	}
	for _, p := range []*stack.Service{r.ingest, r.query} {
		require.Equal(t, 1, strings.Count(p.Logs(), "file of a secret of Redis not read again"))
	}
	r.acl("resetpass", ">r-three") // the file has it only once connections are refused
	r.cutConnections()
	stack.Eventually(t, "a connection to be refused", func() (bool, string) {
		log, err := r.redis.Client().Do(t.Context(), "acl", "log").Slice()
		return len(log) > 0, fmt.Sprint(log, err)
	})
	redis("r-three")
	r.awaitProgress("with the third password of Redis")

	back := func(p *stack.Service, password string) {
		t.Helper()
		was := strings.Count(p.Logs(), "NATS back")
		r.nats.Reload(allowOnly("counter", password)) // cuts those who are connected with another
		if password == "n-three" {                    // the file has it only once connections are refused
			p.WaitForLog("uthorization")
			r.put("nats", password)
			r.put("nats-url", "nats://counter:"+password+"@"+strings.TrimPrefix(r.nats.URL(), "nats://"))
		}
		stack.Eventually(t, "a connection with "+password, func() (bool, string) {
			return strings.Count(p.Logs(), "NATS back") > was, ""
		})
		r.awaitProgress("with " + password + " of NATS")
	}
	r.put("nats", "n-two")
	r.put("nats-url", "nats://counter:n-two@"+strings.TrimPrefix(r.nats.URL(), "nats://"))
	back(r.ingest, "n-two")
	back(r.ingest, "n-three")
	eventuallySays(t, r.query.URL()+"/v1/streams", http.StatusOK, "") // over the connection with the URL from a file

	close(r.end)
	stack.EventuallyTotal(t, r.query.URL(), "a", "1h", int64(<-r.stored))
	require.Empty(t, failedCommits.FindString(metrics(t, r.ingest)), "commits failed")
	r.ingest.WaitReady()
	for _, p := range []*stack.Service{r.ingest, r.query} {
		for _, secret := range []string{"r-one", "r-two", "r-three", "r-broken", "n-one", "n-two", "n-three"} {
			require.NotContains(t, p.Logs(), secret)
		}
	}
}
