package window

import (
	"fmt"
	"strconv"
)

// Cursor says how far a shard has got in a stream. It lives beside the counts
// and moves in the transaction that adds to them.
type Cursor struct {
	// Created is the stream's creation time in Unix nanoseconds: which
	// incarnation of the stream Seq belongs to.
	Created int64
	// Seq is the last sequence that has been applied; 0 before the first.
	Seq uint64
	// Stored is when the stream stored that message, in Unix nanoseconds.
	Stored int64
	// AsOf is a moment in Unix milliseconds: every hit that the stream stored before it has been applied.
	AsOf int64
	// IncompleteBefore is a moment in Unix milliseconds: hits of this stream
	// from before it may be missing, because messages were discarded unread. 0
	// where none were.
	IncompleteBefore int64
}

// same reports whether two cursors come from the same commits. The place alone
// does not tell: after a loss another worker can arrive at it over messages that
// were discarded meanwhile, and then neither its hashes nor its promises are this
// one's. as_of does not count: idle workers may each move it.
func (c Cursor) same(o Cursor) bool {
	c.AsOf = o.AsOf
	return c == o
}

var cursorFields = []string{"created", "seq", "stored", "as_of", "incomplete_before"}

func (c Cursor) values() []any {
	return []any{
		"created", c.Created, "seq", c.Seq, "stored", c.Stored,
		"as_of", c.AsOf, "incomplete_before", c.IncompleteBefore,
	}
}

// parseCursor reads the reply of HMGET for cursorFields. Where the record does
// not exist, found is false.
func parseCursor(reply []any) (c Cursor, found bool, err error) {
	if len(reply) != len(cursorFields) {
		return c, false, fmt.Errorf("cursor record has %d fields, want %d", len(reply), len(cursorFields))
	}
	missing := 0
	text := make([]string, len(reply))
	for i, v := range reply {
		if v == nil {
			missing++
			continue
		}
		s, ok := v.(string)
		if !ok {
			return c, false, fmt.Errorf("cursor field %s is a %T", cursorFields[i], v)
		}
		text[i] = s
	}
	if missing == len(reply) {
		return c, false, nil
	}
	for i, dst := range []*int64{&c.Created, nil, &c.Stored, &c.AsOf, &c.IncompleteBefore} {
		if dst == nil {
			c.Seq, err = strconv.ParseUint(text[i], 10, 64)
		} else {
			*dst, err = strconv.ParseInt(text[i], 10, 64)
		}
		if err != nil {
			return Cursor{}, false, fmt.Errorf("cursor field %s is %q: a whole number was expected", cursorFields[i], text[i])
		}
	}
	return c, true, nil
}
