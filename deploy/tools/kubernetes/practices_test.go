package kubernetes

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// workload is what a Deployment and a StatefulSet have in common.
type workload struct {
	kind, name string
	replicas   *int32 // nil: an autoscaler sets it
	selector   *metav1.LabelSelector
	template   corev1.PodTemplateSpec
}

func (w workload) labels() labels.Set { return w.template.Labels }

func selects(selector *metav1.LabelSelector, w workload) bool {
	s, err := metav1.LabelSelectorAsSelector(selector)
	return err == nil && s.Matches(w.labels())
}

// practices returns what resources of one namespace lack to run safely: each pod, and how Services,
// NetworkPolicies and PodDisruptionBudgets belong to pods.
func practices(resources []any) (findings []string) {
	found := func(kind, name, format string, args ...any) {
		findings = append(findings, kind+" "+name+": "+fmt.Sprintf(format, args...))
	}
	var workloads []workload
	for _, resource := range resources {
		switch r := resource.(type) {
		case *appsv1.Deployment:
			workloads = append(workloads, workload{r.Kind, r.Name, r.Spec.Replicas, r.Spec.Selector, r.Spec.Template})
		case *appsv1.StatefulSet:
			workloads = append(workloads, workload{r.Kind, r.Name, r.Spec.Replicas, r.Spec.Selector, r.Spec.Template})
		}
	}
	selected := func(matches func(workload) bool) bool { return slices.ContainsFunc(workloads, matches) }
	some := func(matches func(resource any) bool) bool { return slices.ContainsFunc(resources, matches) }

	for _, w := range workloads {
		served := some(func(r any) bool {
			s, ok := r.(*corev1.Service)
			return ok && labels.SelectorFromSet(s.Spec.Selector).Matches(w.labels())
		})
		if !selects(w.selector, w) {
			found(w.kind, w.name, "its selector does not match its pods")
		}
		if !some(func(r any) bool {
			p, ok := r.(*networkingv1.NetworkPolicy)
			return ok && selects(&p.Spec.PodSelector, w)
		}) {
			found(w.kind, w.name, "no NetworkPolicy selects its pods")
		}
		if w.kind == "Deployment" && !some(func(r any) bool {
			p, ok := r.(*policyv1.PodDisruptionBudget)
			return ok && selects(p.Spec.Selector, w)
		}) {
			found(w.kind, w.name, "no PodDisruptionBudget selects its pods")
		}
		if w.kind == "Deployment" && served && w.replicas != nil && *w.replicas < 2 {
			found(w.kind, w.name, "a Service needs two replicas")
		}
		if (w.replicas == nil || *w.replicas > 1) && !apart(w) {
			found(w.kind, w.name, "no podAntiAffinity keeps its pods on different nodes")
		}
		for _, lack := range podLacks(w.template.Spec) {
			found(w.kind, w.name, "%s", lack)
		}
	}
	for _, resource := range resources {
		switch r := resource.(type) {
		case *appsv1.Deployment:
			if strategy := r.Spec.Strategy.Type; strategy != "" && strategy != appsv1.RollingUpdateDeploymentStrategyType {
				found(r.Kind, r.Name, "its strategy must be RollingUpdate, not %s", strategy)
			}
		case *appsv1.StatefulSet:
			if !some(func(other any) bool {
				s, ok := other.(*corev1.Service)
				return ok && s.Name == r.Spec.ServiceName && s.Spec.ClusterIP == corev1.ClusterIPNone
			}) {
				found(r.Kind, r.Name, "no headless Service is called %q", r.Spec.ServiceName)
			}
		case *corev1.Service:
			if r.Spec.Type != "" && r.Spec.Type != corev1.ServiceTypeClusterIP {
				found(r.Kind, r.Name, "its type must be ClusterIP, not %s", r.Spec.Type)
			}
			if len(r.Spec.Selector) == 0 {
				found(r.Kind, r.Name, "it has no selector")
			}
			for _, port := range r.Spec.Ports {
				if !selected(func(w workload) bool {
					return labels.SelectorFromSet(r.Spec.Selector).Matches(w.labels()) && listens(w.template.Spec, port.TargetPort)
				}) {
					found(r.Kind, r.Name, "no pod that it selects has the port %s", port.TargetPort.String())
				}
			}
		case *networkingv1.Ingress:
			for _, rule := range r.Spec.Rules {
				for _, path := range rule.HTTP.Paths {
					if to := path.Backend.Service; !some(func(other any) bool { return offers(other, to) }) {
						found(r.Kind, r.Name, "no Service %s has the port %s", to.Name, to.Port.Name)
					}
				}
			}
		case *autoscalingv2.HorizontalPodAutoscaler:
			if !selected(func(w workload) bool {
				return w.kind == r.Spec.ScaleTargetRef.Kind && w.name == r.Spec.ScaleTargetRef.Name && w.replicas == nil
			}) {
				found(r.Kind, r.Name, "it scales no workload that leaves its replicas open")
			}
			if r.Spec.MinReplicas == nil || *r.Spec.MinReplicas < 2 || *r.Spec.MinReplicas > r.Spec.MaxReplicas {
				found(r.Kind, r.Name, "it needs two replicas or more, and at most as many as it may have")
			}
		case *networkingv1.NetworkPolicy:
			if !selected(func(w workload) bool { return selects(&r.Spec.PodSelector, w) }) {
				found(r.Kind, r.Name, "it selects no pod")
			}
		case *policyv1.PodDisruptionBudget:
			if !selected(func(w workload) bool { return selects(r.Spec.Selector, w) }) {
				found(r.Kind, r.Name, "it selects no pod")
			}
			if r.Spec.MinAvailable == nil && r.Spec.MaxUnavailable == nil {
				found(r.Kind, r.Name, "it has neither minAvailable nor maxUnavailable")
			}
		}
	}
	return findings
}

// apart reports whether the pods of a workload prefer different nodes, or must have them.
func apart(w workload) bool {
	affinity := w.template.Spec.Affinity
	if affinity == nil || affinity.PodAntiAffinity == nil {
		return false
	}
	terms := slices.Clone(affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	for _, preferred := range affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
		terms = append(terms, preferred.PodAffinityTerm)
	}
	return slices.ContainsFunc(terms, func(term corev1.PodAffinityTerm) bool {
		return term.TopologyKey == corev1.LabelHostname && selects(term.LabelSelector, w)
	})
}

// offers reports whether a resource is the Service of a backend and has its port.
func offers(resource any, backend *networkingv1.IngressServiceBackend) bool {
	s, ok := resource.(*corev1.Service)
	return ok && s.Name == backend.Name && slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool {
		return p.Name == backend.Port.Name
	})
}

func listens(pod corev1.PodSpec, port intstr.IntOrString) bool {
	return slices.ContainsFunc(pod.Containers, func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool {
			return port == intstr.FromInt32(p.ContainerPort) || port == intstr.FromString(p.Name)
		})
	})
}

// podLacks returns the rights that a pod has and does not need, and what it should have and has not.
func podLacks(pod corev1.PodSpec) (lacks []string) {
	if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
		lacks = append(lacks, "it has a token of a service account")
	}
	user := pod.SecurityContext
	if user == nil || user.RunAsNonRoot == nil || !*user.RunAsNonRoot || user.RunAsUser == nil || *user.RunAsUser != 65532 {
		lacks = append(lacks, "it does not run as user 65532")
	}
	if user == nil || user.SeccompProfile == nil || user.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		lacks = append(lacks, "it has no seccomp profile")
	}
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		lack := func(format string, args ...any) { lacks = append(lacks, c.Name+": "+fmt.Sprintf(format, args...)) }
		rights := c.SecurityContext
		if rights == nil || rights.ReadOnlyRootFilesystem == nil || !*rights.ReadOnlyRootFilesystem ||
			rights.AllowPrivilegeEscalation == nil || *rights.AllowPrivilegeEscalation ||
			rights.Capabilities == nil || !slices.Equal(rights.Capabilities.Drop, []corev1.Capability{"ALL"}) ||
			len(rights.Capabilities.Add) > 0 || rights.Privileged != nil && *rights.Privileged {
			lack("it has rights that it does not need")
		}
		name := c.Image[strings.LastIndex(c.Image, "/")+1:]
		if _, tag, _ := strings.Cut(name, ":"); tag == "" || tag == "latest" {
			lack("the image %s has no version", c.Image)
		}
		// No limit of the processor: it only makes a pod wait while there is some to spare.
		for _, resource := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
			if _, ok := c.Resources.Requests[resource]; !ok {
				lack("it requests no %s", resource)
			}
			if _, ok := c.Resources.Limits[resource]; !ok && resource != corev1.ResourceCPU {
				lack("it has no limit of %s", resource)
			}
		}
		names := map[string]bool{}
		for _, env := range c.Env {
			if names[env.Name] {
				lack("it sets %s twice", env.Name)
			}
			names[env.Name] = true
		}
	}
	for _, c := range pod.Containers {
		if c.LivenessProbe == nil || c.ReadinessProbe == nil || reflect.DeepEqual(c.LivenessProbe.ProbeHandler, c.ReadinessProbe.ProbeHandler) {
			lacks = append(lacks, c.Name+": it needs a liveness probe and another readiness probe")
		}
	}
	return lacks
}

// Each practice finds what breaks it, in the resources that are deployed.
func TestPractices(t *testing.T) {
	pod := func(spoil func(*corev1.PodSpec)) func([]any) {
		return func(r []any) { spoil(&find[*appsv1.Deployment](t, r, "query").Spec.Template.Spec) }
	}
	container := func(spoil func(*corev1.Container)) func([]any) {
		return pod(func(spec *corev1.PodSpec) { spoil(&spec.Containers[0]) })
	}
	deployment := func(spoil func(*appsv1.DeploymentSpec)) func([]any) {
		return func(r []any) { spoil(&find[*appsv1.Deployment](t, r, "query").Spec) }
	}
	service := func(spoil func(*corev1.ServiceSpec)) func([]any) {
		return func(r []any) { spoil(&find[*corev1.Service](t, r, "query").Spec) }
	}
	other := map[string]string{"app": "other"}
	for _, c := range []struct {
		want  string
		plant func([]any)
	}{
		{"its selector does not match", deployment(func(d *appsv1.DeploymentSpec) { d.Selector.MatchLabels = other })},
		{"no NetworkPolicy selects", func(r []any) {
			find[*networkingv1.NetworkPolicy](t, r, "query").Spec.PodSelector.MatchLabels = other
		}},
		{"NetworkPolicy tallyroll-query: it selects no pod", func(r []any) {
			find[*networkingv1.NetworkPolicy](t, r, "query").Spec.PodSelector.MatchLabels = other
		}},
		{"no PodDisruptionBudget selects", func(r []any) {
			find[*policyv1.PodDisruptionBudget](t, r, "query").Spec.Selector.MatchLabels = other
		}},
		{"PodDisruptionBudget tallyroll-query: it selects no pod", func(r []any) {
			find[*policyv1.PodDisruptionBudget](t, r, "query").Spec.Selector.MatchLabels = other
		}},
		{"neither minAvailable", func(r []any) {
			find[*policyv1.PodDisruptionBudget](t, r, "query").Spec.MaxUnavailable = nil
		}},
		{"a Service needs two replicas", func(r []any) { *find[*appsv1.Deployment](t, r, "promql").Spec.Replicas = 1 }},
		{"scales no workload that leaves its replicas open", deployment(func(d *appsv1.DeploymentSpec) { d.Replicas = new(int32) })},
		{"it needs two replicas or more", func(r []any) {
			*find[*autoscalingv2.HorizontalPodAutoscaler](t, r, "query").Spec.MinReplicas = 1
		}},
		{"no Service tallyroll-query has the port http", service(func(s *corev1.ServiceSpec) { s.Ports[0].Name = "web" })},
		{"no podAntiAffinity", pod(func(p *corev1.PodSpec) { p.Affinity = nil })},
		{"must be RollingUpdate", deployment(func(d *appsv1.DeploymentSpec) { d.Strategy.Type = appsv1.RecreateDeploymentStrategyType })},
		{"no headless Service", func(r []any) { find[*appsv1.StatefulSet](t, r, "nats").Spec.ServiceName = "none" }},
		{"must be ClusterIP", service(func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeNodePort })},
		{"it has no selector", service(func(s *corev1.ServiceSpec) { s.Selector = nil })},
		{"has the port other", service(func(s *corev1.ServiceSpec) { s.Ports[0].TargetPort = intstr.FromString("other") })},
		{"a token of a service account", pod(func(p *corev1.PodSpec) { *p.AutomountServiceAccountToken = true })},
		{"does not run as user", pod(func(p *corev1.PodSpec) { *p.SecurityContext.RunAsUser = 0 })},
		{"no seccomp profile", pod(func(p *corev1.PodSpec) { p.SecurityContext.SeccompProfile = nil })},
		{"rights that it does not need", container(func(c *corev1.Container) { *c.SecurityContext.ReadOnlyRootFilesystem = false })},
		{"has no version", container(func(c *corev1.Container) { c.Image = "localhost:5000/tallyroll" })},
		{"requests no cpu", container(func(c *corev1.Container) { delete(c.Resources.Requests, corev1.ResourceCPU) })},
		{"no limit of memory", container(func(c *corev1.Container) { delete(c.Resources.Limits, corev1.ResourceMemory) })},
		{"sets QUERY_ADDR twice", container(func(c *corev1.Container) { c.Env = append(c.Env, c.Env[0]) })},
		{"needs a liveness probe", container(func(c *corev1.Container) { c.ReadinessProbe = c.LivenessProbe })},
	} {
		t.Run(c.want, func(t *testing.T) {
			resources := typed(t, build(t, all))
			require.Empty(t, practices(resources))
			c.plant(resources)
			require.Contains(t, strings.Join(practices(resources), "\n"), c.want)
		})
	}
}
