package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"tallyroll/internal/platform/wait"
	"tallyroll/internal/window"

	"github.com/redis/go-redis/v9"
)

// CheckServer checks the settings of Redis (on a cluster, of every master) on which this package's promises
// rest. It returns human-readable warnings, and a *window.EvictionError if promises cannot be kept. If Redis
// hides its settings, that is a warning.
func (c *Client) CheckServer(ctx context.Context) (warnings []string, err error) {
	servers, err := c.Masters(ctx)
	if err != nil {
		return nil, fmt.Errorf("find the masters of the cluster: %w", err)
	}
	for _, server := range servers {
		more, serverErr := server.check(ctx)
		warnings = append(warnings, more...)
		if err == nil {
			err = serverErr
		}
	}
	return warnings, err
}

func (s Server) check(ctx context.Context) (warnings []string, err error) {
	settings := make(map[string]string)
	for _, name := range []string{"maxmemory-policy", "appendonly", "save"} {
		got, err := s.ConfigGet(ctx, name).Result()
		if err != nil {
			var refused redis.Error
			if errors.As(err, &refused) { // NOPERM, or a service that has no such command
				return []string{fmt.Sprintf("%s does not reveal its settings (%v): make sure that maxmemory-policy is "+
					"noeviction and that it persists", s.Name, err)}, nil
			}
			return nil, fmt.Errorf("read settings of %s: %w", s.Name, err)
		}
		settings[name] = got[name]
	}
	switch policy := settings["maxmemory-policy"]; {
	case strings.HasPrefix(policy, "allkeys-"):
		err = &window.EvictionError{Server: s.Name, Policy: policy}
	case strings.HasPrefix(policy, "volatile-"):
		warnings = append(warnings, fmt.Sprintf("%s has maxmemory-policy %s: counts that expire may be thrown away "+
			"when its memory is full, and totals would be too low: set noeviction", s.Name, policy))
	}
	if settings["appendonly"] == "no" && settings["save"] == "" {
		warnings = append(warnings, s.Name+" persists nothing: after a restart, the workers count again what the "+
			"streams still hold, and older hits are gone: set appendonly yes")
	}
	return warnings, err
}

// RewriteTorn returns a function for redis.Options.OnConnect that makes Redis rewrite its append-only file
// once after each of its starts, before the first commit over any new connection. A rewritten file has no
// torn beginning of a transaction (see schema.CursorRecord). As soon as a rewrite begins, Redis 7 writes to
// another file, so nothing waits for its end. (If Redis is killed before that, its next start can fail once,
// because the file that was cut is no longer the last one: start it again.)
//
// It calls tell with nil for a request, or with why Redis could not be asked, once for each outcome. Without
// permission, commits go on: if something torn is run, the cursors show it.
func RewriteTorn(tell func(error)) func(context.Context, *redis.Conn) error {
	var mu sync.Mutex
	told := ""
	say := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if text := fmt.Sprint(err); text != told {
			told = text
			tell(err)
		}
	}
	return func(ctx context.Context, cn *redis.Conn) error {
		persistence := func() (string, error) { return cn.Info(ctx, "persistence").Result() }
		info, err := persistence()
		var refused redis.Error
		switch {
		case errors.As(err, &refused):
			say(fmt.Errorf("cannot tell whether Redis has an append-only file: %w", err))
			return nil
		case err == nil && strings.Contains(info, "\nloading:1"):
			return errors.New("the server is loading its data") // and this connection would be used when it has
		case err != nil || !mayBeTorn(info):
			return err
		}
		err = cn.BgRewriteAOF(ctx).Err()
		if errors.As(err, &refused) {
			if info, err := persistence(); err != nil || !mayBeTorn(info) {
				return err // another worker was faster
			}
			say(fmt.Errorf("the server cannot be asked to rewrite its append-only file: %w", err))
			return nil
		}
		if err != nil {
			return err
		}
		say(nil)
		// While Redis saves a snapshot, it only promises to begin.
		for range rewriteTries {
			if info, err = persistence(); err != nil || !strings.Contains(info, "aof_rewrite_scheduled:1") {
				return err
			}
			if err := wait.Sleep(ctx, rewritePause); err != nil {
				return err
			}
		}
		return nil
	}
}

// How often, and how long each time, to wait for a rewrite that waits for a snapshot.
const (
	rewriteTries = 20
	rewritePause = 100 * time.Millisecond
)

// mayBeTorn reports whether Redis has an append-only file that it has not begun to rewrite since its start.
func mayBeTorn(info string) bool {
	has := func(line string) bool { return strings.Contains(info, line+"\r\n") }
	return has("aof_enabled:1") && !has("aof_rewrite_in_progress:1") &&
		(has("aof_last_rewrite_time_sec:-1") || has("aof_last_bgrewrite_status:err"))
}
