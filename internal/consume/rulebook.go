package consume

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/rs/zerolog"

	"tallyroll/internal/boot"
	"tallyroll/internal/fleet"
	"tallyroll/internal/rules"
	"tallyroll/internal/window"
)

// rulebook is the rules of a worker: those of its file, and those of earlier versions that it has met.
// A nil rulebook has none.
type rulebook struct {
	file    string
	globs   fleet.Globs // INGEST_STREAMS; nil: every stream
	metrics *metrics
	log     zerolog.Logger
	// reloaded is told of each time that the file was read again.
	reloaded func(error)

	mu   sync.Mutex
	now  *rules.Set
	seen map[string]*rules.Set // by fingerprint; now is one of them
}

const (
	// maxRulesFile bounds what is read of a file: one byte more than rules.Parse takes.
	maxRulesFile = 1<<20 + 1
	// maxRulesSeen bounds the sets that a worker keeps in memory. More are read from Redis when they are needed.
	maxRulesSeen = 2 * maxNamings
)

// openRulebook reads the file of INGEST_RULES. It returns nil if there is none. Its error names the
// setting, the file and the line.
func openRulebook(file string, globs fleet.Globs, m *metrics, log zerolog.Logger) (*rulebook, error) {
	if file == "" {
		return nil, nil
	}
	b := &rulebook{file: file, globs: globs, metrics: m, log: log, seen: make(map[string]*rules.Set)}
	set, err := b.read()
	if err != nil {
		return nil, boot.UsageError{Err: err}
	}
	b.use(set)
	b.reloaded = m.reloads.Of("rules")
	log.Info().Str("file", file).Str("fingerprint", set.Fingerprint()).Int("rules", set.Len()).Msg("rules read")
	return b, nil
}

func (b *rulebook) read() (*rules.Set, error) {
	f, err := os.Open(b.file)
	if err != nil {
		return nil, fmt.Errorf("INGEST_RULES: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxRulesFile))
	if err != nil {
		return nil, fmt.Errorf("INGEST_RULES: %w", err)
	}
	set, err := rules.Parse(b.file, text)
	if err != nil {
		return nil, fmt.Errorf("INGEST_RULES: %w", err)
	}
	return set, nil
}

// use makes a set the one by which sessions read from now on.
func (b *rulebook) use(set *rules.Set) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = set
	b.remember(set)
	b.metrics.rules.Reset()
	b.metrics.rules.WithLabelValues(set.Fingerprint()).Set(1)
}

// remember keeps a set in memory. The caller holds mu.
func (b *rulebook) remember(set *rules.Set) {
	for fingerprint := range b.seen {
		if len(b.seen) >= maxRulesSeen && fingerprint != b.now.Fingerprint() {
			delete(b.seen, fingerprint)
		}
	}
	b.seen[set.Fingerprint()] = set
}

// run reads the file again at each signal, until ctx ends. A bad file changes nothing.
func (b *rulebook) run(ctx context.Context, reload <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-reload:
			b.reload()
		}
	}
}

func (b *rulebook) reload() {
	was := b.current()
	set, err := b.read()
	b.reloaded(err)
	switch {
	case err != nil:
		b.log.Error().Err(err).Str("fingerprint", was.Fingerprint()).Msg("rules not reloaded: they stay as they were")
	case set.Fingerprint() == was.Fingerprint():
		b.log.Info().Str("file", b.file).Str("fingerprint", was.Fingerprint()).Msg("rules reloaded: they are the same")
	default:
		b.use(set)
		b.log.Info().Str("file", b.file).Str("fingerprint", set.Fingerprint()).Str("before", was.Fingerprint()).Int("rules", set.Len()).
			Msg("rules reloaded: every stream begins a new version")
	}
}

// current returns the rules by which a session that begins now reads new messages; nil if there are none.
func (b *rulebook) current() *rules.Set {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

// reads reports whether a stream is read if these rules are in force: INGEST_STREAMS matches it, or a rule names it.
func (b *rulebook) reads(set *rules.Set, stream string) bool {
	return b == nil || b.globs == nil || b.globs.Match(stream) || set != nil && slices.Contains(set.Streams(), stream)
}

// reads are the streams that this worker may read: those of INGEST_STREAMS, and those that the rules in force name.
func (w *worker) reads() fleet.Globs {
	if set := w.rules.current(); set != nil {
		return append(slices.Clone(w.settings.Streams), set.Streams()...)
	}
	return w.settings.Streams
}

// judgeRules finds the rules that count nothing, because no stream that this worker reads matches them. It logs
// them when they change. /readyz shows them, too.
func (w *worker) judgeRules(all []string) {
	set, reads := w.rules.current(), w.reads()
	if set == nil {
		return
	}
	var idle []string
	for _, at := range set.Unused(slices.DeleteFunc(slices.Clone(all), func(name string) bool { return !reads.Match(name) })) {
		idle = append(idle, fmt.Sprintf("%s:%d: this rule counts nothing: %s", w.rules.file, at.Line, w.whyUnused(at.Stream, all)))
	}
	w.mu.Lock()
	was := w.idleRules
	w.idleRules = idle
	w.mu.Unlock()
	for _, text := range idle {
		if !slices.Contains(was, text) {
			w.log.Warn().Msg(text)
		}
	}
}

// whyUnused says why a rule's stream, which may be a glob, matches no stream that is read, and what to do.
func (w *worker) whyUnused(stream string, all []string) string {
	if !rules.IsGlob(stream) {
		if slices.Contains(all, stream) {
			return "the stream " + stream + " holds no hits, and is never read"
		}
		return "there is no stream " + stream + " yet"
	}
	for _, name := range all {
		if (fleet.Globs{stream}).Match(name) {
			return fmt.Sprintf("it matches the stream %s, which INGEST_STREAMS=%s leaves out: add it there, or name the stream in the rule, without a wildcard", name, w.settings.Streams)
		}
	}
	return fmt.Sprintf("no stream matches %s yet; INGEST_STREAMS=%s must match it, too, because only a name without a wildcard makes a stream read", stream, w.settings.Streams)
}

// fingerprintOf is empty if there are no rules.
func fingerprintOf(set *rules.Set) string {
	if set == nil {
		return ""
	}
	return set.Fingerprint()
}

// errRulesLost says that messages have to be read again by rules whose text nobody has. It ends the
// session before anything is read: any other rules would be a guess.
var errRulesLost = errors.New("the rules by which these messages were read first are lost")

// find returns the rules with a fingerprint: from memory, or else from Redis. found is false if neither has them.
func (b *rulebook) find(ctx context.Context, store *window.Store, fingerprint string) (set *rules.Set, found bool, err error) {
	if b != nil {
		b.mu.Lock()
		set, found = b.seen[fingerprint]
		b.mu.Unlock()
		if found {
			return set, true, nil
		}
	}
	text, found, err := store.RulesText(ctx, fingerprint)
	if err != nil || !found {
		return nil, false, err
	}
	set, err = rules.Parse(store.RulesKey()+" "+fingerprint, text)
	if err != nil {
		return nil, false, fmt.Errorf("rules of an earlier version cannot be read: %w", err)
	}
	if is := set.Fingerprint(); is != fingerprint {
		err = fmt.Errorf("field %s has a text with the fingerprint %s", fingerprint, is)
		return nil, false, &window.ForeignError{Key: store.RulesKey(), Err: err}
	}
	if b != nil {
		b.mu.Lock()
		b.remember(set)
		b.mu.Unlock()
	}
	return set, true, nil
}

// texts returns the texts, by fingerprint, of those of the versions whose rules are in memory.
func (b *rulebook) texts(of namings) map[string][]byte {
	out := make(map[string][]byte)
	if b == nil {
		return out
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for fingerprint, set := range b.seen {
		if slices.ContainsFunc(of, func(n naming) bool { return n.Rules == fingerprint }) {
			out[fingerprint] = set.Text()
		}
	}
	return out
}
