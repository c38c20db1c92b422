package query

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/cespare/xxhash/v2"
)

// validated are the headers of an answer about a range that ended before now:
// it may be kept, and must be asked about again, since a hit that comes late
// still counts at its own time. The tag is made of what was counted, not of the
// moment that it was read at: an older as_of stays true. So it is a weak one.
func validated(counted ...any) (cacheControl, etag string) {
	data, err := json.Marshal(counted)
	if err != nil {
		panic(fmt.Errorf("encode an answer for its tag: %w", err)) // it is made of our own types
	}
	return "no-cache", fmt.Sprintf(`W/"%016x"`, xxhash.Sum64(data))
}

// unchanged reports whether the client has the answer already (RFC 9110, 13.1.2).
func unchanged(r *http.Request, etag string) bool {
	if etag == "" || r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	for given := range strings.SplitSeq(strings.Join(r.Header.Values("If-None-Match"), ","), ",") {
		given = strings.TrimSpace(given)
		if given == "*" || strings.TrimPrefix(given, "W/") == strings.TrimPrefix(etag, "W/") {
			return true
		}
	}
	return false
}
