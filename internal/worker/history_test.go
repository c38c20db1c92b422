package worker

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/setting"
	"tallyroll/internal/window"
	"tallyroll/internal/window/retier"
	"tallyroll/internal/window/schema"
	"tallyroll/tests/stack"
)

// A declaration does not bring back what a change of tiers, or a loss, has left out. So it names what stays
// incomplete, in an error that is no mistake of usage (exit code 1), although it is made.
func TestADeclarationNamesWhatItDoesNotCover(t *testing.T) {
	t.Parallel()
	redis := stack.SharedRedis(t)
	client := stack.ProgramClient(t, redis.URL())
	settings := parseSettings(t, "REDIS_URL="+redis.URL(), "TALLYROLL_NAMESPACE=test")
	store := schema.NewStore(client, "test")
	ctx, now := t.Context(), time.Now()
	require.NoError(t, client.Set(ctx, store.Keys.Layout(), recordOf("1h/1d", 1), 0).Err())
	require.NoError(t, store.AddStream(ctx, "HITS"))
	cursor := store.Keys.Cursor(0, "HITS")
	require.NoError(t, client.HSet(ctx, cursor, "created", now.UnixNano(), "seq", 0, "stored", 0, "latest", 0, "as_of", now.UnixMilli(),
		"incomplete_before", 0, "opened", 1, "closed", 1, "ahead", "", "by", "w").Err())
	declare := func(ago time.Duration) error {
		var out bytes.Buffer
		err := DeclareComplete(ctx, settings, now.Add(-ago).UTC().Format(time.RFC3339), "alice", &out, zerolog.Nop())
		var usage setting.UsageError
		require.False(t, errors.As(err, &usage), "%v", err)
		require.Contains(t, out.String(), "is declared complete from ")
		return err
	}
	const day = 24 * time.Hour
	err := declare(20 * day)
	require.NoError(t, err, "before the change")

	tiers, err := window.ParseTiers("1h/1d,6h/30d")
	require.NoError(t, err)
	_, _, err = retier.Run(ctx, store, tiers, func(string, int) {})
	require.NoError(t, err)
	err = declare(20 * day)
	require.ErrorContains(t, err, "does not cover the tier 6h/30d")
	require.NotContains(t, err.Error(), "known to be lost")
	err = declare(12 * time.Hour)
	require.NoError(t, err, "as far as the old tier reached")

	require.NoError(t, client.HSet(ctx, cursor, "incomplete_before", now.Add(-time.Hour).UnixMilli()).Err())
	err = declare(12 * time.Hour)
	require.ErrorContains(t, err, "does not cover hits from before")
}
