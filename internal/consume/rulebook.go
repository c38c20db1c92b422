package consume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/rs/zerolog"

	"tallyroll/internal/platform/setting"
	"tallyroll/internal/rules"
	"tallyroll/internal/window"
	"tallyroll/internal/window/schema"
)

// Rulebook holds a worker's rules: its file's, and earlier versions that it has read. A nil Rulebook has no
// rules. It is safe for concurrent use.
type Rulebook struct {
	chosen  func(stream string) bool // by INGEST_STREAMS
	metrics *Metrics
	log     zerolog.Logger

	mu      sync.Mutex
	current *rules.Set
	sets    map[string]*rules.Set // by fingerprint; current is one of them
}

// maxRulesSeen bounds the sets in memory. Others are read from Redis when needed.
const maxRulesSeen = 2 * maxNamings

// OpenRulebook reads the file of INGEST_RULES, which becomes one of files; nil if file is empty. Its error
// names the setting, the file and the line.
func OpenRulebook(file string, chosen func(stream string) bool, m *Metrics, files *setting.Files,
	log zerolog.Logger) (*Rulebook, error) {
	if file == "" {
		return nil, nil
	}
	b := &Rulebook{chosen: chosen, metrics: m, log: log, sets: make(map[string]*rules.Set)}
	_, err := setting.Open(files, "rules", setting.Path{Key: "INGEST_RULES", File: file}, rules.Parse, b.replace)
	return b, err
}

func (b *Rulebook) replace(set *rules.Set, line *zerolog.Event) {
	line.Str("fingerprint", set.Fingerprint()).Int("rules", set.Len())
	b.mu.Lock()
	defer b.mu.Unlock()
	b.current = set
	b.remember(set)
	b.metrics.rules.Reset()
	b.metrics.rules.WithLabelValues(set.Fingerprint()).Set(1)
}

// remember keeps a set in memory. The caller holds mu.
func (b *Rulebook) remember(set *rules.Set) {
	for fingerprint := range b.sets {
		if len(b.sets) >= maxRulesSeen && fingerprint != b.current.Fingerprint() {
			delete(b.sets, fingerprint)
		}
	}
	b.sets[set.Fingerprint()] = set
}

// Current returns the rules by which a session that begins now reads new messages; nil without rules.
func (b *Rulebook) Current() *rules.Set {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.current
}

// mayRead reports whether a stream is read under these rules: INGEST_STREAMS matches it, or a rule names it.
func (b *Rulebook) mayRead(set *rules.Set, stream string) bool {
	return b == nil || b.chosen(stream) || set != nil && slices.Contains(set.Streams(), stream)
}

func fingerprintOf(set *rules.Set) string {
	if set == nil {
		return ""
	}
	return set.Fingerprint()
}

// errRulesLost means that messages have to be read again by rules whose text is lost. It ends the session
// before anything is read, because any other rules would be a guess.
var errRulesLost = errors.New("the rules by which these messages were read first are lost")

// lookup returns the rules with a fingerprint, from memory or from Redis. found is false if both lack them.
func (b *Rulebook) lookup(ctx context.Context, store *schema.Store,
	fingerprint string) (set *rules.Set, found bool, err error) {
	if b != nil {
		b.mu.Lock()
		set, found = b.sets[fingerprint]
		b.mu.Unlock()
		if found {
			return set, true, nil
		}
	}
	text, found, err := store.Rules.Read(ctx, fingerprint)
	if err != nil || !found {
		return nil, false, err
	}
	set, err = rules.ParseStored(text)
	if err != nil {
		return nil, false, fmt.Errorf("rules of an earlier version cannot be read: %s %s: %w",
			store.Rules.Key(), fingerprint, err)
	}
	if got := set.Fingerprint(); got != fingerprint {
		err = fmt.Errorf("field %s has a text with the fingerprint %s", fingerprint, got)
		return nil, false, &window.ForeignError{Key: store.Rules.Key(), Err: err}
	}
	if b != nil {
		b.mu.Lock()
		b.remember(set)
		b.mu.Unlock()
	}
	return set, true, nil
}

// texts returns the texts, by fingerprint, of the versions' rules that are in memory.
func (b *Rulebook) texts(versions namings) map[string][]byte {
	out := make(map[string][]byte)
	if b == nil {
		return out
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for fingerprint, set := range b.sets {
		if slices.ContainsFunc(versions, func(n naming) bool { return n.Rules == fingerprint }) {
			out[fingerprint] = set.Text()
		}
	}
	return out
}
