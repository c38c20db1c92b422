package status

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
	"tallyroll/internal/rejects"
	"tallyroll/tests/apitest"
	"tallyroll/tests/stack"
)

// reject publishes a reject of a namespace as its worker does.
func reject(t *testing.T, js jetstream.JetStream, namespace, stream string, reason hit.Reason, seq int, body string) {
	t.Helper()
	publish(t, js, rejects.Subject(namespace, stream), body, nats.Header{
		rejects.HeaderReason: {string(reason)}, rejects.HeaderDetail: {"detail of " + string(reason)}, rejects.HeaderStream: {stream},
		rejects.HeaderSequence: {fmt.Sprint(seq)}, rejects.HeaderItem: {"1"}, rejects.HeaderNamespace: {namespace},
	})
}

// A compressed reject is shown as it was refused, and one that was cut with the bytes that it had.
func TestRejectsThatWouldNotFitAreShown(t *testing.T) {
	t.Parallel()
	_, h, js := onNATS(t)
	createStream(t, js, rejects.Stream, rejects.Subjects)
	noise := make([]byte, 4<<10)
	_, err := rand.NewChaCha8([32]byte{}).Read(noise)
	require.NoError(t, err)
	for seq, body := range [][]byte{[]byte("first" + strings.Repeat("x", 4<<10)), noise} {
		r := rejects.New("HITS", uint64(seq+1), time.Now().UnixNano(), hit.Reject{Reason: hit.TooLarge, Body: body})
		r.Namespace = apitest.Namespace
		m, err := r.Message(2 << 10)
		require.NoError(t, err)
		_, err = js.PublishMsg(t.Context(), m)
		require.NoError(t, err)
	}
	got := awaitAnswer(t, h, "/v1/rejects", func(a RejectsAnswer) bool { return a.Searched == 2 })
	require.Equal(t, len(noise), got.Rejects[0].Bytes)
	require.Equal(t, 4<<10+5, got.Rejects[1].Bytes)
	require.Equal(t, "first", strings.TrimRight(got.Rejects[1].Body, "x"))
}

func TestRejectsAreListedWithTheirReasons(t *testing.T) {
	t.Parallel()
	_, h, js := onNATS(t)
	none := get[RejectsAnswer](t, h, "/v1/rejects") // before there is a stream
	require.Equal(t, RejectsAnswer{Reasons: []reasonCount{}, Hours: []hourCount{}, Rejects: []Rejected{}}, none)
	stream := createStream(t, js, rejects.Stream, rejects.Subjects)
	long := strings.Repeat("x", maxRejectBody-1) + "é" // the last character would be cut in two
	reject(t, js, apitest.Namespace, "HITS", hit.BadJSON, 1, "a=1")
	reject(t, js, apitest.Namespace, "HITS", hit.TooLate, 2, long)
	reject(t, js, apitest.Namespace, "HITS_2", hit.BadJSON, 3, "\xff\xfe")
	publish(t, js, rejects.Subject(apitest.Namespace, "HITS"), "nobody's", nil) // without headers
	reject(t, js, "another", "HITS", hit.BadKey, 1, "another fleet's")
	reject(t, js, hit.DefaultNamespace, "HITS", hit.BadKey, 1, "another fleet's")

	all := awaitAnswer(t, h, "/v1/rejects", func(a RejectsAnswer) bool { return a.Searched == 3 })
	if all.Stored != 3 || len(all.Rejects) != 3 || len(all.Reasons) != 2 || all.Reasons[0].Reason != "bad_json" || all.Reasons[0].Count != 2 {
		t.Fatalf("%+v", all)
	}
	for i, want := range []Rejected{
		{Reason: "bad_json", Detail: "detail of bad_json", Stream: "HITS_2", Sequence: 3, Item: 1, Body: "\ufffd", Bytes: 2, Position: 3},
		{Reason: "too_late", Detail: "detail of too_late", Stream: "HITS", Sequence: 2, Item: 1, Body: long[:maxRejectBody-1], Bytes: maxRejectBody + 1, Position: 2},
		{Reason: "bad_json", Detail: "detail of bad_json", Stream: "HITS", Sequence: 1, Item: 1, Body: "a=1", Bytes: 3, Position: 1},
	} {
		got := all.Rejects[i]
		require.False(t, got.Time.IsZero())
		got.Time = time.Time{}
		require.Equal(t, want, got)
	}
	for query, want := range map[string]struct {
		hits      int // in the hours: of all that were asked for, on whatever page
		positions []uint64
	}{
		"limit=1":                          {3, []uint64{3}},
		"reason=bad_json":                  {2, []uint64{3, 1}},
		"reason=bad_json&limit=1":          {2, []uint64{3}},
		"stream=HITS":                      {2, []uint64{2, 1}},
		"stream=HITS_2&reason=too_late":    {0, nil},
		"stream=HITS&reason=bad_json":      {1, []uint64{1}},
		"before=3":                         {3, []uint64{2, 1}},
		"before=3&limit=1":                 {3, []uint64{2}},
		"reason=bad_json&before=3":         {2, []uint64{1}},
		"before=1":                         {3, nil},
		"stream=no%20stream&reason=future": {0, nil},
	} {
		got := get[RejectsAnswer](t, h, "/v1/rejects?"+query)
		hits, positions := 0, []uint64(nil)
		for _, hour := range got.Hours {
			hits += hour.Count
		}
		for _, r := range got.Rejects {
			positions = append(positions, r.Position)
		}
		if hits != want.hits || got.Hours == nil || !slices.Equal(positions, want.positions) {
			t.Errorf("%s: %v, and %d in the hours; want %+v", query, positions, hits, want)
		}
	}
	checkRefusals(t, h, map[string]string{
		"/v1/rejects?limit=0": "limit: ", "/v1/rejects?limit=101": "from 1 to 100", "/v1/rejects?before=0": "before: ",
		"/v1/rejects?reason=bad": `reason: "bad": must be one of bad_json, bad_field, bad_key`, "/v1/rejects?reason=": "reason: empty", "/v1/rejects?stream=": "stream: empty",
	})

	stack.Eventually(t, "no consumer to be left", func() (bool, string) {
		info, err := stream.Info(t.Context())
		return err == nil && info.State.Consumers == 0, fmt.Sprint(info, err)
	})
	require.NoError(t, stream.Purge(t.Context()))
	require.Empty(t, awaitAnswer(t, h, "/v1/rejects", func(a RejectsAnswer) bool { return a.Stored == 0 }).Rejects)
}

// rejectMany publishes as many rejects of a namespace, all with the reason bad_key.
func rejectMany(t *testing.T, js jetstream.JetStream, namespace string, n int) {
	t.Helper()
	for range n {
		_, err := js.PublishMsgAsync(&nats.Msg{Subject: rejects.Subject(namespace, "HITS"), Header: nats.Header{
			rejects.HeaderNamespace: {namespace}, rejects.HeaderReason: {string(hit.BadKey)}, rejects.HeaderStream: {"HITS"},
		}})
		require.NoError(t, err)
	}
	<-js.PublishAsyncComplete()
}

// The newest thousand rejects are found wherever they are: between them are gaps, of rejects that were sent
// again, and another fleet's rejects.
func TestNewestRejectsAreFoundAmongGapsAndOthers(t *testing.T) {
	t.Parallel()
	_, h, js := onNATS(t)
	stream := createStream(t, js, rejects.Stream, rejects.Subjects)
	reject(t, js, apitest.Namespace, "HITS", hit.Future, 1, "a")
	reject(t, js, apitest.Namespace, "HITS", hit.TooLate, 2, "b")
	rejectMany(t, js, apitest.Namespace, maxSearched+10)
	full := awaitAnswer(t, h, "/v1/rejects?reason=future", func(a RejectsAnswer) bool { return a.Stored == maxSearched+12 })
	if full.Searched != maxSearched || len(full.Rejects) != 0 {
		t.Errorf("of many: searched %d, found %d", full.Searched, len(full.Rejects))
	}
	for seq := uint64(3); seq <= maxSearched+12; seq++ { // as redrive removes what it has sent
		require.NoError(t, stream.DeleteMsg(t.Context(), seq))
	}
	awaitAnswer(t, h, "/v1/rejects", func(a RejectsAnswer) bool { return a.Stored == 2 && a.Searched == 2 && len(a.Rejects) == 2 })
	rejectMany(t, js, "another", 3*maxSearched)
	rejectMany(t, js, apitest.Namespace, 1)
	last := uint64(maxSearched + 12 + 3*maxSearched + 1)
	behind := awaitAnswer(t, h, "/v1/rejects?limit=2", func(a RejectsAnswer) bool { return a.Stored == 3 })
	if behind.Searched != 3 || len(behind.Rejects) != 2 || behind.Rejects[0].Position != last || behind.Rejects[1].Position != 2 {
		t.Errorf("behind another fleet's: %+v", behind)
	}
	rejectMany(t, js, apitest.Namespace, 5*maxSearched/2)
	rejectMany(t, js, "another", maxSearched)
	newest := awaitAnswer(t, h, "/v1/rejects", func(a RejectsAnswer) bool { return a.Stored == 3+5*maxSearched/2 })
	if last += 5 * maxSearched / 2; newest.Searched != maxSearched || newest.Rejects[0].Position != last {
		t.Errorf("searched %d, and the newest is at %d, not %d", newest.Searched, newest.Rejects[0].Position, last)
	}
}

// Rejects are counted by the hour in which they were refused, and of many hours the newest are listed.
func TestRejectsAreCountedByTheHour(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 21, 10, 59, 59, 0, time.UTC)
	picked := []Rejected{{refused: at}}
	for i := range 40 { // of the hours 10, 9, 7, 6, 4 and so on
		picked = append(picked, Rejected{Time: at.Add(-1000 * time.Hour), refused: at.Add(-time.Duration(i+i/2) * time.Hour)})
	}
	got, newest := countHours(picked), at.Truncate(time.Hour)
	require.Len(t, got, mostHours)
	require.Equal(t, []hourCount{{newest, 2}, {newest.Add(-time.Hour), 1}, {newest.Add(-3 * time.Hour), 1}}, got[:3])
	require.True(t, slices.IsSortedFunc(got, func(a, b hourCount) int { return b.Hour.Compare(a.Hour) }), "the newest first")
}
