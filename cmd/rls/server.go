package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"path"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/rs/zerolog"
	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/grpclog"
	healthservice "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"tallyroll/internal/platform/program"
	"tallyroll/internal/platform/trace"
	"tallyroll/internal/web"
)

const (
	// handshakeTimeout bounds the time from a connection to its first request.
	handshakeTimeout = 5 * time.Second
	// maxHeaderBytes bounds the header of a request.
	maxHeaderBytes = 64 << 10
	// pingEvery is the shortest pause between a client's pings. Envoy's, if set up, are seconds apart; by
	// default, gRPC ends connections whose pings are less than five minutes apart.
	pingEvery = time.Second
	// idlePing is how long a connection is silent before the server pings the client.
	idlePing = time.Minute
	// finishWithin bounds the requests under way when the service stops.
	finishWithin = 5 * time.Second
)

// workers is the number of goroutines that take request after request; if all are busy, a request gets its
// own. Their stacks have grown: growing one per request took an eighth of the processor time.
func workers() int { return 64 * runtime.GOMAXPROCS(0) }

// serve answers gRPC until ctx ends. Requests under way then have five seconds.
func (s *service) serve(ctx context.Context, l net.Listener, certificate *web.Certificate) error {
	options := []grpc.ServerOption{
		grpc.UnaryInterceptor(s.measure),
		grpc.ForceServerCodecV2(codec{}),
		grpc.MaxRecvMsgSize(s.settings.MaxMessageBytes),
		grpc.MaxConcurrentStreams(uint32(min(s.settings.MaxStreams, 1<<31-1))),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingEvery, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: idlePing}),
		grpc.WaitForHandlers(true),
		grpc.NumStreamWorkers(uint32(workers())),
	}
	if certificate != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(certificate.TLS())))
	}
	server := grpc.NewServer(options...)
	rls.RegisterRateLimitServiceServer(server, s)
	healthservice.RegisterHealthServer(server, s.health.server)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(netutil.LimitListener(l, s.settings.MaxConnections)) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve gRPC on %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}
	over := time.AfterFunc(finishWithin, server.Stop)
	defer over.Stop()
	server.GracefulStop()
	return nil
}

// measure observes a request. A handler that panics ends its request, not the process.
func (s *service) measure(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (out any, err error) {
	start := time.Now()
	if header, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = trace.With(ctx, header)
	}
	method := path.Base(info.FullMethod)
	defer func() {
		if v := recover(); v != nil {
			s.log.Error().Ctx(ctx).Str("method", method).Str("panic", fmt.Sprint(v)).Str("stack",
				string(debug.Stack())).Msg("request failed")
			err = status.Error(codes.Internal, "a fault of this service, which is in its log")
		}
		code := status.Code(err)
		s.server.Metrics.Observe(method, int(code), time.Since(start))
		if code == codes.InvalidArgument {
			s.failures.Warn().Ctx(ctx).Err(err).Msg("invalid request: Envoy's failure mode decides about it")
		}
	}()
	return handler(ctx, req)
}

// quietGRPC logs gRPC's messages about failed connections, a few lines per minute.
func quietGRPC(log zerolog.Logger) {
	grpclog.SetLoggerV2(grpclog.NewLoggerV2WithVerbosity(io.Discard, io.Discard, grpcLines{program.Sampled(log)}, 0))
}

type grpcLines struct{ log zerolog.Logger }

func (g grpcLines) Write(line []byte) (int, error) {
	g.log.Warn().Str("error", strings.TrimSpace(string(line))).Msg("gRPC server")
	return len(line), nil
}
