package query

import "fmt"

// TakeMode says which takes the service counts; the zero value is TakeNamed.
type TakeMode int

const (
	// TakeNamed counts takes of limits that QUERY_LIMITS_FILE names.
	TakeNamed TakeMode = iota
	// TakeAny counts takes with their own numbers, too. Whoever may ask can then make any number of keys
	// in Redis.
	TakeAny
	// TakeOff counts none.
	TakeOff
)

// UnmarshalText reads named, any or off.
func (m *TakeMode) UnmarshalText(text []byte) error {
	switch string(text) {
	case "named":
		*m = TakeNamed
	case "any":
		*m = TakeAny
	case "off":
		*m = TakeOff
	default:
		return fmt.Errorf("named, any or off")
	}
	return nil
}
