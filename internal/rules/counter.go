package rules

import (
	"errors"
	"fmt"
	"strconv"

	"go.yaml.in/yaml/v4"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/yamlfile"
)

type counter struct {
	line     int
	key      []source
	n        int64 // 0: 1, or the increment of a message that has one
	amount   *path
	unique   []source // nil: the hits have no unique value
	optional bool
}

func (r *rule) readCount(node *yaml.Node) error {
	if node.Kind != yaml.SequenceNode || len(node.Content) == 0 {
		return fileErrorf(node.Line, "count: must be a list of counters, each with %s", "key, n, unique, optional")
	}
	if len(node.Content) > MaxCounters {
		return fileErrorf(node.Content[MaxCounters].Line, "count: this is counter %d of the rule: at most %d are allowed", MaxCounters+1, MaxCounters)
	}
	lines := make(map[string]int)
	for _, entry := range node.Content {
		fields, err := yamlfile.Fields(entry, "a counter", "key", "n", "unique", "optional")
		if err != nil {
			return err
		}
		if fields["key"] == nil {
			return fileErrorf(entry.Line, "key: missing: a counter needs a key")
		}
		key, err := readText("key", fields["key"])
		if err != nil {
			return err
		}
		line := fields["key"].Line
		if lines[key] != 0 {
			return fileErrorf(line, "key: %s is the key on line %d, too: an event would count twice", quoteNode(fields["key"]), lines[key])
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
			err = errors.New("the same for all events: must be text with at least one value in braces, such as {user.id}")
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
