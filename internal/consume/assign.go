package consume

import (
	"maps"
	"slices"
)

// assign gives each stream to one of the workers that may read it; a stream that
// none may read is left out.
//
// It starts from the assignment before and moves as little as a balance allows.
// Where every worker may read every stream: no worker has two streams more than
// another; when a worker joins, only streams that go to it move, and at most one
// in as many as there are workers then; when one leaves, only its own move.
//
// A rendezvous hash needs no memory and keeps neither bound: docs/design.md has figures.
func assign(before map[string]string, workers map[string]Globs, streams []string) map[string]string {
	streams = slices.Compact(slices.Sorted(slices.Values(streams)))
	names := slices.Sorted(maps.Keys(workers))
	has := make(map[string][]string, len(names)) // streams by worker
	var free []string
	for _, stream := range streams {
		if owner, ok := before[stream]; ok && workers[owner].match(stream) {
			has[owner] = append(has[owner], stream)
		} else {
			free = append(free, stream)
		}
	}
	for _, stream := range free {
		to := ""
		for _, name := range names {
			if workers[name].match(stream) && (to == "" || len(has[name]) < len(has[to])) {
				to = name
			}
		}
		if to != "" {
			has[to] = append(has[to], stream)
		}
	}
	for level(names, workers, has) {
	}
	out := make(map[string]string, len(streams))
	for _, name := range names {
		for _, stream := range has[name] {
			out[stream] = name
		}
	}
	return out
}

// level moves one stream from a worker to another that has at least two fewer,
// the widest difference first; false where there is none to move.
func level(names []string, workers map[string]Globs, has map[string][]string) bool {
	byLoad := slices.SortedStableFunc(slices.Values(names), func(a, b string) int { return len(has[a]) - len(has[b]) })
	for _, to := range byLoad {
		for _, from := range slices.Backward(byLoad) {
			if len(has[from]) < len(has[to])+2 {
				break
			}
			// The last it got: the longer it has had one, the more it stays.
			for i, stream := range slices.Backward(has[from]) {
				if workers[to].match(stream) {
					has[from] = slices.Delete(has[from], i, i+1)
					has[to] = append(has[to], stream)
					return true
				}
			}
		}
	}
	return false
}
