package query

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"tallyroll/internal/platform/yamlfile"
	"tallyroll/tests/apitest"
	"tallyroll/tests/schema"
)

// The examples name the schema that an editor checks them by, which is served there, and they pass.
func TestExamplesHaveTheirSchemas(t *testing.T) {
	t.Parallel()
	h := serveFake(t).handler()
	for file, name := range map[string]string{
		"../../deploy/examples/limits.yml": "limits", "../../cmd/dev/limits.yml": "limits",
		"../../deploy/examples/watch.yml": "watch", "../../cmd/dev/watch.yml": "watch",
		"../../deploy/examples/rules.yml": "rules", "../../deploy/examples/tokens.yml": "tokens",
	} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		first := regexp.MustCompile(`^# yaml-language-server: \$schema=http://127\.0\.0\.1:8080(/\S+)\n`).FindSubmatch(text)
		require.NotNil(t, first, "%s: the first line must name its schema", file)
		require.Equal(t, "/schemas/"+name+".json", string(first[1]))
		var served yamlfile.Schema
		require.NoError(t, json.Unmarshal(apitest.ReadBody(t, apitest.Send(h, http.MethodGet, string(first[1]), "")), &served))
		require.Equal(t, "https://json-schema.org/draft/2020-12/schema", served["$schema"])
		require.NoError(t, schema.Check(schemas[name](), text), file)
	}
}

// What the chart's values put into files has the form of these files, too.
func TestChartHasFilesOfTheirSchemas(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../deploy/chart/values.yaml")
	require.NoError(t, err)
	var values struct {
		Try struct{ Limits, Watch yaml.Node }
	}
	require.NoError(t, yaml.Unmarshal(text, &values))
	for name, content := range map[string]any{"limits": map[string]any{"limits": &values.Try.Limits}, "watch": &values.Try.Watch} {
		file, err := yaml.Marshal(content)
		require.NoError(t, err)
		require.NoError(t, schema.Check(schemas[name](), file))
	}
}

func TestBadFilesFailTheirSchemas(t *testing.T) {
	t.Parallel()
	const limit, token, rule, alert = "limits: [{name: a, window: 1m, %s}]", "tokens: [{name: a, %s}]", "[{stream: A, subject: a, %s}]",
		"targets: {bus: {nats: a}}\nrules: [{name: a, window: 1m, to: [bus], %s}]"
	hash := fmt.Sprintf("sha256: %064d", 0)
	for _, c := range []struct{ name, form, good, bad string }{
		{"limits", limit, "max: 5", "max: many"},
		{"limits", limit, "max: 5", "max: -1"},
		{"limits", limit, "max: '5'", "max: '-5'"},
		{"limits", "limits: [{name: a, max: 5, %s}]", "window: 90s", "window: 90"},
		{"limits", "limits: [{name: a, max: 5, %s}]", "window: 90s", "window: true"},
		{"limits", "limits: [{name: 90, window: 1m, max: 5, %s}]", "policy: log", "ttl: 90"},
		{"limits", limit, "max: 5, envoy: {domain: a, partly: 'true', descriptor: [{key: b}]}", "max: 5, envoy: {domain: a, partly: t, descriptor: [{key: b}]}"},
		{"limits", limit, "unlimited: true", "max: 5, unlimited: true"},
		{"limits", limit, "max: 5", "policy: log"},
		{"limits", limit, "max: 5, policy: log", "max: 5, policy: token-bucket"},
		{"limits", limit, "max: 5, ttl: 1d", "max: 5, ttl: 1.5d"},
		{"limits", limit, "max: 5, share: {hits: 9, for: 1s}", "max: 5, share: {hits: 9}"},
		{"limits", limit, "max: 5, envoy: {domain: a, descriptor: [{key: b}]}", "max: 5, envoy: {domain: a, descriptor: []}"},
		{"limits", limit, "max: 5, envoy: [{domain: a, descriptor: [{key: b}]}]", "max: 5, envoy: [{descriptor: [{key: b}]}]"},
		{"limits", limit, "max: 5", "max: 5, windo: 1m"},
		{"tokens", token, hash + ", may: [read]", hash + ", may: [write]"},
		{"tokens", token, hash + ", may: [read]", "sha256: abc, may: [read]"},
		{"tokens", token, hash + ", may: [read], until: 2027-01-01", hash + ", may: [read], until: tomorrow"},
		{"rules", rule, "count: [{key: a}]", "count: []"},
		{"rules", rule, "count: [{key: a, n: 2}]", "count: [{key: a, n: 0}]"},
		{"rules", rule, "count: [{key: a}], format: none", "count: [{key: a}], format: xml"},
		{"rules", rule, "count: [{key: a}], when: {a: true}", "count: [{key: a}], when: {a: [b]}"},
		{"watch", alert, "key: a, above: 1", "key: a, prefix: b, above: 1"},
		{"watch", alert, "key: a, change: +50%", "key: a, change: 50%"},
		{"watch", alert, "top: 20, above: 1", "top: 2000, above: 1"},
		{"watch", alert, "all: true, below: 1", "all: false, below: 1"},
		{"watch", alert, "key: a, above: 1, for: 1d12h", "key: a, above: 1, for: soon"},
	} {
		form := schemas[c.name]()
		require.NoError(t, schema.Check(form, fmt.Appendf(nil, c.form, c.good)), c.good)
		require.Error(t, schema.Check(form, fmt.Appendf(nil, c.form, c.bad)), c.bad)
	}
}
