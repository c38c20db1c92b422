package window

import (
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"
)

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
