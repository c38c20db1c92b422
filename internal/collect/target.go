package collect

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/platform/outbox"
	"tallyroll/internal/platform/wait"
)

const (
	// checkEvery is the pause between checks of the subject's stream, and so how old /readyz's answer can be.
	checkEvery = time.Second
	// checkWithin bounds one check of a stream's settings.
	checkWithin = 2 * time.Second
	// refusedFor is how long after a refusal the service is not ready, unless a hit is stored.
	refusedFor = 5 * time.Second
	// defaultWindow is the default for how long a stream remembers a Nats-Msg-Id.
	defaultWindow = 2 * time.Minute
)

// target finds the stream of the subject. The goroutine in watch checks it and logs changes; the publisher's
// goroutine reports the stream's answers to messages; all others only read the result.
type target struct {
	subject  string
	log      zerolog.Logger
	checkNow wait.Signal // check before the next check is due
	last     atomic.Pointer[streamCheck]
	refusal  atomic.Pointer[lastRefusal] // nil: the last message was stored, or there was none
}

type lastRefusal struct {
	why error
	at  time.Time
}

type streamCheck struct {
	stream string
	err    error         // why messages are not stored, or why that is unknown
	window time.Duration // for which the stream remembers an id; 0: unknown
	most   int           // max_msg_size; 0: unknown, or none
}

func newTarget(subject string, log zerolog.Logger) *target {
	return &target{subject: subject, log: log, checkNow: wait.NewSignal()}
}

func (t *target) watch(ctx context.Context, js jetstream.JetStream) error {
	ticker := time.NewTicker(checkEvery)
	defer ticker.Stop()
	for {
		if js.Conn().IsConnected() {
			found := t.check(ctx, js)
			if ctx.Err() != nil {
				return nil
			}
			t.report(found)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-t.checkNow:
		}
	}
}

// check finds the subject's stream, and its settings, which this user may have no right to see.
func (t *target) check(ctx context.Context, js jetstream.JetStream) streamCheck {
	stream, err := outbox.FindStream(ctx, js, t.subject)
	found := streamCheck{stream: stream, err: err}
	if err != nil {
		return found
	}
	bounded, cancel := context.WithTimeout(ctx, checkWithin)
	defer cancel()
	handle, err := js.Stream(bounded, stream)
	if err == nil {
		config := handle.CachedInfo().Config
		found.window, found.most = config.Duplicates, max(0, int(config.MaxMsgSize))
	} else if before := t.last.Load(); before != nil && before.stream == stream {
		found.window, found.most = before.window, before.most
	}
	return found
}

func (t *target) report(found streamCheck) {
	before := t.last.Swap(&found)
	if before != nil && before.stream == found.stream && fmt.Sprint(before.err) == fmt.Sprint(found.err) {
		return
	}
	switch {
	case found.err == nil:
		t.log.Info().Str("subject", t.subject).Str("stream", found.stream).Stringer("duplicate_window",
			found.window).Msg("hits go to the stream")
	case errors.Is(found.err, outbox.ErrNoStream):
		t.log.Error().Msgf("cannot accept hits: %s", noStream(t.subject))
	default:
		t.log.Warn().Err(found.err).Str("subject", t.subject).Msg("which stream takes hits is unknown")
	}
}

func (t *target) recordRefusal(why error) {
	if errors.Is(why, outbox.ErrNoStream) {
		t.checkNow.Give()
	}
	var refusal outbox.Refusal
	if !errors.As(why, &refusal) {
		return
	}
	before := t.refusal.Swap(&lastRefusal{why, time.Now()})
	if before == nil || before.why.Error() != why.Error() {
		hint := "is the stream full? Raise its limits, or let it discard old messages"
		if refusal.Lasts() {
			hint = "messages of hits do not suit this stream: set COLLECT_SUBJECT to a subject of another one"
		}
		t.log.Error().Err(why).Str("subject", t.subject).Msgf("the stream refuses hits: %s (docs/collect.md)", hint)
	}
}

func (t *target) recordStored() {
	if t.refusal.Load() != nil && t.refusal.Swap(nil) != nil {
		t.log.Info().Str("subject", t.subject).Msg("hits are stored again")
	}
}

// duplicateWindow is for how long the stream remembers a Nats-Msg-Id.
func (t *target) duplicateWindow() time.Duration {
	if found := t.last.Load(); found != nil && found.window > 0 {
		return found.window
	}
	return defaultWindow
}

// maxMsgSize is the stream's bound on a message in bytes, or 0.
func (t *target) maxMsgSize() int {
	if found := t.last.Load(); found != nil {
		return found.most
	}
	return 0
}

// whyNotReady returns why no hit can be stored now. It is empty if hits can be, or if that is unknown.
func (t *target) whyNotReady(conn *nats.Conn) string {
	if !conn.IsConnected() {
		return "NATS does not answer"
	}
	found := t.last.Load()
	switch {
	case found == nil:
		return "JetStream has not answered yet"
	case errors.Is(found.err, outbox.ErrNoStream):
		return noStream(t.subject)
	case found.err != nil:
		return "which stream takes " + t.subject + " (COLLECT_SUBJECT) is unknown: " + found.err.Error()
	}
	if last := t.refusal.Load(); last != nil && time.Since(last.at) < refusedFor {
		return fmt.Sprintf("hits on %s (COLLECT_SUBJECT) are refused: %v", t.subject, last.why)
	}
	return ""
}
