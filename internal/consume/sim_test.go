package consume

import (
	"bytes"
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/rs/zerolog"
	"pgregory.net/rapid"

	"tallyroll/internal/consume/source"
	"tallyroll/internal/platform/redisconn"
	"tallyroll/internal/window"
	"tallyroll/internal/window/read"
	"tallyroll/internal/window/schema"
)

var simLog = flag.Bool("simulation.log", false, "print what the workers log in a schedule that fails")

// TestSimulation runs the production code against models of Redis and of a
// stream, in virtual time, through drawn schedules of faults. Whatever happens,
// every message that the stream still holds is counted exactly once, and no
// answer claims more than is so.
func TestSimulation(t *testing.T) {
	if *simSchedules > 0 {
		simulateOnAllProcessors(t, *simSchedules)
		return
	}
	redisconn.Quiet()
	schedules, failed := 0, 0 // failed: how many schedules there were when the first one failed
	progress := newSimProgress()
	defer func() {
		progress.report(schedules)
		if failed > 0 {
			t.Logf("found after %d schedules", failed)
		}
	}()
	began := time.Now()
	rapid.Check(t, func(rt *rapid.T) {
		plan := drawPlan(rt)
		tries := 1
		if failed > 0 {
			tries = 8 // the pauses between sessions are random: a failure may need several runs to come back
		}
		for range tries {
			schedules++
			progress.due(schedules)
			var lines bytes.Buffer
			log := zerolog.Nop()
			if *simLog {
				log = zerolog.New(zerolog.SyncWriter(zerolog.ConsoleWriter{Out: &lines, NoColor: true, TimeFormat: "05.000"})).With().Timestamp().Logger()
			}
			if problem := plan.run(t, log); problem != "" {
				failed = cmp.Or(failed, schedules)
				rt.Fatalf("%s\n%s%s", problem, plan, lines.String())
			}
		}
	})
	t.Logf("%s, no miscount; %d cells of overflow counters were checked", simRate(schedules, began), simOverflows.Load())
}

// run runs a schedule and says what went wrong, or nothing.
func (p simPlan) run(t *testing.T, log zerolog.Logger) (problem string) {
	synctest.Test(t, func(*testing.T) {
		w := newSimWorld(p, log)
		problem = w.run()
		w.close()
	})
	return problem
}

const (
	simNamespace = "sim"
	simName      = "HITS"
	// simLookEvery is how often a worker looks for streams.
	simLookEvery = time.Second
)

// simMetrics are shared: making them takes longer than a schedule.
var simMetrics = NewMetrics(prometheus.NewRegistry())

// simWorld is a schedule that runs.
type simWorld struct {
	plan         simPlan
	log          zerolog.Logger
	limits       Limits
	layout       window.Layout
	server       redisconn.Settings // has only an address
	single       []window.Layout    // of each tier alone
	singleUnique []window.Layout    // of each unique tier alone
	redis        *simRedis
	stream       *simStream
	messages     []*simMessage
	slots        [3]*simProcess
	asker        *redis.Client // of the reader
	reader       *read.Reader
	running      sync.WaitGroup
	workers      atomic.Int32 // that have not ended yet
	erasers      atomic.Int32
	stored       int64                  // of the last message, Unix nanoseconds
	rules        int                    // the file, of simRules
	originCounts atomic.Bool            // the stream ORIGIN, of which some messages are copies, counts
	meanings     map[string]*simMeaning // by key
	checked      simState               // by the last check
	alive        map[simHashes]int64    // of one check, like segments
	segments     map[simSegment]int64
	uniqueCells  map[string]*simUniqueCell // by key
	stores       int
	refused      map[string]int64 // by counter under a bound, when it has hits that only the overflow has
	noted        int              // how many messages have their registers in uniqueCells
	expires      int64            // the first key that the last check has seen, Unix milliseconds
	mostAlive    []int64          // by tier, see mostAliveOf

	shown     int64 // the latest moment that the clock of NATS has shown when it was set back, Unix nanoseconds
	living    context.Context
	die       context.CancelFunc
	ended     []*simMessage   // of streams that have ended, see simended_test.go
	ofTwo     map[string]bool // counters of which they have hits, too
	forgotten bool            // Redis has forgotten commits, or never knew a stream that is gone

	beforeStore func(*simMessage) // nil for none
	foreignKeys map[string]bool   // of hashes and summaries that something else has written to
	foreignTop  bool              // one of them is a summary
	holdProblem string            // what holds has found wrong
	unreported  int               // a loss of hits of earlier messages may have been forgotten before it was reported
	vouched     int               // an operator has declared that no hit of earlier messages is missing
	declared    bool              // the declaration is in force
}

// simProcess is a worker's process.
type simProcess struct {
	dead   atomic.Bool
	stop   context.CancelFunc
	rules  *Rulebook
	mu     sync.Mutex
	frozen chan struct{} // nil while it runs
}

// wait stands still with the process: nothing that reaches out gets past it. It reports whether it had to.
func (p *simProcess) wait() (stood bool) {
	for ; ; stood = true {
		p.mu.Lock()
		frozen := p.frozen
		p.mu.Unlock()
		if frozen == nil {
			return stood
		}
		<-frozen
	}
}

func (p *simProcess) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen == nil {
		p.frozen = make(chan struct{})
	}
}

func (p *simProcess) thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen != nil {
		close(p.frozen)
		p.frozen = nil
	}
}

func newSimWorld(p simPlan, log zerolog.Logger) *simWorld {
	time.Sleep(p.offset)
	tiers, err := window.ParseTiers(p.tiers)
	if err != nil {
		panic(err)
	}
	if p.epochCells > 0 {
		tiers = tiers.Cut(p.epochCells)
	}
	w := &simWorld{plan: p, rules: p.rules, log: log, redis: newSimRedis(), stream: newSimStream(), foreignKeys: map[string]bool{}, ofTwo: map[string]bool{}, meanings: map[string]*simMeaning{}, alive: map[simHashes]int64{}, segments: map[simSegment]int64{}, uniqueCells: map[string]*simUniqueCell{}, refused: map[string]int64{}}
	w.redis.checkErased = w.checkErased
	w.redis.placesOf, w.redis.keepBytes = w.placesOf, w.plan.logBytes/4
	w.living, w.die = context.WithCancel(context.Background())
	w.redis.latency, w.redis.rewrites, w.stream.clustered = p.latency, p.rewrites, p.clustered
	w.stream.begin, w.stream.limit = max(p.begin, 1), p.limit
	if p.gaps {
		w.stream.gaps = source.GapsOfFilter
	}
	w.stream.last = w.stream.begin - 1
	w.limits = Limits{FlushInterval: p.flush, MaxCommands: p.maxCommands, MaxLoad: cmp.Or(p.maxLoad, 48<<20), MaxAhead: p.maxAhead, MaxHits: 100}
	uniqueTiers, err := window.ParseUniqueTiers(cmp.Or(p.uniqueTiers, "off"))
	if err != nil {
		panic(err)
	}
	w.layout = window.Layout{Tiers: tiers, UniqueTiers: uniqueTiers, Shards: p.shards}
	for i := range uniqueTiers {
		w.singleUnique = append(w.singleUnique, window.Layout{Tiers: uniqueTiers[i : i+1], Shards: 1})
	}
	for i := range tiers {
		w.single = append(w.single, window.Layout{Tiers: tiers[i : i+1], Shards: 1})
		w.mostAlive = append(w.mostAlive, w.mostAliveOf(tiers[i]))
	}
	if w.hasLogs() {
		w.mostAlive[len(tiers)-1] *= 2 // hashes, and at most as many logs
	}
	if err := w.server.URL.UnmarshalText([]byte("redis://simulated:6379")); err != nil {
		panic(err)
	}
	w.asker = w.redis.client(w.server.Options().Simple(), &simProcess{})
	w.reader = read.NewReader(w.store(w.asker))
	for slot := range p.workers {
		w.start(slot)
	}
	return w
}

// start starts a worker's process where none runs.
func (w *simWorld) start(slot int) {
	if w.slots[slot] != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &simProcess{stop: cancel, rules: w.newRulebook()}
	w.slots[slot] = p
	client := w.redis.client(w.server.Options().Simple(), p)
	log := w.log.With().Int("worker", slot).Logger()
	keeper := NewKeeper(Config{
		Limits: w.limits, Layout: w.layout, Store: w.store(client),
		Metrics: simMetrics, Waits: NewWaits(), Rules: p.rules, Log: log,
		Copies: &Copies{Counts: func(string) bool { return w.originCounts.Load() }},
	})
	w.running.Go(func() { keeper.KeepClaiming(ctx) })
	w.workers.Add(1)
	w.running.Go(func() {
		defer w.workers.Add(-1)
		defer client.Close()
		for ctx.Err() == nil {
			keeper.Keep(ctx, simName, func(bool) {}, func(int) source.Stream { return &simSource{w.stream, p} })
			select {
			case <-ctx.Done():
			case <-time.After(simLookEvery):
			}
		}
	})
}

// end stops a worker's process, gracefully or not.
func (w *simWorld) end(slot int, crash, inFlight bool) {
	p := w.slots[slot]
	if p == nil {
		return
	}
	w.slots[slot] = nil
	if crash {
		p.dead.Store(true)
		w.redis.mu.Lock()
		for c := range w.redis.conns {
			if c.process == p {
				if c.readable.Give(); !inFlight {
					c.cut()
				}
			}
		}
		w.redis.mu.Unlock()
	}
	p.thaw()
	p.stop()
}

// run plays the events, heals everything, and waits until all is counted.
func (w *simWorld) run() string {
	for i, e := range w.plan.events {
		time.Sleep(e.after)
		w.apply(e)
		if i+1 == w.plan.declared {
			w.declare(1)
		}
		if problem := w.check(false); problem != "" {
			return fmt.Sprintf("after event %d: %s", i+1, problem)
		}
	}
	w.heal()
	healed := max(w.stream.now().UnixMilli(), slices.Max(w.asOfs())) // the clock of NATS may have been set back
	person := 0                                                      // how often an operator has repaired a stream that stands still
	for began, deadline := time.Now(), time.Now().Add(2*time.Minute); ; time.Sleep(200 * simTick) {
		if !w.isRead() && time.Since(began) > time.Duration(1+person)*25*time.Second {
			if !w.plan.needsPerson() {
				return "the stream stands still, and nothing was lost"
			}
			w.stream.purge(person > 0)
			person++
		}
		if problem := w.check(false); problem != "" {
			return "after healing: " + problem
		}
		// If the clock of NATS was set back, an as_of can be later than that without a message read.
		claimed := w.asOf() > healed && slices.Max(w.asOfs()) <= w.stream.now().UnixMilli() && w.isRead() && w.haveEnded()
		// A worker that was asked to end may still report a loss that a late reply shows.
		if claimed && w.renewed(healed) && w.workers.Load() == 1 && w.erasers.Load() == 0 {
			break
		}
		if claimed && w.plan.hurried {
			w.redis.loseClaims() // then the cursors move at once, not within renewEvery
		}
		// The worker may have waited for a person, and looks again every ten seconds or so.
		if now := w.stream.now().UnixMilli(); now > healed+100_000 && w.asOf() > now {
			return fmt.Sprintf("as_of is %d ms after the clock of NATS", w.asOf()-now)
		}
		if time.Now().After(deadline) {
			return fmt.Sprintf("as_of has not passed the end of the faults two minutes later: %v, cursors renewed %v, %d workers", w.asOfs(), w.renewed(healed), w.workers.Load())
		}
	}
	if problem := w.check(true); problem != "" {
		return "at the end: " + problem
	}
	problem := w.ask(healed)
	if w.forgotten && (problem != "" || !w.isListed()) { // Redis has forgotten the layout, or the stream's place in the list
		time.Sleep(registerEvery + 2*time.Second)
		problem = w.ask(healed)
	}
	if problem != "" {
		return "at the end: " + problem
	}
	w.die()
	w.end(0, false, false)
	w.running.Wait()
	if problem := w.check(true); problem != "" {
		return "after the last commit: " + problem
	}
	if problem := w.checkTop(); problem != "" {
		return "after the last commit: " + problem
	}
	return ""
}

// declare lets an operator declare that nothing is missing from a moment on, or (0) take that back. Every
// loss that left a mark, and every later one, must still show. Redis may refuse, or have no cursors yet.
func (w *simWorld) declare(from int64) {
	w.declared = from > 0
	w.vouched = len(w.messages)
	_, _, _ = schema.Declare(context.Background(), schema.NewStore(w.asker, simNamespace), schema.Declaration{From: from, At: 1, By: "sim"})
}

// forgetUnread is called when a stream goes. If a shard has no cursor of it, nothing tells of its messages,
// and a declaration that is in force hides that their hits can be older than what came after it.
func (w *simWorld) forgetUnread() {
	if !slices.Contains(w.asOfs(), 0) {
		return
	}
	w.forgotten = true
	if w.declared {
		w.vouched = len(w.messages)
	}
}

// heal ends all faults and all workers but one.
func (w *simWorld) heal() {
	w.redis.mu.Lock()
	w.redis.away, w.redis.slowShard = false, ""
	w.redis.shown, w.redis.ahead = w.redis.latest(), 0
	w.redis.piece = nil // Redis is not killed any more
	clear(w.redis.lookFault)
	clear(w.redis.execFault)
	w.redis.mendForeign()
	w.redis.mu.Unlock()
	w.stream.mu.Lock()
	w.stream.stateFails, w.stream.rejectFails, w.stream.rejectMute = false, false, false
	w.stream.deposed = nil
	if w.stream.away {
		w.stream.away = false
		w.stream.dropReadings(0)
	}
	w.stream.mu.Unlock()
	for slot, p := range w.slots {
		if p != nil {
			p.thaw()
		}
		if slot > 0 {
			w.end(slot, false, false)
		}
	}
	w.start(0)
}

func (w *simWorld) close() {
	w.die()
	for slot := range w.slots {
		w.end(slot, true, false)
	}
	w.heal()
	w.end(0, true, false)
	w.running.Wait()
	w.asker.Close()
	time.Sleep(20 * time.Second) // what waits for a moment that has become meaningless
	close(w.redis.closed)
}

// apply lets one event happen.
func (w *simWorld) apply(e simEvent) {
	p := w.slots[e.worker]
	later := func(f func()) { time.AfterFunc(e.d, f) }
	onStream := func(f func()) {
		w.stream.mu.Lock()
		defer w.stream.mu.Unlock()
		f()
	}
	onRedis := func(f func()) {
		w.redis.mu.Lock()
		defer w.redis.mu.Unlock()
		f()
	}
	onFeeds := func(f func(*simFeed)) {
		onStream(func() {
			for r := range w.stream.feeds {
				if r.source.process == p {
					f(r)
				}
			}
		})
	}
	switch e.kind {
	case "publish":
		for range e.messages() {
			w.publish(e.n)
		}
	case "publish events":
		for range e.messages() {
			w.publishEvents(e.n)
		}
	case "wait":
		time.Sleep(e.d)
	case "pause":
		if p != nil {
			p.freeze()
			later(p.thaw)
		}
	case "crash", "crash, its requests arrive":
		w.unreported = len(w.messages)
		w.end(e.worker, true, e.kind != "crash")
	case "stop":
		w.end(e.worker, false, false)
	case "start":
		w.start(e.worker)
	case "look held up", "look cut":
		if p != nil {
			onRedis(func() { w.redis.lookFault[p] = simLookFault{e.kind, e.lookedAt(), min(e.d, 4*time.Second)} }) // sooner than the client gives up
		}
	case "cut before", "lost reply", "late reply", "late request":
		if p != nil {
			onRedis(func() { w.redis.execFault[p] = simExecFault{kind: e.kind, delay: e.d} })
		}
	case "cut":
		onRedis(func() { w.redis.cutAll(nil) })
	case "redis away":
		onRedis(func() {
			w.redis.away = true
			w.redis.cutAll(nil)
		})
		later(func() { onRedis(func() { w.redis.away = false }) })
	case "subjects edited":
		onStream(func() { w.stream.subjects = e.subjects() })
	case "rules edited":
		w.editRules(e)
	case "clock of NATS set back":
		w.setBack(e.setBack())
	case "clock of Redis ahead":
		w.foreignTop = true // lists may lack what a summary has lost
		w.redis.setAhead(time.Duration(3+4*(e.n%8))*time.Second, e.d)
	case "another stream ends":
		w.endAnother(e)
	case "torn file":
		if p != nil {
			onRedis(func() { w.redis.execFault[p] = simExecFault{kind: e.kind, written: e.written()} })
			later(w.redis.runTorn)
		}
	case "roll back", "roll back, claims stay":
		w.forgotten, w.unreported = true, len(w.messages)
		w.redis.rollBack(e.n+1, e.kind != "roll back")
	case "erase":
		w.erase(e)
	case "declare":
		w.declare(e.declaredFrom())
	case "claims lost":
		w.redis.loseClaims()
	case "old claim":
		w.redis.claimAgain(e.n)
	case "flush", "flush and cut":
		w.forgotten, w.unreported = true, len(w.messages)
		w.redis.flushAll(e.kind != "flush")
	case "taken for ended":
		w.redis.expireCursors(time.Hour) // longer than any schedule: what goes on is to last again
	case "slow shard":
		onRedis(func() { w.redis.slowShard, w.redis.slowBy = fmt.Sprintf("{%d}", e.worker), e.d })
		later(func() { onRedis(func() { w.redis.slowShard = "" }) })
	case "foreign cells", "foreign summary", "foreign cursor", "foreign claims":
		w.foreign(e)
		later(func() { onRedis(w.redis.mendForeign) })
	case "gap":
		onFeeds((*simFeed).gap)
	case "repeat", "repeat, reset":
		if e.n < len(w.stream.held) {
			onFeeds(func(r *simFeed) { r.repeat(w.stream.held[e.n], e.kind != "repeat") })
		}
	case "lost":
		onFeeds(func(r *simFeed) {
			delete(w.stream.feeds, r)
			go r.lose(source.ErrReconnected)
		})
	case "state fails":
		onStream(func() { w.stream.stateFails = true })
		later(func() { onStream(func() { w.stream.stateFails = false }) })
	case "nats away":
		onStream(func() { w.stream.away = true })
		later(func() {
			onStream(func() {
				w.stream.away = false
				w.stream.dropReadings(0)
			})
		})
	case "discard":
		w.stream.discard(e.n + 1)
	case "delete tail":
		w.stream.deleteTail(e.n/4 + 1)
	case "limit raised":
		if w.stream.limit > 0 {
			w.stream.raise(e.n + 1)
		}
	case "schedules allowed":
		w.forgetUnread()
		w.stream.allowSchedules()
	case "leader cut off", "leader paused":
		w.stream.depose(e.kind == "leader paused")
		later(w.stream.wake)
	case "stream rolled back":
		w.stream.rollBack(e.n+1, e.d)
	case "stream recreated":
		w.forgetUnread()
		w.stream.recreate(w.tick(), e.d)
	case "stream restored":
		w.forgetUnread()
		w.stream.restore(max(0, e.n/4-1), w.tick(), e.d)
	case "rejects fail":
		onStream(func() { w.stream.rejectFails = true })
		later(func() { onStream(func() { w.stream.rejectFails = false }) })
	case "rejects unacknowledged":
		onStream(func() { w.stream.rejectMute = true })
		later(func() { onStream(func() { w.stream.rejectMute = false }) })
	default:
		panic(e.kind)
	}
}

// simHit is a hit that is to be counted, and where.
type simHit struct {
	counter string
	hash    uint64
	shard   int
	at, n   int64
	cells   []simCell
	uniques []simRegister
	shared  bool
	names   []simHit // the same hit under each name that its message's subject can give it; nil if it names its counter
}

type simCell struct {
	tier       int
	key, field string
	simLogs
}

// simExcluded divides the n of hits that the sum of all hits leaves out. Those that are in it never add up to
// so many, so a cell's count shows both.
const simExcluded = 1 << 14

// simAges are how long before its message a hit was made, in milliseconds, unless hits are late.
var simAges = []int64{0, 0, 0, 700, 3_000, 9_000, 0, 14_000, -900, 40_000, 100_000, 500_000}

// age is how long before its message a hit was made. If hits are late, it is any time that one of the tiers
// still holds, or a little more.
func (w *simWorld) age(form, id, k int) int64 {
	if !w.plan.late {
		return simAges[(form*5+id*3+k)%len(simAges)]
	}
	random := rand.New(rand.NewPCG(uint64(form), uint64(id<<8|k)))
	t := w.layout.Tiers[random.IntN(len(w.layout.Tiers))]
	held := w.span(t)*t.Cell.Milliseconds() + (t.Window + simGrace(t)).Milliseconds()
	return random.Int64N(held + held/4)
}

// publish stores a message of 1 to 4 hits, or of up to 16 if hits are late; form chooses among what they can
// be like.
func (w *simWorld) publish(form int) {
	id := len(w.messages)
	stored := w.tick()
	m := w.newMessage(id, stored, fmt.Sprintf("hits.a.m%d", id))
	var items []string
	most := 4
	if w.plan.late {
		most = 16
	}
	for k := range 1 + (form+id)%most {
		hit := simHit{counter: w.named(fmt.Sprintf("m%d.%d", id, k)), n: int64(1 + (id+k)%5)}
		hit.at = stored/1e6 - w.age(form, id, k)
		unnamed := k == 1 && form%2 == 0 // its counter is the subject's
		if unnamed {
			hit.at = stored / 1e6
		}
		if k == 2 || k > 3 || form == 3 {
			hit.counter, hit.shared = fmt.Sprintf("shared%d", id%2), true
		}
		hit.hash = window.HashCounter([]byte(hit.counter))
		hit.shard = w.layout.ShardOf(hit.hash)
		bad := form%5 == 4 && k == 0 // a bad count
		dated := hit.at
		hit.at = min(hit.at, stored/1e6)
		item := fmt.Sprintf(`{"key":%q,"n":%d,"ts":%d,"id":"%d.%d"}`, hit.counter, hit.n, dated, id, k)
		if unnamed {
			item = fmt.Sprintf(`{"n":%d,"id":"%d.%d"}`, hit.n, id, k)
		}
		value := ""
		if !unnamed && (form+id+k)%3 > 0 {
			value = simUnique(form + id/2 + k)
			if hit.shared {
				value = simUnique(form % 4) // again and again
			}
			item = strings.Replace(item, "}", fmt.Sprintf(`,"unique":%q}`, value), 1)
		}
		if w.plan.excluded && (form+id+k)%4 == 1 {
			hit.n *= simExcluded
			item = strings.Replace(item, fmt.Sprintf(`"n":%d`, hit.n/simExcluded), fmt.Sprintf(`"n":%d,"all":false`, hit.n), 1)
		}
		if bad {
			item = strings.Replace(item, `"n":`, `"n":-`, 1)
		}
		items = append(items, item)
		if bad || dated > stored/1e6+w.plan.maxAhead.Milliseconds() || !w.holds(len(w.single)-1, hit, stored/1e6) {
			m.bad = append(m.bad, k)
			continue
		}
		if !unnamed {
			hit = w.withCells(hit, stored/1e6)
			if value != "" {
				hit.uniques = w.registersOf(hit, value, stored/1e6)
			}
			m.hits = append(m.hits, hit)
			continue
		}
		var names []simHit
		for _, subjects := range simSubjects {
			hit.counter = newSubjects(subjects).counter(m.subject)
			hit.hash = window.HashCounter([]byte(hit.counter))
			hit.shard = w.layout.ShardOf(hit.hash)
			names = append(names, w.withCells(hit, stored/1e6))
		}
		hit = names[0]
		hit.names = names
		m.hits = append(m.hits, hit)
	}
	m.data = []byte("[" + strings.Join(items, ",") + "]")
	m.items = items
	w.messages = append(w.messages, m)
	if w.beforeStore != nil {
		w.beforeStore(m)
	}
	w.stream.store(m)
}

func (w *simWorld) newMessage(id int, stored int64, subject string) *simMessage {
	m := &simMessage{id: id, stored: stored, createdAt: time.Now(), subject: subject}
	if stored <= w.shown {
		m.repeats = w.shown
	}
	return m
}

// withCells is a hit with its cells, if it is stored at a Unix millisecond.
func (w *simWorld) withCells(hit simHit, stored int64) simHit {
	for i, t := range w.layout.Tiers {
		if w.holds(i, hit, stored) {
			hit.cells = append(hit.cells, w.place(hit, i, t))
		}
	}
	return hit
}

// holds reports whether a tier still holds a hit at a Unix millisecond, and notes if that is not as
// documented: a hash expires a window and the grace after its epoch, and no later than the longest jitter
// after that.
func (w *simWorld) holds(tier int, hit simHit, at int64) bool {
	got := w.single[tier].Holds(hit.hash, hit.at, at)
	t := w.layout.Tiers[tier]
	span := w.span(t) * t.Cell.Milliseconds()
	kept := (floorTo(hit.at, span)+1)*span + (t.Window + simGrace(t)).Milliseconds()
	latest := kept + min(t.Window.Milliseconds()/4, span) + 999
	if got && at >= latest || !got && at < kept {
		w.holdProblem = fmt.Sprintf("the hash of a hit at %d in tier %s is there at %d: %v; it is to expire from %d to %d", hit.at, t, at, got, kept, latest)
	}
	return got
}

// simGrace is the documented grace of a tier.
func simGrace(t window.Tier) time.Duration { return min(t.Window/4, 5*time.Minute) }

// tick is the stream's clock in Unix nanoseconds: no two moments are the same.
func (w *simWorld) tick() int64 {
	w.stored = max(w.stream.now().UnixNano(), w.stored+1)
	return w.stored
}

// setBack sets the clock of NATS back. No moment comes a second time to the nanosecond.
func (w *simWorld) setBack(by time.Duration) {
	w.stream.mu.Lock()
	defer w.stream.mu.Unlock()
	w.shown = max(w.shown, w.stream.now().UnixNano(), w.stored)
	w.stream.clock -= by + 1009
	w.stored = w.stream.now().UnixNano()
	for _, m := range slices.Concat(w.messages, w.ended) {
		m.overtook = m.overtook || m.stored >= w.stored
	}
}

// place is the documented place of a hit: epoch = ⌊t/S⌋, field = ⌊t/c⌋ mod (S/c).
func (w *simWorld) place(h simHit, tier int, t window.Tier) simCell {
	cell, span := t.Cell.Milliseconds(), w.span(t)*t.Cell.Milliseconds()
	return simCell{
		simLogs: w.logsOf(h, h.at/cell*cell, cell),
		tier:    tier,
		key:     fmt.Sprintf("%s:{%d}:h:%ds:%d:%s", simNamespace, h.shard, cell/1000, h.at/span, h.counter),
		field:   fmt.Sprint(h.at % span / cell),
	}
}

// span is the documented span of a hash in cells: two windows, or the most cells of a hash if that is less.
func (w *simWorld) span(t window.Tier) int64 {
	cells := int64(2 * t.Window / t.Cell)
	if most := cmp.Or(w.plan.epochCells, window.EpochCells); most < cells {
		return most
	}
	return cells
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// errOf is the error of a call of which nothing else matters.
func errOf[T any](_ T, err error) error { return err }
