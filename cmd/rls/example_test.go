package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	bootstrap "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	filter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	manager "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protopath"
	"google.golang.org/protobuf/reflect/protorange"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"tallyroll/internal/limit"
	"tallyroll/tests/stack"
)

const examples = "../../deploy/examples"

// readExample reads an example as Envoy does: each field must be known, and keep to the rules of Envoy's
// messages.
func readExample(t *testing.T, name string) *bootstrap.Bootstrap {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(examples, name))
	require.NoError(t, err)
	var tree map[string]any
	require.NoError(t, yaml.Unmarshal(text, &tree))
	text, err = json.Marshal(tree)
	require.NoError(t, err)
	out := &bootstrap.Bootstrap{}
	require.NoErrorf(t, protojson.Unmarshal(text, out), "%s", name)
	validate(t, name, out)
	return out
}

// validate checks a message and all in it, those in fields of any type, too.
func validate(t *testing.T, name string, message proto.Message) {
	t.Helper()
	checked := 0
	err := protorange.Range(message.ProtoReflect(), func(p protopath.Values) error {
		inner, ok := p.Index(-1).Value.Interface().(protoreflect.Message)
		if !ok {
			return nil
		}
		if v, ok := inner.Interface().(interface{ Validate() error }); ok {
			checked++
			return v.Validate()
		}
		return nil
	})
	if err != nil || checked < 20 {
		t.Errorf("%s: %v, after %d messages", name, err, checked)
	}
}

func TestExamplesOfEnvoy(t *testing.T) {
	t.Parallel()
	readExample(t, "envoy.yaml")
	config := readExample(t, "envoy-ratelimit.yaml")
	var routes manager.HttpConnectionManager
	unpack(t, config.StaticResources.Listeners[0].FilterChains[0].Filters[0].GetTypedConfig(), &routes)
	var limits filter.RateLimit
	unpack(t, routes.HttpFilters[0].GetTypedConfig(), &limits)
	if got := limits.RateLimitService.GrpcService.GetEnvoyGrpc().ClusterName; got != config.StaticResources.Clusters[1].Name {
		t.Errorf("the filter asks the cluster %q", got)
	}

	file, err := filepath.Abs(filepath.Join(examples, "limits.yml"))
	require.NoError(t, err)
	r := start(t, stack.Redis(t), "", "RLS_LIMITS_FILE="+file)
	host := routes.GetRouteConfig().VirtualHosts[0]
	ask := func(limits string, all ...[]*route.RateLimit) *rls.RateLimitResponse {
		t.Helper()
		req := &rls.RateLimitRequest{Domain: "edge"}
		for _, some := range all {
			for _, l := range some {
				req.Descriptors = append(req.Descriptors, sentFor(t, l))
			}
		}
		out, err := r.send(req)
		require.NoError(t, err)
		got := ""
		for _, s := range out.Statuses {
			got += s.CurrentLimit.GetName() + " "
		}
		if got != limits {
			t.Errorf("the limits are %q, want %q", got, limits)
		}
		return out
	}
	login := host.Routes[0].GetRoute().RateLimits
	for i := range 6 {
		out := ask("login-per-address per-address ", login, host.RateLimits)
		if over := out.OverallCode == rls.RateLimitResponse_OVER_LIMIT; over != (i == 5) {
			t.Errorf("login %d: %v", i, out)
		}
	}
	ask("per-address ", host.RateLimits)
	if limits.Domain != "edge" || limits.Timeout.AsDuration() <= limit.DefaultTimeout {
		t.Errorf("the filter has the domain %q and waits for %v", limits.Domain, limits.Timeout.AsDuration())
	}
}

func unpack(t *testing.T, packed *anypb.Any, into proto.Message) {
	t.Helper()
	require.NoError(t, packed.UnmarshalTo(into))
}

// sentFor is the descriptor that Envoy makes of the actions in its settings.
func sentFor(t *testing.T, l *route.RateLimit) *ratelimit.RateLimitDescriptor {
	t.Helper()
	out := &ratelimit.RateLimitDescriptor{}
	for _, a := range l.Actions {
		e := &ratelimit.RateLimitDescriptor_Entry{}
		switch {
		case a.GetRemoteAddress() != nil:
			e.Key, e.Value = "remote_address", "192.0.2.7"
		case a.GetGenericKey() != nil:
			e.Key, e.Value = a.GetGenericKey().DescriptorKey, a.GetGenericKey().DescriptorValue
		default:
			t.Fatalf("what does Envoy send for %v?", a)
		}
		out.Entries = append(out.Entries, e)
	}
	return out
}
