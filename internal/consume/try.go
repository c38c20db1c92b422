package consume

import "tallyroll/internal/hit"

// HitLimits are the bounds that a worker with these settings, which are validated, sets for hits.
func (s *Settings) HitLimits() hit.Limits {
	return hit.Limits{MaxAhead: s.MaxAhead, MaxHits: s.MaxHits, Place: placeIn(s.layout)}
}
