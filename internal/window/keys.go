package window

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
)

// All keys. The shard's number in braces is the hash tag: counts and cursor of a shard share a slot, and so a
// transaction.
//
//	<ns>:layout                                   STRING  the layout record (JSON)
//	<ns>:streams                                  HASH    field = stream; value: see Listed
//	<ns>:idle                                     HASH    field = stream; value: see Claim; expires
//	<ns>:rules                                    HASH    field = fingerprint; value: the text, see KeepRules
//	<ns>:{<shard>}:cursor:<stream>                HASH    see Cursor
//	<ns>:{<shard>}:erased                         STRING  token of the last erasure, see ParseErasure
//	<ns>:{<shard>}:h:<cell>:<epoch>:<counter>     HASH    field = cell in the epoch, value = count; expires
//	<ns>:{<shard>}:names:<set>                    ZSET    the coarsest tier's counters, all of score 0; see Tier.NamesOf; expires
//	<ns>:{<shard>}:top:<cell>:<number>:<stream>   STRING  see summary; number: Tier.SegmentOf; expires
//	<ns>:{<shard>}:unames:<set>                   ZSET    counters with unique values, all of score 0; see Layout.UniqueNamesOf; expires
//	<ns>:{<shard>}:u:<cell>:<number>:<counter>    STRING  HyperLogLog of a cell of a unique tier; number: Tier.CellAt; expires
//
// If a namespace's tiers were changed, "h", "names" and "top" have "g<generation>:" after the braces. All
// generations share "u" and "unames", because unique tiers do not change and a repeated PFADD changes
// nothing. Until the change is confirmed, there is also:
//
//	<ns>:{<shard>}:g<generation>:built            STRING  the shard was built

var namespacePattern = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)

// CheckNamespace returns an error for a name that is not safe as the first part of a key.
func CheckNamespace(ns string) error {
	if !namespacePattern.MatchString(ns) {
		return fmt.Errorf("1 to 64 letters, digits, underscores, hyphens and dots")
	}
	return nil
}

type Keys struct{ Namespace string }

func (k Keys) Layout() string  { return k.Namespace + ":layout" }
func (k Keys) Streams() string { return k.Namespace + ":streams" }
func (k Keys) Claims() string  { return k.Namespace + ":idle" }
func (k Keys) rules() string   { return k.Namespace + ":rules" }

func (k Keys) Cursor(shard int, stream string) string {
	return k.Namespace + ":{" + strconv.Itoa(shard) + "}:cursor:" + stream
}

func (k Keys) Erasure(shard int) string {
	return k.Namespace + ":{" + strconv.Itoa(shard) + "}:erased"
}

// Hash builds a key with a single allocation: a commit or a question needs thousands.
func (k Keys) Hash(h CellHash) string {
	out := append(make([]byte, 0, 128), k.Namespace...)
	out = strconv.AppendInt(append(out, ":{"...), int64(h.Shard), 10)
	out = append(h.Tier.AppendGeneration(append(out, "}:"...)), "h:"...)
	out = AppendDuration(out, h.Tier.Cell)
	out = strconv.AppendInt(append(out, ':'), h.Epoch, 10)
	out = append(append(out, ':'), h.Counter...)
	return string(out)
}

func (k Keys) Unique(shard int, t Tier, cell int64, counter string) string {
	out := append(make([]byte, 0, 128), k.Namespace...)
	out = strconv.AppendInt(append(out, ":{"...), int64(shard), 10)
	out = AppendDuration(append(out, "}:u:"...), t.Cell)
	out = strconv.AppendInt(append(out, ':'), cell, 10)
	out = append(append(out, ':'), counter...)
	return string(out)
}

// Names returns the key of a set of names; t is the coarsest tier.
func (k Keys) Names(shard int, t Tier, set int64) string {
	return k.of(shard, t.Generation) + "names:" + strconv.FormatInt(set, 10)
}

func (k Keys) UniqueNames(shard int, set int64) string {
	return k.of(shard, 0) + "unames:" + strconv.FormatInt(set, 10)
}

func (k Keys) Summary(shard int, t Tier, number int64, stream string) string {
	return k.of(shard, t.Generation) + "top:" + FormatDuration(t.Cell) + ":" + strconv.FormatInt(number, 10) + ":" + stream
}

// of returns the prefix of the keys of a shard and a generation.
func (k Keys) of(shard, generation int) string {
	return k.Namespace + ":{" + strconv.Itoa(shard) + "}:" + string(Tier{Generation: generation}.AppendGeneration(nil))
}

func (t Tier) AppendGeneration(to []byte) []byte {
	if t.Generation == 0 {
		return to
	}
	return append(strconv.AppendInt(append(to, 'g'), int64(t.Generation), 10), ':')
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

// ForeignError names a key that another program has written to: its value has another type, or cannot be
// parsed. Waiting does not repair this: an operator has to inspect the key.
type ForeignError struct {
	Key string
	Err error
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("key %s is not Tallyroll's: %v: something else writes to this namespace; move or delete that key", e.Key, e.Err)
}

func (e *ForeignError) Unwrap() error { return e.Err }

// WrapForeign names the key if its value has another type, and returns any other error unchanged.
func WrapForeign(key string, err error) error {
	if IsAboutValue(err) {
		return &ForeignError{Key: key, Err: err}
	}
	return err
}

// IsAboutValue reports whether Redis replied that a value has another type, or is a broken HyperLogLog.
func IsAboutValue(err error) bool {
	return redis.HasErrorPrefix(err, "WRONGTYPE") || redis.HasErrorPrefix(err, "INVALIDOBJ")
}

// IsForeign reports whether an error is a *ForeignError.
func IsForeign(err error) bool {
	var f *ForeignError
	return errors.As(err, &f)
}

// FindForeign returns why a command of an applied transaction failed (always its key's value), or nil.
func FindForeign(command redis.Cmder) *ForeignError {
	if command.Err() == nil {
		return nil
	}
	key := ""
	if args := command.Args(); len(args) > 1 {
		switch k := args[1].(type) {
		case string:
			key = k
		case *string: // see commands
			key = *k
		}
	}
	return &ForeignError{Key: key, Err: fmt.Errorf("%s: %w", command.Name(), command.Err())}
}

// WrapForeignReply returns the error of a pipeline, and names the key if its value has another type. The first
// argument of each command is its key.
func WrapForeignReply(cmds []redis.Cmder, err error) error {
	if err == nil {
		return nil
	}
	for _, cmd := range cmds {
		if redis.HasErrorPrefix(cmd.Err(), "WRONGTYPE") {
			return WrapForeign(cmd.Args()[1].(string), cmd.Err())
		}
	}
	return err
}
