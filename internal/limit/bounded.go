package limit

import "math"

// bounded is a map that stays small: if it is full, an entry has to go for a new one.
type bounded[V any] map[string]V

const (
	// sampled is how many entries are looked at for one that can go. Go's order of a map is random.
	sampled = 8
	// stays is the rank of an entry that cannot go.
	stays = math.MaxInt64
)

// put adds or replaces an entry. If that makes more than most, the one of the lowest rank goes, of a few that
// are chosen at random. If none of them can go, put changes nothing and returns false.
func (b *bounded[V]) put(key string, v V, most int, rank func(V) int64) bool {
	if *b == nil {
		*b = make(bounded[V])
	}
	if _, known := (*b)[key]; !known && len(*b) >= most && !b.evict(rank) {
		return false
	}
	(*b)[key] = v
	return true
}

func (b *bounded[V]) evict(rank func(V) int64) bool {
	seen, lowest, chosen := 0, int64(stays), ""
	for key, v := range *b {
		if r := rank(v); r < lowest {
			lowest, chosen = r, key
		}
		if seen++; seen == sampled {
			break
		}
	}
	if lowest < stays {
		delete(*b, chosen)
	}
	return lowest < stays
}
