package window

import (
	"context"
	"errors"
	"maps"
	"slices"
)

// survey is what a question about all counters begins with.
type survey struct {
	layout  Layout
	streams []string // ended ones too
	asOf    int64    // of all shards; see Answers
}

// survey reads the cursors of every shard, and with them the layout and the
// list of streams as they are now. What is read afterwards can only be newer than asOf.
func (r *Reader) survey(ctx context.Context) (survey, error) {
	for range 3 { // as in Answer
		layout, record, streams, err := r.cached(ctx)
		if err != nil {
			return survey{}, err
		}
		shards := make([]Plan, layout.Shards) // that read nothing but cursors
		for i := range shards {
			shards[i].Shard = i
		}
		found, err := r.read(ctx, shards, record, streams)
		if !errors.Is(err, errStale) {
			names := slices.DeleteFunc(slices.Collect(maps.Keys(streams)), func(name string) bool { return name == beganField })
			return survey{layout, names, found.asOf(shards)}, err
		}
	}
	return survey{}, errStale
}
