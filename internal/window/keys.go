package window

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"

	"github.com/redis/go-redis/v9"
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

// ForeignError names a key of the namespace that another program has written to: it has a
// value of another type, or one that this program cannot read. Waiting does not mend this. A
// person has to look at the key.
type ForeignError struct {
	Key string
	Err error
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("key %s is not Tallyroll's: %v: something else writes to this namespace; move or delete that key", e.Key, e.Err)
}

func (e *ForeignError) Unwrap() error { return e.Err }

// foreign names the key if Redis says that its value is of another type, and
// returns every other error as it is.
func foreign(key string, err error) error {
	if redis.HasErrorPrefix(err, "WRONGTYPE") {
		return &ForeignError{Key: key, Err: err}
	}
	return err
}

// IsForeign reports whether an error is a *ForeignError.
func IsForeign(err error) bool {
	var f *ForeignError
	return errors.As(err, &f)
}

// foreignCommand returns why a command of an applied transaction has failed, or nil if it
// has not. Such an error is always about the value of the command's key.
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

// foreignReply returns the error of a pipeline, and names the key if Redis says that
// its value is of another type. The first argument of each command is its key.
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
