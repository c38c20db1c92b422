package consume

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"tallyroll/internal/window"
)

// The message's subject and the stream's subjects name a hit without a counter; rules name events. An
// operator can edit either while some shards have passed a message and others have not. Other names can
// belong to other shards, and the hit would count twice or not at all. So subjects and rules together have
// versions (docs/design.md).
//
// Rejects are stored before any shard passes their messages. No message may be counted by one version and
// refused by another. So before rejects are stored, the first cursor has up to which message (Refused), and a
// new version begins after it. Two sessions with different versions cannot both write that cursor: the later
// one has read what the earlier one wrote, or one of them is fenced and has stored nothing.

// naming is a version: what names the counters of a stream's messages from a sequence on.
type naming struct {
	From     uint64   `json:"from"`
	Subjects []string `json:"subjects"`        // of the stream
	Rules    string   `json:"rules,omitempty"` // fingerprint; empty without rules
	// Origins are the streams whose messages count there, and are skipped here; see Copies.
	Origins []string `json:"origins,omitempty"`
}

func (n naming) equal(o naming) bool {
	return n.Rules == o.Rules && slices.Equal(n.Subjects, o.Subjects) && slices.Equal(n.Origins, o.Origins)
}

// namings are the versions of a stream, in the order of From.
type namings []naming

// maxNamings bounds the versions in a cursor. The oldest also names earlier messages, unless there are rules.
const maxNamings = 32

func parseNamings(text string) (n namings, err error) {
	if text == "" { // no worker has read from this cursor on
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
	encoder.SetEscapeHTML(false) // keeps subjects such as hits.> readable
	if err := encoder.Encode(n); err != nil {
		panic(err) // numbers and strings always encode
	}
	return strings.TrimSpace(out.String())
}

func (n namings) haveRules() bool {
	return slices.ContainsFunc(n, func(n naming) bool { return n.Rules != "" })
}

// needed returns the versions of messages after seq.
func (n namings) needed(seq uint64) namings {
	for len(n) > 1 && n[1].From <= seq+1 {
		n = n[1:]
	}
	return n
}

// lastUnlisted returns the last message after seq whose version is no longer listed; 0 if all are, or without
// rules.
func (n namings) lastUnlisted(seq uint64) uint64 {
	if first := n[0].From; n.haveRules() && first > seq+1 {
		return first - 1
	}
	return 0
}

// namingsAfter returns the versions by which a stream is read from these cursors on, if its subjects and
// rules are those of now. unused is whether no session has used the last version yet. The furthest cursor
// lists all versions up to its position. A version that begins after that position was never used.
func namingsAfter(cursors []window.Cursor, current naming) (names namings, unused bool, err error) {
	furthest := furthestCursor(cursors)
	listed, err := parseNamings(furthest.Naming)
	if err != nil {
		return nil, false, err
	}
	used := furthest.Judged()
	out := slices.DeleteFunc(slices.Clone(listed), func(n naming) bool { return n.From > used })
	ruled := current.Rules != "" || listed.haveRules()
	switch {
	case len(out) == 0:
		current.From = 1
		if ruled {
			current.From = used + 1
		}
		out = namings{current}
	case !out[len(out)-1].equal(current):
		current.From = used + 1
		out = append(out, current)
	}
	return out[max(0, len(out)-maxNamings):], out[len(out)-1].From > used, nil
}

// furthestCursor returns the cursor up to which the most messages were counted or refused.
func furthestCursor(cursors []window.Cursor) (furthest window.Cursor) {
	for _, c := range cursors {
		if c.Judged() > furthest.Judged() || c.Judged() == furthest.Judged() && furthest.Naming == "" {
			furthest = c
		}
	}
	return furthest
}

// listedNamings returns the versions by which the messages that these cursors have passed were read.
func listedNamings(cursors []window.Cursor) (namings, error) {
	furthest := furthestCursor(cursors)
	listed, err := parseNamings(furthest.Naming)
	return slices.DeleteFunc(listed, func(n naming) bool { return n.From > furthest.Judged() }), err
}

// addNamedRules adds the fingerprints of all rules that cursors name.
func addNamedRules(cursors []window.Cursor, fingerprints map[string]bool) error {
	for _, c := range cursors {
		versions, err := parseNamings(c.Naming)
		if err != nil {
			return err
		}
		for _, n := range versions {
			if n.Rules != "" {
				fingerprints[n.Rules] = true
			}
		}
	}
	return nil
}

// namer names the counters of messages, which must come in order.
type namer struct {
	subjects subjects
	rules    string // fingerprint of the rules in force; empty without rules
	origins  []string
	later    namings
}

func newNamer(n namings) namer {
	return namer{subjects: newSubjects(n[0].Subjects), rules: n[0].Rules, origins: n[0].Origins, later: n[1:]}
}

// advance puts a message's version in force.
func (n *namer) advance(seq uint64) {
	for len(n.later) > 0 && seq >= n.later[0].From {
		*n = newNamer(n.later)
	}
}

// counter returns the counter of a message's hits that name none. It puts the message's version in force.
func (n *namer) counter(seq uint64, subject string) string {
	n.advance(seq)
	return n.subjects.counter(subject)
}

// subjects derives a counter from a message's subject: what the wildcards of the stream's subjects match.
type subjects struct{ filters [][]string }

func newSubjects(filters []string) subjects {
	var s subjects
	for _, f := range filters {
		s.filters = append(s.filters, strings.Split(f, "."))
	}
	return s
}

// counter joins the tokens that the first matching filter's wildcards match. Without wildcards, or without a
// filter (a mirror), it returns the whole subject.
func (s subjects) counter(subject string) string {
	for _, filter := range s.filters {
		if c, ok := matchFilter(filter, subject); ok {
			return c
		}
	}
	return subject
}

func matchFilter(filter []string, subject string) (counter string, ok bool) {
	rest := subject
	for i, want := range filter {
		if want == ">" && i == len(filter)-1 {
			return join(counter, rest), rest != ""
		}
		token, after, more := strings.Cut(rest, ".")
		switch {
		case token == "", more != (i < len(filter)-1):
			return "", false
		case want == "*":
			counter = join(counter, token)
		case want != token:
			return "", false
		}
		rest = after
	}
	if counter == "" {
		counter = subject
	}
	return counter, true
}

func join(a, b string) string {
	if a == "" {
		return b
	}
	return a + "." + b
}
