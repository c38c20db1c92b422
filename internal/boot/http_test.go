package boot

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"
)

// What the server itself has to say goes to the log; options change the server.
func TestServeLogsWhatTheServerComplainsOf(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var text bytes.Buffer // the server writes before it answers, and nothing after it has ended
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
	require.NoError(t, <-ended)
	require.Contains(t, text.String(), `"level":"warn"`)
	require.Contains(t, text.String(), "superfluous")
	require.Positive(t, timeout, "answers may take for ever")
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

// What a page of the web can own is not known, unless it is named.
func TestHostThatAPageCanOwnIsKnownOnlyIfNamed(t *testing.T) {
	var none, named, all Hosts
	for h, text := range map[*Hosts]string{&named: "Stats.Example.com., other.example", &all: "*"} {
		require.NoError(t, h.UnmarshalText([]byte(text)))
	}
	for _, c := range []struct {
		without, with bool // known without a name, and with one
		hosts         string
	}{
		{true, true, `localhost LOCALHOST:8080 a.localhost:1 127.0.0.1 127.0.0.1:8080 [::1]:8080 [::1] [fe80::1%25eth0]:80
			10.1.2.3:443 [::ffff:10.1.2.3]:80 query query:8080 Query. host-1:80 query.test printer.local query.shop.svc:8080
			query.shop.svc.cluster.local box.home.arpa box.lan host.docker.internal:8080`},
		{false, true, "stats.example.com STATS.example.com:8080 stats.example.com.:8080 other.example"},
		{false, false, `evil.example evil.example:8080 127.0.0.1.evil.example localhost.evil.example local.evil.example:80
			evil.example. 1.2.3.4.5 a.stats.example.com stats.example.com.evil.example xlocal.example evil.example:
			[evil.example]:80 localhost:80@evil.example query.shop`},
	} {
		for _, host := range strings.Fields(c.hosts) {
			if none.Know(host) != c.without || named.Know(host) != c.with || !all.Know(host) {
				t.Errorf("%q: without a name %v, with it %v", host, none.Know(host), named.Know(host))
			}
		}
	}
	require.True(t, none.Know(""))
	long := strings.Repeat("a", 64) + ".example"
	for _, bad := range []string{
		"", ",", "a.example,", "https://a.example", "a.example:80", "a.example/x", "*.example.com", "a.example,*",
		"bücher.example", "a b", ".example", "a..example", long,
	} {
		require.ErrorContains(t, new(Hosts).UnmarshalText([]byte(bad)), "without a scheme and a port", bad)
	}
}

func TestUnknownHostIsRefusedInAShortLineExceptOverTLS(t *testing.T) {
	r := &http.Request{Host: "evil.example:8080"}
	if why := (Hosts{}).Refuse(r, "QUERY_HOSTS"); !strings.HasPrefix(why, `"evil.example:8080" is no name`) || !strings.HasSuffix(why, "QUERY_HOSTS") {
		t.Error(why)
	}
	r.TLS = new(tls.ConnectionState)
	require.Empty(t, (Hosts{}).Refuse(r, "QUERY_HOSTS"))
	r = &http.Request{Host: strings.Repeat("\u202e\xff.", 5000)}
	if why := (Hosts{}).Refuse(r, "QUERY_HOSTS"); why == "" || len(why) > 1000 || !utf8.ValidString(why) || strings.Contains(why, "\u202e") {
		t.Errorf("of a strange host: %q", why)
	}
}

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
	require.NoError(t, Healthcheck("QUERY_ADDR", addr), "default address")
	for _, host := range []string{"0.0.0.0", ""} { // every address of the machine
		t.Setenv("QUERY_ADDR", strings.Replace(addr, "127.0.0.1", host, 1))
		require.NoError(t, Healthcheck("QUERY_ADDR", "127.0.0.1:1"), host)
	}
	status = http.StatusInternalServerError
	require.ErrorContains(t, Healthcheck("QUERY_ADDR", ""), "500")
	status = http.StatusOK
	t.Setenv("QUERY_ADDR", secure.Listener.Addr().String())
	t.Setenv("QUERY_TLS_CERT", "cert.pem")
	require.NoError(t, Healthcheck("QUERY_ADDR", ""), "HTTPS")
	secure.Close()
	require.ErrorContains(t, Healthcheck("QUERY_ADDR", ""), "QUERY_ADDR", "a closed port")
}
