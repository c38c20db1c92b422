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

// IsAboutValue reports whether Redis replied that a value has another type, or is a broken HyperLogLog.
func IsAboutValue(err error) bool {
	return redis.HasErrorPrefix(err, "WRONGTYPE") || redis.HasErrorPrefix(err, "INVALIDOBJ")
}

// FindForeign returns why a command of an applied transaction failed (always its key's value), or nil.
func FindForeign(command redis.Cmder) *window.ForeignError {
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
	return &window.ForeignError{Key: key, Err: fmt.Errorf("%s: %w", command.Name(), command.Err())}
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
