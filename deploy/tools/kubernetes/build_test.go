package kubernetes

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/zegl/kube-score/config"
	ks "github.com/zegl/kube-score/domain"
	"github.com/zegl/kube-score/parser"
	"github.com/zegl/kube-score/score"
	"github.com/zegl/kube-score/score/checks"
	"github.com/zegl/kube-score/scorecard"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// exceptions are the checks of kube-score that do not hold here, and why.
var exceptions = map[string]string{
	"container-image-pull-policy": "tags are versions, which do not change; an image that was loaded by hand is in no registry",
}

// programs that are deployed.
var programs = []string{"collect", "ingest", "promql", "query", "rls", "watch"}

func build(t *testing.T, folder string) resmap.ResMap {
	t.Helper()
	all, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join("../../kubernetes", folder))
	require.NoError(t, err)
	return all
}

// kinds are the resources that Kubernetes itself has: a field that it does not know is a slip.
var kinds = map[string]func() any{
	"ConfigMap":           func() any { return &corev1.ConfigMap{} },
	"Deployment":          func() any { return &appsv1.Deployment{} },
	"Namespace":           func() any { return &corev1.Namespace{} },
	"NetworkPolicy":       func() any { return &networkingv1.NetworkPolicy{} },
	"PodDisruptionBudget": func() any { return &policyv1.PodDisruptionBudget{} },
	"Service":             func() any { return &corev1.Service{} },
	"StatefulSet":         func() any { return &appsv1.StatefulSet{} },
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
				check(t, one.GetKind(), []byte(one.MustYaml()), string(reference))
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("there are %v,\nwant %v", got, want)
			}
			scoreAll(t, all)
		})
	}
}

// check reads a resource strictly, and looks at what every pod must have.
func check(t *testing.T, kind string, text []byte, reference string) {
	t.Helper()
	empty, ok := kinds[kind]
	if !ok {
		return // a custom resource, which is not Kubernetes's own
	}
	resource := empty()
	if err := yaml.UnmarshalStrict(text, resource); err != nil {
		t.Fatalf("%v in\n%s", err, text)
	}
	switch r := resource.(type) {
	case *corev1.ConfigMap:
		for key := range r.Data {
			if strings.HasPrefix(r.Name, "tallyroll") && !strings.Contains(reference, "| `"+key+"` |") {
				t.Errorf("docs/settings.md has no setting %s, which is in the ConfigMap %s", key, r.Name)
			}
		}
	case *appsv1.Deployment:
		checkPod(t, r.Name, r.Spec.Template.Spec)
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
	case *appsv1.StatefulSet:
		checkPod(t, r.Name, r.Spec.Template.Spec)
	}
}

func checkPod(t *testing.T, name string, pod corev1.PodSpec) {
	t.Helper()
	user, c := pod.SecurityContext, pod.Containers[0].SecurityContext
	if *pod.AutomountServiceAccountToken || !*user.RunAsNonRoot || *user.RunAsUser != 65532 || user.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault ||
		!*c.ReadOnlyRootFilesystem || *c.AllowPrivilegeEscalation || !slices.Equal(c.Capabilities.Drop, []corev1.Capability{"ALL"}) {
		t.Errorf("%s has rights that it does not need: %+v, %+v", name, user, c)
	}
}

// input is what kube-score reads.
type input struct {
	io.Reader
	name string
}

func (i input) Name() string { return i.name }

// scoreAll asks kube-score, which must find nothing but the exceptions.
func scoreAll(t *testing.T, all resmap.ResMap) {
	t.Helper()
	text, err := all.AsYaml()
	require.NoError(t, err)
	p, err := parser.New(&parser.Config{})
	require.NoError(t, err)
	objects, err := p.ParseFiles([]ks.NamedReader{input{bytes.NewReader(text), "built.yaml"}})
	require.NoError(t, err)
	// A limit of the processor only makes a pod wait while there is some to spare.
	run := &config.RunConfiguration{IgnoreContainerCpuLimitRequirement: true, KubernetesVersion: config.Semver{Major: 1, Minor: 30}, MinReplicasDeployment: 2, MinReplicasHPA: 2}
	card, err := score.Score(objects, score.RegisterAllChecks(objects, &checks.Config{}, run), run)
	require.NoError(t, err)
	scored := 0
	for _, name := range slices.Sorted(maps.Keys(*card)) {
		object := (*card)[name]
		for _, found := range object.Checks {
			scored++
			if found.Skipped || found.Grade > scorecard.GradeWarning || exceptions[found.Check.ID] != "" {
				continue
			}
			t.Errorf("kube-score: %s %s: %s: %s", object.TypeMeta.Kind, object.ObjectMeta.Name, found.Check.ID, fmt.Sprint(found.Comments))
		}
	}
	if scored < 50 {
		t.Errorf("kube-score has looked at %d things only", scored)
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
