package schema

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window/internal/cluster"
)

// The directory is known by the replies' bytes. If the fields of a hash come in another order, it is the
// same.
func TestDirectoryIsKnownByItsReplies(t *testing.T) {
	t.Parallel()
	record := cluster.Reply{Key: "ns:layout", Text: "$125\r\n" + `{"version":3,"tiers":"1s/1m","unique_tiers":"off","shards":16,"hash":"xxhash64","id":"0123456789012345678","epoch_cells":120}` + "\r\n"}
	list := func(text string) cluster.Reply { return cluster.Reply{Key: "ns:streams", Text: text} }
	a, b := "$1\r\nA\r\n$0\r\n\r\n", "$1\r\nB\r\n$6\r\nlive 7\r\n"
	dir, err := ParseDirectory(record, list("*4\r\n"+a+b))
	require.NoError(t, err)
	for _, c := range []struct {
		record, list cluster.Reply
		same         bool
		err          error
	}{
		{record, list("*4\r\n" + a + b), true, nil},
		{record, list("*4\r\n" + b + a), true, nil},
		{record, list("%2\r\n" + a + b), true, nil},
		{record, list("*2\r\n" + a), false, nil},
		{record, list("*4\r\n" + a + strings.Replace(b, "7", "8", 1)), false, nil},
		{cluster.Reply{Key: record.Key, Text: strings.Replace(record.Text, ":16", ":32", 1)}, list("*4\r\n" + a + b), false, nil},
		{cluster.Reply{Key: record.Key, Text: "$-1\r\n"}, list("*4\r\n" + a + b), false, ErrNoLayout},
	} {
		if same, err := dir.Matches(c.record, c.list); same != c.same || !errors.Is(err, c.err) {
			t.Errorf("%q %q: %v %v; want %v %v", c.record.Text, c.list.Text, same, err, c.same, c.err)
		}
	}
}
