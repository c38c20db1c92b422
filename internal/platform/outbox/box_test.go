package outbox

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// hits is a stream of hits.
func hits(t *testing.T, server *stack.NATSEmbedded, config jetstream.StreamConfig) jetstream.Stream {
	t.Helper()
	config.Name, config.Subjects = "HITS", []string{"hits.>"}
	stream, err := server.JetStream().CreateStream(t.Context(), config)
	require.NoError(t, err)
	return stream
}

// contents are the messages of a stream that has lost none.
func contents(t *testing.T, stream jetstream.Stream) (out []*jetstream.RawStreamMsg) {
	t.Helper()
	info, err := stream.Info(t.Context())
	require.NoError(t, err)
	for seq := max(1, info.State.FirstSeq); seq <= info.State.LastSeq; seq++ {
		m, err := stream.GetMsg(t.Context(), seq)
		require.NoError(t, err)
		out = append(out, m)
	}
	return out
}

// owner is a Box's owner in a test: what it answers, and what it receives.
type owner struct {
	*Box[*Envelope]
	t      *testing.T
	mayNot bool
	asked  int
	unsent []error
}

func newOwner(t *testing.T, conn *nats.Conn) *owner {
	t.Helper()
	o := &owner{t: t}
	var err error
	o.Box, err = Open(conn, func(*Envelope, time.Duration) bool { o.asked++; return !o.mayNot }, func(_ *Envelope, why error) { o.unsent = append(o.unsent, why) })
	require.NoError(t, err)
	t.Cleanup(o.Close)
	return o
}

// answer waits for the next answer and settles it. Meanwhile nothing is sent again.
func (o *owner) answer() (m *Envelope, a Answer) {
	o.t.Helper()
	select {
	case a = <-o.Answers:
	case <-time.After(stack.Hung):
		o.t.Fatal("no answer comes")
	}
	m, ok := o.Resolve(a)
	if !ok {
		o.t.Fatalf("%+v is about no message", a)
	}
	return m, a
}

func letter(body string) *Envelope { return &Envelope{Subject: "hits.a", Body: []byte(body)} }

// Acknowledgements that get lost are the case that ids are for: the first answers go where nobody listens, so
// that every message is sent twice. It is stored once, under one id.
func TestSendsAgainAfterLostAnswers(t *testing.T) {
	t.Parallel()
	server := stack.NATS(t)
	stream := hits(t, server, jetstream.StreamConfig{})
	o := newOwner(t, server.Conn(ConnOptions()...))
	heard := o.inbox
	o.inbox = nats.NewInbox()
	const n = 20
	for i := range n {
		o.Send(letter(fmt.Sprint(i)))
	}
	o.inbox = heard
	o.Tick(time.Now())
	require.Zero(t, o.asked, "messages are sent again before they are due")
	o.Tick(time.Now().Add(2 * ackWait))
	ids := map[string]bool{}
	for range n {
		m, a := o.answer()
		if !a.Stored || !a.Duplicate || m.sent != 2 {
			t.Errorf("%+v to %+v", a, m)
		}
		ids[m.ID] = true
	}
	got := contents(t, stream)
	for _, m := range got {
		if !ids[m.Header.Get(nats.MsgIdHdr)] {
			t.Errorf("message %d has the id %q", m.Sequence, m.Header.Get(nats.MsgIdHdr))
		}
	}
	if len(got) != n || len(ids) != n || o.asked != n || o.Len() != 0 {
		t.Errorf("%d are stored under %d ids, %d were sent again, %d are left", len(got), len(ids), o.asked, o.Len())
	}
}

// A refused message is certainly not stored only if every send of it was refused.
func TestMessageIsRefusedOnlyIfEverySendWas(t *testing.T) {
	t.Parallel()
	server := stack.NATS(t)
	o := newOwner(t, server.Conn(ConnOptions()...))
	first := letter("first")
	o.Send(first)
	if m, a := o.answer(); m != first || !errors.Is(a.Refusal, ErrNoStream) || m.Open() || !m.Since().IsZero() {
		t.Errorf("without a stream: %+v, %+v", a, m)
	}
	stream := hits(t, server, jetstream.StreamConfig{MaxMsgs: 1, Discard: jetstream.DiscardNew, MaxMsgSize: 1000})
	o.Tick(time.Now().Add(2 * refusedWait))
	if m, a := o.answer(); m != first || !a.Stored || a.Seq != 1 || o.asked != 0 {
		t.Errorf("with one: %+v, %+v; asked %d times", a, m, o.asked)
	}

	second := letter("second")
	heard := o.inbox
	o.inbox = nats.NewInbox() // the answer to its first send is lost
	o.Send(second)
	o.inbox = heard
	o.Tick(time.Now().Add(2 * ackWait))
	if m, a := o.answer(); m != second || a.Stored || a.Code == 0 || !m.Open() || m.Since().IsZero() {
		t.Errorf("to a full stream, one of two answers: %+v, %+v", a, m)
	}
	o.mayNot = true
	o.Tick(time.Now().Add(2 * ackWait))
	o.Tick(time.Now().Add(4 * ackWait))
	if second.sent != 2 || o.asked != 2 {
		t.Errorf("sent %d times, asked %d times: it may only wait", second.sent, o.asked)
	}
	o.Drop(second)

	o.Send(&Envelope{Subject: "hits.a", Body: make([]byte, 2000)})
	if m, a := o.answer(); a.Code != CodeTooLarge || m.Open() {
		t.Errorf("too large: %+v, %+v", a, m)
	}
	if got := contents(t, stream); len(got) != 1 || o.Len() != 1 {
		t.Errorf("%d are stored, %d are left", len(got), o.Len())
	}
	// Another send with the same id is being stored: that is no word about this one.
	a, ok := parse(&nats.Msg{Subject: "x." + "3", Data: []byte(`{"error":{"code":409,"err_code":10158,"description":"duplicate message id is in process"},"stream":"HITS","seq":0}`)})
	waiting := &Envelope{n: 3, open: 1, since: time.Now()}
	o.pending[3] = waiting
	if m, found := o.Resolve(a); !ok || !found || m != waiting || !m.Open() {
		t.Errorf("in process: %+v, %+v", a, m)
	}
}

// What never left is not open, and goes out when the connection is there.
func TestUnsentMessageIsSentOnceConnected(t *testing.T) {
	t.Parallel()
	server := stack.NATS(t)
	stream := hits(t, server, jetstream.StreamConfig{})
	conn := server.Conn(ConnOptions()...)
	o := newOwner(t, conn)
	lost := conn.StatusChanged(nats.RECONNECTING)
	server.Stop()
	<-lost
	one := letter("one")
	o.Send(one)
	if one.Open() || len(o.unsent) != 1 || !NeverLeft(o.unsent[0]) {
		t.Errorf("%+v, %v", one, o.unsent)
	}
	server.Start()
	stack.Eventually(t, "the connection", func() (bool, string) { return conn.IsConnected(), conn.Status().String() })
	o.Tick(time.Now()) // before it is due, because the connection was lost
	if m, a := o.answer(); m != one || !a.Stored || a.Duplicate || o.asked != 0 || m.sent != 1 {
		t.Errorf("%+v, %+v", a, m)
	}
	o.Send(&Envelope{Subject: "hits.a", Body: make([]byte, conn.MaxPayload()+1)})
	conn.Close()
	o.Send(letter("two"))
	if len(o.unsent) != 3 || !errors.Is(o.unsent[1], nats.ErrMaxPayload) || !errors.Is(o.unsent[2], nats.ErrConnectionClosed) {
		t.Errorf("%v", o.unsent)
	}
	require.Len(t, contents(t, stream), 1)
}

// Only JetStream's answers say anything about storage.
func TestOnlyAnswersOfJetStreamSayWhatIsStored(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		body string
		want Answer // Stream, Seq, Stored, Duplicate, Code and Last of it
		ok   bool
	}{
		{`{"stream":"HITS","seq":7}`, Answer{Stored: true, Stream: "HITS", Seq: 7}, true},
		{`{"stream":"HITS","seq":7,"duplicate":true}`, Answer{Stored: true, Duplicate: true, Stream: "HITS", Seq: 7}, true},
		{`{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 12"},"stream":"HITS","seq":0}`, Answer{Stream: "HITS", Code: codeWrongLast, Last: 12}, true},
		{`{"error":{"code":400,"err_code":10071,"description":"wrong last sequence"}}`, Answer{Code: codeWrongLast}, true},
		{`{"stream":"HITS"}`, Answer{}, false},
		{`+OK`, Answer{}, false},
		{``, Answer{}, false},
		{`{}`, Answer{}, false},
	} {
		got, ok := parse(&nats.Msg{Subject: "_INBOX.x.z", Data: []byte(c.body)})
		if ok != c.ok || ok && (got.n != 35 || got.Stored != c.want.Stored || got.Duplicate != c.want.Duplicate || got.Stream != c.want.Stream ||
			got.Seq != c.want.Seq || got.Code != c.want.Code || got.Last != c.want.Last || (got.Refusal == nil) != got.Stored) {
			t.Errorf("%s: %+v, %v", c.body, got, ok)
		}
	}
}
