package watch

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/cases"
)

func TestParse(t *testing.T) {
	t.Parallel()
	book, err := Parse([]byte(`
targets:
  ops: {webhook: "https://example.org/hook", secret_file: /run/secrets/hook}
  chat: {webhook_file: /run/secrets/url}
  am: {alertmanager: "http://127.0.0.1:9093"}
  bus: {nats: tallyroll.alert, states: [firing, resolved]}
rules:
  - {name: errors, key: http.5xx, window: 5m, above: 100, for: 1m, surely: true, to: [ops, bus]}
  - {name: shops, prefix: shop., group: 2, window: 1h, below: 1, to: [chat]}
  - {name: busiest, top: 20, window: 1d, change: "-12.5%", least: 3, to: [am]}
  - {name: rise, key: a, window: 1m, change: +50%, to: [am]}
`))
	require.NoError(t, err)
	prefix := "shop."
	for i, want := range []Rule{
		{Name: "errors", Key: "http.5xx", Window: 5 * time.Minute, Condition: Condition{Kind: Above, Threshold: 100, Surely: true}, For: time.Minute, To: []string{"ops", "bus"}},
		{Name: "shops", Prefix: &prefix, Group: 2, Window: time.Hour, Condition: Condition{Kind: Below, Threshold: 1}, To: []string{"chat"}},
		{Name: "busiest", Top: 20, Window: 24 * time.Hour, Condition: Condition{Kind: ByPercent, Threshold: -1250, Least: 3}, To: []string{"am"}},
		{Name: "rise", Key: "a", Window: time.Minute, Condition: Condition{Kind: ByPercent, Threshold: 5000, Least: usualLeast}, To: []string{"am"}},
	} {
		want.line = 8 + i
		require.Equal(t, want, *book.Rules[i])
	}
	for i, want := range []Target{
		{Name: "ops", Webhook: "https://example.org/hook", SecretFile: "/run/secrets/hook"},
		{Name: "chat", WebhookFile: "/run/secrets/url"},
		{Name: "am", Alertmanager: "http://127.0.0.1:9093"},
		{Name: "bus", NATS: "tallyroll.alert", States: []State{Firing, Resolved}},
	} {
		require.Equal(t, want, *book.Targets[i])
	}
}

// Each mistake is told with its line and what is allowed, and no secret is quoted.
func TestMistakesInTheFile(t *testing.T) {
	t.Parallel()
	cases.Check(t, "mistakes", func(t *testing.T, section, given string) string {
		switch section {
		case "target a":
			given = "targets:\n  a: {" + given + "}\nrules:\n- {name: r, key: k, window: 1m, above: 1, to: [a]}"
		case "a rule of a file whose only target is a":
			given = "targets:\n  a: {nats: alerts}\nrules:\n- {" + given + "}"
		}
		_, err := Parse([]byte(strings.TrimPrefix(given+"\n", "\n")))
		require.Error(t, err, given)
		require.NotContains(t, err.Error(), "hunter2")
		return err.Error()
	})
	targets, rules := "targets:\n", "targets: {a: {nats: alerts}}\nrules:\n"
	for i := range 33 {
		targets += fmt.Sprintf("  a%d: {nats: alerts}\n", i)
	}
	_, err := Parse([]byte(targets))
	require.EqualError(t, err, "line 34: a32: it is one target too many: allowed are 32")
	_, err = Parse([]byte(rules + strings.Repeat("- {name: r, key: k, window: 1m, above: 1, to: [a]}\n", 10_001)))
	require.EqualError(t, err, "line 10003: the file has 10001 rules: allowed are 10000")
}
