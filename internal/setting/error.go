package setting

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Error means that a setting cannot be used. Its text is one line: variable, value, and what is
// allowed.
type Error struct {
	Key     string // the environment variable
	Value   string // as it was given; empty for secrets
	Allowed string // a phrase: "a duration from 1ms to 1m, such as 250ms"
}

func (e *Error) Error() string {
	if e.Value == "" || isContent(e.Value) {
		return fmt.Sprintf("%s: allowed is %s", e.Key, Conceal(e.Value, e.Allowed))
	}
	return fmt.Sprintf("%s=%q: allowed is %s", e.Key, e.Value, e.Allowed)
}

// Check returns the *Error of a setting that a check has refused with err; nil for nil.
func Check(key, value string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Key: key, Value: value, Allowed: err.Error()}
}

// contents matches what files of secrets hold: an NKey seed, a JWT, PEM, several lines, or tokens in YAML.
var contents = regexp.MustCompile(`^S[A-Z2-7]{40,}$|^eyJ|-----BEGIN|\n|tokens?:|sha256:`)

// isContent reports whether a file's content was given where its name belongs.
func isContent(value string) bool { return contents.MatchString(value) }

// Conceal returns a text about a file, without the name if that is a secret by mistake.
func Conceal(name, text string) string {
	if !isContent(name) {
		return text
	}
	return strings.ReplaceAll(text, name, "…, which is the content of such a file")
}

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
