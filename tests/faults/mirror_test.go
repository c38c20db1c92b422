package faults_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// A mirror on a leaf node, the link of which breaks: what the origin stores
// meanwhile is stored, and no answer may claim it.
func TestCountsAreExactIfAMirrorIsCutOff(t *testing.T) {
	t.Parallel()
	hub, edge, link := startLeaf(t)
	origin := hub.JetStream()
	if _, err := origin.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORIGIN", Subjects: []string{"hits.>"}}); err != nil {
		t.Fatal(err)
	}
	publish := func(n int) {
		t.Helper()
		for range n {
			if _, err := origin.Publish(t.Context(), "hits.c", nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	publish(5) // stored before the mirror is made

	s := &system{t: t, redis: stack.Redis(t), broker: edge}
	s.startQuery(s.redis, 1)
	if _, err := s.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "HITS", Mirror: &jetstream.StreamSource{
		Name: "ORIGIN", External: &jetstream.ExternalStream{APIPrefix: "$JS.hub.API"},
	}}); err != nil {
		t.Fatal(err)
	}
	worker := s.startWorker(s.redis)
	const counter = "hits.c" // a mirror has no subjects of its own: the whole subject is the counter
	counted := func(want int64) {
		t.Helper()
		began := time.Now()
		stack.Eventually(t, fmt.Sprintf("%d hits, and as_of to pass them", want), func() (bool, string) {
			answer, err := s.ask([]string{counter})
			return err == nil && answer.Totals[0].Total == want && answer.AsOf.After(began), fmt.Sprintf("%+v %v", answer, err)
		})
	}
	w := s.watch(func() []string { return []string{counter} })
	total := int64(5)
	counted(total)
	const unsure = "cannot tell how far this copy has got"
	for i := range rounds(1, 2, 10) {
		link.cut()
		publish(45)
		total += 45
		if i%2 == 0 { // long enough for the worker to notice
			stack.Eventually(t, "the worker to miss the origin", func() (bool, string) {
				n := strings.Count(worker.Logs(), unsure)
				return n > i/2, fmt.Sprint(n)
			})
			mirror, err := s.js.Stream(t.Context(), "HITS")
			require.NoError(t, err)
			stack.Eventually(t, "three seconds of silence on the link", func() (bool, string) {
				info, err := mirror.Info(t.Context())
				return err == nil && info.Mirror.Active > 3*time.Second, fmt.Sprintf("%+v %v", info, err)
			})
			if i == 0 { // what has arrived is read all the same
				worker.Kill()
				worker.Start()
			}
		} else {
			sleepUpTo(2 * time.Second)
		}
		link.join()
		counted(total)
	}
	w.stop()
	w.collectOf(origin, "ORIGIN")
	for i := range w.hits {
		w.hits[i].counter = counter
	}
	w.requireHonest()
}
