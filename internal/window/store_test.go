package window_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

func TestMain(m *testing.M) { stack.Main(m) }

// One suite for every kind of Redis.
var cases = []struct {
	name string
	test func(*testing.T, *rig)
}{
	{"a commit counts in every tier", aCommitCountsInEveryTier},
	{"hashes are listpacks", hashesAreListpacks},
	{"expiry goes out once for a hash in use", expiryGoesOutOnceForAHashInUse},
	{"the same place over other hits fences", theSamePlaceOverOtherHitsFences},
	{"a commit takes two round trips", aCommitTakesTwoRoundTrips},
	{"another writer between two commands", anotherWriterBetweenTwoCommands},
	{"a cut between two commands", aCutBetweenTwoCommands},
	{"a commit that gives up watches nothing", aCommitThatGivesUpWatchesNothing},
	{"nothing is committed unwatched", nothingIsCommittedUnwatched},
	{"a loss in redis rewinds", aLossInRedisRewinds},
	{"what has expired is skipped", whatHasExpiredIsSkipped},
	{"a command that fails is reported", aCommandThatFailsIsReported},
	{"answers follow the namespace", answersFollowTheNamespace},
	{"one answer from all shards", oneAnswerFromAllShards},
	{"complete compares with what is missing", completeComparesWithWhatIsMissing},
	{"an ended stream holds nothing back", anEndedStreamHoldsNothingBack},
	{"a new stream holds as of at its creation", aNewStreamHoldsAsOfAtItsCreation},
	{"what has ended expires", whatHasEndedExpires},
	{"as_of falls with the clock of nats", asOfFallsWithTheClockOfNATS},
	{"a claim moves as_of", aClaimMovesAsOf},
	{"lost claims are noticed", lostClaimsAreNoticed},
	{"foreign claims are named", foreignClaimsAreNamed},
	{"rules are kept", rulesAreKept},
	{"a change of versions or rejects fences", aChangeOfVersionsOrRejectsFences},
	{"a taken cursor fences", aTakenCursorFences},
	{"the top of a few", theTopOfAFew},
	{"summaries outlast redis", summariesOutlastRedis},
	{"a failed commit leaves no summary", aFailedCommitLeavesNoSummary},
	{"a foreign summary is left as it is", aForeignSummaryIsLeftAsItIs},
	{"a foreign cursor ends the writer", aForeignCursorEndsTheWriter},
	{"a lost reply hides no failed command", aLostReplyHidesNoFailedCommand},
	{"names are listed", namesAreListed},
	{"an export has what is closed", anExportHasWhatIsClosed},
	{"answers go by the clock of redis", answersGoByTheClockOfRedis},
	{"an answer takes one round trip", anAnswerTakesOneRoundTrip},
	{"an answer ends when it was read", anAnswerEndsWhenItWasRead},
	{"uniques of windows", uniquesOfWindows},
	{"uniques step by step", uniquesStepByStep},
	{"uniques in one trip", uniquesInOneTrip},
	{"foreign uniques are named", foreignUniquesAreNamed},
	{"uniques of a clock ahead", uniquesOfAClockAhead},
	{"uniques are as complete as totals", uniquesAreAsCompleteAsTotals},
	{"an erasure leaves nothing", anErasureLeavesNothing},
	{"what was erased is listed again", whatWasErasedIsListedAgain},
	{"an erasure after a lost reply is no loss", anErasureAfterALostReplyIsNoLoss},
	{"an erasure between two commands", anErasureBetweenTwoCommands},
	{"an erasure knows new streams", anErasureKnowsNewStreams},
	{"an erasure overwrites no summary", anErasureOverwritesNoSummary},
	{"an erasure by prefix leaves no unique values", anErasureByPrefixLeavesNoUniqueValues},
	{"an erasure asks little", anErasureAsksLittle},
	{"an erasure leaves foreign summaries", anErasureLeavesForeignSummaries},
	{"erasures and commits at once", erasuresAndCommitsAtOnce},
	{"expiries are not trusted after a fall of the clock", expiriesAreNotTrustedAfterAFallOfTheClock},
	{"registers are those of the values", registersAreThoseOfTheValues},
	{"only what can raise a register is sent", onlyWhatCanRaiseARegisterIsSent},
	{"registers come back after any doubt", registersComeBackAfterAnyDoubt},
	{"a unique cell that has expired is left out", aUniqueCellThatHasExpiredIsLeftOut},
	{"a foreign unique cell is reported", aForeignUniqueCellIsReported},
}

func TestStore(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T) *backend{
		"one server": startServer, "cluster": startCluster, "stand-in": startStandIn,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := start(t)
			for _, c := range cases {
				t.Run(c.name, func(t *testing.T) {
					if why, ok := b.cannot[c.name]; ok {
						t.Skip("the stand-in cannot: " + why)
					}
					c.test(t, newRig(t, b))
				})
			}
		})
	}
}

// backend is a Redis that the cases use one after the other, through the
// programs' own client.
type backend struct {
	client      redis.UniversalClient
	clock       *stack.RedisClock // of the client
	stop, start func(key string)  // the server that holds the key
	cannot      map[string]string // cases, and why not
}

func startServer(t *testing.T) *backend {
	server := stack.Redis(t)
	return &backend{
		client: stack.ProgramClient(t, server.URL()),
		stop:   func(string) { server.Stop() },
		start:  func(string) { server.Start() },
	}
}

func startCluster(t *testing.T) *backend {
	cluster := stack.Cluster(t, 0)
	var stopped *stack.RedisServer
	return &backend{
		client: stack.ProgramClient(t, cluster.URL()),
		stop:   func(key string) { stopped = cluster.MasterOf(key); stopped.Stop() },
		start:  func(string) { stopped.Start(); cluster.WaitOK() },
	}
}

const hasNoRegisters = "its HyperLogLog hashes otherwise and cannot be read"

// startStandIn is what cmd/dev runs where there is no redis-server.
func startStandIn(t *testing.T) *backend {
	server := miniredis.RunT(t)
	return &backend{
		client: stack.ProgramClient(t, "redis://"+server.Addr()),
		stop:   func(string) { server.Close() },
		start: func(string) {
			if err := server.Restart(); err != nil {
				t.Error(err)
			}
		},
		cannot: map[string]string{
			"uniques step by step":           "its PFCOUNT of several keys counts some twice",
			"hashes are listpacks":           "OBJECT ENCODING is unknown to it",
			"a cut between two commands":     "CLIENT KILL is unknown to it",
			"nothing is committed unwatched": "ACL is unknown to it",

			"registers are those of the values":      hasNoRegisters,
			"only what can raise a register is sent": hasNoRegisters,
			"registers come back after any doubt":    hasNoRegisters,
			"a foreign unique cell is reported":      hasNoRegisters,
		},
	}
}

// eachServer calls do with the client of every server that holds data.
func (b *backend) eachServer(ctx context.Context, do func(context.Context, *redis.Client) error) error {
	if cluster, ok := b.client.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, do)
	}
	return do(ctx, b.client.(*redis.Client))
}

// flushAll empties every server.
func (b *backend) flushAll(ctx context.Context) error {
	return b.eachServer(ctx, func(ctx context.Context, server *redis.Client) error { return server.FlushAll(ctx).Err() })
}

var layout = func() window.Layout {
	tiers, err := window.ParseTiers(window.DefaultTiers)
	if err != nil {
		panic(err)
	}
	uniqueTiers, err := window.ParseUniqueTiers(window.DefaultUniqueTiers)
	if err != nil {
		panic(err)
	}
	return window.Layout{Tiers: tiers, UniqueTiers: uniqueTiers, Shards: 4}
}()

// rig is an empty Redis with a namespace of one stream.
type rig struct {
	*backend
	t      *testing.T
	store  *window.Store
	reader *window.Reader // by which the local clock stands still
}

// at lets Redis's clock say now while ask runs.
func (r *rig) at(now time.Time, ask func()) {
	r.clock.Hold(&now)
	defer r.clock.Hold(nil)
	ask()
}

func newRig(t *testing.T, b *backend) *rig {
	t.Helper()
	ctx := t.Context()
	require.NoError(t, b.flushAll(ctx))
	store := window.NewStore(b.client, "test")
	require.NoError(t, store.EnsureLayout(ctx, layout))
	require.NoError(t, store.AddStream(ctx, "HITS"))
	if b.clock == nil {
		b.clock = stack.WatchClock(b.client)
	}
	reader, began := window.NewReader(store), time.Now()
	reader.Local = func() time.Time { return began }
	return &rig{b, t, store, reader}
}

func cursorKey(shard int) string { return fmt.Sprintf("test:{%d}:cursor:HITS", shard) }

// addHook adds a hook to whatever sends commands: the clients of a cluster's masters, or the client.
func (r *rig) addHook(hook redis.Hook) {
	r.t.Helper()
	err := r.eachServer(r.t.Context(), func(_ context.Context, server *redis.Client) error { server.AddHook(hook); return nil })
	require.NoError(r.t, err)
}

// writers opens a writer for every shard.
func (r *rig) writers() []*window.Writer {
	r.t.Helper()
	out := make([]*window.Writer, layout.Shards)
	for i := range out {
		w, err := r.store.OpenWriter(r.t.Context(), layout, "HITS", i)
		require.NoError(r.t, err)
		out[i] = w
	}
	return out
}

func batchOf(counter string, at, n int64) (*window.Batch, int) {
	b := window.NewBatch(layout)
	hash := window.HashCounter([]byte(counter))
	b.Add([]byte(counter), hash, at, at, n)
	return b, layout.ShardOf(hash)
}

func cursorAt(seq uint64, at time.Time) window.Cursor {
	return window.Cursor{Created: 1, Seq: seq, Stored: at.UnixNano(), AsOf: at.UnixMilli()}
}

func (r *rig) total(counter string, w time.Duration, now time.Time) window.Answer {
	r.t.Helper()
	out, err := r.answer(now, window.Question{Counter: counter, Span: window.Last(w)})
	require.NoError(r.t, err)
	return out.Answers[0]
}

// answer asks when Redis's clock says now.
func (r *rig) answer(now time.Time, questions ...window.Question) (out window.Answers, err error) {
	r.at(now, func() { out, err = r.reader.Answer(r.t.Context(), questions) })
	return out, err
}

// errOf is the error of a call of which nothing else matters.
func errOf[T any](_ T, err error) error { return err }

func (r *rig) mustExpire(keys []string) {
	r.t.Helper()
	for _, key := range keys {
		require.Positive(r.t, r.client.TTL(r.t.Context(), key).Val(), "%s does not expire", key)
	}
}
