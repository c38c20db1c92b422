package worker

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// marked waits until there are so many marks, and checks that all are of a kind and of the stream.
func (r *rig) marked(kind string, want int) (out []window.Mark) {
	r.t.Helper()
	stack.Eventually(r.t, fmt.Sprintf("%d marks", want), func() (bool, string) {
		var err error
		out, err = r.reader.Marks(r.t.Context())
		return err == nil && len(out) >= want, fmt.Sprintf("%+v %v", out, err)
	})
	if len(out) != want || slices.ContainsFunc(out, func(m window.Mark) bool { return m.Kind != kind || m.Stream != "HITS" }) {
		r.t.Errorf("marks are %+v, want %d of %s", out, want, kind)
	}
	return out
}

// Two workers that both read a stream, and both begin the same version of the rules, write one mark.
func TestRulesAreMarkedOnce(t *testing.T) {
	t.Parallel()
	nats, loner := withLoner(t)
	r := newRigOn(t, nats)
	r.createStream(0)
	first, second := rulesCounting("a.{id}"), rulesCounting("b.{id}")
	file := newRulesFile(t)
	file.write(first)
	workers := []*running{r.start("INGEST_RULES="+file.path, "INGEST_WORKER=a"), r.start(append(loner, "INGEST_RULES="+file.path, "INGEST_WORKER=b")...)}
	began := time.Now().UnixMilli() // the version begins behind message 1, which may wait for its commit while it does
	r.order("1")
	r.passed(time.Now().UnixMilli())
	file.write(second)
	for _, w := range workers {
		w.reload <- syscall.SIGHUP
	}
	stack.Eventually(t, "both to begin the version", func() (bool, string) {
		n := r.logs.count("the rules were changed")
		return n >= 2, fmt.Sprint(n)
	})
	r.order("2")
	r.passed(time.Now().UnixMilli())
	for _, w := range workers {
		w.stop()
	}
	m := r.marked(window.MarkRules, 1)[0]
	if m.At < began || m.At > time.Now().UnixMilli() || m.Until != 0 ||
		m.Detail != fmt.Sprintf("the rules were changed from %s to %s: messages are read by them from message 2 on", fingerprint(t, first), fingerprint(t, second)) {
		t.Errorf("called at %d, the mark is %+v", began, m)
	}
}

// A loss that the cursors of all shards admit is one mark, whose time the lost hits were stored in; and a worker that comes
// later has nothing to add.
func TestLossIsMarkedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	handle := r.createStream(0)
	w := r.start()
	r.publish(10)
	r.settled(10)
	w.stop()
	stopped := time.Now().UnixMilli()
	r.publish(20)
	if err := handle.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	purged := time.Now().UnixMilli()
	r.publish(5)
	w = r.start()
	r.settled(15)
	m := r.marked(window.MarkLoss, 1)[0]
	if m.At > stopped || m.Until < purged || m.Until > time.Now().UnixMilli() || m.Detail != "messages were discarded before they were read" {
		t.Errorf("stopped at %d, purged at %d, and the mark is %+v", stopped, purged, m)
	}
	w.stop()
	r.start()
	r.publish(1)
	r.settled(16)
	r.marked(window.MarkLoss, 1)
}

// If nobody has counted for more than a minute, the time is marked once all of it is counted.
func TestLatenessIsMarked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.createStream(0)
	w := r.start()
	r.publish(10)
	r.settled(10)
	w.stop()
	behind := time.Now().Add(-10 * time.Minute).UnixMilli()
	for shard := range testLayout.Shards { // as if the workers had stopped then
		if err := r.redis.Client().HSet(t.Context(), fmt.Sprintf("test:{%d}:cursor:HITS", shard), "as_of", behind).Err(); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now().UnixMilli()
	r.publish(5)
	r.start()
	r.settled(15)
	m := r.marked(window.MarkLate, 1)[0]
	if m.At != behind || m.Until < began || !strings.Contains(m.Detail, "has caught up") {
		t.Errorf("the mark is %+v, want one from %d on", m, behind)
	}
}
