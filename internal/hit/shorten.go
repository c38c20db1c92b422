package hit

import (
	"fmt"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

// Shorten makes a name that is too long for a counter fit: its beginning, an
// ellipsis and the xxhash64 of the whole, so that two long names stay two
// counters. A name that fits is returned as it is.
func Shorten(name []byte) []byte {
	const ellipsis = "…"
	if len(name) <= MaxName {
		return name
	}
	cut := MaxName - len(ellipsis) - 16
	for cut > 0 && !utf8.RuneStart(name[cut]) {
		cut--
	}
	return fmt.Appendf(nil, "%s%s%016x", name[:cut], ellipsis, xxhash.Sum64(name))
}
