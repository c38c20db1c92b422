package redrive

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/rs/zerolog"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/outbox"
	"tallyroll/internal/platform/progress"
	"tallyroll/internal/platform/setting"
	"tallyroll/internal/rejects"
	"tallyroll/tests/stack"
)

// refusing is a stream of hits and the stream of its rejects, and what a worker does to both.
type refusing struct {
	t    *testing.T
	nats *stack.NATSEmbedded
	conn *nats.Conn
	js   jetstream.JetStream
	of   string // the namespace; empty: the default one
}

func newRefusing(t *testing.T) refusing {
	t.Helper()
	r := refusing{t: t, nats: stack.NATS(t)}
	r.js = r.nats.JetStream()
	r.conn = r.js.Conn()
	for name, subjects := range map[string]string{"HITS": "hits.>", rejects.Stream: rejects.Subjects} {
		if _, err := r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{subjects}}); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func (r refusing) namespace() string { return cmp.Or(r.of, hit.DefaultNamespace) }

// header is what a worker writes about a reject: message seq of a stream, item 0.
func (r refusing) header(stream string, seq int, reason hit.Reason) nats.Header {
	return nats.Header{
		rejects.HeaderNamespace: {r.namespace()}, rejects.HeaderReason: {string(reason)}, rejects.HeaderDetail: {"because"}, rejects.HeaderStream: {stream},
		rejects.HeaderSequence: {strconv.Itoa(seq)}, rejects.HeaderItem: {"0"}, rejects.HeaderStored: {time.Unix(1e9, int64(seq)).UTC().Format(time.RFC3339Nano)},
	}
}

// store stores a message of a stream's rejects.
func (r refusing) store(stream, body string, header nats.Header) {
	r.t.Helper()
	_, err := r.js.PublishMsg(r.t.Context(), &nats.Msg{Subject: rejects.Subject(r.namespace(), stream), Data: []byte(body), Header: header})
	require.NoError(r.t, err)
}

// refuse stores a reject as a worker does: message seq of HITS.
func (r refusing) refuse(seq int, reason hit.Reason, body string) {
	r.t.Helper()
	h := r.header("HITS", seq, reason)
	h.Set(rejects.HeaderCounter, "of.subject")
	r.store("HITS", body, h)
}

func (r refusing) redrive(ctx context.Context, list io.Writer, args ...string) *counts {
	r.t.Helper()
	count, err := r.try(ctx, list, args...)
	if err != nil {
		r.t.Errorf("%v: %v", args, err)
	}
	return count
}

func (r refusing) try(ctx context.Context, list io.Writer, args ...string) (*counts, error) {
	r.t.Helper()
	var opts options
	require.NoError(r.t, newFlags(&opts).Read(args, ""))
	opts.namespace = r.namespace()
	conn := r.nats.Conn(outbox.ConnOptions()...)
	defer conn.Close()
	js, err := jetstream.New(conn)
	require.NoError(r.t, err)
	return redrive(ctx, conn, js, zerolog.Nop(), opts, list, progress.NewBar(io.Discard, "rejects"))
}

func (r refusing) wantSent(got *counts, again, before int64) {
	r.t.Helper()
	if got.again != again || got.before != before || got.unknown() != 0 {
		r.t.Errorf("%v; want %d again and %d before", got, again, before)
	}
}

// stored are the bodies in HITS, in order; those of arrays one by one.
func (r refusing) stored() (out []string) {
	r.t.Helper()
	return r.bodies("HITS")
}

func (r refusing) bodies(stream string) (out []string) {
	r.t.Helper()
	s, err := r.js.Stream(r.t.Context(), stream)
	require.NoError(r.t, err)
	state := s.CachedInfo().State
	for seq := max(1, state.FirstSeq); seq <= state.LastSeq; seq++ {
		m, err := s.GetMsg(r.t.Context(), seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) { // it was removed
			continue
		}
		require.NoError(r.t, err)
		out = append(out, string(m.Data))
	}
	return out
}

func (r refusing) want(stream string, bodies ...string) {
	r.t.Helper()
	if got := r.bodies(stream); strings.Join(got, "\n") != strings.Join(bodies, "\n") {
		r.t.Errorf("%s holds %q, want %q", stream, got, bodies)
	}
}

func TestRedriveSendsARejectOnceAndRemovesIt(t *testing.T) {
	t.Parallel()
	r := newRefusing(t)
	r.refuse(1, hit.TooLate, `{"key":"a","ts":1, "x":[1]}`)
	r.refuse(2, hit.TooLate, `{"ts":1}`)
	r.refuse(3, hit.BadKey, `{"key":""}`)
	r.refuse(4, hit.Future, fmt.Sprintf(`{"key":"b","ts":%d}`, time.Now().Add(time.Hour).UnixMilli()))
	r.refuse(5, hit.Future, `{"key":"c","ts":5}`) // its time has come
	got := r.redrive(t.Context(), io.Discard)
	r.wantSent(got, 1, 0)
	r.want("HITS", `{"key":"c","ts":5}`)
	for _, want := range []string{
		"found 5 rejects, 5 match; sent 1 again in 1 messages in ", "; left 4: 1 bad_key (would be refused again as it is; name it with --reason to send it all the same), ",
		"1 future (its time has not come: --ts now or stored; ", "2 too_late (counts only with --ts now or stored; ",
	} {
		require.Contains(t, got.String(), want)
	}
	r.wantSent(r.redrive(t.Context(), io.Discard, "--ts", "now", "--reason", "too_late"), 2, 0)
	r.want("HITS", `{"key":"c","ts":5}`, `{"key":"a","x":[1]}`, `{"key":"of.subject"}`)
	r.wantSent(r.redrive(t.Context(), io.Discard, "--ts", "stored"), 1, 0)
	r.wantSent(r.redrive(t.Context(), io.Discard, "--reason", "bad_key,bad_json"), 1, 0)
	r.want("HITS", `{"key":"c","ts":5}`, `{"key":"a","x":[1]}`, `{"key":"of.subject"}`, `{"key":"b","ts":1000000000000}`, `{"key":""}`)
	r.want(rejects.Stream)
	r.wantSent(r.redrive(t.Context(), io.Discard, "--ts", "now"), 0, 0)
}

// Whatever else changes in a hit, it keeps its unique value. A list does not show it.
func TestRedriveKeepsUnique(t *testing.T) {
	t.Parallel()
	r := newRefusing(t)
	r.refuse(1, hit.TooLate, `{"unique":"secret \u0031","ts":1,"key":"a"}`)
	r.refuse(2, hit.Future, `{"ts":2,"unique":"secret 2"}`)
	r.refuse(3, hit.TooLarge, `[{"key":"a","unique":"secret 3"},{"unique":"secret 4"}]`)
	r.refuse(4, hit.BadUnique, `{"key":"a","unique":["secret"]}`)
	var list bytes.Buffer
	got := r.redrive(t.Context(), &list, "--dry-run", "--ts", "now")
	r.redrive(t.Context(), &list, "--dry-run", "--reason", "bad_unique,too_large")
	if strings.Contains(list.String(), "secret") || strings.Count(list.String(), "…") != 4 {
		t.Errorf("the list shows unique values:\n%s", &list)
	}
	if want := "1 bad_unique (would be refused again as it is; "; !strings.Contains(got.String(), want) {
		t.Errorf("%q does not say %q", got, want)
	}
	r.wantSent(r.redrive(t.Context(), io.Discard, "--ts", "now", "--reason", "too_late,future,too_large"), 3, 0)
	r.want("HITS", `{"unique":"secret \u0031","key":"a"}`, `{"unique":"secret 2","key":"of.subject"}`, `[{"key":"a","unique":"secret 3"},{"unique":"secret 4","key":"of.subject"}]`)
	r.wantSent(r.redrive(t.Context(), io.Discard, "--reason", "bad_unique"), 1, 0)
	require.Equal(t, `{"key":"a","unique":["secret"]}`, r.bodies("HITS")[len(r.bodies("HITS"))-1])
}

// A publish that was killed after a message was stored, and before its reject was removed, leaves exactly
// this. The stream remembers ids for a moment only: they are not what the promise rests on.
func TestRedriveFindsWhatAKilledOneHasStored(t *testing.T) {
	t.Parallel()
	for _, repeats := range []int{0, 1} { // a replay may also have stored the reject again
		r := newRefusing(t)
		_, err := r.js.UpdateStream(t.Context(), jetstream.StreamConfig{Name: "HITS", Subjects: []string{"hits.>"}, Duplicates: 100 * time.Millisecond})
		require.NoError(t, err)
		r.refuse(1, hit.TooLate, `{"key":"a"}`)
		for range repeats {
			r.refuse(1, hit.TooLate, `{"key":"a"}`)
		}
		r.wantSent(r.redrive(t.Context(), io.Discard, "--ts", "now"), 1, int64(repeats))
		for known := true; known; { // until the stream has forgotten an id that is younger
			probe := nats.NewMsg("hits.probe")
			probe.Header.Set(nats.MsgIdHdr, "younger")
			ack, err := r.js.PublishMsg(t.Context(), probe)
			require.NoError(t, err)
			known = ack.Duplicate || ack.Sequence == 2
			time.Sleep(10 * time.Millisecond)
		}
		r.refuse(1, hit.TooLate, `{"key":"a"}`)
		r.wantSent(r.redrive(t.Context(), io.Discard, "--ts", "now"), 0, 1)
		r.want("HITS", `{"key":"a"}`, "", "")
		r.want(rejects.Stream)
	}
}

// A refusal is believed only if the message that was there is the reject's own.
func TestRedriveBelievesNoOtherMessage(t *testing.T) {
	t.Parallel()
	r := newRefusing(t)
	r.refuse(7, hit.TooLate, `{"key":"a"}`)
	refused, _ := rejects.Parse(nats.Header{
		rejects.HeaderStream: {"HITS"}, rejects.HeaderSequence: {"7"}, rejects.HeaderItem: {"0"}, rejects.HeaderReason: {"x"},
		rejects.HeaderStored: {time.Unix(1e9, 7).UTC().Format(time.RFC3339Nano)}, rejects.HeaderNamespace: {hit.DefaultNamespace},
	})
	if _, err := r.js.Publish(t.Context(), "hits."+refused.Name(), []byte("another")); err != nil {
		t.Fatal(err)
	}
	got := r.redrive(t.Context(), io.Discard, "--ts", "now")
	r.wantSent(got, 0, 0)
	require.Contains(t, got.String(), "another message has its subject")
	r.want(rejects.Stream, `{"key":"a"}`)
}

// Two namespaces have refused the same hits of one stream. Each sends its own again, under names of its own,
// and for itself alone.
func TestRedriveSendsOnlyItsNamespace(t *testing.T) {
	t.Parallel()
	r := newRefusing(t)
	other := r
	other.of = "a_b.c"
	r.refuse(1, hit.TooLate, `{"key":"a"}`)
	other.refuse(1, hit.TooLate, `{"key":"a"}`)
	other.refuse(2, hit.TooLarge, `[{"key":"b"},{"key":"b"}]`)
	require.NoError(t, r.conn.Publish(rejects.Subject(other.of, "HITS"), []byte("nobody's")))
	for _, of := range []struct {
		refusing
		found, sent int64
	}{{r, 1, 1}, {other, 3, 2}} {
		got := of.redrive(t.Context(), io.Discard, "--ts", "now", "--reason", "too_late,too_large")
		of.wantSent(got, of.sent, 0)
		require.Equal(t, of.found, got.found, of.namespace())
	}
	r.want("HITS", `{"key":"a"}`, `{"key":"a"}`, `[{"key":"b"},{"key":"b"}]`)
	r.want(rejects.Stream, "nobody's")
	hits, err := r.js.Stream(t.Context(), "HITS")
	require.NoError(t, err)
	stored := strconv.FormatInt(1e18+1, 36)
	for i, want := range []struct{ subject, namespace string }{
		{"hits.redrive-HITS-1-0-" + stored, "tallyroll"}, {"hits.redrive-a__b_-c/HITS-1-0-" + stored, "a_b.c"},
	} {
		m, err := hits.GetMsg(t.Context(), uint64(i+1))
		require.NoError(t, err)
		if of := m.Header.Get("Tallyroll-Namespace"); m.Subject != want.subject || of != want.namespace {
			t.Errorf("%s for %q; want %v", m.Subject, of, want)
		}
	}
}

// A message that was refused whole is sent again whole, even if it was compressed. What is not made of
// objects stays, and so does what was cut.
func TestRedriveSendsAWholeMessage(t *testing.T) {
	t.Parallel()
	r := newRefusing(t)
	body := `[{"key":"a"},{"n":2},,{"key":"c"}` + strings.Repeat(" ", 1<<10) + "]"
	refused := rejects.New("HITS", 1, 1e18, hit.Reject{Reason: hit.TooLarge, Body: []byte(body)})
	refused.Namespace, refused.Counter = r.namespace(), "of.subject"
	compressed, err := refused.Message(1 << 10)
	require.NoError(t, err)
	r.store("HITS", string(compressed.Data), compressed.Header)
	if got := r.redrive(t.Context(), io.Discard); !strings.Contains(got.String(), "left 1: 1 too_large (counts only with a larger INGEST_MAX_HITS; ") {
		t.Error(got)
	}
	again := []string{"--reason", "too_large"}
	r.wantSent(r.redrive(t.Context(), io.Discard, again...), 1, 0)
	r.want("HITS", `[{"key":"a"},{"n":2,"key":"of.subject"},{"key":"c"}]`)
	r.want(rejects.Stream)

	r.refuse(2, hit.TooLarge, "{}\nx")
	cut := r.header("HITS", 3, hit.TooLarge)
	cut.Set(rejects.HeaderBodySize, "4")
	r.store("HITS", "{}", cut)
	got := r.redrive(t.Context(), io.Discard, again...).String()
	require.Contains(t, got, "left 2: ")
	require.Contains(t, got, "1 too_large (not a JSON object")
	require.Contains(t, got, "1 too_large (only the first 2 of 4 bytes fitted into a message")
	r.want(rejects.Stream, "{}\nx", "{}")
}

func TestRedriveSendsWhatItsFlagsChoose(t *testing.T) {
	t.Parallel()
	r := newRefusing(t)
	if _, err := r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "FIXED", Subjects: []string{"orders"}}); err != nil {
		t.Fatal(err)
	}
	r.refuse(1, hit.TooLarge, `{"key":"a"}`)
	r.refuse(2, hit.BadJSON, `x`)
	noItem := r.header("HITS", 3, hit.TooLarge) // no worker writes that
	noItem.Del(rejects.HeaderItem)
	noItem.Del(rejects.HeaderStored)
	r.store("HITS", "", noItem)
	for _, stream := range []string{"FIXED", "GONE"} {
		r.store(stream, `{"key":"b"}`, r.header(stream, 1, hit.TooLarge))
	}
	var list bytes.Buffer
	got := r.redrive(t.Context(), &list, "--dry-run", "--reason", "too_large")
	if got.would != 1 || list.String() != "too_large\tHITS 1:0\tbecause\t\"{\\\"key\\\":\\\"a\\\"}\"\n" {
		t.Errorf("%q, %v", list.String(), got)
	}
	r.want("HITS")
	got = r.redrive(t.Context(), io.Discard, "--reason", "too_large,bad_json")
	r.wantSent(got, 1, 0)
	for _, want := range []string{
		"found 5 rejects, 5 match", "1 no subject of stream FIXED has a wildcard: give --subject", "1 stream GONE is gone: give --subject",
		"1 not written by ingest in this namespace", "1 bad_json (not a JSON object: mend it and publish it)",
	} {
		require.Contains(t, got.String(), want)
	}
	r.wantSent(r.redrive(t.Context(), io.Discard, "--stream", "GONE", "--reason", "too_large", "--subject", "hits.again", "--rate", "1000"), 1, 0)
	r.want("HITS", `[{"key":"a"}]`, `[{"key":"b"}]`)
}

func TestRedriveReportsThatThereAreNoRejects(t *testing.T) {
	t.Parallel()
	r := newRefusing(t)
	if got := r.redrive(t.Context(), io.Discard).String(); !strings.HasPrefix(got, "found 0 rejects, 0 match; sent 0 again in 0 messages") {
		t.Error(got)
	}
	require.NoError(t, r.js.DeleteStream(t.Context(), rejects.Stream))
	if got := r.redrive(t.Context(), io.Discard).String(); !strings.HasPrefix(got, "no stream HITS_REJECTED") {
		t.Error(got)
	}
}

func TestRedriveEndsAtAnInterrupt(t *testing.T) {
	t.Parallel()
	r := newRefusing(t)
	for i := range 100 {
		r.refuse(1+i, hit.TooLate, `{"key":"a"}`)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	stored, err := r.conn.SubscribeSync("hits.>")
	require.NoError(t, err)
	require.NoError(t, r.conn.Flush())
	done := make(chan *counts, 1)
	go func() { done <- r.redrive(ctx, io.Discard, "--ts", "now", "--rate", "20") }()
	if _, err := stored.NextMsg(stack.Hung); err != nil {
		t.Fatal(err)
	}
	interrupt()
	got := <-done
	if !got.cut || got.again == 0 || int(got.again)+len(r.bodies(rejects.Stream)) != 100 || len(r.stored()) != int(got.again) {
		t.Errorf("%v: %d are left and %d stored", got, len(r.bodies(rejects.Stream)), len(r.stored()))
	}
	r.wantSent(r.redrive(t.Context(), io.Discard, "--ts", "now"), 100-got.again, 0)
}

func TestRedriveSurvivesARestartOfTheServer(t *testing.T) {
	t.Parallel()
	r := newRefusing(t)
	const n = 200
	var want []string
	for i := range n {
		want = append(want, fmt.Sprintf(`{"key":"%d"}`, i))
		r.refuse(1+i, hit.TooLate, want[i])
	}
	stored, err := r.conn.SubscribeSync("hits.>")
	require.NoError(t, err)
	require.NoError(t, r.conn.Flush())
	done := make(chan *counts, 1)
	go func() { done <- r.redrive(t.Context(), io.Discard, "--ts", "now", "--rate", "200") }()
	for range 10 {
		if _, err := stored.NextMsg(stack.Hung); err != nil {
			t.Fatal(err)
		}
	}
	r.nats.Stop()
	r.nats.Start()
	if got := <-done; got.again+got.before != n || got.kept != 0 || got.unknown() != 0 {
		t.Error(got)
	}
	got := r.stored()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%d messages are stored: %q", len(got), got)
	}
	r.want(rejects.Stream)
}

func TestRedriveReportsWhatItCannotRemove(t *testing.T) {
	t.Parallel()
	r := newRefusing(t)
	require.NoError(t, r.js.DeleteStream(t.Context(), rejects.Stream))
	if _, err := r.js.CreateStream(t.Context(), jetstream.StreamConfig{Name: rejects.Stream, Subjects: []string{rejects.Subjects}, DenyDelete: true}); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		r.refuse(1+i, hit.Future, `{"key":"a","ts":5}`)
	}
	for range 2 {
		got, err := r.try(t.Context(), io.Discard)
		if err == nil || !strings.Contains(err.Error(), "3 rejects are stored again and could not be removed from HITS_REJECTED") || got.again+got.before != 3 {
			t.Errorf("%v, %v", got, err)
		}
	}
	require.Len(t, r.stored(), 3)
}

func TestTargetOfARejectIsInItsStream(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ subjects, want string }{
		{"hits.>", "hits.>"}, {"orders hitp.3.>", "hitp.3.>"}, {"web.*.hits.*", "web.redrive.hits.>"}, {"*.x", ">.x"}, {"orders", ""}, {"", ""},
	} {
		if got := targetIn("S", strings.Fields(c.subjects)); got.pattern != c.want || (got.why == "") != (c.want != "") {
			t.Errorf("%q: %+v, want %q", c.subjects, got, c.want)
		}
	}
}

func TestRemadeHitHasItsTimeAndName(t *testing.T) {
	t.Parallel()
	r := newReject(rejects.Message{Reject: rejects.Reject{Counter: `a"b`, Stored: 77e6}})
	for _, c := range []struct {
		body string
		ts   timing
		want string
	}{
		{`{"key":"a", "ts":5}`, keepTime, `{"key":"a", "ts":5}`},
		{"", keepTime, `{"key":"a\"b"}`},
		{"{\n}", storedTime, `{"key":"a\"b","ts":77}`},
		{`{"ts":"x","key":"a","\u0074s":1,"o":{"ts":1}}`, nowTime, `{"key":"a","o":{"ts":1}}`},
		{`{"n" : 3 ,"key":"a"}`, storedTime, `{"n" : 3,"key":"a","ts":77}`},
		{`{"x":"` + "\xff" + `","ts":1,"key":"a"}`, nowTime, `{"x":"` + "\xff" + `","key":"a"}`},
		{`[{"key":"a"}]`, keepTime, ""},
		{`{"key":"a"} x`, keepTime, ""},
	} {
		got, err := r.edit([]byte(c.body), c.ts)
		if string(got) != c.want || (err == nil) != (c.want != "") {
			t.Errorf("%q with %s: %q, %v; want %q", c.body, c.ts, got, err, c.want)
		}
	}
	if _, err := newReject(rejects.Message{}).edit([]byte(`{"n":1}`), keepTime); err != errNoCounter {
		t.Error(err)
	}
}

func TestFlagsThatContradictAreRefused(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--reason too_late,future --reason bad_key --stream HITS --ts now --dry-run --subject a.b --rate 5": "",
		"--reason late":    "bad_json, bad_field, bad_key",
		"--ts then":        "keep, now or stored",
		"--stream HITS.>":  "the name of a stream",
		"--subject hits.>": "without wildcards",
		"--rate -1":        "a number from 0 to 1e9",
		"--batch 5":        "-batch: see redrive --help",
		"stray":            `unexpected argument "stray": rejects are read from HITS_REJECTED: see redrive --help`,
	} {
		err := Run(t.Context(), append(strings.Fields(args), "--version"), io.Discard, io.Discard)
		var usage setting.UsageError
		if want == "" && err != nil || want != "" && (!errors.As(err, &usage) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}
