package cluster

import (
	"fmt"
	"io"
	"testing"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window"
	"tallyroll/tests/cases"
)

// Replies of Redis are read, and values of other programs are distinguished from errors that may pass.
func TestRepliesAreRead(t *testing.T) {
	t.Parallel()
	cases.Check(t, "replies", func(_ *testing.T, section, given string) (out string) {
		var err error
		switch r := (Reply{"k", given}); section {
		case "cells":
			var cells []window.StoredCell
			cells, err = r.Cells()
			out = fmt.Sprint(cells)
		case "a value":
			var exists bool
			out, exists, err = r.Value()
			out = fmt.Sprintf("%q %v", out, exists)
		}
		if err != nil {
			out += fmt.Sprintf("\nerror: %v", err)
		}
		if window.IsForeign(err) {
			out += "\nforeign"
		}
		return out
	})
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
	if _, ok := encodeReply(nil, io.EOF); ok {
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
		_, _ = r.Hash()
		if cells, err := r.Cells(); err != nil && cells != nil {
			t.Errorf("%v comes with %v", err, cells)
		}
	})
}
