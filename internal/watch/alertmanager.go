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

	"tallyroll/internal/human"
)

const (
	// postEvery is how often Alertmanager is told of all that fires, and postFor for how long it then believes that, as
	// Prometheus does: an alert whose sender has gone ends by itself.
	postEvery = 30 * time.Second
	postFor   = 4 * postEvery
	// endedFor is how long it is told of what has ended.
	endedFor = 15 * time.Minute
	// postMost is how many alerts one request has.
	postMost = 200
)

// alert is one as POST /api/v2/alerts takes it.
type alert struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
	StartsAt    time.Time         `json:"startsAt,omitzero"`
	EndsAt      time.Time         `json:"endsAt"`
}

// siren keeps an Alertmanager informed. Alertmanager holds what fires now, and no history, so it is told of the states
// and not of each change: the process with the seat posts all that fires at each change and every postEvery.
type siren struct {
	log     *log
	name    string // of this process, in beats
	target  *Target
	url     string
	client  *http.Client
	timeout time.Duration

	patience patience
	metrics  *metrics
	out      zerolog.Logger

	posted   time.Time // the last time that all were taken
	newest   uint64    // sequence of the last change that was posted
	attempts uint64    // that have failed since
	failing  time.Time // since when
	next     time.Time // no attempt before
}

// run posts until ctx ends.
func (a *siren) run(ctx context.Context, every time.Duration) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			a.tick(ctx, now)
		}
	}
}

func (a *siren) tick(ctx context.Context, now time.Time) {
	if b, _, _ := a.log.seat(); b.By != a.name || now.Before(a.next) {
		if b.By != a.name {
			a.posted, a.failing = time.Time{}, time.Time{} // whoever takes the seat posts all at once
			a.metrics.undelivered.DeleteLabelValues(a.target.Name)
		}
		return
	}
	states := a.log.snapshot()
	newest := uint64(0)
	for _, s := range states {
		newest = max(newest, s.seq)
	}
	if newest == a.newest && now.Sub(a.posted) < postEvery {
		return
	}
	began := time.Now()
	err := a.post(ctx, a.alerts(states, now))
	if err == nil {
		a.posted, a.newest, a.attempts, a.failing = now, newest, 0, time.Time{}
		a.metrics.undelivered.WithLabelValues(a.target.Name).Set(0)
		a.metrics.deliveries.WithLabelValues(a.target.Name, "delivered").Inc()
		a.metrics.deliverySeconds.WithLabelValues(a.target.Name).Observe(time.Since(began).Seconds())
		return
	}
	if ctx.Err() != nil {
		return
	}
	a.attempts++
	if a.failing.IsZero() {
		a.failing = now
	}
	pause := a.patience.backoff(a.attempts)
	var told *laterError
	if errors.As(err, &told) && told.after > pause {
		pause = min(told.after, postEvery)
	}
	a.next = now.Add(pause)
	a.metrics.deliveries.WithLabelValues(a.target.Name, "failed").Inc()
	a.metrics.undelivered.WithLabelValues(a.target.Name).Set(now.Sub(a.failing).Seconds())
	event := a.out.Debug()
	if a.attempts == 1 || a.attempts%20 == 0 {
		event = a.out.Warn()
	}
	event.Err(err).Str("target", a.target.Name).Uint64("attempt", a.attempts).Msg("Alertmanager was not told: it is tried again")
}

// post posts alerts, in several requests if they are many.
func (a *siren) post(ctx context.Context, alerts []alert) error {
	for some := range slices.Chunk(alerts, postMost) {
		body, err := json.Marshal(some)
		if err != nil {
			return err
		}
		bounded, cancel := context.WithTimeout(ctx, a.timeout)
		r, err := http.NewRequestWithContext(bounded, http.MethodPost, strings.TrimRight(a.url, "/")+"/api/v2/alerts", bytes.NewReader(body))
		if err == nil {
			err = send(a.client, r, time.Now())
		} else {
			err = errors.New("the URL cannot be asked")
		}
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

// alerts are what fires, what nobody knows, and what of both has ended lately. An alert that fires goes on while nobody
// knows whether it still does.
func (a *siren) alerts(states map[string]*entry, now time.Time) (out []alert) {
	for _, s := range states {
		concerned := slices.Contains(s.To, a.target.Name) || slices.Contains(s.FiredTo, a.target.Name)
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
				since = time.Time{} // Alertmanager knows when it began
			}
			out = append(out, a.alert(s, Unknown, since, ends(!known)))
		}
	}
	slices.SortFunc(out, func(a, b alert) int {
		return strings.Compare(a.Labels["rule"]+a.Labels["key"]+a.Labels["state"], b.Labels["rule"]+b.Labels["key"]+b.Labels["state"])
	})
	return out
}

func (a *siren) alert(s *entry, state State, starts, ends time.Time) alert {
	key := s.Key
	if key == "" {
		key = "all keys"
	}
	summary := fmt.Sprintf("%s: %d hits in %s, between %d and %s", key, s.Total, s.Window, s.Lower, strings.Replace(s.Upper.String(), "null", "any number", 1))
	if state == Unknown {
		summary = fmt.Sprintf("%s: nobody knows how many hits there were in %s: %s", key, s.Window, s.Reason)
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
		Annotations: map[string]string{"summary": summary, "window": s.Window, "since": human.Duration(time.Since(s.Since))},
	}
}
