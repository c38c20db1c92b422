package main

import (
	"context"
	"sync"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	grpchealth "google.golang.org/grpc/health"
	healthservice "google.golang.org/grpc/health/grpc_health_v1"

	"tallyroll/internal/web"
)

const (
	checkEvery = time.Second
	// checkTimeout bounds one check.
	checkTimeout = 2 * time.Second
	// reportEvery is how long the health service may report an outdated state.
	reportEvery = 100 * time.Millisecond
)

// health checks whether Redis answers, and reports it by gRPC's health service.
type health struct {
	server *grpchealth.Server
	ping   func(context.Context) error
	why    func() string

	mu            sync.Mutex
	checked, lost bool
}

func newHealth(ask func(context.Context) error, why func() string) *health {
	h := &health{server: grpchealth.NewServer(), ping: ask, why: why}
	h.report(false)
	return h
}

func (h *health) run(ctx context.Context, leaving web.Leaving) {
	var looking sync.WaitGroup
	defer looking.Wait()
	looking.Go(func() { repeat(ctx, checkEvery, func() { h.check(ctx) }) })
	repeat(ctx, reportEvery, func() { h.report(leaving.Why() == "" && h.why() == "") })
}

func repeat(ctx context.Context, pause time.Duration, do func()) {
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for {
		do()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (h *health) check(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	err := h.ping(bounded)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checked, h.lost = true, err != nil
}

// redis reports whether Redis was checked, and whether it did not answer.
func (h *health) redis() (looked, lost bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.checked, h.lost
}

// report reports whether the service serves, as a whole and by its name.
func (h *health) report(serves bool) {
	status := healthservice.HealthCheckResponse_NOT_SERVING
	if serves {
		status = healthservice.HealthCheckResponse_SERVING
	}
	h.server.SetServingStatus("", status)
	h.server.SetServingStatus(rls.RateLimitService_ServiceDesc.ServiceName, status)
}
