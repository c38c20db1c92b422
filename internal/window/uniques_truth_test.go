package window_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/unique"
	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// visitLog is who came to a counter when, in the order of time.
type visitLog struct {
	counter  string
	visitors int
	at       []int64 // Unix milliseconds
	who      []int32
}

// logOf draws a month of visits. Most come by day, and some visitors come again and again, soon or days later.
func logOf(counter string, visitors int, now time.Time, random *rand.Rand) visitLog {
	type visit struct {
		at  int64
		who int32
	}
	const day, reach = 24 * 3600_000, 33 * 24 * 3600_000
	var visits []visit
	begin := now.UnixMilli() - reach
	for who := range visitors {
		at := begin + random.Int64N(reach)
		if random.IntN(3) > 0 { // in the twelve hours around noon
			at = at - at%day + day/4 + random.Int64N(day/2)
		}
		for {
			if at < now.UnixMilli() {
				visits = append(visits, visit{at, int32(who)})
			}
			if random.IntN(2) == 0 {
				break
			}
			at += int64(math.Exp(random.Float64()*11+9)) % reach // 8 seconds to days
		}
	}
	slices.SortFunc(visits, func(a, b visit) int { return cmp.Compare(a.at, b.at) })
	out := visitLog{counter: counter, visitors: visitors}
	for _, v := range visits {
		out.at, out.who = append(out.at, v.at), append(out.who, v.who)
	}
	return out
}

// different counts the visitors of a range one by one. seen has a place for each.
func (l *visitLog) different(r window.Range, seen []int32, round int32) (n int64) {
	from, _ := slices.BinarySearch(l.at, r.From)
	for i := from; i < len(l.at) && l.at[i] < r.To; i++ {
		if seen[l.who[i]] != round {
			seen[l.who[i]] = round
			n++
		}
	}
	return n
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
		kept, _ := slices.BinarySearch(l.at, now.Add(-2*tier.Window).UnixMilli()) // cells before have expired long since
		for i := kept; i < len(l.at); {
			cell, args := l.at[i]/tier.Cell.Milliseconds(), []any(nil)
			at := l.at[i]
			for ; i < len(l.at) && l.at[i]/tier.Cell.Milliseconds() == cell && len(args) < 10_000; i++ {
				args = append(args, arguments[l.who[i]])
			}
			pipe.PFAdd(t.Context(), uniqueKey(l.counter, tier, time.UnixMilli(at)), args...)
		}
		require.NoError(t, errOf(pipe.Exec(t.Context())))
	}
}

// truths is how often the truth lay within the bounds, and how far off the estimates were.
type truths struct {
	windows, within, below, above int
	off, wide                     []float64 // |estimate − truth| / truth, and (upper − lower) / truth
}

func (s *truths) add(got window.Estimate, want int64) {
	s.windows++
	switch {
	case want < got.Lower:
		s.below++
	case want > got.Upper:
		s.above++
	default:
		s.within++
	}
	if want > 0 {
		s.off = append(s.off, math.Abs(float64(got.Total-want))/float64(want))
		s.wide = append(s.wide, float64(got.Upper-got.Lower)/float64(want))
	}
}

func (s *truths) String() string {
	middle := func(all []float64) float64 {
		if len(all) == 0 {
			return 0
		}
		return 100 * slices.Sorted(slices.Values(all))[len(all)/2]
	}
	return fmt.Sprintf("%d windows: %.1f %% within the bounds (%d below, %d above); in the middle, the estimate was off by %.2f %%, and the bounds were %.1f %% wide",
		s.windows, 100*float64(s.within)/float64(max(1, s.windows)), s.below, s.above, middle(s.off), middle(s.wide))
}

// The truth lies within the bounds as often as they say, for large counters and for small ones, and for windows that cut no
// cell, too: there only the error of Redis's estimate counts. UNIQUE_VISITORS=1000000 draws a log of that many.
func TestUniquesHoldTheTruth(t *testing.T) {
	t.Parallel()
	visitors, windows := stack.Rounds(10_000, 60_000), stack.Rounds(250, 1000)
	if text := os.Getenv("UNIQUE_VISITORS"); text != "" {
		var err error
		if visitors, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	seed := uint64(1)
	if text := os.Getenv("UNIQUE_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	random := rand.New(rand.NewPCG(seed, 2))
	server := stack.Redis(t)
	r := newRig(t, &backend{client: stack.ProgramClient(t, server.URL())})
	now := time.Date(2026, 11, 24, 10, 32, 17, 0, time.UTC) // that each run draws the same
	r.shardsOf("HITS", cursorAt(1, now))
	var logs []visitLog
	for left, i := visitors, 0; left > 0; i++ { // the first has two fifths of all, the next two fifths of the others
		n := max(1, left*2/5)
		logs = append(logs, logOf(fmt.Sprintf("%d-%d", seed, i), n, now, random))
		logs[i].fill(t, server.Client(), now)
		left -= n
	}
	seen := make([]int32, logs[0].visitors)
	round := int32(0)
	ask := func(l *visitLog, span window.Span) (window.Estimate, int64) {
		found, err := r.uniques(now, window.Question{Counter: l.counter, Span: span})
		require.NoError(t, err)
		round++
		return found.Answers[0].Estimate, l.different(found.Answers[0].Range, seen, round)
	}
	var rolling, whole, small truths
	for i := range windows {
		l := &logs[i%len(logs)]
		if i%2 == 0 {
			l = &logs[i/2%5] // those that most ask about
		}
		clear(seen)
		round = 0
		length := time.Duration(math.Exp(random.Float64()*math.Log(float64(32*24*3600)/60))*60) * time.Second // a minute to 32 days
		end := now
		if i%4 == 3 {
			end = now.Add(-time.Duration(random.Int64N(int64(max(1, min(length, 32*24*time.Hour-length))))))
		}
		got, want := ask(l, window.Between(end.Add(-length).UnixMilli(), end.UnixMilli()))
		rolling.add(got, want)
		if want <= 100 {
			small.add(got, want)
		}
		// Whole days of the past, or whole hours.
		tier := layout.UniqueTiers[2-i%2]
		last, cells := now.Truncate(tier.Cell), int64(tier.Window/tier.Cell)-1
		from := last.Add(-tier.Cell * time.Duration(1+random.Int64N(cells)))
		to := from.Add(tier.Cell * time.Duration(1+random.Int64N(int64(last.Sub(from)/tier.Cell))))
		got, want = ask(l, window.Between(from.UnixMilli(), to.UnixMilli()))
		whole.add(got, want)
	}
	t.Logf("%d visitors of %d counters\nrolling: %s\nwhole cells: %s\nup to 100 visitors: %s", visitors, len(logs), &rolling, &whole, &small)
	for name, s := range map[string]*truths{"rolling": &rolling, "whole cells": &whole, "up to 100 visitors": &small} {
		if s.windows < 50 || float64(s.within) < window.UniqueConfidence*float64(s.windows) {
			t.Errorf("%s: %s", name, s)
		}
	}
}
