package schema

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/internal/window/internal/cluster"
	"tallyroll/tests/cases"
)

func TestCursorRecordComesBack(t *testing.T) {
	t.Parallel()
	want := CursorRecord{window.Cursor{
		Created: 1763683200000000001, Seq: 1<<64 - 1, Stored: 1763683200000000002, Latest: 1763683200000000004,
		AsOf: 1763683200000, Ahead: window.Ahead{Seq: 1<<64 - 1, Stored: 1763683200000000003, Done: 1, Parts: 2},
		IncompleteBefore: 7, Naming: "[]", Refused: 1<<64 - 2, Ended: true, Settings: "- none 1",
	}, 9, 9, "WRITER", Declaration{From: 5, At: 1763683200005, By: "alice of the shop"}}
	written := map[any]any{"opened": 9, declaredField: want.Declared.value()} // by HINCRBY, and by Declare
	for pair := range slices.Chunk(want.Values(CursorRecord{}), 2) {
		written[pair[0]] = pair[1]
	}
	reply := []any{}
	for _, field := range slices.Concat(CursorFields, RareFields) {
		require.Contains(t, written, field, "it is read, and not written")
		value := written[field]
		if value == true { // as the client writes it
			value = 1
		}
		reply = append(reply, fmt.Sprint(value))
	}
	read := func(reply []any, wantFound bool) CursorRecord {
		t.Helper()
		got, found, err := parseRecord(reply)
		require.NoError(t, err)
		require.Equal(t, wantFound, found)
		return got
	}
	require.Equal(t, want, read(reply, true))
	require.Len(t, want.Values(want), 2*(len(CursorFields)-3), "what stays is written again")
	clear(reply[len(CursorFields):]) // of a stream without versions
	if got := read(reply, true); got.Naming+got.Settings != "" || got.Refused != 0 || got.Seq != want.Seq {
		t.Errorf("without rare fields: %+v", got)
	}
	reply[openedField] = "10"
	if got := read(reply, true); !got.IsTorn() || !got.IsSameAs(want) {
		t.Errorf("opened once more than closed: %+v", got)
	}
	require.False(t, read(make([]any, len(CursorFields)), false).IsTorn(), "a missing record")
	torn := make([]any, len(CursorFields))
	torn[openedField] = "1"
	require.True(t, read(torn, false).IsTorn(), "the beginning of the first transaction")
	reply[len(CursorFields)+1] = "-1"
	for what, bad := range map[string][]any{
		"a negative sequence": reply, "half a record": {"1", nil, "1", "1", "1", "1", "1", "1", "", "", "", ""},
		"a declaration without a name": append(slices.Repeat([]any{"1"}, wholeNumbers), "", "", "", "5 6"),
	} {
		_, _, err := parseRecord(bad)
		require.Error(t, err, what)
	}
}

func FuzzParseCursor(f *testing.F) {
	f.Add("1", "2", "3", "4", "5", "", byte(0))
	f.Add("1", "2", "3", "4", "5", "6 7 1/2", byte(0))
	f.Add("", "-2", "x", "9999999999999999999", "1e3", "6 7 2/2", byte(3))
	f.Fuzz(func(t *testing.T, a, b, c, d, e, ahead string, missing byte) {
		reply := []any{a, b, c, d, e, a, b, c, ahead, ahead, nil}
		for i := range reply {
			if missing&(1<<i) != 0 {
				reply[i] = nil
			}
		}
		cursor, found, err := parseRecord(reply)
		if err != nil && (found || cursor != CursorRecord{}) {
			t.Fatalf("%v comes with %+v", err, cursor)
		}
	})
}

func FuzzDecodeLayout(f *testing.F) {
	f.Add(`{"version":3,"tiers":"1s/1m,1m/1h","shards":16,"hash":"xxhash64","id":"A","epoch_cells":120}`)
	f.Add(`{"version":2}`)
	f.Add(`{"version":3,"tiers":"1s/1m,1m/1h","shards":16,"hash":"xxhash64","id":"A","epoch_cells":120}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, text string) {
		found, err := ParseLayoutRecord(text)
		if err != nil {
			return
		}
		again, err := ParseLayoutRecord(found.Encode())
		if err != nil || again.id != found.id || again.Shards != found.Shards || !slices.Equal(again.Tiers, found.Tiers) {
			t.Fatalf("%q is read as %+v, which is read as %+v, %v", text, found, again, err)
		}
	})
}

// A record keeps the unique tiers. What another release has written is refused, and the error names what to
// do.
func TestLayoutRecordComesBack(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"off", "5m/1h,1h/1d,1d/32d", "1m/1h,1d/64d"} {
		tiers, err := window.ParseUniqueTiers(text)
		require.NoError(t, err)
		record := LayoutRecord{Layout: window.Layout{Tiers: mustParseTiers(t, window.DefaultTiers), UniqueTiers: tiers, Shards: 16}, id: "A"}
		got, err := ParseLayoutRecord(record.Encode())
		require.NoError(t, err)
		require.Equal(t, tiers, got.UniqueTiers)
		require.Equal(t, text, window.FormatUniqueTiers(got.UniqueTiers))
	}
	uniques := mustParseTiers(t, "5m/1h,1h/1d,1d/32d").Cut(1)
	record := LayoutRecord{Layout: window.Layout{Tiers: mustParseTiers(t, window.DefaultTiers), UniqueTiers: uniques, Shards: 16}, id: "A"}
	text := record.Encode()
	require.Equal(t, `{"version":3,"tiers":"`+window.DefaultTiers+
		`","epoch_cells":256,"unique_tiers":"5m/1h,1h/1d,1d/32d","shards":16,"hash":"xxhash64","id":"A"}`, text)
	got, err := ParseLayoutRecord(strings.Replace(text, `"unique_tiers":"5m/1h,1h/1d,1d/32d",`, "", 1))
	require.NoError(t, err)
	require.Equal(t, uniques, got.UniqueTiers, "of a record that names none")
	for known, other := range map[string]string{`"version":3`: `"version":4`, "xxhash64": "fnv"} {
		_, err := ParseLayoutRecord(strings.Replace(text, known, other, 1))
		require.ErrorIs(t, err, ErrBadLayout)
		require.ErrorContains(t, err, "TALLYROLL_NAMESPACE")
	}
}

func mustParseTiers(t testing.TB, text string) window.Tiers {
	t.Helper()
	tiers, err := window.ParseTiers(text)
	require.NoError(t, err)
	return tiers
}

// Replies about a cursor are read, and values of other programs are distinguished from errors that may pass.
func TestCursorRepliesAreRead(t *testing.T) {
	t.Parallel()
	cases.Check(t, "cursors", func(_ *testing.T, _, given string) string {
		r := cluster.Reply{Key: "k", Text: given}
		if !strings.ContainsAny(given, "*-") {
			fields := strings.Split(given, ",")
			r.Text = fmt.Sprintf("*%d\r\n", len(fields))
			for _, field := range fields {
				r.Text += fmt.Sprintf("$%d\r\n%s\r\n", len(field), field)
			}
		}
		c, found, err := ParseCursorReply(r)
		out := fmt.Sprintf("seq %d as_of %d by %q %v", c.Seq, c.AsOf, c.By, found)
		if err != nil {
			out += fmt.Sprintf("\nerror: %v", err)
		}
		if window.IsForeign(err) {
			out += "\nforeign"
		}
		return out
	})
}
