package main

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"tallyroll/internal/limit/limitfile"
	"tallyroll/internal/platform/setting"
)

// theirs is a descriptor in a file of envoyproxy/ratelimit.
type theirs struct {
	Key, Value     string
	RateLimit      *theirLimit `yaml:"rate_limit"`
	Descriptors    []yaml.Node
	ShadowMode     bool `yaml:"shadow_mode"`
	QuotaMode      bool `yaml:"quota_mode"`
	ShareThreshold bool `yaml:"share_threshold"`
	DetailedMetric bool `yaml:"detailed_metric"`
	ValueToMetric  bool `yaml:"value_to_metric"`
	Metadata       any
	at             string // line:column
}

type theirLimit struct {
	Unit, Name      string
	RequestsPerUnit uint32 `yaml:"requests_per_unit"`
	Unlimited       bool
	Replaces        any
}

// theirUnits are lengths since 1970, as the windows of the policy fixed are.
var theirUnits = map[string]string{"second": "1s", "minute": "1m", "hour": "1h", "day": "1d", "week": "7d",
	"month": "30d", "year": "365d"}

// translation makes limits of files of envoyproxy/ratelimit. What limits less here is an error, and what
// limits more is a comment.
type translation struct {
	file, domain string
	taken        map[string]bool // domains, and names of limits after a colon
	out          strings.Builder
}

// translate returns a file of limits.
func translate(files []string) (string, error) {
	if len(files) == 0 {
		return "", setting.BadUsage("--translate: must be followed by files of envoyproxy/ratelimit")
	}
	t := translation{taken: make(map[string]bool)}
	for _, file := range files {
		text, err := setting.Path{Key: "--translate", File: file}.Read()
		if err != nil {
			return "", setting.UsageError{Err: err}
		}
		err = t.addFile(file, text)
		if mistake, ok := errors.AsType[*yaml.LoadError](err); ok {
			message := regexp.MustCompile(` in(to| type) .*`).ReplaceAllString(mistake.Message, "") // types of Go
			err = fmt.Errorf("%d:%d: %s: correct it", mistake.Mark.Line, mistake.Mark.Column, message)
		}
		if err != nil {
			return "", setting.BadUsage("%s:%w", file, err)
		}
	}
	return "limits:" + cmp.Or(t.out.String(), " []") + "\n", nil
}

func (t *translation) addFile(file string, text []byte) error {
	var root struct {
		Domain      string
		Descriptors []yaml.Node
	}
	if err := yaml.Load(text, &root, yaml.WithKnownFields()); err != nil {
		return err
	}
	if root.Domain == "" || t.taken[root.Domain] {
		return fmt.Errorf("1:1: domain: %q: must be a name that no other file has", root.Domain)
	}
	t.file, t.domain, t.taken[root.Domain] = file, root.Domain, true
	return t.add(root.Descriptors, nil, "", false)
}

// add adds the limits of descriptors below others, whose entries and name are given. falls is true if here
// another one could decide in place of one without a limit. That is unlimited then.
func (t *translation) add(nodes []yaml.Node, entries []string, name string, falls bool) error {
	all := make([]*theirs, len(nodes))
	for i, node := range nodes {
		all[i] = &theirs{at: fmt.Sprintf("%d:%d", node.Line, node.Column)}
		if err := node.Load(all[i], yaml.WithKnownFields()); err != nil {
			return err
		}
		if len(entries) == limitfile.MaxEntries {
			return fmt.Errorf("%s: descriptors: must be at most %d, one below the other", all[i].at, len(entries))
		}
		if mistake := all[i].mistake(all[:i]); mistake != "" {
			return fmt.Errorf("%s: %s", all[i].at, mistake)
		}
	}
	for _, d := range all {
		falls, l := falls, d.RateLimit
		for _, other := range all {
			if !d.decidesBefore(other) {
				continue
			}
			if falls = true; other.Descriptors != nil {
				t.note(d, "what matches nothing below it has the limits below "+other.at+"; there, it has none")
			}
		}
		entry, name := fmt.Sprintf("{key: %q", d.Key), name+"."+d.Key
		if d.Value != "" {
			entry, name = entry+fmt.Sprintf(", value: %q", d.Value), name+"-"+d.Value
		}
		if d.ShareThreshold {
			entry += ", as: none"
		}
		entries := append(slices.Clip(entries), entry+"}")
		if l == nil && falls {
			l = &theirLimit{Unlimited: true}
		}
		if l != nil {
			t.addLimit(d, l, entries, name)
		}
		if err := t.add(d.Descriptors, entries, name, falls); err != nil {
			return err
		}
	}
	return nil
}

func (t *translation) addLimit(d *theirs, l *theirLimit, entries []string, name string) {
	if l.Replaces != nil {
		t.note(d, "the limits that it replaces decide, too")
	}
	numbers := fmt.Sprintf("max: %d, window: %s, policy: fixed", l.RequestsPerUnit, theirUnits[strings.ToLower(l.Unit)])
	switch {
	case l.Unlimited:
		numbers = "unlimited: true, window: 1s"
	case d.ShadowMode:
		numbers += ", mode: shadow"
	case d.QuotaMode:
		t.note(d, "quota_mode refuses what is over this limit; there, only what is over all such limits")
	}
	name = regexp.MustCompile(`[^A-Za-z0-9_.]+`).ReplaceAllString(cmp.Or(l.Name, name[1:]), "-")
	name = name[:min(len(name), limitfile.MaxName-6)]
	free := name
	for n := 2; t.taken[":"+free]; n++ {
		free = fmt.Sprintf("%s-%d", name, n)
	}
	t.taken[":"+free] = true
	fmt.Fprintf(&t.out, "\n  - {name: %q, %s, envoy: {domain: %q, descriptor: [%s]}}", free, numbers, t.domain,
		strings.Join(entries, ", "))
}

func (t *translation) note(d *theirs, text string) {
	fmt.Fprintf(&t.out, "\n  # %s:%s: stricter here: %s", t.file, d.at, text)
}

// mistake returns what is a mistake there, too, or limits less here. before are the descriptors before it.
func (d *theirs) mistake(before []*theirs) string {
	l := cmp.Or(d.RateLimit, &theirLimit{Unlimited: true})
	switch {
	case d.Key == "" || strings.Contains(d.Key, "*"):
		return fmt.Sprintf("key: %q: must be text without an asterisk", d.Key)
	case d.ShareThreshold && !strings.Contains(d.Value, "*"):
		return "share_threshold: only with an asterisk in value: remove it"
	case l.Unlimited != (theirUnits[strings.ToLower(l.Unit)] == ""):
		return fmt.Sprintf("unit: %q: must be second, minute, hour, day, week, month or year, or missing with "+
			"unlimited: true", l.Unit)
	}
	for _, other := range before {
		switch {
		case other.Key == d.Key && other.Value == d.Value:
			return other.at + " has the same key and value: remove one of them"
		case strings.Contains(d.Value, "*") && strings.Contains(other.Value, "*") && d.decidesBefore(other):
			return fmt.Sprintf("value: %q: there, %q (%s) decides about what both match, and here the longer: put the "+
				"longer first", d.Value, other.Value, other.at)
		}
	}
	return ""
}

// decidesBefore reports whether values can match both descriptors, and this one decides about them here.
func (d *theirs) decidesBefore(other *theirs) bool {
	begin, _, several := strings.Cut(d.Value, "*")
	otherBegin, _, otherSeveral := strings.Cut(other.Value, "*")
	switch {
	case d.Key != other.Key || d.Value == "" || other.Value != "" && !otherSeveral:
		return false
	case !several:
		return limitfile.Matches(other.Value, d.Value)
	}
	return limitfile.ComparePatterns(d.Value, other.Value) < 0 &&
		(strings.HasPrefix(begin, otherBegin) || strings.HasPrefix(otherBegin, begin))
}
