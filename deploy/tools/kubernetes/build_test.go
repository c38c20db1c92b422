package kubernetes

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// programs that are deployed.
var programs = []string{"collect", "ingest", "promql", "query", "rls", "watch"}

func build(t *testing.T, folder string) resmap.ResMap {
	t.Helper()
	all, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join("../../kubernetes", folder))
	require.NoError(t, err)
	return all
}

// kinds are the resources that Kubernetes itself has: an unknown field is a slip.
var kinds = map[string]func() any{
	"apps/v1 Deployment":                 func() any { return &appsv1.Deployment{} },
	"apps/v1 StatefulSet":                func() any { return &appsv1.StatefulSet{} },
	"networking.k8s.io/v1 NetworkPolicy": func() any { return &networkingv1.NetworkPolicy{} },
	"policy/v1 PodDisruptionBudget":      func() any { return &policyv1.PodDisruptionBudget{} },
	"v1 ConfigMap":                       func() any { return &corev1.ConfigMap{} },
	"v1 Namespace":                       func() any { return &corev1.Namespace{} },
	"v1 Service":                         func() any { return &corev1.Service{} },
}

// custom are the resources that Kubernetes itself does not have.
var custom = []string{"keda.sh/v1alpha1 ScaledObject", "monitoring.coreos.com/v1 PodMonitor"}

// typed reads resources strictly, and leaves out custom ones.
func typed(t *testing.T, all resmap.ResMap) (resources []any) {
	t.Helper()
	for _, one := range all.Resources() {
		kind := one.GetApiVersion() + " " + one.GetKind()
		if slices.Contains(custom, kind) {
			continue
		}
		empty, ok := kinds[kind]
		require.Truef(t, ok, "Kubernetes has no %s: add it to kinds or to custom", kind)
		resource := empty()
		require.NoErrorf(t, yaml.UnmarshalStrict([]byte(one.MustYaml()), resource), "%s", one.MustYaml())
		resources = append(resources, resource)
	}
	return resources
}

func TestBuild(t *testing.T) {
	reference, err := os.ReadFile("../../../docs/settings.md")
	require.NoError(t, err)
	for folder, more := range map[string][]string{
		"base":          nil,
		"overlays/try":  {"ConfigMap", "ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service", "NetworkPolicy", "NetworkPolicy", "Service", "Service", "StatefulSet", "StatefulSet"},
		"overlays/keda": {"PodMonitor", "ScaledObject"},
	} {
		t.Run(folder, func(t *testing.T) {
			all := build(t, folder)
			want := slices.Concat([]string{"ConfigMap", "ConfigMap", "Namespace", "Service", "Service", "Service"}, more)
			for range len(programs) - 1 { // rls is for Envoy alone, and try has it
				want = append(want, "Deployment", "NetworkPolicy", "PodDisruptionBudget")
			}
			slices.Sort(want)
			var got []string
			for _, one := range all.Resources() {
				got = append(got, one.GetKind())
			}
			resources := typed(t, all)
			for _, resource := range resources {
				check(t, resource, string(reference))
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("there are %v,\nwant %v", got, want)
			}
			require.Empty(t, practices(resources))
		})
	}
}

// check compares a resource with the settings and probes of the programs.
func check(t *testing.T, resource any, reference string) {
	t.Helper()
	switch r := resource.(type) {
	case *corev1.ConfigMap:
		for key := range r.Data {
			if strings.HasPrefix(r.Name, "tallyroll") && !strings.Contains(reference, "| `"+key+"` |") {
				t.Errorf("docs/settings.md has no setting %s, which is in the ConfigMap %s", key, r.Name)
			}
		}
	case *appsv1.Deployment:
		c := r.Spec.Template.Spec.Containers[0]
		if !slices.Equal(c.Args, []string{r.Name}) || !slices.Contains(programs, r.Name) {
			t.Errorf("%s runs %q", r.Name, c.Args)
		}
		for _, env := range c.Env {
			if env.Name != "GOMEMLIMIT" && !strings.Contains(reference, "| `"+env.Name+"` |") {
				t.Errorf("docs/settings.md has no setting %s, which %s has", env.Name, r.Name)
			}
		}
		if live, ready := c.LivenessProbe, c.ReadinessProbe; live.HTTPGet.Path != "/healthz" || ready.HTTPGet.Path != "/readyz" {
			t.Errorf("%s: is asked for %s and %s", r.Name, live.HTTPGet.Path, ready.HTTPGet.Path)
		}
	}
}

// More workers than streams would stand by.
func TestWorkersAndStreams(t *testing.T) {
	all := build(t, "overlays/keda")
	most, streams := "", ""
	for _, one := range all.Resources() {
		fields, err := one.Map()
		require.NoError(t, err)
		switch one.GetKind() {
		case "ScaledObject":
			most = fmt.Sprint(fields["spec"].(map[string]any)["maxReplicaCount"])
		case "ConfigMap":
			if n, set := fields["data"].(map[string]any)["INGEST_PARTITIONS"]; set {
				streams = fmt.Sprint(n)
			}
		}
	}
	if most == "" || most != streams {
		t.Errorf("there are up to %s workers for %s streams", most, streams)
	}
}
