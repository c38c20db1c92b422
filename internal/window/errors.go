package window

//lint:file-ignore ST1005 Redis is a name

import (
	"errors"
	"fmt"
)

// ForeignError names a key that another program has written to: its value has another type, or cannot be
// parsed. Waiting does not repair this: an operator has to inspect the key.
type ForeignError struct {
	Key string
	Err error
}

func (e *ForeignError) Error() string {
	return fmt.Sprintf("key %s is not Tallyroll's: %v: something else writes to this namespace; move or delete "+
		"that key", e.Key, e.Err)
}

func (e *ForeignError) Unwrap() error { return e.Err }

// IsForeign reports whether an error is a *ForeignError.
func IsForeign(err error) bool {
	var f *ForeignError
	return errors.As(err, &f)
}

// ErrBare means that Redis refused MULTI, although it had just run an empty transaction on the same
// connection, and ran what followed MULTI on its own: any part of it, maybe later.
var ErrBare = errors.New("Redis refused MULTI, and ran commands of a transaction without it")

// EvictionError means that Redis may evict keys: without a cursor hits count again, and counts vanish.
type EvictionError struct {
	Server string // its name, for messages
	Policy string
}

func (e *EvictionError) Error() string {
	return fmt.Sprintf("%s has maxmemory-policy %s: it may throw away cursors and counts when its memory is full, and "+
		"totals would be wrong without warning: set noeviction, or INGEST_ALLOW_EVICTION=true to accept that risk",
		e.Server, e.Policy)
}
