package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"tallyroll/tests/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

const (
	// longTimeout makes limits wait for Redis on a busy machine, in place of deciding without it.
	longTimeout = "RLS_TAKE_TIMEOUT=5s"
)

// rig is a running rls and Envoy's own client of it.
type rig struct {
	*stack.Service
	t      testing.TB
	addr   string // of gRPC
	file   string
	client rls.RateLimitServiceClient
}

// start runs the program with a file of limits.
func start(t testing.TB, redis stack.Endpoint, limits string, env ...string) *rig {
	t.Helper()
	r := &rig{t: t, file: filepath.Join(t.TempDir(), "limits.yml")}
	r.write(limits)
	r.Service, r.addr = stack.RLS(t, redis, append([]string{longTimeout, "RLS_LIMITS_FILE=" + r.file}, env...)...)
	r.client = rls.NewRateLimitServiceClient(dial(t, r.addr, insecure.NewCredentials()))
	return r
}

func (r *rig) write(limits string) {
	r.t.Helper()
	require.NoError(r.t, os.WriteFile(r.file, []byte(limits), 0o600))
}

func dial(t testing.TB, addr string, credentials credentials.TransportCredentials, options ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr, append(options, grpc.WithTransportCredentials(credentials))...)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// descriptor has entries that are written key=value.
func descriptor(entries ...string) *ratelimit.RateLimitDescriptor {
	out := &ratelimit.RateLimitDescriptor{}
	for _, text := range entries {
		key, value, _ := strings.Cut(text, "=")
		out.Entries = append(out.Entries, &ratelimit.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	return out
}

// hits gives a descriptor its own number of hits.
func hits(d *ratelimit.RateLimitDescriptor, n int64) *ratelimit.RateLimitDescriptor {
	d.HitsAddend, d.IsNegativeHits = wrapperspb.UInt64(uint64(max(n, -n))), n < 0
	return d
}

// ask asks about descriptors of the domain edge.
func (r *rig) ask(descriptors ...*ratelimit.RateLimitDescriptor) *rls.RateLimitResponse {
	r.t.Helper()
	out, err := r.send(&rls.RateLimitRequest{Domain: "edge", Descriptors: descriptors})
	require.NoError(r.t, err)
	return out
}

func (r *rig) send(req *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), stack.Hung)
	defer cancel()
	return r.client.ShouldRateLimit(ctx, req)
}

// codesOf writes an answer as its overall code and that of each descriptor: OK: OK OVER_LIMIT.
func codesOf(out *rls.RateLimitResponse) string {
	text := []string{out.GetOverallCode().String() + ":"}
	for _, s := range out.GetStatuses() {
		text = append(text, s.GetCode().String())
	}
	return strings.Join(text, " ")
}

// headersOf are the headers that Envoy is to add.
func headersOf(out *rls.RateLimitResponse) map[string]string {
	all := make(map[string]string)
	for _, h := range out.GetResponseHeadersToAdd() {
		all[h.GetKey()] = h.GetValue()
	}
	return all
}
