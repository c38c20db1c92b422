// Package form has the fields of a file of alert rules, by which watch reads it and editors check it. It does
// no I/O, so that query can serve its schema without linking what evaluates rules.
package form

import (
	"math"
	"regexp"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/platform/yamlfile"
	"tallyroll/internal/watch/history"
)

// The bounds of a file.
const (
	MaxRules   = 10_000
	MaxTargets = 32
	MaxTop     = 1000
	MaxGroup   = 16
)

// What names and percentages look like.
var (
	RuleName   = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	TargetName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`)
	Percent    = regexp.MustCompile(`^[0-9]{1,4}(\.[0-9]{1,2})?%$`)
	Percents   = regexp.MustCompile(`^[+-][0-9]{1,7}(\.[0-9]{1,2})?%$`)
)

// The mappings of a file. What a choice of Target does is in targetKinds of package watch.
var (
	Target = yamlfile.Form{
		{Name: "webhook", Choice: "target", Schema: yamlfile.MatchingText("^https?://"),
			Doc: "a URL that gets each change"},
		{Name: "webhook_file", Choice: "target", Schema: yamlfile.Text, Doc: "a file that has the URL"},
		{Name: "secret_file", Schema: yamlfile.Text, Doc: "a file of secrets that sign, one per line"},
		{Name: "alertmanager", Choice: "target", Schema: yamlfile.MatchingText("^https?://"),
			Doc: "the base URL of api/v2/alerts"},
		{Name: "nats", Choice: "target", Schema: yamlfile.Text, Doc: "a subject without wildcards"},
		{Name: "states[]", Schema: yamlfile.List(yamlfile.Schema{"enum": history.States}, len(history.States)),
			Doc: "only changes to these; default all"},
	}
	Rule = yamlfile.Form{
		{Name: "name", Required: true, Schema: yamlfile.Matching(RuleName.String()),
			Doc: "1 to 64 letters, digits, underscores and hyphens"},
		{Name: "key", Choice: "counters", Schema: yamlfile.Text, Doc: "a counter"},
		{Name: "prefix", Choice: "counters", Schema: yamlfile.Text, Doc: "counters that begin so, added up"},
		{Name: "top", Choice: "counters", Schema: yamlfile.Integer(1, MaxTop),
			Doc: "each of so many largest counters"},
		{Name: "all", Choice: "counters", Schema: yamlfile.Schema{"enum": []any{true, "true"}},
			Doc: "true: the sum of all hits"},
		{Name: "limit", Choice: "counters window", Schema: yamlfile.Text,
			Doc: "a limit of WATCH_LIMITS_FILE with count.nearly: a state for each of its keys"},
		{Name: "group", Schema: yamlfile.Integer(1, MaxGroup),
			Doc: "with prefix: a state for each group of so many parts"},
		{Name: "each", Schema: yamlfile.Schema{"enum": []any{true, "true"}},
			Doc: "with prefix and above: a state for each counter"},
		{Name: "window", Choice: "window", Schema: yamlfile.MatchingText(human.DurationPattern() +
			"|^(today|yesterday|week|month|year)$"),
			Doc: "rolls: a whole number and a unit (s, m, h, d, w, y); or of a calendar: today, yesterday, week, " +
				"month or year"},
		{Name: "tz", Schema: yamlfile.Text,
			Doc: "time zone of a calendar's window, such as Europe/Berlin; default UTC"},
		{Name: "above", Choice: "threshold", Schema: yamlfile.Schema{"anyOf": []yamlfile.Schema{
			yamlfile.Integer(0, math.MaxInt64), yamlfile.Matching(Percent.String())}},
			Doc: "hits; with limit: percent of its max, such as 80%"},
		{Name: "below", Choice: "threshold", Schema: yamlfile.Integer(1, math.MaxInt64), Doc: "hits"},
		{Name: "change", Choice: "threshold", Schema: yamlfile.MatchingText(Percents.String()),
			Doc: "percent against the window before, with a sign: +50%"},
		{Name: "least", Schema: yamlfile.Integer(1, math.MaxInt64),
			Doc: "with change: hits that a window needs; default 10"},
		{Name: "for", Schema: yamlfile.MatchingText(`^([0-9.]+(ms|[smhdw]))+$`),
			Doc: "how long before it fires; default 0s"},
		{Name: "surely", Schema: yamlfile.Bool,
			Doc: "fire only if even the bounds are past the threshold; default false"},
		{Name: "to[]", Required: true, Schema: yamlfile.List(yamlfile.Text, MaxTargets),
			Doc: "names of targets"},
	}
	File = yamlfile.Form{
		{Name: "targets{}", Required: true, Schema: yamlfile.Mapping(TargetName, Target.Schema(), MaxTargets)},
		{Name: "rules{}", Required: true, Schema: yamlfile.List(Rule.Schema(), MaxRules)},
	}
)

// Schema is the JSON Schema of a file.
func Schema() yamlfile.Schema { return File.Schema() }
