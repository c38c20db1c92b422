package limit

import (
	"errors"
	"strings"
	"testing"
	"time"

	"tallyroll/tests/stack"
)

// A Redis user without a right that a decision needs is no Redis that is away: nothing gets better by waiting, and
// a fail mode would hide it.
func TestARightThatIsMissing(t *testing.T) {
	t.Parallel()
	server := stack.Redis(t)
	for name, rights := range map[string]string{
		"run scripts":        "~* +@all -@scripting",
		"write keys":         "%R~* +@all",
		"write in a script":  "~* +@all -hset -zadd -xadd",
		"read in a script":   "~* +@all -hmget -zrange -xrevrange",
		"read the time":      "~* +@all -time",
		"expire in a script": "~* +@all -pexpire",
	} {
		args := []any{"acl", "setuser", "few", "reset", "on", ">s3cret"}
		for word := range strings.FieldsSeq(rights) {
			args = append(args, word)
		}
		must(t, server.Client().Do(t.Context(), args...).Err())
		limiter := New(stack.ProgramClient(t, "redis://few:s3cret@"+server.Addr()+"/0"), "test", 5*time.Second)
		for _, policy := range Policies {
			l, err := Adhoc(time.Minute, 10, policy)
			must(t, err)
			answer, err := limiter.Take(t.Context(), []Take{{Limit: l, Key: "k", Under: "k", N: 1}})
			if _, is := errors.AsType[*ForbiddenError](err); !is {
				t.Errorf("without the right to %s, a take of %s gives %+v, %v", name, policy, answer, err)
			}
		}
	}
}
