package stack

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// unfinished is a body whose end does not arrive before the client goes.
type unfinished struct {
	io.Reader
	gone <-chan struct{}
}

func (u unfinished) Read(p []byte) (int, error) {
	n, err := u.Reader.Read(p)
	if err == io.EOF {
		<-u.gone
	}
	return n, err
}

// budget is a *web.Budget, which this package does not import.
type budget interface {
	Requests() int64
	Bytes() int64
}

// HoldUnfinishedBodies sends POSTs with bodies of a size that never end. It expects that those without room
// in the budget are refused at once, that all others stay within it, and that it is free when the clients are
// gone. small must succeed meanwhile.
func HoldUnfinishedBodies(t *testing.T, server *httptest.Server, budget budget, most int64, path string, clients,
	size int, small func()) {
	t.Helper()
	gone := make(chan struct{})
	var refused atomic.Int64
	var sending sync.WaitGroup
	for range clients {
		sending.Go(func() {
			body := unfinished{strings.NewReader(strings.Repeat(" ", size)), gone}
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+path, body)
			if err != nil {
				t.Error(err)
				return
			}
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			resp, err := server.Client().Do(r)
			if err != nil {
				return // it went, or the server cut the connection while the body was sent
			}
			defer resp.Body.Close()
			if resp.StatusCode == http.StatusServiceUnavailable && resp.Header.Get("Retry-After") != "" {
				refused.Add(1)
			}
		})
	}
	Eventually(t, "a refusal, and the others within the budget", func() (bool, string) {
		held := budget.Bytes()
		if held > most {
			t.Errorf("%d bytes are held of %d", held, most)
		}
		return refused.Load() > 0, fmt.Sprintf("%d refused, %d bytes", refused.Load(), held)
	})
	small()
	close(gone)
	sending.Wait()
	Eventually(t, "the bodies to leave", func() (bool, string) {
		n, held := budget.Requests(), budget.Bytes()
		return n == 0 && held == 0, fmt.Sprintf("%d hold %d bytes", n, held)
	})
}
