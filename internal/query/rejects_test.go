package query

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
	"tallyroll/internal/rejects"
	"tallyroll/internal/status"
	"tallyroll/tests/asking"
	"tallyroll/tests/stack"
)

// reject publishes a reject as a worker does.
func reject(t *testing.T, js jetstream.JetStream, stream string, reason hit.Reason, seq int, body string) {
	t.Helper()
	rejectIn(t, js, asking.Namespace, stream, reason, seq, body)
}

func rejectIn(t *testing.T, js jetstream.JetStream, namespace, stream string, reason hit.Reason, seq int, body string) {
	t.Helper()
	publish(t, js, rejects.Subject(namespace, stream), body, rejects.HeaderReason, string(reason), rejects.HeaderDetail, "detail of "+string(reason),
		rejects.HeaderStream, stream, rejects.HeaderSequence, fmt.Sprint(seq), rejects.HeaderItem, "1", rejects.HeaderNamespace, namespace)
}

func TestRejects(t *testing.T) {
	t.Parallel()
	broker, redis, now := stack.NATS(t), stack.Redis(t), asking.Now()
	_, h := withNATS(t, redis.URL(), broker, now)
	js := broker.JetStream()
	none := decoded(t, h, "/v1/rejects", func(status.RejectsAnswer) bool { return true })
	if none.Stored != 0 || none.Searched != 0 || none.Rejects == nil || none.Reasons == nil {
		t.Errorf("before there are any: %+v", none)
	}
	makeStream(t, js, rejects.Stream, rejects.Subjects)
	decoded(t, h, "/v1/rejects", func(a status.RejectsAnswer) bool { return a.Stored == 0 })
	long := strings.Repeat("x", 512-1) + "é" // the last character would be cut in two
	reject(t, js, "HITS", hit.BadJSON, 1, "a=1")
	reject(t, js, "HITS", hit.TooLate, 2, long)
	reject(t, js, "HITS_2", hit.BadJSON, 3, "\xff\xfe")
	publish(t, js, rejects.Subject(asking.Namespace, "HITS"), "nobody's") // without headers
	rejectIn(t, js, "another", "HITS", hit.BadKey, 1, "another fleet's")
	rejectIn(t, js, hit.DefaultNamespace, "HITS", hit.BadKey, 1, "another fleet's")

	all := decoded(t, h, "/v1/rejects", func(a status.RejectsAnswer) bool { return a.Searched == 3 })
	if all.Stored != 3 || len(all.Rejects) != 3 || len(all.Reasons) != 2 || all.Reasons[0].Reason != "bad_json" || all.Reasons[0].Count != 2 {
		t.Fatalf("%+v", all)
	}
	for i, want := range []status.Rejected{
		{Reason: "bad_json", Detail: "detail of bad_json", Stream: "HITS_2", Sequence: 3, Item: 1, Body: "\ufffd", Bytes: 2, Position: 3},
		{Reason: "too_late", Detail: "detail of too_late", Stream: "HITS", Sequence: 2, Item: 1, Body: long[:512-1], Bytes: 512 + 1, Position: 2},
		{Reason: "bad_json", Detail: "detail of bad_json", Stream: "HITS", Sequence: 1, Item: 1, Body: "a=1", Bytes: 3, Position: 1},
	} {
		got := all.Rejects[i]
		if age := time.Since(got.Time); age < 0 || age > time.Minute {
			t.Errorf("reject %d was stored at %v", i, got.Time)
		}
		got.Time = time.Time{}
		if got != want {
			t.Errorf("reject %d\n%+v\nwant\n%+v", i, got, want)
		}
	}
	// Hours are those of all that were asked for, on whatever page. An hour may have ended meanwhile.
	for target, want := range map[string]int{"/v1/rejects?limit=1": 3, "/v1/rejects?before=1": 3, "/v1/rejects?reason=bad_json": 2, "/v1/rejects?reason=future": 0} {
		sum, hours := 0, decoded(t, h, target, func(status.RejectsAnswer) bool { return true }).Hours
		for _, hour := range hours {
			sum += hour.Count
		}
		if sum != want || hours == nil || len(hours) > 2 {
			t.Errorf("%s: %+v, want %d rejects", target, hours, want)
		}
	}
	for target, want := range map[string][]uint64{
		"/v1/rejects?limit=1":                          {3},
		"/v1/rejects?reason=bad_json":                  {3, 1},
		"/v1/rejects?reason=bad_json&limit=1":          {3},
		"/v1/rejects?stream=HITS":                      {2, 1},
		"/v1/rejects?stream=HITS_2&reason=too_late":    {},
		"/v1/rejects?stream=HITS&reason=bad_json":      {1},
		"/v1/rejects?before=3":                         {2, 1},
		"/v1/rejects?before=3&limit=1":                 {2},
		"/v1/rejects?reason=bad_json&before=3":         {1},
		"/v1/rejects?before=1":                         {},
		"/v1/rejects?stream=no%20stream&reason=future": {},
	} {
		positions := []uint64{}
		for _, r := range decoded(t, h, target, func(status.RejectsAnswer) bool { return true }).Rejects {
			positions = append(positions, r.Position)
		}
		if !slices.Equal(positions, want) {
			t.Errorf("%s: %v, want %v", target, positions, want)
		}
	}
	for target, detail := range map[string]string{
		"/v1/rejects?limit=0":         "limit: ",
		"/v1/rejects?limit=101":       "from 1 to 100",
		"/v1/rejects?reason=bad":      `reason: "bad": allowed are bad_json, bad_key`,
		"/v1/rejects?reason=":         "reason: it is empty",
		"/v1/rejects?stream=":         "stream: it is empty",
		"/v1/rejects?before=0":        "before: ",
		"/v1/rejects?window=1h":       "unknown parameter",
		"/v1/rejects?limit=1&limit=2": "2 times",
	} {
		if p := asking.Refused(t, asking.Ask(h, http.MethodGet, target, ""), http.StatusBadRequest); !strings.Contains(p.Detail, detail) {
			t.Errorf("%s: %s, want %s", target, p.Detail, detail)
		}
	}

	// Its consumers do not pile up.
	stream, err := js.Stream(t.Context(), rejects.Stream)
	require.NoError(t, err)
	stack.Eventually(t, "no consumer to be left", func() (bool, string) {
		info, err := stream.Info(t.Context())
		return err == nil && info.State.Consumers == 0, fmt.Sprint(info, err)
	})
	require.NoError(t, stream.Purge(t.Context()))
	gone := decoded(t, h, "/v1/rejects", func(a status.RejectsAnswer) bool { return a.Stored == 0 })
	if len(gone.Rejects) != 0 {
		t.Errorf("after a purge: %+v", gone)
	}
}

// Only the newest of many are looked at, and the answer says so.
func TestManyRejects(t *testing.T) {
	t.Parallel()
	broker, redis := stack.NATS(t), stack.Redis(t)
	_, h := withNATS(t, redis.URL(), broker, asking.Now())
	js := broker.JetStream()
	makeStream(t, js, rejects.Stream, rejects.Subjects)
	reject(t, js, "HITS", hit.Future, 1, "the oldest")
	rejectMany(t, js, asking.Namespace, 1000)
	got := decoded(t, h, "/v1/rejects?reason=future", func(a status.RejectsAnswer) bool { return a.Stored == 1000+1 })
	if got.Searched != 1000 || len(got.Rejects) != 0 {
		t.Errorf("searched %d, found %d", got.Searched, len(got.Rejects))
	}
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
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(stack.Hung):
		t.Fatal("not all are stored")
	}
}

// The newest rejects are found wherever they are: between them are gaps, of rejects that were sent again, and another
// fleet's rejects.
func TestRejectsAmongGapsAndOthers(t *testing.T) {
	t.Parallel()
	broker, redis := stack.NATS(t), stack.Redis(t)
	_, h := withNATS(t, redis.URL(), broker, asking.Now())
	js := broker.JetStream()
	makeStream(t, js, rejects.Stream, rejects.Subjects)
	stream, err := js.Stream(t.Context(), rejects.Stream)
	require.NoError(t, err)
	reject(t, js, "HITS", hit.Future, 1, "a")
	reject(t, js, "HITS", hit.TooLate, 2, "b")
	rejectMany(t, js, asking.Namespace, 1000+10)
	for seq := uint64(3); seq <= 1000+12; seq++ { // as redrive removes what it has sent
		require.NoError(t, stream.DeleteMsg(t.Context(), seq))
	}
	decoded(t, h, "/v1/rejects", func(a status.RejectsAnswer) bool { return a.Stored == 2 && a.Searched == 2 && len(a.Rejects) == 2 })
	rejectMany(t, js, "another", 3*1000)
	got := decoded(t, h, "/v1/rejects?limit=1", func(status.RejectsAnswer) bool { return true })
	if got.Stored != 2 || got.Searched != 2 || len(got.Rejects) != 1 || got.Rejects[0].Position != 2 {
		t.Errorf("behind another fleet's: %+v", got)
	}
	rejectMany(t, js, asking.Namespace, 5*1000/2)
	rejectMany(t, js, "another", 1000)
	got = decoded(t, h, "/v1/rejects", func(a status.RejectsAnswer) bool { return a.Stored == 2+5*1000/2 })
	if last := uint64(1000 + 12 + 3*1000 + 5*1000/2); got.Searched != 1000 || got.Rejects[0].Position != last {
		t.Errorf("searched %d, and the newest is at %d, not %d", got.Searched, got.Rejects[0].Position, last)
	}
}

// The examples of the documentation are answered, and are what their schemas say.
func TestDocumentedRequestsWithNATS(t *testing.T) {
	t.Parallel()
	broker, redis, now := stack.NATS(t), stack.Redis(t), asking.Now()
	asking.Seed(t, redis.Client(), now, asking.Hits("a", now, 1))
	_, h := withNATS(t, redis.URL(), broker, now)
	var doc document
	require.NoError(t, json.Unmarshal(asking.ReadAll(t, asking.Ask(h, http.MethodGet, "/openapi.json", "")), &doc))
	for _, path := range []string{"/v1/streams", "/v1/rejects"} {
		op, described := doc.Paths[path]["get"]
		if !described || op.Responses["501"].Description == "" {
			t.Errorf("%s is not described, or not that it may answer 501: %+v", path, op.Responses)
		}
		decoded(t, h, path, func(map[string]any) bool { return true })
	}
	decoded(t, h, "/v1/rejects?reason=too_late", func(map[string]any) bool { return true })
}
