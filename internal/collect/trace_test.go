package collect

import (
	"net/http"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/boot"
)

const (
	oneParent   = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	otherParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
)

// A message with the hits or events of one request has its traceparent.
func TestMessagesHaveTheTraceOfTheirRequest(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	event := []string{"ce-specversion", "1.0", "ce-type", "a", "ce-source", "/a", "ce-id", "1"}
	for _, c := range []struct {
		what    string
		headers []string
		want    string
	}{
		{"alone", []string{"traceparent", oneParent}, oneParent},
		{"without", nil, ""},
		{"malformed", []string{"traceparent", "00-x"}, ""},
		{"with a key", []string{"traceparent", oneParent, keyHeader, "k"}, oneParent},
		{"an event", append([]string{"traceparent", oneParent}, event...), oneParent},
	} {
		m, err := r.stream.GetMsg(t.Context(), r.stored(`{"key":"a"}`, c.headers...).Sequence)
		require.NoError(t, err)
		require.Equal(t, c.want, m.Header.Get("traceparent"), c.what)
	}
	// Sent again under another trace, it is the same request.
	for _, headers := range [][]string{{keyHeader, "k"}, event} {
		if got := r.stored(`{"key":"a"}`, append(headers, "traceparent", otherParent)...); !got.Duplicate {
			t.Errorf("%v: %+v, want a duplicate", headers, got)
		}
	}
}

// A message of several requests has none of their traces, and those of one that is divided have each their own.
func TestSharedMessagesHaveNoTrace(t *testing.T) {
	m := newMessage("hits.collect")
	entryOf := func(parent string) *entry {
		e := newEntry(&gate{}, nil, "")
		if parent != "" {
			e.trace(parent)
		}
		return e
	}
	for i, parent := range []string{oneParent, otherParent, ""} {
		m.add(entryOf(parent), 0)
		want := ""
		if i == 0 {
			want = oneParent
		}
		require.EqualValues(t, want, m.More.Get(boot.TraceHeader), i+1)
	}
	for i, parent := range []string{oneParent, otherParent, ""} {
		one := newMessage("hits.collect")
		one.add(m.entries[i], 0)
		require.EqualValues(t, parent, one.More.Get(boot.TraceHeader), i+1)
	}
}

// A request that only just fits into a message is stored all the same, without its trace, and one byte more is not.
func TestTraceTakesNoRoom(t *testing.T) {
	t.Parallel()
	const most = 2000
	r := newRig(t, func(c *jetstream.StreamConfig) { c.MaxMsgSize = headerRoom + most })
	key := func(n int) string { // a hit that takes n bytes
		return `{"key":"` + strings.Repeat("a", n-len(`{"key":""}`+"\n")) + `"}` + "\n"
	}
	lines := key(500) + key(500) + key(500)
	for _, c := range []struct {
		size int
		want string
	}{{most - boot.TraceSize, oneParent}, {most - boot.TraceSize + 1, ""}, {most, ""}} {
		m, err := r.stream.GetMsg(t.Context(), r.stored(lines+key(c.size-len(lines)), "traceparent", oneParent).Sequence)
		require.NoError(t, err)
		if got := m.Header.Get("traceparent"); got != c.want || len(m.Data) != c.size {
			t.Errorf("%d bytes: %q, want %q (%d stored)", c.size, got, c.want, len(m.Data))
		}
	}
	r.refuses(http.StatusRequestEntityTooLarge, lines+key(most+1-len(lines)), "traceparent", oneParent)
}
