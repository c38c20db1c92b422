package rules

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v4"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/yamlfile"
)

type rule struct {
	line   int
	stored bool   // it was in force earlier: what is refused since keeps its meaning
	stream string // a glob
	filter filter
	format Format
	time   *path
	each   *path
	when   []condition
	count  []counter
}

// condition must hold for an event.
type condition struct {
	source source
	want   value
}

// Format is how a rule reads a message's body.
type Format string

const (
	JSON        Format = "json"
	CloudEvents Format = "cloudevents"
	None        Format = "none" // the body is ignored
)

// Formats are all formats. The first is the default.
var Formats = []Format{JSON, CloudEvents, None}

const ruleFields = "stream, subject, format, time, each, when, count"

var (
	text     = yamlfile.Schema{"type": "string"}
	ruleForm = yamlfile.Form{
		{Name: "stream", Required: true, Schema: text, Doc: "a name, or a glob such as ORDERS*"},
		{Name: "subject", Required: true, Schema: text, Doc: "a subject, which may have the wildcards * and >"},
		{Name: "format", Schema: yamlfile.Enum(Formats), Doc: "how the body is read; none ignores it"},
		{Name: "time", Schema: text, Doc: "path of the event's time; default the time stored"},
		{Name: "each", Schema: text, Doc: "path of an array of which each element is an event"},
		{Name: "when{}", Schema: yamlfile.Schema{"type": "object", "minProperties": 1, "maxProperties": MaxWhen,
			"additionalProperties": yamlfile.Schema{"type": []string{"string", "integer", "boolean"}}},
			Doc: "paths, each with the value that it must be equal to"},
		{Name: "count{}", Required: true, Schema: yamlfile.List(counterForm.Schema(), MaxCounters),
			Doc: "the counters that an event counts on"},
	}
	counterForm = yamlfile.Form{
		{Name: "key", Required: true, Schema: text, Doc: "name of the counter, with paths in braces: orders.{country}"},
		{Name: "n", Schema: yamlfile.Schema{"type": []string{"string", "number"}, "minimum": 1,
			"maximum": int64(hit.MaxN)},
			Doc: "how many hits: a path, or a whole number; default 1"},
		{Name: "unique", Schema: text, Doc: "what is counted once per value, such as {user.id}"},
		{Name: "optional", Schema: yamlfile.Schema{"type": "boolean"},
			Doc: "do not count, and do not reject, an event without what the counter needs"},
	}
)

// Schema is the JSON Schema of a rules file.
func Schema() yamlfile.Schema { return yamlfile.List(ruleForm.Schema(), MaxRules) }

// readRule reads subject before what refers to it: templates name its wildcards by number.
func readRule(node *yaml.Node, stored bool) (*rule, error) {
	fields, err := ruleForm.Read(node, "a rule")
	if err != nil {
		return nil, err
	}
	r := &rule{line: node.Line, stored: stored, format: Formats[0]}
	for _, read := range []struct {
		name string
		set  func(text string) error
	}{
		{"stream", func(text string) error { r.stream = text; return checkGlob(text) }},
		{"subject", func(text string) (err error) { r.filter, err = parseFilter(text); return err }},
		{"format", func(text string) error { r.format = Format(text); return checkFormat(r.format) }},
		{"time", func(text string) (err error) { r.time, err = r.parsePath(text); return err }},
		{"each", func(text string) (err error) { r.each, err = r.parsePath(text); return err }},
	} {
		node := fields[read.name]
		if node == nil {
			continue
		}
		text, err := readText(read.name, node)
		if err != nil {
			return nil, err
		}
		if err := read.set(text); err != nil {
			return nil, fileErrorf(node.Line, "%s: %s: %v", read.name, quoteNode(node), err)
		}
	}
	if r.each != nil && len(r.each.names) == 0 {
		return nil, fileErrorf(fields["each"].Line, "each: must be the path of an array in the event, not @this")
	}
	if err := r.readWhen(fields["when"]); err != nil {
		return nil, err
	}
	return r, r.readCount(fields["count"])
}

func checkFormat(f Format) error {
	if !slices.Contains(Formats, f) {
		return errors.New("must be json, cloudevents or none")
	}
	return nil
}

func (r *rule) parsePath(text string) (*path, error) {
	s, err := parseSource(text, r.filter)
	switch {
	case err != nil:
		return nil, err
	case s.kind != field:
		return nil, fmt.Errorf("this is the message's subject: for a field of the event write ^.%s",
			strings.TrimPrefix(text, "@"))
	}
	return &s.path, r.checkPath(s)
}

// checkPath refuses a path that the rule's format and each do not allow.
func (r *rule) checkPath(s source) error {
	switch {
	case s.kind == subject && s.text != messageSubject && r.format == CloudEvents && !r.stored:
		return fmt.Errorf("%q: with format cloudevents this would be the subject of the message, not that of the "+
			"event: write ^.subject for the event's, %s for the message's", s.text, messageSubject)
	case s.kind != field:
		return nil
	case r.format == None:
		return fmt.Errorf("path %q: with format none the body is ignored: must be {subject} or {subject.1}", s.text)
	case len(s.path.names) == 0 && r.each == nil:
		return fmt.Errorf("path %q is the element of each, which the rule does not have", s.text)
	}
	return nil
}

var wholeNumber = regexp.MustCompile(`^(0|-?[1-9][0-9]*)$`)

const whenForm = "must be paths, each with the value that it must be equal to: text, a whole number, true or false"

func (r *rule) readWhen(node *yaml.Node) error {
	if node == nil {
		return nil
	}
	if node.Kind != yaml.MappingNode || len(node.Content) == 0 {
		return fileErrorf(node.Line, "when: %s", whenForm)
	}
	if len(node.Content)/2 > MaxWhen {
		return fileErrorf(node.Line, "when: %d conditions: at most %d are allowed", len(node.Content)/2, MaxWhen)
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		name, wantedNode := node.Content[i], node.Content[i+1]
		if name.Kind != yaml.ScalarNode || name.ShortTag() != "!!str" {
			return fileErrorf(name.Line, "when: %s is not a path: put it in quotes", quoteNode(name))
		}
		s, err := parseSource(name.Value, r.filter)
		if err == nil {
			err = r.checkPath(s)
		}
		if err != nil {
			return fileErrorf(name.Line, "when: %v", err)
		}
		if slices.ContainsFunc(r.when, func(c condition) bool { return c.source.text == s.text }) {
			return fileErrorf(name.Line, "when: %s is listed twice", quoteNode(name))
		}
		want, ok := parseWanted(wantedNode)
		if !ok {
			return fileErrorf(wantedNode.Line, "when: %s: %s", name.Value, whenForm)
		}
		r.when = append(r.when, condition{s, want})
	}
	return nil
}

func parseWanted(node *yaml.Node) (value, bool) {
	if node.Kind != yaml.ScalarNode {
		return value{}, false
	}
	switch node.ShortTag() {
	case "!!str":
		return value{kindText, []byte(node.Value)}, true
	case "!!int":
		return value{kindInteger, []byte(node.Value)}, wholeNumber.MatchString(node.Value)
	case "!!bool":
		return value{kindBool, []byte(node.Value)}, node.Value == "true" || node.Value == "false"
	}
	return value{}, false
}

// checkFormats refuses different formats for the same message. A stream with wildcards counts as all streams.
func checkFormats(all []*rule) error {
	for i, r := range all {
		for _, earlier := range all[:i] {
			sameStream := r.stream == earlier.stream || IsGlob(r.stream) || IsGlob(earlier.stream)
			if r.format != earlier.format && sameStream && r.filter.overlaps(earlier.filter) {
				return fileErrorf(r.line, "format: %s here, but %s in the rule on line %d, which can match the same "+
					"messages: rules for the same messages have one format", r.format, earlier.format, earlier.line)
			}
		}
	}
	return nil
}

type counter struct {
	line     int
	key      []source
	n        int64 // 0: 1, or the increment of a message that has one
	amount   *path
	unique   []source // nil: the hits have no unique value
	optional bool
}

// readCount refuses a key that is listed twice, which is mostly a copied entry that nobody changed.
func (r *rule) readCount(node *yaml.Node) error {
	if node.Kind != yaml.SequenceNode || len(node.Content) == 0 {
		return fileErrorf(node.Line, "count: must be a list of counters, each with %s", "key, n, unique, optional")
	}
	if len(node.Content) > MaxCounters {
		return fileErrorf(node.Content[MaxCounters].Line,
			"count: this is counter %d of the rule: at most %d are allowed", MaxCounters+1, MaxCounters)
	}
	lines := make(map[string]int)
	for _, entry := range node.Content {
		fields, err := counterForm.Read(entry, "a counter")
		if err != nil {
			return err
		}
		key, err := readText("key", fields["key"])
		if err != nil {
			return err
		}
		line := fields["key"].Line
		if lines[key] != 0 {
			return fileErrorf(line, "key: %s is the key on line %d, too: an event would count twice",
				quoteNode(fields["key"]), lines[key])
		}
		lines[key] = line
		c, err := r.readCounter(key, fields)
		if err != nil {
			return err
		}
		r.count = append(r.count, c)
	}
	return nil
}

// readCounter refuses a unique without a value of the event: it would count 1 for ever.
func (r *rule) readCounter(key string, fields map[string]*yaml.Node) (c counter, err error) {
	c = counter{line: fields["key"].Line}
	if c.key, err = r.parseTemplate(key); err != nil {
		return c, fileErrorf(c.line, "key: %s: %v", quoteNode(fields["key"]), err)
	}
	if node := fields["unique"]; node != nil {
		text, err := readText("unique", node)
		if err != nil {
			return c, err
		}
		c.unique, err = r.parseTemplate(text)
		if err == nil && len(c.unique) == 1 && c.unique[0].kind == constant {
			err = errors.New("the same for all events: must be text with at least one value in braces, " +
				"such as {user.id}")
		}
		if err != nil {
			return c, fileErrorf(node.Line, "unique: %s: %v", quoteNode(node), err)
		}
	}
	if node := fields["optional"]; node != nil {
		if node.Value != "true" && node.Value != "false" || node.ShortTag() != "!!bool" {
			return c, fileErrorf(node.Line, "optional: must be true or false")
		}
		c.optional = node.Value == "true"
	}
	if node := fields["n"]; node != nil {
		return c, r.readAmount(&c, node)
	}
	return c, nil
}

func (r *rule) parseTemplate(text string) ([]source, error) {
	parts, err := parseKey(text, r.filter)
	for i := 0; err == nil && i < len(parts); i++ {
		err = r.checkPath(parts[i])
	}
	return parts, err
}

// readAmount checks the text of a number, too, because versions of YAML differ about 010.
func (r *rule) readAmount(c *counter, node *yaml.Node) error {
	form := fmt.Sprintf("must be a path, or a whole number from 1 to %d", int64(hit.MaxN))
	var err error
	switch node.ShortTag() {
	case "!!int", "!!float":
		c.n, err = strconv.ParseInt(node.Value, 10, 64)
		if err != nil || c.n < 1 || c.n > hit.MaxN || !wholeNumber.MatchString(node.Value) {
			return fileErrorf(node.Line, "n: %s: %s", quoteNode(node), form)
		}
	case "!!str":
		c.amount, err = r.parsePath(node.Value)
		if err != nil {
			return fileErrorf(node.Line, "n: %s: %v", quoteNode(node), err)
		}
	default:
		return fileErrorf(node.Line, "n: %s: %s", quoteNode(node), form)
	}
	return nil
}
