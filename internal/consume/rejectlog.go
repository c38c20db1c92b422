package consume

import (
	"time"

	"github.com/rs/zerolog"
)

// tellRejectsEvery is how often the log counts the rejects of one reason.
const tellRejectsEvery = time.Minute

// rejectLog tells of a stream's rejects: the first of each reason with what is
// wrong with it, and from then on how many there were, once a minute. It outlives
// sessions; their flushes call it, one after the other.
type rejectLog struct {
	log zerolog.Logger
	of  map[string]*rejectCount // by reason
}

type rejectCount struct {
	more int       // since told
	told time.Time // when the log last spoke of them
}

func newRejectLog(log zerolog.Logger) *rejectLog {
	return &rejectLog{log, make(map[string]*rejectCount)}
}

// add takes note of rejects that have been stored.
func (l *rejectLog) add(now time.Time, rejects []rejectedHit) {
	for _, r := range rejects {
		if count := l.of[r.reason]; count != nil {
			count.more++
			continue
		}
		l.of[r.reason] = &rejectCount{told: now}
		l.log.Warn().Str("reason", r.reason).Str("detail", headerText(r.detail)).Uint64("sequence", r.seq).Int("item", r.item).
			Msg("a hit is rejected: it is in " + rejectedStream + "; further ones of this reason are counted once a minute")
	}
}

// tell counts what has come since, of each reason that is due; of all of them at the end.
func (l *rejectLog) tell(now time.Time, all bool) {
	for _, reason := range reasons {
		count := l.of[reason]
		if count == nil || count.more == 0 || !all && now.Sub(count.told) < tellRejectsEvery {
			continue
		}
		l.log.Warn().Str("reason", reason).Int("rejected", count.more).Stringer("within", now.Sub(count.told).Round(time.Second)).
			Msg("hits were rejected")
		count.more, count.told = 0, now
	}
}
