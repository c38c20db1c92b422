package rules

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/cases"
)

func TestEventsAreCountedAsTheRuleSays(t *testing.T) {
	t.Parallel()
	cases.Check(t, "decode", func(t *testing.T, rule, body string) string {
		d := NewDecoder(mustParse(t, ruleText(rule)).For("ORDERS"), testLimits(10))
		m := Message{Subject: "orders.eu.created", Counter: "plain", Stored: now, Body: []byte(body)}
		first := explained(t, d, m)
		require.Equal(t, first, explained(t, d, m), "what the first has left does not change the second: %s", body)
		return first
	})
}

// explained is what a message became, and why what was rejected was. No reason quotes a secret.
func explained(t *testing.T, d *Decoder, m Message) string {
	t.Helper()
	hits, rejects, unmet := d.Decode(m)
	out := outcome(hits, rejects, unmet)
	for _, r := range rejects {
		require.NotContains(t, r.Detail, "secret")
		out += "\n" + r.Detail
	}
	return out
}

// ruleText is a file with one rule, whose other fields are lines or a flow mapping.
func ruleText(fields string) string {
	if strings.HasPrefix(fields, "{") {
		return "- {stream: ORDERS, subject: orders.*.created, " + fields[1:] + "\n"
	}
	return oneRule(fields)
}

// Rules that differ in unique alone are different versions: a replay would count otherwise.
func TestUniqueMakesAnotherVersion(t *testing.T) {
	t.Parallel()
	versions := map[string]string{}
	for _, fields := range []string{`count: [{key: v}]`, `count: [{key: v, unique: "{a}"}]`, `count: [{key: v, unique: "{b}"}]`} {
		fingerprint := mustParse(t, ruleText(fields)).Fingerprint()
		if other, there := versions[fingerprint]; there {
			t.Errorf("%s and %s are one version", fields, other)
		}
		versions[fingerprint] = fields
	}
}
