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
	lookEvery = time.Second
	// lookWithin bounds one check.
	lookWithin = 2 * time.Second
	// tellEvery is how long the health service may report an outdated state.
	tellEvery = 100 * time.Millisecond
)

// health checks whether Redis answers, and reports it by gRPC's health service.
type health struct {
	server *grpchealth.Server
	ask    func(context.Context) error
	why    func() string

	mu           sync.Mutex
	looked, lost bool
}

func newHealth(ask func(context.Context) error, why func() string) *health {
	h := &health{server: grpchealth.NewServer(), ask: ask, why: why}
	h.tell(false)
	return h
}

func (h *health) run(ctx context.Context, leaving web.Leaving) {
	var looking sync.WaitGroup
	defer looking.Wait()
	looking.Go(func() { every(ctx, lookEvery, func() { h.look(ctx) }) })
	every(ctx, tellEvery, func() { h.tell(leaving.Why() == "" && h.why() == "") })
}

func every(ctx context.Context, pause time.Duration, do func()) {
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

func (h *health) look(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	err := h.ask(bounded)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.looked, h.lost = true, err != nil
}

// redis reports whether Redis was checked, and whether it did not answer.
func (h *health) redis() (looked, lost bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.looked, h.lost
}

// tell reports whether the service serves, as a whole and by its name.
func (h *health) tell(serves bool) {
	is := healthservice.HealthCheckResponse_NOT_SERVING
	if serves {
		is = healthservice.HealthCheckResponse_SERVING
	}
	h.server.SetServingStatus("", is)
	h.server.SetServingStatus(rls.RateLimitService_ServiceDesc.ServiceName, is)
}
