package limit

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/window/calendar"
	"tallyroll/tests/stack"
)

var periodZones = []string{
	"UTC", "Europe/Berlin", "America/New_York", "America/St_Johns", "America/Havana", "America/Santiago", "Asia/Beirut", "Asia/Kathmandu",
	"Australia/Lord_Howe", "Pacific/Apia", "Pacific/Chatham", "Etc/GMT+12", "Africa/Cairo", "America/Sao_Paulo",
}

// periodModel says by brute force which period holds a moment.
type periodModel struct {
	name   string
	starts int // day of the month, or weekday from 1 for Monday; 0 is 1
	window int64
	zone   *time.Location
}

const dayMilli = 24 * 60 * 60 * 1000

// date is the latest date, in days since 1970, that the clocks have shown by a moment.
func (m *periodModel) date(at int64) int64 {
	out := int64(0)
	step, reach := int64(15*60*1000), int64(27*60*60*1000)
	if start, _ := time.UnixMilli(at).In(m.zone).ZoneBounds(); at-start.UnixMilli() < reach {
		step = 60 * 1000 // a date of which one minute was shown twice
	}
	for back := int64(0); back <= reach; back += step {
		y, mo, d := time.UnixMilli(at - back).In(m.zone).Date()
		out = max(out, time.Date(y, mo, d, 0, 0, 0, 0, time.UTC).Unix()/86400)
	}
	return out
}

// number walks back from a moment's date to the first of its period.
func (m *periodModel) number(at int64) int64 {
	if m.name == "" {
		return at / m.window
	}
	for date := m.date(at); ; date-- {
		d, starts := time.Unix(date*86400, 0).UTC(), max(1, m.starts)
		last := time.Date(d.Year(), d.Month()+1, 0, 0, 0, 0, 0, time.UTC).Day()
		switch {
		case m.name == calendar.Today,
			m.name == calendar.Week && (int(d.Weekday())+6)%7 == starts-1,
			m.name == calendar.Month && d.Day() == min(starts, last),
			m.name == calendar.Year && d.YearDay() == 1:
			return date
		}
	}
}

// end is the first moment of the next period.
func (m *periodModel) end(at int64) int64 {
	own, reach := m.number(at), map[string]int64{"": m.window, calendar.Today: 3 * dayMilli, calendar.Week: 9 * dayMilli, calendar.Month: 33 * dayMilli, calendar.Year: 368 * dayMilli}[m.name]
	return at + int64(sort.Search(int(reach), func(i int) bool { return m.number(at+int64(i)) > own }))
}

type periodsSeen struct{ Schedules, Allowed, Refused, Waited, Turned, Asked, Settled, Late, Shares, SharesLate, Wrong int }

func (s *periodsSeen) all() bool {
	return !slices.Contains([]int{s.Allowed, s.Refused, s.Waited, s.Turned, s.Asked, s.Settled, s.Late, s.Shares, s.SharesLate, s.Wrong}, 0)
}

// TestPeriodsAgainstModel draws periods of zones, processes whose clocks are wrong by up to a year, moments
// at and around turns and changes of the clocks, a clock of Redis that goes back over a turn, takes, shares,
// settlements and give-backs, and edits of the zone and the day. Redis's clock decides, exactly.
func TestPeriodsAgainstModel(t *testing.T) {
	t.Parallel()
	client := stack.Redis(t, stack.RedisArgs("--appendonly", "no")).Client()
	var seen periodsSeen
	round := 0
	playSchedules(t, 60, seen.all, func(rt *rapid.T) {
		round++
		if problem := playPeriods(t, rt, client, heldWhole, fmt.Sprint("periods-", round), &seen); problem != "" {
			rt.Fatal(problem)
		}
	})
	t.Logf("%+v", seen)
}

func TestPlantedBugsOfPeriodsAreFound(t *testing.T) {
	t.Parallel()
	client := stack.Redis(t, stack.RedisArgs("--appendonly", "no")).Client()
	testPlantedBugs(t, []plantedBug{
		{"a key's period goes back", "fixed", "stored and stored > number and stored <= nextNumber", "false"},
		{"shares cross the turn", "fixed", "later > 0 and s.now + later >= ends", "false"},
		{"a settlement gives back hits of another period", "fixed", "at and at ~= s.number and 0 or math.min", "math.min"},
		{"a reset is not noticed", "ids", "began(key, s) ~= r.began", "false"},
		{"the key expires at the turn", "fixed", "s.turn + s.kept", "s.turn"},
		{"the last moment belongs to the next period", "fixed", "now < v[i + 2]", "now < v[i + 2] - 1"},
		{"a new period keeps the hits", "fixed", "stored == number and tonumber(v[2]) or 0", "tonumber(v[2]) or 0"},
		{"the fast script takes under a period that has ended", "hotfixed", "and left > 0 and", "and"},
		{"the fast script lets the key expire at the turn", "hotfixed", "left + kept", "left"},
		{"the fast script takes a period back", "hotfixed", "tonumber(v[1]) < tonumber(number)", "true"},
		{"the wait forgets that the clock went back", "fixed", "return s.ends - s.now", "return s.turn"},
	}, 600, func(rt *rapid.T, scripts *scriptSet, name string) string {
		return playPeriods(t, rt, client, scripts, name, new(periodsSeen))
	})
}

type periodID struct{ n, number, base, extra, later, settled int64 }

func playPeriods(t *testing.T, rt *rapid.T, client *redis.Client, held *scriptSet, namespace string, seen *periodsSeen) string {
	m := &periodModel{name: rapid.SampledFrom([]string{"", calendar.Today, calendar.Today, calendar.Week, calendar.Month, calendar.Month, calendar.Year}).Draw(rt, "name"),
		window: rapid.SampledFrom([]int64{20_000, 60_000, 3_600_000, 86_400_000}).Draw(rt, "window")}
	zone := func() { m.zone, _ = calendar.ParseZone(rapid.SampledFrom(periodZones).Draw(rt, "zone")) }
	starts := func() string {
		m.starts = 0
		switch m.name {
		case calendar.Week:
			m.starts = rapid.IntRange(1, 7).Draw(rt, "weekday")
			return strings.ToLower(time.Weekday(m.starts % 7).String())
		case calendar.Month:
			m.starts = rapid.SampledFrom([]int{1, 2, 15, 28, 29, 30, 31}).Draw(rt, "day")
			return fmt.Sprint(m.starts)
		}
		return ""
	}
	newLimit := func() *Limit {
		l := &Limit{Name: "tokens", Max: 10, Fail: FailClosed, Policy: Fixed, Window: time.Duration(m.window) * time.Millisecond}
		if day := starts(); m.name != "" {
			var err error
			l.Period, err = calendar.ParsePeriod(m.name, day, m.zone)
			require.NoError(t, err)
			l.Window = l.Period.Longest()
		}
		return l
	}
	zone()
	l := newLimit()
	shares := rapid.IntRange(0, 2).Draw(rt, "shares") == 0
	require.NoError(t, l.Check())
	begin := time.Date(2010, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()
	begin += rapid.Int64Range(0, 20*365*dayMilli).Draw(rt, "begin")
	if _, change := time.UnixMilli(begin).In(m.zone).ZoneBounds(); !change.IsZero() && rapid.Bool().Draw(rt, "at a change") {
		begin = change.UnixMilli()
	}
	if rapid.IntRange(0, 3).Draw(rt, "at a turn") > 0 {
		begin = m.end(begin) - rapid.SampledFrom([]int64{1, 1000, 3000, 3_600_000}).Draw(rt, "before")
	}
	var now atomic.Int64
	now.Store(begin)
	aheads := []int64{0, 0, 3000, -3000, 3_600_000, -3_600_000, 40 * dayMilli, -40 * dayMilli, 400 * dayMilli, -400 * dayMilli}
	var processes []*Limiter
	var sent [2]atomic.Int64
	for i := range 2 {
		own := redis.NewClient(client.Options())
		defer own.Close()
		own.AddHook(&trouble{now: now.Load})
		p, ahead := New(own, namespace, time.Minute), rapid.SampledFrom(aheads).Draw(rt, "ahead")
		p.store.scripts = held
		p.now = func() time.Time { return time.UnixMilli(now.Load() + ahead) }
		p.shares.after = func(time.Duration, func()) {}
		processes = append(processes, p)
		if ahead > dayMilli || ahead < -dayMilli {
			seen.Wrong++
		}
		_ = sent[i].Load()
	}
	seen.Schedules++
	key := struct{ number, count int64 }{} // the key's period
	ids := make(map[string]*periodID)
	epoch := 0
	epochs := make(map[string]int)
	var story []string
	stays, since := 0, int64(0) // steps in which no time passes
	latest := int64(0)          // the clock goes back
	for step := range rapid.IntRange(5, 40).Draw(rt, "steps") {
		at := now.Load()
		if stays--; stays >= 0 {
			goto stay
		}
		switch end := m.end(at); rapid.SampledFrom([]string{"", "", "", "second", "minute", "before", "turn", "after", "hours", "back", "edit"}).Draw(rt, "time") {
		case "second":
			at += 1000
		case "minute":
			at += 60_000
		case "before":
			at = end - 1
		case "turn":
			at = end
			seen.Turned++
		case "after":
			at = end + 1500
		case "hours":
			at += rapid.Int64Range(1, 30).Draw(rt, "hours") * 3_600_000
		case "back":
			at -= min(rapid.SampledFrom([]int64{1, 3000, 3_600_000}).Draw(rt, "by"), m.window/2)
		case "edit": // the zone; the number stays, or is another one's
			if (m.name == calendar.Today || m.name == calendar.Month || m.name == calendar.Week) && step > 0 && rapid.IntRange(0, 2).Draw(rt, "really") == 0 {
				zone()
				l = newLimit()
			}
		}
	stay:
		at = max(at, since)
		now.Store(at)
		latest = max(latest, at)
		require.NoError(t, setClock(t.Context(), client, hashTag("alice"), at).Err())
		number, end := m.number(at), m.end(at)
		if key.number > number {
			if next := m.number(end); key.number <= next {
				seen.Waited++
				number = key.number
				if key.number == next { // else it began on another day, and ends with the period of now
					end = m.end(end)
				}
			} // else it restarts when it is written
		}
		count := int64(0)
		if key.number == number {
			count = key.count
		}
		p := processes[rapid.IntRange(0, 1).Draw(rt, "process")]
		take := Take{Limit: l, Caller: "alice", Key: "alice", N: rapid.Int64Range(-2, 6).Draw(rt, "n")}
		action := rapid.SampledFrom([]string{"take", "take", "take", "id", "id", "settle", "settle", "settle", "look", "reset", "reset", "share"}).Draw(rt, "action")
		p.refusals.forget(p.key(&take))
		p.fallback.breaker.succeeded()
		store := func(number, n int64) { key.number, key.count = number, n }
		switch action {
		case "reset":
			if rapid.IntRange(0, 3).Draw(rt, "really") == 0 {
				require.NoError(t, p.Reset(t.Context(), take))
				store(0, 0)
				epoch++
				stays = 6
				since = latest + 1 // the stamp of what comes is another
				story = append(story, "reset")
			}
			continue
		case "share": // as the shares decider asks
			if !shares {
				continue
			}
			whole := *l
			whole.Share = Share{Hits: 4, For: time.Second}
			take.N, take.Limit = 4, &whole
			require.NoError(t, whole.Check())
			r := request{takes: []Take{take}, keys: []string{p.key(&take)}, count: true, share: true}
			states, _, err := p.store.run(t.Context(), acquire, r, 0)
			if err != nil {
				return err.Error()
			}
			fits := count+4 <= l.Max && max(at, end-(end-at)) == at && at+1000 < end
			if number == m.number(m.end(at)) && count+4 <= l.Max { // it waits for its period to begin
				fits = m.end(at)+1000 < end
			}
			if count+4 <= l.Max && !fits {
				seen.SharesLate++
			}
			story = append(story, fmt.Sprintf("%s share: %+v", time.UnixMilli(at).In(m.zone), states[0]))
			if states[0].fits != fits {
				return fmt.Sprintf("want a share: %t, in period %d with %d\n%s", fits, number, count, strings.Join(story, "\n"))
			}
			if fits {
				seen.Shares++
				store(number, count+4)
				if rapid.Bool().Draw(rt, "give back") { // possibly after the turn
					if later := rapid.Bool().Draw(rt, "after the turn"); later {
						now.Store(end + 5)
						require.NoError(t, setClock(t.Context(), client, hashTag("alice"), end+5).Err())
						plain := take
						plain.N, plain.Limit = 3, l
						if a, err := p.Take(t.Context(), []Take{plain}); err != nil || !a.Allowed {
							return fmt.Sprintf("after the turn: %+v %v\n%s", a, err, strings.Join(story, "\n"))
						}
						store(m.number(end+5), 3)
						seen.Late++
					} else {
						store(number, count)
					}
					require.NoError(t, p.fallback.remote.takeBack(t.Context(), &take, p.key(&take), 4, states[0].at))
				}
			}
			continue
		case "id", "settle":
			take.ID = fmt.Sprint("id-", rapid.IntRange(1, 3).Draw(rt, "id"))
			take.TTL = time.Hour
		}
		id := ids[take.ID]
		if action == "id" && id != nil {
			action, take.N = "repeat", id.n
		}
		if action == "id" && take.N <= 0 {
			take.N = 1
		}
		ask := p.Take
		switch {
		case action == "look":
			ask = p.Look
		case action == "settle":
			if id == nil {
				continue
			}
			take.N, take.TTL = rapid.SampledFrom([]int64{0, 1, 3, 8, 15}).Draw(rt, "settled"), 0
			ask = p.Settle
		}
		a, err := ask(t.Context(), []Take{take})
		if _, unknown := err.(*IDError); unknown { // an hour has passed
			delete(ids, take.ID)
			continue
		}
		if err != nil {
			return fmt.Sprintf("%v %v\n%s", err, errors.Unwrap(err), strings.Join(story, "\n"))
		}
		d := a.Decisions[0]
		story = append(story, fmt.Sprintf("%s (period %d, key's %d with %d) %s %+d %s: allowed %t, remaining %d, wait %s, turn %s", time.UnixMilli(at).In(m.zone), number, key.number, count, action, take.N, take.ID, a.Allowed, d.Remaining, d.RetryAfter, d.Turn))
		fits := take.N <= 0 || count+take.N <= l.Max
		switch action {
		case "repeat":
			fits = true
			if !d.Repeated { // it was forgotten
				fits = count+take.N <= l.Max
				delete(ids, take.ID)
				action = "id"
			} else {
				seen.Asked++
			}
		case "settle":
			fits = true
			known := epochs[take.ID] == epoch
			if id.settled != take.N {
				if !known || id.extra > 0 && id.later != number { // they stay counted, and only what is more counts now
					id.number, id.base, id.extra = 0, max(id.base, id.settled), 0
				}
				base, before := min(id.base, take.N), max(0, id.settled-id.base)
				if id.number == number {
					count -= min(count, id.base-base)
				} else if known {
					seen.Late++
				}
				id.base, id.settled = base, take.N
				if extra := take.N - base; extra != before {
					if id.later == number {
						count -= min(count, id.extra)
					}
					id.extra, id.later = extra, number
					if extra > 0 {
						epochs[take.ID] = epoch
					}
					count += extra
				}
				if key.number == number || id.extra > 0 && id.later == number {
					store(number, count)
				}
				seen.Settled++
			}
		}
		if fits && (action == "take" || action == "id") {
			if take.N > 0 || count > 0 {
				count = max(0, count+take.N)
				store(number, count)
			}
			seen.Allowed++
			if action == "id" {
				ids[take.ID] = &periodID{n: take.N, number: number, base: take.N, settled: -1}
				epochs[take.ID] = epoch
			}
		}
		if !fits {
			seen.Refused++
			if action == "id" {
				delete(ids, take.ID)
			}
		}
		wait := time.Duration(0)
		if !fits {
			wait = time.Duration(end-at) * time.Millisecond
		}
		if a.Allowed != fits || d.Remaining != max(0, l.Max-count) || !d.Certain && d.Settled == nil || d.RetryAfter != wait || d.Turn != time.Duration(end-at)*time.Millisecond {
			return fmt.Sprintf("want allowed %t, remaining %d, wait %s, turn %d ms\n%s", fits, max(0, l.Max-count), wait, end-at, strings.Join(story, "\n"))
		}
	}
	return ""
}
