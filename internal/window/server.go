package window

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// EvictionError says that Redis may throw away any key when its memory is full. If a cursor
// vanishes, hits count again, and counts vanish unnoticed.
type EvictionError struct {
	server string // its name, for messages to people
	policy string
}

func (e *EvictionError) Error() string {
	return fmt.Sprintf("%s has maxmemory-policy %s: it may throw away cursors and counts when its memory is full, and totals would be wrong without warning: set noeviction, or INGEST_ALLOW_EVICTION=true to accept that risk", e.server, e.policy)
}

// CheckServer checks the settings of Redis (on a cluster, of every master) that the promises of
// this package rest on. It returns warnings for people, one sentence each, and an
// *EvictionError if the promises cannot be kept at all. If Redis does not reveal its
// settings, CheckServer accepts it, with a warning that says so.
func (s *Store) CheckServer(ctx context.Context) (warnings []string, err error) {
	servers, err := s.masters(ctx)
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

func (s server) check(ctx context.Context) (warnings []string, err error) {
	settings := make(map[string]string)
	for _, name := range []string{"maxmemory-policy", "appendonly", "save"} {
		got, err := s.ConfigGet(ctx, name).Result()
		if err != nil {
			var refused redis.Error
			if errors.As(err, &refused) { // NOPERM, or a service that has no such command
				return []string{fmt.Sprintf("%s does not reveal its settings (%v): make sure that maxmemory-policy is noeviction and that it persists", s.name, err)}, nil
			}
			return nil, fmt.Errorf("read settings of %s: %w", s.name, err)
		}
		settings[name] = got[name]
	}
	switch policy := settings["maxmemory-policy"]; {
	case strings.HasPrefix(policy, "allkeys-"):
		err = &EvictionError{s.name, policy}
	case strings.HasPrefix(policy, "volatile-"):
		warnings = append(warnings, fmt.Sprintf("%s has maxmemory-policy %s: counts that expire may be thrown away when its memory is full, and totals would be too low: set noeviction", s.name, policy))
	}
	if settings["appendonly"] == "no" && settings["save"] == "" {
		warnings = append(warnings, s.name+" persists nothing: after a restart, the workers count again what the streams still hold, and older hits are gone: set appendonly yes")
	}
	return warnings, err
}
