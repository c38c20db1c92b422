package cluster

import (
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

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

// WrapForeignReply returns the error of a pipeline, and names the key if its value has another type. The
// first argument of each command is its key.
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
