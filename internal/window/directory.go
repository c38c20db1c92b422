package window

import (
	"fmt"
	"maps"
	"slices"
)

// directory is a namespace's layout and list of streams. They seldom change, so a Reader keeps them and
// compares them in each round trip.
type directory struct {
	layout  Layout
	id      string            // see Store.ID
	streams []string          // sorted by name
	listed  map[string]Listed // by name
	began   int64             // see beganField; 0 if no stream has ended

	// Redis's replies and their values.
	record, list string
	text         string            // the layout record
	values       map[string]string // the list of streams
}

// parseDirectory parses the replies about the two keys. Errors name the key; ErrNoLayout: there is no layout.
func parseDirectory(record, list reply) (*directory, error) {
	text, values, err := directoryIn(record, list)
	if err != nil {
		return nil, err
	}
	layout, err := parseLayoutRecord(text)
	if err != nil {
		return nil, fmt.Errorf("key %s: %w", record.key, err)
	}
	listed, err := parseList(values)
	if err != nil {
		return nil, &ForeignError{list.key, err}
	}
	began, err := parseBegan(values[beganField])
	if err != nil {
		return nil, &ForeignError{list.key, err}
	}
	return &directory{
		layout: layout.Layout, id: layout.id, streams: slices.Sorted(maps.Keys(listed)), listed: listed, began: began,
		record: record.text, list: list.text, text: text, values: values,
	}, nil
}

func directoryIn(record, list reply) (text string, values map[string]string, err error) {
	text, exists, err := record.value()
	if err == nil && !exists {
		err = ErrNoLayout
	}
	if err == nil {
		values, err = list.hash()
	}
	return text, values, err
}

// is reports whether Redis still has the same values, perhaps in another order.
func (d *directory) is(record, list reply) (bool, error) {
	if d.record == record.text && d.list == list.text {
		return true, nil
	}
	text, values, err := directoryIn(record, list)
	return d.text == text && maps.Equal(d.values, values), err
}
