package consume

import (
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/hit"
	"tallyroll/internal/rejects"
)

// tellRejectsEvery is how often the log reports the number of rejects per reason.
const tellRejectsEvery = time.Minute

// rejectLog logs a stream's rejects: the first of each reason with its details, and then, once a
// minute, how many there were. It outlives sessions, and their flushes call it one after the other.
type rejectLog struct {
	log zerolog.Logger
	of  map[hit.Reason]*rejectCount
}

type rejectCount struct {
	more int       // rejects since told
	told time.Time // when the log last reported them
}

func newRejectLog(log zerolog.Logger) *rejectLog {
	return &rejectLog{log, make(map[hit.Reason]*rejectCount)}
}

// add notes rejects that have been stored.
func (l *rejectLog) add(now time.Time, stored []rejects.Reject) {
	for _, r := range stored {
		if count := l.of[r.Reason]; count != nil {
			count.more++
			continue
		}
		l.of[r.Reason] = &rejectCount{told: now}
		l.log.Warn().Str("reason", string(r.Reason)).Str("detail", rejects.HeaderText(r.Detail)).Uint64("sequence", r.Seq).Int("item", r.Item).
			Msg("a hit is rejected: it is in " + rejects.Stream + "; further ones of this reason are counted once a minute")
	}
}

// tell logs how many rejects have come since the last time, for each reason that is due, or, if
// all is set, for every reason.
func (l *rejectLog) tell(now time.Time, all bool) {
	for _, reason := range hit.Reasons {
		count := l.of[reason]
		if count == nil || count.more == 0 || !all && now.Sub(count.told) < tellRejectsEvery {
			continue
		}
		l.log.Warn().Str("reason", string(reason)).Int("rejected", count.more).Stringer("within", now.Sub(count.told).Round(time.Second)).
			Msg("hits were rejected")
		count.more, count.told = 0, now
	}
}
