package fleet

import (
	"fmt"
	"path"
	"strings"

	"tallyroll/internal/rejects"
)

// Globs are names of streams, with * and ? as in file names.
type Globs []string

// UnmarshalText reads comma-separated globs.
func (g *Globs) UnmarshalText(text []byte) error {
	*g = nil
	for glob := range strings.SplitSeq(string(text), ",") {
		glob = strings.TrimSpace(glob)
		if _, err := path.Match(glob, ""); err != nil || glob == "" {
			return fmt.Errorf("names of streams, or globs such as HITS*, comma-separated")
		}
		*g = append(*g, glob)
	}
	return nil
}

func (g Globs) String() string { return strings.Join(g, ",") }

// bucketPrefix begins the names of the fleets' buckets.
const bucketPrefix = "tallyroll_"

// Match reports whether any glob matches. None matches the stream of rejects or the buckets of fleets.
func (g Globs) Match(stream string) bool {
	if stream == rejects.Stream || strings.HasPrefix(stream, "KV_"+bucketPrefix) {
		return false
	}
	for _, glob := range g {
		if ok, _ := path.Match(glob, stream); ok {
			return true
		}
	}
	return false
}
