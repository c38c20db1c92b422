package setting

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// Error means that a setting cannot be used. Its text is one line: variable, value, and what it must be.
type Error struct {
	Key    string // the environment variable
	Value  string // as it was given; empty for secrets
	MustBe string // a phrase: "a duration from 1ms to 1m, such as 250ms"
}

func (e *Error) Error() string {
	if e.Value == "" || isContent(e.Value) {
		return fmt.Sprintf("%s: must be %s", e.Key, Conceal(e.Value, e.MustBe))
	}
	return fmt.Sprintf("%s=%q: must be %s", e.Key, e.Value, e.MustBe)
}

// Permanent reports that waiting does not mend it.
func (e *Error) Permanent() bool { return true }

// Check returns the *Error of a setting that a check has refused with err; nil for nil.
func Check(key, value string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Key: key, Value: value, MustBe: err.Error()}
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

// Permanent reports that waiting does not mend it.
func (e UsageError) Permanent() bool { return true }

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

// Most is a setting that is an upper bound.
type Most struct {
	Key string
	N   int64
}

// CheckMost refuses the first bound that allows nothing.
func CheckMost(all ...Most) error {
	for _, m := range all {
		if m.N < 1 {
			return &Error{Key: m.Key, Value: strconv.FormatInt(m.N, 10), MustBe: "a whole number from 1 on"}
		}
	}
	return nil
}

// IsHost reports whether a text can be a DNS name, or an address, with a zone if it is IPv6.
func IsHost(text string) bool {
	return text != "" && strings.IndexFunc(text, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(".-_:%", r)
	}) < 0
}

// IsPort reports whether a text is the number of a port.
func IsPort(text string) bool {
	n, err := strconv.ParseUint(text, 10, 16)
	return err == nil && n > 0
}

// CheckDuration refuses a duration outside of its bounds.
func CheckDuration(key string, d, least, most time.Duration) error {
	if d < least || d > most {
		return &Error{Key: key, Value: d.String(), MustBe: fmt.Sprintf("a duration from %v to %v", least, most)}
	}
	return nil
}
