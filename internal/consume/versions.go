package consume

import (
	"context"
	"fmt"

	"tallyroll/internal/rules"
	"tallyroll/internal/window"
)

// name decides by which versions messages from these places on are read, and gets the rules of those that
// will be used.
func (s *setup) name(ctx context.Context, begin *standing) error {
	begin.rules = s.rules.current()
	if !s.rules.reads(begin.rules, s.stream) {
		return fmt.Errorf("stream %s: the rules in force no longer name it, and INGEST_STREAMS does not match it", s.stream)
	}
	now := naming{Subjects: begin.state.subjects, Rules: fingerprintOf(begin.rules)}
	names, unused, err := namingsAfter(begin.positions(), now)
	if err != nil {
		return fmt.Errorf("stream %s: %w", s.stream, err)
	}
	begin.names, begin.naming = names, names.String()
	if last := len(names) - 1; unused && last > 0 {
		s.sayBegins(names[last], names[last-1])
	}
	if err := s.findRules(ctx, begin); err != nil {
		return err
	}
	for _, w := range begin.writers {
		w.position.Naming = begin.naming
	}
	return nil
}

func (s *setup) sayBegins(next, before naming) {
	line := s.log.Info().Uint64("from", next.From)
	if next.Rules == before.Rules {
		line.Strs("subjects", next.Subjects).Msg("the stream's subjects were edited: counters are named by them from here on")
		return
	}
	line.Str("rules", next.Rules).Str("before", before.Rules).Msg("the rules were changed: messages are read by them from here on")
}

// findRules gets the rules of all versions that the session will read by.
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
				fmt.Sprintf("put the file back, as it was then, with redis-cli -x HSET %s %s < FILE; or ", s.store.RulesKey(), n.Rules))
		}
		begin.sets[n.Rules] = set
	}
	return nil
}

func (s *setup) lost(from, to uint64, why, mend string) error {
	return fmt.Errorf("stream %s, messages %d to %d: %w: %s: %spurge the stream up to there (nats stream purge %s --seq=%d), which admits their hits as missing",
		s.stream, from, to, errRulesLost, why, mend, s.stream, to+1)
}

// keepRules writes the texts of the versions' rules, as far as they are in memory.
func (s *setup) keepRules(ctx context.Context, of *standing) error {
	texts := s.rules.texts(of.names)
	for fingerprint, set := range of.sets {
		texts[fingerprint] = set.Text()
	}
	return s.store.KeepRules(ctx, texts)
}

// namedRules returns the fingerprints of all rules that cursors name.
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
