package web

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// What the server itself has to say goes to the log; options change the server.
func TestServeLogsWhatTheServerComplainsOf(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var text bytes.Buffer // the server writes before it answers, and nothing after it has ended
	var timeout time.Duration
	var http2 *http.HTTP2Config
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
		w.WriteHeader(http.StatusTeapot) // the server complains
	})
	go func() {
		ended <- Serve(ctx, l, handler, nil, LogErrors(zerolog.New(&text)), func(s *http.Server) {
			timeout, http2 = s.WriteTimeout, s.HTTP2
		})
	}()
	resp, err := http.Get("http://" + l.Addr().String())
	require.NoError(t, err)
	resp.Body.Close()
	stop()
	require.NoError(t, <-ended)
	require.Contains(t, text.String(), `"level":"warn"`)
	require.Contains(t, text.String(), "superfluous")
	require.Positive(t, timeout, "answers may take for ever")
	require.Equal(t, 100, http2.MaxConcurrentStreams)
}

// A service that is asked to stop is not ready from then on, and serves until the delay is over.
func TestServiceThatStopsIsNotReadyAndServesForTheDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, ask := context.WithCancel(t.Context())
		serving, leaving, stop := (Shutdown{Delay: 5 * time.Second}).Begin(asked, zerolog.Nop())
		defer stop()
		mux := http.NewServeMux()
		leaving.HandleReady(mux, "/readyz", func(context.Context) string { return "" })
		check := func(status int, ended error) {
			t.Helper()
			synctest.Wait()
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
			require.Equal(t, status, w.Code)
			require.Equal(t, ended, serving.Err())
		}
		check(http.StatusOK, nil)
		ask()
		check(http.StatusServiceUnavailable, nil)
		time.Sleep(5*time.Second - 1)
		check(http.StatusServiceUnavailable, nil)
		time.Sleep(time.Nanosecond)
		check(http.StatusServiceUnavailable, context.Canceled)
	})
	// Without a delay nothing is waited for, and a service that fails leaves nothing behind.
	asked, ask := context.WithCancel(t.Context())
	serving, _, stop := Shutdown{}.Begin(asked, zerolog.Nop())
	ask()
	<-serving.Done()
	stop()
	synctest.Test(t, func(t *testing.T) {
		asked, ask := context.WithCancel(t.Context())
		_, _, stop := (Shutdown{Delay: time.Hour}).Begin(asked, zerolog.Nop())
		ask()
		stop()
	})
}
