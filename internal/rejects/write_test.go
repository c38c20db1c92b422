package rejects

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
	"tallyroll/tests/stack"
)

func TestRejectHasTheHeadersThatSayWhy(t *testing.T) {
	t.Parallel()
	r := New("HITS", 812, 1, hit.Reject{Reason: hit.BadJSON, Detail: "not a JSON object: \r\nX-Injected: 1\x00\u0085\xff", Item: 3, Body: []byte("{\xff\x00\r\n")})
	r.Namespace = "tallyroll"
	m, err := r.Message(1 << 20)
	require.NoError(t, err)
	if m.Subject != "hits_rejected.HITS" || string(m.Data) != "{\xff\x00\r\n" {
		t.Errorf("subject %q, body %q", m.Subject, m.Data)
	}
	for header, want := range map[string]string{
		"Tallyroll-Reason": "bad_json", "Tallyroll-Stream": "HITS", "Tallyroll-Sequence": "812", "Tallyroll-Item": "3",
		"Tallyroll-Detail": "not a JSON object:   X-Injected: 1  ?", "Nats-Msg-Id": "HITS:812:3", "Tallyroll-Encoding": "", "Tallyroll-Body-Size": "",
		"Tallyroll-Namespace": "tallyroll",
	} {
		require.Equal(t, want, m.Header.Get(header))
	}
	// Of another namespace, it is another message on another subject.
	r.Namespace = "shop_2.eu"
	m, err = r.Message(1 << 20)
	require.NoError(t, err)
	if m.Subject != "hits_rejected.HITS.shop__2_-eu" || m.Header.Get("Nats-Msg-Id") != "shop__2_-eu/HITS:812:3" || m.Header.Get("Tallyroll-Namespace") != "shop_2.eu" {
		t.Errorf("%s, %v", m.Subject, m.Header)
	}
}

func TestHeadersHoldOnlyPrintableText(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "plain", "a\r\nb", "\x00\x1f\x7f\u0080\u009f", "\xff\xfe", strings.Repeat("é", 1000), strings.Repeat("\xff", 1000)} {
		got := HeaderText(text)
		if strings.ContainsFunc(got, unicode.IsControl) || strings.ToValidUTF8(got, "") != got || len(got) > 300+len("…") {
			t.Errorf("HeaderText(%q) = %q", text, got)
		}
	}
	require.Equal(t, "ts ü is late", HeaderText("ts ü is late"))
}

// A body may name no counter: then the reject tells which one the subject named.
func TestRejectTellsTheCounterOfTheSubject(t *testing.T) {
	t.Parallel()
	for counter, want := range map[string]string{"shop.cart": "shop.cart", strings.Repeat("x", 513): "", "a\x01": ""} {
		r := New("HITS", 1, 1, hit.Reject{Reason: hit.TooLate, Body: []byte("{}")})
		r.Counter = counter
		m, err := r.Message(1 << 20)
		require.NoError(t, err)
		require.Equal(t, want, m.Header.Get("Tallyroll-Counter"))
	}
	r := New("HITS", 1, 1, hit.Reject{Reason: hit.TooLate, Body: []byte("{}")})
	r.Counter = strings.Repeat("x", 512)
	m, err := r.Message(1 << 10)
	require.NoError(t, err)
	require.Empty(t, m.Header.Get("Tallyroll-Counter"), "where it leaves too little room")
}

// The reject owns its bytes: the decoder's are gone with the next message.
func TestRejectOwnsItsBody(t *testing.T) {
	t.Parallel()
	body := []byte("bad")
	r := New("HITS", 1, 1, hit.Reject{Reason: hit.BadJSON, Body: body})
	copy(body, "xxx")
	require.Equal(t, "bad", string(r.Body))
}

// Whatever fits into a message of NATS can be rejected: the headers take what is left, and the body is
// compressed, or cut if that does not help.
func TestRejectOfAnySizeFits(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("S", 255) // the longest name of a stream
	noise := func(n int) []byte {
		body := make([]byte, n)
		_, err := rand.NewChaCha8([32]byte{}).Read(body)
		require.NoError(t, err)
		return body
	}
	text := func(n int) []byte { return fmt.Appendf(nil, "%x", noise(n/2)) }
	for _, test := range []struct {
		maxPayload int
		body       []byte
		stream     string
		zstd, cut  bool
	}{
		{16 << 10, nil, "HITS", false, false}, {16 << 10, noise(15 << 10), "HITS", false, false},
		{16 << 10, text(16 << 10), "HITS", true, false}, {16 << 10, noise(16 << 10), "HITS", false, true},
		{1 << 10, text(400), "HITS", false, false}, {1 << 10, bytes.Repeat([]byte("{},"), 340), long, true, false},
		{1 << 10, noise(1 << 10), long, false, true}, {512, noise(512), "HITS", false, true},
	} {
		r := New(test.stream, 1<<60, time.Now().UnixNano(), hit.Reject{Reason: hit.TooLarge, Detail: strings.Repeat("dü", 500), Item: 9999, Body: test.body})
		r.Namespace, r.Trace = "tallyroll", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
		m, err := r.Message(test.maxPayload)
		require.NoError(t, err)
		require.LessOrEqual(t, len(m.Data)+HeaderSize(m.Header)+len(namesakeSuffix(m.Header)), test.maxPayload)
		require.Equal(t, test.zstd, m.Header.Get("Tallyroll-Encoding") == "zstd")
		require.Equal(t, test.zstd || test.cut, m.Header.Get("Tallyroll-Body-Size") != "")
		body, size := BodyOf(m.Header, m.Data)
		require.Equal(t, len(test.body), size)
		require.True(t, bytes.HasPrefix(test.body, body))
		require.True(t, test.cut || len(body) == size)
		require.Equal(t, test.stream+":1152921504606846976:9999", m.Header.Get("Nats-Msg-Id"))
		if test.maxPayload > 1<<10 {
			require.Equal(t, r.Trace, m.Header.Get("traceparent"))
		}
		if detail := m.Header.Get("Tallyroll-Detail"); !utf8.ValidString(detail) || detail == "" {
			t.Errorf("detail %q", detail)
		}
	}
	if body, size := BodyOf(nats.Header{"Tallyroll-Encoding": {"zstd"}}, []byte("not a frame")); body != nil || size == 0 {
		t.Errorf("what no worker has encoded: %q of %d bytes", body, size)
	}
	if _, err := New("HITS", 1, 1, hit.Reject{Reason: hit.TooLarge}).Message(200); err == nil || !strings.Contains(err.Error(), "max_payload") {
		t.Errorf("where nothing fits: %v", err)
	}
}

// The smallest max_payload that a server with JetStream gets along with, for real.
func TestRejectsFitIntoASmallMaxPayload(t *testing.T) {
	t.Parallel()
	const maxPayload = 1 << 10
	js := stack.NATS(t, func(o *server.Options) { o.MaxPayload = maxPayload }).JetStream()
	require.NoError(t, Create(t.Context(), js, 1, 48*time.Hour))
	body := bytes.Repeat([]byte("x"), maxPayload)
	r := New("HITS", 1, 1, hit.Reject{Reason: hit.BadJSON, Detail: strings.Repeat("d", 300), Body: body})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if stored, err := Publish(ctx, js, hit.DefaultNamespace, []Reject{r}); err != nil || stored != 1 {
		t.Fatalf("%d stored: %v", stored, err)
	}
	require.EqualValues(t, 1, rejectsStored(t, js))
}

func rejectsStored(t *testing.T, js jetstream.JetStream) uint64 {
	t.Helper()
	handle, err := js.Stream(t.Context(), Stream)
	require.NoError(t, err)
	info, err := handle.Info(t.Context())
	require.NoError(t, err)
	return info.State.Msgs
}

// publishRejects stores rejects, which must all be stored, and returns how many messages the stream has then.
func publishRejects(t *testing.T, js jetstream.JetStream, rejects ...Reject) uint64 {
	t.Helper()
	stored, err := Publish(t.Context(), js, hit.DefaultNamespace, rejects)
	require.NoError(t, err)
	require.Len(t, rejects, stored)
	return rejectsStored(t, js)
}

// Rejects are stored once, however often they are published. A stream that was recreated numbers its messages
// again: its rejects are no duplicates of the previous ones, and many come at once if it is replayed.
func TestRejectsAreStoredOncePerIncarnation(t *testing.T) {
	t.Parallel()
	js := stack.NATS(t, func(o *server.Options) { o.MaxPayload = 64 << 10 }).JetStream()
	for range 2 { // the second finds the stream there
		require.NoError(t, Create(t.Context(), js, 1, 48*time.Hour))
	}
	for _, c := range []struct {
		incarnation int64
		want        uint64 // messages in the end
	}{{1, 1201}, {1, 1201}, {2, 2402}, {2, 2402}, {1, 2402}} {
		rejects := []Reject{New("HITS", 1, c.incarnation, hit.Reject{Reason: hit.TooLarge, Detail: "large", Body: bytes.Repeat([]byte("x"), 64<<10)})} // compressed
		for i := range 1200 {                                                                                                                          // more than go out at once
			rejects = append(rejects, New("HITS", uint64(2+i/3), c.incarnation, hit.Reject{Reason: hit.BadKey, Detail: "bad", Item: i % 3, Body: []byte("{}")}))
		}
		require.Equal(t, c.want, publishRejects(t, js, rejects...), c)
	}
	handle, err := js.Stream(t.Context(), Stream)
	require.NoError(t, err)
	msg, err := handle.GetMsg(t.Context(), 1201)
	require.NoError(t, err)
	require.Equal(t, []string{"hits_rejected.HITS", "HITS:401:2", "{}"}, []string{msg.Subject, msg.Header.Get("Nats-Msg-Id"), string(msg.Data)})
}

// Without a stream to take them, rejects do not count as stored.
func TestPublishRejectsNeedsTheStream(t *testing.T) {
	t.Parallel()
	js := stack.NATS(t).JetStream()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	stored, err := Publish(ctx, js, hit.DefaultNamespace, []Reject{New("HITS", 1, 1, hit.Reject{Reason: hit.BadKey, Detail: "bad"})})
	if err == nil || stored != 0 {
		t.Errorf("%d stored, %v", stored, err)
	}
}

// Whose reject the removed one was is unknown: it may have been that of a stream that was recreated.
func TestRejectsAreStoredThoughTheirNamesakeWasRemoved(t *testing.T) {
	t.Parallel()
	js := stack.NATS(t).JetStream()
	require.NoError(t, Create(t.Context(), js, 1, 48*time.Hour))
	handle, err := js.Stream(t.Context(), Stream)
	require.NoError(t, err)
	for _, incarnation := range []int64{1, 2, 2} {
		require.EqualValues(t, 1, publishRejects(t, js, New("HITS", 7, incarnation, hit.Reject{Reason: hit.BadKey, Detail: "bad", Body: []byte("{}")})))
		if incarnation == 1 {
			require.NoError(t, handle.DeleteMsg(t.Context(), 1))
		}
	}
}

// A reject that another domain has stored is not where it belongs.
func TestRejectStoredInAnotherDomain(t *testing.T) {
	t.Parallel()
	n := stack.NATS(t, func(o *server.Options) { o.JetStreamDomain = "hub" })
	err := Create(t.Context(), n.JetStream(), 1, time.Hour)
	require.NoError(t, err)
	for domain, want := range map[string]int{"hub": 1, "leaf": 0} {
		js, err := jetstream.NewWithDomain(n.Conn(), domain)
		require.NoError(t, err)
		stored, err := Publish(t.Context(), js, hit.DefaultNamespace, []Reject{New("HITS", 1, 1, hit.Reject{Reason: hit.BadKey, Detail: "bad"})})
		if stored != want || (err == nil) != (want == 1) {
			t.Errorf("to the domain %s: %d are stored, %v", domain, stored, err)
		}
	}
}
