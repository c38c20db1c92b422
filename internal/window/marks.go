package window

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// Marks are what happened to the counts, for those who look at charts. No count depends on them. They are kept once per
// namespace, in a sorted set: its score is the mark's time, so the oldest are the first to go, and a member that is there
// already stays as it is.

// maxMarks bounds how many marks a namespace keeps, some 200 bytes each. They do not expire.
const maxMarks = 1000

// What a Mark is about.
const (
	MarkRules = "rules" // messages are read by another version of the rules, or of the stream's subjects
	MarkLoss  = "loss"  // hits may be missing or counted twice
	MarkLate  = "late"  // nobody counted, and all is counted now
	MarkTiers = "tiers" // the namespace has other tiers
)

// MarkKinds are all that a Mark can be about.
var MarkKinds = []string{MarkRules, MarkLoss, MarkLate, MarkTiers}

// Mark is something that happened to the counts. Two marks that differ in nothing but At are the same one: the one that was
// written first stays.
type Mark struct {
	At     int64  `json:"-"`                // Unix milliseconds
	Until  int64  `json:"until,omitempty"`  // Unix milliseconds; 0 for a moment
	Kind   string `json:"kind"`             // see MarkKinds
	Stream string `json:"stream,omitempty"` // empty: all
	Detail string `json:"detail"`           // what happened, for people
	Event  string `json:"event,omitempty"`  // tells it from others that read alike
}

// PutMark keeps a mark.
func (s *Store) PutMark(ctx context.Context, m Mark) error {
	member, err := json.Marshal(m)
	if err != nil {
		return err
	}
	cmds, err := s.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.ZAddNX(ctx, s.keys.marks(), redis.Z{Score: float64(m.At), Member: member})
		p.ZRemRangeByRank(ctx, s.keys.marks(), 0, -maxMarks-1)
		return nil
	})
	if err != nil {
		return fmt.Errorf("keep a mark: %w", foreignReply(cmds, err))
	}
	return nil
}

// Marks reads all marks, in the order of their time.
func (r *Reader) Marks(ctx context.Context) ([]Mark, error) {
	key := r.store.keys.marks()
	found, err := r.store.client.ZRangeWithScores(ctx, key, 0, -1).Result()
	if err != nil {
		return nil, fmt.Errorf("read marks: %w", foreign(key, err))
	}
	out := make([]Mark, len(found))
	for i, z := range found {
		text, _ := z.Member.(string)
		err := json.Unmarshal([]byte(text), &out[i])
		if out[i].At = int64(z.Score); err == nil && !(isMoment(out[i].At) && isMoment(out[i].Until)) {
			err = errors.New("its times are none")
		}
		if err != nil {
			return nil, &ForeignError{key, fmt.Errorf("its member %q is no mark: %w", text, err)}
		}
	}
	return out, nil
}
