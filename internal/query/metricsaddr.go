package query

import (
	"context"
	"net"
	"net/http"

	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"tallyroll/internal/boot"
)

// serveMetrics answers GET /metrics, and nothing else, until ctx ends. It speaks plain HTTP and asks for no token.
func (s *service) serveMetrics(ctx context.Context, listener net.Listener) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.metricsHandler())
	return boot.Serve(ctx, listener, mux, nil, boot.LogErrors(s.log))
}

// routeMetrics offers /metrics beside the other resources, unless it has an address of its own.
func (s *service) routeMetrics(mux *http.ServeMux, api *huma.OpenAPI) {
	if s.metricsApart {
		delete(api.Paths, "/metrics")
		return
	}
	mux.Handle("GET /metrics", s.metricsHandler())
}

func (s *service) metricsHandler() http.Handler {
	return promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{})
}
