package boot

import (
	"net"
	"strconv"
)

// CheckAddress refuses a setting that is no address to listen at.
func CheckAddress(key, value string) error {
	if _, _, err := net.SplitHostPort(value); err != nil {
		return &SettingError{Key: key, Value: value, Allowed: "host:port"}
	}
	return nil
}

// Most is a setting that bounds something.
type Most struct {
	Key string
	N   int64
}

// CheckMost refuses the first of the bounds that allows nothing.
func CheckMost(all ...Most) error {
	for _, m := range all {
		if m.N < 1 {
			return &SettingError{Key: m.Key, Value: strconv.FormatInt(m.N, 10), Allowed: "a whole number from 1 on"}
		}
	}
	return nil
}
