package schema

import (
	"crypto/rand"
	"errors"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/window/internal/cluster"
)

// ParseErasure parses the token in Keys.Erasure; "" if nothing was ever erased. The last writer to have
// created a cursor follows it.
func ParseErasure(reply *redis.StringCmd) (string, error) {
	text, err := reply.Result()
	switch {
	case errors.Is(err, redis.Nil):
		return "", nil
	case err != nil:
		return "", cluster.WrapForeign(reply.Args()[1].(string), err)
	}
	text, _, _ = strings.Cut(text, " ")
	return text, nil
}

// NewErasure returns a random token for an erasure after another one. It begins with the moment (Unix
// milliseconds) up to which it may have removed hits, for a comparison of cells with streams.
func NewErasure(before string, upTo int64) string {
	return strconv.FormatInt(max(upTo, ErasedUpTo(before)), 10) + "-" + rand.Text()[:12]
}

// ErasedUpTo returns the moment in a token of ParseErasure; 0 if nothing was ever erased.
func ErasedUpTo(text string) int64 {
	moment, _, _ := strings.Cut(text, "-")
	n, _ := strconv.ParseInt(moment, 10, 64)
	return n
}
