package fleet

import (
	"maps"
	"slices"
)

// assign gives each stream to a worker that may read it, and leaves out streams that none may read.
//
// It starts from the previous assignment and moves as few streams as a balance allows. If every worker may
// read every stream, loads differ by at most one. When a worker joins and there are then n, at most one
// stream in n moves, always to the new one. When a worker leaves, only its own streams move. A rendezvous
// hash needs no memory, but keeps neither bound: docs/design.md has figures.
func assign(before map[string]string, workers map[string]Globs, streams []string) map[string]string {
	streams = slices.Compact(slices.Sorted(slices.Values(streams)))
	names := slices.Sorted(maps.Keys(workers))
	has := make(map[string][]string, len(names)) // streams by worker
	var free []string
	for _, stream := range streams {
		if owner, ok := before[stream]; ok && workers[owner].Match(stream) {
			has[owner] = append(has[owner], stream)
		} else {
			free = append(free, stream)
		}
	}
	for _, stream := range free {
		to := ""
		for _, name := range names {
			if workers[name].Match(stream) && (to == "" || len(has[name]) < len(has[to])) {
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

// level moves one stream to a worker with at least two fewer, widest difference first. It reports whether it
// could.
func level(names []string, workers map[string]Globs, has map[string][]string) bool {
	byLoad := slices.SortedStableFunc(slices.Values(names), func(a, b string) int { return len(has[a]) - len(has[b]) })
	for _, to := range byLoad {
		for _, from := range slices.Backward(byLoad) {
			if len(has[from]) < len(has[to])+2 {
				break
			}
			// The last one assigned moves: the longer a worker has had a stream, the longer it keeps it.
			for i, stream := range slices.Backward(has[from]) {
				if workers[to].Match(stream) {
					has[from] = slices.Delete(has[from], i, i+1)
					has[to] = append(has[to], stream)
					return true
				}
			}
		}
	}
	return false
}
