package drills_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// site is the whole of Tallyroll in one place.
type site struct {
	t      *testing.T
	drill  *drill
	nats   *stack.NATSProc
	store  string // of NATS
	redis  *stack.RedisServer
	conf   string // of Redis
	ingest *stack.Service
	query  *stack.Service

	padding int // of each message, in bytes
}

// build starts a site, and takes its first hits.
func (d *drill) build(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, drill: d, store: t.TempDir()}
	s.nats = stack.NATSProcess(t, "--store_dir", s.store)
	s.startCounts()
	s.publish(d.size)
	s.settle()
	return s
}

// startCounts starts all but NATS.
func (s *site) startCounts() {
	s.conf = filepath.Join(s.t.TempDir(), "redis.conf")
	s.configure("yes")
	s.redis = stack.Redis(s.t, stack.RedisConfig(s.conf))
	s.ingest = stack.Ingest(s.t, s.nats, s.redis)
	s.query = stack.Query(s.t, s.redis)
}

// configure writes redis.conf.
func (s *site) configure(appendonly string) {
	s.t.Helper()
	text := "appendonly " + appendonly + "\nappendfsync everysec\nsave \"\"\nmaxmemory-policy noeviction\n"
	require.NoError(s.t, os.WriteFile(s.conf, []byte(text), 0o600))
}

// load publishes until the function that it returns is called.
func (s *site) load() (stop func()) {
	ctx, cancel := context.WithCancel(s.t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			s.publish(s.drill.size / 50)      // to its end: what is unknown cannot be compared
			time.Sleep(20 * time.Millisecond) // the rate of the load; nothing waits for it
		}
	})
	stop = func() { cancel(); running.Wait() }
	s.t.Cleanup(stop)
	return stop
}

const (
	counters = 50
	batch    = 20
)

var run atomic.Int64

// publish publishes some hits, and returns when all are acknowledged. A message without an answer is
// published again under the same Nats-Msg-Id.
func (s *site) publish(hits int) {
	conn, err := nats.Connect(s.nats.URL(), nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond), nats.ReconnectBufSize(-1), nats.RetryOnFailedConnect(true))
	if err != nil {
		s.t.Error(err)
		return
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		s.t.Error(err)
		return
	}
	prefix, left := run.Add(1), atomic.Int64{}
	left.Store(int64(hits+batch-1) / batch)
	var senders sync.WaitGroup
	for range 8 {
		senders.Go(func() {
			for {
				n := left.Add(-1)
				if n < 0 {
					return
				}
				counter := "c" + strconv.Itoa(int(n)%counters)
				m := &nats.Msg{Subject: "hits.drill", Data: []byte(strings.Repeat(`{"key":"`+counter+`"}`+"\n", batch) + strings.Repeat(" ", s.padding))}
				for {
					once, done := context.WithTimeout(s.t.Context(), 2*time.Second)
					ack, err := js.PublishMsg(once, m, jetstream.WithMsgID(fmt.Sprintf("%d-%d", prefix, n)))
					done()
					if err == nil {
						s.drill.stored(counter, ack.Sequence)
						break
					}
					if s.t.Context().Err() != nil {
						return
					}
				}
			}
		})
	}
	senders.Wait()
}

// settle waits until everything that is stored is counted, and returns how far the totals are from what was
// published.
func (s *site) settle() (lost, double int64) {
	s.t.Helper()
	published := s.drill.published()
	at := time.Now()
	var answer stack.Answer
	stack.Eventually(s.t, "as_of to pass the last hit", func() (bool, string) {
		var err error
		answer, err = stack.FetchTotals(s.query.URL(), url.Values{"key": slices.Sorted(maps.Keys(published)), "window": {"24h"}})
		return err == nil && answer.AsOf.After(at), fmt.Sprint(answer.AsOf, err)
	})
	for _, total := range answer.Totals {
		lost += max(0, published[total.Key]-total.Total)
		double += max(0, total.Total-published[total.Key])
	}
	return lost, double
}

var incompleteMark = regexp.MustCompile(`(?m)^tallyroll_ingest_(?:incomplete_marks|discarded_messages)_total\{.*\} ([0-9.]+)$`)

// isLossReported reports whether the worker has reported that hits may be missing or count twice.
func (s *site) isLossReported() bool {
	s.t.Helper()
	status, body, err := stack.Do(http.MethodGet, s.ingest.URL()+"/metrics", nil)
	if err != nil || status != http.StatusOK {
		s.t.Fatalf("metrics of ingest: %d %v", status, err)
	}
	for _, found := range incompleteMark.FindAllSubmatch(body, -1) {
		if string(found[1]) != "0" {
			return true
		}
	}
	return false
}

// config sets a setting of Redis.
func (s *site) config(name, value string) {
	s.t.Helper()
	require.NoErrorf(s.t, s.redis.Client().ConfigSet(s.t.Context(), name, value).Err(), "CONFIG SET %s %s", name, value)
}

// awaitPersisted waits until INFO persistence of Redis has a line.
func (s *site) awaitPersisted(lines ...string) {
	s.t.Helper()
	stack.Eventually(s.t, strings.Join(lines, ", "), func() (bool, string) {
		info, err := s.redis.Client().Info(s.t.Context(), "persistence").Result()
		for _, line := range lines {
			if err == nil && !strings.Contains(info, line+"\r\n") {
				return false, info
			}
		}
		return err == nil, fmt.Sprint(err)
	})
}

// empty removes all that is in a folder.
func (s *site) empty(dir string) {
	s.t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(s.t, err)
	for _, e := range entries {
		require.NoError(s.t, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
}

func (s *site) copy(from, to string) {
	s.t.Helper()
	require.NoError(s.t, os.CopyFS(to, os.DirFS(from)))
}
