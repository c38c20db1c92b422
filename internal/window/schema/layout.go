package schema

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window"
	"tallyroll/internal/window/internal/cluster"
)

// LayoutRecord is the layout as Redis keeps it.
type LayoutRecord struct {
	window.Layout
	id     string  // see Store.ID
	Change *Change // nil if no change of the tiers is under way
}

// ErrBadLayout means that this program cannot read the layout record: another version or program wrote it.
var ErrBadLayout = errors.New("layout record")

type layoutJSON struct {
	Version int `json:"version"`
	tiersJSON
	UniqueTiers string      `json:"unique_tiers"` // as ParseUniqueTiers reads them
	Shards      int         `json:"shards"`
	Hash        string      `json:"hash"` // of counters
	ID          string      `json:"id"`
	Change      *changeJSON `json:"retier,omitempty"`
}

type tiersJSON struct {
	Tiers string `json:"tiers"`
	// EpochCells is the most cells that a hash spans. A program with another EpochCells goes on with it.
	EpochCells int64 `json:"epoch_cells"`
	Generation int   `json:"generation,omitempty"`
	// CompleteFrom has Tier.Since for each tier. It is empty if no tier lacks hits.
	CompleteFrom []int64 `json:"complete_from,omitempty"`
}

// Programs must not read or count by versions that they do not know.
const layoutVersion, LayoutHash = 3, "xxhash64"

func tiersToJSON(ts window.Tiers) tiersJSON {
	out := tiersJSON{Tiers: ts.String(), EpochCells: ts.EpochCells(), Generation: ts[0].Generation}
	for _, t := range ts {
		out.CompleteFrom = append(out.CompleteFrom, t.Since)
	}
	if out.Generation == 0 {
		out.CompleteFrom = nil
	}
	return out
}

func (j tiersJSON) parse() (window.Tiers, error) {
	if j.EpochCells < 1 {
		return nil, fmt.Errorf("%w has %d cells in an epoch", ErrBadLayout, j.EpochCells)
	}
	tiers, err := window.ParseTiers(j.Tiers)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadLayout, err)
	}
	if j.Generation < 0 || len(j.CompleteFrom) > 0 && len(j.CompleteFrom) != len(tiers) {
		return nil, fmt.Errorf("%w has generation %d and %d moments for %d tiers", ErrBadLayout, j.Generation,
			len(j.CompleteFrom), len(tiers))
	}
	tiers = tiers.Cut(j.EpochCells).InGeneration(j.Generation)
	for i, since := range j.CompleteFrom {
		if tiers[i].Since = since; !window.IsMoment(since) || tiers[i].CellStart(tiers[i].CellAt(since)) != since {
			return nil, fmt.Errorf("%w says that the tier %s is complete from %d, where none of its cells begins",
				ErrBadLayout, tiers[i], since)
		}
	}
	return tiers, nil
}

func (r LayoutRecord) Encode() string {
	record := layoutJSON{
		Version: layoutVersion, tiersJSON: tiersToJSON(r.Tiers), UniqueTiers: window.FormatUniqueTiers(r.UniqueTiers),
		Shards: r.Shards, Hash: LayoutHash, ID: r.id,
	}
	if r.Change != nil {
		record.Change = &changeJSON{Phase: r.Change.Phase, tiersJSON: tiersToJSON(r.Change.Other)}
	}
	out, err := json.Marshal(record)
	if err != nil {
		panic(err) // strings and integers always encode
	}
	return string(out)
}

// ParseLayoutRecord parses what encode wrote. Its errors are ErrBadLayout.
func ParseLayoutRecord(text string) (LayoutRecord, error) {
	found := layoutJSON{UniqueTiers: "5m/1h,1h/1d,1d/32d"} // of a record that names none
	if err := json.Unmarshal([]byte(text), &found); err != nil {
		return LayoutRecord{}, fmt.Errorf("%w: %w", ErrBadLayout, err)
	}
	if found.Version != layoutVersion || found.Hash != LayoutHash {
		return LayoutRecord{}, fmt.Errorf("%w has version %d and hash %q, and this program reads version %d "+
			"and %s: run the release of Tallyroll that made the namespace, or set another TALLYROLL_NAMESPACE",
			ErrBadLayout, found.Version, found.Hash, layoutVersion, LayoutHash)
	}
	tiers, err := found.tiersJSON.parse()
	if err != nil {
		return LayoutRecord{}, err
	}
	uniqueTiers, err := window.ParseUniqueTiers(found.UniqueTiers)
	if err != nil {
		return LayoutRecord{}, fmt.Errorf("%w: unique tiers: %w", ErrBadLayout, err)
	}
	out := LayoutRecord{Layout: window.Layout{Tiers: tiers, UniqueTiers: uniqueTiers, Shards: found.Shards},
		id: found.ID}
	if err := window.ValidateLayout(out.Layout); err != nil {
		return LayoutRecord{}, fmt.Errorf("%w: %w", ErrBadLayout, err)
	}
	if found.Change != nil {
		if out.Change, err = found.Change.parse(); err != nil {
			return LayoutRecord{}, err
		}
	}
	return out, nil
}

// A change of tiers (Retier) builds all cells, names and summaries again, under the keys of another
// generation. It can be repeated or abandoned: no worker counts meanwhile, and old cells, and cursors except
// "by", do not change.

// Change is a change of tiers under way: its phase, and the tiers that the record does not answer with.
type Change struct {
	Phase phase
	Other window.Tiers
}

// phase is how far a change is. Answers come from the record's own tiers.
type phase string

const (
	Building  phase = "building"  // the record has the old tiers, and the change the new ones; no worker may count
	Switched  phase = "switched"  // the record has the new tiers, and the change the old ones; workers count
	Confirmed phase = "confirmed" // the record has the new tiers, and the keys of the old ones are being deleted
)

type changeJSON struct {
	Phase phase `json:"phase"`
	tiersJSON
}

func (j *changeJSON) parse() (*Change, error) {
	if !slices.Contains([]phase{Building, Switched, Confirmed}, j.Phase) {
		return nil, fmt.Errorf("%w has a change of tiers that is %q, which this program does not know", ErrBadLayout,
			j.Phase)
	}
	tiers, err := j.tiersJSON.parse()
	if err != nil {
		return nil, err
	}
	return &Change{j.Phase, tiers}, nil
}

func (c *Change) forbidsCounting() bool {
	return c != nil && c.Phase == Building
}

// RetieringError means that the tiers of a namespace are being changed, so no worker may count into it.
type RetieringError struct {
	namespace string
	from, to  window.Tiers
}

func (e *RetieringError) Error() string {
	return fmt.Sprintf("the tiers of the namespace %q are being changed to %s, and no worker may count meanwhile: if "+
		"no ingest --retier runs any more, run ingest --retier '%s' again to go on, or ingest --retier '%s' to keep "+
		"the old tiers, and then start the workers",
		e.namespace, e.to, e.to, e.from)
}

// ErrNoLayout means that no worker has written to the namespace yet. Such errors name the namespace.
var ErrNoLayout = errors.New("no worker has counted in this namespace yet: start ingest with the same REDIS_URL and " +
	"TALLYROLL_NAMESPACE")

// noLayoutError is an ErrNoLayout that names the namespace, in case it, or the Redis, is the wrong one.
type noLayoutError struct{ namespace string }

// NoLayout returns the ErrNoLayout of a namespace.
func NoLayout(namespace string) error { return &noLayoutError{namespace} }

func (e *noLayoutError) Error() string {
	return fmt.Sprintf("no worker has counted in the namespace %s yet: start ingest with the same REDIS_URL and "+
		"TALLYROLL_NAMESPACE", e.namespace)
}

func (e *noLayoutError) Is(target error) bool { return target == ErrNoLayout }

// LayoutMismatchError means that the namespace was created with other settings.
type LayoutMismatchError struct {
	namespace  string
	Have, want window.Layout
}

func (e *LayoutMismatchError) Error() string {
	names, have, want := "TIERS and SHARDS", "", ""
	if !e.Have.UniqueTiers.AnswersLike(e.want.UniqueTiers) {
		names = "TIERS, UNIQUE_TIERS and SHARDS"
		have, want = " UNIQUE_TIERS="+window.FormatUniqueTiers(e.Have.UniqueTiers), " UNIQUE_TIERS="+
			window.FormatUniqueTiers(e.want.UniqueTiers)
	}
	return fmt.Sprintf("namespace %q was made with TIERS=%s%s SHARDS=%d, and this worker has TIERS=%s%s SHARDS=%d: to "+
		"go on with the namespace, unset %s and start the worker again; to change its tiers, stop all workers and run "+
		"ingest --retier; to use these settings, set another TALLYROLL_NAMESPACE (counting in that one starts from "+
		"what the streams still hold)",
		e.namespace, e.Have.Tiers, have, e.Have.Shards, e.want.Tiers, want, e.want.Shards, names)
}

// ErrLayoutLost means streams without a layout record and its copy. With another layout, counts would not be
// found, and answers would be complete. Such errors name the key.
var ErrLayoutLost = errors.New("the layout record is lost")

// RestoreLayout writes a lost layout record again, from its copy. Settings do not show what the keys have:
// tiers may have been changed, and versions differ. Without a copy, the error is ErrLayoutLost.
func (s *Store) RestoreLayout(ctx context.Context) error {
	streams, err := s.Client.Exists(ctx, s.Keys.Streams()).Result()
	if err != nil {
		return err
	}
	record, err := s.Client.Exists(ctx, s.Keys.Layout()).Result() // after the streams: it is written before them
	if err != nil || record > 0 {
		return err
	}
	text, err := s.Client.Get(ctx, s.Keys.LayoutCopy()).Result()
	switch {
	case errors.Is(err, redis.Nil) && streams == 0:
		return nil
	case errors.Is(err, redis.Nil):
		return fmt.Errorf("%w: %s and its copy are missing, and %s lists streams that were counted: a running worker "+
			"writes them again within ten seconds; if none runs, restore Redis from a backup, or count in another "+
			"TALLYROLL_NAMESPACE (docs/disasters.md)", ErrLayoutLost, s.Keys.Layout(), s.Keys.Streams())
	case err == nil:
		_, err = ParseLayoutRecord(text)
	}
	if err == nil {
		err = s.Client.SetNX(ctx, s.Keys.Layout(), text, 0).Err()
	}
	if err != nil {
		return fmt.Errorf("restore the layout record from %s: %w", s.Keys.LayoutCopy(),
			cluster.WrapForeign(s.Keys.LayoutCopy(), err))
	}
	return nil
}

// CopyLayout writes the copy of a layout record. A change of tiers copies each record before it writes it, so
// that no copy is older than what workers count by.
func (s *Store) CopyLayout(ctx context.Context, record LayoutRecord) error {
	if err := s.Client.Set(ctx, s.Keys.LayoutCopy(), record.Encode(), 0).Err(); err != nil {
		return fmt.Errorf("copy layout of %s: %w", s.Keys.Namespace, err)
	}
	return nil
}

// ErrRecreated means that the namespace was recreated, and its hashes span other epochs now.
var ErrRecreated = errors.New("a worker of another version has recreated the namespace: its keys are others now")

// EnsureLayout writes the layout, or checks that it is the same. Errors: those of OpenLayout, and
// ErrRecreated.
func (s *Store) EnsureLayout(ctx context.Context, want window.Layout) error {
	have, err := s.OpenLayout(ctx, want)
	// The unique tiers have no spans that could differ.
	if err == nil && !slices.Equal(have.Tiers, want.Tiers) {
		return ErrRecreated
	}
	return err
}

// OpenLayout returns the namespace's layout, which callers must use, and writes the one wanted if there is
// none. It returns a *LayoutMismatchError if tiers, unique tiers or shards differ, and a *RetieringError
// while they are being changed. The span of hashes is as when the namespace was created.
func (s *Store) OpenLayout(ctx context.Context, want window.Layout) (window.Layout, error) {
	id := s.ID()
	if id == "" {
		id = rand.Text()
	}
	if err := s.Client.SetNX(ctx, s.Keys.Layout(), LayoutRecord{Layout: want, id: id}.Encode(), 0).Err(); err != nil {
		return window.Layout{}, fmt.Errorf("write layout of %s: %w", s.Keys.Namespace, err)
	}
	have, err := s.ReadLayout(ctx)
	if err != nil {
		return window.Layout{}, err
	}
	if have.Change.forbidsCounting() {
		return window.Layout{}, &RetieringError{s.Keys.Namespace, have.Tiers, have.Change.Other}
	}
	if have.Shards != want.Shards || !have.Tiers.AnswersLike(want.Tiers) ||
		!have.UniqueTiers.AnswersLike(want.UniqueTiers) {
		return window.Layout{}, &LayoutMismatchError{s.Keys.Namespace, have.Layout, want}
	}
	s.id.Store(&have.id)
	return have.Layout, s.CopyLayout(ctx, have)
}

// Layout reads the namespace's layout. It returns ErrNoLayout if it is missing.
func (s *Store) Layout(ctx context.Context) (window.Layout, error) {
	found, err := s.ReadLayout(ctx)
	return found.Layout, err
}

// Identify reads the namespace's layout and id; see ID.
func (s *Store) Identify(ctx context.Context) (window.Layout, string, error) {
	found, err := s.ReadLayout(ctx)
	return found.Layout, found.id, err
}

func (s *Store) ReadLayout(ctx context.Context) (LayoutRecord, error) {
	text, err := s.Client.Get(ctx, s.Keys.Layout()).Result()
	switch err := cluster.WrapForeign(s.Keys.Layout(), err); {
	case errors.Is(err, redis.Nil):
		return LayoutRecord{}, NoLayout(s.Keys.Namespace)
	case window.IsForeign(err):
		return LayoutRecord{}, fmt.Errorf("%w: %w", ErrBadLayout, err)
	case err != nil:
		return LayoutRecord{}, fmt.Errorf("read layout of %s: %w", s.Keys.Namespace, err)
	}
	return ParseLayoutRecord(text)
}
