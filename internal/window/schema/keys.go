package schema

import (
	"strconv"
	"strings"

	"tallyroll/internal/platform/human"
	"tallyroll/internal/window"
)

// All keys. The shard's number in braces is the hash tag: counts and cursor of a shard share a slot, and so a
// transaction.
//
//	<ns>:layout                                   STRING  the layout record (JSON)
//	<ns>:layout:copy                              STRING  the same again, see Store.RestoreLayout
//	<ns>:streams                                  HASH    field = stream; value: see Listed
//	<ns>:idle                                     HASH    field = stream; value: see Claim; expires
//	<ns>:rules                                    HASH    field = fingerprint; value: the text, see KeepRules
//	<ns>:{<shard>}:cursor:<stream>                HASH    see Cursor
//	<ns>:{<shard>}:erased                         STRING  token of the last erasure, see ParseErasure
//	<ns>:{<shard>}:h:<cell>:<epoch>:<counter>     HASH    field = cell in the epoch, value = count; expires
//	<ns>:{<shard>}:h:<cell>:<epoch>:              HASH    the same of all hits of the shard: window.AllHits
//	<ns>:{<shard>}:s:<epoch>:<counter>            STRING  sparse log: see window.Layout.SparseTier; expires
//	<ns>:{<shard>}:names:<set>                    ZSET    the counters: Layout.NamesTier, Tier.NamesOf; expires
//	<ns>:{<shard>}:top:<cell>:<number>:<stream>   STRING  see summary; number: Tier.SegmentOf; expires
//	<ns>:{<shard>}:unames:<set>                   ZSET    unique tiers' counters: Layout.UniqueNamesOf; expires
//	<ns>:{<shard>}:u:<cell>:<number>:<counter>    STRING  HyperLogLog of a cell; number: Tier.CellAt; expires
//
// All scores are 0. If a namespace's tiers were changed, "h", "s", "names" and "top" have "g<generation>:"
// after the braces. All generations share "u" and "unames", because unique tiers do not change and a
// repeated PFADD changes nothing. Until the change is confirmed, there is also:
//
//	<ns>:{<shard>}:g<generation>:built            STRING  the shard was built

// Keys builds the keys of a namespace.
type Keys struct{ Namespace string }

func (k Keys) Layout() string { return k.Namespace + ":layout" }

func (k Keys) LayoutCopy() string { return k.Namespace + ":layout:copy" }

func (k Keys) Streams() string { return k.Namespace + ":streams" }

func (k Keys) Claims() string { return k.Namespace + ":idle" }

func (k Keys) rules() string { return k.Namespace + ":rules" }

func (k Keys) Cursor(shard int, stream string) string {
	return k.Namespace + ":{" + strconv.Itoa(shard) + "}:cursor:" + stream
}

func (k Keys) Erasure(shard int) string {
	return k.Namespace + ":{" + strconv.Itoa(shard) + "}:erased"
}

// Hash builds a key with a single allocation: a commit or a question needs thousands.
func (k Keys) Hash(h window.CellHash) string {
	out := append(make([]byte, 0, 128), k.Namespace...)
	out = strconv.AppendInt(append(out, ":{"...), int64(h.Shard), 10)
	out = window.AppendGeneration(h.Tier, append(out, "}:"...))
	if h.Tier.Sparse {
		out = append(out, 's')
	} else {
		out = human.AppendDuration(append(out, "h:"...), h.Tier.Cell)
	}
	out = strconv.AppendInt(append(out, ':'), h.Epoch, 10)
	out = append(append(out, ':'), h.Counter...)
	return string(out)
}

func (k Keys) Unique(shard int, t window.Tier, cell int64, counter string) string {
	out := append(make([]byte, 0, 128), k.Namespace...)
	out = strconv.AppendInt(append(out, ":{"...), int64(shard), 10)
	out = human.AppendDuration(append(out, "}:u:"...), t.Cell)
	out = strconv.AppendInt(append(out, ':'), cell, 10)
	out = append(append(out, ':'), counter...)
	return string(out)
}

// Names returns the key of a set of names; t is the coarsest tier.
func (k Keys) Names(shard int, t window.Tier, set int64) string {
	return k.of(shard, t.Generation) + "names:" + strconv.FormatInt(set, 10)
}

func (k Keys) UniqueNames(shard int, set int64) string {
	return k.of(shard, 0) + "unames:" + strconv.FormatInt(set, 10)
}

func (k Keys) Summary(shard int, t window.Tier, number int64, stream string) string {
	return k.of(shard, t.Generation) + "top:" + human.FormatDuration(t.Cell) + ":" + strconv.FormatInt(number, 10) +
		":" + stream
}

// of returns the prefix of the keys of a shard and a generation.
func (k Keys) of(shard, generation int) string {
	return k.Namespace + ":{" + strconv.Itoa(shard) + "}:" +
		string(window.AppendGeneration(window.Tier{Generation: generation}, nil))
}

func (k Keys) Built(shard, generation int) string { return k.of(shard, generation) + "built" }

// ShardKey is a parsed key: <ns>:{<shard>}:[g<generation>:]<kind>[:<rest>]; zero for any other.
type ShardKey struct {
	Shard, Generation int
	Kind, Rest        string
}

func (k Keys) Parse(key string) (out ShardKey) {
	rest, ok := strings.CutPrefix(key, k.Namespace+":{")
	number, rest, found := strings.Cut(rest, "}:")
	var err error
	if out.Shard, err = strconv.Atoi(number); !ok || !found || err != nil {
		return ShardKey{}
	}
	out.Kind, out.Rest, _ = strings.Cut(rest, ":")
	if number, ok := strings.CutPrefix(out.Kind, "g"); ok {
		if out.Generation, err = strconv.Atoi(number); err != nil {
			return ShardKey{}
		}
		out.Kind, out.Rest, _ = strings.Cut(out.Rest, ":")
	}
	return out
}
