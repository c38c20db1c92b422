package answer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"

	"tallyroll/internal/web"
	"tallyroll/internal/web/api"
	"tallyroll/internal/window/erase"
	"tallyroll/internal/window/read"
)

// eraseTimeout bounds how long one step, of up to 10,000 counters, waits for Redis.
const eraseTimeout = 30 * time.Second

// EraseParams is what DELETE /v1/counters takes.
type EraseParams struct {
	Key     string     `query:"key" hint:"name" doc:"The counter to erase." example:"shop.cart"`
	Prefix  string     `query:"prefix" hint:"name" doc:"In place of key: erase all counters whose names begin like this." example:"shop."`
	Confirm api.Number `query:"confirm" hint:"how many counters may begin with prefix" doc:"With prefix: how many counters may begin like this, as GET /v1/counters lists them. If there are more, nothing is erased." example:"12"`
}

const confirmHint = "how many counters may begin with prefix, as GET /v1/counters lists them"

// EraseAnswer is what an erasure has done.
type EraseAnswer struct {
	Erased int `json:"erased" doc:"How many counters had hits in Redis, and have none now." example:"12"`
}

// check returns the number of counters to be confirmed, if a prefix is given.
func (p *EraseParams) check() (confirmed int64, err error) {
	switch {
	case p.Key != "" && p.Prefix != "":
		return 0, web.BadInput("prefix", "not together with key: give one of the two")
	case p.Key != "" && p.Confirm != "":
		return 0, web.BadInput("confirm", "only with prefix")
	case p.Key != "":
		return 0, api.CheckKey("key", p.Key)
	case p.Prefix == "":
		return 0, web.BadInput("key", "missing: must be a counter's name; or give prefix and confirm in its place")
	case p.Confirm == "":
		return 0, web.BadInput("confirm", "missing: must be %s", confirmHint)
	}
	if err := api.CheckKey("prefix", p.Prefix); err != nil {
		return 0, err
	}
	return p.Confirm.Parse("confirm", 0, 0, math.MaxInt32)
}

// Erase checks parameters, and erases. After an error, out still has what was erased.
func (d *Service) Erase(ctx context.Context, p *EraseParams) (out EraseAnswer, err error) {
	confirmed, err := p.check()
	if err != nil {
		return out, web.InputProblem(err, web.InQuery)
	}
	if p.Key != "" {
		err = eraseStep(ctx, d.Redis, &out, func(ctx context.Context) (erase.Erased, error) {
			return d.Reader.Erase(ctx, []string{p.Key})
		}, nil)
		return out, err
	}
	there, err := d.countListed(ctx, p.Prefix)
	if err != nil {
		return out, err
	}
	if int64(there) > confirmed {
		return out, NotConfirmedProblem(p.Prefix, there, confirmed)
	}
	for next := ""; ; {
		err = eraseStep(ctx, d.Redis, &out, func(ctx context.Context) (erase.Erased, error) {
			return d.Reader.EraseListed(ctx, p.Prefix, next)
		}, &next)
		if err != nil || next == "" {
			return out, err
		}
	}
}

// NotConfirmedProblem is the 409 if there are more counters than confirmed.
func NotConfirmedProblem(prefix string, there int, confirmed int64) *web.Problem {
	return web.NewProblem(http.StatusConflict, fmt.Sprintf("%d counters begin with %s, and confirm is %d: nothing "+
		"is erased", there, web.Excerpt(prefix), confirmed)).OfKind(web.NotConfirmed)
}

// eraseStep runs one step of an erasure, and adds up before it looks at the error: what is erased stays
// erased, and the caller learns how much even if the rest is refused.
func eraseStep(ctx context.Context, source *Source, out *EraseAnswer, step func(context.Context) (erase.Erased, error),
	next *string) error {
	var why error // Redis is well, and refuses
	_, err := readWithin(ctx, source, eraseTimeout, func(ctx context.Context) (erase.Erased, error) {
		done, err := step(ctx)
		out.Erased += done.Counters
		if next != nil {
			*next = done.Next
		}
		if errors.Is(err, erase.ErrBusy) || errors.Is(err, erase.ErrRetiering) || redis.HasErrorPrefix(err, "NOPERM") {
			why, err = err, nil
		}
		return done, err
	})
	switch {
	case err != nil || why == nil:
		return err
	case errors.Is(why, erase.ErrBusy):
		return web.RetryLater(fmt.Sprintf("%d counters are erased, and then %v: ask again for the rest", out.Erased,
			erase.ErrBusy), "1")
	case errors.Is(why, erase.ErrRetiering):
		return web.NewProblem(http.StatusConflict, fmt.Sprintf("%d counters are erased, and no more: %v", out.Erased,
			why))
	}
	return web.RetryLater("the Redis user may not erase: it needs the rights of query-erase in deploy/redis-users.acl "+
		"(docs/operations.md)", "10").OfKind(web.RightsMissing)
}

func (d *Service) countListed(ctx context.Context, prefix string) (n int, err error) {
	question := read.NamesQuestion{Prefix: prefix, Limit: maxCounters}
	for {
		page, err := Read(ctx, d.Redis, func(ctx context.Context) (read.Names, error) {
			return d.Reader.Names(ctx, question)
		})
		if err != nil {
			return 0, err
		}
		n += len(page.Counters)
		if question.After = page.Next; page.Next == "" {
			return n, nil
		}
	}
}
