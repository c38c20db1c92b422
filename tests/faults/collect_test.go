package faults_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tallyroll/tests/stack"
)

const httpClients = 16 // of each kind

// poster is one client of collect with a counter of its own, and the answers that it got.
type poster struct {
	counter                  string
	keyed                    bool
	stored, refused, unknown int64
}

// post sends one hit until its fate is settled: with a key until it is stored, without one once.
func (p *poster) post(ctx context.Context, client *http.Client, collect *stack.Service, n int) error {
	for {
		body := fmt.Sprintf(`{"key":%q}`, p.counter)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, collect.URL()+"/v1/hits", bytes.NewReader([]byte(body)))
		if err != nil {
			return err
		}
		req.GetBody = nil // the transport sends nothing again by itself
		if p.keyed {
			req.Header.Set("Idempotency-Key", fmt.Sprintf("%s-%d", p.counter, n))
		}
		status := 0
		resp, err := client.Do(req)
		if err == nil {
			status = resp.StatusCode
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case status == http.StatusAccepted:
			p.stored++
			return nil
		case status == http.StatusServiceUnavailable:
			p.refused++
		case status == http.StatusGatewayTimeout || err != nil:
			p.unknown++
		default:
			return fmt.Errorf("status %d", status)
		}
		select { // a client that is refused does not ask at once again
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		if !p.keyed {
			return nil
		}
	}
}

// postAll posts from many clients until stop is called, which returns them when the last hit is settled.
func postAll(t *testing.T, collect *stack.Service) (stored func() int64, stop func() []*poster) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), stack.Hung)
	t.Cleanup(cancel)
	client := &http.Client{Timeout: stack.Hung, Transport: &http.Transport{MaxIdleConnsPerHost: 2 * httpClients}}
	t.Cleanup(client.CloseIdleConnections)
	var ended atomic.Bool
	var sum atomic.Int64
	var posters []*poster
	var wg sync.WaitGroup
	for i := range 2 * httpClients {
		p := &poster{counter: fmt.Sprintf("h-%d", i), keyed: i%2 == 0}
		posters = append(posters, p)
		wg.Go(func() {
			for n := 0; !ended.Load(); n++ {
				before := p.stored
				if err := p.post(ctx, client, collect, n); err != nil {
					t.Errorf("%s: %v", p.counter, err)
					return
				}
				sum.Add(p.stored - before)
			}
		})
	}
	t.Cleanup(func() { ended.Store(true); cancel(); wg.Wait() })
	return sum.Load, func() []*poster {
		ended.Store(true)
		wg.Wait()
		return posters
	}
}

// requireStored demands that each counter agrees with its client's answers: every 202 is stored once, no 503
// is, and a request without an answer is stored at most once.
func (s *system) requireStored(posters []*poster) {
	s.t.Helper()
	l := newLoad(s, "marker", true)
	marker := message{subject: "hits.marker-0", hits: map[string]int64{l.counter(0): 1}}
	l.publish(s.t.Context(), marker)
	s.countedUpTo(l, time.Now())
	var names []string
	for _, p := range posters {
		names = append(names, p.counter)
	}
	answer := s.mustAsk(names)
	var stored, refused, unknown int64
	for i, p := range posters {
		stored, refused, unknown = stored+p.stored, refused+p.refused, unknown+p.unknown
		most := p.stored
		if !p.keyed {
			most += p.unknown
		}
		if got := answer.Totals[i].Total; got < p.stored || got > most {
			s.t.Errorf("%s (keys: %v): told that %d are stored, %d refused, %d unknown; counted %d", p.counter, p.keyed, p.stored, p.refused, p.unknown, got)
		}
	}
	s.t.Logf("202: %d, 503: %d, unknown: %d", stored, refused, unknown)
	if refused+unknown == 0 {
		s.t.Error("every request was stored at once: nothing was tried")
	}
}

// awaitStored waits until more hits are stored.
func awaitStored(t *testing.T, stored func() int64) {
	t.Helper()
	before := stored()
	stack.Eventually(t, "more hits to be stored", func() (bool, string) {
		return stored() > before+20, fmt.Sprint(stored() - before)
	})
}

// NATS is killed in the middle of a load over HTTP: every 202 counts exactly once, nothing that was refused
// does, and with an Idempotency-Key and retries everything counts exactly once.
func TestCollectStoresHitsOnceWhileNATSIsKilled(t *testing.T) {
	onlyInAll(t)
	t.Parallel()
	s := start(t)
	collect := stack.Collect(t, s.nats)
	stored, stop := postAll(t, collect)
	for range rounds(1, 3, 30) {
		awaitStored(t, stored)
		sleepUpTo(300 * time.Millisecond)
		s.nats.Kill()
		sleepUpTo(500 * time.Millisecond)
		s.nats.Start()
	}
	awaitStored(t, stored)
	s.requireStored(stop())
}

// NATS hangs for longer than requests wait: what was sent is unknown, and never said to be refused.
func TestCollectStoresHitsOnceWhileNATSHangs(t *testing.T) {
	onlyInAll(t)
	t.Parallel()
	s := start(t)
	collect := stack.Collect(t, s.nats, "COLLECT_TIMEOUT=1s")
	stored, stop := postAll(t, collect)
	for range rounds(1, 1, 5) {
		awaitStored(t, stored)
		sleepUpTo(300 * time.Millisecond)
		s.nats.Pause()
		time.Sleep(15 * time.Second) // until its clients leave it: two pings of four seconds
		s.nats.Resume()
	}
	awaitStored(t, stored)
	s.requireStored(stop())
}

// Collect itself is killed: clients with keys send again, and each hit counts once.
func TestHitsAreStoredOnceIfCollectIsKilled(t *testing.T) {
	t.Parallel()
	s := start(t)
	collect := stack.Collect(t, s.nats)
	stored, stop := postAll(t, collect)
	for i := range rounds(1, 3, 30) {
		awaitStored(t, stored)
		sleepUpTo(300 * time.Millisecond)
		collect.Kill()
		if i == 0 { // both, so that some are refused
			s.nats.Kill()
			s.nats.Start()
		}
		collect.Start()
	}
	awaitStored(t, stored)
	s.nats.Kill()
	sleepUpTo(300 * time.Millisecond)
	s.nats.Start()
	awaitStored(t, stored)
	s.requireStored(stop())
}
