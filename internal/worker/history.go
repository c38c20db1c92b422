package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"time"

	"github.com/rs/zerolog"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/redisconn"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/window/schema"
)

// DeclareComplete declares that no hit of the namespace is missing from a moment on, because older hits were
// imported. from is a date, an RFC 3339 time, or none, which takes the declaration back. by names who
// declares; empty: the user of this process. It writes the result to out. If answers stay incomplete although
// the declaration is made, the error names them.
func DeclareComplete(ctx context.Context, settings Settings, from, by string, out io.Writer, log zerolog.Logger) error {
	var d schema.Declaration
	if from != "none" {
		at, err := parseDay(from)
		if err != nil || at.UnixMilli() < 1 || at.After(time.Now()) {
			return setting.BadUsage("--complete-from: %.40q is not allowed: a past date such as 2026-09-01 (UTC), an "+
				"RFC 3339 time, or none", from)
		}
		d = schema.Declaration{From: at.UnixMilli(), At: time.Now().UnixMilli(), By: cmp.Or(by, processUser())}
		if err := hit.CheckName([]byte(d.By)); err != nil {
			return setting.BadUsage("--by: must be what a counter can be called: %w", err)
		}
	}
	client := settings.Redis.Logging(log).ClientOnConnect(schema.RewriteTorn(func(error) {}))
	defer client.Close()
	if err := redisconn.Await(ctx, client, log); err != nil {
		return err
	}
	store := schema.NewStore(client, settings.Redis.Namespace)
	counted, missing, err := schema.Declare(ctx, store, d)
	err = redisconn.Explain(err)
	switch {
	case errors.Is(err, schema.ErrUncounted), errors.Is(err, schema.ErrNoLayout), errors.Is(err, schema.ErrBadLayout):
		return setting.UsageError{Err: err}
	case err != nil:
		return err
	case d.From >= counted:
		return setting.BadUsage("--complete-from: counting in the namespace %s began at %s: answers from then on are "+
			"complete without it, so declare an earlier time", settings.Redis.Namespace, hit.Moment(counted))
	case d.From == 0:
		fmt.Fprintf(out, "the namespace %s has no declaration: answers are complete from %s on, when counting began\n",
			settings.Redis.Namespace, hit.Moment(max(counted, missing)))
	default:
		fmt.Fprintf(out, "the namespace %s is declared complete from %s on, by %s; counting began at %s\n",
			settings.Redis.Namespace, hit.Moment(d.From), d.By, hit.Moment(counted))
		return checkCoverage(ctx, store, d, missing)
	}
	return nil
}

// checkCoverage returns an error that names what a declaration does not cover, because hits are known to be
// missing: from before a moment (Unix milliseconds), or from tiers that ingest --retier has built.
func checkCoverage(ctx context.Context, store *schema.Store, d schema.Declaration, missing int64) (err error) {
	if missing > d.From {
		err = fmt.Errorf("the declaration does not cover hits from before %s, some of which are known to be lost: "+
			"answers that reach further back stay incomplete", hit.Moment(missing))
	}
	layout, failed := store.Layout(ctx)
	if failed != nil {
		return errors.Join(err, failed)
	}
	for _, t := range layout.Tiers.Lacking(d.From, d.At) {
		err = errors.Join(err, fmt.Errorf("the declaration does not cover the tier %s: ingest --retier built "+
			"its cells from others, which held all hits only from %s on: answers that reach further back stay "+
			"incomplete; if you need them, count into a new namespace with these tiers, import, and declare there",
			t, hit.Moment(t.Since)))
	}
	return err
}

// parseDay parses a date, as the beginning of its day in UTC, or an RFC 3339 time.
func parseDay(text string) (time.Time, error) {
	if at, err := time.Parse(time.DateOnly, text); err == nil {
		return at, nil
	}
	return hit.ParseRFC3339(text)
}

// processUser returns the user and the host of this process, as far as they are known.
func processUser() string {
	name, host := "unknown", "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	if h, err := os.Hostname(); err == nil {
		host = h
	}
	return name + "@" + host
}
