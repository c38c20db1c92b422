package consume

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"
)

// simPlan is a schedule: everything that is drawn, before anything runs.
type simPlan struct {
	tiers       string
	uniqueTiers string // empty: off
	epochCells  int64  // most cells of a hash; 0: as many as in production
	logBytes    int    // most of a sparse log; 0: no hit fits into one
	shards      int
	maxCommands int
	maxLoad     int // 0: as in production
	flush       time.Duration
	maxAhead    time.Duration
	latency     time.Duration
	offset      time.Duration // of the beginning, in the tiers' epochs
	workers     int
	rules       int  // the file of rules, of simRules
	clustered   bool // the stream's server is one of a cluster
	events      []simEvent
	rewrites    bool   // Redis may be asked to rewrite its append-only file
	hurried     bool   // the stream is not left at rest for long in the end
	late        bool   // the times of hits are drawn over all that the tiers hold
	begin       uint64 // first_seq of the stream
	gaps        bool   // its sequences have gaps that were no messages
	limit       int    // of its messages; 0 for none
	bound       int    // of names, see simBounded; 0 for none
	excluded    bool   // some hits are left out of the sum of all hits
	declared    int    // the number of events after which an operator declares that nothing is missing
}

// simEvent is one line of a schedule. What worker, n and d mean depends on the kind.
type simEvent struct {
	after  time.Duration
	kind   string
	worker int
	n      int
	d      time.Duration
}

// simWeights are the kinds of events and how often each is drawn.
var simWeights = map[string]int{
	"publish": 24, "publish events": 10, "rules edited": 4, "pause": 4, "crash": 3, "crash, its requests arrive": 2, "stop": 2, "start": 4,
	"look held up": 5, "look cut": 2, "cut before": 2, "lost reply": 3, "late reply": 2, "late request": 3, "cut": 2, "redis away": 2,
	"roll back": 3, "roll back, claims stay": 2, "claims lost": 1, "old claim": 2, "flush": 1, "flush and cut": 1, "slow shard": 2,
	"gap": 2, "repeat": 1, "repeat, reset": 1, "lost": 1, "state fails": 1, "nats away": 1,
	"discard": 3, "delete tail": 2, "stream rolled back": 3, "stream recreated": 1,
	"leader cut off": 2, "leader paused": 2, "subjects edited": 2, "taken for ended": 1,
	"foreign cells": 3, "foreign summary": 1, "foreign cursor": 1, "foreign claims": 1,
	"rejects fail": 1, "rejects unacknowledged": 1, "wait": 3,
	"clock of NATS set back": 2, "stream restored": 2, "torn file": 2, "another stream ends": 1,
	"clock of Redis ahead": 1, "erase": 4, "declare": 1,
	"limit raised": 2, "schedules allowed": 1,
}

// simThemes are the kinds of a schedule, and how often each is drawn: all, or those that have to meet for
// rare faults.
var simThemes = map[string]map[string]int{
	"all": simWeights,
	"versions and rejects": {
		"publish": 2, "publish events": 24, "rules edited": 10, "subjects edited": 3, "rejects unacknowledged": 6, "rejects fail": 2,
		"pause": 4, "crash": 6, "crash, its requests arrive": 3, "stop": 3, "start": 10, "wait": 3,
		"look held up": 3, "cut before": 2, "lost reply": 3, "late request": 3, "slow shard": 5, "delete tail": 1,
	},
	"foreign keys and replies": {
		"publish": 8, "foreign cells": 14, "lost reply": 4, "late reply": 4, "cut": 2, "pause": 4, "stop": 3, "start": 10, "rules edited": 4, "wait": 2,
	},
	"streams and clocks": {
		"publish": 16, "clock of NATS set back": 8, "stream restored": 5, "stream rolled back": 5, "stream recreated": 1, "delete tail": 4, "discard": 4,
		"stop": 3, "start": 6, "lost": 2, "roll back": 2, "wait": 4, "nats away": 1, "late reply": 2,
	},
	"streams that change again and again": {
		"publish": 14, "stream rolled back": 12, "stream recreated": 4, "stream restored": 4, "clock of NATS set back": 3, "delete tail": 3, "discard": 3,
		"start": 4, "stop": 2, "pause": 3, "crash": 2, "lost reply": 2, "roll back": 2, "leader cut off": 3, "leader paused": 3,
	},
	"clock of Redis": {
		"publish": 16, "publish events": 2, "clock of Redis ahead": 8, "wait": 4, "lost reply": 2, "late request": 2, "stop": 2, "start": 4, "pause": 1,
	},
	"torn files and ended streams": {
		"publish": 16, "publish events": 4, "torn file": 10, "another stream ends": 4, "roll back": 5, "lost reply": 2, "pause": 3, "stop": 2, "start": 6, "wait": 4,
	},
	"two streams of a counter": {
		"publish": 20, "another stream ends": 24, "look held up": 16, "slow shard": 4, "late request": 3, "lost reply": 2, "torn file": 2, "pause": 2,
		"crash": 1, "start": 2, "erase": 1, "wait": 2,
	},
	"torn files and declarations": {
		"publish": 16, "torn file": 10, "declare": 8, "erase": 4, "foreign cursor": 6, "cut": 3, "crash": 3, "crash, its requests arrive": 3,
		"redis away": 2, "pause": 6, "stop": 2, "start": 8, "lost reply": 2, "late reply": 2, "roll back": 1, "wait": 3,
	},
	"erasures": {
		"publish": 20, "erase": 12, "lost reply": 4, "late reply": 3, "late request": 3, "look held up": 3, "slow shard": 2, "pause": 2, "crash": 2,
		"stop": 2, "start": 6, "roll back": 2, "flush": 1, "foreign cells": 1, "foreign summary": 1, "torn file": 1, "wait": 3, "stream recreated": 4,
	},
	"limits and gaps": {
		"publish": 24, "limit raised": 8, "schedules allowed": 3, "delete tail": 2, "stop": 6, "start": 8, "pause": 2, "crash": 2, "flush and cut": 1,
		"roll back": 1, "nats away": 1, "wait": 3,
	},
	"stalls over deadlines": {
		"publish": 24, "look held up": 8, "late request": 8, "late reply": 3, "slow shard": 3, "pause": 3, "crash": 2, "start": 2, "wait": 4,
	},
}

// drawKinds draws the kinds that happen in a schedule, each as often as it is to be drawn: all of them; those
// of a theme; or about half of them, so that those which are left meet each other more often (A. Groce et
// al., "Swarm Testing", ISSTA 2012).
func drawKinds(t *rapid.T) (out []string) {
	const all, half, versions, stalls, foreign = "all", "half", "versions and rejects", "stalls over deadlines", "foreign keys and replies"
	const clocks, ahead, torn, again, erasures = "streams and clocks", "clock of Redis", "torn files and ended streams", "streams that change again and again", "erasures"
	const declared, limits, two = "torn files and declarations", "limits and gaps", "two streams of a counter"
	theme := rapid.SampledFrom([]string{all, all, all, half, half, versions, versions, stalls, foreign, clocks, clocks, ahead, torn, again, erasures, declared, declared, limits, two, two}).Draw(t, "theme")
	weights := simThemes[theme]
	if theme == half {
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "swarm"), 0))
		weights = map[string]int{"publish": simWeights["publish"]}
		for _, kind := range sortedKeys(simWeights) {
			if random.IntN(2) == 0 {
				weights[kind] = simWeights[kind]
			}
		}
	}
	for range weights["publish"] { // the simplest comes first: shrinking goes there
		out = append(out, "publish")
	}
	for _, kind := range sortedKeys(weights) {
		for i := 0; i < weights[kind] && kind != "publish"; i++ {
			out = append(out, kind)
		}
	}
	return out
}

const simTick = time.Millisecond

func drawEvent(kinds []string) *rapid.Generator[simEvent] {
	kind := rapid.SampledFrom(kinds)
	return rapid.Custom(func(t *rapid.T) simEvent {
		return simEvent{
			kind:   kind.Draw(t, "kind"),
			after:  rapid.SampledFrom([]time.Duration{0, simTick, 7 * simTick, 40 * simTick, 150 * simTick, 400 * simTick, 1100 * simTick}).Draw(t, "after"),
			worker: rapid.IntRange(0, 2).Draw(t, "worker"),
			n:      rapid.IntRange(0, 15).Draw(t, "n"),
			d:      rapid.SampledFrom([]time.Duration{5 * simTick, 100 * simTick, 700 * simTick, 2500 * simTick, 5500 * simTick, 9 * time.Second}).Draw(t, "d"),
		}
	})
}

func drawPlan(t *rapid.T) simPlan {
	return simPlan{
		tiers:       rapid.SampledFrom([]string{"1s/4s,4s/60s", "1s/4s", "1s/6s,3s/12s", "2s/60s", "1s/40s,5s/90s", "2s/8s,3s/24s,5s/75s"}).Draw(t, "tiers"),
		uniqueTiers: rapid.SampledFrom([]string{"2s/10s,6s/60s", "5s/60s", "off", "1s/4s,4s/20s,20s/80s"}).Draw(t, "uniqueTiers"),
		epochCells:  rapid.SampledFrom([]int64{0, 2, 5, 16}).Draw(t, "epochCells"),
		logBytes:    rapid.SampledFrom([]int{5, 9, 30, 1000, 0}).Draw(t, "logBytes"),
		shards:      rapid.IntRange(2, 4).Draw(t, "shards"),
		maxCommands: rapid.IntRange(8, 40).Draw(t, "maxCommands"),
		flush:       rapid.SampledFrom([]time.Duration{50 * simTick, 10 * simTick, 250 * simTick, 900 * simTick}).Draw(t, "flush"),
		maxAhead:    rapid.SampledFrom([]time.Duration{time.Second, 0}).Draw(t, "maxAhead"),
		latency:     rapid.SampledFrom([]time.Duration{0, simTick, 20 * simTick}).Draw(t, "latency"),
		offset:      time.Duration(rapid.IntRange(0, 240).Draw(t, "offset")) * 500 * simTick,
		workers:     rapid.SampledFrom([]int{1, 1, 2, 3}).Draw(t, "workers"),
		rules:       rapid.IntRange(0, len(simRules)-1).Draw(t, "rules"),
		clustered:   rapid.Bool().Draw(t, "clustered"),
		events:      rapid.SliceOfN(drawEvent(drawKinds(t)), 5, 40).Draw(t, "events"),
		rewrites:    rapid.Bool().Draw(t, "rewrites"),
		hurried:     rapid.IntRange(0, 7).Draw(t, "hurried") > 0,
		maxLoad:     rapid.SampledFrom([]int{0, 0, 2000, 500}).Draw(t, "maxLoad"),
		late:        rapid.Bool().Draw(t, "late"),
		declared:    rapid.IntRange(0, 60).Draw(t, "declared"),
		begin:       rapid.SampledFrom([]uint64{1, 1, 1000}).Draw(t, "begin"),
		gaps:        rapid.IntRange(0, 3).Draw(t, "gaps") == 3,
		limit:       rapid.SampledFrom([]int{0, 0, 3, 10}).Draw(t, "limit"),
		excluded:    rapid.Bool().Draw(t, "excluded"),
	}.drawBound(t)
}

// simLosses are the events after which a worker may stand still until a person purges the stream: it does not
// know which messages were counted, or by which rules.
var simLosses = []string{
	"roll back", "roll back, claims stay", "flush", "flush and cut", "torn file", "stream rolled back", "stream recreated",
	"stream restored", "clock of NATS set back", "delete tail", "leader cut off", "leader paused", "foreign cursor",
}

// needsPerson reports whether workers may stand still for good.
func (p simPlan) needsPerson() bool {
	return slices.ContainsFunc(p.events, func(e simEvent) bool { return slices.Contains(simLosses, e.kind) })
}

func (p simPlan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "tiers %s, unique tiers %s, hashes of %d cells, logs of %d bytes, %d shards, %d commands, flush %s, ahead %s, latency %s, begins at %s, %d workers, rules %d, clustered %v, rewrites %v, hurried %v, loads of %d bytes, late %v, declared after %d events, first_seq %d, gaps %v, at most %d messages, %d names, excluded %v\n",
		p.tiers, cmp.Or(p.uniqueTiers, "off"), p.epochCells, p.logBytes, p.shards, p.maxCommands, p.flush, p.maxAhead, p.latency, p.offset, p.workers, p.rules, p.clustered, p.rewrites, p.hurried, p.maxLoad, p.late, p.declared, p.begin, p.gaps, p.limit, p.bound, p.excluded)
	at := p.offset
	for _, e := range p.events {
		at += e.after
		fmt.Fprintf(&b, "  %8.3fs  %s\n", at.Seconds(), e)
	}
	return b.String()
}

func (e simEvent) String() string {
	switch e.kind {
	case "publish":
		return fmt.Sprintf("publish %d messages of form %d", e.messages(), e.n)
	case "publish events":
		return fmt.Sprintf("publish %d messages of events, form %d", e.messages(), e.n)
	case "rules edited":
		return fmt.Sprintf("rules edited to %d, and read again by worker %d", e.rules(), e.worker)
	case "limit raised":
		return fmt.Sprintf("%s by %d, or removed", e.kind, e.n+1)
	case "cut", "schedules allowed", "flush", "flush and cut", "taken for ended", "claims lost":
		return e.kind
	case "wait", "redis away", "state fails", "nats away", "rejects fail", "rejects unacknowledged", "leader cut off", "leader paused":
		return fmt.Sprintf("%s for %s", e.kind, e.d)
	case "foreign cells", "foreign summary":
		return fmt.Sprintf("%s of a message of form %d, for %s", e.kind, e.n, e.d)
	case "foreign claims":
		return fmt.Sprintf("%s, for %s", e.kind, e.d)
	case "foreign cursor":
		return fmt.Sprintf("%s of shard %d or so, for %s", e.kind, e.worker, e.d)
	case "stop", "start", "lost", "gap", "cut before", "lost reply":
		return fmt.Sprintf("%s, worker %d", e.kind, e.worker)
	case "look held up":
		return fmt.Sprintf("%s after %d commands, worker %d, %s", e.kind, e.lookedAt(), e.worker, e.d)
	case "look cut":
		return fmt.Sprintf("%s after %d commands, worker %d", e.kind, e.lookedAt(), e.worker)
	case "subjects edited":
		return fmt.Sprintf("subjects edited to %q", e.subjects())
	case "erase":
		return fmt.Sprintf("erase, of kind %d, held up as %d by %s", e.n%4, e.worker, e.d)
	case "old claim":
		return fmt.Sprintf("the last claim but %d arrives again", e.n)
	case "roll back", "roll back, claims stay", "discard", "delete tail":
		return fmt.Sprintf("%s by %d", e.kind, e.n+1)
	case "stream rolled back":
		return fmt.Sprintf("%s by %d, noticed after %s", e.kind, e.n+1, e.d)
	case "clock of NATS set back":
		return fmt.Sprintf("%s by %s", e.kind, e.setBack())
	case "stream restored":
		return fmt.Sprintf("%s without the last %d, noticed after %s", e.kind, max(0, e.n/4-1), e.d)
	case "clock of Redis ahead":
		return fmt.Sprintf("%s by %d s, for %s", e.kind, 3+4*(e.n%8), e.d)
	case "another stream ends":
		return fmt.Sprintf("%s, of %d messages", e.kind, e.messages())
	case "torn file":
		return fmt.Sprintf("%s after %d/17 of a transaction, worker %d, Redis is killed again after %s", e.kind, e.written(), e.worker, e.d)
	case "declare":
		return fmt.Sprintf("declare complete from %d", e.declaredFrom())
	case "stream recreated":
		return fmt.Sprintf("%s, noticed after %s", e.kind, e.d)
	case "slow shard":
		return fmt.Sprintf("slow shard %d by %s", e.worker, e.d)
	case "repeat", "repeat, reset":
		return fmt.Sprintf("%s, worker %d, message %d", e.kind, e.worker, e.n)
	}
	return fmt.Sprintf("%s, worker %d, %s", e.kind, e.worker, e.d)
}

func (e simEvent) rules() int { return e.n % len(simRules) }

// written returns how many seventeenths of a torn transaction are in the file.
func (e simEvent) written() int { return 1 + (e.n+10)%16 }

// declaredFrom returns from when on nothing is missing, as an operator declares: mostly since long ago. 0
// takes it back.
func (e simEvent) declaredFrom() int64 { return int64(min(1, e.n%8)) }

func (e simEvent) setBack() time.Duration { return time.Duration(1+e.n%4) * e.d }

// lookedAt returns how many commands of a check are executed before something happens to it.
func (e simEvent) lookedAt() int { return e.n % 5 }

func (e simEvent) messages() int { return 1 + e.worker*2 }

// simSubjects are what the stream's subjects can be: each names the counter of
// hits.a.m1 in another way.
var simSubjects = [][]string{{"hits.>"}, {"hits.a.*"}, {"other.>"}}

func (e simEvent) subjects() []string { return simSubjects[e.n%len(simSubjects)] }
