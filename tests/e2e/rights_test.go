package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// guarded are servers with the users of deploy/nats-permissions.conf and deploy/redis-users.acl, who all have
// the password secret.
type guarded struct {
	t     *testing.T
	nats  *stack.Process
	redis *stack.RedisServer
}

// secretHash is bcrypt's of secret, made to be checked fast.
const secretHash = "$2a$04$NlGIv4Iumz342HbIusl/EeeidzitgvDI7HnaJ694FLVYLgQ/b6ple"

// readFilled writes a file of deploy into a directory of the test's own, with replacements.
func readFilled(t *testing.T, file, pattern, by string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), file)
	write(t, path, regexp.MustCompile(pattern).ReplaceAllLiteralString(read(t, "../../deploy/"+file), by))
	return path
}

func natsWith(t *testing.T, permissions string) *stack.Process {
	t.Helper()
	config := filepath.Join(filepath.Dir(permissions), "nats.conf")
	write(t, config, fmt.Sprintf("jetstream { store_dir: %q }\ninclude %s\n", t.TempDir(), filepath.Base(permissions)))
	return stack.Server(t, stack.NATSServer(t), func(port int) (args, env []string) {
		return []string{"--addr", "127.0.0.1", "--port", strconv.Itoa(port), "--config", config}, nil
	})
}

func startGuarded(t *testing.T) *guarded {
	t.Helper()
	g := &guarded{t: t, nats: natsWith(t, readFilled(t, "nats-permissions.conf", `\$2a\$11\$[A-Z]+`, secretHash))}
	// The harness is the default user, who is off in the file.
	g.redis = stack.Redis(t)
	for _, user := range regexp.MustCompile(`(?m)^user (\S+) on`).FindAllStringSubmatch(read(t, "../../deploy/redis-users.acl"), -1) {
		stack.NewUser(t, g.redis, user[1], secret, stack.RightsOf(t, user[1])...)
	}
	return g
}

// as is the environment of a program with a user of NATS, or of Redis, or both.
func (g *guarded) as(nats, redis string) []string {
	env := []string{"REDIS_URL=redis://" + redis + ":" + secret + "@" + g.redis.Addr() + "/0", "NATS_URL="}
	if nats != "" {
		env = append(env, "NATS_URL=nats://"+g.nats.Addr(), "NATS_USER="+nats, "NATS_PASSWORD="+secret, "NATS_INBOX_PREFIX=_INBOX_"+nats)
	}
	return env
}

// conn is the connection of a user.
func (g *guarded) conn(user string, opts ...nats.Option) *nats.Conn {
	g.t.Helper()
	conn, err := nats.Connect("nats://"+g.nats.Addr(), append(opts, nats.UserInfo(user, secret), nats.CustomInboxPrefix("_INBOX_"+user))...)
	require.NoErrorf(g.t, err, "connect as %s", user)
	g.t.Cleanup(conn.Close)
	return conn
}

// run runs a program that ends, as users of its own name.
func (g *guarded) run(program, stdin, want string, args ...string) {
	g.t.Helper()
	code, out := runToEndWith(g.t, program, strings.NewReader(stdin), args, g.as(program, program)...)
	if code != 0 || !strings.Contains(out, want) {
		g.t.Errorf("%s %v ends with %d and %q, want %q", program, args, code, out, want)
	}
}

// ask asks a service, whose answer has to have some text.
func (g *guarded) ask(method, url string, body any, want int, text string) {
	g.t.Helper()
	status, answer, err := stack.Do(method, url, body)
	if err != nil || status != want || !strings.Contains(string(answer), text) {
		g.t.Errorf("%s %s: %d %s %v, want %d and %s", method, url, status, answer, err, want, text)
	}
}

// With the users of deploy everything works, and nobody lacks a right or has one of another.
func TestUsersNeedOnlyTheRightsThatTheDocsGive(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	admin := jetStreamOf(t, g.conn("admin"))
	stack.Eventually(t, "JetStream", func() (bool, string) {
		_, err := admin.AccountInfo(t.Context())
		return err == nil, fmt.Sprint(err)
	})
	g.requireCounts(admin)
	g.requireNoMissingRight()
	g.requireRefusalsOnNATS(admin)
	g.requireRefusalsOnRedis()
}

// requireCounts goes through what the programs do.
func (g *guarded) requireCounts(admin jetstream.JetStream) {
	t := g.t
	ingest := stack.Ingest(t, nil, nil, append(g.as("ingest", "ingest"), "INGEST_WORKER=one")...) // makes its streams
	query := stack.Query(t, nil, g.as("query", "query")...)
	takes := stack.Query(t, nil, append(g.as("", "query-take"), "QUERY_TAKE=any", limitsFile(t, "limits: [{name: login, window: 1h, max: 5}]"))...)
	erases := stack.Query(t, nil, append(g.as("", "query-erase"), "QUERY_TAKE=any", "QUERY_ERASE=on")...)
	promql := stack.PromQL(t, nil, g.as("", "promql")...)
	collect := stack.Collect(t, nil, g.as("collect", "none")...)
	total := func(key string, want int64) {
		t.Helper()
		stack.EventuallyTotal(t, query.URL(), key, "24h", want)
	}

	producer := jetStreamOf(t, g.conn("producer"))
	for _, body := range []string{"", `{"key":"a","n":4,"unique":"x"}`, "no hit"} {
		_, err := producer.Publish(t.Context(), "hits.a", []byte(body))
		require.NoError(t, err)
	}
	g.run("publish", "{\"key\":\"b\"}\n{\"key\":\"b\",\"n\":2,\"ts\":1}\n", "published 2 hits", "--format", "ndjson")
	for range 2 {
		status, text := post(collect, `{"key":"c","n":3}`, "Idempotency-Key", "once")
		require.Equal(t, http.StatusAccepted, status, text)
	}
	total("a", 5)
	total("b", 1)
	total("c", 3)
	g.run("redrive", "", "sent 1 again", "--ts", "now")
	total("b", 3)

	second := stack.Ingest(t, nil, nil, append(g.as("ingest", "ingest"), "INGEST_WORKER=two")...)
	_, err := admin.CreateStream(t.Context(), jetstream.StreamConfig{Name: "HITS_EU", Subjects: []string{"eu.>"}})
	require.NoError(t, err)
	_, err = admin.Publish(t.Context(), "eu.d", nil)
	require.NoError(t, err)
	total("d", 1)
	eventuallyAnswers(t, query.URL()+"/v1/streams", "two streams, two workers and a reject", func(a streamsAnswer) bool {
		return len(a.Streams) == 2 && len(a.Workers) == 2 && a.Streams[0].Worker != "" && a.Streams[1].Worker != "" && a.Streams[0].Rejects == 1
	})
	second.Stop()
	eventuallyAnswers(t, query.URL()+"/v1/rejects", "the reject", func(a rejectsAnswer) bool {
		return len(a.Rejects) == 1 && a.Rejects[0].Body == "no hit"
	})
	reply, err := g.conn("reader").Request("tallyroll.total", []byte(`{"keys":["a"],"windows":["24h"]}`), stack.Hung)
	if err != nil || !strings.Contains(string(reply.Data), `"total":5`) {
		t.Errorf("over NATS: %v %v", reply, err)
	}

	for _, service := range []*stack.Service{query, takes, erases} {
		for path, text := range map[string]string{
			"/v1/series?key=a&step=1m": `"points"`, "/v1/top?window=1h": `"key":"a"`, "/v1/counters": `"a"`, "/v1/total?prefix=a&window=1h": `"total":5`,
			"/v1/uniques?key=a&window=1h": `"estimate":1`, "/v1/export?step=1h": "key,from,to,hits", "/v1/about": `"tiers"`, "/v1/limit?key=a&window=1h&max=5": `"allowed":false`, "/probe?key=a&window=1h": "tallyroll_window_hits",
		} {
			g.ask(http.MethodGet, service.URL()+path, nil, http.StatusOK, text)
		}
	}
	g.ask(http.MethodGet, promql.URL()+"/api/v1/query?query="+`sum(sum_over_time(tallyroll_hits[1h]))`, nil, http.StatusOK, `"success"`)
	g.ask(http.MethodGet, promql.URL()+"/api/v1/label/key/values", nil, http.StatusOK, `"a"`)
	heard, err := admin.Conn().SubscribeSync("tallyroll.alert")
	require.NoError(t, err)
	_, err = producer.Publish(t.Context(), "hits.nearly.login.k", nil)
	require.NoError(t, err)
	g.ask(http.MethodPost, takes.URL()+"/v1/take", map[string]any{"limit": "login", "key": "k", "n": 5}, http.StatusOK, `"remaining":0`)
	watch := stack.Watch(t, nil, nil, file(t, "watch.yml", `
targets: {bus: {nats: tallyroll.alert}}
rules:
- {name: one, key: a, window: 1h, above: 1, to: [bus]}
- {name: sum, prefix: a, window: 1h, above: 1, to: [bus]}
- {name: most, top: 3, window: 1h, above: 1, to: [bus]}
- {name: used, limit: login, above: 80%, to: [bus]}
`), append(g.as("watch", "watch"), "WATCH_LIMITS_FILE="+file(t, "counted.yml", `limits: [{name: login, window: 1h, max: 5, count: {nearly: "nearly.{limit}.{key}"}}]`))...)
	if m, err := heard.NextMsg(stack.Hung); err != nil || !strings.Contains(string(m.Data), `"state":"firing"`) {
		t.Errorf("watch tells %v %v", m, err)
	}
	eventuallyAnswers(t, query.URL()+"/v1/watch", "states of four rules", func(a struct{ States, Changes []change }) bool {
		used := slices.ContainsFunc(a.States, func(c change) bool { return c.Rule == "used" && c.State == "firing" && c.Total == 5 })
		return len(a.States) > 5 && a.States[0].State == "firing" && len(a.Changes) > 5 && used
	})
	watch.Stop() // and its stream stands still
	g.run("audit", "", "audit: 13 hits, 5 counters, 0 differences")
	for _, service := range []*stack.Service{takes, erases} {
		for _, policy := range []string{"cells", "log", "stream"} {
			take := map[string]any{"key": service.URL(), "window": "1h", "max": 3, "policy": policy, "n": 3}
			g.ask(http.MethodPost, service.URL()+"/v1/take", take, http.StatusOK, `"source":"redis"`)
			g.ask(http.MethodPost, service.URL()+"/v1/take", take, http.StatusTooManyRequests, `"remaining":0`)
			g.ask(http.MethodDelete, service.URL()+"/v1/limit?key=k&window=1h&policy="+policy, nil, http.StatusNoContent, "")
		}
	}
	maxMemory := func(bytes string) {
		require.NoError(t, g.redis.Client().ConfigSet(t.Context(), "maxmemory", bytes).Err())
	}
	maxMemory("1") // of a full Redis, too
	g.ask(http.MethodDelete, erases.URL()+"/v1/counters?prefix=c&confirm=100", nil, http.StatusOK, `"erased":1`)
	maxMemory("0")
	total("c", 0)

	ingest.Stop()
	for _, order := range []string{"1s/1m,1m/1h,15m/1d,1h/32d,1d/5y", "confirm"} {
		if code, out := runToEnd(t, "ingest", []string{"--retier", order}, g.as("ingest", "retier")...); code != 0 || strings.Contains(out, "checking only Redis") {
			t.Fatalf("ingest --retier %s ends with %d and %s", order, code, out)
		}
	}
	ingest.Start()
	_, err = producer.Publish(t.Context(), "hits.a", nil)
	require.NoError(t, err)
	total("a", 6)
	for _, service := range []*stack.Service{ingest, second, query, takes, erases, promql, collect, watch} {
		for _, bad := range []string{"noperm", "permissions violation", "may not", secret} {
			require.NotContains(t, strings.ToLower(service.Logs()), bad)
		}
	}
}

// Without any one command a worker waits: no total is too high, and none is wrong once it has the right
// again. A worker that starts without transactions ends, with the reason.
func TestNoTotalIsWrongWithoutARight(t *testing.T) {
	t.Parallel()
	g := startGuarded(t)
	admin := jetStreamOf(t, g.conn("admin"))
	stack.Eventually(t, "JetStream", func() (bool, string) {
		_, err := admin.AccountInfo(t.Context())
		return err == nil, fmt.Sprint(err)
	})
	redisAdmin := g.redis.Client()
	stack.Ingest(t, nil, nil, g.as("ingest", "ingest")...)
	query := stack.Query(t, nil, g.as("query", "query")...)
	hits := int64(0)
	publish := func() {
		t.Helper()
		for range 20 {
			_, err := admin.Publish(t.Context(), "hits.a", []byte(`{"unique":"`+strconv.FormatInt(hits, 10)+`"}`))
			require.NoError(t, err)
			hits++
		}
	}
	publish()
	stack.EventuallyTotal(t, query.URL(), "a", "24h", hits)

	var commands []string
	for _, category := range []string{"transaction", "read", "connection"} {
		all, err := redisAdmin.Do(t.Context(), "acl", "cat", category).StringSlice()
		require.NoError(t, err)
		commands = append(commands, all...)
	}
	used := redisAdmin.Info(t.Context(), "commandstats").Val()
	commands = slices.DeleteFunc(commands, func(name string) bool { return !strings.Contains(used, "cmdstat_"+name+":") })
	for _, right := range stack.RightsOf(t, "ingest") {
		if name, ok := strings.CutPrefix(right, "+"); ok && !strings.HasPrefix(name, "@") {
			commands = append(commands, name)
		}
	}
	require.Subset(t, commands, []string{"multi", "exec", "watch", "hmget", "hincrby", "hset"})
	set := func(right string) {
		t.Helper()
		_, err := redisAdmin.TxPipelined(t.Context(), func(p redis.Pipeliner) error {
			p.Do(t.Context(), "acl", "setuser", "ingest", right)
			if right == "-multi" { // not between a commit's two round trips, which would be torn (docs/delivery.md)
				p.Do(t.Context(), "client", "kill", "user", "ingest")
			}
			return nil
		})
		require.NoError(t, err, right)
	}
	for _, command := range commands {
		require.NoError(t, redisAdmin.Do(t.Context(), "acl", "log", "reset").Err())
		set("-" + command)
		publish()
		var held int64
		stack.Eventually(t, "the worker counts or is refused without "+command, func() (bool, string) {
			refused := fmt.Sprint(redisAdmin.Do(t.Context(), "acl", "log").Val())
			total, _, err := stack.FetchTotal(query.URL(), "a", "24h")
			require.NoError(t, err)
			held = total.Total
			return held >= hits || strings.Contains(refused, "object:"+command+" "), refused
		})
		if held > hits {
			t.Errorf("without %s, %d of %d hits are counted", command, held, hits)
		}
		set("+" + command)
		stack.EventuallyTotal(t, query.URL(), "a", "24h", hits)
	}
	g.run("audit", "", fmt.Sprintf("audit: %d hits, 1 counters, 0 differences", hits))

	for _, command := range []string{"multi", "exec", "watch"} {
		set("-" + command)
		if code, out := runToEnd(t, "ingest", nil, g.as("ingest", "ingest")...); code != 2 || !strings.Contains(out, "no permissions to run the '"+command+"' command") {
			t.Errorf("without %s, ingest ends with %d and %s", command, code, out)
		}
		set("+" + command)
		renamed := stack.Redis(t, stack.RedisArgs("--rename-command", command, ""))
		env := append(g.as("ingest", "ingest"), "REDIS_URL="+renamed.URL())
		if code, out := runToEnd(t, "ingest", nil, env...); code != 2 || !strings.Contains(strings.ToLower(out), "unknown command '"+command) {
			t.Errorf("if %s is renamed, ingest ends with %d and %s", command, code, out)
		}
		require.Zero(t, renamed.Client().DBSize(t.Context()).Val())
	}
}

// requireNoMissingRight looks at what the servers have refused.
func (g *guarded) requireNoMissingRight() {
	g.t.Helper()
	if logs := g.nats.Logs(); strings.Contains(logs, "Violation") {
		g.t.Errorf("NATS has refused something:\n%s", logs)
	}
	refused, err := g.redis.Client().Do(g.t.Context(), "acl", "log").Slice()
	require.NoError(g.t, err)
	for _, entry := range refused {
		if text := fmt.Sprint(entry); !strings.Contains(text, "object:info ") { // by which readers only find out what kind of server it is
			g.t.Errorf("Redis has refused something: %s", text)
		}
	}
}

// requireRefusalsOnNATS lets every user try what it may not, and then those who may, and admin, so that no
// row is mistyped.
func (g *guarded) requireRefusalsOnNATS(admin jetstream.JetStream) {
	rows := []struct {
		what, subject, body string
		may                 []string
	}{
		{"count", "hits.x", "", []string{"publish", "redrive", "producer"}},
		{"count elsewhere", "hits.x.y", "", []string{"publish", "producer"}},
		{"count as collect does", "hits.collect", "", []string{"collect", "publish", "redrive", "producer"}},
		{"write a reject", "hits_rejected.HITS", "", []string{"ingest"}},
		{"write of the fleet", "$KV.tallyroll_tallyroll.x", "", []string{"ingest"}},
		{"ask", "tallyroll.total", "{}", []string{"reader"}},
		{"take", "tallyroll.take", "{}", nil},
		{"look at the account", "$JS.API.INFO", "", []string{"ingest"}},
		{"name streams", "$JS.API.STREAM.NAMES", "", []string{"ingest", "redrive", "watch"}},
		{"list streams", "$JS.API.STREAM.LIST", "", []string{"query"}},
		{"read hits", "$JS.API.CONSUMER.CREATE.HITS.x", "{}", []string{"ingest", "audit"}},
		{"read one hit", "$JS.API.STREAM.MSG.GET.HITS", `{"seq":1}`, []string{"ingest", "collect", "redrive", "audit"}},
		{"read rejects", "$JS.API.CONSUMER.CREATE.HITS_REJECTED.x", "{}", []string{"ingest", "query", "audit"}},
		{"remove a reject", "$JS.API.STREAM.MSG.DELETE.HITS_REJECTED", `{"seq":1}`, []string{"redrive"}},
		{"remove a hit", "$JS.API.STREAM.MSG.DELETE.HITS", `{"seq":1}`, nil},
		{"make HITS", "$JS.API.STREAM.CREATE.HITS", "{}", []string{"ingest"}},
		{"make a stream", "$JS.API.STREAM.CREATE.OTHER", "{}", nil},
		{"change a stream", "$JS.API.STREAM.UPDATE.HITS", "{}", nil},
		{"back a stream up", "$JS.API.STREAM.SNAPSHOT.HITS", "{}", nil},
		{"restore a stream", "$JS.API.STREAM.RESTORE.OTHER", "{}", nil},
		{"purge a stream", "$JS.API.STREAM.PURGE.HITS", "", nil},
		{"list consumers", "$JS.API.CONSUMER.LIST.HITS", "", []string{"ingest", "audit"}},
		{"delete a consumer", "$JS.API.CONSUMER.DELETE.HITS.x", "", []string{"ingest", "audit"}},
		{"delete the rejects", "$JS.API.STREAM.DELETE.HITS_REJECTED", "", nil},
		{"set a state", "tallyroll_watch.tallyroll.state.x.y", "{}", []string{"watch"}},
		{"read states", "$JS.API.CONSUMER.CREATE.WATCH_tallyroll.x", "{}", []string{"ingest", "query", "audit", "watch"}},
		{"delete the states", "$JS.API.STREAM.DELETE.WATCH_tallyroll", "", nil},
		{"delete the fleet", "$JS.API.STREAM.DELETE.KV_tallyroll_tallyroll", "", nil},
		{"delete a stream", "$JS.API.STREAM.DELETE.HITS", "", nil},
	}
	listens := map[string][]string{
		">": nil, "hits.>": nil, "hits_rejected.>": nil, "_INBOX.>": nil, "_INBOX_ingest.>": {"ingest"}, "_INBOX_query.x": {"query"},
		"tallyroll.*": {"query"}, "$JS.>": nil, "$JS.EVENT.ADVISORY.STREAM.CREATED.*": {"ingest"}, "$SYS.>": nil, "$KV.>": nil,
	}
	held := func() (out string) {
		list := admin.ListStreams(g.t.Context())
		for info := range list.Info() {
			if !strings.HasPrefix(info.Config.Name, "KV_") {
				out += fmt.Sprintf("%s %d..%d ", info.Config.Name, info.State.FirstSeq, info.State.LastSeq)
			}
		}
		return out
	}
	refused := func(conn *nats.Conn, violations chan error, wanted bool, try func() error) bool {
		within := 20 * time.Millisecond
		if wanted {
			within = stack.Hung // it ends with the refusal
		}
		require.NoError(g.t, errors.Join(try(), conn.FlushTimeout(stack.Hung)))
		select { // a refusal comes before the answer to the flush; its handler is called later
		case <-violations:
			return true
		case <-time.After(within):
			return false
		}
	}
	before := held()
	for _, user := range []string{"ingest", "query", "collect", "publish", "redrive", "audit", "watch", "producer", "reader"} {
		violations := make(chan error, 10)
		conn := g.conn(user, nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
			if errors.Is(err, nats.ErrPermissionViolation) {
				violations <- err
			}
		}))
		for _, row := range rows {
			if !slices.Contains(row.may, user) && !refused(conn, violations, true, func() error { return conn.Publish(row.subject, []byte(row.body)) }) {
				g.t.Errorf("%s may %s: publish to %s", user, row.what, row.subject)
			}
		}
		for subject, may := range listens {
			want := !slices.Contains(may, user)
			if got := refused(conn, violations, want, func() error { _, err := conn.SubscribeSync(subject); return err }); got != want {
				g.t.Errorf("%s is refused to listen to %s: %t, want %t", user, subject, got, want)
			}
		}
	}
	if after := held(); before != after {
		g.t.Errorf("the streams were %s, and are %s", before, after)
	}
	for _, row := range rows {
		if _, err := admin.Conn().Request(row.subject, []byte(row.body), stack.Hung); err != nil {
			g.t.Errorf("admin: %s: %v", row.what, err)
		}
	}
}

// requireRefusalsOnRedis lets every user try what it may not, and asks Redis whether those may who should.
func (g *guarded) requireRefusalsOnRedis() {
	g.t.Helper()
	readers := []string{"ingest", "retier", "query", "query-take", "query-erase", "promql", "watch", "audit", "tallyroll"}
	counts := []string{"ingest", "retier", "tallyroll"}
	limits := []string{"query-take", "query-erase", "rls", "tallyroll"}
	rows := map[string][]string{
		"get tallyroll:layout":                      readers,
		"hmget tallyroll:{0}:cursor:HITS seq":       readers,
		"pfcount tallyroll:{0}:u:5m:1:a":            readers,
		"get other:layout":                          nil,
		"hincrby other:{0}:h:1s:1:a 0 1":            nil,
		"set tallyroll:layout x":                    counts,
		"hset tallyroll:streams a b":                counts,
		"del tallyroll:layout":                      counts,
		"pfadd tallyroll:{0}:u:5m:1:a x":            counts,
		"append tallyroll:{0}:s:1:a x":              counts,
		"hincrby tallyroll:{0}:h:1s:1:a 0 1":        {"ingest", "retier", "query-erase", "tallyroll"},
		"hincrby tallyroll:{0}:limit:a f 1":         {"ingest", "retier", "query-take", "query-erase", "rls", "tallyroll"},
		"xadd tallyroll:{0}:limit:a * f v":          limits,
		"xadd tallyroll:{0}:a * f v":                {"query-erase", "tallyroll"},
		"eval return 0":                             append([]string{"watch"}, limits...),
		"unlink tallyroll:{0}:names:1":              {"retier", "query-erase", "tallyroll"},
		"scan 0":                                    {"retier", "audit", "tallyroll"},
		"config get maxmemory-policy":               counts,
		"bgrewriteaof":                              counts,
		"info":                                      counts,
		"rename tallyroll:{0}:a tallyroll:{0}:b":    {"tallyroll"},
		"config set maxmemory 1":                    nil,
		"keys *":                                    nil,
		"flushall":                                  nil,
		"flushdb":                                   nil,
		"acl list":                                  nil,
		"acl whoami":                                nil,
		"client list":                               nil,
		"client kill type normal":                   nil,
		"latency reset":                             nil,
		"monitor":                                   nil,
		"save":                                      nil,
		"shutdown nosave":                           nil,
		"replicaof 127.0.0.1 1":                     nil,
		"psync ? -1":                                nil,
		"migrate 127.0.0.1 1 tallyroll:layout 0 10": nil,
		"sort tallyroll:layout":                     nil,
		"script flush":                              nil,
		"function flush":                            nil,
		"module list":                               nil,
		"psubscribe *":                              nil,
		"publish tallyroll a":                       nil,
	}
	words := func(command string) (args []any) {
		for word := range strings.FieldsSeq(command) {
			args = append(args, word)
		}
		return args
	}
	allowed := func(user, command string) {
		g.t.Helper()
		answer, err := g.redis.Client().Do(g.t.Context(), append([]any{"acl", "dryrun", user}, words(command)...)...).Text()
		if err != nil || answer != "OK" {
			g.t.Errorf("%s: %s: %s %v", user, command, answer, err)
		}
	}
	for _, user := range append(readers, "rls") { // which reads nothing but limits
		client := redis.NewClient(&redis.Options{Addr: g.redis.Addr(), Username: user, Password: secret, MaxRetries: -1})
		defer client.Close()
		for command, may := range rows {
			if slices.Contains(may, user) {
				allowed(user, command)
			} else if err := client.Do(g.t.Context(), words(command)...).Err(); err == nil || !strings.HasPrefix(err.Error(), "NOPERM") {
				g.t.Errorf("%s: %s: %v, want a refusal", user, command, err)
			}
		}
	}
	for command := range rows { // none of them is mistyped
		allowed("admin", command)
	}
}

// As the files are, they let nobody in.
func TestShippedConfigurationsHaveNoPasswordYet(t *testing.T) {
	t.Parallel()
	permissions := readFilled(t, "nats-permissions.conf", "^$", "")
	whole := filepath.Join(filepath.Dir(permissions), "whole.conf") // as the file says
	write(t, whole, read(t, "../../deploy/nats.conf")+"\ninclude nats-permissions.conf\n")
	if out, err := exec.Command(stack.NATSServer(t), "-t", "-c", whole).CombinedOutput(); err != nil {
		t.Errorf("nats-server -t: %v\n%s", err, out)
	}
	server := natsWith(t, permissions)
	users := regexp.MustCompile(`user: (\w+), password: "([^"]*)"`).FindAllStringSubmatch(read(t, permissions), -1)
	if len(users) != 11 {
		t.Fatalf("NATS has the users %q", users)
	}
	for _, user := range append(users, []string{"", "", ""}) {
		for _, password := range []string{"", user[1], user[2], strings.ToUpper(user[1])} {
			if conn, err := nats.Connect("nats://"+server.Addr(), nats.UserInfo(user[1], password)); !errors.Is(err, nats.ErrAuthorization) {
				t.Errorf("%q with %q: %v %v", user[1], password, conn, err)
			}
		}
	}

	acl := readFilled(t, "redis-users.acl", "^$", "")
	path, err := exec.LookPath("redis-server")
	require.NoError(t, err)
	guarded := stack.Server(t, path, func(port int) (args, env []string) {
		return []string{"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--save", "", "--aclfile", acl}, nil
	})
	names := []string{""}
	for line := range strings.Lines(read(t, acl)) {
		names = append(names, strings.Fields(line)[1])
	}
	for _, name := range names {
		for _, password := range []string{"", name, strings.Repeat("0", 64)} {
			client := redis.NewClient(&redis.Options{Addr: guarded.Addr(), Username: name, Password: password, MaxRetries: -1})
			if err := client.Ping(t.Context()).Err(); err == nil || !strings.HasPrefix(err.Error(), "WRONGPASS") && !strings.HasPrefix(err.Error(), "NOAUTH") {
				t.Errorf("%q with %q: %v", name, password, err)
			}
			_ = client.Close()
		}
	}
}
