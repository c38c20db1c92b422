package query

import (
	"errors"
	"time"

	"tallyroll/internal/limit"
)

// takeItem is hits of a key under a limit: one that has a name, or one that is given by its numbers. It
// is what GET /v1/limit takes, and as JSON the endpoint limit over NATS.
type takeItem struct {
	Limit  string     `query:"limit" json:"limit,omitempty" doc:"The name of a limit of QUERY_LIMITS_FILE." example:"login"`
	Key    string     `query:"key" json:"key,omitempty" doc:"Whose hits they are: 1 to 512 bytes of UTF-8 without control characters." example:"alice"`
	Window string     `query:"window" json:"window,omitempty" doc:"In place of limit: how far the limit looks back, 1s to 366d (a whole number and a unit: s, m, h, d, w)." example:"1m"`
	Max    numberText `query:"max" json:"max,omitempty" doc:"Beside window: how many hits are allowed in it." example:"100"`
	N      numberText `query:"n" json:"n,omitempty" doc:"How many hits. A negative number gives hits back, never below zero. Default: 1." example:"1"`
	Policy string     `query:"policy" json:"policy,omitempty" doc:"Beside window: how hits are kept: cells (bounded memory), log or stream (exact). Default for takes: cells." example:"cells"`
}

func (i *takeItem) read(g given) error {
	return g.singles(
		singleParam{"limit", limitHint, &i.Limit},
		singleParam{"key", takeKeyHint, &i.Key},
		singleParam{"window", windowHint, &i.Window},
		singleParam{"max", "a whole number", (*string)(&i.Max)},
		singleParam{"n", "a whole number", (*string)(&i.N)},
		singleParam{"policy", policyHint, &i.Policy},
	)
}

const (
	limitHint   = "the name of a limit"
	takeKeyHint = "a key"
	policyHint  = "cells, log or stream"
)

// numbers are the fields that are given in place of limit, with what the request gives.
func (i *takeItem) numbers() []struct{ name, text string } {
	return []struct{ name, text string }{{"window", i.Window}, {"max", string(i.Max)}, {"policy", i.Policy}}
}

// takeOf checks an item and makes a take of it. prefix comes before the names of its fields in errors.
func (l *limits) takeOf(item *takeItem, prefix string) (limit.Take, error) {
	lim, err := l.limitOf(item, prefix)
	if err != nil {
		return limit.Take{}, err
	}
	if err := checkTakeKey(prefix+"key", item.Key); err != nil {
		return limit.Take{}, err
	}
	under, err := lim.Key.Fill(func(variable string) (string, error) {
		if variable != limit.VarKey {
			return "", errors.New("only /v1/authz knows that")
		}
		return item.Key, nil
	})
	if err != nil {
		return limit.Take{}, badInput(prefix+"limit", "%s has the key template %s, which cannot be filled here: %v", excerpt(lim.Name), lim.Key, err)
	}
	if err := checkTakeKey(prefix+"key", under); err != nil {
		return limit.Take{}, err
	}
	n, err := item.N.parse(prefix+"n", 1, -limit.MaxHits, limit.MaxHits)
	return limit.Take{Limit: lim, Key: item.Key, Under: under, N: n}, err
}

// limitOf returns the limit that an item names, or the one of its numbers if the settings allow them.
func (l *limits) limitOf(item *takeItem, prefix string) (*limit.Limit, error) {
	given := ""
	for _, number := range item.numbers() {
		if number.text != "" {
			given = number.name
			break
		}
	}
	switch {
	case item.Limit != "" && given != "":
		return nil, badInput(prefix+given, "not together with limit, which has its own")
	case item.Limit != "":
		return l.find(item.Limit, prefix+"limit")
	case given == "":
		return nil, badInput(prefix+"limit", "it is missing: name a limit, or give window and max")
	case l.mode != TakeAny:
		return nil, badInput(prefix+given, "not allowed: this service takes numbers only with QUERY_TAKE=any: name a limit of QUERY_LIMITS_FILE")
	}
	length, err := limitWindow(prefix, item.Window)
	if err != nil {
		return nil, err
	}
	if item.Max == "" {
		return nil, badInput(prefix+"max", "it is missing: say how many hits are allowed in the window")
	}
	most, err := item.Max.parse(prefix+"max", 0, 1, limit.MaxHits)
	if err != nil {
		return nil, err
	}
	lim, err := limit.Adhoc(length, most, limit.Policy(item.Policy))
	var bad *limit.FieldError
	if errors.As(err, &bad) {
		return nil, badInput(prefix+bad.Field, "%s", bad.Message)
	}
	return lim, err
}

func limitWindow(prefix, text string) (time.Duration, error) {
	if text == "" {
		return 0, badInput(prefix+"window", "it is missing: allowed is %s", windowHint)
	}
	return parseDuration(prefix+"window", text)
}

// checkTakeKey refuses a key that would be no name of a counter.
func checkTakeKey(param, key string) error {
	return checkName(param, key, "it is missing or empty", "a key")
}
