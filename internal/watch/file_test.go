package watch

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
		if got := book.Rules[i]; !reflect.DeepEqual(*got, want) {
			t.Errorf("%+v, want %+v", *got, want)
		}
	}
	for i, want := range []Target{
		{Name: "ops", Webhook: "https://example.org/hook", SecretFile: "/run/secrets/hook"},
		{Name: "chat", WebhookFile: "/run/secrets/url"},
		{Name: "am", Alertmanager: "http://127.0.0.1:9093"},
		{Name: "bus", NATS: "tallyroll.alert", States: []State{Firing, Resolved}},
	} {
		if got := book.Targets[i]; !reflect.DeepEqual(*got, want) {
			t.Errorf("%+v, want %+v", *got, want)
		}
	}
}

// Each mistake is told with its line and what is allowed.
func TestMistakesInTheFile(t *testing.T) {
	t.Parallel()
	target := func(text string) string {
		return "targets:\n  a: {" + text + "}\nrules:\n- {name: r, key: k, window: 1m, above: 1, to: [a]}\n"
	}
	rule := func(text string) string {
		return "targets:\n  a: {nats: alerts}\nrules:\n- {" + text + "}\n"
	}
	many := func(n int, format string) (out string) {
		for i := range n {
			out += fmt.Sprintf(format, i)
		}
		return out
	}
	const usual = "name: r, key: k, window: 1m, above: 1, to: [a]"
	for _, c := range []struct{ name, text, want string }{
		{"nothing", "", "it is empty: allowed is targets under targets:, and a list of rules under rules:"},
		{"no YAML", "targets: [", "line 2: it is no YAML: did not find expected node content"},
		{"an unknown field", target("nats: alerts") + "other: 1\n", `line 5: unknown field "other": allowed is targets, rules`},
		{"no targets", "rules: []\n", "line 1: targets: it is missing, empty or no mapping: allowed are names, each with " + targetFields},
		{"targets that are a list", "targets: [a]\n", "line 1: targets: it is missing, empty or no mapping: allowed are names, each with " + targetFields},
		{"a bad name of a target", "targets:\n  a.b: {nats: alerts}\n", "line 2: the name of a target: allowed are 1 to 32 letters, digits, underscores and hyphens"},
		{"two targets of a name", "targets:\n  a: {nats: alerts}\n  a: {nats: alerts}\n", "line 3: a: it is the name of the target on line 2, too"},
		{"too many targets", "targets:\n" + many(33, "  a%d: {nats: alerts}\n"), "line 34: a32: it is one target too many: allowed are 32"},
		{"a target without a kind", target("states: [ok]"), "line 2: a: a target has exactly one of webhook, webhook_file, alertmanager and nats"},
		{"a target of two kinds", target("nats: alerts, webhook: 'http://a/b'"), "line 2: a: a target has exactly one of webhook, webhook_file, alertmanager and nats"},
		{"an unknown field of a target", target("hook: 'http://a/secret'"), "line 2: unknown field: allowed is webhook, webhook_file, secret_file, alertmanager, nats, states"},
		{"a webhook that is no URL", target("webhook: 'hunter2'"), "line 2: a: webhook: allowed is a URL that begins with http:// or https://, such as https://example.org/hook"},
		{"a webhook without a host", target("webhook: 'https:///hunter2'"), "line 2: a: webhook: allowed is a URL that begins with http:// or https://, such as https://example.org/hook"},
		{"a webhook of another scheme", target("webhook: 'ftp://a/hunter2'"), "line 2: a: webhook: allowed is a URL that begins with http:// or https://, such as https://example.org/hook"},
		{"a URL for a file", target("webhook_file: 'https://a/hunter2'"), "line 2: a: webhook_file: this is a URL: allowed is the name of a file that has it"},
		{"an Alertmanager that is no URL", target("alertmanager: 'am:9093'"), "line 2: a: alertmanager: allowed is a URL that begins with http:// or https://, such as https://example.org/hook"},
		{"a secret without a webhook", target("nats: alerts, secret_file: f"), "line 2: a: secret_file: only a webhook is signed"},
		{"a secret for a file", target("webhook: 'http://a/b', secret_file: whsec_aHVudGVyMg=="), "line 2: a: secret_file: this is a secret: allowed is the name of a file that has it"},
		{"a subject with a wildcard", target("nats: 'alerts.>'"), "line 2: a: nats: allowed is a subject without wildcards that does not begin with tallyroll_watch. or $, such as tallyroll.alert"},
		{"a subject of watch", target("nats: tallyroll_watch.a"), "line 2: a: nats: allowed is a subject without wildcards that does not begin with tallyroll_watch. or $, such as tallyroll.alert"},
		{"a subject of the server", target("nats: $JS.a"), "line 2: a: nats: allowed is a subject without wildcards that does not begin with tallyroll_watch. or $, such as tallyroll.alert"},
		{"an unknown state", target("nats: alerts, states: [fires]"), `line 2: a: states: "fires" is no state: allowed are ok, pending, firing, resolved and unknown`},
		{"no rules", "targets: {a: {nats: alerts}}\n", "line 1: rules: it is missing, empty or no list: allowed is a list of rules, each with " + ruleFields},
		{"an empty list of rules", "targets: {a: {nats: alerts}}\nrules: []\n", "line 1: rules: it is missing, empty or no list: allowed is a list of rules, each with " + ruleFields},
		{"too many rules", "targets: {a: {nats: alerts}}\nrules:\n" + many(10_001, "- {name: r%d, key: k, window: 1m, above: 1, to: [a]}\n"), "line 10003: the file has 10001 rules: allowed are 10000"},
		{"a rule that is a text", "targets: {a: {nats: alerts}}\nrules: [r]\n", "line 2: a rule is no mapping: allowed is name, key, prefix, top, group, window, above, below, change, least, for, surely, to"},
		{"two rules of a name", rule(usual) + "- {" + usual + "}\n", `line 5: name: "r" is the name of the rule on line 4, too`},
		{"an unknown field of a rule", rule(usual + ", than: 1"), `line 4: unknown field "than": allowed is name, key, prefix, top, group, window, above, below, change, least, for, surely, to`},
		{"no name", rule("key: k, window: 1m, above: 1, to: [a]"), "line 4: name: it is missing: a rule has " + ruleFields},
		{"no window", rule("name: r, key: k, above: 1, to: [a]"), "line 4: window: it is missing: a rule has " + ruleFields},
		{"no target", rule("name: r, key: k, window: 1m, above: 1"), "line 4: to: it is missing: a rule has " + ruleFields},
		{"a bad name", rule("name: r.s, key: k, window: 1m, above: 1, to: [a]"), `line 4: name: "r.s": allowed are 1 to 64 letters, digits, underscores and hyphens`},
		{"no counter", rule("name: r, window: 1m, above: 1, to: [a]"), "line 4: r: a rule has exactly one of key, prefix and top"},
		{"two counters", rule("name: r, key: k, prefix: p, window: 1m, above: 1, to: [a]"), "line 4: r: a rule has exactly one of key, prefix and top"},
		{"a counter with a bad name", rule(`name: r, key: "k\x07", window: 1m, above: 1, to: [a]`), "line 4: key: the counter's name has a control character: allowed are 1 to 512 bytes of UTF-8 without control characters"},
		{"a counter whose name is too long", rule(`name: r, prefix: ` + strings.Repeat("k", 600) + `, window: 1m, above: 1, to: [a]`), "line 4: prefix: the counter's name has 600 bytes; 1 to 512 are allowed: allowed are 1 to 512 bytes of UTF-8 without control characters"},
		{"too large a top", rule("name: r, top: 1001, window: 1m, above: 1, to: [a]"), `line 4: top: "1001": allowed is a whole number from 1 to 1000`},
		{"a top that is no number", rule("name: r, top: all, window: 1m, above: 1, to: [a]"), `line 4: top: "all": allowed is a whole number from 1 to 1000`},
		{"a top that is below", rule("name: r, top: 5, window: 1m, below: 1, to: [a]"), "line 4: below: the counters with most hits are never below anything for long: name them with key, or ask for a prefix with group"},
		{"too large a group", rule("name: r, prefix: p, group: 17, window: 1m, above: 1, to: [a]"), `line 4: group: "17": allowed is a whole number from 1 to 16`},
		{"a group without a prefix", rule("name: r, key: k, group: 1, window: 1m, above: 1, to: [a]"), "line 4: group: it is only beside prefix"},
		{"a bad window", rule("name: r, key: k, window: 1 minute, above: 1, to: [a]"), `line 4: window: "1 minute" is not a duration: write a whole number and a unit (s, m, h, d, w, y), such as 90s, 15m or 7d`},
		{"a bad for", rule(usual + ", for: soon"), `line 4: for: "soon": allowed is a duration from 0s to 31d, such as 1m`},
		{"a for of months", rule(usual + ", for: 32d"), `line 4: for: "32d": allowed is a duration from 0s to 31d, such as 1m`},
		{"a bad surely", rule(usual + ", surely: maybe"), `line 4: surely: "maybe": allowed is true or false`},
		{"no condition", rule("name: r, key: k, window: 1m, to: [a]"), "line 4: r: a rule has exactly one of above, below and change"},
		{"two conditions", rule(usual + ", below: 1"), "line 4: r: a rule has exactly one of above, below and change"},
		{"above less than nothing", rule("name: r, key: k, window: 1m, above: -1, to: [a]"), `line 4: above: "-1": allowed is a whole number of hits from 0 on`},
		{"below nothing", rule("name: r, key: k, window: 1m, below: 0, to: [a]"), `line 4: below: "0": allowed is a whole number of hits from 1 on`},
		{"a change without a sign", rule("name: r, key: k, window: 1m, change: 50%, to: [a]"), `line 4: change: "50%": allowed is a percentage with a sign, such as +50% or -20%: from -100% on, and not 0%`},
		{"no change", rule("name: r, key: k, window: 1m, change: +0%, to: [a]"), `line 4: change: "+0%": allowed is a percentage with a sign, such as +50% or -20%: from -100% on, and not 0%`},
		{"less than nothing", rule("name: r, key: k, window: 1m, change: -101%, to: [a]"), `line 4: change: "-101%": allowed is a percentage with a sign, such as +50% or -20%: from -100% on, and not 0%`},
		{"least without change", rule(usual + ", least: 3"), "line 4: least: it is only beside change"},
		{"least of nothing", rule("name: r, key: k, window: 1m, change: +50%, least: 0, to: [a]"), `line 4: least: "0": allowed is a whole number of hits from 1 on`},
		{"an unknown target", rule("name: r, key: k, window: 1m, above: 1, to: [b]"), `line 4: to: "b" is no target of this file: allowed are a`},
		{"a target twice", rule("name: r, key: k, window: 1m, above: 1, to: [a, a]"), `line 4: to: "a" is there twice`},
		{"an empty list of targets", rule("name: r, key: k, window: 1m, above: 1, to: []"), "line 4: to: allowed is a list, such as [a, b], of values that are not empty"},
	} {
		book, err := Parse([]byte(c.text))
		if err == nil {
			t.Errorf("%s: no error, but %+v", c.name, book)
		} else if err.Error() != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, err, c.want)
		}
	}
}
