package boot

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"
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
	if err != nil {
		t.Fatal(err)
	}
	var text lockedBuffer
	var timeout time.Duration
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
		w.WriteHeader(http.StatusTeapot) // the server complains
	})
	go func() {
		ended <- Serve(ctx, l, handler, "", "", LogErrors(zerolog.New(&text)), func(s *http.Server) { timeout = s.WriteTimeout })
	}()
	resp, err := http.Get("http://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
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
