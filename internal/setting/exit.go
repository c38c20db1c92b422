package setting

import (
	"errors"
	"fmt"
)

// Exit codes of the programs.
const (
	ExitOK      = 0
	ExitFailure = 1   // it could not go on
	ExitUsage   = 2   // a bad setting or flag, or a namespace that was made with other settings
	ExitAtOnce  = 130 // a second signal did not let it finish
)

// UsageError marks an error that starting the program differently can fix. The program exits with ExitUsage.
type UsageError struct{ Err error }

func (e UsageError) Error() string { return e.Err.Error() }

func (e UsageError) Unwrap() error { return e.Err }

// BadUsage returns a UsageError with this text.
func BadUsage(format string, args ...any) error {
	return UsageError{Err: fmt.Errorf(format, args...)}
}

// ExitCode returns the exit code of a program that ends with an error, or nil.
func ExitCode(err error) int {
	var setting *Error
	var usage UsageError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &setting), errors.As(err, &usage):
		return ExitUsage
	}
	return ExitFailure
}
