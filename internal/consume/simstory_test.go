package consume

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/platform/redisconn"
)

// stories are schedules that went wrong once.
var stories = map[string]simPlan{
	// The model expected a summary of hits that no transaction had counted wholly.
	"the first commands of a torn transaction reach a segment that has no hits": {
		tiers: "1s/4s,4s/60s", uniqueTiers: "5s/60s", epochCells: 16, shards: 2, maxCommands: 31, flush: 10 * simTick, offset: 500 * simTick, workers: 1, rules: 3, clustered: true, late: true,
		events: []simEvent{
			{kind: "publish", worker: 1, after: 400 * simTick},
			{kind: "publish", worker: 1, n: 1, after: 7 * simTick},
			{kind: "publish", after: 1100 * simTick},
			{kind: "start", worker: 1},
			{kind: "roll back", n: 1, after: 400 * simTick},
			{kind: "wait", d: 9 * time.Second, after: simTick},
			{kind: "publish", n: 6},
			{kind: "torn file", d: 700 * simTick, after: simTick},
			{kind: "torn file", worker: 1, d: 5 * simTick},
			{kind: "publish", n: 2, worker: 2, after: simTick},
			{kind: "publish", n: 2, after: 40 * simTick},
			{kind: "publish", n: 7, worker: 1, after: simTick},
		},
	},
	// The model ran the piece of a torn transaction into what had been written to the cursor since. Redis runs
	// it where it stands in the file, so the cursor shows it once an operator has put it back.
	"a cursor is overwritten before Redis runs the piece of a torn transaction": {
		tiers: "1s/4s,4s/60s", uniqueTiers: "2s/10s,6s/60s", shards: 2, maxCommands: 8, flush: 50 * simTick, maxAhead: time.Second, latency: simTick, workers: 1, hurried: true, late: true, declared: 2,
		events: []simEvent{
			{kind: "torn file", d: 2500 * simTick},
			{kind: "publish", worker: 2, n: 3, after: 40 * simTick},
			{kind: "foreign cursor", d: 2500 * simTick, after: 2339 * simTick},
			{kind: "foreign cursor", worker: 1, d: 2500 * simTick},
			{kind: "wait", d: 100 * simTick},
		},
	},
	// A load gathered for longer than a stall may last, over a tail that no delivery shows.
	// Another shard's failure ended the flush that was to report a loss.
	"a foreign key, and Redis has lost the commits of another shard": {
		tiers: "2s/60s", shards: 4, maxCommands: 25, flush: 250 * simTick, latency: simTick, offset: 500 * simTick, workers: 1, clustered: true,
		events: []simEvent{
			{kind: "wait", d: 5500 * simTick},
			{kind: "publish", n: 1},
			{kind: "roll back", n: 14},
			{kind: "foreign cells", n: 2, d: 9 * time.Second, after: 150 * simTick},
			{kind: "publish", n: 15, worker: 1, after: 1100 * simTick},
		},
	},
	// Redis had forgotten a stream when an operator declared that nothing is missing. The stream got a message,
	// and was replaced before a worker read it.
	"a declaration, and then a stream of which no cursor is left is replaced": {
		tiers: "1s/4s,4s/60s", logBytes: 9, shards: 3, maxCommands: 9, flush: 50 * simTick, maxAhead: time.Second, latency: simTick, workers: 2, rules: 1, clustered: true, hurried: true, late: true, declared: 12,
		events: []simEvent{
			{kind: "another stream ends", n: 1, d: 9 * time.Second, after: 1100 * simTick},
			{kind: "look held up", worker: 2, d: 100 * simTick},
			{kind: "roll back, claims stay", worker: 2, n: 4},
			{kind: "late request", worker: 1, n: 1, d: 9 * time.Second, after: simTick},
			{kind: "publish", worker: 1, n: 1, after: 40 * simTick},
			{kind: "publish", worker: 1, n: 6, after: simTick},
			{kind: "wait", d: 100 * simTick, after: simTick},
			{kind: "another stream ends", worker: 2, n: 5, after: 400 * simTick},
			{kind: "publish", worker: 1, n: 1, after: 40 * simTick},
			{kind: "publish", worker: 1, n: 4},
			{kind: "roll back, claims stay", n: 3, after: 7 * simTick},
			{kind: "cut before", n: 3, after: 400 * simTick},
			{kind: "publish", n: 8, after: 150 * simTick},
			{kind: "foreign cells", worker: 2, n: 11, d: 700 * simTick},
			{kind: "stream recreated", worker: 2, n: 7, d: 9 * time.Second},
		},
	},
	// The place after the first roll-back was looked for when the second one had left no message: it had no
	// time, so the next sessions had nothing to compare, and took new messages for applied ones.
	"a stream is rolled back to nothing while a roll-back is judged": {
		tiers: "1s/6s,3s/12s", epochCells: 2, shards: 2, maxCommands: 15, flush: 10 * simTick, latency: 20 * simTick, offset: 2000 * simTick, workers: 1, rules: 4, hurried: true,
		events: []simEvent{
			{kind: "publish", n: 3, after: 400 * simTick},
			{kind: "publish", n: 6, worker: 2, after: 40 * simTick},
			{kind: "publish", n: 9, worker: 1, after: simTick},
			{kind: "publish", n: 1, after: 1100 * simTick},
			{kind: "stream rolled back", n: 5, d: 5 * simTick, after: 40 * simTick},
			{kind: "stream rolled back", n: 3, d: 2500 * simTick, after: 407 * simTick},
			{kind: "publish", n: 1, worker: 1, after: 1100 * simTick},
			{kind: "publish", n: 1, worker: 1, after: 40 * simTick},
			{kind: "publish", n: 5, after: 1100 * simTick},
		},
	},
	// The worker had asked for the old stream's state, and compared the cursors with the new one's messages.
	// One of them became the cursor's, and then said that the new stream goes on where the old one was.
	"a stream is recreated while a roll-back is checked": {
		tiers: "2s/60s", shards: 3, maxCommands: 14, flush: 10 * simTick, maxAhead: 1000 * simTick, latency: 20 * simTick, offset: 11500 * simTick, workers: 1, rewrites: true, hurried: true,
		events: []simEvent{
			{kind: "start", worker: 1, after: 7 * simTick},
			{kind: "publish", n: 10, worker: 1, after: 150 * simTick},
			{kind: "stream rolled back", n: 15, d: 5500 * simTick, after: 400 * simTick},
			{kind: "publish", n: 8, worker: 1, after: simTick},
			{kind: "publish", n: 8, worker: 1, after: 1100 * simTick},
			{kind: "publish", worker: 2, after: 400 * simTick},
			{kind: "publish", n: 1, worker: 2, after: 40 * simTick},
			{kind: "stream recreated", d: 100 * simTick},
			{kind: "clock of NATS set back", n: 2, d: 9000 * simTick, after: simTick},
			{kind: "pause", d: 700 * simTick, after: 40 * simTick},
			{kind: "publish", n: 11, worker: 1, after: 7 * simTick},
			{kind: "publish", n: 8, worker: 2, after: simTick},
		},
	},
	// Between the judgement and the reading, the stream was rolled back to nothing, got new messages, and
	// lost them all. The reader had been given all of them but the first, whose sequence was the cursor's,
	// and nothing showed that.
	"a roll-back before the reading is hidden by a discard": {
		tiers: "1s/4s,4s/60s", epochCells: 5, shards: 2, maxCommands: 18, flush: 10 * simTick, maxAhead: 1000 * simTick, offset: 94500 * simTick, workers: 2, clustered: true,
		events: []simEvent{
			{kind: "crash", worker: 2, d: 5500 * simTick, after: 150 * simTick},
			{kind: "publish", worker: 2, n: 2},
			{kind: "publish", worker: 1, n: 11, after: 150 * simTick},
			{kind: "publish", worker: 1, n: 1, after: 7 * simTick},
			{kind: "publish", worker: 2, n: 10, after: 400 * simTick},
			{kind: "stream rolled back", n: 14, d: 2500 * simTick, after: 1100 * simTick},
			{kind: "clock of NATS set back", n: 1, d: 5 * simTick, after: 7 * simTick},
			{kind: "publish", worker: 1, n: 9, after: 7 * simTick},
			{kind: "publish", n: 12, after: simTick},
			{kind: "crash", worker: 2, d: 700 * simTick, after: 1100 * simTick},
			{kind: "publish", worker: 1, n: 15, after: 7 * simTick},
			{kind: "delete tail", n: 1},
			{kind: "publish", n: 3, after: 7 * simTick},
			{kind: "pause", worker: 1, d: 9000 * simTick, after: 400 * simTick},
			{kind: "stream rolled back", n: 13, d: 5500 * simTick, after: 7 * simTick},
			{kind: "publish", worker: 2, after: 7 * simTick},
			{kind: "publish", worker: 2, n: 12, after: 150 * simTick},
			{kind: "crash", worker: 1, d: 5 * simTick, after: 1100 * simTick},
			{kind: "publish", n: 9, after: 40 * simTick},
			{kind: "publish", n: 6},
			{kind: "discard", n: 14, after: 7 * simTick},
			{kind: "delete tail", n: 7, after: simTick},
			{kind: "crash", worker: 2, d: 100 * simTick, after: 7 * simTick},
		},
	},
	// The rejects were those of the first rules, and the same events counted by the second.
	"rejects are stored, no cursor has passed them, and the rules are edited": {
		tiers: "1s/4s,4s/60s", shards: 2, maxCommands: 40, flush: 250 * simTick, workers: 1, rules: 3,
		events: []simEvent{
			{kind: "wait", d: 2500 * simTick},
			{kind: "rejects unacknowledged", d: 700 * simTick},
			{kind: "publish events"},
			{kind: "crash", after: 400 * simTick},
			{kind: "rules edited", n: 1},
			{kind: "start"},
		},
	},
	// The first cursor had been fenced before it got the version, by the same writer. It was taken for
	// unchanged.
	"Redis has lost a version, and not that its writer had the first cursor": {
		tiers: "1s/4s,4s/60s", shards: 3, maxCommands: 33, flush: 250 * simTick, offset: 1500 * simTick, workers: 2, rules: 4, clustered: true,
		events: []simEvent{
			{kind: "publish", n: 12, after: 1100 * simTick},
			{kind: "publish", n: 1, worker: 2, after: 1100 * simTick},
			{kind: "foreign claims", d: 5500 * simTick, after: simTick},
			{kind: "publish", n: 10, worker: 1, after: 40 * simTick},
			{kind: "rules edited", n: 1, after: 7 * simTick},
			{kind: "publish", n: 2, worker: 1},
			{kind: "wait", d: 2500 * simTick, after: 40 * simTick},
			{kind: "roll back", n: 3, after: 40 * simTick},
			{kind: "publish events", n: 1, worker: 1, after: 1100 * simTick},
			{kind: "redis away", d: 9 * time.Second, after: 40 * simTick},
		},
	},
	// The worker without rules had no use for the version of the one with rules, which no cursor had passed,
	// and did not ask what that one had refused.
	"a worker refuses events by a version that the next one drops": {
		tiers: "1s/6s,3s/12s", epochCells: 2, shards: 4, maxCommands: 10, flush: 10 * simTick, maxAhead: 1000 * simTick, latency: simTick, offset: 4500 * simTick, workers: 3,
		events: []simEvent{
			{kind: "rules edited", n: 3, worker: 1, after: 40 * simTick},
			{kind: "publish", n: 4, worker: 1, after: 7 * simTick},
			{kind: "cut before", worker: 1, after: simTick},
			{kind: "publish events", n: 11, worker: 2},
			{kind: "publish", n: 9, after: 1100 * simTick},
			{kind: "stop", worker: 1, after: 1100 * simTick},
			{kind: "start", worker: 1, after: 1100 * simTick},
			{kind: "publish", n: 4, worker: 1, after: simTick},
			{kind: "delete tail", n: 11, after: 400 * simTick},
			{kind: "publish events", n: 7, worker: 2, after: 7 * simTick},
			{kind: "slow shard", d: 5500 * simTick, after: 40 * simTick},
			{kind: "publish events", n: 1, after: simTick},
			{kind: "wait", d: 100 * simTick},
		},
	},
	// No cursor named a message of the stream, so its copy was taken for a new one, and the version went by
	// which the event had been refused.
	"a stream of which there are only rejects is restored, and the rules are edited": {
		tiers: "1s/4s,4s/60s", shards: 2, maxCommands: 8, flush: 50 * simTick, maxAhead: 1000 * simTick, workers: 1, rules: 3,
		events: []simEvent{
			{kind: "rejects unacknowledged", d: 2500 * simTick},
			{kind: "publish events", d: 5 * simTick},
			{kind: "crash", after: 1100 * simTick, d: 5 * simTick},
			{kind: "rules edited", d: 5 * simTick},
			{kind: "stream restored", d: 5 * simTick},
		},
	},
	// Each wrote only the cursors that did not name its version yet, and counted on those.
	"two workers with different rules begin at once, and again": {
		tiers: "1s/6s,3s/12s", epochCells: 2, shards: 2, maxCommands: 8, flush: 10 * simTick, maxAhead: 1000 * simTick, latency: 20 * simTick, offset: 3000 * simTick, workers: 3, rules: 1, hurried: true,
		events: []simEvent{
			{kind: "cut before"},
			{kind: "crash", d: 5 * simTick, after: 150 * simTick},
			{kind: "rules edited", n: 2, after: simTick},
			{kind: "rules edited", n: 4, worker: 2, after: 150 * simTick},
			{kind: "publish events", n: 4, worker: 1, after: 40 * simTick},
			{kind: "publish", n: 9, after: 1100 * simTick},
			{kind: "publish", n: 5, after: 7 * simTick},
			{kind: "publish events", n: 8, worker: 2, after: 1100 * simTick},
			{kind: "lost reply", after: 7 * simTick},
		},
	},
	// The new stream's cursors did not say how late the hits of the old one were, and the eraser had planned
	// for earlier ones.
	"a stream is recreated while an erasure is delayed": {
		tiers: "1s/4s,4s/60s", uniqueTiers: "1s/4s,4s/20s,20s/80s", epochCells: 5, shards: 3, maxCommands: 8, maxLoad: 500, flush: 250 * simTick, maxAhead: 1000 * simTick, offset: 500 * simTick, workers: 2, rules: 2, rewrites: true, hurried: true,
		events: []simEvent{
			{kind: "publish", n: 15, worker: 1, after: 1100 * simTick},
			{kind: "erase", n: 15, worker: 2, d: 5500 * simTick, after: 150 * simTick},
			{kind: "publish", n: 13, worker: 1, after: 150 * simTick},
			{kind: "publish", n: 4, worker: 2, after: 7 * simTick},
			{kind: "publish", n: 14, worker: 2, after: 1100 * simTick},
			{kind: "publish", n: 3, worker: 2, after: 1100 * simTick},
			{kind: "publish", n: 10, worker: 2, after: 400 * simTick},
			{kind: "publish", n: 13, worker: 1, after: 47 * simTick},
			{kind: "publish", n: 13, worker: 2, after: 400 * simTick},
			{kind: "stream recreated", d: 100 * simTick, after: 150 * simTick},
			{kind: "wait", d: 9000 * simTick, after: 400 * simTick},
		},
	},
	// The model of Redis ran an EXEC though a watched key had expired since: Redis does not.
	"the cursor of an ended stream expires while an erasure is under way": {
		tiers: "1s/4s", shards: 4, maxCommands: 8, flush: 900 * simTick, maxAhead: 1000 * simTick, latency: 20 * simTick, workers: 1, clustered: true, rewrites: true, hurried: true,
		events: []simEvent{
			{kind: "another stream ends", d: 5 * simTick},
			{kind: "publish", worker: 1, d: 5 * simTick},
			{kind: "publish", after: 1100 * simTick},
			{kind: "publish", n: 4, after: 1100 * simTick},
			{kind: "wait", d: 2500 * simTick, after: 400 * simTick},
			{kind: "publish", after: 1100 * simTick},
			{kind: "publish", n: 12, after: simTick},
			{kind: "stop", n: 1, d: 9000 * simTick, after: 400 * simTick},
			{kind: "erase", n: 5, d: 2500 * simTick, after: 40 * simTick},
		},
	},
	// Another shard was fenced before the worker had looked what became of the transaction.
	"a foreign key, a lost reply, and another worker has the other shards": {
		tiers: "2s/60s", epochCells: 5, shards: 3, maxCommands: 29, flush: 900 * simTick, latency: 20 * simTick, offset: 46000 * simTick, workers: 2, rules: 3, hurried: true,
		events: []simEvent{
			{kind: "pause", n: 1, d: 700 * simTick, after: 150 * simTick},
			{kind: "publish", n: 15, after: 150 * simTick},
			{kind: "lost reply", worker: 1, after: 1100 * simTick},
			{kind: "foreign cells", worker: 2, d: 2500 * simTick},
			{kind: "publish", after: simTick},
			{kind: "publish", n: 3, worker: 2, after: 400 * simTick},
		},
	},
	// The worker released the stream before it had reported the loss, and forgot it.
	"a foreign key, and then a foreign cursor": {
		tiers: "2s/60s", shards: 2, maxCommands: 34, flush: 10 * simTick, maxAhead: 1000 * simTick, latency: simTick, offset: 1500 * simTick, workers: 1, rules: 3, clustered: true, hurried: true,
		events: []simEvent{
			{kind: "publish", after: 400 * simTick},
			{kind: "publish", n: 1, worker: 2, after: 150 * simTick},
			{kind: "publish", n: 4, worker: 1, after: 190 * simTick},
			{kind: "publish", n: 12, worker: 1, after: 150 * simTick},
			{kind: "publish", worker: 1, after: 1100 * simTick},
			{kind: "publish", worker: 2},
			{kind: "foreign cells", worker: 1, d: 100 * simTick, after: 150 * simTick},
			{kind: "foreign cursor", worker: 2, d: 100 * simTick, after: 7 * simTick},
			{kind: "publish", n: 2, worker: 1, after: 7 * simTick},
			{kind: "publish", n: 1, worker: 2, after: 7 * simTick},
			{kind: "publish", n: 5, worker: 2, after: 7 * simTick},
			{kind: "publish events", n: 3, worker: 1},
			{kind: "taken for ended", after: 1100 * simTick},
		},
	},
	// The server does not know when its last message was stored, nor that there was another one of its
	// sequence.
	"a stream that was emptied unread is rolled back to before it was emptied": {
		tiers: "1s/4s,4s/60s", shards: 2, maxCommands: 8, flush: 50 * simTick, maxAhead: 1000 * simTick, workers: 1, clustered: true, rewrites: true, hurried: true,
		events: []simEvent{
			{kind: "publish", worker: 2, after: 400 * simTick},
			{kind: "publish", after: 400 * simTick},
			{kind: "stream rolled back", n: 10, d: 5 * simTick},
			{kind: "publish", worker: 2, n: 7},
			{kind: "discard", n: 7, after: 150 * simTick},
			{kind: "leader paused", worker: 1, n: 7, d: 9000 * simTick, after: 150 * simTick},
			{kind: "publish", worker: 1, n: 2, after: 1100 * simTick},
			{kind: "discard", after: 40 * simTick},
			{kind: "stream rolled back", worker: 2, n: 5, d: 5 * simTick, after: 7 * simTick},
		},
	},
	// The cursors are then about two streams, and the one that is about the new one proves nothing about the
	// old one.
	"Redis is rolled back while a new stream is taken, and the clock of NATS was set back": {
		tiers: "1s/6s,3s/12s", shards: 2, maxCommands: 10, flush: 900 * simTick, maxAhead: 1000 * simTick, offset: 3500 * simTick, workers: 2, rules: 3, hurried: true,
		events: []simEvent{
			{kind: "lost", worker: 1, n: 6, d: 5 * simTick, after: 40 * simTick},
			{kind: "publish", n: 11, after: 1100 * simTick},
			{kind: "publish", n: 10, after: 150 * simTick},
			{kind: "stream restored", n: 15, d: 5 * simTick},
			{kind: "clock of NATS set back", worker: 1, n: 11, d: 700 * simTick, after: 40 * simTick},
			{kind: "publish", n: 1},
			{kind: "stream recreated", worker: 1, n: 4, d: 2500 * simTick},
			{kind: "wait", n: 2, d: 700 * simTick, after: 150 * simTick},
			{kind: "publish", worker: 1, n: 8, after: simTick},
			{kind: "publish", worker: 1, n: 11, after: 7 * simTick},
			{kind: "start", n: 10, d: 700 * simTick, after: 40 * simTick},
			{kind: "roll back", worker: 2, n: 6, d: 100 * simTick},
			{kind: "publish", n: 10, after: 1100 * simTick},
		},
	},
	"a deleted tail while no worker runs for long": {
		tiers: "1s/4s,4s/60s", shards: 2, maxCommands: 40, flush: 250 * simTick, workers: 1,
		events: []simEvent{
			{kind: "stop"},
			{kind: "publish", after: 150 * simTick, worker: 2},
			{kind: "publish", worker: 2},
			{kind: "delete tail", after: 150 * simTick},
			{kind: "wait", d: 9 * time.Second},
			{kind: "wait", d: 9 * time.Second},
			{kind: "wait", d: 9 * time.Second},
		},
	},
}

// TestStories runs each story again and again: the pauses between sessions are random, and so is who is
// first. Those that went wrong did so within a few runs.
func TestStories(t *testing.T) {
	t.Parallel()
	redisconn.Quiet()
	runs := 25
	if *simSchedules > 0 {
		runs = 100
	}
	for name, plan := range stories {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range runs {
				testStory(t, plan)
			}
		})
	}
}

func testStory(t *testing.T, plan simPlan) {
	t.Helper()
	var lines bytes.Buffer
	log := zerolog.New(zerolog.SyncWriter(&lines)).With().Timestamp().Logger()
	if problem := plan.run(t, log); problem != "" {
		t.Fatalf("%s\n%s%s", problem, plan, lines.String())
	}
}

// A worker that is killed again and again while it is far behind commits something
// within the first second of each life.
func TestKilledAgainAndAgainFarBehind(t *testing.T) {
	t.Parallel()
	redisconn.Quiet()
	synctest.Test(t, func(t *testing.T) {
		w := newSimWorld(simPlan{tiers: "1s/4s,4s/60s", shards: 2, maxCommands: 40, flush: 250 * simTick, latency: simTick}, zerolog.Nop())
		defer w.close()
		w.stream.pace = 50 * simTick // longer than any life in all
		const lives = 4
		for range 20 * lives {
			w.publish(0)
			time.Sleep(100 * simTick)
		}
		time.Sleep(30 * time.Second)
		before := make([]int64, w.plan.shards)
		for life := range lives {
			w.start(0)
			time.Sleep(time.Second)
			now := w.asOfs()
			for shard, at := range now {
				if at <= before[shard] {
					t.Fatalf("life %d: as_of of shard %d is still %d after a second", life+1, shard, at)
				}
			}
			before = now
			w.end(0, true, false)
			for range 20 { // so that there is something left to do
				w.publish(0)
			}
			time.Sleep(30 * time.Second)
		}
	})
}
