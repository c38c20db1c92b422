package boot

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// What the server itself has to say goes to the log; options change the server.
func TestServe(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var text lockedBuffer
	var timeout time.Duration
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
		w.WriteHeader(http.StatusTeapot) // the server complains
	})
	go func() {
		ended <- Serve(ctx, l, handler, nil, LogErrors(zerolog.New(&text)), func(s *http.Server) { timeout = s.WriteTimeout })
	}()
	resp, err := http.Get("http://" + l.Addr().String())
	require.NoError(t, err)
	resp.Body.Close()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if got := text.buf.String(); !strings.Contains(got, `"level":"warn"`) || !strings.Contains(got, "superfluous") {
		t.Errorf("log %s", got)
	}
	if timeout <= 0 {
		t.Error("answers may take for ever")
	}
}

// A service that is asked to stop is not ready from then on, and serves until the delay is over.
func TestShutdownDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, ask := context.WithCancel(t.Context())
		serving, leaving, stop := (Shutdown{Delay: 5 * time.Second}).Begin(asked, zerolog.Nop())
		defer stop()
		mux := http.NewServeMux()
		leaving.HandleReady(mux, "/readyz", func(context.Context) string { return "" })
		ready := func() int {
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz", nil))
			return w.Code
		}
		require.EqualValues(t, http.StatusOK, ready())
		ask()
		synctest.Wait()
		if code := ready(); code != http.StatusServiceUnavailable || serving.Err() != nil {
			t.Errorf("asked to stop: %d, serving %v", code, serving.Err())
		}
		time.Sleep(5*time.Second - 1)
		synctest.Wait()
		if serving.Err() != nil {
			t.Error("it ends before the delay is over")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if serving.Err() == nil {
			t.Error("it serves although the delay is over")
		}
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
