package setting

import (
	"strconv"
	"strings"
	"unicode"
)

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
