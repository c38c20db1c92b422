package main

import (
	"context"
	"fmt"
	"io"
	"path"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
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
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"

	"tallyroll/internal/platform/program"
	"tallyroll/internal/platform/trace"
	"tallyroll/internal/web"
)

const (
	// handshakeTimeout bounds the time from a connection to its first request.
	handshakeTimeout = 5 * time.Second
	// messageTimeout bounds the time from a request's header to the end of its message.
	messageTimeout = 5 * time.Second
	// maxHeaderBytes bounds the header of a request.
	maxHeaderBytes = 16 << 10
	// maxRequests and maxArriving bound the requests under way on all connections: their number, and the bytes
	// of their messages.
	maxRequests, maxArriving = 10_000, 512 << 20
	// What a client may send before anything is read, per request and per connection. By default, gRPC raises
	// both up to 16 MiB.
	streamWindow, connWindow = 64 << 10, 1 << 20
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
func (s *service) serve(ctx context.Context, listeners *web.Listeners) error {
	options := []grpc.ServerOption{
		grpc.UnaryInterceptor(s.measure),
		grpc.ForceServerCodecV2(codec{}),
		grpc.MaxRecvMsgSize(s.settings.MaxMessageBytes),
		grpc.MaxConcurrentStreams(uint32(min(s.settings.MaxStreams, 1<<31-1))),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.InTapHandle(s.reserve),
		grpc.StreamInterceptor(func(service any, stream grpc.ServerStream, _ *grpc.StreamServerInfo,
			handler grpc.StreamHandler) error {
			return handler(service, arrivingStream{stream})
		}),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingEvery, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: idlePing}),
		grpc.WaitForHandlers(true),
		grpc.NumStreamWorkers(uint32(workers())),
	}
	if listeners.Certificate != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(listeners.Certificate.TLS())))
	}
	server := grpc.NewServer(options...)
	rls.RegisterRateLimitServiceServer(server, s)
	healthservice.RegisterHealthServer(server, s.health.server)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(netutil.LimitListener(listeners.Main, s.settings.MaxConnections)) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve gRPC on %s: %w", listeners.Main.Addr(), err)
	case <-ctx.Done():
	}
	over := time.AfterFunc(finishWithin, server.Stop)
	defer over.Stop()
	server.GracefulStop()
	return nil
}

// arrival is a request's share of the budget. Until the message has arrived, that is as much as it may have,
// because only gRPC sees how long it is.
type arrival struct {
	timer *time.Timer

	mu    sync.Mutex
	ended bool
	held  web.Hold
}

type arrivalKey struct{}

// reserve lets a request in whose header has arrived, unless those under way could take too much memory.
func (s *service) reserve(ctx context.Context, _ *tap.Info) (context.Context, error) {
	a := &arrival{held: s.budget.Hold()}
	if !s.budget.Enter() {
		return nil, errTooMany
	}
	if !a.held.Resize(s.settings.MaxMessageBytes) {
		s.budget.Leave()
		return nil, errTooMany
	}
	ctx, cancel := context.WithCancel(context.WithValue(ctx, arrivalKey{}, a))
	a.timer = time.AfterFunc(s.arriveWithin, cancel)
	context.AfterFunc(ctx, func() {
		cancel()
		a.end()
		s.budget.Leave()
	})
	return ctx, nil
}

var errTooMany = status.Error(codes.ResourceExhausted, "too many requests are under way")

// noteArrival makes the request's share fit the message that has arrived.
func noteArrival(ctx context.Context, message any) {
	a, m := ctx.Value(arrivalKey{}).(*arrival), message.(proto.Message)
	a.timer.Stop()
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.ended {
		a.held.Resize(proto.Size(m))
	}
}

func (a *arrival) end() {
	a.timer.Stop()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended = true
	a.held.Resize(0)
}

// arrivingStream notes the arrival of a message whose answer is a stream, as that of health is.
type arrivingStream struct{ grpc.ServerStream }

func (s arrivingStream) RecvMsg(message any) error {
	err := s.ServerStream.RecvMsg(message)
	if err == nil {
		noteArrival(s.Context(), message)
	}
	return err
}

// measure observes a request. A handler that panics ends its request, not the process.
func (s *service) measure(ctx context.Context, req any, info *grpc.UnaryServerInfo,
	handler grpc.UnaryHandler) (out any, err error) {
	start := time.Now()
	noteArrival(ctx, req)
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

// quietGRPC logs gRPC's messages about failed connections, a few lines per minute. No lock guards gRPC's
// logger, so this happens once, before a process uses gRPC.
func quietGRPC(log zerolog.Logger) {
	grpclog.SetLoggerV2(grpclog.NewLoggerV2WithVerbosity(io.Discard, io.Discard, grpcLines{program.Sampled(log)}, 0))
}

type grpcLines struct{ log zerolog.Logger }

func (g grpcLines) Write(line []byte) (int, error) {
	g.log.Warn().Str("error", strings.TrimSpace(string(line))).Msg("gRPC server")
	return len(line), nil
}
