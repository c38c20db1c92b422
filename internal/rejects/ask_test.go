package rejects

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"tallyroll/internal/hit"
	"tallyroll/tests/stack"
)

// refusing is a stream of hits with the stream of rejects beside it, and what a worker does to both.
type refusing struct {
	t    *testing.T
	conn *nats.Conn
	js   jetstream.JetStream
}

func newRefusing(t *testing.T) refusing {
	t.Helper()
	js := stack.NATS(t).JetStream()
	for name, subjects := range map[string]string{"HITS": "hits.>", Stream: Subjects} {
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subjects}}); err != nil {
			t.Fatal(err)
		}
	}
	return refusing{t: t, conn: js.Conn(), js: js}
}

// store stores messages and returns where.
func (r refusing) store(n int) *Places {
	r.t.Helper()
	p := &Places{}
	for range n {
		ack, err := r.js.Publish(r.t.Context(), "hits.publish.0", []byte(`{}`))
		if err != nil {
			r.t.Fatal(err)
		}
		p.Add(ack.Stream, ack.Sequence)
	}
	return p
}

func (r refusing) reject(seq int, reason string, header ...string) {
	r.t.Helper()
	m := nats.NewMsg(Subject(hit.DefaultNamespace, "HITS"))
	m.Header.Set(HeaderNamespace, hit.DefaultNamespace)
	m.Header.Set("Tallyroll-Stream", "HITS")
	m.Header.Set("Tallyroll-Sequence", fmt.Sprint(seq))
	m.Header.Set("Tallyroll-Reason", reason)
	for i := 0; i < len(header); i += 2 {
		m.Header.Set(header[i], header[i+1])
	}
	if _, err := r.js.PublishMsg(r.t.Context(), m); err != nil {
		r.t.Fatal(err)
	}
}

// read reads so many messages as a worker does.
func (r refusing) read(n int) {
	r.t.Helper()
	c, err := r.js.CreateConsumer(r.t.Context(), "HITS", jetstream.ConsumerConfig{Description: hit.WorkerDescription(hit.DefaultNamespace), AckPolicy: jetstream.AckNonePolicy})
	if err != nil {
		r.t.Fatal(err)
	}
	for range n {
		if _, err := c.Next(); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r refusing) ask(p *Places) string {
	ctx, cancel := context.WithTimeout(r.t.Context(), stack.Hung)
	defer cancel()
	return ask(ctx, r.js, hit.DefaultNamespace, p).String()
}

// looks returns a function that waits until whoever asks has looked n times more at what is rejected.
func (r refusing) looks() func(n int) {
	r.t.Helper()
	requests, err := r.conn.SubscribeSync("$JS.API.CONSUMER.MSG.NEXT." + Stream + ".>")
	if err := errors.Join(err, r.conn.Flush()); err != nil {
		r.t.Fatal(err)
	}
	return func(n int) {
		r.t.Helper()
		for range n {
			if _, err := requests.NextMsg(stack.Hung); err != nil {
				r.t.Fatal(err)
			}
		}
	}
}

func TestRejectsAreCountedByReason(t *testing.T) {
	t.Parallel()
	r := newRefusing(t)
	r.store(2) // others' messages, before and after
	ours := r.store(3)
	r.store(1)
	r.reject(2, "bad_time")
	r.reject(3, "too_late")
	r.reject(3, "too_late")
	r.reject(5, "bad_key", "Tallyroll-Part", "1/2")
	r.reject(5, "", "Tallyroll-Part", "2/2")
	r.reject(6, "bad_json")
	r.reject(4, "bad_json", "Tallyroll-Stream", "HITS_1")
	r.reject(4, "bad_json", "Tallyroll-Namespace", "another")
	r.read(6)
	want := "; rejected so far: 1 bad_key, 2 too_late (older than every tier: --rebase now shifts a log's times)"
	if got := r.ask(ours); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Rejects that come after the worker has read the last message are waited for.
func TestRejectsAreWaitedFor(t *testing.T) {
	t.Parallel()
	r := newRefusing(t)
	ours := r.store(3)
	awaitLooks := r.looks()
	r.read(2)
	answer := make(chan string, 1)
	go func() { answer <- r.ask(ours) }()
	awaitLooks(2) // it asks again: the worker has not read everything
	r.reject(3, "future")
	r.read(3)
	if got := <-answer; !strings.HasPrefix(got, "; rejected so far: 1 future (") {
		t.Errorf("%q", got)
	}
}

func TestRejectsThatAreNotKnown(t *testing.T) {
	t.Parallel()
	r := newRefusing(t)
	ours := r.store(2)
	if got, want := r.ask(ours), "; rejected so far: none; no worker of the namespace tallyroll reads HITS"; got != want {
		t.Errorf("without a worker: %q, want %q", got, want)
	}
	r.read(1)
	awaitLooks := r.looks()
	ctx, end := context.WithCancel(t.Context())
	answer := make(chan string, 1)
	go func() { answer <- ask(ctx, r.js, hit.DefaultNamespace, ours).String() }()
	awaitLooks(2)
	end()
	if got, want := <-answer, "; rejected so far: none; the workers have not read all of HITS yet"; got != want {
		t.Errorf("a slow worker: %q, want %q", got, want)
	}
	if err := r.js.DeleteStream(t.Context(), Stream); err != nil {
		t.Fatal(err)
	}
	if got := r.ask(ours); got != "; rejected: not known (no stream HITS_REJECTED: is ingest running?)" {
		t.Errorf("without the stream: %q", got)
	}
}

// An interrupt while it waits for a slow worker ends the wait, and the exit code stays that of the publishing.
func TestRejectsAreAskedForShortlyAfterAnInterrupt(t *testing.T) {
	t.Parallel()
	r := newRefusing(t)
	ours := r.store(2)
	r.read(1)
	ctx, interrupt := context.WithCancel(t.Context())
	interrupt()
	if got := Ask(ctx, r.js, hit.DefaultNamespace, ours); got == nil || got.unknown == nil && got.unread != "HITS" {
		t.Errorf("%v", got)
	}
}
