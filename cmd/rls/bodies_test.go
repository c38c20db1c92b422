package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthservice "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"tallyroll/internal/limit"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/web"
	"tallyroll/tests/stack"
)

// Clients that never end their messages take no more memory than the budget has. A message that has arrived
// holds no more than it has.
func TestUnfinishedMessagesStayWithinTheBudget(t *testing.T) {
	t.Parallel()
	s, addr := serveHere(t, 2*stack.Hung)
	client := rls.NewRateLimitServiceClient(dial(t, addr, insecure.NewCredentials()))
	ask := func() error {
		_, err := client.ShouldRateLimit(t.Context(), &rls.RateLimitRequest{Domain: "other",
			Descriptors: []*ratelimit.RateLimitDescriptor{descriptor("user=a")}})
		return err
	}
	require.NoError(t, ask())
	awaitBudget(t, s, 0)

	watching, err := healthservice.NewHealthClient(dial(t, addr, insecure.NewCredentials())).Watch(t.Context(),
		&healthservice.HealthCheckRequest{})
	require.NoError(t, err)
	_, err = watching.Recv()
	require.NoError(t, err)
	require.EqualValues(t, 1, s.budget.Requests(), "it is under way")
	require.Zero(t, s.budget.Bytes(), "and its message is small")

	most := maxArriving / s.settings.MaxMessageBytes
	var clients []net.Conn
	for opened := 0; opened < 2*most; opened += s.settings.MaxStreams {
		clients = append(clients, sendUnfinished(t, addr, s.settings.MaxStreams, s.settings.MaxMessageBytes))
	}
	full := int64(most * (s.settings.MaxMessageBytes - 4<<10))
	stack.Eventually(t, "the budget to be full", func() (bool, string) {
		got := s.budget.Bytes()
		return got > full, fmt.Sprintf("%d of %d", got, full)
	})
	require.LessOrEqual(t, s.budget.Bytes(), int64(maxArriving))
	require.ErrorIs(t, ask(), errTooMany)
	for _, c := range clients {
		require.NoError(t, c.Close())
	}
	awaitBudget(t, s, 1) // the health service's
	require.NoError(t, ask())
}

// No caller keeps a share of the budget for longer than a message may take.
func TestMessageHasATimeToArriveIn(t *testing.T) {
	t.Parallel()
	s, addr := serveHere(t, messageTimeout/10)
	stream, err := dial(t, addr, insecure.NewCredentials()).NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true},
		rls.RateLimitService_ShouldRateLimit_FullMethodName)
	require.NoError(t, err)
	require.Equal(t, codes.Canceled, status.Code(stream.RecvMsg(new(rls.RateLimitResponse))))
	awaitBudget(t, s, 0)
}

func awaitBudget(t *testing.T, s *service, requests int64) {
	t.Helper()
	stack.Eventually(t, "the requests to end", func() (bool, string) {
		n, held := s.budget.Requests(), s.budget.Bytes()
		return n == requests && held == 0, fmt.Sprintf("%d requests hold %d bytes", n, held)
	})
}

// serveHere serves gRPC in the test's own process.
func serveHere(t *testing.T, arriveWithin time.Duration) (*service, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "limits.yml")
	require.NoError(t, os.WriteFile(file, []byte(oneLimit), 0o600))
	var settings Settings
	require.NoError(t, setting.Parse(&settings, "RLS_LIMITS_FILE="+file))
	var none *limit.Limiter
	s, err := newService(none, settings, zerolog.Nop())
	require.NoError(t, err)
	s.health, s.arriveWithin = newHealth(nil, nil), arriveWithin
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- s.serve(t.Context(), &web.Listeners{Main: l}) }()
	t.Cleanup(func() { require.NoError(t, <-ended) })
	return s, l.Addr().String()
}

// sendUnfinished opens a connection with requests that announce a message of a size, and never send its end.
func sendUnfinished(t *testing.T, addr string, requests, size int) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	_, err = io.WriteString(c, http2.ClientPreface)
	require.NoError(t, err)
	framer := http2.NewFramer(c, nil)
	require.NoError(t, framer.WriteSettings())
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	message := binary.BigEndian.AppendUint32([]byte{0}, uint32(size))
	for i := range requests {
		block.Reset()
		for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":authority", "rls"},
			{":path", rls.RateLimitService_ShouldRateLimit_FullMethodName}, {"content-type", "application/grpc"},
			{"te", "trailers"}} {
			require.NoError(t, encoder.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}))
		}
		stream := uint32(2*i + 1)
		require.NoError(t, framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(),
			EndHeaders: true}))
		require.NoError(t, framer.WriteData(stream, false, append(message, 'x')))
	}
	go func() { _, _ = io.Copy(io.Discard, c) }() // what the server sends
	return c
}
