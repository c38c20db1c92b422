package setting

import (
	"net"
	"strconv"
	"strings"
	"unicode"
)

// CheckAddress refuses a setting that is not an address to listen on.
func CheckAddress(key, value string) error {
	if _, _, err := net.SplitHostPort(value); err != nil {
		return &Error{Key: key, Value: value, Allowed: "host:port"}
	}
	return nil
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
			return &Error{Key: m.Key, Value: strconv.FormatInt(m.N, 10), Allowed: "a whole number from 1 on"}
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
