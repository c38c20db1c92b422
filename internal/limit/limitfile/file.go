package limitfile

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"tallyroll/internal/hit"
	"tallyroll/internal/limit"
	"tallyroll/internal/platform/human"
	"tallyroll/internal/platform/yamlfile"
	"tallyroll/internal/window/calendar"
)

// Limit is a named limit with what chooses its keys.
type Limit struct {
	limit.Limit
	Key   Template // makes the key that hits are kept under
	Envoy []Descriptor

	counters []counter
}

// defaultAt is the default of at, in hundredths of a percent.
const defaultAt = 80_00

// Set holds limits by name.
type Set map[string]*Limit

// MaxName bounds a limit's name, in bytes.
const MaxName = 64

var namePattern = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

const fileFields = "name, window, tz, starts, max or unlimited, at_most, policy, fail, key, mode, share, ttl, count " +
	"and envoy"

var (
	duration = yamlfile.MatchingText(human.DurationPattern())
	hits     = yamlfile.Integer(1, limit.MaxHits)

	limitForm = yamlfile.Form{
		{Name: "name", Required: true, Schema: yamlfile.Matching(namePattern.String()),
			Doc: "1 to 64 letters, digits, underscores, hyphens and dots"},
		{Name: "window", Required: true, Schema: yamlfile.Schema{"anyOf": []yamlfile.Schema{duration,
			yamlfile.Enum([]string{calendar.Today, calendar.Week, calendar.Month, calendar.Year})}},
			Doc: "a whole number and a unit (s, m, h, d, w, y), 1s to 366d; or today, week, month or year"},
		{Name: "tz", Schema: yamlfile.Text, Doc: "the time zone of today, week, month and year; default UTC"},
		{Name: "starts", Schema: yamlfile.Text,
			Doc: "the day that a month (1 to 31) or week (monday to sunday) starts on"},
		{Name: "at_most", Schema: hits, Doc: "a take may give its own max, up to this; default: it may not"},
		{Name: "max", Choice: "max", Schema: yamlfile.Integer(0, limit.MaxHits),
			Doc: "hits that a key may have in the window; 0 refuses always"},
		{Name: "unlimited", Choice: "max", Schema: yamlfile.Schema{"enum": []any{true, "true"}},
			Doc: "in place of max: allows always, and counts nothing"},
		{Name: "policy", Schema: yamlfile.Enum(limit.NamedPolicies()), Doc: "how hits are counted, and how exactly"},
		{Name: "fail", Schema: yamlfile.Enum(limit.Fails), Doc: "what happens to a take while Redis is away"},
		{Name: "mode", Schema: yamlfile.Enum(limit.Modes), Doc: "shadow decides and counts, and refuses nothing"},
		{Name: "share{}", Schema: shareForm.Schema(), Doc: "what a process takes at once, to decide by itself"},
		{Name: "ttl", Schema: duration, Doc: "how long ids of takes are remembered; default 10m"},
		{Name: "count{}", Schema: countForm.Schema(), Doc: "counters of what is decided; none by default"},
		{Name: "key", Schema: yamlfile.Text, Doc: "template of the key that hits are kept under; default {key}"},
		{Name: "envoy{}", Schema: yamlfile.Schema{"anyOf": []yamlfile.Schema{envoyForm.Schema(),
			yamlfile.List(envoyForm.Schema(), MaxDescriptors)}}, Doc: "descriptors of Envoy that select the limit"},
	}
	shareForm = yamlfile.Form{
		{Name: "hits", Required: true, Schema: hits, Doc: "at most so many at once"},
		{Name: "for", Required: true, Schema: duration, Doc: "then what is not spent is given back"},
	}
	counterName  = yamlfile.Matching(limit.CounterPattern)
	counterNames = yamlfile.Schema{"anyOf": []yamlfile.Schema{counterName,
		yamlfile.List(counterName, limit.MaxCounters)}}
	countForm = yamlfile.Form{
		{Name: "allowed[]?", Schema: counterNames,
			Doc: "hits of allowed takes; if they are settled, the settled number"},
		{Name: "refused[]?", Schema: counterNames, Doc: "hits of refused takes"},
		{Name: "returned[]?", Schema: counterNames, Doc: "hits given back, or that a later settlement took away"},
		{Name: "would_refuse[]?", Schema: counterNames, Doc: "hits that would have been refused, in shadow mode"},
		{Name: "nearly[]?", Schema: counterNames, Doc: "one hit per take after which more than at of max is used"},
		{Name: "at", Schema: yamlfile.Matching(`^[0-9]{1,2}(\.[0-9]{1,2})?%$`), Doc: "a percentage of max; default 80%"},
		{Name: "unbounded", Schema: yamlfile.Bool, Doc: "allow keys of which clients can make any number"},
	}
)

// Schema is the JSON Schema of a file.
func Schema() yamlfile.Schema {
	return yamlfile.Form{{Name: "limits", Required: true, Schema: yamlfile.Schema{"type": "array",
		"items": limitForm.Schema()}}}.Schema()
}

// Parse reads named limits, each with the fields of limitForm:
//
//	limits:
//	  - {name: login, window: 1m, max: 5, policy: log, key: "user:{key}"}
//
// The error is a *yamlfile.Error. It names the first mistake.
func Parse(data []byte) (Set, error) {
	document, err := yamlfile.Document(data, "a list of limits under limits:")
	if err != nil {
		return nil, err
	}
	top, err := yamlfile.Fields(document, "the file", "limits")
	if err != nil {
		return nil, err
	}
	entries := top["limits"]
	if entries == nil || entries.Kind != yaml.SequenceNode {
		return nil, yamlfile.Errorf(document.Line, "limits: missing or not a list: must be a list of limits, "+
			"each with %s", fileFields)
	}
	out := make(Set, len(entries.Content))
	lines := make(map[string]int, len(entries.Content))
	var all counters
	for _, node := range entries.Content {
		l, line, err := parseLimit(node)
		if err != nil {
			return nil, err
		}
		if first, twice := lines[l.Name]; twice {
			return nil, yamlfile.Errorf(line, "name: %q is the name of the limit on line %d, too", l.Name, first)
		}
		out[l.Name], lines[l.Name] = l, line
		if err := all.add(l); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// counters are what the names of counters begin with, or whole names and a zero byte, sorted. None begins
// with another one, because then some key of one limit would make the counter of another one's key.
type counters []counter

type counter struct {
	prefix, field, limit string
	name                 limit.CounterName
	line                 int
}

// add refuses a counter that can be one of another field, or of another prefix. Limits whose counters have
// the same field and prefix add up.
func (c *counters) add(l *Limit) error {
	for _, own := range l.counters {
		i, known := slices.BinarySearchFunc(*c, own.prefix, func(a counter, prefix string) int {
			return strings.Compare(a.prefix, prefix)
		})
		for _, other := range (*c)[max(0, i-1):min(i+1, len(*c))] {
			meet := strings.HasPrefix(own.prefix, other.prefix) || strings.HasPrefix(other.prefix, own.prefix)
			if !meet || own.prefix == other.prefix && own.field == other.field {
				continue
			}
			of := ""
			if other.limit != own.limit {
				of = fmt.Sprintf(" of the limit %q", other.limit)
			}
			return yamlfile.Errorf(own.line, "count: %s: %q: must not share counters with %s%s, %q: begin neither "+
				"with the other, such as usage.{limit}.{key} and refused.{limit}.{key}", own.field, own.name,
				other.field, of, other.name)
		}
		if !known {
			*c = slices.Insert(*c, i, own)
		}
	}
	return nil
}

func parseLimit(node *yaml.Node) (l *Limit, line int, err error) {
	fields, err := limitForm.Read(node, "a limit")
	if err != nil {
		return nil, 0, err
	}
	l = &Limit{Limit: limit.Limit{
		Name: fields["name"].Value, Policy: limit.Policy(yamlfile.Value(fields["policy"])),
		Fail: limit.Fail(yamlfile.Value(fields["fail"])), Mode: limit.Mode(yamlfile.Value(fields["mode"])),
	}}
	wrong := func(field, message string) error {
		return yamlfile.Errorf(fields[field].Line, "%s: %s", field, message)
	}
	if !namePattern.MatchString(l.Name) {
		return nil, 0, wrong("name", fmt.Sprintf("%q: must be 1 to %d letters, digits, underscores, hyphens and dots",
			l.Name, MaxName))
	}
	if field, err := l.readWindow(fields["window"].Value, yamlfile.Value(fields["tz"]),
		yamlfile.Value(fields["starts"])); err != nil {
		return nil, 0, wrong(field, err.Error())
	}
	if unlimited := fields["unlimited"]; unlimited != nil {
		if l.Unlimited, _ = yamlfile.ParseBool(unlimited); !l.Unlimited {
			return nil, 0, wrong("unlimited", fmt.Sprintf("%q: must be true, or leave it out", unlimited.Value))
		}
	}
	if most := fields["max"]; most != nil {
		l.Max, err = strconv.ParseInt(most.Value, 10, 64)
		if err != nil {
			return nil, 0, wrong("max", fmt.Sprintf("%q: must be a whole number", most.Value))
		}
	}
	if most := fields["at_most"]; most != nil {
		l.AtMost, err = strconv.ParseInt(most.Value, 10, 64)
		if err != nil || l.AtMost < l.Max || l.AtMost > limit.MaxHits || l.Unlimited {
			return nil, 0, wrong("at_most", fmt.Sprintf("%q: must be a whole number, max or more", most.Value))
		}
	}
	if key := fields["key"]; key != nil {
		l.Key, err = ParseTemplate(key.Value)
		if err != nil {
			return nil, 0, wrong("key", fmt.Sprintf("%q: %v", key.Value, err))
		}
	}
	if ttl := fields["ttl"]; ttl != nil {
		l.TTL, err = human.ParseDuration(ttl.Value)
		if err != nil {
			return nil, 0, wrong("ttl", err.Error())
		}
	}
	if share := fields["share"]; share != nil {
		l.Share, err = parseShare(share)
		if err != nil {
			return nil, 0, err
		}
	}
	if count := fields["count"]; count != nil {
		l.Count, err = parseCount(count, l)
		if err != nil {
			return nil, 0, err
		}
	}
	err = l.Check()
	var bad *limit.FieldError
	if errors.As(err, &bad) {
		return nil, 0, wrong(bad.Field, bad.Message)
	}
	if node := fields["envoy"]; node != nil {
		if l.Policy.Traits().Slots {
			return nil, 0, wrong("envoy", fmt.Sprintf("a limit of the policy %s cannot have it: Envoy releases no slot",
				l.Policy))
		}
		l.Envoy, err = parseEnvoy(node, l)
	}
	return l, fields["name"].Line, err
}

// readWindow reads a window that rolls, or one of a calendar in a time zone.
func (l *Limit) readWindow(text, tz, starts string) (field string, err error) {
	if !calendar.IsWindow(text) || text == calendar.Yesterday {
		if tz != "" {
			return "tz", errors.New("only with the windows today, week, month and year")
		}
		if starts != "" {
			return "starts", errors.New("only with the windows week and month")
		}
		l.Window, err = human.ParseDuration(text)
		if err != nil {
			err = fmt.Errorf("%w; or today, week, month or year", err)
		}
		return "window", err
	}
	zone, err := calendar.ParseZone(tz)
	if err != nil {
		return "tz", err
	}
	l.Period, err = calendar.ParsePeriod(text, starts, zone)
	if err == nil {
		l.Window = l.Period.Longest()
	}
	return "starts", err
}

func parseShare(node *yaml.Node) (s limit.Share, err error) {
	fields, err := shareForm.Read(node, "share")
	if err != nil {
		return s, err
	}
	s.Hits, err = strconv.ParseInt(fields["hits"].Value, 10, 64)
	if err != nil {
		return s, yamlfile.Errorf(fields["hits"].Line, "share: hits: %q: must be a whole number", fields["hits"].Value)
	}
	s.For, err = human.ParseDuration(fields["for"].Value)
	if err != nil {
		return s, yamlfile.Errorf(fields["for"].Line, "share: for: %v", err)
	}
	return s, nil
}

var counterPattern = regexp.MustCompile(limit.CounterPattern)

func parseCount(node *yaml.Node, l *Limit) (c limit.Count, err error) {
	fields, err := countForm.Read(node, "count")
	if err != nil {
		return c, err
	}
	kinds := []*limit.CounterNames{&c.Allowed, &c.Refused, &c.Returned, &c.WouldRefuse, &c.Nearly}
	perKey := false
	for i, name := range []string{"allowed", "refused", "returned", "would_refuse", "nearly"} {
		for k, node := range yamlfile.Nodes(fields[name]) {
			if k == limit.MaxCounters {
				return c, yamlfile.Errorf(node.Line, "count: %s: must have at most %d templates", name, k)
			}
			template := limit.CounterName(node.Value)
			prefix := template.Prefix(l.Name)
			if !counterPattern.MatchString(node.Value) || len(prefix) > limit.MaxCounterPrefix ||
				hit.CheckName([]byte(prefix)) != nil {
				return c, yamlfile.Errorf(node.Line, "count: %s: %q: must be text such as usage.{limit}.{key} or "+
					"sum.usage.{limit}: at most %d bytes before {key}, which is the end, after a dot; a dot or the "+
					"end after {limit}; no other braces, and no dot at the end", name, node.Value,
					limit.MaxCounterPrefix)
			}
			if template.HasKey() {
				perKey = true
			} else {
				prefix += "\x00"
			}
			same := func(c counter) bool { return c.prefix == prefix && c.field == name }
			if slices.ContainsFunc(l.counters, same) {
				return c, yamlfile.Errorf(node.Line, "count: %s: %q: would count the same hits twice", name, node.Value)
			}
			kinds[i][k] = template
			l.counters = append(l.counters, counter{prefix, name, l.Name, template, node.Line})
		}
	}
	if c == (limit.Count{}) {
		return c, yamlfile.Errorf(node.Line, "count: names no counter: must have allowed, refused, returned, "+
			"would_refuse or nearly")
	}
	if c.Nearly != (limit.CounterNames{}) {
		c.At = defaultAt
	}
	if at := fields["at"]; at != nil {
		n, ok := human.ParsePercent(at.Value)
		if !ok || c.At == 0 || n >= limit.Whole {
			return c, yamlfile.Errorf(at.Line, "count: at: %q: must be a percentage below 100%%, such as 80%%, "+
				"together with nearly", at.Value)
		}
		c.At = n
	}
	if unbounded := fields["unbounded"]; unbounded != nil {
		switch is, ok := yamlfile.ParseBool(unbounded); {
		case is:
			return c, nil
		case !ok:
			return c, yamlfile.Errorf(unbounded.Line, "count: unbounded: %q: must be true or false", unbounded.Value)
		}
	}
	for _, v := range l.Key.Variables() {
		if perKey && v != VarKey && v != VarMethod {
			return c, yamlfile.Errorf(node.Line, "count: the limit's key %s has {%s}, of which clients can make any "+
				"number of values, and each counter is kept for a month: count without {key}, or add unbounded: true",
				l.Key, v)
		}
	}
	return c, nil
}
