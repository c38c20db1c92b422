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
//	<ns>:{<shard>}:erased                         STRING  token of the last erasure, see lastErasure
//	<ns>:{<shard>}:h:<cell>:<epoch>:<counter>     HASH    field = cell in the epoch, value = count; expires
//	<ns>:{<shard>}:names:<set>                    ZSET    the coarsest tier's counters, all of score 0; see Tier.namesOf; expires
//	<ns>:{<shard>}:top:<cell>:<number>:<stream>   STRING  see summary; number: Tier.segmentOf; expires
//	<ns>:{<shard>}:unames:<set>                   ZSET    counters with unique values, all of score 0; see Layout.uniqueNamesOf; expires
//	<ns>:{<shard>}:u:<cell>:<number>:<counter>    STRING  HyperLogLog of a cell of a unique tier; number: Tier.cellAt; expires
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

type keys struct{ namespace string }

func (k keys) layout() string  { return k.namespace + ":layout" }
func (k keys) streams() string { return k.namespace + ":streams" }
func (k keys) idle() string    { return k.namespace + ":idle" }
func (k keys) rules() string   { return k.namespace + ":rules" }

func (k keys) cursor(shard int, stream string) string {
	return k.namespace + ":{" + strconv.Itoa(shard) + "}:cursor:" + stream
}

func (k keys) erased(shard int) string {
	return k.namespace + ":{" + strconv.Itoa(shard) + "}:erased"
}

// hash builds a key with a single allocation: a commit or a question needs thousands.
func (k keys) hash(h cellHash) string {
	out := append(make([]byte, 0, 128), k.namespace...)
	out = strconv.AppendInt(append(out, ":{"...), int64(h.shard), 10)
	out = append(h.tier.appendGeneration(append(out, "}:"...)), "h:"...)
	out = appendDuration(out, h.tier.Cell)
	out = strconv.AppendInt(append(out, ':'), h.epoch, 10)
	out = append(append(out, ':'), h.counter...)
	return string(out)
}

func (k keys) unique(shard int, t Tier, cell int64, counter string) string {
	out := append(make([]byte, 0, 128), k.namespace...)
	out = strconv.AppendInt(append(out, ":{"...), int64(shard), 10)
	out = appendDuration(append(out, "}:u:"...), t.Cell)
	out = strconv.AppendInt(append(out, ':'), cell, 10)
	out = append(append(out, ':'), counter...)
	return string(out)
}

// names returns the key of a set of names; t is the coarsest tier.
func (k keys) names(shard int, t Tier, set int64) string {
	return k.of(shard, t.generation) + "names:" + strconv.FormatInt(set, 10)
}

func (k keys) uniqueNames(shard int, set int64) string {
	return k.of(shard, 0) + "unames:" + strconv.FormatInt(set, 10)
}

func (k keys) summary(shard int, t Tier, number int64, stream string) string {
	return k.of(shard, t.generation) + "top:" + FormatDuration(t.Cell) + ":" + strconv.FormatInt(number, 10) + ":" + stream
}

// of returns the prefix of the keys of a shard and a generation.
func (k keys) of(shard, generation int) string {
	return k.namespace + ":{" + strconv.Itoa(shard) + "}:" + string(Tier{generation: generation}.appendGeneration(nil))
}

func (t Tier) appendGeneration(to []byte) []byte {
	if t.generation == 0 {
		return to
	}
	return append(strconv.AppendInt(append(to, 'g'), int64(t.generation), 10), ':')
}

func (k keys) built(shard, generation int) string { return k.of(shard, generation) + "built" }

// shardKey is a parsed key: <ns>:{<shard>}:[g<generation>:]<kind>[:<rest>]; zero for any other.
type shardKey struct {
	shard, generation int
	kind, rest        string
}

func (k keys) split(key string) (out shardKey) {
	rest, ok := strings.CutPrefix(key, k.namespace+":{")
	number, rest, found := strings.Cut(rest, "}:")
	var err error
	if out.shard, err = strconv.Atoi(number); !ok || !found || err != nil {
		return shardKey{}
	}
	out.kind, out.rest, _ = strings.Cut(rest, ":")
	if number, ok := strings.CutPrefix(out.kind, "g"); ok {
		if out.generation, err = strconv.Atoi(number); err != nil {
			return shardKey{}
		}
		out.kind, out.rest, _ = strings.Cut(out.rest, ":")
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

// foreign names the key if its value has another type, and returns any other error unchanged.
func foreign(key string, err error) error {
	if isAboutValue(err) {
		return &ForeignError{Key: key, Err: err}
	}
	return err
}

// isAboutValue reports whether Redis replied that a value has another type, or is a broken HyperLogLog.
func isAboutValue(err error) bool {
	return redis.HasErrorPrefix(err, "WRONGTYPE") || redis.HasErrorPrefix(err, "INVALIDOBJ")
}

// IsForeign reports whether an error is a *ForeignError.
func IsForeign(err error) bool {
	var f *ForeignError
	return errors.As(err, &f)
}

// foreignCommand returns why a command of an applied transaction failed (always its key's value), or nil.
func foreignCommand(command redis.Cmder) *ForeignError {
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

// foreignReply returns the error of a pipeline, and names the key if its value has another type. The first
// argument of each command is its key.
func foreignReply(cmds []redis.Cmder, err error) error {
	if err == nil {
		return nil
	}
	for _, cmd := range cmds {
		if redis.HasErrorPrefix(cmd.Err(), "WRONGTYPE") {
			return foreign(cmd.Args()[1].(string), cmd.Err())
		}
	}
	return err
}
