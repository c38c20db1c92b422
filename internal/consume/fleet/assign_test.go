package fleet

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func streamNames(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("HITS_%d", i))
	}
	return out
}

// moved is how many streams have another worker than before, or none.
func moved(before, after map[string]string) (n int) {
	for stream, owner := range before {
		if after[stream] != owner {
			n++
		}
	}
	return n
}

// loads are how many streams each worker has.
func loads(assigned map[string]string, workers map[string]Globs) map[string]int {
	out := make(map[string]int)
	for name := range workers {
		out[name] = 0
	}
	for _, owner := range assigned {
		out[owner]++
	}
	return out
}

func spread(assigned map[string]string, workers map[string]Globs) int {
	l := slices.Sorted(maps.Values(loads(assigned, workers)))
	return l[len(l)-1] - l[0]
}

// Through any sequence of joins, leaves, and streams that come and go: every
// stream has one worker, loads differ by one at most, and no more moves than has to.
func TestAssignMovesNoMoreStreamsThanItMust(t *testing.T) {
	t.Parallel()
	all := Globs{"*"}
	rapid.Check(t, func(t *rapid.T) {
		streams := streamNames(rapid.IntRange(0, 40).Draw(t, "streams"))
		workers := map[string]Globs{"w0": all}
		now := assign(nil, workers, streams)
		next := len(streams)
		for i := range rapid.IntRange(1, 30).Draw(t, "changes") {
			before, had := now, len(workers)
			what := rapid.SampledFrom([]string{"join", "leave", "stream made", "stream gone", "none"}).Draw(t, "change")
			leaver, limit := "", 0
			switch what {
			case "join":
				workers[fmt.Sprintf("w%d", i+1)] = all
				limit = len(streams) / (had + 1)
			case "leave":
				if had == 1 {
					continue
				}
				leaver = rapid.SampledFrom(slices.Sorted(maps.Keys(workers))).Draw(t, "leaver")
				delete(workers, leaver)
				limit = (len(streams) + had - 1) / had
			case "stream made":
				streams = append(streams, fmt.Sprintf("HITS_%d", next))
				next++
			case "stream gone":
				if len(streams) == 0 {
					continue
				}
				gone := rapid.IntRange(0, len(streams)-1).Draw(t, "gone")
				before = maps.Clone(before)
				delete(before, streams[gone])
				streams = slices.Delete(slices.Clone(streams), gone, gone+1)
				limit = 1
			}
			now = assign(before, workers, streams)
			if len(now) != len(streams) {
				t.Fatalf("%s: %d of %d streams are assigned", what, len(now), len(streams))
			}
			if s := spread(now, workers); s > 1 {
				t.Fatalf("%s: loads differ by %d: %v", what, s, loads(now, workers))
			}
			if n := moved(before, now); n > limit {
				t.Fatalf("%s: %d of %d streams move among %d workers, want at most %d", what, n, len(streams), len(workers), limit)
			}
			for stream, owner := range before {
				switch {
				case now[stream] == owner:
				case what == "join" && now[stream] != fmt.Sprintf("w%d", i+1):
					t.Fatalf("%s moves from %s to %s when another joins", stream, owner, now[stream])
				case what == "leave" && owner != leaver:
					t.Fatalf("%s moves from %s when %s leaves", stream, owner, leaver)
				}
			}
		}
	})
}

// Workers that may read different streams get none of the others'.
func TestAssignGivesAWorkerOnlyStreamsThatItMayRead(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		globs := []Globs{{"A*"}, {"B*"}, {"*"}, {"A*", "C*"}}
		workers := map[string]Globs{}
		for i := range rapid.IntRange(1, 6).Draw(t, "workers") {
			workers[fmt.Sprint(i)] = rapid.SampledFrom(globs).Draw(t, "globs")
		}
		var streams []string
		for i := range rapid.IntRange(0, 20).Draw(t, "streams") {
			streams = append(streams, rapid.SampledFrom([]string{"A", "B", "C"}).Draw(t, "kind")+fmt.Sprint(i))
		}
		before := map[string]string{}
		for _, s := range streams {
			before[s] = rapid.SampledFrom([]string{"0", "1", "gone"}).Draw(t, "before")
		}
		got := assign(before, workers, streams)
		for _, s := range streams {
			readable := false
			for _, g := range workers {
				readable = readable || g.Match(s)
			}
			owner, ok := got[s]
			if ok != readable || ok && !workers[owner].Match(s) {
				t.Fatalf("%s goes to %q (%v), readable %v", s, owner, ok, readable)
			}
		}
		if again := assign(got, workers, streams); !maps.Equal(again, got) {
			t.Fatalf("assigned again, it changes: %v, %v", got, again)
		}
	})
}

func TestAssignSharesEvenlyAsFleetsGrowAndShrink(t *testing.T) {
	t.Parallel()
	workers := map[string]Globs{"a": {"*"}}
	streams := streamNames(8)
	now := assign(nil, workers, streams)
	for _, step := range []struct {
		join, leave string
		moves       int
	}{{join: "b", moves: 4}, {join: "c", moves: 2}, {join: "d", moves: 2}, {leave: "a", moves: 2}, {leave: "c", moves: 3}} {
		if step.join != "" {
			workers[step.join] = Globs{"*"}
		}
		delete(workers, step.leave)
		before := now
		if now = assign(before, workers, streams); moved(before, now) != step.moves {
			t.Errorf("%+v: %d streams move: %v", step, moved(before, now), now)
		}
	}
	if len(assign(now, nil, streams)) != 0 {
		t.Error("without workers, streams are assigned")
	}
}
