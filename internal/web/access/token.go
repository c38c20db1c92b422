// Package access decides who may ask, take and count what, by tokens with rights, an optional end, and
// optional prefixes and limits.
//
//   - A token opens the routes of its rights, and no others.
//   - A token with prefixes is about the counters that begin with one of them. Package scope refuses a
//     question that names another counter or prefix with 403, whether it exists or not. Lists and sums that
//     name none are about the token's counters.
//   - A token with limits is about their keys, and one that has only prefixes about no limit.
//   - Requests are compared with every token, by hashes and in constant time.
//   - The file is reread with the program's others (setting.Files). A bad file changes nothing. If a token is
//     removed, changed or expired, its bearer's lasting requests end.
package access

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"tallyroll/internal/web"
)

// Right is what a token may be used for.
type Right string

const (
	Read  Right = "read"  // what counters have
	Take  Right = "take"  // decide about takes, and read limits
	Count Right = "count" // send hits
	Erase Right = "erase" // counters
	Admin Right = "admin" // what is about all counters and limits: streams, rejects, limits, and their resets
)

var allRights = []Right{Read, Take, Count, Erase, Admin}

// Token is what its bearer may do. A nil *Token may do everything: no token is needed.
type Token struct {
	grant
	// ended is over when the token expires or is no longer in the file.
	ended context.Context
	end   context.CancelFunc
}

func (g grant) start() *Token {
	t := &Token{grant: g}
	if g.until.IsZero() {
		t.ended, t.end = context.WithCancel(context.Background())
	} else {
		t.ended, t.end = context.WithDeadline(context.Background(), g.until)
	}
	return t
}

type contextKey struct{}

// With adds the caller's token to a context.
func With(ctx context.Context, t *Token) context.Context {
	return context.WithValue(ctx, contextKey{}, t)
}

// From returns the caller's token; nil if none is needed, or if the request is not over HTTP.
func From(ctx context.Context) *Token {
	t, _ := ctx.Value(contextKey{}).(*Token)
	return t
}

// Bind returns a context that also ends with the token, for answers that last.
func (t *Token) Bind(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if t == nil {
		return ctx, cancel
	}
	stop := context.AfterFunc(t.ended, cancel)
	return ctx, func() { stop(); cancel() }
}

// entry is the token's grant; without a token, one with all rights.
func (t *Token) entry() grant {
	if t == nil {
		return grant{may: allRights}
	}
	return t.grant
}

// Name is the token's name in logs; "" without one.
func (t *Token) Name() string { return t.entry().name }

// Rights are the token's, Prefixes those of its counters (none: all counters), Limits what CheckLimit allows,
// Until its end (zero: never).
func (t *Token) Rights() []Right { return t.entry().may }

func (t *Token) Prefixes() []string { return t.entry().prefixes }

func (t *Token) Limits() []string { return t.entry().limits }

func (t *Token) Until() time.Time { return t.entry().until }

// HasPrefixes reports whether the token is only about some counters.
func (t *Token) HasPrefixes() bool { return len(t.Prefixes()) > 0 }

// Require refuses a token without a right. what, human-readable, needs it.
func (t *Token) Require(right Right, what string) error {
	if slices.Contains(t.Rights(), right) {
		return nil
	}
	const lacks = "the token %s lacks the right %s, which %s needs: it has %s"
	detail := fmt.Sprintf(lacks, t.name, right, what, list(t.may))
	return web.NewProblem(http.StatusForbidden, detail).OfKind(web.TokenLacksRight)
}

func list(rights []Right) string {
	texts := make([]string, len(rights))
	for i, r := range rights {
		texts[i] = string(r)
	}
	return strings.Join(texts, ", ")
}

// CheckKey refuses a counter that the token is not about. No counter has the empty name.
func (t *Token) CheckKey(key string) error {
	if key == "" {
		return nil
	}
	return t.check("the counter", key)
}

// CheckPrefix refuses a prefix that the token is not, or only partly, about: part of a list would look whole.
func (t *Token) CheckPrefix(prefix string) error { return t.check("the prefix", prefix) }

func (t *Token) check(what, name string) error {
	if !t.HasPrefixes() || hasAny(name, t.prefixes) {
		return nil
	}
	return web.NewProblem(http.StatusForbidden, fmt.Sprintf("%s %s is outside of the token %s, which is about names "+
		"that begin with %s", what, web.Excerpt(name), t.name, describe(t.prefixes))).
		OfKind(web.KeyOutsidePrefix)
}

// CheckLimit refuses a limit that the token is not about, or if a key is given, that key under it. A take
// with numbers of its own has the empty name.
func (t *Token) CheckLimit(name string, key ...string) error {
	own := t.Limits()
	if own == nil && !t.HasPrefixes() {
		return nil
	}
	for _, entry := range own {
		limit, prefix, _ := strings.Cut(entry, limitEnd)
		if limit == name && (len(key) == 0 || strings.HasPrefix(key[0], prefix)) {
			return nil
		}
	}
	what, about := "the limit "+web.Excerpt(name), "no limit, because its entry has prefixes and no limits"
	if len(key) > 0 {
		what = fmt.Sprintf("the key %s of %s", web.Excerpt(key[0]), what)
	}
	if own != nil {
		about = "the limits " + describe(own)
	}
	return web.NewProblem(http.StatusForbidden, fmt.Sprintf("%s is outside of the token %s, which is about %s", what,
		t.name, about)).OfKind(web.LimitOutsideToken)
}

const maxDescribed = 5

func describe(all []string) string {
	var out []string
	for _, text := range all[:min(maxDescribed, len(all))] {
		out = append(out, web.Excerpt(text))
	}
	if more := len(all) - maxDescribed; more > 0 {
		out = append(out, fmt.Sprintf("%d others", more))
	}
	return strings.Join(out, " or ")
}

func hasAny(name string, prefixes []string) bool {
	return slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}
