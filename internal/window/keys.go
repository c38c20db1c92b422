package window

import (
	"fmt"
	"regexp"
	"strconv"
)

// The names of all keys. The shard's number in braces is the hash tag: counts
// and cursor of a shard share a slot, and with it a transaction.
//
//	<ns>:layout                                   STRING  the layout record (JSON)
//	<ns>:streams                                  HASH    field = stream; value: see Listed
//	<ns>:idle                                     HASH    field = stream; value: see Claim; expires
//	<ns>:rules                                    HASH    field = fingerprint; value: the text, see KeepRules
//	<ns>:{<shard>}:cursor:<stream>                HASH    see Cursor
//	<ns>:{<shard>}:h:<cell>:<epoch>:<counter>     HASH    field = cell in the epoch, value = count; expires
//	<ns>:{<shard>}:names:<set>                    ZSET    the coarsest tier's counters, all of score 0; see Tier.namesOf; expires
//	<ns>:{<shard>}:top:<cell>:<number>:<stream>   STRING  see summary; number: Tier.segmentOf; expires

var namespacePattern = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// CheckNamespace refuses a name that would not be safe as the first part of a key.
func CheckNamespace(ns string) error {
	if !namespacePattern.MatchString(ns) {
		return fmt.Errorf("1 to 64 letters, digits, underscores, hyphens and dots")
	}
	return nil
}

type keys struct{ namespace string }

func (k keys) layout() string  { return k.namespace + ":layout" }
func (k keys) streams() string { return k.namespace + ":streams" }
func (k keys) idle() string    { return k.namespace + ":idle" }
func (k keys) rules() string   { return k.namespace + ":rules" }

func (k keys) cursor(shard int, stream string) string {
	return k.namespace + ":{" + strconv.Itoa(shard) + "}:cursor:" + stream
}

// hash makes a key with a single allocation: a commit or a question needs thousands.
func (k keys) hash(h cellHash) string {
	out := append(make([]byte, 0, 128), k.namespace...)
	out = strconv.AppendInt(append(out, ":{"...), int64(h.shard), 10)
	out = appendDuration(append(out, "}:h:"...), h.tier.Cell)
	out = strconv.AppendInt(append(out, ':'), h.epoch, 10)
	out = append(append(out, ':'), h.counter...)
	return string(out)
}

func (k keys) names(shard int, set int64) string {
	return k.namespace + ":{" + strconv.Itoa(shard) + "}:names:" + strconv.FormatInt(set, 10)
}

func (k keys) summary(shard int, t Tier, number int64, stream string) string {
	return k.namespace + ":{" + strconv.Itoa(shard) + "}:top:" + FormatDuration(t.Cell) + ":" + strconv.FormatInt(number, 10) + ":" + stream
}
