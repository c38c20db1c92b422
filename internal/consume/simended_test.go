package consume

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"

	"tallyroll/internal/consume/source"
	"tallyroll/internal/window"
)

// simEndedPrefix begins the names of counters of streams that end.
const simEndedPrefix = "ended"

// simNoStreams is a server that has no stream.
type simNoStreams struct{ jetstream.JetStream }

func (simNoStreams) Stream(context.Context, string) (jetstream.Stream, error) {
	return nil, jetstream.ErrStreamNotFound
}

// endAnother lets another stream be counted and then be deleted. Its worker is a process of its own, to which
// nothing happens; but Redis may fail it, and forget what it has done.
func (w *simWorld) endAnother(e simEvent) {
	stream, name := newSimStream(), fmt.Sprintf("ENDED%d", len(w.ended))
	stream.created = w.tick()
	var own []*simMessage
	for range e.messages() {
		id, stored := len(w.ended), w.tick()
		m := &simMessage{id: id, stored: stored, createdAt: time.Now(), subject: name}
		hit := simHit{counter: fmt.Sprintf("%s%d", simEndedPrefix, id), at: stored / 1e6, n: int64(1 + id%5)}
		hit.hash = window.HashCounter([]byte(hit.counter))
		hit.shard = w.layout.ShardOf(hit.hash)
		m.hits = []simHit{w.withCells(hit, stored/1e6)}
		m.data = fmt.Appendf(nil, `{"key":%q,"n":%d}`, hit.counter, hit.n)
		if e.n%2 == 0 { // and a hit of a counter that the stream of the schedule has, too
			hit.counter, hit.shared = fmt.Sprintf("shared%d", e.n/2%2), true
			hit.hash = window.HashCounter([]byte(hit.counter))
			hit.shard = w.layout.ShardOf(hit.hash)
			m.hits = append(m.hits, w.withCells(hit, stored/1e6))
			m.data = fmt.Appendf(nil, `[%s,{"key":%q,"n":%d}]`, m.data, hit.counter, hit.n)
			w.ofTwo[hit.counter] = true
		}
		w.ended, own = append(w.ended, m), append(own, m)
		stream.store(m)
	}
	p := &simProcess{}
	client := w.redis.client(w.server.Options().Simple(), p)
	log := zerolog.Nop()
	keeper := NewKeeper(Config{
		Limits: w.limits, Layout: w.layout, Store: w.store(client),
		Metrics: simMetrics, Waits: NewWaits(), Log: log,
	})
	w.running.Go(func() {
		defer client.Close()
		w.running.Go(func() {
			for w.living.Err() == nil && !w.isCounted(own) {
				w.pass(100 * simTick)
			}
			stream.mu.Lock()
			stream.gone = true
			stream.mu.Unlock()
		})
		gone, lost := keeper.Keep(w.living, name, func(bool) {}, func(int) source.Stream { return &simSource{stream, p} })
		if !gone {
			return
		}
		ender := &Endings{JS: simNoStreams{}, Layout: w.layout, Store: w.store(client), Log: log}
		for lost && w.living.Err() == nil { // as ReportLoss does
			lost = ender.markIncomplete(w.living, name, 0, w.stream.shown().UnixMilli()) != nil
			w.pass(maxReopen)
		}
		// As discover does: whenever the stream is listed as live, and does not exist.
		for w.living.Err() == nil {
			listed, err := ender.Store.Streams(w.living)
			if l, known := listed[name]; err == nil && known && l.Ended == 0 {
				_ = ender.End(w.living, name, l.Created, w.stream.shown().UnixMilli())
			}
			w.pass(simLookEvery)
		}
	})
}

// pass waits, unless the world ends.
func (w *simWorld) pass(d time.Duration) {
	select {
	case <-w.living.Done():
	case <-time.After(d):
	}
}

// isCounted reports whether all messages are counted that are still held by a cell.
func (w *simWorld) isCounted(messages []*simMessage) bool {
	w.redis.mu.Lock()
	defer w.redis.mu.Unlock()
	for _, m := range messages {
		for _, h := range m.hits {
			for _, c := range h.cells {
				if w.count(c) == 0 && w.single[c.tier].Holds(h.hash, h.at, w.redis.latest()) {
					return false
				}
			}
		}
	}
	return true
}

// haveEnded reports whether no such stream is listed as live any more.
func (w *simWorld) haveEnded() bool {
	w.redis.mu.Lock()
	defer w.redis.mu.Unlock()
	if list := w.redis.get(simNamespace + ":streams"); list != nil {
		for _, f := range list.fields {
			if _, err := strconv.ParseInt(f.value, 10, 64); err != nil && f.name != simName && f.name[0] != '.' {
				return false
			}
		}
	}
	return true
}

// isListed reports whether the list of streams has the stream of the schedule.
func (w *simWorld) isListed() bool {
	w.redis.mu.Lock()
	defer w.redis.mu.Unlock()
	_, ok := w.redis.get(simNamespace + ":streams").value(simName)
	return ok
}

// checkEnded: a hit of a stream that ends is counted at most once.
func (w *simWorld) checkEnded() string {
	for _, m := range w.ended {
		for _, h := range m.hits {
			for _, c := range h.cells {
				if h.shared {
					break // see check
				}
				if have := w.count(c); have != 0 && have != h.n {
					return fmt.Sprintf("%s, of a stream that has ended, has %d in field %s of %s, want %d", h.counter, have, c.field, c.key, h.n)
				}
			}
		}
	}
	return ""
}

// lostWithStreams are the hits of ended streams that are not counted: Redis has forgotten them, and not that
// the stream was there.
func (w *simWorld) lostWithStreams(now int64) (hits []simHit) {
	list := w.redis.get(simNamespace + ":streams")
	for _, m := range w.ended {
		if _, listed := list.value(m.subject); !listed || m.overtook {
			continue
		}
		for _, h := range m.hits {
			for _, c := range h.cells {
				if !h.shared && w.count(c) == 0 && w.holds(c.tier, h, now) {
					hits = append(hits, h)
					break
				}
			}
		}
	}
	return hits
}
