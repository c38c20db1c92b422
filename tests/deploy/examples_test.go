package deploy_test

import (
	"fmt"
	"maps"
	"net/http"
	neturl "net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"tallyroll/internal/limit/limitfile"
	"tallyroll/tests/stack"
)

// examples are the files of deploy/examples, by name.
func examples(t *testing.T) map[string]string {
	t.Helper()
	dir := filepath.Join(root(t), "deploy/examples")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	out := make(map[string]string)
	for _, e := range entries {
		out[e.Name()] = read(t, filepath.Join(dir, e.Name()))
	}
	return out
}

// tree reads a YAML file whose fields are mappings.
func tree(t *testing.T, text string) map[string]any {
	t.Helper()
	var out map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(text), &out))
	return out
}

// at follows names and indexes into a tree.
func at[T any](t *testing.T, from any, path ...any) T {
	t.Helper()
	for i, step := range path {
		switch node := from.(type) {
		case map[string]any:
			from = node[fmt.Sprint(step)]
		case []any:
			n, ok := step.(int)
			if !ok || n >= len(node) {
				t.Fatalf("no element %v of %v", step, path[:i])
			}
			from = node[n]
		default:
			t.Fatalf("%v is no mapping or list", path[:i])
		}
	}
	out, ok := from.(T)
	if !ok {
		t.Fatalf("%v is %v, not a %T", path, from, out)
	}
	return out
}

// question is a request to query as a proxy sends it for a client's POST /cart?a=1 from 192.0.2.7.
type question struct {
	method, target string
	header         map[string]string
}

// traefikQuestions are those of traefik-dynamic.yml. Traefik sends GET to the address, the listed headers
// of the client, and headers of its own.
func traefikQuestions(t *testing.T, text string) (out []question) {
	t.Helper()
	file := tree(t, text)
	middlewares := at[map[string]any](t, file, "http", "middlewares")
	for name, router := range at[map[string]any](t, file, "http", "routers") {
		used := at[[]any](t, router, "middlewares")
		if len(used) != 1 || middlewares[fmt.Sprint(used[0])] == nil {
			t.Fatalf("router %s uses %v", name, used)
		}
		if service := at[string](t, router, "service"); at[map[string]any](t, file, "http", "services")[service] == nil {
			t.Errorf("router %s leads to %s, which is not there", name, service)
		}
		auth := at[map[string]any](t, middlewares, used[0], "forwardAuth")
		if list := at[[]any](t, auth, "authRequestHeaders"); len(list) == 0 || slices.Contains(list, any("X-Forwarded-For")) {
			t.Errorf("middleware %v passes on %v: an empty list passes on all headers of the client", used[0], list)
		}
		u, err := neturl.Parse(at[string](t, auth, "address"))
		if err != nil || u.Host != "127.0.0.1:8080" {
			t.Fatalf("middleware %v asks %v (%v)", used[0], u, err)
		}
		out = append(out, question{http.MethodGet, u.RequestURI(), map[string]string{
			"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Method": "POST", "X-Forwarded-Proto": "http",
			"X-Forwarded-Host": "example.com", "X-Forwarded-Uri": "/cart?a=1", "Accept": "*/*",
		}})
	}
	return out
}

// envoyQuestions are those of envoy.yaml. Envoy sends the client's method, its path behind the prefix, and
// the listed headers.
func envoyQuestions(t *testing.T, text string) (out []question) {
	t.Helper()
	manager := at[map[string]any](t, tree(t, text), "static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config")
	if !at[bool](t, manager, "use_remote_address") {
		t.Error("Envoy does not say who the client is")
	}
	for _, filter := range at[[]any](t, manager, "http_filters") {
		if at[string](t, filter, "name") != "envoy.filters.http.ext_authz" {
			continue
		}
		config := at[map[string]any](t, filter, "typed_config")
		require.Equal(t, "x-forwarded-for", at[string](t, config, "allowed_headers", "patterns", 0, "exact"), "what Envoy passes on")
		for _, path := range []string{"/cart?a=1", "/", "/cart?limit=plan-pro&key_header=X-Other"} {
			out = append(out, question{http.MethodPost, at[string](t, config, "http_service", "path_prefix") + path, map[string]string{
				// What the client has claimed comes first.
				"X-Forwarded-For": "198.51.100.1,192.0.2.7", "Content-Length": "0",
			}})
		}
	}
	return out
}

// Traefik and Envoy cannot be had from Debian. So their files are read here, and query is asked what they
// would ask.
func TestExamplesAskWhatQueryAnswers(t *testing.T) {
	t.Parallel()
	files := examples(t)
	file := at[string](t, tree(t, files["traefik.yml"]), "providers", "file", "filename")
	if _, err := os.Stat(filepath.Join(root(t), file)); err != nil {
		t.Error(err)
	}
	query := limitedQuery(t, stack.Redis(t), append(wide, "- name: per-address\n    window: 1s", "- name: per-address\n    window: 1h")...)
	client := 10 // the last byte of an address, another one for each question
	for name, questions := range map[string][]question{
		"traefik": traefikQuestions(t, files["traefik-dynamic.yml"]),
		"envoy":   envoyQuestions(t, files["envoy.yaml"]),
	} {
		require.GreaterOrEqual(t, len(questions), 2, "the questions of %s", name)
		for _, q := range questions {
			client++
			t.Run(name+" "+q.target, func(t *testing.T) {
				own := fmt.Sprintf("192.0.2.%d", client)
				q.header["X-Forwarded-For"] = strings.ReplaceAll(q.header["X-Forwarded-For"], "192.0.2.7", own)
				most := 10
				if strings.Contains(q.target, "limit=login") {
					most = 5
				}
				for i := range most {
					require.Equal(t, http.StatusOK, q.ask(t, query.URL()).StatusCode, "request %d", i)
				}
				resp := q.ask(t, query.URL())
				require.Equal(t, http.StatusTooManyRequests, resp.StatusCode, "request %d", most)
				for _, field := range []string{"Retry-After", "RateLimit", "RateLimit-Policy"} {
					require.NotEmpty(t, resp.Header.Get(field), "%s of the refusal", field)
				}
				other := q
				other.header = maps.Clone(q.header)
				other.header["X-Forwarded-For"] = fmt.Sprintf("%s,192.0.2.%d", own, 100+client) // another client, who says it is the first
				require.Equal(t, http.StatusOK, other.ask(t, query.URL()).StatusCode, "another client")
			})
		}
	}
}

// What answers pages of other origins stands before what asks, in the file or by the list of a router.
func TestExamplesServePagesOfOtherOrigins(t *testing.T) {
	files := examples(t)
	for name, asks := range map[string]string{"envoy.yaml": "ext_authz", "envoy-ratelimit.yaml": "ratelimit"} {
		file := tree(t, forOtherOrigins(t, files[name]))
		manager := at[map[string]any](t, file, "static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config")
		require.Equal(t, "envoy.filters.http.cors", at[string](t, manager, "http_filters", 0, "name"), name)
		require.Equal(t, "envoy.filters.http."+asks, at[string](t, manager, "http_filters", 1, "name"), name)
		policy := at[map[string]any](t, manager, "route_config", "virtual_hosts", 0, "typed_per_filter_config", "envoy.filters.http.cors")
		require.Contains(t, at[string](t, policy, "expose_headers"), "retry-after", name)
	}
	cors := at[map[string]any](t, tree(t, forOtherOrigins(t, files["traefik-dynamic.yml"])), "http", "middlewares", "cors", "headers")
	require.Contains(t, at[[]any](t, cors, "accessControlExposeHeaders"), "Retry-After")
}

func (q question) ask(t *testing.T, base string) *http.Response {
	t.Helper()
	req, err := http.NewRequest(q.method, base+q.target, nil)
	require.NoError(t, err)
	req.Host = "example.com"
	for name, value := range q.header {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultTransport.RoundTrip(req) // follows no redirect, as no proxy does
	require.NoError(t, err)
	_ = resp.Body.Close()
	return resp
}

// Every limit that an example names is in limits.yml.
func TestExamplesNameLimitsThatAreThere(t *testing.T) {
	files := examples(t)
	set, err := limitfile.Parse([]byte(files["limits.yml"]))
	require.NoError(t, err)
	named := regexp.MustCompile(`limit=([\w.-]+)|/v1/authz/([\w.-]+)`)
	for _, name := range []string{"rules.yml", "tokens.yml", "watch.yml"} { // which are about no limit
		delete(files, name)
	}
	for name, text := range files {
		found := named.FindAllStringSubmatch(text, -1)
		if len(found) == 0 && name != "limits.yml" && name != "traefik.yml" && name != "envoy-ratelimit.yaml" { // whose descriptors are tried in cmd/rls
			t.Errorf("%s names no limit", name)
		}
		for _, m := range found {
			if set[m[1]+m[2]] == nil {
				t.Errorf("%s names the limit %s, which is not in limits.yml", name, m[1]+m[2])
			}
		}
		for i, line := range strings.Split(text, "\n") {
			if n := len([]rune(line)); n > 110 && !strings.Contains(line, "googleapis") {
				t.Errorf("%s:%d has %d columns", name, i+1, n)
			}
		}
	}
}
