package window

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

func TestReplies(t *testing.T) {
	t.Parallel()
	cells := func(text string) (string, error) {
		found, err := reply{"k", text}.cells()
		return fmt.Sprint(found), err
	}
	value := func(text string) (string, error) {
		value, exists, err := reply{"k", text}.value()
		return fmt.Sprint(value, " ", exists), err
	}
	cursor := func(text string) (string, error) {
		c, found, err := reply{"k", text}.record()
		return fmt.Sprintf("%d %d %q %v", c.Seq, c.AsOf, c.by, found), err
	}
	bulks := func(values ...any) string { return string(appendReply(nil, values)) }
	for _, c := range []struct {
		read       func(string) (string, error)
		text, want string
		err        string
		foreign    bool
	}{
		{cells, "*0\r\n", "[]", "", false},
		{cells, "*4\r\n$1\r\n0\r\n$2\r\n17\r\n$2\r\n11\r\n$19\r\n9223372036854775807\r\n", "[{0 17} {11 9223372036854775807}]", "", false},
		{cells, "%1\r\n$1\r\n0\r\n$2\r\n17\r\n", "[{0 17}]", "", false}, // RESP3
		{cells, "*2\r\n$1\r\n0\r\n$19\r\n9223372036854775808\r\n", "[]", `its field "0" with the value "9223372036854775808" is not a cell`, true},
		{cells, "*2\r\n$1\r\n0\r\n$20\r\n18446744073709551617\r\n", "[]", `its field "0" with the value "18446744073709551617" is not a cell`, true},
		{cells, "*2\r\n$1\r\n0\r\n$2\r\n-1\r\n", "[]", `its field "0" with the value "-1" is not a cell`, true},
		{cells, "*2\r\n$3\r\nx\r\n\r\n$0\r\n\r\n", "[]", `its field "x\r\n" with the value "" is not a cell`, true},
		{cells, "-WRONGTYPE Operation against a key\r\n", "[]", "WRONGTYPE", true},
		{cells, "-LOADING Redis is loading\r\n", "[]", "LOADING", false},
		{cells, "", "[]", `key k: Redis replied ""`, false},
		{cells, "*2\r\n:1\r\n:2\r\n", "[]", "Redis replied", false},
		{cells, "*2\r\n$1\r\n0\r\n$5\r\n12\r\n", "[]", "Redis replied", false},
		{value, "$5\r\nhello\r\n", "hello true", "", false},
		{value, "$-1\r\n", " false", "", false},
		{value, "_\r\n", " false", "", false},
		{value, "-WRONGTYPE Operation against a key\r\n", " false", "WRONGTYPE", true},
		{cursor, bulks("1", "2", "3", "3", "4", "5", "6", "6", "", "W", ""), `2 4 "W" true`, "", false},
		{cursor, "*11\r\n" + strings.Repeat("$-1\r\n", 11), `0 0 "" false`, "", false},
		{cursor, "*11\r\n$1\r\n1\r\n" + strings.Repeat("$-1\r\n", 10), `0 0 "" false`, `cursor field seq is ""`, true},
		{cursor, bulks("1", "2", "3", "3", "253402300800000", "5", "6", "6", "", "W", ""), `0 0 "" false`, "cursor field as_of is 253402300800000", true},
		{cursor, "*0\r\n", `0 0 "" false`, "cursor record has 0 fields", true},
	} {
		got, err := c.read(c.text)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) || IsForeign(err) != c.foreign {
			t.Errorf("%q: %s, %v; want %s, %q", c.text, got, err, c.want, c.err)
		}
	}
}

// The directory is known by the replies' bytes. If a hash tells its fields in another order, it is the same.
func TestTheSameDirectory(t *testing.T) {
	t.Parallel()
	record := reply{"ns:layout", "$104\r\n" + `{"version":1,"tiers":"1s/1m","shards":16,"hash":"xxhash64","id":"0123456789012345678","epoch_cells":120}` + "\r\n"}
	list := func(text string) reply { return reply{"ns:streams", text} }
	a, b := "$1\r\nA\r\n$0\r\n\r\n", "$1\r\nB\r\n$6\r\nlive 7\r\n"
	dir, err := parseDirectory(record, list("*4\r\n"+a+b))
	require.NoError(t, err)
	for _, c := range []struct {
		record, list reply
		same         bool
		err          error
	}{
		{record, list("*4\r\n" + a + b), true, nil},
		{record, list("*4\r\n" + b + a), true, nil},
		{record, list("%2\r\n" + a + b), true, nil},
		{record, list("*2\r\n" + a), false, nil},
		{record, list("*4\r\n" + a + strings.Replace(b, "7", "8", 1)), false, nil},
		{reply{record.key, strings.Replace(record.text, ":16", ":32", 1)}, list("*4\r\n" + a + b), false, nil},
		{reply{record.key, "$-1\r\n"}, list("*4\r\n" + a + b), false, ErrNoLayout},
	} {
		if same, err := dir.is(c.record, c.list); same != c.same || !errors.Is(err, c.err) {
			t.Errorf("%q %q: %v %v; want %v %v", c.record.text, c.list.text, same, err, c.same, c.err)
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
		r := reply{"k", text}
		_, _, _ = r.value()
		_, _, _ = r.record()
		_, _ = r.hash()
		if cells, err := r.cells(); err != nil && cells != nil {
			t.Errorf("%v comes with %v", err, cells)
		}
	})
}
