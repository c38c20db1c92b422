package boot

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestHealthcheck(t *testing.T) {
	status := http.StatusOK
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/healthz" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		w.WriteHeader(status)
	})
	plain, secure := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	defer plain.Close()
	defer secure.Close()
	addr := plain.Listener.Addr().String()

	if err := Healthcheck("QUERY_ADDR", addr); err != nil {
		t.Errorf("default address: %v", err)
	}
	t.Setenv("QUERY_ADDR", strings.Replace(addr, "127.0.0.1", "0.0.0.0", 1))
	if err := Healthcheck("QUERY_ADDR", "127.0.0.1:1"); err != nil {
		t.Errorf("every address of the machine: %v", err)
	}
	t.Setenv("QUERY_ADDR", strings.TrimPrefix(addr, "127.0.0.1"))
	if err := Healthcheck("QUERY_ADDR", "127.0.0.1:1"); err != nil {
		t.Errorf("no host: %v", err)
	}
	status = http.StatusInternalServerError
	if err := Healthcheck("QUERY_ADDR", ""); err == nil || !strings.Contains(err.Error(), "500") {
		t.Errorf("an unwell program: %v", err)
	}
	status = http.StatusOK
	t.Setenv("QUERY_ADDR", secure.Listener.Addr().String())
	t.Setenv("QUERY_TLS_CERT", "cert.pem")
	if err := Healthcheck("QUERY_ADDR", ""); err != nil {
		t.Errorf("HTTPS: %v", err)
	}
	secure.Close()
	if err := Healthcheck("QUERY_ADDR", ""); err == nil || !strings.Contains(err.Error(), "QUERY_ADDR") {
		t.Errorf("nobody there: %v", err)
	}
}
