package program

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHealthcheckAsksTheAddressThatIsSet(t *testing.T) {
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
	require.NoError(t, checkHealth("QUERY_ADDR", addr), "default address")
	for _, host := range []string{"0.0.0.0", ""} { // every address of the machine
		t.Setenv("QUERY_ADDR", strings.Replace(addr, "127.0.0.1", host, 1))
		require.NoError(t, checkHealth("QUERY_ADDR", "127.0.0.1:1"), host)
	}
	status = http.StatusInternalServerError
	require.ErrorContains(t, checkHealth("QUERY_ADDR", ""), "500")
	status = http.StatusOK
	t.Setenv("QUERY_ADDR", secure.Listener.Addr().String())
	t.Setenv("QUERY_TLS_CERT", "cert.pem")
	require.NoError(t, checkHealth("QUERY_ADDR", ""), "HTTPS")
	secure.Close()
	require.ErrorContains(t, checkHealth("QUERY_ADDR", ""), "QUERY_ADDR", "a closed port")
}
