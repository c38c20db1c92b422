package consume

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/boot"
)

// What the server answers if it cannot make a stream as requested.
const (
	// noPeers is "no suitable peers for placement": suitable servers may still come up.
	noPeers jetstream.ErrorCode = 10005
	// noReplicas is the answer of a server without a cluster that was asked for more than one replica.
	noReplicas jetstream.ErrorCode = 10074
	// subjectsOverlap says that another stream has some of the subjects.
	subjectsOverlap jetstream.ErrorCode = 10065
	// invalidConfig is about the subjects of the streams made here: everything else has been validated.
	invalidConfig jetstream.ErrorCode = 10052
)

// placeWithin is how long a worker waits at start until there are enough servers for the
// replicas of a stream that it makes: a cluster may still be coming up.
const placeWithin = time.Minute

// refused turns an answer of the server that only other settings can mend into
// an error that names the setting.
func (s *Settings) refused(err error) error {
	var answer *jetstream.APIError
	if !errors.As(err, &answer) {
		return err
	}
	switch answer.ErrorCode {
	case noPeers, noReplicas:
		return &boot.SettingError{Key: "INGEST_REPLICAS", Value: strconv.Itoa(s.Replicas),
			Allowed: fmt.Sprintf("at most the number of servers that NATS has for streams (%v)", err)}
	case subjectsOverlap:
		return boot.UsageError{Err: fmt.Errorf("%w: give that stream other subjects", err)}
	}
	return err
}

// uncreated says why one of the worker's own streams could not be made.
func (w *worker) uncreated(ctx context.Context, name, subject string, err error) error {
	failed := fmt.Errorf("create stream %s on %s: %w", name, subject, err)
	var answer *jetstream.APIError
	if !errors.As(err, &answer) || answer.ErrorCode != subjectsOverlap && answer.ErrorCode != invalidConfig {
		return failed
	}
	if answer.ErrorCode == subjectsOverlap {
		for other := range w.js.StreamNames(ctx, jetstream.WithStreamListSubject(subject)).Name() {
			failed = fmt.Errorf("%w: %s", failed, other)
		}
	}
	if w.settings.Partitions > 1 {
		return &boot.SettingError{Key: "INGEST_PARTITIONS", Value: strconv.Itoa(w.settings.Partitions),
			Allowed: fmt.Sprintf("1, or more if no other stream has subjects of hitp.> (%v)", failed)}
	}
	return &boot.SettingError{Key: "INGEST_SUBJECT", Value: subject,
		Allowed: fmt.Sprintf("%s that overlaps with no other stream's subjects; to count another stream, name it in INGEST_STREAMS (%v)", subjectForm, failed)}
}

const subjectForm = "a NATS subject such as hits.>"
