package window_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/unique"
	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

type visit struct {
	at  int64 // Unix milliseconds
	who int32
}

// visitLog is who came to a counter when, in the order of time.
type visitLog struct {
	counter  string
	visitors int
	visits   []visit
}

// logOf draws a month of visits. Most come by day, and some visitors come again and again, soon or days
// later.
func logOf(counter string, visitors int, now time.Time, random *rand.Rand) visitLog {
	const day, reach = 24 * 3600_000, 33 * 24 * 3600_000
	out := visitLog{counter: counter, visitors: visitors}
	begin := now.UnixMilli() - reach
	for who := range visitors {
		at := begin + random.Int64N(reach)
		if random.IntN(3) > 0 { // in the twelve hours around noon
			at = at - at%day + day/4 + random.Int64N(day/2)
		}
		for {
			if at < now.UnixMilli() {
				out.visits = append(out.visits, visit{at, int32(who)})
			}
			if random.IntN(2) == 0 {
				break
			}
			at += int64(math.Exp(random.Float64()*11+9)) % reach // 8 seconds to days
		}
	}
	slices.SortFunc(out.visits, func(a, b visit) int { return cmp.Compare(a.at, b.at) })
	return out
}

// from returns the visits from a moment on.
func (l *visitLog) from(at int64) []visit {
	i, _ := slices.BinarySearchFunc(l.visits, at, func(v visit, at int64) int { return cmp.Compare(v.at, at) })
	return l.visits[i:]
}

// different counts the visitors of a range one by one.
func (l *visitLog) different(r window.Range) int64 {
	seen := make(map[int32]bool)
	for _, v := range l.from(r.From) {
		if v.at >= r.To {
			break
		}
		seen[v.who] = true
	}
	return int64(len(seen))
}

// fill writes the cells of a log as a worker does.
func (l *visitLog) fill(t *testing.T, client redis.UniversalClient, now time.Time) {
	t.Helper()
	arguments := make([]any, l.visitors)
	for who := range arguments {
		arguments[who] = unique.Of(fmt.Appendf(nil, "%s-%d", l.counter, who)).Argument()
	}
	for _, tier := range layout.UniqueTiers {
		pipe := client.Pipeline()
		for left := l.from(now.Add(-2 * tier.Window).UnixMilli()); len(left) > 0; { // earlier cells have expired long since
			cell, args := left[0].at/tier.Cell.Milliseconds(), []any(nil)
			key := uniqueKey(l.counter, tier, time.UnixMilli(left[0].at))
			for ; len(left) > 0 && left[0].at/tier.Cell.Milliseconds() == cell && len(args) < 10_000; left = left[1:] {
				args = append(args, arguments[left[0].who])
			}
			pipe.PFAdd(t.Context(), key, args...)
		}
		require.NoError(t, errOf(pipe.Exec(t.Context())))
	}
}

// truths is how often the truth lay within the bounds.
type truths struct{ windows, below, above int }

func (s *truths) add(got window.Estimate, want int64) {
	s.windows++
	if want < got.Lower {
		s.below++
	}
	if want > got.Upper {
		s.above++
	}
}

func (s *truths) within() float64 { return float64(s.windows-s.below-s.above) / float64(s.windows) }

func (s *truths) String() string {
	return fmt.Sprintf("%d windows: %.1f %% within the bounds (%d below, %d above)",
		s.windows, 100*s.within(), s.below, s.above)
}

// The truth lies within the bounds as often as they say, for large counters and for small ones, and for
// windows that cut no cell, too: there only the error of Redis's estimate counts. UNIQUE_VISITORS=1000000
// draws a log of that many.
func TestUniquesHoldTheTruth(t *testing.T) {
	t.Parallel()
	visitors, windows := stack.Rounds(10_000, 60_000), stack.Rounds(250, 1000)
	if text := os.Getenv("UNIQUE_VISITORS"); text != "" {
		require.NoError(t, errOf(fmt.Sscan(text, &visitors)))
	}
	random := rand.New(rand.NewPCG(1, 2))
	r := newRig(t, startServer(t))
	now := time.Date(2026, 11, 24, 10, 32, 17, 0, time.UTC) // that each run draws the same
	r.write("HITS", cursorAt(1, now))
	var logs []visitLog
	for left, i := visitors, 0; left > 0; i++ { // the first has two fifths of all, the next two fifths of the others
		n := max(1, left*2/5)
		logs = append(logs, logOf(fmt.Sprintf("1-%d", i), n, now, random))
		logs[i].fill(t, r.client, now)
		left -= n
	}
	var rolling, whole, small truths
	ask := func(l *visitLog, from, to time.Time, kind *truths) {
		span := window.Between(from.UnixMilli(), to.UnixMilli())
		found, err := r.uniques(now, window.Question{Counter: l.counter, Span: span})
		require.NoError(t, err)
		got, want := found.Answers[0].Estimate, l.different(found.Answers[0].Range)
		kind.add(got, want)
		if kind == &rolling && want <= 100 {
			small.add(got, want)
		}
	}
	for i := range windows {
		l := &logs[i%len(logs)]
		if i%2 == 0 {
			l = &logs[i/2%5] // those that most ask about
		}
		minutes := math.Exp(random.Float64() * math.Log(32*24*60)) // of a minute to 32 days
		length := time.Duration(minutes*60) * time.Second
		end := now
		if i%4 == 3 {
			end = now.Add(-time.Duration(random.Int64N(int64(max(1, min(length, 32*24*time.Hour-length))))))
		}
		ask(l, end.Add(-length), end, &rolling)
		// Whole days of the past, or whole hours.
		tier := layout.UniqueTiers[2-i%2]
		last, cells := now.Truncate(tier.Cell), int64(tier.Window/tier.Cell)-1
		from := last.Add(-tier.Cell * time.Duration(1+random.Int64N(cells)))
		to := from.Add(tier.Cell * time.Duration(1+random.Int64N(int64(last.Sub(from)/tier.Cell))))
		ask(l, from, to, &whole)
	}
	for name, s := range map[string]*truths{"rolling": &rolling, "whole cells": &whole, "up to 100 visitors": &small} {
		t.Logf("%d visitors of %d counters, %s: %s", visitors, len(logs), name, s)
		if s.windows < 50 || s.within() < window.UniqueConfidence {
			t.Error("that is not enough")
		}
	}
}
