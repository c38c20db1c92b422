package rejects

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

func TestPartsOfARejectAreAssembled(t *testing.T) {
	t.Parallel()
	header := func(part string, seq int) nats.Header {
		h := nats.Header{HeaderReason: {"too_large"}, HeaderStream: {"S"}, HeaderSequence: {strconv.Itoa(seq)}, HeaderItem: {"0"}, HeaderStored: {"2026-01-01T00:00:00Z"}, HeaderNamespace: {"shop"}}
		if part != "" {
			h.Set(HeaderPart, part)
		}
		return h
	}
	a, position := new(Assembly), uint64(0)
	add := func(part string, seq int, data string) string {
		position++
		m := Message{Position: position, Data: []byte(data)}
		if m.Part, m.Known = Parse(header(part, seq)); !m.Known {
			return "strange"
		}
		whole := a.Add(m)
		if whole == nil {
			return ""
		}
		return fmt.Sprintf("%s %v", whole.Body, whole.Positions)
	}
	for _, step := range []struct{ part, data, want string }{
		{"", "alone", "alone [1]"}, {"1/2", "a", ""}, {"1/2", "a", ""}, {"2/2", "b", "ab [2 3 4]"},
		{"2/2", "b", ""}, {"1/2", "", "b [5 6]"}, {"0/2", "", "strange"}, {"3/2", "", "strange"}, {"x", "", "strange"}, {"1/100000000", "", "strange"},
	} {
		if got := add(step.part, 1, step.data); got != step.want {
			t.Errorf("part %q: %q, want %q", step.part, got, step.want)
		}
	}
	if len(a.waiting) != 0 || len(a.order) != 0 || a.bytes != 0 {
		t.Errorf("%d wait with %d bytes", len(a.waiting), a.bytes)
	}
	for seq := range 3 { // parts of which the rest never comes do not fill the memory
		add("1/2", seq, strings.Repeat("x", maxWaiting/2))
	}
	if a.Dropped != 1 || len(a.order) != 2 || a.bytes > maxWaiting {
		t.Errorf("%d dropped, %d wait with %d bytes", a.Dropped, len(a.order), a.bytes)
	}
}
