package hit

import (
	"bytes"
	"errors"
	"fmt"
	"unicode"
	"unicode/utf8"
)

// MaxName is the longest name of a counter, in bytes.
const MaxName = 512

// Why CheckName refuses a name.
var (
	ErrNameLength  = errors.New("the counter's name")
	ErrNameUTF8    = errors.New("the counter's name is not valid UTF-8")
	ErrNameControl = errors.New("the counter's name has a control character")
)

// CheckName returns an error if a counter cannot have this name. A name has 1 to MaxName bytes
// of valid UTF-8 without control characters (C0, delete and C1). The error wraps
// ErrNameLength, ErrNameUTF8 or ErrNameControl; use errors.Is to find out which.
func CheckName(name []byte) error {
	if len(name) == 0 || len(name) > MaxName {
		return fmt.Errorf("%w has %d bytes; 1 to %d are allowed", ErrNameLength, len(name), MaxName)
	}
	plain := true
	for _, c := range name {
		plain = plain && c >= 0x20 && c < 0x7f
	}
	switch {
	case plain:
		return nil
	case !utf8.Valid(name):
		return ErrNameUTF8
	case bytes.ContainsFunc(name, unicode.IsControl):
		return ErrNameControl
	}
	return nil
}
