package consume

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"tallyroll/internal/rules"
	"tallyroll/internal/window"
)

// The message's subject and the stream's subjects name a hit without a counter; rules name events. An
// operator can edit either while some shards have passed a message and others have not. Other names can
// belong to other shards, and the hit would count twice or not at all. So subjects and rules have versions:
// see docs/design.md.
//
// Rejects are stored before any shard passes their messages. No message may be counted by one version and
// refused by another, so the first cursor says beforehand up to where rejects may be stored (Refused), and a
// new version begins after it. Two sessions with different versions cannot both write that cursor: the later
// one has read what the earlier one wrote, or one of them is fenced and has stored nothing.

// naming is a version: what names the counters of a stream's messages from a sequence on.
type naming struct {
	From     uint64   `json:"from"`
	Subjects []string `json:"subjects"`        // of the stream
	Rules    string   `json:"rules,omitempty"` // fingerprint; empty if there were none
}

func (n naming) same(o naming) bool {
	return n.Rules == o.Rules && slices.Equal(n.Subjects, o.Subjects)
}

// namings are the versions of a stream, in the order of From.
type namings []naming

// maxNamings bounds the versions in a cursor. The oldest also names earlier messages, unless there are rules.
const maxNamings = 32

func parseNamings(text string) (n namings, err error) {
	if text == "" { // of a cursor by which no worker has read
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

func (n namings) ruled() bool {
	return slices.ContainsFunc(n, func(n naming) bool { return n.Rules != "" })
}

func (n namings) after(seq uint64) namings {
	for len(n) > 1 && n[1].From <= seq+1 {
		n = n[1:]
	}
	return n
}

// unknown returns the last message after seq whose version is no longer listed, or 0; without rules always 0.
func (n namings) unknown(seq uint64) uint64 {
	if first := n[0].From; n.ruled() && first > seq+1 {
		return first - 1
	}
	return 0
}

// namingsAfter returns the versions by which a stream is read from these cursors on, if its subjects and
// rules are those of now. unused is whether none has used the last version yet. The cursor that has judged
// most lists all versions up to its position. A version that begins after that position was never used.
func namingsAfter(cursors []window.Cursor, now naming) (names namings, unused bool, err error) {
	furthest := furthestOf(cursors)
	listed, err := parseNamings(furthest.Naming)
	if err != nil {
		return nil, false, err
	}
	used := furthest.Judged()
	out := slices.DeleteFunc(slices.Clone(listed), func(n naming) bool { return n.From > used })
	ruled := now.Rules != "" || listed.ruled()
	switch {
	case len(out) == 0:
		now.From = 1
		if ruled {
			now.From = used + 1
		}
		out = namings{now}
	case !out[len(out)-1].same(now):
		now.From = used + 1
		out = append(out, now)
	}
	return out[max(0, len(out)-maxNamings):], out[len(out)-1].From > used, nil
}

func furthestOf(cursors []window.Cursor) (furthest window.Cursor) {
	for _, c := range cursors {
		if c.Judged() > furthest.Judged() || c.Judged() == furthest.Judged() && furthest.Naming == "" {
			furthest = c
		}
	}
	return furthest
}

// listedNamings returns the versions by which the messages that these cursors have passed were read.
func listedNamings(cursors []window.Cursor) (namings, error) {
	furthest := furthestOf(cursors)
	listed, err := parseNamings(furthest.Naming)
	return slices.DeleteFunc(listed, func(n naming) bool { return n.From > furthest.Judged() }), err
}

// namer names the counters of messages, which must come in order.
type namer struct {
	subjects subjects
	rules    string // fingerprint of the rules in force; empty for none
	later    namings
}

func newNamer(n namings) namer {
	return namer{subjects: newSubjects(n[0].Subjects), rules: n[0].Rules, later: n[1:]}
}

func (n *namer) reach(seq uint64) {
	for len(n.later) > 0 && seq >= n.later[0].From {
		*n = newNamer(n.later)
	}
}

// counter returns the counter for a message that names none itself. It puts the message's version in force.
func (n *namer) counter(seq uint64, subject string) string {
	n.reach(seq)
	return n.subjects.counter(subject)
}

// name decides by which versions messages from these positions on are read, and reads the rules needed.
func (s *setup) name(ctx context.Context, begin *standing) error {
	begin.rules = s.rules.Current()
	if !s.rules.reads(begin.rules, s.stream) {
		return fmt.Errorf("stream %s: the rules in force no longer name it, and INGEST_STREAMS does not match it", s.stream)
	}
	now := naming{Subjects: begin.state.Subjects, Rules: fingerprintOf(begin.rules)}
	names, unused, err := namingsAfter(begin.positions(), now)
	if err != nil {
		return fmt.Errorf("stream %s: %w", s.stream, err)
	}
	begin.names, begin.naming = names, names.String()
	if last := len(names) - 1; unused && last > 0 {
		s.logBegins(names[last], names[last-1])
	}
	if err := s.findRules(ctx, begin); err != nil {
		return err
	}
	for _, w := range begin.writers {
		w.position.Naming = begin.naming
	}
	return nil
}

func (s *setup) logBegins(next, before naming) {
	line := s.log.Info().Uint64("from", next.From)
	if next.Rules == before.Rules {
		line.Strs("subjects", next.Subjects).Msg("the stream's subjects were edited: counters are named by them from here on")
		return
	}
	line.Str("rules", next.Rules).Str("before", before.Rules).Msg("the rules were changed: messages are read by them from here on")
}

func (s *setup) findRules(ctx context.Context, begin *standing) error {
	from := begin.positions()[0].Seq
	for _, c := range begin.positions() {
		from = min(from, c.Seq)
	}
	if to := begin.names.unknown(from); to > 0 {
		return s.lost(from+1, to, fmt.Sprintf("cursors list the last %d versions", maxNamings), "")
	}
	needed := begin.names.after(from)
	begin.sets = make(map[string]*rules.Set)
	if begin.rules != nil {
		begin.sets[begin.rules.Fingerprint()] = begin.rules
	}
	for i, n := range needed {
		if n.Rules == "" || begin.sets[n.Rules] != nil {
			continue
		}
		set, found, err := s.rules.find(ctx, s.store, n.Rules)
		if err != nil {
			return err
		}
		if !found { // and a later version follows, because the present rules are in memory
			return s.lost(max(from+1, n.From), needed[i+1].From-1, "Redis does not hold rules "+n.Rules,
				fmt.Sprintf("put the file back, as it was then, with redis-cli -x HSET %s %s < FILE; or ", s.store.Rules.Key(), n.Rules))
		}
		begin.sets[n.Rules] = set
	}
	return nil
}

func (s *setup) lost(from, to uint64, why, mend string) error {
	return fmt.Errorf("stream %s, messages %d to %d: %w: %s: %spurge the stream up to there (nats stream purge %s --seq=%d), which admits their hits as missing",
		s.stream, from, to, errRulesLost, why, mend, s.stream, to+1)
}

// keepRules writes the texts of the versions' rules that are in memory.
func (s *setup) keepRules(ctx context.Context, standing *standing) error {
	texts := s.rules.texts(standing.names)
	for fingerprint, set := range standing.sets {
		texts[fingerprint] = set.Text()
	}
	return s.store.Rules.Keep(ctx, texts)
}

func namedRules(cursors []window.Cursor, into map[string]bool) error {
	for _, c := range cursors {
		versions, err := parseNamings(c.Naming)
		if err != nil {
			return err
		}
		for _, n := range versions {
			if n.Rules != "" {
				into[n.Rules] = true
			}
		}
	}
	return nil
}
