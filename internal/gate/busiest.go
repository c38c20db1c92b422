package gate

import (
	"cmp"
	"slices"
	"strings"
)

// busiestKeys is how many keys a sketch holds. A key is at most 512 bytes, so a sketch takes at most some 65 KB.
const busiestKeys = 100

// sketch finds the keys with most decisions in bounded memory: Space-Saving (Metwally, Agrawal, El Abbadi, 2005). A key
// that is not among the 100 takes the place and the count of the one with the fewest, which becomes its error. So a
// count is never too small, and too large by at most its error; errors are at most a hundredth of all decisions.
type sketch struct {
	counts [busiestKeys]uint64 // apart from keys: the search for the fewest reads nothing else
	keys   []sketched
	places map[string]int
}

// sketched is a key with what is known of it beside its count.
type sketched struct {
	key     string
	error   uint64 // of the count
	refused uint64 // since the key is in the sketch
}

func (s *sketch) add(key string, refused bool) {
	place, known := s.places[key]
	if !known {
		place = s.place(key)
	}
	s.counts[place]++
	if refused {
		s.keys[place].refused++
	}
}

// place makes room for a key. It copies the key, which may be a part of a whole request.
func (s *sketch) place(key string) int {
	key = strings.Clone(key)
	place := len(s.keys)
	if place < busiestKeys {
		if s.places == nil {
			s.places = make(map[string]int, busiestKeys)
		}
		s.keys = append(s.keys, sketched{key: key})
	} else {
		place = s.fewest()
		delete(s.places, s.keys[place].key)
		s.keys[place] = sketched{key: key, error: s.counts[place]}
	}
	s.places[key] = place
	return place
}

// fewest is the place of the smallest count.
func (s *sketch) fewest() int {
	out := 0
	for i, n := range &s.counts {
		if n < s.counts[out] {
			out = i
		}
	}
	return out
}

// floor is the most decisions that a key outside the sketch can have had.
func (s *sketch) floor() uint64 {
	if len(s.keys) < busiestKeys {
		return 0
	}
	return s.counts[s.fewest()]
}

// clear forgets all, and keeps the room.
func (s *sketch) clear() {
	s.counts, s.keys = [busiestKeys]uint64{}, s.keys[:0]
	clear(s.places)
}

// busyKey is a key with its decisions.
type busyKey struct {
	Key       string `json:"key" doc:"What the limit's key template has made: hits are kept under it." example:"alice"`
	Decisions uint64 `json:"decisions" doc:"Decisions since busiest_since; at most error too many." example:"42"`
	Refused   uint64 `json:"refused" doc:"How many of them refused, or would have in shadow mode; at most error too few." example:"7"`
	Error     uint64 `json:"error" doc:"By how much the numbers can be wrong; 0 if they are exact." example:"0"`
}

// busiest joins what two sketches know of different times: the keys with most decisions, and the most that any other key
// can have had.
func busiest(before, now *sketch, most int) (out []busyKey, floor uint64) {
	out = []busyKey{}
	for i, k := range now.keys {
		b := busyKey{Key: k.key, Decisions: now.counts[i], Refused: k.refused, Error: k.error}
		if place, known := before.places[k.key]; known {
			earlier := before.keys[place]
			b.Decisions, b.Refused, b.Error = b.Decisions+before.counts[place], b.Refused+earlier.refused, b.Error+earlier.error
		} else {
			b.Decisions, b.Error = b.Decisions+before.floor(), b.Error+before.floor()
		}
		out = append(out, b)
	}
	for i, k := range before.keys {
		if _, known := now.places[k.key]; !known {
			out = append(out, busyKey{Key: k.key, Decisions: before.counts[i] + now.floor(), Refused: k.refused, Error: k.error + now.floor()})
		}
	}
	floor = before.floor() + now.floor()
	slices.SortFunc(out, func(a, b busyKey) int {
		return cmp.Or(cmp.Compare(b.Decisions, a.Decisions), cmp.Compare(b.Refused, a.Refused), cmp.Compare(a.Key, b.Key))
	})
	if len(out) > most {
		floor = max(floor, out[most].Decisions)
		out = out[:most]
	}
	return out, floor
}
