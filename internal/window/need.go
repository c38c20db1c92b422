package window

// keySet is a set of keys in the order in which they were added.
type keySet struct {
	keys []string
	at   map[string]int // index in keys
}

// add returns the index of a key, and whether it is new.
func (s *keySet) add(key string) (index int, added bool) {
	if i, ok := s.at[key]; ok {
		return i, false
	}
	if s.at == nil {
		s.at = make(map[string]int)
	}
	s.at[key] = len(s.keys)
	s.keys = append(s.keys, key)
	return len(s.keys) - 1, true
}

func (s *keySet) addAll(keys []string) {
	for _, key := range keys {
		s.add(key)
	}
}

// wanted are the keys that a question reads, beside the layout record and the list of streams.
type wanted struct {
	cursors, hashes keySet
	sums            keySet // hashes of which the sum will do
}

// size is how many hashes are read.
func (w *wanted) size() int { return len(w.hashes.keys) + len(w.sums.keys) }

// need is what plans need of Redis, and how they find it again.
type need struct {
	wanted
	shards []int // that the plans are about, in the order of the cursors
	at     []int // for each hash of each plan, in the order of Plan.hashes: its index among the hashes, or ^index among the sums
	room   int64 // how many cells the hashes can hold
}

func needOf(k keys, dir *directory, plans []Plan) (out need) {
	asked := make([]bool, dir.layout.Shards)
	for i := range plans {
		p := &plans[i]
		if !asked[p.shard] {
			asked[p.shard] = true
			out.shards = append(out.shards, p.shard)
			for _, stream := range dir.streams {
				out.cursors.add(k.cursor(p.shard, stream))
			}
		}
		for h := range p.hashes {
			set := &out.hashes
			if h.sum {
				set = &out.sums
			}
			index, added := set.add(k.hash(h))
			if added {
				out.room += h.tier.cellsPerEpoch()
			}
			if h.sum {
				index = ^index
			}
			out.at = append(out.at, index)
		}
	}
	return out
}
