package main

import (
	"context"
	"sync"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	grpchealth "google.golang.org/grpc/health"
	healthservice "google.golang.org/grpc/health/grpc_health_v1"

	"tallyroll/internal/boot"
)

const (
	// lookEvery is the pause between two looks at Redis.
	lookEvery = time.Second
	// lookWithin is how long one may take.
	lookWithin = 2 * time.Second
	// leaveEvery is the pause between two looks at whether the service has been asked to stop.
	leaveEvery = 100 * time.Millisecond
)

// health knows whether Redis answers, and tells it by gRPC's health service.
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

// run looks at Redis until ctx ends.
func (h *health) run(ctx context.Context, leaving boot.Leaving) {
	ticker := time.NewTicker(leaveEvery)
	defer ticker.Stop()
	for next := time.Now(); ; {
		if now := time.Now(); !now.Before(next) {
			h.look(ctx)
			next = now.Add(lookEvery)
		}
		h.tell(leaving.Why() == "" && h.why() == "")
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

// redis reports whether Redis has been looked at, and has not answered.
func (h *health) redis() (looked, lost bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.looked, h.lost
}

// tell says whether the service serves, as a whole and by its name.
func (h *health) tell(serves bool) {
	is := healthservice.HealthCheckResponse_NOT_SERVING
	if serves {
		is = healthservice.HealthCheckResponse_SERVING
	}
	h.server.SetServingStatus("", is)
	h.server.SetServingStatus(rls.RateLimitService_ServiceDesc.ServiceName, is)
}
