package watch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/watch/history"
)

const (
	// postInterval is how often all firing alerts are posted, and alertLifetime how long Alertmanager then
	// keeps them, as with Prometheus: an alert whose sender is gone ends by itself.
	postInterval  = 30 * time.Second
	alertLifetime = 4 * postInterval
	// resolvedRetention is how long ended alerts are posted.
	resolvedRetention = 15 * time.Minute
	maxAlertsPerPost  = 200
)

type alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	StartsAt    time.Time         `json:"startsAt,omitzero"`
	EndsAt      time.Time         `json:"endsAt"`
}

// alertSync posts alerts to an Alertmanager, which holds what fires now and no history, so it gets states and
// not changes. As with replicas of Prometheus, every process posts all firing alerts, at each change and
// every postInterval, because the leader may not reach Alertmanager. Without NATS it posts its own results.
type alertSync struct {
	stream  *stateStream
	target  *Target
	client  *http.Client
	timeout time.Duration

	timeouts timeouts
	metrics  *metrics
	log      zerolog.Logger

	postedSeq    uint64    // sequence of the last change that was posted
	nextPost     time.Time // when all is posted again, by this machine's clock
	failingSince time.Time // since when posts have failed; zero: the last one succeeded
	problems     problemLog
}

func (a *alertSync) run(ctx context.Context, every time.Duration) error {
	defer a.metrics.undeliveredAge.DeleteLabelValues(a.target.Name)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			a.tick(ctx)
		}
	}
}

func (a *alertSync) tick(ctx context.Context) {
	states, now := a.stream.expectedStates(), a.stream.now()
	newest := uint64(0)
	for _, s := range states {
		newest = max(newest, s.seq)
	}
	began := time.Now()
	if now.IsZero() || newest == a.postedSeq && began.Before(a.nextPost) {
		return
	}
	a.postedSeq = newest
	err := a.postAlerts(ctx, a.buildAlerts(states, now))
	switch {
	case ctx.Err() != nil:
	case err == nil:
		a.nextPost, a.failingSince = began.Add(postInterval), time.Time{}
		a.problems.recovered(a.log, "Alertmanager sync recovered")
		a.metrics.undeliveredAge.WithLabelValues(a.target.Name).Set(0)
		a.metrics.deliveries.WithLabelValues(a.target.Name, "delivered").Inc()
		a.metrics.deliverySeconds.WithLabelValues(a.target.Name).Observe(time.Since(began).Seconds())
	default:
		if a.failingSince.IsZero() {
			a.failingSince = began
		}
		failing := time.Since(a.failingSince)
		pause := min(a.timeouts.retryPause(failing), postInterval)
		var status *statusError
		if errors.As(err, &status) {
			pause = min(max(pause, status.retryAfter), postInterval)
		}
		a.nextPost = began.Add(pause)
		a.metrics.deliveries.WithLabelValues(a.target.Name, "failed").Inc()
		a.metrics.undeliveredAge.WithLabelValues(a.target.Name).Set(failing.Seconds())
		a.problems.warn(a.log.With().Str("target", a.target.Name).Logger(), err, "Alertmanager sync failed: retrying")
	}
}

// postAlerts posts alerts in chunks. A failed request stops no other.
func (a *alertSync) postAlerts(ctx context.Context, alerts []alert) error {
	var group errgroup.Group
	group.SetLimit(maxConcurrent)
	for chunk := range slices.Chunk(alerts, maxAlertsPerPost) {
		group.Go(func() error {
			body, err := json.Marshal(chunk)
			if err != nil {
				return err
			}
			bounded, cancel := context.WithTimeout(ctx, a.timeout)
			defer cancel()
			r, err := http.NewRequestWithContext(bounded, http.MethodPost, strings.TrimRight(a.target.Address,
				"/")+"/api/v2/alerts", bytes.NewReader(body))
			if err != nil {
				return errors.New("the URL is invalid")
			}
			return sendRequest(a.client, r, time.Now())
		})
	}
	return group.Wait()
}

// buildAlerts returns an alert for each state that fires (also while unknown), is unknown, or ended lately.
func (a *alertSync) buildAlerts(states map[string]*entry, now time.Time) (out []alert) {
	for _, s := range states {
		isRecipient := slices.Contains(s.To, a.target.Name) || slices.Contains(s.Notified, a.target.Name)
		if !isRecipient || s.State == "" {
			continue
		}
		endedLately := now.Sub(s.stored) < resolvedRetention
		endTime := func(lasts bool) time.Time {
			if lasts {
				return now.Add(alertLifetime)
			}
			return s.stored
		}
		hasEnded := endedLately && !s.FiredAt.IsZero() && s.State == history.Resolved
		if a.target.wants(history.Firing) && (s.Open || hasEnded) {
			out = append(out, a.newAlert(s, history.Firing, s.FiredAt, endTime(s.Open)))
		}
		isKnown := s.State != history.Unknown || s.Gone
		if a.target.wants(history.Unknown) && !s.Quiet && (!isKnown || endedLately && s.Previous == history.Unknown) {
			since := s.Since
			if isKnown {
				since = time.Time{} // Alertmanager already has the start
			}
			out = append(out, a.newAlert(s, history.Unknown, since, endTime(!isKnown)))
		}
	}
	order := func(a alert) string { return a.Labels["rule"] + a.Labels["key"] + a.Labels["state"] }
	slices.SortFunc(out, func(a, b alert) int { return strings.Compare(order(a), order(b)) })
	return out
}

func (a *alertSync) newAlert(s *entry, state history.State, starts, ends time.Time) alert {
	key := s.Key
	if key == "" {
		key = "all keys"
	}
	summary := fmt.Sprintf("%s: %s hits in %s, between %s and %s", key, s.Total, s.Window, s.Lower,
		strings.Replace(s.Upper.String(), "null", "any number", 1))
	if state == history.Unknown || s.Total == unknownBound {
		summary = fmt.Sprintf("%s: the number of hits in %s is unknown: %s", key, s.Window, s.Reason)
	}
	labels := map[string]string{"alertname": s.Rule, "rule": s.Rule, "namespace": a.stream.namespace,
		"state": string(state)}
	if s.Key != "" {
		labels["key"] = s.Key
	}
	if !starts.IsZero() && starts.After(ends) {
		starts = ends
	}
	return alert{
		Labels: labels, StartsAt: starts, EndsAt: ends,
		Annotations: map[string]string{"summary": summary, "window": s.Window,
			"since": human.Duration(a.stream.now().Sub(s.Since))},
	}
}
