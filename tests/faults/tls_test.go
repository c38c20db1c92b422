package faults_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// question is a request to a program, and what shows that Redis has answered it.
type question struct {
	name, url, body, want string
}

// ask reports whether Redis has answered, and what was said.
func (q *question) ask(client *http.Client) (ok bool, said string) {
	method := http.MethodGet
	if q.body != "" {
		method = http.MethodPost
	}
	req, err := http.NewRequest(method, q.url, strings.NewReader(q.body))
	if err != nil {
		return false, err.Error()
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return false, err.Error()
	}
	defer resp.Body.Close()
	var text json.RawMessage
	_ = json.NewDecoder(resp.Body).Decode(&text)
	return resp.StatusCode == http.StatusOK && strings.Contains(string(text), q.want), resp.Status + " " + string(text)
}

// Redis goes and comes back while the pools of the programs are full of idle connections to it. From the
// moment at which a new client gets an answer, Redis decides and answers everything, over TLS as without it:
// the connections that are gone are no outage. The worker counts on, and logs none.
func TestNothingIsDecidedWithoutRedisOnceItIsBack(t *testing.T) {
	t.Parallel()
	certificate := stack.NewCertificate(t)
	restart := func(t *testing.T) (stack.Endpoint, []*stack.RedisServer, func()) {
		s := stack.Redis(t, stack.RedisTLS(certificate))
		return s, []*stack.RedisServer{s}, func() { s.Kill(); s.Start() }
	}
	for name, c := range map[string]struct {
		tls   bool
		learn int // questions that may fail: while a client learns of a cluster's new master, each once
		start func(*testing.T) (redis stack.Endpoint, servers []*stack.RedisServer, leave func())
	}{
		"restarted":           {false, 0, restart},
		"restarted, over TLS": {true, 0, restart},
		"Sentinels fail over, over TLS": {true, 0, func(t *testing.T) (stack.Endpoint, []*stack.RedisServer, func()) {
			s := stack.Sentinels(t, 1, stack.RedisTLS(certificate))
			return s, s.Servers, func() { s.Servers[0].Kill(); s.WaitOK() }
		}},
		"a cluster fails over, over TLS": {true, 18, func(t *testing.T) (stack.Endpoint, []*stack.RedisServer, func()) {
			s := stack.Cluster(t, 1, stack.RedisTLS(certificate))
			return s, s.Nodes, func() { s.MasterOf(shardKey(0)).Kill(); s.WaitOK() }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if name != "restarted, over TLS" {
				onlyInAll(t)
			}
			t.Parallel()
			redis, servers, leave := c.start(t)
			if c.tls {
				redis = stack.OverTLS(certificate, redis)
			}
			s := startServersOn(t, redis)
			worker := s.startWorker(redis)
			file := filepath.Join(t.TempDir(), "limits.yml")
			require.NoError(t, os.WriteFile(file, []byte(`limits:
  - {name: closed, window: 1h, max: 1000000, fail: closed}
  - {name: local, window: 1h, max: 1000000, fail: local}
`), 0o600))
			query, promql := stack.Query(t, redis, "QUERY_LIMITS_FILE="+file), stack.PromQL(t, redis)
			questions := []question{
				{"total", query.URL() + "/v1/total?key=c-0&window=1h", "", `"total":`},
				{"promql", promql.URL() + "/api/v1/query?query=" + url.QueryEscape(`sum_over_time(tallyroll_hits{key="c-0"}[1h])`), "", `"status":"success"`},
			}
			for _, limit := range []string{"closed", "local"} {
				for key := range 8 { // on all nodes of a cluster
					questions = append(questions, question{limit, query.URL() + "/v1/take", fmt.Sprintf(`{"limit":%q,"key":"k%d"}`, limit, key), `"source":"redis"`})
				}
			}
			l := startLoad(s, "c", false, 100)
			s.awaitProgress(l)
			l.finish()
			s.countedUpTo(l, time.Now())
			client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
			t.Cleanup(client.CloseIdleConnections)

			fillPools(t, client, servers, questions)
			worker.Pause()
			leave()
			awaitPong(t, redis)
			worker.Resume()
			without, last := 0, ""
			for range 40 {
				for i := range questions {
					if ok, said := questions[i].ask(client); !ok {
						without++
						last = questions[i].name + ": " + said
					}
				}
			}
			require.LessOrEqual(t, without, c.learn, "of %d questions were answered without Redis, the last: %s", 40*len(questions), last)
			counted := s.countedUpTo(l, time.Now())
			t.Logf("counted again after %v", counted.Round(time.Millisecond))
			require.NotContains(t, worker.Logs(), "Redis lost")
		})
	}
}

// fillPools has the programs open all connections of their pools, because Redis is slow for a moment.
func fillPools(t *testing.T, client *http.Client, servers []*stack.RedisServer, questions []question) {
	t.Helper()
	for i := range questions {
		q := &questions[i]
		stack.Eventually(t, q.name, func() (bool, string) { return q.ask(client) })
	}
	for _, server := range servers {
		require.NoError(t, server.Client().ClientPause(t.Context(), 300*time.Millisecond).Err())
	}
	var asking sync.WaitGroup
	for range 4 {
		for i := range questions {
			asking.Go(func() { questions[i].ask(client) })
		}
	}
	asking.Wait()
	for i := range questions {
		q := &questions[i]
		stack.Eventually(t, q.name, func() (bool, string) { return q.ask(client) })
	}
}

// awaitPong waits until a new client gets an answer from the masters.
func awaitPong(t *testing.T, redis stack.Endpoint) {
	t.Helper()
	stack.Eventually(t, "Redis to answer a new client", func() (bool, string) {
		client := stack.ProgramClientOf(t, redis)
		for i := range 16 {
			if err := client.Del(t.Context(), shardKey(i)).Err(); err != nil {
				return false, err.Error()
			}
		}
		return true, ""
	})
}
