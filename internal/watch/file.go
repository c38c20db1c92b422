package watch

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"tallyroll/internal/hit"
	"tallyroll/internal/limit"
	"tallyroll/internal/limit/limitfile"
	"tallyroll/internal/platform/human"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/platform/yamlfile"
	"tallyroll/internal/watch/form"
	"tallyroll/internal/watch/history"
	"tallyroll/internal/window"
	"tallyroll/internal/window/calendar"
)

// RuleSet is the content of a rules file.
type RuleSet struct {
	Rules       []*Rule
	Targets     []*Target
	Fingerprint string // of the file: processes detect different files by it
}

type Target struct {
	Name       string
	kind       *targetKind
	Address    string // as the kind has it: a URL, a file that has one, or a subject
	SecretFile string // a file of secrets that sign, one per line; empty: nothing is signed
	States     []history.State
	line       int
}

func (t *Target) wants(s history.State) bool {
	return len(t.States) == 0 || slices.Contains(t.States, s)
}

const (
	ruleFields = "name, one of key, prefix, top and all, window, one of above, below and change, and to; and " +
		"optionally group, each, tz, for, surely and least; or name, limit, above in percent, and to"
	defaultLeast = 10 // percentages of fewer hits mean little
	maxFor       = 31 * 24 * time.Hour
)

// Parse reads a file with the fields of form.File:
//
//	targets:
//	  bus: {nats: tallyroll.alert, states: [firing, resolved]}
//	rules:
//	  - {name: errors, key: http.5xx, window: 5m, above: 100, for: 1m, surely: true, to: [bus]}
//
// limits, which may be nil, are those that rules name. The error is a *yamlfile.Error. It quotes no URL,
// because one may hold a password.
func Parse(data []byte, limits limitfile.Set) (*RuleSet, error) {
	document, err := yamlfile.Document(data, "targets under targets:, and a list of rules under rules:")
	if err != nil {
		return nil, err
	}
	top, err := yamlfile.Fields(document, "the file", form.File.Names()...)
	if err != nil {
		return nil, err
	}
	set, sum := new(RuleSet), sha256.New()
	sum.Write(data)
	if set.Targets, err = parseTargets(document, top["targets"]); err != nil {
		return nil, err
	}
	entries := top["rules"]
	if entries == nil || entries.Kind != yaml.SequenceNode || len(entries.Content) == 0 {
		return nil, yamlfile.Errorf(document.Line, "rules: missing, empty or not a list: must be a list of rules, "+
			"each with %s", ruleFields)
	}
	if n := len(entries.Content); n > form.MaxRules {
		return nil, yamlfile.Errorf(entries.Content[form.MaxRules].Line,
			"the file has %d rules: at most %d are allowed", n, form.MaxRules)
	}
	lines := make(map[string]int)
	for _, node := range entries.Content {
		rule, err := set.parseRule(node, limits)
		if err != nil {
			return nil, err
		}
		if line := lines[rule.Name]; line > 0 {
			return nil, yamlfile.Errorf(node.Line, "name: the rule on line %d is called %q, too", line, rule.Name)
		}
		lines[rule.Name] = node.Line
		set.Rules = append(set.Rules, rule)
		if rule.Each { // a limit's numbers are not in data
			fmt.Fprintln(sum, *rule.Prefix, rule.Window.Length, rule.Condition)
			if p, ok := rule.Window.Calendar.(*calendar.Period); ok {
				fmt.Fprintln(sum, p, p.Zone(), p.Starts())
			}
		}
	}
	set.Fingerprint = hex.EncodeToString(sum.Sum(nil)[:6])
	return set, nil
}

// parseWithFiles is Parse, and also checks the files that targets name: otherwise only the first alert would
// show that one cannot be used.
func parseWithFiles(data []byte, limits limitfile.Set) (*RuleSet, error) {
	set, err := Parse(data, limits)
	if err != nil {
		return nil, err
	}
	for _, t := range set.Targets {
		if w, ok := t.newNotifier(nil).(*webhook); ok {
			if err := w.checkFiles(); err != nil {
				return nil, yamlfile.Errorf(t.line, "%s: %v", t.Name, err)
			}
		}
	}
	return set, nil
}

func parseTargets(document, node *yaml.Node) (out []*Target, err error) {
	if node == nil || node.Kind != yaml.MappingNode || len(node.Content) == 0 {
		return nil, yamlfile.Errorf(document.Line, "targets: missing, empty or not a mapping: must be names, "+
			"each with one of %s, and optionally states; a webhook also has secret_file", targetFields())
	}
	lines := make(map[string]int)
	for i := 0; i+1 < len(node.Content); i += 2 {
		name := node.Content[i]
		switch {
		case !form.TargetName.MatchString(name.Value):
			return nil, yamlfile.Errorf(name.Line, "the name of a target: must be 1 to 32 letters, digits, "+
				"underscores and hyphens")
		case lines[name.Value] > 0:
			return nil, yamlfile.Errorf(name.Line, "%s: the target on line %d has the same name", name.Value,
				lines[name.Value])
		case len(out) == form.MaxTargets:
			return nil, yamlfile.Errorf(name.Line, "%s: the file has more than %d targets", name.Value, form.MaxTargets)
		}
		lines[name.Value] = name.Line
		target, err := parseTarget(name.Value, node.Content[i+1])
		if err != nil {
			return nil, err
		}
		out = append(out, target)
	}
	return out, nil
}

func parseTarget(name string, node *yaml.Node) (*Target, error) {
	fields, err := form.Target.ReadSecret(node, "the target "+name)
	if err != nil {
		return nil, err
	}
	t := &Target{Name: name, line: node.Line, SecretFile: yamlfile.Value(fields["secret_file"])}
	for _, kind := range targetKinds {
		if address := yamlfile.Value(fields[kind.field]); address != "" {
			t.kind, t.Address = kind, address
		}
	}
	if field := t.kind.field; !t.kind.isValid(t.Address) {
		return nil, yamlfile.Errorf(fields[field].Line, "%s: %s: must %s", name, field, t.kind.must)
	}
	if t.SecretFile != "" && !t.kind.isSigned {
		return nil, yamlfile.Errorf(fields["secret_file"].Line, "%s: secret_file: only a webhook is signed", name)
	}
	if strings.HasPrefix(t.SecretFile, secretPrefix) {
		return nil, yamlfile.Errorf(fields["secret_file"].Line, "%s: secret_file: must name a file, not hold "+
			"the secret", name)
	}
	for _, s := range yamlfile.Values(fields["states"]) {
		if !slices.Contains(history.States, history.State(s)) {
			return nil, yamlfile.Errorf(fields["states"].Line, "%s: states: %q is not a state: must be ok, pending, "+
				"firing, resolved or unknown", name, s)
		}
		t.States = append(t.States, history.State(s))
	}
	return t, nil
}

const secretPrefix = "whsec_"

func (s *RuleSet) parseRule(node *yaml.Node, limits limitfile.Set) (*Rule, error) {
	fields, err := form.Rule.Read(node, "a rule")
	if err != nil {
		return nil, err
	}
	text := func(field string) string { return yamlfile.Value(fields[field]) }
	fieldErrorf := func(field, format string, args ...any) error {
		return yamlfile.Errorf(fields[field].Line, "%s: "+format, append([]any{field}, args...)...)
	}
	r := &Rule{Name: text("name"), Key: text("key"), To: yamlfile.Values(fields["to"])}
	if !form.RuleName.MatchString(r.Name) {
		return nil, fieldErrorf("name", "%q: must be 1 to 64 letters, digits, underscores and hyphens", r.Name)
	}
	if r.All = fields["all"] != nil; r.All && text("all") != "true" {
		return nil, fieldErrorf("all", "%q: must be true, for the sum of all hits", text("all"))
	}
	for _, field := range []string{"key", "prefix"} {
		if name := text(field); name != "" && hit.CheckName([]byte(name)) != nil {
			return nil, fieldErrorf(field, "%v: must be 1 to %d bytes of UTF-8 without control characters",
				hit.CheckName([]byte(name)), hit.MaxName)
		}
	}
	if prefix := text("prefix"); prefix != "" {
		r.Prefix = &prefix
	}
	if fields["top"] != nil {
		if r.Top, err = strconv.Atoi(text("top")); err != nil || r.Top < 1 || r.Top > form.MaxTop {
			return nil, fieldErrorf("top", "%q: must be a whole number from 1 to %d", text("top"), form.MaxTop)
		}
	}
	if fields["group"] != nil {
		if r.Group, err = strconv.Atoi(text("group")); err != nil || r.Group < 1 || r.Group > form.MaxGroup {
			return nil, fieldErrorf("group", "%q: must be a whole number from 1 to %d", text("group"), form.MaxGroup)
		}
		if r.Prefix == nil {
			return nil, fieldErrorf("group", "allowed only with prefix")
		}
	}
	if each := fields["each"]; each != nil {
		if r.Each = each.Value == "true"; !r.Each {
			return nil, fieldErrorf("each", "%q: must be true, for a state of each counter", each.Value)
		}
		if r.Prefix == nil || r.Group > 0 || fields["above"] == nil {
			return nil, fieldErrorf("each", "allowed only with prefix and above, and not with group")
		}
	}
	if fields["limit"] != nil {
		for _, field := range []string{"tz", "below", "change"} {
			if fields[field] != nil {
				return nil, fieldErrorf(field, "not together with limit: the rule has its window, and above in percent")
			}
		}
		if field, mistake := r.readLimit(limits, text("limit"), text("above")); mistake != "" {
			return nil, yamlfile.Errorf(cmp.Or(fields[field], node).Line, "%s: %s", field, mistake)
		}
	} else if field, err := r.readWindow(text("window"), text("tz")); err != nil {
		return nil, fieldErrorf(field, "%v", err)
	}
	r.line = cmp.Or(fields["window"], fields["limit"]).Line
	if fields["for"] != nil {
		if r.For, err = setting.ParseDuration(text("for")); err != nil || r.For < 0 || r.For > maxFor {
			return nil, fieldErrorf("for", "%q: must be a duration from 0s to 31d, such as 1m", text("for"))
		}
	}
	switch text("surely") {
	case "true":
		r.Condition.Surely = true
	case "", "false":
	default:
		return nil, fieldErrorf("surely", "%q: must be true or false", text("surely"))
	}
	for _, kind := range []Kind{Above, Below, ByPercent} {
		if fields[string(kind)] == nil || fields["limit"] != nil {
			continue
		}
		var allowed string
		if r.Condition.Threshold, allowed = parseThreshold(kind, text(string(kind))); allowed != "" {
			return nil, fieldErrorf(string(kind), "%q: must be %s", text(string(kind)), allowed)
		}
		r.Condition.Kind = kind
	}
	if r.Condition.Kind == ByPercent {
		if r.Condition.Least = defaultLeast; r.Window.Calendar != nil {
			return nil, fieldErrorf("change", "not with the window %s: no window of the same length is before it",
				text("window"))
		}
	}
	if fields["least"] != nil {
		if r.Condition.Kind != ByPercent {
			return nil, fieldErrorf("least", "allowed only with change")
		}
		if r.Condition.Least, err = strconv.ParseInt(text("least"), 10, 64); err != nil || r.Condition.Least < 1 {
			return nil, fieldErrorf("least", "%q: must be a whole number of hits from 1 on", text("least"))
		}
	}
	if r.Top > 0 && r.Condition.Kind == Below {
		return nil, fieldErrorf("below", "the counters with most hits are rarely below a threshold: use key, or "+
			"prefix with group")
	}
	for i, name := range r.To {
		if s.findTarget(name) == nil {
			return nil, fieldErrorf("to", "%q is not a target of this file: must be one of %s", name, s.targetNames())
		}
		if slices.Contains(r.To[:i], name) {
			return nil, fieldErrorf("to", "%q is listed twice", name)
		}
	}
	return r, nil
}

// readWindow reads a rolling window, or one of a calendar in a time zone.
func (r *Rule) readWindow(text, zone string) (field string, err error) {
	if !calendar.IsWindow(text) {
		if zone != "" {
			return "tz", fmt.Errorf("only with the windows %s", calendar.WindowHint)
		}
		length, err := human.ParseDuration(text)
		if err != nil {
			err = fmt.Errorf("%w; or %s", err, calendar.WindowHint)
		}
		r.Window = window.Last(length)
		return "window", err
	}
	location, err := calendar.ParseZone(zone)
	r.Window = window.Span{To: window.Now, Calendar: calendar.Window{Name: text, Zone: location}}
	return "tz", err
}

// readLimit makes a rule about each key of a limit: above is a percentage of its max. The counters of keys
// that may be above say which to ask the limit for.
func (r *Rule) readLimit(limits limitfile.Set, name, above string) (field, mistake string) {
	l := limits[name]
	switch {
	case limits == nil:
		return "limit", "WATCH_LIMITS_FILE must be set to the file of limits"
	case l == nil:
		return "limit", fmt.Sprintf("%q is not a limit of WATCH_LIMITS_FILE", name)
	case l.Unlimited:
		return "limit", fmt.Sprintf("%q is unlimited: there is no max to compare with", name)
	case l.Count.Nearly.OfKeys() == "":
		return "limit", fmt.Sprintf("%q has no counters of keys that have used nearly all: add count: {nearly: "+
			"\"nearly.{limit}.{key}\"} to it", name)
	}
	prefix := l.Count.Nearly.OfKeys().Prefix(name)
	if l.AtMost > 0 {
		return "limit", fmt.Sprintf("%q has at_most: its takes may have a max of their own, unknown here: write a "+
			"rule with prefix: %s, each: true, window: 5m and above: 0", name, prefix)
	}
	share, ok := human.ParsePercent(above)
	if !ok || !form.Percent.MatchString(above) || share < l.Count.At {
		return "above", fmt.Sprintf("%q: must be a percentage of the limit's max, such as 80%%, and not below at of "+
			"its count", above)
	}
	r.Limit, r.Prefix, r.Each, r.Window = l, &prefix, true, window.Last(l.Window)
	if l.Period != nil {
		r.Window = window.Span{To: window.Now, Calendar: l.Period}
	}
	r.Condition.Kind, r.Condition.Threshold = Above, share*l.Max/limit.Whole
	return "", ""
}

// parseThreshold reads a number of hits, or a percentage. After an error, allowed says what is allowed.
func parseThreshold(kind Kind, text string) (n int64, allowed string) {
	if kind != ByPercent {
		least := int64(0)
		if kind == Below {
			least = 1
		}
		if form.Percent.MatchString(text) && kind == Above {
			return 0, "a whole number of hits: only with limit is there a max to be a percentage of"
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < least {
			return 0, fmt.Sprintf("a whole number of hits from %d on", least)
		}
		return n, ""
	}
	const hint = "a percentage with a sign, such as +50% or -20%: from -100% on, and not 0%"
	if !form.Percents.MatchString(text) {
		return 0, hint
	}
	if n, _ = human.ParsePercent(text[1:]); text[0] == '-' {
		n = -n
	}
	if n == 0 || n < -limit.Whole {
		return 0, hint
	}
	return n, ""
}

func (s *RuleSet) targetNames() string {
	names := make([]string, len(s.Targets))
	for i, t := range s.Targets {
		names[i] = t.Name
	}
	return strings.Join(names, ", ")
}

func (s *RuleSet) findTarget(name string) *Target {
	for _, t := range s.Targets {
		if t.Name == name {
			return t
		}
	}
	return nil
}
