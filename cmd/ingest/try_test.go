package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/program"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/worker"
)

var stored = time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)

const orders = `- stream: ORDERS
  subject: orders.*.created
  time: at
  when: {status: paid}
  count:
    - key: orders.{subject.1}.{country}
      n: quantity
- stream: ORDERS
  subject: ping
  format: none
  count:
    - key: pings
`

// tried runs --try and returns what it prints.
func tried(t *testing.T, rules, in string, args ...string) (out string, code int, err error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "rules.yaml")
	err = os.WriteFile(file, []byte(rules), 0o600)
	require.NoError(t, err)
	var settings worker.Settings
	err = setting.Parse(&settings)
	require.NoError(t, err)
	var text strings.Builder
	var given trying
	mode, flags := given.mode(&settings), program.NewFlagSet("ingest")
	mode.Flags(flags)
	if err = flags.Read(append([]string{"--try", file}, args...), mode.Reads); err == nil {
		code, err = given.run(settings.HitLimits(), strings.NewReader(in), &text, stored)
	}
	return text.String(), code, err
}

func TestTryPrintsWhatWouldBeCounted(t *testing.T) {
	in := `{"at":"2026-11-20T09:59:59Z","status":"paid","country":"de","quantity":2}
# subject: orders.us.created
# stored: 2026-11-20T09:00:00Z
[{"at":"2026-11-20T08:00:00Z","status":"paid","country":"us","quantity":1},{"status":"open"}]

# a comment
{"at":"2026-11-20T09:59:59Z","status":"paid","quantity":1}
# subject: ping

# subject: other
{"key":"a","n":3}
# subject: other
# ce-specversion: 1.0
x
[]
{"at":"2020-11-20T09:59:59Z","status":"paid","country":"de","quantity":2}
`
	out, code, err := tried(t, orders, in, "--subject", "orders.eu.created")
	want := `1	counted	orders.eu.de	2	2026-11-20T09:59:59.000Z
4	counted	orders.us.us	1	2026-11-20T08:00:00.000Z
4	left out by when	1
7	rejected	bad_key	item 0	rule on line 1: key: country is missing, which a name cannot have (line 6; optional: true would leave the counter out)
9	counted	pings	1	2026-11-20T10:00:00.000Z
11	counted	a	3	2026-11-20T10:00:00.000Z
14	rejected	no_rule	item 0	a CloudEvent, and no rule of its stream matches its subject: add one with format cloudevents to INGEST_RULES
15	nothing
16	rejected	too_late	item 0	rule on line 1: ts 1605866399000 (2020-11-20T09:59:59Z) is`
	if err != nil || code != 1 || !strings.HasPrefix(out, want) {
		t.Errorf("code %d, %v\n%s\nwant\n%s", code, err, out, want)
	}
	if want := "\n8 messages: 4 hits on 4 counters, 3 rejected (bad_key 1, no_rule 1, too_late 1), 1 left out by when\n"; !strings.HasSuffix(out, want) {
		t.Errorf("%s\nwant at the end %s", out, want)
	}
}

func TestTryTakesTheOnlyStreamAndSubject(t *testing.T) {
	out, code, err := tried(t, "- {stream: S, subject: a.b, count: [{key: k}]}", "{}")
	if want := "1\tcounted\tk\t1\t2026-11-20T10:00:00.000Z\n1 messages: 1 hits on 1 counters, 0 rejected, 0 left out by when\n"; err != nil || code != 0 || out != want {
		t.Errorf("code %d, %v\n%s", code, err, out)
	}
}

func TestTryShowsUniqueValues(t *testing.T) {
	out, code, err := tried(t, "- {stream: S, subject: a.b, count: [{key: k, unique: '{user.id}-{x}', optional: true}]}", `{"user":{"id":"u\t17"},"x":1}
{"x":1}
# subject: plain
{"key":"k","unique":"u-18"}
`)
	want := "1\tcounted\tk\t1\t2026-11-20T10:00:00.000Z\tunique \"u\\t17-1\"\n2\tnothing\n4\tcounted\tk\t1\t2026-11-20T10:00:00.000Z\tunique \"u-18\"\n" +
		"3 messages: 2 hits on 1 counters, 0 rejected, 0 left out by when\n"
	if err != nil || code != 0 || out != want {
		t.Errorf("code %d, %v\n%s\nwant\n%s", code, err, out, want)
	}
}

func TestTryRefusesWhatItCannotUse(t *testing.T) {
	for _, test := range []struct {
		rules, in string
		args      []string
		want      string
	}{
		{"- a", "", nil, "rules.yaml: line 1: a rule must be a mapping"},
		{orders, "{}", nil, "line 1: the message's subject is unknown: give --subject"},
		{strings.ReplaceAll(orders, "ORDERS", "O*"), "{}", []string{"--subject", "ping"}, "line 1: the message's stream is unknown: give --stream"},
		{orders, "{}", []string{"--subject", "a.*"}, `subject "a.*": must be a subject without wildcards`},
		{orders, "# stored: 2026-11-20T9:00:00Z\n{}", []string{"--subject", "a"}, `line 1: stored "2026-11-20T9:00:00Z": must be a time`},
		{orders, "# stored: noon\n{}", []string{"--subject", "a"}, `line 1: stored "noon": must be a time`},
		{orders, "{}", []string{"more"}, `unexpected argument "more"`},
		{orders, "{}", []string{"--more"}, `flag provided but not defined`},
		{orders, "{}", []string{"--try", ""}, "-try: must be a rules file"},
		{orders, "{}", []string{"--try"}, "flag needs an argument: -try"},
		{orders, "{}", []string{"--try", "/nowhere.yaml"}, "/nowhere.yaml"},
	} {
		_, code, err := tried(t, test.rules, test.in, test.args...)
		var usage setting.UsageError
		if !errors.As(err, &usage) || !strings.Contains(err.Error(), test.want) || code != 0 {
			t.Errorf("%v: %v, code %d; want %s", test.args, err, code, test.want)
		}
	}
}
