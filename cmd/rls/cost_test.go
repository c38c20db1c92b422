package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/credentials/insecure"

	"tallyroll/tests/stack"
)

// What a decision costs over gRPC, and over HTTP beside it: query and rls decide in turn, about the same keys in the same
// Redis. docs/benchmarks.md has the figures.
//
//	BENCH=1 go test -count=1 -v -run '^TestCost$' .        in cmd/rls; RUNS=9, or 5
func TestCost(t *testing.T) {
	if os.Getenv("BENCH") == "" {
		t.Skip("it takes half a minute and asserts nothing: BENCH=1 runs it")
	}
	runs, err := strconv.Atoi(os.Getenv("RUNS"))
	if err != nil {
		runs = 5
	}
	redis := stack.Redis(t)
	r := start(t, redis, "limits:\n- {name: one, window: 1m, max: 1000000000, envoy: {domain: edge, descriptor: [{key: user}]}}\n")
	query := stack.Query(t, redis, "QUERY_LIMITS_FILE="+r.file, "QUERY_TAKE_TIMEOUT=5s", stack.NoWait)
	stack.Eventually(t, soon, "query to take", func() (bool, string) {
		status, text, err := stack.Do(http.MethodGet, query.URL()+"/readyz/takes", nil)
		return err == nil && status == http.StatusOK, string(text)
	})
	var clients []rls.RateLimitServiceClient
	for range 4 { // an Envoy has a connection for each of its workers
		clients = append(clients, rls.NewRateLimitServiceClient(dial(t, r.addr, insecure.NewCredentials())))
	}
	web := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: askers}}
	ways := []*way{
		{name: "query, HTTP", pid: query.PID(), ask: func(ctx context.Context, i int) error {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, query.URL()+"/v1/take", strings.NewReader(`{"limit":"one","key":"`+userOf(i)+`"}`))
			if err != nil {
				return err
			}
			resp, err := web.Do(req)
			if err != nil {
				return err
			}
			defer resp.Body.Close()
			var text [1024]byte
			for err == nil {
				_, err = resp.Body.Read(text[:])
			}
			if resp.StatusCode != http.StatusOK {
				return fmt.Errorf("status %d", resp.StatusCode)
			}
			return nil
		}},
		{name: "rls, gRPC", pid: r.PID(), ask: func(ctx context.Context, i int) error {
			out, err := clients[i%len(clients)].ShouldRateLimit(ctx, &rls.RateLimitRequest{Domain: "edge", Descriptors: []*ratelimit.RateLimitDescriptor{descriptor("user=" + userOf(i))}})
			if err == nil && out.OverallCode != rls.RateLimitResponse_OK {
				err = fmt.Errorf("it is %s", codesOf(out))
			}
			return err
		}},
	}
	for run := range runs + 1 {
		for _, w := range ways {
			rate, cost := w.measure(t)
			if run > 0 { // the first one warms up
				w.rates, w.costs = append(w.rates, rate), append(w.costs, cost)
			}
		}
	}
	var rates, costs []float64
	for i := range runs {
		rates = append(rates, ways[1].rates[i]/ways[0].rates[i])
		costs = append(costs, ways[1].costs[i]/ways[0].costs[i])
	}
	for _, w := range ways {
		t.Logf("%s: %.0f decisions per second, %.1f µs of the program's processor time each (medians of %d)", w.name, median(w.rates), median(w.costs), runs)
	}
	t.Logf("gRPC to HTTP, medians of the ratios: %.2f times as many decisions per second, %.2f times the processor time", median(rates), median(costs))
}

const (
	askers     = 64
	measureFor = 2 * time.Second
)

func userOf(i int) string { return "user-" + strconv.Itoa(i%1000) }

// way is one of the programs that are compared.
type way struct {
	name         string
	pid          int
	ask          func(ctx context.Context, i int) error
	rates, costs []float64
}

// measure is how many decisions there are per second, and how many microseconds of processor the program takes for each.
func (w *way) measure(t *testing.T) (rate, cost float64) {
	t.Helper()
	var group sync.WaitGroup
	var done atomic.Int64
	before, began := processorTime(t, w.pid), time.Now()
	for a := range askers {
		group.Go(func() {
			for i := a; time.Since(began) < measureFor; i += askers {
				if err := w.ask(t.Context(), i); err != nil {
					t.Errorf("%s: %v", w.name, err)
					return
				}
				done.Add(1)
			}
		})
	}
	group.Wait()
	took := time.Since(began)
	return float64(done.Load()) / took.Seconds(), float64((processorTime(t, w.pid) - before).Microseconds()) / float64(done.Load())
}

// processorTime is what a process has taken so far.
func processorTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		t.Skip("only Linux says how much processor time a process has taken")
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every machine that Go runs on
	_, after, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(after)
	user, errUser := strconv.Atoi(fields[11])
	system, errSystem := strconv.Atoi(fields[12])
	if errUser != nil || errSystem != nil {
		t.Fatalf("%s: %v %v", text, errUser, errSystem)
	}
	return time.Duration(user+system) * tick
}

func median(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}
