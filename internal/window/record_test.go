package window

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCursorRecordComesBack(t *testing.T) {
	t.Parallel()
	want := record{Cursor{Created: 1763683200000000001, Seq: 1<<64 - 1, Stored: 1763683200000000002, Latest: 1763683200000000004, AsOf: 1763683200000, IncompleteBefore: 7,
		Ahead: Ahead{Seq: 1<<64 - 1, Stored: 1763683200000000003, Done: 1, Parts: 2}, Naming: "[]", Refused: 1<<64 - 2, Ended: true}, 9, 9, "WRITER"}
	written := map[any]any{"opened": 9} // by HINCRBY
	for pair := range slices.Chunk(want.values(record{}), 2) {
		written[pair[0]] = pair[1]
	}
	reply := []any{}
	for _, field := range slices.Concat(cursorFields, rareFields) {
		value, ok := written[field]
		if !ok {
			t.Fatalf("field %s is read, and not written", field)
		}
		if value == true { // as the client writes it
			value = 1
		}
		reply = append(reply, fmt.Sprint(value))
	}
	if got, found, err := parseRecord(reply); err != nil || !found || got != want {
		t.Errorf("%+v, %v, %v; want %+v", got, found, err, want)
	}
	if got := want.values(want); len(got) != 2*(len(cursorFields)-2) {
		t.Errorf("what stays is written again: %v", got)
	}
	reply[len(cursorFields)], reply[len(cursorFields)+1] = nil, nil // of a stream without versions
	if got, found, err := parseRecord(reply); err != nil || !found || got.Naming != "" || got.Refused != 0 || got.Seq != want.Seq {
		t.Errorf("without rare fields: %+v, %v, %v", got, found, err)
	}
	reply[openedField] = "10"
	if got, _, err := parseRecord(reply); err != nil || !got.torn() || !got.same(want) {
		t.Errorf("opened once more than closed: %+v, %v", got, err)
	}
	torn := make([]any, len(cursorFields))
	torn[openedField] = "1"
	if got, found, err := parseRecord(torn); err != nil || found || !got.torn() {
		t.Errorf("the torn beginning of the first transaction: %+v, %v, %v", got, found, err)
	}
	reply[len(cursorFields)+1] = "-1"
	if _, _, err := parseRecord(reply); err == nil {
		t.Error("a negative sequence was taken")
	}
	if _, found, err := parseRecord(make([]any, len(cursorFields))); found || err != nil {
		t.Errorf("a missing record: %v, %v", found, err)
	}
	if _, _, err := parseRecord([]any{"1", nil, "1", "1", "1", "1", "1", "1", "", "", ""}); err == nil {
		t.Error("half a record was taken")
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
		if err != nil && (found || cursor != record{}) {
			t.Fatalf("%v comes with %+v", err, cursor)
		}
	})
}

func FuzzDecodeLayout(f *testing.F) {
	f.Add(`{"version":1,"tiers":"1s/1m,1m/1h","shards":16,"hash":"xxhash64","id":"A","epoch_cells":120}`)
	f.Add(`{"version":2}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, text string) {
		found, err := parseLayoutRecord(text)
		if err != nil {
			return
		}
		again, err := parseLayoutRecord(found.encode())
		if err != nil || again.id != found.id || again.Shards != found.Shards || !slices.Equal(again.Tiers, found.Tiers) {
			t.Fatalf("%q is read as %+v, which is read as %+v, %v", text, found, again, err)
		}
	})
}

// What another release has written is refused, and the error names what to do.
func TestAnotherVersionOfTheLayoutIsRefused(t *testing.T) {
	t.Parallel()
	record := layoutRecord{Layout: Layout{Tiers: mustTiers(t, DefaultTiers), UniqueTiers: mustTiers(t, recordUniqueTiers).Cut(1), Shards: 16}, id: "A"}
	text := record.encode()
	if want := `{"version":1,"tiers":"` + DefaultTiers + `","epoch_cells":256,"uniques_listed":true,"shards":16,"hash":"xxhash64","id":"A"}`; text != want {
		t.Errorf("%s, want %s", text, want)
	}
	for _, other := range []string{strings.Replace(text, `"version":1`, `"version":3`, 1), strings.Replace(text, "xxhash64", "fnv", 1)} {
		if _, err := parseLayoutRecord(other); !errors.Is(err, ErrBadLayout) || !strings.Contains(err.Error(), "TALLYROLL_NAMESPACE") {
			t.Errorf("%s: %v", other, err)
		}
	}
}

// TestTheRecordKeepsUniqueTiers: none, the usual ones and others come back from a record.
func TestTheRecordKeepsUniqueTiers(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"off", recordUniqueTiers, "1m/1h,1d/64d"} {
		tiers, err := ParseUniqueTiers(text)
		require.NoError(t, err)
		record := layoutRecord{Layout: Layout{Tiers: mustTiers(t, DefaultTiers), UniqueTiers: tiers, Shards: 16}, id: "A"}
		got, err := parseLayoutRecord(record.encode())
		if err != nil || !slices.Equal(got.UniqueTiers, tiers) || FormatUniqueTiers(got.UniqueTiers) != text {
			t.Errorf("%s: %v, %v", text, got.UniqueTiers, err)
		}
	}
	if _, err := ParseUniqueTiers("1h/1d,5m/1h"); err == nil {
		t.Error("coarse before fine was taken")
	}
}
