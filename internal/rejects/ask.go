package rejects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/boot"
	"tallyroll/internal/hit"
)

const (
	// askWithin bounds the whole question, and askInterrupted after an interrupt.
	askWithin      = 5 * time.Second
	askInterrupted = time.Second
	// askSettle is how long rejects may stay away before none are expected any
	// more: a worker that has the last message stores its rejects with the next flush.
	askSettle = time.Second
	askLook   = 200 * time.Millisecond
)

// Asked is the hits that workers have refused to count, as far as that is known
// when the program ends.
type Asked struct {
	byReason  map[hit.Reason]int64
	namespace string
	unread    string // a stream that workers have not read to the last message; empty: they have
	noWorker  bool   // because none reads it
	unknown   error  // why it is not known
	left      int64  // messages that were not asked about
}

// String is empty if nobody was asked.
func (r *Asked) String() string {
	if r == nil {
		return ""
	}
	if r.unknown != nil {
		return fmt.Sprintf("; rejected: not known (%v)", r.unknown)
	}
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(r.byReason)) {
		part := boot.Thousands(float64(r.byReason[reason])) + " " + string(reason)
		if hint := hints[reason]; hint != "" {
			part += " (" + hint + ")"
		}
		parts = append(parts, part)
	}
	s := "; rejected so far: "
	if len(parts) == 0 {
		s += "none"
	}
	s += strings.Join(parts, ", ")
	switch {
	case r.noWorker:
		s += fmt.Sprintf("; no worker of the namespace %s reads %s", r.namespace, r.unread)
	case r.unread != "":
		s += fmt.Sprintf("; the workers have not read all of %s yet", r.unread)
	}
	if r.left > 0 {
		s += fmt.Sprintf("; not known for %d messages", r.left)
	}
	return s
}

// hints say what to do about a reason.
var hints = map[hit.Reason]string{
	hit.TooLate:  "older than every tier: --rebase now shifts a log's times",
	hit.Future:   "ahead of the server's clock",
	hit.TooLarge: "whole messages: lower --batch",
}

// Ask looks for rejects of the messages at these places. It waits up to 5 seconds until the workers have passed
// the last of them, as far as NATS knows that, or for a second after ctx ends.
// What it finds is never a reason to fail: the messages are stored.
func Ask(ctx context.Context, js jetstream.JetStream, namespace string, stored *Places) *Asked {
	after, giveUp := boot.Outlive(ctx, askInterrupted)
	defer giveUp()
	asking, stop := context.WithTimeout(after, askWithin)
	defer stop()
	return ask(asking, js, namespace, stored)
}

func ask(ctx context.Context, js jetstream.JetStream, namespace string, stored *Places) *Asked {
	r := &Asked{byReason: map[hit.Reason]int64{}, namespace: namespace, left: stored.left}
	consumer, err := askConsumer(ctx, js, namespace, stored)
	if err != nil {
		r.unknown = err
		return r
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askLook)
		defer cancel()
		_ = js.DeleteConsumer(ctx, Stream, consumer.CachedInfo().Name) // else the server forgets it by itself
	}()
	quiet := time.Now() // since then no reject has come, and every worker was where it is
	looked := false
	for ctx.Err() == nil {
		before := r.unread
		name, noWorker, errUnread := unread(ctx, js, namespace, stored)
		if errUnread != nil {
			err = errUnread // what was seen before still holds
			break
		}
		r.unread, r.noWorker, looked = name, noWorker, true
		var found int
		if found, err = r.take(consumer, stored); err != nil {
			break
		}
		if found > 0 || before != r.unread {
			quiet = time.Now()
		}
		if (r.unread == "" || r.noWorker) && time.Since(quiet) >= askSettle {
			return r
		}
	}
	if !looked || err != nil && ctx.Err() == nil {
		r.unknown = cmp.Or(err, ctx.Err())
	}
	return r
}

// askConsumer reads the headers of what was rejected since the first message was stored.
func askConsumer(ctx context.Context, js jetstream.JetStream, namespace string, stored *Places) (jetstream.Consumer, error) {
	config := jetstream.ConsumerConfig{
		Description: "tallyroll publish", AckPolicy: jetstream.AckNonePolicy, HeadersOnly: true,
		MemoryStorage: true, Replicas: 1, InactiveThreshold: 2 * askWithin,
	}
	var since time.Time
	known := true
	for name, spans := range stored.streams {
		config.FilterSubjects = append(config.FilterSubjects, Subject(namespace, name))
		stream, err := js.Stream(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("stream %s: %w", name, err)
		}
		first, err := stream.GetMsg(ctx, spans[0].first) // the server's time, not this machine's
		switch {
		case errors.Is(err, jetstream.ErrMsgNotFound):
			known = false
		case err != nil:
			return nil, fmt.Errorf("message %d of %s: %w", spans[0].first, name, err)
		case since.IsZero() || first.Time.Before(since):
			since = first.Time
		}
	}
	if known {
		config.DeliverPolicy, config.OptStartTime = jetstream.DeliverByStartTimePolicy, &since
	}
	consumer, err := js.CreateConsumer(ctx, Stream, config)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return nil, errors.New("no stream " + Stream + ": is ingest running?")
	case err != nil:
		return nil, fmt.Errorf("stream %s: %w", Stream, err)
	}
	return consumer, nil
}

// take counts the rejects that are there, and how many messages these were, also others' ones.
func (r *Asked) take(consumer jetstream.Consumer, stored *Places) (found int, err error) {
	batch, err := consumer.Fetch(1000, jetstream.FetchMaxWait(askLook))
	if err != nil {
		return 0, err
	}
	for m := range batch.Messages() {
		part, _ := Parse(m.Headers())
		if part.Namespace != r.namespace || !stored.holds(part.Stream, part.Seq) {
			continue
		}
		found++
		if part.Number == 1 {
			r.byReason[part.Reason]++
		}
	}
	return found, batch.Error()
}

// unread is a stream whose last message of ours no consumer of a worker of the namespace has been
// given; noWorker says that there is no such consumer.
func unread(ctx context.Context, js jetstream.JetStream, namespace string, stored *Places) (name string, noWorker bool, err error) {
	for name, spans := range stored.streams {
		stream, err := js.Stream(ctx, name)
		if err != nil {
			return "", false, fmt.Errorf("stream %s: %w", name, err)
		}
		list := stream.ListConsumers(ctx)
		workers, passed := 0, false
		for info := range list.Info() {
			if info.Config.Description == hit.WorkerDescription(namespace) {
				workers++
				passed = passed || info.Delivered.Stream >= spans[len(spans)-1].last
			}
		}
		if err := list.Err(); err != nil {
			return "", false, fmt.Errorf("consumers of %s: %w", name, err)
		}
		if !passed {
			return name, workers == 0, nil
		}
	}
	return "", false, nil
}

// maxSpans bounds what is remembered of where messages were stored: 1 MB. One
// producer alone needs one span a stream, others that publish meanwhile part it.
const maxSpans = 1 << 16

// span is a run of sequences in a stream.
type span struct{ first, last uint64 }

// Places are the sequences at which messages were stored.
type Places struct {
	streams map[string][]span // in order, apart from each other
	spans   int
	left    int64 // messages that found no room here
}

// Add remembers a message. Acknowledgements come nearly in the order of the stream.
func (p *Places) Add(stream string, seq uint64) {
	s := p.streams[stream]
	i := sort.Search(len(s), func(i int) bool { return s[i].first > seq }) // the first span after seq
	if i > 0 && seq <= s[i-1].last {
		return // stored before, and acknowledged again
	}
	before := i > 0 && s[i-1].last+1 == seq
	after := i < len(s) && s[i].first == seq+1
	switch {
	case before && after:
		s[i-1].last = s[i].last
		s = append(s[:i], s[i+1:]...)
		p.spans--
	case before:
		s[i-1].last = seq
	case after:
		s[i].first = seq
	case p.spans == maxSpans:
		p.left++
		return
	default:
		s = append(s, span{})
		copy(s[i+1:], s[i:])
		s[i] = span{seq, seq}
		p.spans++
	}
	if p.streams == nil {
		p.streams = map[string][]span{}
	}
	p.streams[stream] = s
}

// holds reports whether a message at this place was remembered.
func (p *Places) holds(stream string, seq uint64) bool {
	s := p.streams[stream]
	i := sort.Search(len(s), func(i int) bool { return s[i].first > seq })
	return i > 0 && seq <= s[i-1].last
}
