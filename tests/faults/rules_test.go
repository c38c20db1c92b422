package faults_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// Orders are counted by a rules file while the worker is killed and the file is edited. Every counter must be
// what a few lines here count by the version of the rules that the cursors say was in force, and every reject
// must be there, once, with its reason.
func TestOrdersAreCountedByRules(t *testing.T) {
	t.Parallel()
	s := startWithoutStream(t)
	s.createStream("ORDERS", "orders.>")
	file := filepath.Join(t.TempDir(), "rules.yml")
	version := byte('a')
	edit := func() {
		t.Helper()
		require.NoError(t, os.WriteFile(file+".new", []byte(ordersRules(version)), 0o600))
		require.NoError(t, os.Rename(file+".new", file))
	}
	edit()
	s.startWorker(s.redis, stack.NoWait, "INGEST_STREAMS=ORDERS", "INGEST_RULES="+file)
	o := &orders{t: t, js: s.js, random: rand.New(rand.NewPCG(1, 2)), known: map[uint64][]orderEvent{}}
	events, kills := rounds(2_000, 4_000, 100_000), rounds(2, 4, 20)
	for i := range kills {
		before := o.last
		o.publish((i + 1) * events / kills)
		s.ordersBegun(before) // a worker that is killed earlier than that counts nothing, and no version is ever used
		sleepUpTo(300 * time.Millisecond)
		if i%2 == 1 { // a change is under way when the worker dies
			version = 'a' + byte(i)%3
			edit()
			if i%4 == 1 {
				s.workers[0].Signal(syscall.SIGHUP)
				sleepUpTo(1500 * time.Millisecond) // the session notices within a second
			}
		}
		s.workers[0].Kill()
		s.workers[0].Start()
	}
	o.publish(events + 20)
	versions := s.awaitOrders(o.last)
	o.compare(s, versions)
	t.Logf("%d events in %d messages, %d kills, %d versions", o.events, len(o.known), kills, len(versions))
	require.GreaterOrEqual(t, len(versions), 2)
}

// ordersRules count alike except for the first letter of the names; the second file asks for a channel, too.
func ordersRules(version byte) string {
	text := `- stream: ORDERS
  subject: orders.*.created
  count:
    - key: V.orders
    - key: V.orders.{subject.1}.{country}
    - {key: 'V.units.{country}.{customer.id}', n: quantity}
    - {key: 'V.coupons.{coupon}', optional: true}
- stream: ORDERS
  subject: orders.*.paid
  each: items
  when: {^.status: paid}
  count:
    - {key: 'V.items.{^.country}.{sku}', n: amount}
- stream: ORDERS
  subject: orders.events
  format: cloudevents
  count:
    - {key: 'V.{type}.{data.region}', n: data.n}
`
	if version == 'b' {
		text = strings.Replace(text, "    - key: V.orders\n", "    - key: V.channels.{channel}\n", 1)
	}
	return strings.ReplaceAll(text, "V.", string(version)+".")
}

// orderEvent is an event and what it counts, worked out without its JSON.
type orderEvent struct {
	counts  map[string]int64 // without the version's letter
	channel string           // of a created order, which version b counts on
	created bool
	reason  string // why every version rejects it; empty for none
}

// judge is what a version counts of an event, or why it rejects it.
func (e orderEvent) judge(version byte) (counts map[string]int64, reason string) {
	switch {
	case e.created && version == 'b' && e.channel == "" && e.reason != "bad_json": // its first counter names the channel
		return nil, "bad_key"
	case e.reason != "":
		return nil, e.reason
	}
	counts = map[string]int64{}
	for name, n := range e.counts {
		if name == "orders" && version == 'b' {
			name = "channels." + e.channel
		}
		counts[string(version)+"."+name] += n
	}
	return counts, ""
}

// orders publishes messages of events, and knows what is stored under which sequence.
type orders struct {
	t      *testing.T
	js     jetstream.JetStream
	random *rand.Rand
	events int
	known  map[uint64][]orderEvent // by sequence, in the order of the items
	last   uint64
}

// publish publishes messages until there are so many events.
func (o *orders) publish(until int) {
	o.t.Helper()
	type sent struct {
		ack    jetstream.PubAckFuture
		events []orderEvent
	}
	for o.events < until {
		var under []sent
		for len(under) < 500 && o.events < until {
			m, events := o.message()
			ack, err := o.js.PublishMsgAsync(m)
			require.NoError(o.t, err)
			under = append(under, sent{ack, events})
			o.events += len(events)
		}
		for _, m := range under {
			select {
			case ack := <-m.ack.Ok():
				o.known[ack.Sequence] = m.events
				o.last = max(o.last, ack.Sequence)
			case err := <-m.ack.Err():
				o.t.Fatal(err)
			case <-time.After(stack.Hung):
				o.t.Fatal("an event is not stored")
			}
		}
	}
}

func (o *orders) message() (*nats.Msg, []orderEvent) {
	switch n := o.random.IntN(20); {
	case n < 10:
		return o.createdOrders()
	case n < 15:
		return o.paidOrder()
	case n < 19:
		return o.cloudEvent()
	}
	m := nats.NewMsg("orders.stray") // no rule says what this counts
	m.Data = []byte(`{"specversion":"1.0","type":"stray","source":"/s","id":"1","data":{"region":"r","n":1}}`)
	return m, []orderEvent{{reason: "no_rule"}}
}

func (o *orders) country() string { return fmt.Sprintf("c%d", o.random.IntN(12)) }

// createdOrders is a message of 1 to 5 orders, as an array or as lines.
func (o *orders) createdOrders() (*nats.Msg, []orderEvent) {
	shop := fmt.Sprintf("shop%d", o.random.IntN(3))
	m, lines, events := nats.NewMsg("orders."+shop+".created"), []string(nil), []orderEvent(nil)
	array := o.random.IntN(2) == 0
	for range 1 + o.random.IntN(5) {
		country, customer, quantity := o.country(), o.random.IntN(40), int64(1+o.random.IntN(9))
		e := orderEvent{created: true, counts: map[string]int64{
			"orders": 1, "orders." + shop + "." + country: 1, fmt.Sprintf("units.%s.%d", country, customer): quantity,
		}}
		fields := map[string]any{"country": country, "customer": map[string]any{"id": customer}, "quantity": quantity, "note": "x.y"}
		if o.random.IntN(3) == 0 {
			fields["coupon"] = "SAVE" + country
			e.counts["coupons.SAVE"+country]++
		}
		if o.random.IntN(10) > 0 {
			e.channel = fmt.Sprintf("ch%d", o.random.IntN(3))
			fields["channel"] = e.channel
		}
		cut := false
		switch o.random.IntN(40) {
		case 0:
			delete(fields, "country")
			e.reason = "bad_key"
		case 1:
			fields["quantity"] = 0
			e.reason = "bad_count"
		case 2:
			cut = !array // in an array nothing behind it could be read
		}
		line, err := json.Marshal(fields)
		require.NoError(o.t, err)
		if cut {
			line, e.reason = line[:len(line)-3], "bad_json"
		}
		lines, events = append(lines, string(line)), append(events, e)
	}
	if m.Data = []byte(strings.Join(lines, "\n")); array {
		m.Data = []byte("[" + strings.Join(lines, ",") + "]")
	}
	return m, events
}

// paidOrder is an order of which each item counts, if it is paid.
func (o *orders) paidOrder() (*nats.Msg, []orderEvent) {
	m, country, status := nats.NewMsg("orders.web.paid"), o.country(), "paid"
	e, items := orderEvent{counts: map[string]int64{}}, []string{}
	if o.random.IntN(4) == 0 {
		status = "open"
	}
	for range o.random.IntN(4) {
		sku, amount := o.random.IntN(20), int64(1+o.random.IntN(3))
		items = append(items, fmt.Sprintf(`{"sku":%d,"amount":%d}`, sku, amount))
		if status == "paid" {
			e.counts[fmt.Sprintf("items.%s.%d", country, sku)] += amount
		}
	}
	m.Data = fmt.Appendf(nil, `{"status":%q,"country":%q,"items":[%s]}`, status, country, strings.Join(items, ","))
	return m, []orderEvent{e}
}

// cloudEvent is one in binary or in structured mode, or a batch.
func (o *orders) cloudEvent() (*nats.Msg, []orderEvent) {
	m := nats.NewMsg("orders.events")
	one := func() (kind, data, whole string, e orderEvent) {
		kind = fmt.Sprintf("kind%d", o.random.IntN(3))
		region, n := fmt.Sprintf("r%d", o.random.IntN(5)), int64(1+o.random.IntN(5))
		data = fmt.Sprintf(`{"region":%q,"n":%d}`, region, n)
		e.counts = map[string]int64{kind + "." + region: n}
		if o.random.IntN(30) == 0 {
			data, e.reason = fmt.Sprintf(`{"n":%d}`, n), "bad_key"
		}
		whole = fmt.Sprintf(`{"specversion":"1.0","type":%q,"source":"/shop","id":"1","datacontenttype":"application/json","data":%s}`, kind, data)
		return kind, data, whole, e
	}
	kind, data, whole, e := one()
	switch o.random.IntN(3) {
	case 0:
		for name, value := range map[string]string{"ce-specversion": "1.0", "ce-type": kind, "ce-source": "/shop", "ce-id": "1", "content-type": "application/json"} {
			m.Header.Set(name, value)
		}
		m.Data = []byte(data)
	case 1:
		m.Data = []byte(whole)
	default:
		_, _, second, other := one()
		m.Header.Set("content-type", "application/cloudevents-batch+json")
		m.Data = []byte("[" + whole + "," + second + "]")
		return m, []orderEvent{e, other}
	}
	return m, []orderEvent{e}
}

// ordersVersion is what a cursor's naming says of a version.
type ordersVersion struct {
	From   uint64 `json:"from"`
	Rules  string `json:"rules"`
	letter byte
}

// ordersBegun waits until a shard has passed a message.
func (s *system) ordersBegun(after uint64) {
	s.t.Helper()
	stack.Eventually(s.t, fmt.Sprintf("a cursor to pass %d", after), func() (bool, string) {
		for shard := range 16 {
			seq, err := s.redis.Client().HGet(s.t.Context(), fmt.Sprintf("tallyroll:{%d}:cursor:ORDERS", shard), "seq").Uint64()
			if err == nil && seq > after {
				return true, ""
			}
		}
		return false, ""
	})
}

// awaitOrders waits until all cursors have reached a message, and returns the versions that they name.
func (s *system) awaitOrders(last uint64) []ordersVersion {
	s.t.Helper()
	client := s.redis.Client()
	var naming string
	stack.Eventually(s.t, fmt.Sprintf("the cursors to reach %d", last), func() (bool, string) {
		for shard := range 16 {
			got, err := client.HMGet(s.t.Context(), fmt.Sprintf("tallyroll:{%d}:cursor:ORDERS", shard), "seq", "naming").Result()
			if err != nil || got[0] != strconv.FormatUint(last, 10) {
				return false, fmt.Sprintf("shard %d: %v, %v", shard, got, err)
			}
			if naming = got[1].(string); shard == 0 {
				continue
			}
		}
		return true, ""
	})
	var versions []ordersVersion
	require.NoErrorf(s.t, json.Unmarshal([]byte(naming), &versions), "%s", naming)
	for i, v := range versions {
		text, err := client.HGet(s.t.Context(), "tallyroll:rules", v.Rules).Result()
		require.NoErrorf(s.t, err, "rules %s, which cursors name", v.Rules)
		letters := []byte("abc")
		at := slices.IndexFunc(letters, func(l byte) bool { return ordersRules(l) == text })
		if at < 0 {
			s.t.Fatalf("rules %s are none of this test's:\n%s", v.Rules, text)
		}
		versions[i].letter = letters[at]
	}
	return versions
}

// compare compares all counters and all rejects with what the versions make of the events.
func (o *orders) compare(s *system, versions []ordersVersion) {
	o.t.Helper()
	want, rejects := map[string]int64{}, map[string]string{}
	for seq, events := range o.known {
		in := versions[0].letter
		for _, v := range versions {
			if v.From <= seq {
				in = v.letter
			}
		}
		for item, e := range events {
			for _, letter := range []byte("abc") { // what other versions would count must be 0
				counts, reason := e.judge(letter)
				for name, n := range counts {
					if letter != in {
						n = 0
					}
					want[name] += n
				}
				if letter == in && reason != "" {
					rejects[fmt.Sprintf("%d:%d", seq, item)] = reason
				}
			}
		}
	}
	answer := s.mustAsk(slices.Sorted(maps.Keys(want)))
	wrong := 0
	for _, got := range answer.Totals {
		if n := want[got.Key]; !got.Is(n) {
			if wrong++; wrong <= 10 {
				o.t.Errorf("%s: counted %d (%d to %d), want %d", got.Key, got.Total, got.Lower, got.Upper, n)
			}
		}
	}
	if wrong > 0 {
		o.t.Errorf("%d of %d counters are wrong; the versions are %+v", wrong, len(want), versions)
	}
	found := o.rejects()
	for at, reason := range rejects {
		if found[at] != reason {
			o.t.Errorf("message %s is to be rejected with %s: found %q", at, reason, found[at])
		}
		delete(found, at)
	}
	if len(found) > 0 {
		o.t.Errorf("rejected, too: %v", found)
	}
	o.t.Logf("%d counters, %d rejects", len(want), len(rejects))
}

// rejects reads the stream of rejects: reasons by sequence and item.
func (o *orders) rejects() map[string]string {
	o.t.Helper()
	stream, err := o.js.Stream(o.t.Context(), "HITS_REJECTED")
	require.NoError(o.t, err)
	found := map[string]string{}
	for left := stream.CachedInfo().State.Msgs; left > 0; {
		consumer, err := stream.CreateConsumer(o.t.Context(), jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy})
		require.NoError(o.t, err)
		for left > 0 {
			batch, err := consumer.Fetch(int(min(left, 500)), jetstream.FetchMaxWait(stack.Hung))
			require.NoError(o.t, err)
			got := uint64(0)
			for m := range batch.Messages() {
				at := m.Headers().Get("Tallyroll-Sequence") + ":" + m.Headers().Get("Tallyroll-Item")
				if found[at] != "" {
					o.t.Errorf("%s is rejected twice", at)
				}
				found[at] = m.Headers().Get("Tallyroll-Reason")
				got++
			}
			if got == 0 {
				o.t.Fatalf("%d rejects cannot be read: %v", left, batch.Error())
			}
			left -= got
		}
	}
	return found
}
