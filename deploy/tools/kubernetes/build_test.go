package kubernetes

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	yamlreader "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"tallyroll/deploy/tools/chart"
)

// programs that are deployed.
var programs = []string{"collect", "ingest", "promql", "query", "rls", "watch"}

// packaged is the chart as a release has it.
var packaged = sync.OnceValues(func() (map[string][]byte, error) {
	return chart.Files(context.Background(), "../../..", "0.1.0")
})

// render returns what helm renders with these values, which are YAML: the documents, and the notes.
func render(values string) (documents []string, notes string, err error) {
	files, err := packaged()
	if err != nil {
		return nil, "", err
	}
	return renderFiles(files, values)
}

func renderFiles(files map[string][]byte, values string) (documents []string, notes string, err error) {
	var buffered []*archive.BufferedFile
	for name, content := range files {
		buffered = append(buffered, &archive.BufferedFile{Name: name, Data: content})
	}
	loaded, err := loader.LoadFiles(buffered)
	if err != nil {
		return nil, "", err
	}
	var given map[string]any
	if err := yaml.Unmarshal([]byte(values), &given); err != nil {
		return nil, "", err
	}
	release := common.ReleaseOptions{Name: "tallyroll", Namespace: "counting", IsInstall: true}
	all, err := util.ToRenderValues(loaded, given, release, nil)
	if err != nil {
		return nil, "", err
	}
	rendered, err := (engine.Engine{Strict: true}).Render(loaded, all)
	if err != nil {
		return nil, "", err
	}
	for name, text := range rendered {
		if filepath.Ext(name) == ".txt" {
			notes = text
			continue
		}
		for reader := yamlreader.NewYAMLReader(bufio.NewReader(strings.NewReader(text))); ; {
			document, err := reader.Read()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return nil, "", err
			}
			if len(bytes.TrimSpace(document)) > 0 {
				documents = append(documents, string(document))
			}
		}
	}
	return documents, notes, nil
}

func build(t *testing.T, values string) []string {
	t.Helper()
	documents, _, err := render(values)
	require.NoError(t, err)
	return documents
}

const (
	servers = "nats: {url: nats://nats:4222}\nredis: {url: redis://redis:6379/0}\n"
	try     = "try: {enabled: true}\nrls: {enabled: true}\n"
	// all has each kind of object at least once.
	all = `
try: {enabled: true}
secret: {name: passwords, files: {REDIS_PASSWORD_FILE: redis, QUERY_TOKENS_FILE: tokens.yml}}
settings: {LOG_LEVEL: debug, INGEST_MAX_LOAD: 100000000}
image: {repository: registry.example/tallyroll, tag: 1.2.3, pullSecrets: [{name: registry}]}
ingest: {partitions: 4, keda: {enabled: true}, rules: [{stream: ORDERS, subject: "orders.>", count: [{key: orders}]}]}
query: {autoscaling: {enabled: true}, ingress: {host: counts.example.com, className: nginx, tlsSecret: counts}}
collect: {autoscaling: {enabled: true}, ingress: {host: hits.example.com, public: true}}
promql: {ingress: {host: promql.example.com}, settings: {PROMQL_HOSTS: "*"}}
rls: {enabled: true, autoscaling: {enabled: true}}
podMonitor: {enabled: true}
prometheusRule: {enabled: true}
dashboard: {enabled: true}
serviceAccount: {annotations: {example.com/role: counts}}
tokens: [{name: shop, sha256: 2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae, may: [read]}]
`
	// rules lets watch run.
	rules = "watch: {file: {targets: {a: {nats: a}}, rules: [{name: b, key: c, window: 5m, above: 1, to: [a]}]}}\n"
)

// kinds are the resources that Kubernetes itself has: an unknown field is a slip.
var kinds = map[string]func() any{
	"apps/v1 Deployment":                     func() any { return &appsv1.Deployment{} },
	"apps/v1 StatefulSet":                    func() any { return &appsv1.StatefulSet{} },
	"autoscaling/v2 HorizontalPodAutoscaler": func() any { return &autoscalingv2.HorizontalPodAutoscaler{} },
	"networking.k8s.io/v1 Ingress":           func() any { return &networkingv1.Ingress{} },
	"networking.k8s.io/v1 NetworkPolicy":     func() any { return &networkingv1.NetworkPolicy{} },
	"policy/v1 PodDisruptionBudget":          func() any { return &policyv1.PodDisruptionBudget{} },
	"v1 ConfigMap":                           func() any { return &corev1.ConfigMap{} },
	"v1 Service":                             func() any { return &corev1.Service{} },
	"v1 ServiceAccount":                      func() any { return &corev1.ServiceAccount{} },
}

// custom are the resources that Kubernetes itself does not have.
var custom = []string{"keda.sh/v1alpha1 ScaledObject", "monitoring.coreos.com/v1 PodMonitor",
	"monitoring.coreos.com/v1 PrometheusRule"}

// typed reads resources strictly; custom ones stay mappings.
func typed(t *testing.T, documents []string) (resources []any) {
	t.Helper()
	for _, document := range documents {
		var head metav1.PartialObjectMetadata
		require.NoErrorf(t, yaml.Unmarshal([]byte(document), &head), "%s", document)
		kind := head.APIVersion + " " + head.Kind
		empty, ok := kinds[kind]
		if slices.Contains(custom, kind) {
			empty, ok = func() any { return &map[string]any{} }, true
		}
		require.Truef(t, ok, "Kubernetes has no %s: add it to kinds or to custom", kind)
		resource := empty()
		require.NoErrorf(t, yaml.UnmarshalStrict([]byte(document), resource), "%s", document)
		resources = append(resources, resource)
	}
	return resources
}

// find returns the resource with the name that it has without the release's.
func find[T metav1.Object](t *testing.T, resources []any, name string) (found T) {
	t.Helper()
	for _, resource := range resources {
		if r, ok := resource.(T); ok && r.GetName() == "tallyroll-"+name {
			return r
		}
	}
	t.Fatalf("no %T %s", found, name)
	return found
}

func TestChart(t *testing.T) {
	reference, err := os.ReadFile("../../../docs/settings.md")
	require.NoError(t, err)
	for name, c := range map[string]struct {
		values string
		more   map[string]int // objects in addition to those of five programs
	}{
		"servers": {servers, map[string]int{"Deployment": -1, "PodDisruptionBudget": -1, "NetworkPolicy": -1}},
		"rules":   {servers + rules, nil},
		"one program": {servers + "query: {enabled: false}\ncollect: {enabled: false}\npromql: {enabled: false}\n" +
			"watch: {enabled: false}\nnetworkPolicy: {enabled: false}",
			map[string]int{"Deployment": -4, "PodDisruptionBudget": -4, "NetworkPolicy": -5, "Service": -3}},
		"try": {try, map[string]int{"Deployment": 1, "PodDisruptionBudget": 1, "NetworkPolicy": 3, "Service": 3,
			"StatefulSet": 2, "ConfigMap": 1}},
		"all": {all, map[string]int{"Deployment": 1, "PodDisruptionBudget": 1, "NetworkPolicy": 3, "Service": 3,
			"StatefulSet": 2, "ConfigMap": 2, "Ingress": 3, "HorizontalPodAutoscaler": 3, "ScaledObject": 1, "PodMonitor": 6, "PrometheusRule": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			want := map[string]int{"ConfigMap": 2, "ServiceAccount": 1, "Service": 3, "Deployment": 5, "NetworkPolicy": 5, "PodDisruptionBudget": 5}
			for kind, n := range c.more {
				want[kind] += n
			}
			maps.DeleteFunc(want, func(_ string, n int) bool { return n == 0 })
			documents, got := build(t, c.values), map[string]int{}
			for _, document := range documents {
				var head metav1.PartialObjectMetadata
				require.NoError(t, yaml.Unmarshal([]byte(document), &head))
				got[head.Kind]++
				require.Equal(t, "counting", head.Namespace)
			}
			require.Equal(t, want, got)
			resources := typed(t, documents)
			for _, resource := range resources {
				check(t, resource, string(reference))
			}
			if name != "one program" { // it has no NetworkPolicy
				require.Empty(t, practices(resources))
			}
		})
	}
}

// check compares a resource with the settings and probes of the programs.
func check(t *testing.T, resource any, reference string) {
	t.Helper()
	switch r := resource.(type) {
	case *corev1.ConfigMap:
		for key := range r.Data {
			if r.Name == "tallyroll-settings" && !isSetting(reference, key) {
				t.Errorf("docs/settings.md has no setting %s, which is in the ConfigMap %s", key, r.Name)
			}
		}
	case *appsv1.Deployment:
		c := r.Spec.Template.Spec.Containers[0]
		if !slices.Contains(programs, c.Name) || !slices.Equal(c.Args, []string{c.Name}) || r.Name != "tallyroll-"+c.Name {
			t.Errorf("%s runs %q", r.Name, c.Args)
		}
		for _, env := range c.Env {
			if !isSetting(reference, env.Name) {
				t.Errorf("docs/settings.md has no setting %s, which %s has", env.Name, r.Name)
			}
		}
		if live, ready := c.LivenessProbe, c.ReadinessProbe; live.HTTPGet.Path != "/healthz" || ready.HTTPGet.Path != "/readyz" {
			t.Errorf("%s: is asked for %s and %s", r.Name, live.HTTPGet.Path, ready.HTTPGet.Path)
		}
	}
}

// isSetting reports whether the reference has a setting, or for a secret's file the setting without _FILE.
func isSetting(reference, name string) bool {
	return strings.Contains(reference, "| `"+name+"` |") ||
		strings.Contains(reference, "| `"+strings.TrimSuffix(name, "_FILE")+"` |")
}

// The values reach the programs.
func TestValues(t *testing.T) {
	resources := typed(t, build(t, all))
	settings := find[*corev1.ConfigMap](t, resources, "settings").Data
	require.Equal(t, map[string]string{
		"NATS_URL": "nats://tallyroll-nats:4222", "REDIS_URL": "redis://tallyroll-redis:6379/0",
		"REDIS_PASSWORD_FILE": "/etc/tallyroll/redis", "QUERY_TOKENS_FILE": "/etc/tallyroll/tokens.yml",
		"SHUTDOWN_DELAY": "5s", "LOG_LEVEL": "debug", "INGEST_MAX_LOAD": "100000000",
	}, settings)
	files := find[*corev1.ConfigMap](t, resources, "files").Data
	require.Equal(t, "- count:\n  - key: orders\n  stream: ORDERS\n  subject: orders.>", files["rules.yml"])
	require.Contains(t, files["limits.yml"], "limits:\n- envoy:\n    descriptor:\n    - as: ip")

	query := find[*appsv1.Deployment](t, resources, "query").Spec.Template.Spec
	require.Equal(t, "registry.example/tallyroll:1.2.3", query.Containers[0].Image)
	require.Equal(t, []corev1.LocalObjectReference{{Name: "registry"}}, query.ImagePullSecrets)
	require.Equal(t, []corev1.EnvVar{{Name: "QUERY_ADDR", Value: "0.0.0.0:8080"}, {Name: "QUERY_HOSTS", Value: "counts.example.com"},
		{Name: "QUERY_LIMITS_FILE", Value: "/etc/tallyroll-files/limits.yml"}}, query.Containers[0].Env)
	promql := find[*appsv1.Deployment](t, resources, "promql").Spec.Template.Spec
	require.Contains(t, promql.Containers[0].Env, corev1.EnvVar{Name: "PROMQL_HOSTS", Value: "*"}, "a setting wins")
	ingress := find[*networkingv1.Ingress](t, resources, "query").Spec
	require.Equal(t, "nginx", *ingress.IngressClassName)
	require.Equal(t, []networkingv1.IngressTLS{{Hosts: []string{"counts.example.com"}, SecretName: "counts"}}, ingress.TLS)

	checksum := func(values string) string {
		query := find[*appsv1.Deployment](t, typed(t, build(t, values)), "query")
		return query.Spec.Template.Annotations["checksum/settings"]
	}
	require.NotEqual(t, checksum(servers), checksum(servers+"settings: {LOG_LEVEL: debug}"), "a change of settings")
	require.Equal(t, checksum(servers), checksum(servers+"limits: []"), "a file that is read again")
}

// Where web pages count, strangers name counters.
func TestNamesOfPagesAreBounded(t *testing.T) {
	bound := func(values string) string {
		env := find[*appsv1.Deployment](t, typed(t, build(t, servers+values)), "ingest").Spec.Template.Spec.Containers[0].Env
		i := slices.IndexFunc(env, func(e corev1.EnvVar) bool { return e.Name == "INGEST_MAX_NAMES" })
		if i < 0 {
			return ""
		}
		return env[i].Value
	}
	require.Empty(t, bound(""))
	require.Equal(t, "web.=10000", bound("collect: {settings: {COLLECT_BEACON_PREFIX: web.}}"))
	require.Equal(t, "=5000", bound("collect: {settings: {COLLECT_BEACON_PREFIX: web.}}\ningest: {settings: {INGEST_MAX_NAMES: '=5000'}}"))
}

// More workers than streams would stand by, and without the mapping no hit would reach a stream.
func TestWorkersAndStreams(t *testing.T) {
	resources := typed(t, build(t, all))
	ingest := find[*appsv1.Deployment](t, resources, "ingest").Spec
	require.Nil(t, ingest.Replicas, "KEDA sets them")
	require.Contains(t, ingest.Template.Spec.Containers[0].Env, corev1.EnvVar{Name: "INGEST_PARTITIONS", Value: "4"})
	require.Contains(t, find[*corev1.ConfigMap](t, resources, "nats").Data["nats.conf"],
		`mappings { "hits.>": "hitp.{{partition(4)}}.>" }`)
	i := slices.IndexFunc(resources, func(r any) bool {
		m, ok := r.(*map[string]any)
		return ok && (*m)["kind"] == "ScaledObject"
	})
	scaled := (*resources[i].(*map[string]any))["spec"].(map[string]any)
	require.EqualValues(t, 4, scaled["maxReplicaCount"])
	require.Equal(t, map[string]any{"name": "tallyroll-ingest"}, scaled["scaleTargetRef"])
}

func TestRefusedValues(t *testing.T) {
	for values, want := range map[string]string{
		"":                              "no NATS: set nats.url",
		"nats: {url: nats://nats}":      "no Redis: set redis.url",
		servers + "qeury: {}":           "'qeury' not allowed",
		servers + "query: {replica: 3}": "/query",
		servers + "watch: {autoscaling: {enabled: true}}":                              "/watch",
		servers + "ingest: {partitions: 0}":                                            "/ingest/partitions",
		servers + "settings: {log: debug}":                                             "'log' not allowed",
		servers + "secret: {files: {REDIS_PASSWORD_FILE: redis}}":                      "/secret/name",
		servers + "objects: {deployment: {}}":                                          "'deployment' not allowed",
		servers + "objects: {Deployment: {patch: [{op: move, path: /a}]}}":             "/objects/Deployment/patch/0/op",
		servers + "objects: {Deployment: {patch: [{op: add, path: /a}]}}":              "missing property 'value'",
		servers + "objects: {Deployment/query: {patch: [{op: remove, path: /a/b/c}]}}": "objects: /a/b/c of Deployment/query",
		servers + "objects: {Deployment/qeury: {merge: {a: 1}}}": "objects: Deployment/qeury is not rendered with these values: " +
			"must be one of ConfigMap, ConfigMap/files",
		servers + "query: {replicas: 20, autoscaling: {enabled: true}}":            "query.replicas is more than query.autoscaling.maxReplicas: lower",
		try + "redis: {url: redis://redis}":                                        "try.enabled brings a Redis: remove redis.url and REDIS_URL",
		try + "settings: {NATS_URL: nats://nats}":                                  "try.enabled brings a NATS: remove nats.url and NATS_URL",
		servers + "query: {settings: {QUERY_ADDR: '127.0.0.1:80'}}":                `QUERY_ADDR is "127.0.0.1:80": must be :PORT`,
		servers + "query: {settings: {QUERY_TLS_CLIENT_CA: a, QUERY_TLS_CERT: b}}": "QUERY_TLS_CLIENT_CA needs QUERY_METRICS_ADDR",
		servers + "rls: {enabled: true}":                                           "rls.enabled needs limits that have envoy",
		servers + "limits: [{name: a, window: 1m}]":                                "missing property 'max'",
		servers + "limits: [{name: a, window: 1m, mx: 5, max: 5}]":                 "'mx' not allowed",
		servers + "ingest: {rules: [{stream: A, subject: a}]}":                     "at '/ingest/rules/0': missing property 'count'",
		servers + "watch: {file: {targets: {a: {nats: b}}}}":                       "at '/watch/file': missing property 'rules'",
		servers + strings.Replace(rules, "5m", "5x", 1):                            "at '/watch/file/rules/0/window'",
		servers + "tokens: [{name: a, sha256: hunter2, may: [read]}]":              "at '/tokens/0/sha256'",
		servers + "tokens: [{name: a, sha256: hunter2, may: [raed]}]":              "at '/tokens/0/may/0'",
	} {
		t.Run(values, func(t *testing.T) {
			_, _, err := render(values)
			require.ErrorContains(t, err, want)
		})
	}
}

// Every object can be changed, and a change of one leaves the others as they are.
func TestObjects(t *testing.T) {
	resources := typed(t, build(t, servers+rules+`
objects:
  Deployment: {merge: {spec: {template: {spec: {nodeSelector: {disk: ssd}}}}}}
  Deployment/query:
    merge: {spec: {replicas: 5}}
    patch:
      - {op: add, path: /spec/template/spec/containers/0/env/-, value: {name: LOG_LEVEL, value: debug}}
      - {op: add, path: /spec/template/spec/containers/0/env/0, value: {name: LOG_FORMAT, value: json}}
      - {op: replace, path: /spec/template/spec/containers/0/args/0, value: audit}
      - {op: remove, path: /spec/template/spec/containers/0/ports/0}
      - {op: remove, path: /spec/template/spec/affinity}
      - {op: add, path: /metadata/labels/example.com~1team, value: web}
`))
	query, watch := find[*appsv1.Deployment](t, resources, "query"), find[*appsv1.Deployment](t, resources, "watch")
	c := query.Spec.Template.Spec.Containers[0]
	require.EqualValues(t, 5, *query.Spec.Replicas)
	require.Equal(t, "web", query.Labels["example.com/team"])
	require.Equal(t, corev1.EnvVar{Name: "LOG_FORMAT", Value: "json"}, c.Env[0])
	require.Equal(t, corev1.EnvVar{Name: "LOG_LEVEL", Value: "debug"}, c.Env[len(c.Env)-1])
	require.Equal(t, []string{"audit"}, c.Args)
	require.Empty(t, c.Ports)
	require.Nil(t, query.Spec.Template.Spec.Affinity)
	require.EqualValues(t, 2, *watch.Spec.Replicas)
	for _, d := range []*appsv1.Deployment{query, watch} {
		require.Equal(t, map[string]string{"disk": "ssd"}, d.Spec.Template.Spec.NodeSelector)
	}
}

func TestNotes(t *testing.T) {
	_, notes, err := render(try + "query: {autoscaling: {enabled: true}, ingress: {host: a.example.com, public: true}}\n" +
		"promql: {settings: {PROMQL_TOKENS: a}}\nnetworkPolicy: {enabled: false}")
	require.NoError(t, err)
	for _, want := range []string{"ingest   2 replicas\n", "query    2 to 10 replicas, OPEN to all who reach it, public as a.example.com\n",
		"promql   2 replicas, with tokens\n", "No NetworkPolicy: "} {
		require.Contains(t, notes, want)
	}
	require.Contains(t, notes, "kubectl -n counting port-forward service/tallyroll-query 8080 &")
	require.Contains(t, notes, "curl 'http://127.0.0.1:8080/v1/total?key=hello&window=1h'")
	require.Contains(t, notes, "NATS and Redis are one pod each")
	_, notes, err = render(servers)
	require.NoError(t, err)
	require.Contains(t, notes, "watch    does not run: watch.file is empty\n")
	require.Contains(t, notes, `NetworkPolicies let in [{"namespaceSelector":{}}]`)
}
