package rules

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/go-faster/jx"

	"tallyroll/internal/hit"
)

// tree finds values at several paths in one pass over JSON. Of a repeated field the last counts, as in hits.
type tree struct {
	values []value
	root   *node
	json   jx.Decoder
}

// node is a name in paths, or their start.
type node struct {
	tree        *tree
	children    []*node
	byName      map[string]*node // nil if the children are few
	name        string
	index       int // the number that the name is, or -1
	slot        int // in values, if a path ends here; otherwise -1
	first, last int // the slots of this node and of those below

	field        func(j *jx.Decoder, name []byte) error // readField, as a method value that is allocated once
	element      func(j *jx.Decoder) error
	elementIndex int // index of the current element
	inner        jx.Decoder
}

const slotPending = 0

func newTree() *tree {
	t := new(tree)
	t.root = newNode(t, "")
	return t
}

func newNode(t *tree, name string) *node {
	n := &node{tree: t, name: name, index: -1, slot: -1}
	i, err := strconv.Atoi(name)
	if err == nil && strconv.Itoa(i) == name && i >= 0 {
		n.index = i
	}
	n.field, n.element = n.readField, n.readElement
	return n
}

// add adds a path. The node has its value after finish and each read.
func (t *tree) add(names []string) *node {
	n := t.root
	for _, name := range names {
		n = n.child(name)
	}
	n.slot = slotPending
	return n
}

func (n *node) child(name string) *node {
	for _, c := range n.children {
		if c.name == name {
			return c
		}
	}
	c := newNode(n.tree, name)
	n.children = append(n.children, c)
	return c
}

// finish assigns slots after all paths were added. A node's slot and those below it are adjacent.
func (t *tree) finish() {
	t.values = make([]value, t.root.assignSlots(0))
}

// assignSlots numbers a subtree's values one after the other, so that clearing what an earlier event left in
// it is one loop.
func (n *node) assignSlots(next int) int {
	const few = 8
	n.first = next
	if n.slot == slotPending {
		n.slot = next
		next++
	}
	if len(n.children) > few {
		n.byName = make(map[string]*node, len(n.children))
	}
	for _, c := range n.children {
		next = c.assignSlots(next)
		if n.byName != nil {
			n.byName[c.name] = c
		}
	}
	n.last = next
	return next
}

// value returns what the last read found.
func (n *node) value() value { return n.tree.values[n.slot] }

func (n *node) setValue(v value) { n.tree.values[n.slot] = v }

// isFound reports whether the last read found a value of the node or below it.
func (n *node) isFound() bool {
	return slices.ContainsFunc(n.tree.values[n.first:n.last], func(v value) bool { return v.kind != kindAbsent })
}

func (n *node) clearValues() { clear(n.tree.values[n.first:n.last]) }

var errTrailing = errors.New("more follows its end")

// readAll reads a whole JSON text from the node on.
func (n *node) readAll(json []byte) error {
	j := &n.tree.json
	j.ResetBytes(json)
	err := n.read(j)
	if err == nil && j.Skip() != io.EOF {
		err = errTrailing
	}
	return err
}

// read takes the raw JSON of a node that has both a value and children, and reads the children from that
// copy, because the decoder cannot go back.
func (n *node) read(j *jx.Decoder) error {
	n.clearValues()
	if n.slot >= 0 {
		json, err := j.Raw()
		if err != nil {
			return err
		}
		n.tree.values[n.slot] = parseValue(json)
		if len(n.children) == 0 {
			return nil
		}
		n.inner.ResetBytes(json)
		j = &n.inner
	}
	switch {
	case len(n.children) == 0:
	case j.Next() == jx.Object:
		return j.ObjBytes(n.field)
	case j.Next() == jx.Array:
		n.elementIndex = 0
		return j.Arr(n.element)
	}
	return j.Skip()
}

func (n *node) readField(j *jx.Decoder, name []byte) error {
	if n.byName != nil {
		c := n.byName[string(name)]
		if c != nil {
			return c.read(j)
		}
		return j.Skip()
	}
	for _, c := range n.children {
		if c.name == string(name) {
			return c.read(j)
		}
	}
	return j.Skip()
}

func (n *node) readElement(j *jx.Decoder) error {
	index := n.elementIndex
	n.elementIndex++
	for _, c := range n.children {
		if c.index == index {
			return c.read(j)
		}
	}
	return j.Skip()
}

// value is the value at a path.
type value struct {
	kind valueKind
	text []byte // of an object or array, its JSON
}

type valueKind uint8

const (
	kindAbsent  valueKind = iota
	kindText              // text is the string itself
	kindEscaped           // a string with escapes; text is its JSON
	kindPlain             // a header, or a part of the subject: text that may stand for any type
	kindInteger
	kindBool
	kindNull
	kindFloat
	kindObject
	kindArray
)

var kindNames = [...]string{
	"missing", "text", "text", "text", "a whole number", "true or false", "null", "a number with fraction or exponent",
	"an object", "an array",
}

var integerZero = []byte("0")

// parseValue returns the value of valid JSON.
func parseValue(json []byte) value {
	switch json[0] {
	case '"':
		inner := json[1 : len(json)-1]
		if bytes.IndexByte(inner, '\\') >= 0 {
			return value{kindEscaped, json}
		}
		return value{kindText, inner}
	case '{':
		return value{kindObject, json}
	case '[':
		return value{kindArray, json}
	case 't', 'f':
		return value{kindBool, json}
	case 'n':
		return value{kindNull, json}
	}
	for _, c := range json {
		if c == '.' || c == 'e' || c == 'E' {
			return value{kindFloat, json}
		}
	}
	if string(json) == "-0" {
		json = integerZero
	}
	return value{kindInteger, json}
}

// isMissing reports whether there is nothing to count by: no field, null, or empty text.
func (v value) isMissing() bool {
	return v.kind == kindAbsent || v.kind == kindNull || len(v.text) == 0
}

// isText reports whether v is text, or can be read as text.
func (v value) isText() bool {
	return v.kind == kindText || v.kind == kindEscaped || v.kind == kindPlain
}

// appendTo appends text, an integer, true or false. ok is false for others and for half of a surrogate pair.
func (v value) appendTo(b []byte) (out []byte, ok bool) {
	switch v.kind {
	case kindText, kindPlain, kindInteger, kindBool:
		return append(b, v.text...), true
	case kindEscaped:
		if hit.HalfSurrogate(v.text) {
			return b, false
		}
		out, err := jx.DecodeBytes(v.text).StrAppend(b)
		return out, err == nil
	}
	return b, false
}

// equals reports whether v is the value of a rule's condition. scratch is memory for v's text.
func (v value) equals(want value, scratch []byte) bool {
	switch {
	case v.kind == want.kind, v.kind == kindPlain:
		return bytes.Equal(v.text, want.text)
	case v.kind == kindEscaped && want.kind == kindText:
		text, ok := v.appendTo(scratch[:0])
		return ok && bytes.Equal(text, want.text)
	}
	return false
}

func (v value) parseInteger() (n int64, ok bool) {
	if v.kind != kindInteger && v.kind != kindPlain {
		return 0, false
	}
	n, err := strconv.ParseInt(string(v.text), 10, 64)
	return n, err == nil
}

// String returns the value for a detail, cut if it is longer than a line.
func (v value) String() string {
	const maxLength = 64
	switch {
	case v.kind == kindAbsent:
		return "missing"
	case v.kind == kindNull:
		return "null"
	case len(v.text) == 0:
		return "empty"
	}
	text, rest := v.text, ""
	if len(text) > maxLength {
		text, rest = text[:maxLength], "…"
	}
	return fmt.Sprintf("%s, %q%s", kindNames[v.kind], text, rest)
}
