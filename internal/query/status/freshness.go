package status

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"tallyroll/internal/query/answer"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
)

// scrapeTimeout bounds a scrape's wait for Redis and NATS. Prometheus waits for 10 s by default.
const scrapeTimeout = 3 * time.Second

// freshness exports how far the streams are counted, read at a scrape, at most once per second. It reads
// Redis, so the gauges continue when every worker is dead.
type freshness struct {
	*servers
	streams *streams
	counted recent[[]read.Progress]

	mu        sync.Mutex
	latest    []read.Progress // as of the last time that Redis answered
	hasLayout bool            // there is a layout, as far as is known
}

var (
	asOfAge = gaugeDesc("as_of_age_seconds", "Seconds from as_of to now, by the clock of Redis: how old answers "+
		"are. It goes on growing while Redis is away.")
	streamAge = gaugeDesc("stream_as_of_age_seconds", "Seconds from the as_of of the stream to now, by the clock "+
		"of Redis.", "stream")
	streamCounted = gaugeDesc("stream_counted", "1 if counting of the stream has begun on every shard, 0 if not.",
		"stream")
	redisUp = gaugeDesc("query_redis_up", "1 if Redis answered when this was asked for, 0 if not.")

	streamOwned = gaugeDesc("stream_owned", "1 if a worker reads the stream, 0 if none does. Absent without NATS.",
		"stream")
	streamLag = gaugeDesc("stream_lag_messages", "Sequences of the stream that are not applied to all counters. "+
		"Absent without NATS.", "stream")
	streamLagTime = gaugeDesc("stream_lag_seconds", "How long ago the last applied message was stored, if there are "+
		"later ones, else 0. Absent without NATS.", "stream")
	streamRejected = gaugeDesc("stream_rejected_messages", "Rejects in HITS_REJECTED that come from the stream. "+
		"Absent without NATS.", "stream")
	workersAlive = gaugeDesc("workers", "Workers that are alive. Absent without NATS.")
)

func gaugeDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("tallyroll_"+name, help, labels, nil)
}

// Describe names all gauges, whether or not they can be read now.
func (f *freshness) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		asOfAge, streamAge, streamCounted, redisUp, streamOwned, streamLag, streamLagTime, streamRejected, workersAlive,
	} {
		ch <- d
	}
}

// Collect reads Redis, and NATS if the settings name one.
func (f *freshness) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	var group errgroup.Group
	group.Go(func() error { f.collectCounted(ctx, gauge); return nil })
	if f.AsksNATS {
		group.Go(func() error { f.collectStored(ctx, gauge); return nil })
	}
	_ = group.Wait() // nothing here fails: what cannot be read is left out
}

func (f *freshness) collectCounted(ctx context.Context, gauge func(*prometheus.Desc, float64, ...string)) {
	streams, err := f.counted.get(ctx, f.redis.Timeout, func(ctx context.Context) ([]read.Progress, error) {
		found, err := f.Reader.Progress(ctx)
		return found.Streams, err
	})
	gauge(redisUp, oneIf(!answer.IsLost(err)))
	streams, ever := f.keepLatest(streams, err)
	if !ever {
		return
	}
	now := f.redisNow()
	gauge(asOfAge, answer.SecondsSince(oldest(streams), now))
	for _, p := range streams {
		if p.Ended > 0 {
			continue
		}
		gauge(streamAge, answer.SecondsSince(p.AsOf, now), p.Stream)
		gauge(streamCounted, oneIf(p.Counted), p.Stream)
	}
}

// keepLatest keeps Redis's answer, and returns the last one while Redis does not answer. Nothing newer can be
// answered then, so the ages must go on growing.
func (f *freshness) keepLatest(streams []read.Progress, err error) ([]read.Progress, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		f.latest, f.hasLayout = streams, true
	case errors.Is(err, schema.ErrNoLayout):
		f.latest, f.hasLayout = nil, false
	}
	return f.latest, f.hasLayout
}

func (f *freshness) collectStored(ctx context.Context, gauge func(*prometheus.Desc, float64, ...string)) {
	found, err := f.streams.find(ctx)
	if err != nil {
		return
	}
	gauge(workersAlive, float64(len(found.Workers)))
	for _, s := range found.Streams {
		gauge(streamOwned, oneIf(s.Worker != ""), s.Stream)
		gauge(streamLag, float64(s.LagMessages), s.Stream)
		gauge(streamLagTime, s.LagSeconds, s.Stream)
		gauge(streamRejected, float64(s.Rejects), s.Stream)
	}
}

// oldest returns the as_of of answers: the live stream's that is furthest behind, or the end of the last
// ended one.
func oldest(streams []read.Progress) int64 {
	out, live := int64(0), false
	for _, p := range streams {
		switch {
		case p.Ended == 0 && (!live || p.AsOf < out):
			out, live = p.AsOf, true
		case p.Ended > 0 && !live:
			out = max(out, p.Ended)
		}
	}
	return out
}

func oneIf(on bool) float64 {
	if on {
		return 1
	}
	return 0
}
