package consume

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"tallyroll/internal/window"
)

// The counter of a hit that names none follows from its message's subject and the
// subjects of the stream. Those can be edited at any time, and a message can be read
// again after that, by some shards only. Its counter must be the same then: another
// one may be on another shard, which has or has not passed the message, so the hit
// would count twice or not at all.
//
// So what names are made from is a version. Every cursor lists the versions, and a new
// one begins at the first sequence that no shard has passed. All cursors list it
// before anything is read by it. What lies before is read by the version in whose time
// it was first read.

// naming is what the counters of a stream's messages are named by from a sequence on.
type naming struct {
	From     uint64   `json:"from"`
	Subjects []string `json:"subjects"` // of the stream
}

// namings are the versions of a stream, in the order of From.
type namings []naming

// maxNamings bounds what a cursor takes. Messages from before the oldest version that
// is kept are named by that one.
const maxNamings = 32

// parseNamings reads the field of a cursor.
func parseNamings(text string) (n namings, err error) {
	if text == "" { // written before cursors had the field
		return nil, nil
	}
	if err := json.Unmarshal([]byte(text), &n); err != nil {
		return nil, fmt.Errorf("cursor field naming is %q: %w", text, err)
	}
	return n, nil
}

func (n namings) String() string {
	var out strings.Builder
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false) // people read subjects such as hits.>
	if err := encoder.Encode(n); err != nil {
		panic(err) // numbers and strings always encode
	}
	return strings.TrimSpace(out.String())
}

// namingsAfter are the versions by which a stream is read from these cursors on, if its
// subjects are now these. The cursor that is furthest on was moved there by all
// versions up to its place; those that begin after it were never used.
func namingsAfter(cursors []window.Cursor, subjects []string) (namings, error) {
	var furthest window.Cursor
	for _, c := range cursors {
		if c.Furthest() > furthest.Furthest() || c.Furthest() == furthest.Furthest() && furthest.Naming == "" {
			furthest = c
		}
	}
	out, err := parseNamings(furthest.Naming)
	if err != nil {
		return nil, err
	}
	out = slices.DeleteFunc(out, func(n naming) bool { return n.From > furthest.Furthest() })
	switch {
	case len(out) == 0:
		out = namings{{From: 1, Subjects: subjects}}
	case !slices.Equal(out[len(out)-1].Subjects, subjects):
		out = append(out, naming{From: furthest.Furthest() + 1, Subjects: subjects})
	}
	return out[max(0, len(out)-maxNamings):], nil
}

// namer names the counters of messages that come in order.
type namer struct {
	subjects subjects
	later    namings
}

func newNamer(n namings) namer {
	return namer{subjects: newSubjects(n[0].Subjects), later: n[1:]}
}

// counter is the counter of a message that names none.
func (n *namer) counter(seq uint64, subject string) string {
	for len(n.later) > 0 && seq >= n.later[0].From {
		*n = newNamer(n.later)
	}
	return n.subjects.counter(subject)
}
