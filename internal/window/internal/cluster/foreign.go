package cluster

import (
	"fmt"

	"tallyroll/internal/window"

	"github.com/redis/go-redis/v9"
)

// WrapForeign names the key if its value has another type, and returns any other error unchanged.
func WrapForeign(key string, err error) error {
	if IsAboutValue(err) {
		return &window.ForeignError{Key: key, Err: err}
	}
	return err
}

// IsAboutValue reports whether Redis replied that a value has another type, is a broken HyperLogLog, or has a
// field that should be a count and is none.
func IsAboutValue(err error) bool {
	return redis.HasErrorPrefix(err, "WRONGTYPE") || redis.HasErrorPrefix(err, "INVALIDOBJ") ||
		redis.HasErrorPrefix(err, "hash value is not an integer")
}

// FindFailed returns why a command of an applied transaction failed, or nil. A cell that is saturated (see
// window.Saturated) is no failure.
func FindFailed(command redis.Cmder) error {
	err := command.Err()
	if err == nil || redis.HasErrorPrefix(err, "increment or decrement would overflow") {
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
	if err = fmt.Errorf("%s: %w", command.Name(), err); IsAboutValue(err) {
		return &window.ForeignError{Key: key, Err: err}
	}
	return fmt.Errorf("key %s: %w", key, err) // such as a right that was withdrawn before EXEC
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
