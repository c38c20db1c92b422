package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/platform/natsconn"
	"tallyroll/internal/window"
)

// A stream that copies others may lack stored hits: even at its end, hits may still be on their way to it.
//
// A mirror keeps the sequences and times of its origin, so Check reads the state of the origin, and then the
// mirror. If the mirror has the origin's last message, it has everything that the origin had stored when it
// answered. The mirror's own report is not enough: "active" is set when a link is restored, before any
// message has arrived, and "lag" is that of the last message that has arrived (seen with nats-server 2.15).
//
// A stream with sources assigns its own sequences and times. For its as_of, a hit is stored when it arrives.
// After the last one, its end is known only up to the moment at which all sources were last heard.

const (
	// originWithin bounds all checks for one state of an origin in a cluster.
	originWithin = 4 * time.Second
	// sourceSilent is the silence after which a source is logged. An idle source is heard every second.
	sourceSilent = 5 * time.Second
)

var (
	errBehind = errors.New("some of its messages have not arrived")
	errSilent = fmt.Errorf("not heard for %s", sourceSilent)
)

// Check gets the state from the stream's leader. At is the server's time less the time that the request took.
// No message stored before it can be missing from the state, whether the server read its clock or the state
// first.
func (j *JetStream) Check(ctx context.Context) (Check, error) {
	if j.handle == nil {
		findCtx, cancel := context.WithTimeout(ctx, CheckWithin)
		defer cancel()
		handle, err := j.js.Stream(findCtx, j.name)
		if err != nil {
			return Check{}, j.wrap("find it", err)
		}
		j.handle = handle
	}
	origin := j.checkOrigin(ctx) // has its own time limit: a copy can be read while its origin cannot
	ctx, cancel := context.WithTimeout(ctx, CheckWithin)
	defer cancel()
	asked := time.Now()
	info, err := j.handle.Info(ctx)
	if err != nil {
		return Check{}, j.wrap("get its state", err)
	}
	answered := time.Now()
	s := stateOf(info)
	s.Origin = OriginOf(j.js, info)
	s.At = info.TimeStamp.Add(-answered.Sub(asked)).UnixMilli()
	s.Ahead = window.ClockAhead(info.TimeStamp, asked, answered)
	j.boundAt(ctx, &s, info, origin)
	return Check{State: s, Leadership: newLeadership(info.Cluster), Asked: asked, Answered: answered}, nil
}

// originState is the state of a mirror's origin.
type originState struct {
	state State
	err   error
}

// checkOrigin returns the state of a mirror's origin. It must be called before the mirror is checked.
func (j *JetStream) checkOrigin(ctx context.Context) originState {
	mirror := j.handle.CachedInfo().Config.Mirror
	if mirror == nil || j.isOrigin {
		return originState{}
	}
	if j.origin == nil {
		js, err := natsconn.OriginJetStream(j.js, mirror.External)
		if err != nil {
			return originState{err: err}
		}
		j.origin = &JetStream{js: js, name: mirror.Name, isOrigin: true}
	}
	first, err := j.origin.Check(ctx)
	if err != nil || !first.Leadership.Clustered {
		return originState{first.State, err}
	}
	ctx, cancel := context.WithTimeout(ctx, originWithin)
	defer cancel()
	state, err := Confirmed(ctx, j.origin)
	return originState{state, err}
}

// boundAt moves At back to what is known of the origins, or if nothing is known, to the last message's time.
func (j *JetStream) boundAt(ctx context.Context, s *State, info *jetstream.StreamInfo, origin originState) {
	why := j.boundMirror(ctx, s, info, origin)
	heard, whySource := heardSources(info)
	if whySource != nil {
		why = fmt.Errorf("stream %s has the source %w", j.name, whySource)
	}
	if why != nil && !errors.Is(why, errSilent) {
		s.At = min(s.At, s.EndStored()/1e6)
	}
	s.At = min(s.At, heard)
	if j.EndUnknown != nil && !errors.Is(why, errBehind) {
		j.EndUnknown(why)
	}
}

// boundMirror bounds the end of a mirror by its origin's, or returns why that is unknown.
func (j *JetStream) boundMirror(ctx context.Context, s *State, info *jetstream.StreamInfo,
	origin originState) (why error) {
	if !s.Mirror {
		return nil
	}
	// 0 if the origin is unknown: the mirror's server may have another clock
	s.Clock = origin.state.Clock
	s.OriginFirst, s.OriginStored = origin.state.First, origin.state.FirstStored
	if origin.state.First > origin.state.Last { // a purge has left its time
		s.OriginStored = origin.state.LastStored
	}
	if j.begin == 0 && origin.state.Created > 0 && (s.First > 1 || s.Last == 0) {
		j.begin = j.beginning(ctx, info.Config.Mirror, origin.state)
	}
	s.setBegin(j.begin)
	if s.Gaps == "" && origin.state.Gaps != "" { // what the origin removes may never have arrived
		s.Gaps, s.Dropped = origin.state.Gaps, dropped(info)
	}
	switch {
	case origin.err != nil:
		why = origin.err
	case j.isOrigin:
		why = errors.New("that stream is a mirror, too")
	case s.Last < origin.state.Last, s.EndStored() < origin.state.EndStored(): // or another incarnation's
		if why = j.behind(ctx, s.Last, origin.state.Last, mirrored(info.Config.Mirror)); why == nil {
			s.At = min(s.At, origin.state.At)
			return nil
		}
	default:
		s.At = min(s.At, origin.state.At)
		return nil
	}
	return fmt.Errorf("stream %s mirrors %s: %w", j.name, info.Config.Mirror.Name, why)
}

// beginning returns the first sequence that a message of a mirror can have had: where it was configured to
// start or, if the origin still holds everything from there on, the first one of the mirror's subjects.
func (j *JetStream) beginning(ctx context.Context, mirror *jetstream.StreamSource, origin State) (begin uint64) {
	begin = max(mirror.OptStartSeq, origin.BeforeFirst()+1)
	subjects := mirrored(mirror)
	if start := mirror.OptStartTime; start != nil && origin.FirstStored < start.UnixNano() {
		low, high := origin.First, origin.Last+1
		for low < high {
			middle := low + (high-low)/2
			seq, stored, err := j.origin.Next(ctx, middle)
			if err != nil {
				return begin
			}
			if seq == 0 || stored >= start.UnixNano() {
				high = middle
			} else {
				low = seq + 1
			}
		}
		begin = high
		if subjects == nil {
			subjects = []string{">"}
		}
	}
	if begin < origin.First || len(subjects) == 0 {
		return begin
	}
	first := uint64(math.MaxUint64)
	for _, subject := range subjects {
		next, _, err := j.origin.next(ctx, begin, subject)
		if err != nil {
			return begin
		}
		if next > 0 {
			first = min(first, next)
		}
	}
	if first < math.MaxUint64 {
		return first
	}
	return begin
}

// behind returns errBehind if the origin has a message up to its end that a mirror of these subjects, which
// ends earlier, has not received; nil if the others are of other subjects.
func (j *JetStream) behind(ctx context.Context, last, end uint64, subjects []string) error {
	if len(subjects) == 0 || last >= end {
		return errBehind
	}
	for _, subject := range subjects {
		next, _, err := j.origin.next(ctx, last+1, subject)
		if err != nil {
			return err
		}
		if next > 0 && next <= end {
			return errBehind
		}
	}
	return nil
}

// mirrored returns the subjects of its origin that a mirror copies; nil for all.
func mirrored(mirror *jetstream.StreamSource) (subjects []string) {
	if mirror == nil {
		return nil
	}
	if mirror.FilterSubject != "" {
		subjects = append(subjects, mirror.FilterSubject)
	}
	for _, transform := range mirror.SubjectTransforms {
		subjects = append(subjects, transform.Source)
	}
	if slices.Contains(subjects, ">") || slices.Contains(subjects, "") {
		return nil
	}
	return subjects
}

// GapsOf returns State.Gaps, as far as a stream's own settings show it.
func GapsOf(config jetstream.StreamConfig) string {
	switch {
	case mirrored(config.Mirror) != nil:
		return GapsOfFilter
	case config.AllowMsgSchedules:
		return GapsOfSchedules
	}
	return ""
}

// dropped returns State.Dropped. What a limit on all messages drops is followed by a full stream, unless it
// was older than what MaxAge has dropped since.
func dropped(info *jetstream.StreamInfo) int64 {
	c := info.Config
	full := c.MaxMsgs > 0 && info.State.Msgs >= uint64(c.MaxMsgs) || c.MaxBytes > 0 &&
		info.State.Bytes >= uint64(c.MaxBytes)/2
	if c.AllowMsgSchedules { // one that is due has made room since
		full = c.MaxMsgs > 0 || c.MaxBytes > 0
	}
	switch {
	case full && c.Discard == jetstream.DiscardOld, c.MaxMsgsPerSubject > 0, c.AllowMsgTTL:
		return math.MaxInt64
	case c.MaxAge > 0:
		return info.TimeStamp.Add(-c.MaxAge).UnixMilli() + 1
	}
	return 0
}

// heardSources returns when all sources were last heard (Unix milliseconds), and why one of them may have
// more.
func heardSources(info *jetstream.StreamInfo) (heard int64, why error) {
	heard = math.MaxInt64
	for _, source := range info.Sources {
		var trouble error
		switch {
		case source.Error != nil:
			trouble = source.Error
		case source.Active < 0:
			trouble = errors.New("not heard yet")
		case source.Lag > 0:
			trouble = errBehind
		case source.Active > sourceSilent:
			trouble = errSilent
		}
		if source.Active >= 0 {
			heard = min(heard, info.TimeStamp.Add(-source.Active).UnixMilli())
		}
		if severity(trouble) > severity(why) {
			why = fmt.Errorf("%s: %w", source.Name, trouble)
		}
	}
	return heard, why
}

// severity orders problems by severity: of a silent source the last moment is known, and one that lags is
// alive.
func severity(trouble error) int {
	switch {
	case trouble == nil:
		return 0
	case errors.Is(trouble, errSilent):
		return 1
	case errors.Is(trouble, errBehind):
		return 2
	}
	return 3
}

// NewEndUnknownLog returns a function that logs why a copy's end is unknown, once until it is known again.
func NewEndUnknownLog(log zerolog.Logger, name string) func(error) {
	var unknown atomic.Bool
	return func(why error) {
		switch before := unknown.Swap(why != nil); {
		case why != nil && !before:
			log.Warn().Err(why).Str("stream", name).Msg("cannot tell how far this copy has got: as_of passes only " +
				"what has arrived")
		case why == nil && before:
			log.Info().Str("stream", name).Msg("how far this copy has got is known again")
		}
	}
}

// OriginOf returns State.Origin.
func OriginOf(js jetstream.JetStream, info *jetstream.StreamInfo) string {
	mirror := info.Config.Mirror
	if mirror == nil || !natsconn.IsOwn(js, mirror.External) {
		return ""
	}
	return mirror.Name
}

// Since returns State.Since of a stream that is not read yet.
func Since(info *jetstream.StreamInfo) int64 { return stateOf(info).Since() }

// stateOf returns the state without At, Ahead and what the origins change.
func stateOf(info *jetstream.StreamInfo) State {
	s := State{
		Subjects: info.Config.Subjects, Created: info.Created.UnixNano(), Mirror: info.Config.Mirror != nil,
		First: info.State.FirstSeq, FirstStored: info.State.FirstTime.UnixNano(),
		Last: info.State.LastSeq, LastStored: info.State.LastTime.UnixNano(),
		Seen: info.TimeStamp.UnixMilli() + 1, Clock: info.TimeStamp.UnixMilli() + 1,
		Retention: info.Config.Retention, Gaps: GapsOf(info.Config),
	}
	if s.Gaps != "" {
		s.Dropped = dropped(info)
	}
	if info.State.Msgs == 0 {
		s.First, s.FirstStored = s.Last+1, s.Seen*1e6
	}
	s.Deleted = s.Last + 1 - s.First - info.State.Msgs
	c := info.Config
	s.setBegin(c.FirstSeq)
	if c.Mirror != nil {
		s.Copy = digest(c.Mirror)
		s.setBegin(c.Mirror.OptStartSeq)
	}
	s.Limits = digest([]any{c.FirstSeq, c.MaxAge, c.MaxMsgs, c.MaxBytes, c.MaxMsgsPerSubject, c.Discard, c.AllowMsgTTL,
		c.AllowMsgSchedules})
	return s
}

// setBegin sets where the stream begins, unless that is a later edit, which moves nothing.
func (s *State) setBegin(begin uint64) {
	if begin <= s.First || s.Mirror && s.Last == 0 {
		s.Begin = max(s.Begin, begin)
	}
}

// digest identifies settings in few bytes.
func digest(settings any) string {
	text, _ := json.Marshal(settings) // numbers and texts alone
	return strconv.FormatUint(window.HashCounter(text), 36)
}
