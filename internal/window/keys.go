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
//	<ns>:{<shard>}:cursor:<stream>                HASH    see Cursor
//	<ns>:{<shard>}:h:<cell>:<epoch>:<counter>     HASH    field = cell in the epoch, value = count; expires
//	<ns>:{<shard>}:names:<epoch>                  ZSET    the counters of that epoch of the coarsest tier, all of score 0; expires
//	<ns>:{<shard>}:top:<cell>:<number>:<stream>   STRING  see summary; number = ⌊t / cell⌋; expires

var namespacePattern = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// CheckNamespace refuses what would not be safe as the first part of a key.
func CheckNamespace(ns string) error {
	if !namespacePattern.MatchString(ns) {
		return fmt.Errorf("1 to 64 letters, digits, underscores, hyphens and dots")
	}
	return nil
}

type keys struct{ namespace string }

func (k keys) layout() string  { return k.namespace + ":layout" }
func (k keys) streams() string { return k.namespace + ":streams" }

func (k keys) cursor(shard int, stream string) string {
	return k.namespace + ":{" + strconv.Itoa(shard) + "}:cursor:" + stream
}

// cellsPrefix is the part of a hash's name before the counter.
func (k keys) cellsPrefix(shard int, t Tier, epoch int64) string {
	return k.namespace + ":{" + strconv.Itoa(shard) + "}:h:" + FormatDuration(t.Cell) + ":" + strconv.FormatInt(epoch, 10) + ":"
}

func (k keys) names(shard int, epoch int64) string {
	return k.namespace + ":{" + strconv.Itoa(shard) + "}:names:" + strconv.FormatInt(epoch, 10)
}

func (k keys) summary(shard int, t Tier, cell int64, stream string) string {
	return k.namespace + ":{" + strconv.Itoa(shard) + "}:top:" + FormatDuration(t.Cell) + ":" + strconv.FormatInt(cell, 10) + ":" + stream
}
