package limit

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/tests/stack"
)

// TestBound draws processes that share a Redis, clocks that differ and go back, and trouble on the way:
// commands that do not arrive, commands and replies that are late, replies that are lost, a Redis that is
// full or away. No give-backs are drawn: one without an answer may be made, and made again. Whatever happens,
// no process is allowed more than max in any window. If the limit is closed without Redis, all of them
// together are not. Without trouble, Redis alone decides, and exactly.
//
// Takes with ids are repeated and settled, also by other processes than the one that took. Clients go away
// while Redis is late, and repeat their takes as soon as it answers. A take has the hits that it was settled
// with; what settlements added is not bounded. One whose answer was lost may have been made.
//
// Shares change no bound. Takes that are allowed by a share, timers that are late, and processes that die
// with one are drawn, too.
//
// All times are at the beginnings of cells, so that cells and rings are certain. No clock goes back by more
// than a window, because keys and rings then restart. `make simulate-limits` draws more.
func TestBound(t *testing.T) {
	t.Parallel()
	client := stack.Redis(t, stack.RedisArgs("--appendonly", "no")).Client()
	for _, script := range heldScripts.decide {
		require.NoError(t, script.Load(t.Context(), client).Err())
	}
	var seen struct{ Schedules, Allowed, Local, Shared, Late, Refused, Crashed, Repeated, Settled, Gone int }
	all := func() bool {
		return seen.Local > 0 && seen.Late > 0 && seen.Refused > 0 && seen.Allowed > seen.Local && seen.Shared > 0 &&
			seen.Crashed > 0 && seen.Repeated > 0 && seen.Settled > 0 && seen.Gone > 0
	}
	began, round := time.Now(), 0
	playSchedules(t, 30, all, func(rt *rapid.T) {
		round++
		s := newBoundRun(t, rt, client, fmt.Sprint("bound-", round))
		defer s.end()
		for range s.steps(rt) {
			s.step(rt)
		}
		s.end()
		if problem := s.problem(); problem != "" {
			rt.Fatal(problem + "\n" + strings.Join(s.story, "\n"))
		}
		seen.Schedules++
		for _, a := range s.allowed {
			seen.Allowed++
			if a.local {
				seen.Local++
			}
		}
		seen.Shared += s.shared
		seen.Crashed += s.crashed
		seen.Repeated, seen.Settled, seen.Gone = seen.Repeated+s.repeated, seen.Settled+s.settled, seen.Gone+s.gone
		seen.Late += s.late
		seen.Refused += s.refused
	})
	t.Logf("%+v in %s", seen, time.Since(began).Round(time.Millisecond))
}

const (
	boundMax    = 5
	boundWindow = time.Minute
	boundCell   = int64(1000) // ms
)

// boundRun is a schedule that is being run.
type boundRun struct {
	t         *testing.T
	client    *redis.Client // of Redis's clock
	limit     *Limit
	namespace string
	alive     []int // of processes
	turns     bool  // the clocks are the same
	healthy   bool  // there is no trouble, and all clocks are the same
	now       atomic.Int64
	latest    int64 // that Redis's clock has been

	mu            sync.Mutex // for the rest, which takes in the background read and write, too
	processes     []*boundProcess
	behind        int64 // how much Redis's clock is
	allowed       []*boundTake
	refused, late int
	shared        int // takes that a share has allowed
	crashed       int
	ids           []*boundTake // those that can be repeated and settled, because Redis has allowed them
	added         bool         // settlements added hits
	repeated      int
	settled       int
	gone          int
	story         []string
}

type boundProcess struct {
	limiter *Limiter
	trouble *trouble
	timeout atomic.Int64
	ahead   atomic.Int64
	latest  int64          // that its clock has been
	waiting sync.WaitGroup // takes in the background
	asking  atomic.Int64   // how many these are

	mu     sync.Mutex
	timers []boundTimer
}

// boundTimer is the end of a share.
type boundTimer struct {
	at  int64
	end func()
}

// later is time.AfterFunc by the clock of the test.
func (p *boundProcess) later(d time.Duration, end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timers = append(p.timers, boundTimer{p.trouble.now() + d.Milliseconds(), end})
}

func (p *boundProcess) asksForAShare() bool {
	p.limiter.shares.mu.Lock()
	defer p.limiter.shares.mu.Unlock()
	for _, s := range p.limiter.shares.all {
		if s.acquiring != nil {
			return true
		}
	}
	return false
}

// ring ends the shares whose time is over.
func (p *boundProcess) ring() {
	p.mu.Lock()
	var due []func()
	p.timers = slices.DeleteFunc(p.timers, func(t boundTimer) bool {
		if t.at > p.trouble.now() {
			return false
		}
		due = append(due, t.end)
		return true
	})
	p.mu.Unlock()
	for _, end := range due {
		end()
	}
}

// boundTake is n hits that a process was allowed.
type boundTake struct {
	at, n   int64
	process int
	local   bool
	id      string
	asked   int64 // n of the take, which a settlement does not change
}

func newBoundRun(t *testing.T, rt *rapid.T, clock *redis.Client, namespace string) *boundRun {
	s := &boundRun{t: t, client: clock, namespace: namespace, healthy: rapid.IntRange(0, 3).Draw(rt, "healthy") == 0}
	s.now.Store(worldStart)
	s.limit = &Limit{Window: boundWindow, Max: boundMax, Policy: rapid.SampledFrom(Policies()).Draw(rt, "policy"), Fail: rapid.SampledFrom([]Fail{FailLocal, FailLocal, FailClosed}).Draw(rt, "fail")}
	s.limit.Share = rapid.SampledFrom([]Share{{}, {}, {Hits: 2, For: time.Second}, {Hits: 4, For: 2 * time.Second}, {Hits: 7, For: 3 * time.Second}}).Draw(rt, "share")
	if s.limit.Share.Hits > 0 {
		s.limit.Max = 2 * boundMax
		s.limit.Fail = rapid.SampledFrom([]Fail{FailLocal, FailClosed, FailClosed}).Draw(rt, "fail of shares")
	}
	s.turns = s.limit.Policy == Fixed
	for range rapid.IntRange(1, 3).Draw(rt, "processes") {
		s.start(rt)
	}
	return s
}

// start adds a process.
func (s *boundRun) start(rt *rapid.T) {
	p := &boundProcess{trouble: &trouble{now: s.now.Load}}
	client := redis.NewClient(s.client.Options())
	p.limiter = New(client, s.namespace, 0)
	p.timeout.Store(int64(time.Minute))
	p.limiter.timeout = func() time.Duration { return time.Duration(p.timeout.Load()) }
	client.AddHook(p.trouble)
	p.limiter.store.scripts = heldScripts
	p.limiter.shares.after = p.later
	if !s.healthy && !s.turns {
		p.ahead.Store(boundCell * rapid.Int64Range(-90, 90).Draw(rt, "ahead"))
	}
	p.limiter.now = func() time.Time { return time.UnixMilli(s.now.Load() + p.ahead.Load()) }
	s.alive = append(s.alive, len(s.processes))
	s.mu.Lock()
	s.processes = append(s.processes, p)
	s.mu.Unlock()
}

// crash ends a process that gives nothing back, and starts another.
func (s *boundRun) crash(rt *rapid.T, place int) {
	p := s.processes[s.alive[place]]
	p.trouble.heal()
	p.waiting.Wait()
	p.limiter.background.Wait()
	p.trouble.after.Wait()
	clear(p.limiter.shares.all)
	s.alive = slices.Delete(s.alive, place, place+1)
	s.start(rt)
	s.crashed++
}

func (s *boundRun) steps(rt *rapid.T) int {
	if s.limit.Share.Hits > 0 {
		return rapid.IntRange(30, 90).Draw(rt, "steps")
	}
	return rapid.IntRange(5, 60).Draw(rt, "steps")
}

// step lets time pass and one process take.
func (s *boundRun) step(rt *rapid.T) {
	seconds, most := []int64{0, 0, 0, 1, 2, 7, 29, 30, 31, 59, 60, 61}, int64(3)
	if s.limit.Share.Hits > 0 {
		seconds, most = []int64{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 57, 58, 59}, 2
	}
	now := s.now.Add(boundCell * rapid.SampledFrom(seconds).Draw(rt, "seconds"))
	// before anything is healed
	require.NoError(s.t, setClock(s.t.Context(), s.client, hashTag("alice"), now-s.behind).Err())
	place := rapid.IntRange(0, len(s.alive)-1).Draw(rt, "process")
	if s.limit.Share.Hits > 0 && rapid.IntRange(0, 199).Draw(rt, "crash") == 0 {
		s.crash(rt, place)
		return
	}
	i := s.alive[place]
	if rapid.IntRange(0, 2).Draw(rt, "timers") > 0 {
		s.processes[i].ring()
	}
	p, n, what, action := s.processes[i], rapid.Int64Range(1, most).Draw(rt, "n"), "", "take"
	var known *boundTake
	if s.limit.Share.Hits == 0 {
		action = rapid.SampledFrom([]string{"take", "take", "take", "id", "id", "id", "repeat", "settle", "settle", "gone"}).Draw(rt, "action")
	}
	switch {
	case action == "gone" && (s.healthy || p.owes(s.limit)):
		action = "id"
	case (action == "repeat" || action == "settle") && len(s.ids) == 0:
		action = "take"
	case action == "repeat", action == "settle":
		known = rapid.SampledFrom(s.ids).Draw(rt, "known")
	}
	if !s.healthy {
		what = rapid.SampledFrom([]string{"", "", "", "", "lost", "unsent", "full", "late", "later", "pending", "pending reply", "away", "heal", "back", "Redis back"}).Draw(rt, "trouble")
	}
	clock, redisClock := now+p.ahead.Load(), now-s.behind
	p.latest, s.latest = max(p.latest, clock), max(s.latest, redisClock)
	if s.turns && (what == "back" || what == "Redis back") {
		what = ""
	}
	switch what {
	case "back":
		if s.limit.Share.Hits > 0 {
			break // no share's end moves: a process measures it by its monotonic clock
		}
		p.ahead.Add(-min(boundCell*rapid.Int64Range(1, 30).Draw(rt, "by"), clock-p.latest+boundWindow.Milliseconds()))
	case "Redis back":
		by := min(boundCell*rapid.Int64Range(1, 30).Draw(rt, "by"), redisClock-s.latest+boundWindow.Milliseconds())
		s.mu.Lock()
		s.behind += by
		s.mu.Unlock()
	}
	require.NoError(s.t, setClock(s.t.Context(), s.client, hashTag("alice"), now-s.behind).Err())
	p.timeout.Store(int64(time.Minute))
	if action != "take" && strings.HasPrefix(what, "pending") {
		what = "lost"
	}
	if action == "gone" {
		s.goAway(rt, i, n)
		return
	}
	switch what {
	case "heal":
		p.heal()
	case "late", "later":
		p.timeout.Store(int64(5 * time.Millisecond))
		s.late++
	}
	if p.asksForAShare() { // and is held up: who waits for it gives up
		p.timeout.Store(int64(5 * time.Millisecond))
	}
	if strings.HasPrefix(what, "pending") {
		s.take(rt, i, n, what)
		return
	}
	p.trouble.next(what)
	s.mu.Lock()
	fits := s.inWindow(len(s.allowed), -1, now-s.reach(now))+n <= s.limit.Max
	s.mu.Unlock()
	take := takeOf(s.limit, "alice", n)
	switch action {
	case "id":
		take.ID = fmt.Sprint("id-", len(s.story))
	case "repeat":
		take.ID, take.N = known.id, known.asked
	case "settle":
		s.settle(rt, i, known, what)
		p.trouble.next("")
		return
	}
	a, err := p.limiter.Take(s.t.Context(), []Take{take})
	p.trouble.next("")
	s.note(boundTake{at: now, n: take.N, process: i, id: take.ID}, action+" "+what, a, err)
	// Memory repeats a refusal for a second, also after another process has settled with fewer hits.
	remembered := s.settled > 0 && !a.Allowed && a.Decisions != nil && a.Decisions[0].Source == SourceMemory
	if s.healthy && s.limit.Share.Hits == 0 && action != "repeat" && !s.added && !remembered && a.Allowed != fits {
		rt.Fatalf("without trouble, process %d and not Redis has decided, or wrongly:\n%s", i, strings.Join(s.story, "\n"))
	}
}

// owes reports whether Redis lacks hits that the process has allowed. What it receives then is in addition.
func (p *boundProcess) owes(l *Limit) bool {
	take := takeOf(l, "alice", 1)
	a := p.limiter.fallback.accounts
	a.mu.Lock()
	defer a.mu.Unlock()
	own := a.all[p.limiter.key(&take)]
	return own != nil && own.owed+own.sending > 0
}

// goAway has a client go away while Redis is late, and repeat its take as soon as Redis answers.
func (s *boundRun) goAway(rt *rapid.T, i int, n int64) {
	p, take := s.processes[i], takeOf(s.limit, "alice", n)
	take.ID = fmt.Sprint("id-", len(s.story))
	p.heal()
	p.trouble.next(rapid.SampledFrom([]string{"late", "later"}).Draw(rt, "gone"))
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Millisecond)
	defer cancel()
	a, err := p.limiter.Take(ctx, []Take{take})
	if err == nil { // Redis was not asked
		s.note(boundTake{at: s.now.Load(), n: n, process: i}, "gone", a, err)
	}
	p.trouble.next("")
	p.heal()
	if err != nil && !p.owes(s.limit) {
		s.gone++
		a, err = p.limiter.Take(s.t.Context(), []Take{take})
		if err == nil && a.Allowed {
			a.Decisions[0].Repeated = false // for the client, it is the first answer
		}
		s.note(boundTake{at: s.now.Load(), n: n, process: i, id: take.ID}, "gone and again", a, err)
	}
}

// settle sets how many hits a take has. Without an answer, that may have been done.
func (s *boundRun) settle(rt *rapid.T, i int, known *boundTake, what string) {
	take := takeOf(s.limit, "alice", rapid.SampledFrom([]int64{0, 1, known.asked, known.asked + 2}).Draw(rt, "settled"))
	take.ID = known.id
	a, err := s.processes[i].limiter.Settle(s.t.Context(), []Take{take})
	bad, refused := errors.AsType[*IDError](err)
	_, unavailable := errors.AsType[*UnavailableError](err)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.story = append(s.story, fmt.Sprintf("at %d s process %d settles %s of %d with %d, %s: %+v, %v", (s.now.Load()-worldStart)/1000, i, take.ID, known.at, take.N, what, a, err))
	switch {
	case refused && (bad.Reason == IDUnknown || s.limit.Policy == Stream):
		return
	case err != nil && !unavailable:
		s.t.Error(err)
	case err == nil:
		s.settled++
	}
	s.added = s.added || take.N > known.n
	known.n = min(known.n, take.N)
}

// take asks in the background, and returns when Redis does not answer yet.
func (s *boundRun) take(rt *rapid.T, i int, n int64, what string) {
	p := s.processes[i]
	asked, alone := s.now.Load(), p.asking.Add(1) == 1
	caught, answered := p.trouble.next(what), make(chan struct{})
	p.waiting.Go(func() {
		defer close(answered)
		defer p.asking.Add(-1)
		a, err := p.limiter.Take(s.t.Context(), []Take{takeOf(s.limit, "alice", n)})
		at, decided := s.now.Load(), caught.at.Load()
		if s.limit.Share.Hits > 0 && at != asked && (!alone || decided != at) {
			return // a share was refused, and the take was asked alone later, or with others: when is unknown here
		}
		if decided > 0 {
			at = decided
		}
		s.note(boundTake{at: at, n: n, process: i}, what, a, err)
	})
	select {
	case <-caught.first:
	case <-answered: // not by Redis
	}
	p.trouble.next("")
}

// note remembers an answer.
func (s *boundRun) note(take boundTake, what string, a Answer, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var unavailable *UnavailableError
	outcome := fmt.Sprintf("%+v", a.Decisions)
	switch {
	case errors.As(err, &unavailable) && s.limit.Fail == FailClosed:
		outcome = "unavailable"
	case err != nil:
		s.t.Error(err)
	case a.Allowed:
		take.local = a.Decisions[0].Source == SourceLocal
		if a.Decisions[0].Source == SourceShare {
			s.shared++
		}
		if a.Decisions[0].Repeated {
			s.repeated++
			break
		}
		take.asked = take.n
		s.allowed = append(s.allowed, &take)
		if take.id != "" && !take.local { // a previous one with the same id is forgotten
			s.ids = slices.DeleteFunc(s.ids, func(known *boundTake) bool { return known.id == take.id })
			s.ids = append(s.ids, &take)
		}
	default:
		s.refused++
	}
	p := s.processes[take.process]
	s.story = append(s.story, fmt.Sprintf("at %d s process %d (%+d s, Redis %+d s), n %d, %s %s: %s", (take.at-worldStart)/1000, take.process, p.ahead.Load()/1000, -s.behind/1000, take.n, s.limit.Policy, what, outcome))
}

// reach is how far back Redis counts: cells count the whole of the oldest one here.
func (s *boundRun) reach(now int64) int64 {
	if s.turns {
		return now%boundWindow.Milliseconds() + 1
	}
	if s.limit.Policy == Cells {
		return boundWindow.Milliseconds() + boundCell
	}
	return boundWindow.Milliseconds()
}

// inWindow is how many hits a process, or all of them, was allowed after a time, of the first so many.
func (s *boundRun) inWindow(upTo, process int, after int64) (sum int64) {
	for _, a := range s.allowed[:upTo] {
		if (process < 0 || a.process == process) && a.at > after {
			sum += a.n
		}
	}
	return sum
}

// problem says which window has too much, or nothing.
func (s *boundRun) problem() string {
	slices.SortStableFunc(s.allowed, func(a, b *boundTake) int { return cmp.Compare(a.at, b.at) })
	for last := range s.allowed {
		end := s.allowed[last].at
		begin := end - boundWindow.Milliseconds()
		if s.turns {
			begin = end - s.reach(end)
		}
		for i := range s.processes {
			if sum := s.inWindow(last+1, i, begin); sum > s.limit.Max {
				return fmt.Sprintf("process %d was allowed %d in the window that ends at %d s", i, sum, (end-worldStart)/1000)
			}
		}
		sum := s.inWindow(last+1, -1, begin)
		if s.limit.Fail == FailClosed && sum > s.limit.Max {
			return fmt.Sprintf("%d were allowed in the window that ends at %d s", sum, (end-worldStart)/1000)
		}
	}
	return ""
}

// end heals everything and waits.
func (s *boundRun) end() {
	for _, p := range s.processes {
		p.heal()
		_ = p.limiter.store.client.Close()
	}
}

// heal ends all trouble, and waits until that is over.
func (p *boundProcess) heal() {
	p.trouble.heal()
	p.waiting.Wait()
	p.limiter.Wait()
	p.trouble.after.Wait()
}

// trouble is a hook that does something to the next scripts.
type trouble struct {
	now func() int64

	mu     sync.Mutex
	what   string
	caught *caught        // what is held up since then
	after  sync.WaitGroup // scripts that arrive after the client has closed their connection
	held   []*heldUp
	gone   bool // Redis cannot be reached
}

// heldUp is a script that is held up until it may go on.
type heldUp struct {
	until  chan struct{}
	caught *caught
}

// caught are the scripts that are held up together. With a take's own one, that can be what a share gives
// back meanwhile.
type caught struct {
	first chan struct{} // is sent to when there is one
	at    atomic.Int64  // when Redis decided by the first of them that takes; 0 if it has not
}

// next says what happens to the scripts that come next.
func (t *trouble) next(what string) *caught {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.what, t.caught = what, &caught{first: make(chan struct{}, 1)}
	if what == "away" {
		t.gone = true
	}
	return t.caught
}

func (t *trouble) heal() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range t.held {
		close(h.until)
	}
	t.held, t.gone = nil, false
}

// take says what happens to a script.
func (t *trouble) take() (what string, h *heldUp) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch t.what {
	case "late", "later", "pending", "pending reply":
		h = &heldUp{until: make(chan struct{}), caught: t.caught}
		t.held = append(t.held, h)
	case "lost":
	default:
		return "", nil
	}
	return t.what, h
}

// hold tells that the script is held up.
func (h *heldUp) hold() {
	select {
	case h.caught.first <- struct{}{}:
	default:
	}
}

func (t *trouble) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		t.mu.Lock()
		err := error(nil)
		switch {
		case t.gone, t.what == "unsent":
			err = errors.New("the connection broke")
		case t.what == "full":
			err = errors.New("OOM command not allowed when used memory > 'maxmemory'.")
		}
		t.mu.Unlock()
		if err != nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (*trouble) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (t *trouble) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := next(ctx, network, addr)
		return &troubledConn{Conn: conn, trouble: t}, err
	}
}

// troubledConn is a connection on which scripts or their replies are held up or lost.
type troubledConn struct {
	net.Conn
	trouble        *trouble
	what           string // happens to the script that was written last
	heldUp         *heldUp
	request, reply []byte // that is held up
	deadline       time.Time
}

func (c *troubledConn) SetDeadline(at time.Time) error {
	c.deadline = at
	return c.Conn.SetDeadline(at)
}
func (c *troubledConn) SetReadDeadline(at time.Time) error {
	c.deadline = at
	return c.Conn.SetReadDeadline(at)
}

func (c *troubledConn) Write(b []byte) (int, error) {
	c.what, c.heldUp = "", nil
	if bytes.Contains(b, []byte("eval")) {
		c.what, c.heldUp = c.trouble.take()
	}
	switch c.what {
	case "later", "pending": // Redis is slow
		c.request = bytes.Clone(b)
		c.heldUp.hold()
		return len(b), nil
	case "late", "pending reply", "lost": // the network is
		if err := c.fetch(b); err != nil {
			return 0, err
		}
		if c.heldUp != nil {
			c.heldUp.hold()
		}
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// fetch lets Redis run a script, and keeps the reply.
func (c *troubledConn) fetch(request []byte) error {
	if mode := strings.Split(string(request), "\r\n")[10]; (mode == "1" || mode == "5") && c.heldUp != nil {
		c.heldUp.caught.at.CompareAndSwap(0, c.trouble.now())
	}
	if _, err := c.Conn.Write(request); err != nil {
		return err
	}
	c.reply = make([]byte, 4096)
	_ = c.Conn.SetReadDeadline(time.Time{})
	n, err := c.Conn.Read(c.reply)
	c.reply = c.reply[:n]
	return err
}

// Close lets a script that is held up arrive, though nobody waits for its reply any more.
func (c *troubledConn) Close() error {
	if c.request == nil {
		return c.Conn.Close()
	}
	request, until := c.request, c.heldUp.until
	c.trouble.after.Go(func() {
		<-until
		defer c.Conn.Close()
		if _, err := c.Conn.Write(request); err == nil {
			_ = c.Conn.SetReadDeadline(time.Now().Add(stack.Hung))
			_, _ = c.Conn.Read(make([]byte, 1))
		}
	})
	return nil
}

func (c *troubledConn) Read(b []byte) (int, error) {
	switch c.what {
	case "":
		return c.Conn.Read(b)
	case "lost":
		return 0, errors.New("the reply was lost")
	}
	select {
	case <-c.heldUp.until:
	case <-time.After(time.Until(c.deadline)):
		return 0, os.ErrDeadlineExceeded
	}
	if c.request != nil {
		if err := c.fetch(c.request); err != nil {
			return 0, err
		}
	}
	n := copy(b, c.reply)
	c.what, c.request, c.reply = "", nil, nil
	return n, nil
}
