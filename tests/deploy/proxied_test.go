package deploy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// proxied is a trivial service behind a proxy that asks query first, as deploy/examples has it.
type proxied struct {
	t       *testing.T
	redis   *stack.RedisServer
	query   *stack.Service
	asked   string // the address at which the proxy asks, that of query
	proxy   *stack.Process
	origins bool // the proxy is started with what its example has for pages of other origins
	service *httptest.Server
	served  atomic.Int64 // requests that reached the service
	client  *http.Client
}

// product is a proxy that can be had here.
type product struct {
	name string
	// start starts it on its example, with the addresses of a test and with edits of the example: pairs of old
	// and new text.
	start func(p *proxied, edits ...string) *stack.Process
	// longerTimeout makes the example wait for query as long as a busy machine needs: after the example's own
	// time it does without an answer.
	longerTimeout []string
	// refuse makes the example refuse all requests while query is away.
	refuse []string
	// tooLarge is its status for more header than it accepts.
	tooLarge int
	// byHeader makes the key a header of the request.
	byHeader []string
}

var products = []product{{
	name: "nginx", start: startNginx,
	longerTimeout: []string{"proxy_connect_timeout 100ms;", "proxy_connect_timeout 10s;", "proxy_read_timeout 1s;", "proxy_read_timeout 10s;"},
	refuse:        []string{"$tallyroll_away pass;", "$tallyroll_away refuse;"},
	tooLarge:      http.StatusBadRequest,
	byHeader: []string{
		`"limit=per-client&key_ip=1"`, `"limit=per-client&key_header=X-Api-Key"`,
		"#   proxy_set_header X-Api-Key", "proxy_set_header X-Api-Key",
	},
}, {
	name: "caddy", start: startCaddy,
	longerTimeout: []string{"dial_timeout 100ms", "dial_timeout 10s", "response_header_timeout 1s", "response_header_timeout 10s"},
	refuse:        []string{"reverse_proxy @unasked 127.0.0.1:3000", "respond @unasked 503"},
	tooLarge:      http.StatusRequestHeaderFieldsTooLarge,
	byHeader:      []string{"uri /v1/authz?limit=per-client&key_ip=1", "uri /v1/authz?limit=per-client&key_header=X-Api-Key"},
}}

func startNginx(p *proxied, edits ...string) *stack.Process {
	path, dir := stack.FindProxy(p.t, "nginx"), p.t.TempDir()
	return stack.Server(p.t, path, func(port int) (args, env []string) {
		example := p.example("nginx.conf", append(edits, "listen 80;", fmt.Sprintf("listen 127.0.0.1:%d;", port))...)
		p.write(filepath.Join(dir, "example.conf"), example)
		// What Debian's own nginx.conf has around such a file, without the rights of root. One process
		// alone: a killed master would leave its workers behind.
		p.write(filepath.Join(dir, "nginx.conf"), `
daemon off;
master_process off;
pid nginx.pid;
error_log stderr info;
events {}
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    include example.conf;
}
`)
		return []string{"-p", dir, "-c", "nginx.conf", "-e", "stderr"}, nil
	})
}

func startCaddy(p *proxied, edits ...string) *stack.Process {
	path, dir := stack.FindProxy(p.t, "caddy"), p.t.TempDir()
	return stack.Server(p.t, path, func(port int) (args, env []string) {
		// The port for administration is one for all, and is not needed.
		p.write(filepath.Join(dir, "Caddyfile"), p.example("Caddyfile", append(edits, "\n{\n", "\n{\n\tadmin off\n",
			"\n:80 {", fmt.Sprintf("\n:%d {\n\tbind 127.0.0.1", port))...))
		return []string{"run", "--config", filepath.Join(dir, "Caddyfile")}, []string{"XDG_DATA_HOME=" + dir, "XDG_CONFIG_HOME=" + dir}
	})
}

// example is a file of deploy/examples with the addresses of this test.
func (p *proxied) example(name string, edits ...string) string {
	p.t.Helper()
	text := read(p.t, filepath.Join(root(p.t), "deploy/examples", name))
	if p.origins {
		text = forOtherOrigins(p.t, text)
	}
	edits = append(edits, "127.0.0.1:8080", p.asked, "127.0.0.1:3000", p.service.Listener.Addr().String())
	return edit(p.t, text, edits...)
}

// forOtherOrigins makes settings of the comments that an example has for pages of other origins.
func forOtherOrigins(t *testing.T, text string) string {
	t.Helper()
	lines, found, inside := strings.Split(text, "\n"), 0, false
	for i, line := range lines {
		setting, commented := strings.CutPrefix(strings.TrimLeft(line, " \t"), "#   ")
		switch {
		case strings.Contains(line, "pages of other origins") || strings.Contains(line, "Pages of other origins"):
			inside = true
		case inside && commented:
			lines[i] = line[:strings.Index(line, "#")] + setting
			found++
		case !strings.Contains(line, "# "):
			inside = false
		}
	}
	require.Positive(t, found, "lines for pages of other origins")
	return strings.Join(lines, "\n")
}

// edit replaces text, all of which has to be there: pairs of old and new. It does so at once: a new port
// can begin with an old one.
func edit(t *testing.T, text string, edits ...string) string {
	t.Helper()
	for i := 0; i+1 < len(edits); i += 2 {
		require.Contains(t, text, edits[i], "the example has changed: change this test, too")
	}
	return strings.NewReplacer(edits...).Replace(text)
}

func (p *proxied) write(path, text string) {
	p.t.Helper()
	require.NoError(p.t, os.WriteFile(path, []byte(text), 0o600))
}

// newProxied starts the servers without the proxy. limits are edits of limits.yml.
func newProxied(t *testing.T, limits ...string) *proxied {
	t.Helper()
	p := &proxied{t: t, redis: stack.Redis(t)}
	p.query = limitedQuery(t, p.redis, limits...)
	p.asked = p.query.Addr()
	p.service = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.served.Add(1)
		body, _ := io.ReadAll(r.Body)
		switch r.URL.Path {
		case "/forbidden":
			http.Error(w, "the service's own 403", http.StatusForbidden)
		case "/broken":
			http.Error(w, "the service's own 500", http.StatusInternalServerError)
		default:
			if r.Header.Get("Origin") != "" {
				w.Header().Set("Access-Control-Allow-Origin", "https://pages.example")
			}
			fmt.Fprintf(w, "%s %s %s", r.Method, r.URL, body)
		}
	}))
	t.Cleanup(p.service.Close)
	p.client = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 100}}
	t.Cleanup(p.client.CloseIdleConnections)
	return p
}

// throughBalancer makes a proxy that is started later ask query through a balancer.
func (p *proxied) throughBalancer() *stack.Balancer {
	p.t.Helper()
	b := stack.NewBalancer(p.t, p.query.Addr())
	p.asked = b.Addr()
	return b
}

// limitedQuery starts query with limits.yml, to which edits are made.
func limitedQuery(t *testing.T, redis *stack.RedisServer, limits ...string) *stack.Service {
	t.Helper()
	file := filepath.Join(t.TempDir(), "limits.yml")
	text := edit(t, read(t, filepath.Join(root(t), "deploy/examples/limits.yml")), limits...)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	// Without a layout, which the first ingest writes, it is not ready. It can decide all the same.
	s := stack.Query(t, redis, "QUERY_LIMITS_FILE="+file, "QUERY_TRUSTED_PROXIES=127.0.0.1/32", "QUERY_TAKE_TIMEOUT=2s", stack.NoWait)
	s.WaitForLog("started")
	return s
}

// answer is what a client sees.
type answer struct {
	status int
	header http.Header
	body   string
}

// send sends a request to the proxy. headers are pairs of name and value.
func (p *proxied) send(method, path, body string, headers ...string) answer {
	p.t.Helper()
	got, err := p.trySend(method, path, body, headers...)
	require.NoError(p.t, err)
	return got
}

func (p *proxied) trySend(method, path, body string, headers ...string) (answer, error) {
	req, err := http.NewRequest(method, "http://"+p.proxy.Addr()+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
		req.Header.Add(headers[i], headers[i+1])
	}
	resp, err := p.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(got)}, err
}

// sendRaw sends a request that no client would, and returns the status of the answer.
func (p *proxied) sendRaw(request string) int {
	p.t.Helper()
	conn, err := net.Dial("tcp4", p.proxy.Addr())
	require.NoError(p.t, err)
	defer conn.Close()
	_, _ = io.WriteString(conn, request) // it may be refused before its end
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(p.t, err)
	_ = resp.Body.Close()
	return resp.StatusCode
}

// forProducts runs a test on each proxy, side by side.
func forProducts(t *testing.T, test func(*testing.T, product)) {
	t.Parallel()
	for _, the := range products {
		t.Run(the.name, func(t *testing.T) {
			t.Parallel()
			stack.FindProxy(t, the.name)
			test(t, the)
		})
	}
}
