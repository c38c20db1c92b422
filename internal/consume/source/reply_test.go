package source

import (
	"testing"

	"github.com/nats-io/nats.go"
)

var replies = []string{
	"$JS.ACK.HITS.c.1.812.9.1795250000000000001.41",
	"$JS.ACK.hub.ACC.HITS.c.1.812.9.1795250000000000001.41",
	"$JS.ACK._.ACC.HITS.c.1.812.9.1795250000000000001.41.token",
	"$JS.ACK._.ACC.HITS.c.1.812.9.1795250000000000001.41.token.more",
	"$JS.ACK.HITS.c.1.812.9.1795250000000000001",
	"$JS.ACK.HITS.c.1.812.9.1795250000000000001.41.x",
	"$JS.ACK.HITS.c.1.8a2.9.1795250000000000001.41",
	"$JS.ACK.HITS.c.1..9.1795250000000000001.41",
	"$JS.ACK.HITS.c.1.812.9.-1.41",
	"$JS.ACK.HITS.c.1.99999999999999999999.9.1.41",
	"_INBOX.x.y", "", "$JS.ACK.",
}

// The client library reads the same from every reply subject that it accepts.
func FuzzParseReply(f *testing.F) {
	for _, reply := range replies {
		f.Add(reply)
	}
	f.Fuzz(func(t *testing.T, reply string) {
		d, ok := parseReply(reply)
		msg := &nats.Msg{Reply: reply, Sub: &nats.Subscription{}}
		want, err := msg.Metadata()
		if err != nil || !ok {
			return // each refuses what the other may let pass: bad numbers there, rare forms here
		}
		if d.Seq != want.Sequence.Stream || d.Nth != want.Sequence.Consumer || d.Stored != want.Timestamp.UnixNano() {
			t.Errorf("%q is read as %+v, the library reads %+v", reply, d, want)
		}
	})
}

func TestReplySubjectsAreParsed(t *testing.T) {
	t.Parallel()
	for i, reply := range replies {
		d, ok := parseReply(reply)
		if want := i < 4; ok != want || ok && (d.Seq != 812 || d.Nth != 9 || d.Stored != 1795250000000000001) {
			t.Errorf("%q: %+v, %v", reply, d, ok)
		}
	}
}

func BenchmarkParseReply(b *testing.B) {
	b.ReportAllocs()
	for range b.N {
		parseReply(replies[0])
	}
}
