package window

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/cases"
)

// What Redis replied is read, and what is not Tallyroll's is told from what may pass.
func TestRepliesAreRead(t *testing.T) {
	t.Parallel()
	cases.Check(t, "replies", func(_ *testing.T, section, given string) (out string) {
		var err error
		switch r := (Reply{"k", given}); section {
		case "cells":
			var cells []StoredCell
			cells, err = r.Cells()
			out = fmt.Sprint(cells)
		case "a value":
			var exists bool
			out, exists, err = r.Value()
			out = fmt.Sprintf("%q %v", out, exists)
		case "a cursor: its fields, or a reply":
			if !strings.ContainsAny(given, "*-") {
				var fields []any
				for _, field := range strings.Split(given, ",") {
					fields = append(fields, field)
				}
				r.Text = string(appendReply(nil, fields))
			}
			var c CursorRecord
			var found bool
			c, found, err = ParseCursorReply(r)
			out = fmt.Sprintf("seq %d as_of %d by %q %v", c.Seq, c.AsOf, c.By, found)
		}
		if err != nil {
			out += fmt.Sprintf("\nerror: %v", err)
		}
		if IsForeign(err) {
			out += "\nforeign"
		}
		return out
	})
}

// The directory is known by the replies' bytes. If the fields of a hash come in another order, it is the same.
func TestDirectoryIsKnownByItsReplies(t *testing.T) {
	t.Parallel()
	record := Reply{"ns:layout", "$104\r\n" + `{"version":1,"tiers":"1s/1m","shards":16,"hash":"xxhash64","id":"0123456789012345678","epoch_cells":120}` + "\r\n"}
	list := func(text string) Reply { return Reply{"ns:streams", text} }
	a, b := "$1\r\nA\r\n$0\r\n\r\n", "$1\r\nB\r\n$6\r\nlive 7\r\n"
	dir, err := ParseDirectory(record, list("*4\r\n"+a+b))
	require.NoError(t, err)
	for _, c := range []struct {
		record, list Reply
		same         bool
		err          error
	}{
		{record, list("*4\r\n" + a + b), true, nil},
		{record, list("*4\r\n" + b + a), true, nil},
		{record, list("%2\r\n" + a + b), true, nil},
		{record, list("*2\r\n" + a), false, nil},
		{record, list("*4\r\n" + a + strings.Replace(b, "7", "8", 1)), false, nil},
		{Reply{record.Key, strings.Replace(record.Text, ":16", ":32", 1)}, list("*4\r\n" + a + b), false, nil},
		{Reply{record.Key, "$-1\r\n"}, list("*4\r\n" + a + b), false, ErrNoLayout},
	} {
		if same, err := dir.Matches(c.record, c.list); same != c.same || !errors.Is(err, c.err) {
			t.Errorf("%q %q: %v %v; want %v %v", c.record.Text, c.list.Text, same, err, c.same, c.err)
		}
	}
}

// What the client has parsed becomes what it was before.
func TestRepliesAreEncoded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		value any
		err   error
		want  string
	}{
		{"hello", nil, "$5\r\nhello\r\n"},
		{[]any{"a", nil, ""}, nil, "*3\r\n$1\r\na\r\n$-1\r\n$0\r\n\r\n"},
		{map[any]any{"a": "b"}, nil, "%1\r\n$1\r\na\r\n$1\r\nb\r\n"},
		{nil, redis.Nil, "$-1\r\n"},
		{nil, replyError("WRONGTYPE no"), "-WRONGTYPE no\r\n"},
	} {
		if got, ok := encodeReply(c.value, c.err); !ok || string(got) != c.want {
			t.Errorf("%v %v: %q %v; want %q", c.value, c.err, got, ok, c.want)
		}
	}
	if _, ok := encodeReply(nil, errTripEnded); ok {
		t.Error("a broken connection is taken for a reply")
	}
}

func FuzzReply(f *testing.F) {
	f.Add("*2\r\n$1\r\n0\r\n$2\r\n17\r\n")
	f.Add("%1\r\n$-1\r\n_\r\n")
	f.Add("*99999999999999999999\r\n$99999999999999999999\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		r := Reply{"k", text}
		_, _, _ = r.Value()
		_, _, _ = ParseCursorReply(r)
		_, _ = r.Hash()
		if cells, err := r.Cells(); err != nil && cells != nil {
			t.Errorf("%v comes with %v", err, cells)
		}
	})
}
