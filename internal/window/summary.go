package window

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Summary finds the counters with most hits in bounded memory. It lists at most size counters. Of n hits in
// all it promises:
//
//  1. A listed counter has at most its count of hits, and at least count - floor.
//  2. A counter that is not listed has at most floor.
//  3. floor is at most n / size.
//
// A counter that is listed for the first time may have had floor hits before, so that is added to its count.
// These are the counts of Space-Saving (A. Metwally, D. Agrawal and A. El Abbadi, "Efficient Computation of
// Frequent and Top-k Elements in Data Streams", ICDT 2005). Less the floor they are those of Misra-Gries. So
// a whole batch is merged at once, as P. K. Agarwal, G. Cormode, Z. Huang, J. M. Phillips, Z. Wei and K. Yi
// merge these: "Mergeable Summaries", PODS 2012.
//
// The proof. Let g be count - floor of a listed counter, and 0 of any other. Then 1 and 2 say that g ≤ hits ≤
// g + floor for every counter.
//
// Merging adds the batch's hits to g, as both hits and bounds require. If more than size counters then have a
// count, the smallest are dropped. Let d be the largest g among them. floor grows by d, to the largest count
// that is dropped. The counts that are kept stay as they are, so their g shrinks by d. A counter that is
// dropped had at most d, which the floor now covers. So g has grown for no counter, g + floor has shrunk for
// none, and 1 and 2 hold.
//
// For 3, size·floor + Σg ≤ n. At first all of these are 0. Merging adds the batch's hits to Σg and to n.
// Dropping takes d from each of the size counters that are kept, and from the one that had d. It adds size·d
// to size·floor. So the sum shrinks by d.
//
// Σcount may exceed n while a batch is merged, because each new counter brings the floor with it. Nothing
// depends on that.
type Summary struct {
	Floor  int64
	Listed []Listing
}

// Listing is a counter with its hits in a batch, or with their bound from above in a summary.
type Listing struct {
	Name  string
	Count int64
}

var errListedTwice = errors.New("lists a counter twice")

// Merge adds the hits of a batch, which names each counter once, and keeps the size largest counts.
func (s *Summary) Merge(batch []Listing, size int) error {
	at := make(map[string]int, len(s.Listed))
	for i, l := range s.Listed {
		at[l.Name] = i
	}
	if len(at) < len(s.Listed) {
		return errListedTwice
	}
	s.Listed = slices.Grow(s.Listed, len(batch))
	for _, b := range batch {
		if i, ok := at[b.Name]; ok {
			s.Listed[i].Count = AddCounts(s.Listed[i].Count, b.Count)
		} else {
			s.Listed = append(s.Listed, Listing{b.Name, AddCounts(s.Floor, b.Count)})
		}
	}
	if len(s.Listed) > size {
		s.keep(size)
	}
	return nil
}

// keep drops all but the size largest counts. There must be more.
func (s *Summary) keep(size int) {
	counts := make([]int64, len(s.Listed)) // numbers sort several times faster than the entries
	for i, l := range s.Listed {
		counts[i] = l.Count
	}
	slices.Sort(counts)
	s.Floor = counts[len(counts)-size-1]
	ties := 0 // how many counters are kept with the same count as the largest one dropped
	for _, n := range counts[len(counts)-size:] {
		if n == s.Floor {
			ties++
		}
	}
	s.Listed = slices.DeleteFunc(s.Listed, func(l Listing) bool {
		if l.Count == s.Floor {
			ties--
		}
		return l.Count < s.Floor || l.Count == s.Floor && ties < 0
	})
}

// AddWhole lists a counter with all of its hits. Call it once per counter, so that a count needs no floor.
func (s *Summary) AddWhole(name string, n int64, size int) {
	s.Listed = append(s.Listed, Listing{name, n})
	if len(s.Listed) >= 2*size {
		s.KeepLargest(size)
	}
}

// KeepLargest is keep for whole counts.
func (s *Summary) KeepLargest(size int) {
	if len(s.Listed) > size {
		floor := s.Floor
		s.keep(size)
		s.Floor = max(floor, s.Floor)
	}
}

// Remove removes counters that no longer have hits, and reports whether it listed any. 1 and 2 still hold,
// because later hits of a removed counter are added to the floor. In 3, n still includes the removed hits.
func (s *Summary) Remove(gone map[string]bool) bool {
	before := len(s.Listed)
	s.Listed = slices.DeleteFunc(s.Listed, func(l Listing) bool { return gone[l.Name] })
	return len(s.Listed) < before
}

func (s *Summary) ListsAny(counters map[string]bool) bool {
	return slices.ContainsFunc(s.Listed, func(l Listing) bool { return counters[l.Name] })
}

// summaryVersion is the first byte of a summary in Redis. The floor follows, then for each listed counter the
// length of its name, the name, and its count. All numbers are unsigned varints.
const summaryVersion = 1

func (s *Summary) Encode() string {
	size := 1 + binary.MaxVarintLen64
	for _, e := range s.Listed {
		size += len(e.Name) + 2 + 5 // enough for most entries
	}
	out := append(make([]byte, 0, size), summaryVersion)
	out = binary.AppendUvarint(out, uint64(s.Floor))
	for _, e := range s.Listed {
		out = binary.AppendUvarint(out, uint64(len(e.Name)))
		out = append(out, e.Name...)
		out = binary.AppendUvarint(out, uint64(e.Count))
	}
	return string(out)
}

var errSummaryEnds = errors.New("ends early")

// ParseSummary parses what encode wrote. The names share the text's memory.
func ParseSummary(text string) (s Summary, err error) {
	if text == "" {
		return Summary{}, errSummaryEnds
	}
	if text[0] != summaryVersion {
		return Summary{}, fmt.Errorf("has version %d, and this program reads version %d", text[0], summaryVersion)
	}
	s.Floor, text, err = takeCount(text[1:])
	for err == nil && text != "" {
		var l Listing
		if l, text, err = takeListing(text); err == nil {
			s.Listed = append(s.Listed, l)
		}
	}
	if err != nil {
		return Summary{}, err
	}
	return s, nil
}

func takeListing(text string) (l Listing, rest string, err error) {
	length, text, err := takeCount(text)
	if err != nil {
		return Listing{}, "", err
	}
	if length > int64(len(text)) {
		return Listing{}, "", errSummaryEnds
	}
	l.Name = text[:length]
	l.Count, rest, err = takeCount(text[length:])
	return l, rest, err
}

// maxCountBytes is the length of the largest int64 as a varint.
const maxCountBytes = 9

func takeCount(text string) (n int64, rest string, err error) {
	for i := range min(len(text), maxCountBytes) {
		n |= int64(text[i]&0x7f) << (7 * i)
		if text[i] < 0x80 {
			return n, text[i+1:], nil
		}
	}
	if len(text) < maxCountBytes {
		return 0, "", errSummaryEnds
	}
	return 0, "", errors.New("has a number that is not a count")
}
