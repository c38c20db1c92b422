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

	"tallyroll/internal/human"
)

const (
	// postEvery is how often all firing alerts are posted, and postFor how long Alertmanager then keeps them, as
	// with Prometheus: an alert whose sender is gone ends by itself.
	postEvery = 30 * time.Second
	postFor   = 4 * postEvery
	// endedFor is how long ended alerts are posted.
	endedFor = 15 * time.Minute
	postMost = 200
)

type alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	StartsAt    time.Time         `json:"startsAt,omitzero"`
	EndsAt      time.Time         `json:"endsAt"`
}

// alertSync posts alerts to an Alertmanager, which holds what fires now and no history, so it gets states and
// not changes. As with replicas of Prometheus, every process posts all firing alerts, at each change and every
// postEvery, because the leader may not reach Alertmanager. Without NATS it posts its own results.
type alertSync struct {
	log     *log
	target  *Target
	client  *http.Client
	timeout time.Duration

	patience patience
	metrics  *metrics
	out      zerolog.Logger

	newest  uint64    // sequence of the last change that was posted
	next    time.Time // when all is posted again, by this machine's clock
	failing time.Time // since when posts have failed; zero: the last one succeeded
	said    saying
}

func (a *alertSync) run(ctx context.Context, every time.Duration) error {
	defer a.metrics.undelivered.DeleteLabelValues(a.target.Name)
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
	states, now := a.log.expected(), a.log.now()
	newest := uint64(0)
	for _, s := range states {
		newest = max(newest, s.seq)
	}
	began := time.Now()
	if now.IsZero() || newest == a.newest && began.Before(a.next) {
		return
	}
	a.newest = newest
	err := a.post(ctx, a.alerts(states, now))
	switch {
	case ctx.Err() != nil:
	case err == nil:
		a.next, a.failing = began.Add(postEvery), time.Time{}
		a.said.good(a.out, "Alertmanager sync recovered")
		a.metrics.undelivered.WithLabelValues(a.target.Name).Set(0)
		a.metrics.deliveries.WithLabelValues(a.target.Name, "delivered").Inc()
		a.metrics.deliverySeconds.WithLabelValues(a.target.Name).Observe(time.Since(began).Seconds())
	default:
		if a.failing.IsZero() {
			a.failing = began
		}
		failing := time.Since(a.failing)
		pause := min(a.patience.backoff(failing), postEvery)
		var status *statusError
		if errors.As(err, &status) {
			pause = min(max(pause, status.after), postEvery)
		}
		a.next = began.Add(pause)
		a.metrics.deliveries.WithLabelValues(a.target.Name, "failed").Inc()
		a.metrics.undelivered.WithLabelValues(a.target.Name).Set(failing.Seconds())
		a.said.warn(a.out.With().Str("target", a.target.Name).Logger(), err, "Alertmanager sync failed: it is retried")
	}
}

// post posts alerts in chunks. A failed request stops no other.
func (a *alertSync) post(ctx context.Context, alerts []alert) error {
	var group errgroup.Group
	group.SetLimit(atOnce)
	for some := range slices.Chunk(alerts, postMost) {
		group.Go(func() error {
			body, err := json.Marshal(some)
			if err != nil {
				return err
			}
			bounded, cancel := context.WithTimeout(ctx, a.timeout)
			defer cancel()
			r, err := http.NewRequestWithContext(bounded, http.MethodPost, strings.TrimRight(a.target.Alertmanager, "/")+"/api/v2/alerts", bytes.NewReader(body))
			if err != nil {
				return errors.New("the URL is invalid")
			}
			return send(a.client, r, time.Now())
		})
	}
	return group.Wait()
}

// alerts returns an alert for each state that fires, is unknown, or has ended lately. A firing alert continues
// while its state is unknown.
func (a *alertSync) alerts(states map[string]*entry, now time.Time) (out []alert) {
	for _, s := range states {
		concerned := slices.Contains(s.To, a.target.Name) || slices.Contains(s.Notified, a.target.Name)
		if !concerned || s.State == "" {
			continue
		}
		ended := now.Sub(s.stored) < endedFor
		ends := func(lasts bool) time.Time {
			if lasts {
				return now.Add(postFor)
			}
			return s.stored
		}
		if a.target.wants(Firing) && (s.Open || ended && !s.FiredAt.IsZero() && s.State == Resolved) {
			out = append(out, a.alert(s, Firing, s.FiredAt, ends(s.Open)))
		}
		known := s.State != Unknown || s.Gone
		if a.target.wants(Unknown) && (!known && !s.Quiet || ended && known && s.Previous == Unknown && !s.Quiet) {
			since := s.Since
			if known {
				since = time.Time{} // Alertmanager already has the start
			}
			out = append(out, a.alert(s, Unknown, since, ends(!known)))
		}
	}
	slices.SortFunc(out, func(a, b alert) int {
		return strings.Compare(a.Labels["rule"]+a.Labels["key"]+a.Labels["state"], b.Labels["rule"]+b.Labels["key"]+b.Labels["state"])
	})
	return out
}

func (a *alertSync) alert(s *entry, state State, starts, ends time.Time) alert {
	key := s.Key
	if key == "" {
		key = "all keys"
	}
	summary := fmt.Sprintf("%s: %s hits in %s, between %s and %s", key, s.Total, s.Window, s.Lower, strings.Replace(s.Upper.String(), "null", "any number", 1))
	if state == Unknown || s.Total == unread {
		summary = fmt.Sprintf("%s: the number of hits in %s is unknown: %s", key, s.Window, s.Reason)
	}
	labels := map[string]string{"alertname": s.Rule, "rule": s.Rule, "namespace": a.log.namespace, "state": string(state)}
	if s.Key != "" {
		labels["key"] = s.Key
	}
	if !starts.IsZero() && starts.After(ends) {
		starts = ends
	}
	return alert{
		Labels: labels, StartsAt: starts, EndsAt: ends,
		Annotations: map[string]string{"summary": summary, "window": s.Window, "since": human.Duration(a.log.now().Sub(s.Since))},
	}
}
