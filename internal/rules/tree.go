package rules

import (
	"errors"
	"io"
	"slices"
	"strconv"

	"github.com/go-faster/jx"
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
