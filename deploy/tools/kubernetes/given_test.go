package kubernetes

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"
)

// The policy opens the ports of the URLs that are given, and no other.
func TestPortsOfURLs(t *testing.T) {
	for _, c := range []struct {
		values string
		want   map[string][]int32 // of pods, in addition to DNS
	}{
		{servers, map[string][]int32{"ingest": {4222, 6379}, "query": {4222, 6379}, "collect": {4222}, "promql": {6379}}},
		{"nats: {url: 'tls://a:4443,nats://user:p%2Cw@b'}\nredis: {url: 'rediss://user:p@ss@redis:6380/0'}\n" +
			"query: {settings: {NATS_URL: ''}}\ncollect: {settings: {NATS_URL: 'ws://[::1]'}}",
			map[string][]int32{"ingest": {4443, 4222, 6380}, "query": {6380}, "collect": {80}, "promql": {6380}}},
		{"secret: {name: a, files: {NATS_URL_FILE: nats, REDIS_URL_FILE: redis}}\nnetworkPolicy: {ports: {redis: [6380]}}",
			map[string][]int32{"ingest": {4222, 6379, 6380}, "collect": {4222}}},
		{"nats: {url: 'nats://a'}\nredis: {url: 'redis+sentinel://a/0?master_name=b&addr=c:26380'}",
			map[string][]int32{"promql": {26379, 26380, 6379}}},
		{servers + "watch: {file: {targets: {a: {webhook: 'https://a:8443/b'}, c: {alertmanager: 'http://d:9093'}},\n" +
			"  rules: [{name: b, key: c, window: 5m, above: 1, to: [a]}]}}", map[string][]int32{"watch": {4222, 6379, 8443, 9093, 443}}},
	} {
		resources := typed(t, build(t, c.values))
		for pods, want := range c.want {
			var got []int32
			for _, port := range find[*networkingv1.NetworkPolicy](t, resources, pods).Spec.Egress[0].Ports {
				if port.Port.IntVal != 53 {
					got = append(got, port.Port.IntVal)
				}
			}
			require.Equal(t, want, got, "%s of %s", pods, c.values)
		}
	}
}

// Addresses and certificates that are given reach probes, ports, Service and PodMonitor.
func TestAddressesThatAreGiven(t *testing.T) {
	documents := build(t, servers+`
settings: {COLLECT_METRICS_ADDR: ":9100"}
secret: {name: a, files: {QUERY_TLS_CERT: tls.crt, QUERY_TLS_KEY: tls.key}}
query: {settings: {QUERY_ADDR: ":8443"}, ingress: {host: counts.example.com, public: true}}
promql: {settings: {PROMQL_TLS_CERT: /etc/tallyroll/tls.crt, PROMQL_TLS_CLIENT_CA: /a, PROMQL_METRICS_ADDR: "0.0.0.0:9101"}}
rls: {enabled: true}
limits: [{name: login, window: 1m, max: 5}]
podMonitor: {enabled: true}
`)
	resources := typed(t, documents)
	require.Empty(t, practices(resources))
	monitors := map[string]any{}
	for _, resource := range resources {
		if m, ok := resource.(*map[string]any); ok {
			endpoint := (*m)["spec"].(map[string]any)["podMetricsEndpoints"].([]any)[0].(map[string]any)
			monitors[(*m)["metadata"].(map[string]any)["name"].(string)] = []any{endpoint["port"], endpoint["scheme"]}
		}
	}
	type port struct {
		name   string
		number int32
	}
	for name, c := range map[string]struct {
		ports  []port
		probe  string
		scheme corev1.URIScheme
	}{
		"query":   {[]port{{"https", 8443}}, "https", corev1.URISchemeHTTPS},
		"collect": {[]port{{"http", 8081}, {"metrics", 9100}}, "metrics", corev1.URISchemeHTTP},
		"promql":  {[]port{{"https", 9091}, {"metrics", 9101}}, "metrics", corev1.URISchemeHTTP},
		"rls":     {[]port{{"grpc", 8083}, {"metrics", 8084}}, "metrics", corev1.URISchemeHTTP},
		"ingest":  {[]port{{"http", 8082}}, "http", corev1.URISchemeHTTP},
	} {
		container := find[*appsv1.Deployment](t, resources, name).Spec.Template.Spec.Containers[0]
		var ports []port
		var open []int32
		for _, p := range container.Ports {
			ports = append(ports, port{p.Name, p.ContainerPort})
		}
		for _, p := range find[*networkingv1.NetworkPolicy](t, resources, name).Spec.Ingress[0].Ports {
			open = append(open, p.Port.IntVal)
		}
		require.Equal(t, c.ports, ports, name)
		for i := range c.ports {
			require.Contains(t, open, c.ports[i].number, name)
		}
		for _, probe := range []*corev1.Probe{container.LivenessProbe, container.ReadinessProbe} {
			require.Equal(t, c.probe, probe.HTTPGet.Port.StrVal, name)
			require.Equal(t, c.scheme, probe.HTTPGet.Scheme, name)
		}
		require.Equal(t, []any{c.probe, strings.ToLower(string(c.scheme))}, monitors["tallyroll-"+name])
		if name != "ingest" {
			service := find[*corev1.Service](t, resources, name).Spec.Ports
			require.Equal(t, []port{c.ports[0]}, []port{{service[0].Name, service[0].Port}}, name)
		}
	}
	env := find[*appsv1.Deployment](t, resources, "collect").Spec.Template.Spec.Containers[0].Env
	require.Equal(t, []corev1.EnvVar{{Name: "COLLECT_ADDR", Value: "0.0.0.0:8081"}}, env, "a setting of all programs stays")
}

// An Ingress publishes a program only with tokens, with client certificates, or on purpose.
func TestIngressNeedsTokens(t *testing.T) {
	const host = "ingress: {host: a.example.com"
	token := "tokens: [{name: a, sha256: " + strings.Repeat("0", 64) + ", may: [read]}]"
	for values, refused := range map[string]bool{
		"query: {" + host + "}}":                                                                     true,
		"query: {" + host + ", public: true}}":                                                       false,
		"query: {" + host + "}}\n" + token:                                                           false,
		"query: {" + host + "}, settings: {QUERY_TOKENS: a}}":                                        false,
		"promql: {" + host + "}}\nsettings: {QUERY_TOKENS: a}":                                       true,
		"collect: {" + host + "}, settings: {COLLECT_TOKENS: a}}":                                    true, // it has no such setting
		"secret: {name: a, files: {COLLECT_TOKENS_FILE: a}}\ncollect: {" + host + "}}":               false,
		"collect: {" + host + "}, settings: {COLLECT_TLS_CLIENT_CA: a, COLLECT_METRICS_ADDR: ':1'}}": false,
	} {
		_, _, err := render(servers + values)
		if refused {
			require.ErrorContains(t, err, "without a token: set tokens or ", values)
		} else {
			require.NoError(t, err, values)
		}
	}
}

// A release has what the programs take, and the sources of the chart do not repeat.
func TestPackaged(t *testing.T) {
	for _, resource := range typed(t, build(t, all)) {
		switch r := resource.(type) {
		case *map[string]any:
			if (*r)["kind"] == "PrometheusRule" {
				require.NotEmpty(t, (*r)["spec"].(map[string]any)["groups"])
			}
		case *corev1.ServiceAccount:
			require.Equal(t, map[string]string{"example.com/role": "counts"}, r.Annotations)
		case *corev1.ConfigMap:
			if r.Name == "tallyroll-dashboard" {
				require.Equal(t, "1", r.Labels["grafana_dashboard"])
				require.Contains(t, r.Data["tallyroll.json"], `"panels"`)
			}
		}
	}
	files, err := packaged()
	require.NoError(t, err)
	require.Contains(t, string(files["README.md"]), "\nYour servers. Their users and passwords belong in the Secret.\n\n```yaml\nnats:")
	var values map[string]any
	require.NoError(t, yaml.Unmarshal(files["values.yaml"], &values))
	for name := range values {
		require.Contains(t, string(files["README.md"]), "\n"+name+":")
	}
}

// The chart of the sources lacks what the package adds, and is what one tries.
func TestSources(t *testing.T) {
	files, err := packaged()
	require.NoError(t, err)
	files = maps.Clone(files)
	for _, added := range []string{"alerts.yml", "operators.json", "README.md"} {
		require.NotEmpty(t, files[added])
		delete(files, added)
	}
	files["values.schema.json"], err = os.ReadFile("../../chart/values.schema.json")
	require.NoError(t, err)
	documents, _, err := renderFiles(files, try)
	require.NoError(t, err)
	require.Equal(t, len(build(t, try)), len(documents))
	_, _, err = renderFiles(files, try+"prometheusRule: {enabled: true}")
	require.ErrorContains(t, err, "alerts.yml is in the chart of a release alone: make release writes it")
}

// No value that is removed ends in an error of the template engine.
func TestRemovedValues(t *testing.T) {
	files, err := packaged()
	require.NoError(t, err)
	var defaults map[string]any
	require.NoError(t, yaml.Unmarshal(files["values.yaml"], &defaults))
	given := map[string]string{}
	for name, value := range defaults {
		given[name] = name + ": null"
		if fields, ok := value.(map[string]any); ok {
			for field := range fields {
				given[name+"."+field] = name + ": {" + field + ": null}"
			}
		}
	}
	raw := regexp.MustCompile(`nil pointer|wrong type|error calling|map has no entry`)
	for _, name := range slices.Sorted(maps.Keys(given)) {
		for _, values := range []string{try, servers + rules} {
			if strings.Contains(values, name[:strings.IndexAny(name+".", ".")]+":") {
				continue // YAML would have it twice
			}
			if _, _, err := render(values + given[name]); err != nil {
				assert.NotRegexp(t, raw, err.Error(), given[name])
			}
		}
	}
}
