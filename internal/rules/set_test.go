package rules

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/cases"
)

const good = "- stream: ORDERS\n  subject: orders.*.created\n  count:\n    - key: orders\n"

func TestMistakesAreNamedWithTheirLine(t *testing.T) {
	t.Parallel()
	cases.Check(t, "mistakes", func(t *testing.T, section, given string) string {
		if section == "what follows a good rule of four lines" {
			given = good + given
		}
		_, err := Parse([]byte(strings.TrimSuffix(given, "\n") + "\n"))
		var bad *FileError
		require.ErrorAs(t, err, &bad, given)
		return err.Error()
	})
}

func TestFileBeyondABoundIsRefused(t *testing.T) {
	t.Parallel()
	var counters strings.Builder
	for i := range MaxCounters {
		fmt.Fprintf(&counters, "    - key: orders%d\n", i)
	}
	full := "- stream: ORDERS\n  subject: orders.*.created\n  count:\n" + counters.String()
	var conditions []string
	for i := range MaxWhen {
		conditions = append(conditions, fmt.Sprintf("a%d: 1", i))
	}
	for _, test := range []struct{ name, good, bad, want string }{
		{"rules", strings.Repeat(good, MaxRules), strings.Repeat(good, MaxRules+1), "line 4001: this is rule 1001: at most 1000 are allowed"},
		{"counters", full, full + "    - key: one more\n", "line 104: count: this is counter 101 of the rule: at most 100 are allowed"},
		{"conditions", good + "  when: {" + strings.Join(conditions, ", ") + "}\n", good + "  when: {" + strings.Join(conditions, ", ") + ", b: 1}\n", "line 5: when: 33 conditions: at most 32 are allowed"},
		{"bytes", good + strings.Repeat("#", MaxFile-len(good)), good + strings.Repeat("#", MaxFile-len(good)+1), "1048577 bytes: at most 1048576 are allowed"},
	} {
		mustParse(t, test.good)
		_, err := Parse([]byte(test.bad))
		require.EqualError(t, err, test.want, test.name)
	}
}

// The test's own deadline bounds it.
func TestFilesThatMakeACarelessReaderSlowEndQuickly(t *testing.T) {
	t.Parallel()
	var aliases strings.Builder
	aliases.WriteString("- &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := 1; i < 30; i++ {
		fmt.Fprintf(&aliases, "- &a%d [%s*a%d]\n", i, strings.Repeat(fmt.Sprintf("*a%d,", i-1), 9), i-1)
	}
	for name, text := range map[string]string{
		"aliases":  aliases.String(),
		"lists":    strings.Repeat("[", MaxFile),
		"mappings": strings.Repeat("{a: ", MaxFile/4),
		"dashes":   strings.Repeat("- ", MaxFile/2),
		"key":      good + "    - key: \"" + strings.Repeat("{", MaxFile/2) + "\"\n",
		"wildcard": good + "    - key: \"{subject." + strings.Repeat("1", MaxFile/2) + "}\"\n",
		"anchor":   "- &" + strings.Repeat("a", MaxFile/2) + " a",
		"when":     good + "  when: {\"a\\n" + strings.Repeat("b", MaxFile/2) + "\": ~}\n",
		"path":     good + "  each: \"" + strings.Repeat("a.", MaxFile/2-100) + "a\"\n",
	} {
		_, err := Parse([]byte(text))
		if err == nil || len(err.Error()) > 4096 || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: the error is %.5000v", name, err)
		}
	}
}

func TestSetKeepsItsTextAndFingerprint(t *testing.T) {
	t.Parallel()
	set := mustParse(t, good)
	// printf -- … | sha256sum
	if string(set.Text()) != good || set.Fingerprint() != "221f09ff68b499eb" || set.Len() != 1 {
		t.Errorf("text %q, fingerprint %s, %d rules", set.Text(), set.Fingerprint(), set.Len())
	}
}
