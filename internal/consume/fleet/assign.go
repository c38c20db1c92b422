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
func assign(previous map[string]string, workers map[string]Globs, streams []string) map[string]string {
	streams = slices.Compact(slices.Sorted(slices.Values(streams)))
	names := slices.Sorted(maps.Keys(workers))
	streamsOf := make(map[string][]string, len(names)) // streams by worker
	var free []string
	for _, stream := range streams {
		if owner, ok := previous[stream]; ok && workers[owner].Match(stream) {
			streamsOf[owner] = append(streamsOf[owner], stream)
		} else {
			free = append(free, stream)
		}
	}
	for _, stream := range free {
		owner := ""
		for _, name := range names {
			if workers[name].Match(stream) && (owner == "" || len(streamsOf[name]) < len(streamsOf[owner])) {
				owner = name
			}
		}
		if owner != "" {
			streamsOf[owner] = append(streamsOf[owner], stream)
		}
	}
	for balance(names, workers, streamsOf) {
	}
	out := make(map[string]string, len(streams))
	for _, name := range names {
		for _, stream := range streamsOf[name] {
			out[stream] = name
		}
	}
	return out
}

// balance moves one stream to a worker with at least two fewer, widest difference first. It reports whether
// it could.
func balance(names []string, workers map[string]Globs, streamsOf map[string][]string) bool {
	byLoad := slices.SortedStableFunc(slices.Values(names), func(a, b string) int {
		return len(streamsOf[a]) - len(streamsOf[b])
	})
	for _, receiver := range byLoad {
		for _, giver := range slices.Backward(byLoad) {
			if len(streamsOf[giver]) < len(streamsOf[receiver])+2 {
				break
			}
			// The last one assigned moves: the longer a worker has had a stream, the longer it keeps it.
			for i, stream := range slices.Backward(streamsOf[giver]) {
				if workers[receiver].Match(stream) {
					streamsOf[giver] = slices.Delete(streamsOf[giver], i, i+1)
					streamsOf[receiver] = append(streamsOf[receiver], stream)
					return true
				}
			}
		}
	}
	return false
}
