package query

import (
	"fmt"

	"github.com/cespare/xxhash/v2"
)

// cacheHeaders returns the headers of an answer about a range that ended before now. A client may
// keep such an answer, but must revalidate it, because a hit that comes late still counts at its
// own time. The tag is made from the counts and not from the moment at which they were
// read: an older as_of stays true. So the tag is a weak one.
func cacheHeaders(content ...any) (cacheControl, etag string) {
	j := &jsonText{html: true}
	j.list(len(content), func(i int) { j.value(content[i]) })
	return "no-cache", fmt.Sprintf(`W/"%016x"`, xxhash.Sum64(j.out))
}
