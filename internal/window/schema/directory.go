package schema

import (
	"fmt"
	"maps"
	"slices"

	"tallyroll/internal/window"
	"tallyroll/internal/window/internal/cluster"
)

// Directory is a namespace's layout and list of streams. They seldom change, so a Reader keeps them and
// compares them in each round trip.
type Directory struct {
	Layout  window.Layout
	Id      string            // see Store.ID
	Streams []string          // sorted by name
	Listed  map[string]Listed // by name
	Began   int64             // see BeganField; 0 if no stream has ended

	// Redis's replies and their values.
	record, list string
	text         string            // the layout record
	values       map[string]string // the list of streams
}

// ParseDirectory parses the replies about the two keys. Errors name the key; ErrNoLayout: there is no layout.
func ParseDirectory(record, list cluster.Reply) (*Directory, error) {
	text, values, err := directoryIn(record, list)
	if err != nil {
		return nil, err
	}
	layout, err := ParseLayoutRecord(text)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", record.Key, err)
	}
	listed, err := parseList(values)
	if err != nil {
		return nil, &window.ForeignError{Key: list.Key, Err: err}
	}
	began, err := parseBegan(values[BeganField])
	if err != nil {
		return nil, &window.ForeignError{Key: list.Key, Err: err}
	}
	return &Directory{
		Layout: layout.Layout, Id: layout.id, Streams: slices.Sorted(maps.Keys(listed)), Listed: listed, Began: began,
		record: record.Text, list: list.Text, text: text, values: values,
	}, nil
}

func directoryIn(record, list cluster.Reply) (text string, values map[string]string, err error) {
	text, exists, err := record.Value()
	if err == nil && !exists {
		err = ErrNoLayout
	}
	if err == nil {
		values, err = list.Hash()
	}
	return text, values, err
}

// Matches reports whether Redis still has the same values, perhaps in another order.
func (d *Directory) Matches(record, list cluster.Reply) (bool, error) {
	if d.record == record.Text && d.list == list.Text {
		return true, nil
	}
	text, values, err := directoryIn(record, list)
	return d.text == text && maps.Equal(d.values, values), err
}
