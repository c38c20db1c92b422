package collect

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/trace"
	"tallyroll/internal/rules"
	"tallyroll/internal/web"
	"tallyroll/tests/cases"
)

func TestHitsOfEveryFormAndPackingAreStored(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	want := map[string]int64{}
	for i, c := range []struct {
		body string
		hits int
		n    int64
	}{
		{`{"key":"a"}`, 1, 1},
		{"\n {\"key\":\n\"a\",\"n\":4 }\r\n", 1, 4},
		{"\ufeff{\"key\":\"a\"}", 1, 1},
		{"\ufeff\n[{\"key\":\"a\"}]", 1, 1},
		{`[{"key":"a"},{"key":"a","n":1099511627776,"ts":"2026-11-21T10:00:00Z","x":[]}]`, 2, 1 + hit.MaxN},
		{"{\"key\":\"a\"}\n\n{\"key\":\"a\",\"n\":2}\n{\"key\":\"a\",\"ts\":1763683200000}", 3, 4},
		{strings.Repeat("{\"key\":\"a\"}\n", 10_000), 10_000, 10_000},
	} {
		for _, kind := range []string{
			"", "application/json", "application/x-ndjson", "application/json; charset=UTF-8",
			"application/x-www-form-urlencoded", "text/plain;charset=utf-8", "application/vnd.x+json",
		} {
			for _, packed := range []string{"", "gzip", "zstd", "identity"} {
				if c.hits > 1000 && (kind != "" || packed == "identity") {
					continue
				}
				var headers []string
				if kind != "" {
					headers = append(headers, "Content-Type", kind)
				}
				if packed != "" {
					headers = append(headers, "Content-Encoding", packed)
				}
				got := r.mustStore(pack(t, packed, c.body), headers...)
				require.NotZero(t, got.Sequence)
				require.Equal(t, receipt{c.hits, "HITS", got.Sequence, false}, got, "body %d, %v", i, headers)
				want["a"] += c.n
			}
		}
	}
	require.Equal(t, want, r.countHits())
}

func pack(t testing.TB, how, body string) string {
	t.Helper()
	var out bytes.Buffer
	switch how {
	case "gzip":
		w := gzip.NewWriter(&out)
		_, _ = w.Write([]byte(body))
		require.NoError(t, w.Close())
	case "zstd":
		w, err := zstd.NewWriter(&out, zstd.WithWindowSize(8<<20)) // as command line tools make for a pipe
		require.NoError(t, err)
		_, _ = w.Write([]byte(body))
		require.NoError(t, w.Close())
	default:
		return body
	}
	return out.String()
}

func TestRequestThatCannotBeStoredWholeIsRefusedWhole(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, "COLLECT_MAX_BODY=2000000", "COLLECT_MAX_HITS=200")
	cases.Check(t, "refused", func(t *testing.T, section, body string) string {
		body = strings.ReplaceAll(body, "EVENT", event("1"))
		headers := http.Header{}
		for _, field := range strings.Split(section, " | ") {
			field, how, _ := strings.Cut(field, ", ")
			name, value, _ := strings.Cut(field, ":")
			value = strings.TrimPrefix(value, " ")
			if how == "packed" || how == "cut" {
				body = pack(t, value, body)
			}
			switch another, found := strings.CutPrefix(name, "and "); {
			case how == "cut":
				body = body[:20]
				headers.Set(name, value)
			case name == "binary":
				for h := eventHeaders("1"); len(h) > 0; h = h[2:] {
					headers.Set(h[0], h[1])
				}
			case found:
				headers.Add(another, value)
			case name == "Content-Encoding" || name == keyHeader:
				headers.Add(name, value)
			case name != "hits":
				headers.Set(name, value)
			}
		}
		var list []string
		for name, values := range headers {
			for _, value := range values {
				list = append(list, name, value)
			}
		}
		resp, answer := r.post(body, list...)
		p := checkProblem(t, resp, answer, resp.StatusCode)
		out := fmt.Sprintf("%d %s", p.Status, p.Detail)
		for _, e := range p.Errors {
			out += "\n" + e.Location + ": " + e.Message
		}
		return out
	})
	// Of many bad items, the first hundred are named.
	p := r.mustRefuse(400, "["+strings.Repeat("{},", 150)+"{}]")
	require.Len(t, p.Errors, maxErrors)
	require.Equal(t, "body[99]", p.Errors[99].Location)
	require.Contains(t, p.Detail, "150 more items are bad")
	require.Empty(t, r.storedMessages())
}

func TestRequestsThatComeTogetherShareMessagesAndAreStoredOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	const clients, each = 64, 10
	var wg sync.WaitGroup
	want := make(map[string]int64)
	for c := range clients {
		key := fmt.Sprintf("c%d", c)
		want[key] = each
		wg.Go(func() {
			for range each {
				r.mustStore(fmt.Sprintf(`{"key":%q}`, key))
			}
		})
	}
	wg.Wait()
	require.Equal(t, want, r.countHits())
	require.LessOrEqual(t, len(r.storedMessages()), clients*each/2)
}

func TestRequestWithIdempotencyKeyCountsOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	first := r.mustStore(`{"key":"a","n":2}`, keyHeader, "k-1")
	require.False(t, first.Duplicate)
	for _, again := range []string{"k-1", `"k-1"`} {
		require.Equal(t, receipt{1, "HITS", first.Sequence, true}, r.mustStore(` [{"n":2, "key":"a"}]`, keyHeader, again))
	}
	require.Contains(t, r.mustRefuse(http.StatusUnprocessableEntity, `{"key":"a","n":3}`, keyHeader, "k-1").Detail, "used for other hits")
	require.False(t, r.mustStore(`{"key":"a"}`, keyHeader, `"a\"\\b"`).Duplicate)
	require.Equal(t, `a"\b`, r.storedMessages()[1].Header.Get("Nats-Msg-Id"))
	require.EqualValues(t, 3, r.countHits()["a"])
	// If the first message is gone, its hits were stored all the same.
	require.NoError(t, r.stream.Purge(t.Context()))
	require.Equal(t, receipt{1, "HITS", first.Sequence, true}, r.mustStore(`{"key":"a","n":2}`, keyHeader, "k-1"))
}

func TestRequestsWithOneIdempotencyKeyAtOnceAreStoredOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	var wg sync.WaitGroup
	var fresh atomic.Int32
	for range 32 {
		wg.Go(func() {
			if got := r.mustStore(`{"key":"a"}`, keyHeader, "together"); !got.Duplicate {
				fresh.Add(1)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, fresh.Load(), "requests that were told that they are the first")
	require.EqualValues(t, 1, r.countHits()["a"])
}

func TestMessageIDsOfTwoCallersNeverMeet(t *testing.T) {
	t.Parallel()
	ids := map[string]bool{}
	for _, c := range []struct{ name, key string }{{"", "k"}, {"a", "k"}, {"ak", "k"}, {"a", `"k`}, {`a"`, "k"}, {`a\`, `"k`}} {
		req, err := http.NewRequest(http.MethodPost, hitsPath, nil)
		require.NoError(t, err)
		req.Header.Set(keyHeader, strings.TrimPrefix(c.key, `"`))
		id, p := messageID(req, c.name)
		if p != nil || ids[id] && !strings.HasPrefix(c.key, `"`) {
			t.Errorf("%q and %q: id %q, %v", c.name, c.key, id, p)
		}
		ids[id] = true
	}
}

func TestRequestLargerThanAMessageIsRefusedWithTheNameOfTheBound(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *jetstream.StreamConfig) { c.MaxMsgSize = 4096 })
	require.Contains(t, r.mustRefuse(http.StatusRequestEntityTooLarge, strings.Repeat("{\"key\":\"a\"}\n", 400)).Detail, "max_msg_size")
	// The stream takes less than it did when the service looked.
	config := r.stream.CachedInfo().Config
	config.MaxMsgSize = headerRoom + 76 // room for a small request, even if the service looks again
	_, err := r.js.UpdateStream(t.Context(), config)
	require.NoError(t, err)
	r.mustRefuse(http.StatusRequestEntityTooLarge, strings.Repeat("{\"key\":\"a\"}\n", 100))
	r.mustStore(`{"key":"small"}`)
	require.Equal(t, map[string]int64{"small": 1}, r.countHits())
}

const (
	oneParent   = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	otherParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
)

// A message with the hits or events of one request has its traceparent.
func TestMessagesHaveTheTraceOfTheirRequest(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	event := eventHeaders("1")
	for _, c := range []struct {
		what    string
		headers []string
		want    string
	}{
		{"alone", []string{"traceparent", oneParent}, oneParent},
		{"without", nil, ""},
		{"malformed", []string{"traceparent", "00-x"}, ""},
		{"with a key", []string{"traceparent", oneParent, keyHeader, "k"}, oneParent},
		{"an event", append([]string{"traceparent", oneParent}, event...), oneParent},
	} {
		m, err := r.stream.GetMsg(t.Context(), r.mustStore(`{"key":"a"}`, c.headers...).Sequence)
		require.NoError(t, err)
		require.Equal(t, c.want, m.Header.Get("traceparent"), c.what)
	}
	// Sent again under another trace, it is the same request.
	for _, headers := range [][]string{{keyHeader, "k"}, event} {
		got := r.mustStore(`{"key":"a"}`, append(headers, "traceparent", otherParent)...)
		require.True(t, got.Duplicate, headers)
	}
}

// A message of several requests has none of their traces, and those of one that is divided have each their
// own.
func TestMessageOfSeveralRequestsHasNoTrace(t *testing.T) {
	m := newMessage("hits.collect")
	entryOf := func(parent string) *entry {
		e := newEntry(web.NewBudget(0, 0), nil, "")
		if parent != "" {
			e.trace(parent)
		}
		return e
	}
	for i, parent := range []string{oneParent, otherParent, ""} {
		m.add(entryOf(parent), 0)
		want := ""
		if i == 0 {
			want = oneParent
		}
		require.EqualValues(t, want, m.More.Get(trace.Header), i+1)
	}
	for i, parent := range []string{oneParent, otherParent, ""} {
		one := newMessage("hits.collect")
		one.add(m.entries[i], 0)
		require.EqualValues(t, parent, one.More.Get(trace.Header), i+1)
	}
}

// A request that only just fits into a message is stored all the same, without its trace, and one byte more
// is not.
func TestTraceIsLeftOutWhereItDoesNotFit(t *testing.T) {
	t.Parallel()
	const most = 2000
	r := newRig(t, func(c *jetstream.StreamConfig) { c.MaxMsgSize = headerRoom + most })
	key := func(n int) string { // a hit that takes n bytes
		return `{"key":"` + strings.Repeat("a", n-len(`{"key":""}`+"\n")) + `"}` + "\n"
	}
	lines := key(500) + key(500) + key(500)
	for _, c := range []struct {
		size int
		want string
	}{{most - trace.Size, oneParent}, {most - trace.Size + 1, ""}, {most, ""}} {
		m, err := r.stream.GetMsg(t.Context(), r.mustStore(lines+key(c.size-len(lines)), "traceparent", oneParent).Sequence)
		require.NoError(t, err)
		if got := m.Header.Get("traceparent"); got != c.want || len(m.Data) != c.size {
			t.Errorf("%d bytes: %q, want %q (%d stored)", c.size, got, c.want, len(m.Data))
		}
	}
	r.mustRefuse(http.StatusRequestEntityTooLarge, lines+key(most+1-len(lines)), "traceparent", oneParent)
}

// What is taken, a worker counts, hit by hit, from the body as it came and from the lines that are stored.
func FuzzParse(f *testing.F) {
	for _, body := range []string{
		"", "[]", `{"key":"a"}`, `{"key":"a","n":3,"ts":1763683200000}`, `{"key":"a","ts":1763683200}`, "{\"key\":\"a\"}\r\n\r\n{\"key\":\"b\",\"n\":2}\n", "{\n\"key\":\"a\"\n}",
		`[{"key":"a"},{"key":"b","ts":"2026-11-21T10:00:00Z"}]`, `[{"key":"\ud83d\ude00\"\\\/"}]`, `[{"key":"a"}`, `[{"key":"a"}] x`, `{"key":"a","key":"b"}`, "{\"key\":\"\u2028\"}",
		`{"key":"a","n":1099511627776,"x":[{"key":"]"}]}`,
	} {
		f.Add(body)
	}
	const maxHits = 5
	f.Fuzz(func(t *testing.T, body string) {
		hits, p := parse(hit.NewParser(), []byte(body), maxHits)
		if p != nil {
			if len(hits) > 0 || p.Detail == "" || p.Status < 400 || p.Status > 499 {
				t.Errorf("%d hits, %+v", len(hits), p)
			}
			return
		}
		stored := time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC).UnixMilli() // later than any hit's time
		limits := decoderLimits
		limits.MaxHits = maxHits
		d := hit.NewDecoder(limits)
		type counted struct {
			key string
			at  int64
		}
		decoded := func(body []byte) map[counted]int64 {
			out := make(map[counted]int64)
			found, rejects := d.Decode("", stored, body)
			if len(rejects) > 0 || len(found) != len(hits) {
				t.Fatalf("a worker finds %d hits and %d rejects %+v; %d hits were taken", len(found), len(rejects), rejects, len(hits))
			}
			for _, h := range found {
				out[counted{string(h.Counter), h.At}] += h.N
			}
			return out
		}
		taken := make(map[counted]int64)
		for _, h := range hits {
			at := h.At
			if at == hit.NoTime {
				at = stored
			}
			taken[counted{string(h.Counter), min(at, stored)}] += h.N
		}
		e := newEntry(web.NewBudget(0, 1<<30), hits, "")
		if asItCame, asStored := decoded([]byte(body)), decoded(e.lines); !maps.Equal(asItCame, taken) || !maps.Equal(asStored, taken) {
			t.Errorf("taken %v, as it came %v, as stored %v", taken, asItCame, asStored)
		}
	})
}

func TestRefusalsOfHugeAndStrangeValuesAreShort(t *testing.T) {
	t.Parallel()
	const maxAnswer = 4 << 10
	h := newOfflineService(t, pageVariables...).handler()
	withTokens := newOfflineService(t, "COLLECT_TOKENS_FILE="+writeTokens(t, "secret may: [count], prefixes: [shop.]")).handler()
	asked := 0
	ask := func(what, method, path, body string, headers ...string) {
		t.Helper()
		for _, handler := range []http.Handler{h, withTokens} {
			r := httptest.NewRequest("POST", "http://collect.test/", strings.NewReader(body))
			path, query, _ := strings.Cut(path, "?")
			r.Method, r.URL.Path, r.URL.RawQuery = method, path, query
			r.Header.Set("Authorization", "Bearer secret")
			for i := 0; i < len(headers); i += 2 {
				r.Header[http.CanonicalHeaderKey(headers[i])] = []string{headers[i+1]}
			}
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, r)
			asked++
			var p web.Problem
			if w.Code >= 400 && (w.Body.Len() > maxAnswer || !utf8.Valid(w.Body.Bytes()) ||
				json.Unmarshal(w.Body.Bytes(), &p) != nil || p.Detail == "") {
				t.Errorf("%s %.100q: status %d, %d bytes: %.300q", what, path, w.Code, w.Body.Len(), w.Body)
			}
		}
	}
	event := []string{"ce-specversion", "1.0", "ce-type", "a", "ce-source", "/a", "ce-id", "1"}
	for _, value := range []string{
		strings.Repeat("a", 6000), strings.Repeat("9", 6000), strings.Repeat("\u202e", 2000), strings.Repeat("\x00", 6000), strings.Repeat("\xff", 6000), strings.Repeat(`"\`, 3000),
		strings.Repeat("%", 6000), strings.Repeat(",", 6000), strings.Repeat("{", 6000), strings.Repeat("👩", 1500), `"` + strings.Repeat("a", 6000), "",
	} {
		text, err := json.Marshal(value)
		require.NoError(t, err)
		raw := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(value) + `"`
		for _, header := range []string{keyHeader, "Content-Type", "Content-Encoding", "Origin", "Referer", "Authorization", requestOrigin, "User-Agent"} {
			ask(header, "POST", hitsPath, `{"key":"a"}`, header, value)
			ask(header, "POST", beaconPath, `{"key":"a"}`, "Origin", "https://shop.example.com", header, value)
			ask(header, "GET", gifPath+"?key=a", "", "Origin", "https://shop.example.com", header, value)
			ask(header, "OPTIONS", hitsPath, "", header, value)
		}
		for _, name := range []string{"ce-type", "ce-source", "ce-id", "ce-time", "ce-specversion", "ce-datacontenttype", "ce-" + value, "ce-x"} {
			ask(name, "POST", hitsPath, "x", append(event, name, value)...)
		}
		for _, v := range []string{string(text), raw, strings.Repeat("1", 6000), "-" + strings.Repeat("1", 6000), "[" + raw + "]", "{" + raw + ":1}", value} {
			for _, field := range []string{"key", "n", "ts", "id", "count", "value", value} {
				name, err := json.Marshal(field)
				require.NoError(t, err)
				for _, body := range []string{fmt.Sprintf(`{%s:%s}`, name, v), fmt.Sprintf(`{"key":"a",%s:%s}`, name, v), fmt.Sprintf(`[{"key":"shop.a"},{%s:%s}`, name, v)} {
					ask(field, "POST", hitsPath, body)
					ask(field, "POST", beaconPath, body, "Origin", "https://shop.example.com")
				}
			}
			for _, field := range []string{"specversion", "type", "source", "id", "time", "data", "data_base64", "datacontenttype", value} {
				name, err := json.Marshal(field)
				require.NoError(t, err)
				body := fmt.Sprintf(`{%s:%s,"specversion":"1.0","type":"a","source":"/a","id":"1"}`, name, v)
				ask(field, "POST", hitsPath, body, "Content-Type", structuredType)
				ask(field, "POST", hitsPath, "["+body+"]", "Content-Type", batchType)
				ask(field, "POST", hitsPath, strings.Replace(body, `,"specversion":"1.0"`, "", 1), "Content-Type", structuredType)
			}
		}
		for _, query := range []string{"key=" + value, "key=a&n=" + value, value + "=1", value, "key=a&key=" + value, "key=%ff" + value} {
			ask(query, "GET", gifPath+"?"+query, "", "Origin", "https://shop.example.com")
		}
		for _, path := range []string{"/", "/v1/", "/v1/hits/", "/docs/"} {
			ask(path, "GET", path+value, "")
		}
		ask("method", "M"+value, hitsPath, "")
	}
	t.Logf("%d requests", asked)
}

// eventRules count events by type, and the cents in their data.
const eventRules = `
- stream: HITS
  subject: hits.>
  format: cloudevents
  count: [{key: '{type}'}, {key: cents, n: data.cents, optional: true}]
`

func event(id string) string {
	return fmt.Sprintf(`{"specversion":"1.0","type":"paid","source":"/shop","id":%q,"data":{"cents":5}}`, id)
}

// eventHeaders are the headers of an event in binary mode, and others.
func eventHeaders(id string, more ...string) []string {
	event := []string{"ce-specversion", "1.0", "ce-type", "paid", "ce-source", "/shop", "ce-id", id, "Content-Type", "application/json"}
	return append(event, more...)
}

// decodeEvents is what a worker with rules makes of all messages in the stream.
func (r *rig) decodeEvents(text string) (all []hit.Hit) {
	r.t.Helper()
	set, err := rules.Parse([]byte(text))
	require.NoError(r.t, err)
	d := rules.NewDecoder(set.ForStream("HITS"), decoderLimits)
	for _, m := range r.storedMessages() {
		message := rules.Message{Subject: m.Subject, Header: m.Header.Get, Stored: m.Time.UnixMilli(), Body: m.Data}
		hits, rejects, _ := d.Decode(message)
		require.Empty(r.t, rejects, "a worker refuses %v %s", m.Header, m.Data)
		for _, h := range hits { // the next message's overwrite them
			all = append(all, hit.Hit{Counter: bytes.Clone(h.Counter), N: h.N, At: hit.NoTime, Unique: bytes.Clone(h.Unique)})
		}
	}
	return all
}

func TestEventsOfEachModeAreStoredAsMessagesOfTheirOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for i, c := range []struct {
		body    string
		headers []string
		events  int
	}{
		{event("1"), []string{"Content-Type", structuredType}, 1},
		{"\ufeff" + event("9"), []string{"Content-Type", structuredType}, 1},
		{"\n" + event("2") + " ", []string{"Content-Type", "application/CloudEvents+JSON; charset=utf-8"}, 1},
		{pack(t, "gzip", event("3")), []string{"Content-Type", structuredType, "Content-Encoding", "gzip"}, 1},
		{"[" + event("4") + "," + event("5") + "]", []string{"Content-Type", batchType}, 2},
		{`{"cents":5}`, eventHeaders("6"), 1},
		{`{"cents":5}`, eventHeaders("t%C3%A4t", "ce-tenant", "a"), 1},
		{`{"cents":5}`, eventHeaders("7")[:8], 1}, // net/http says no type
	} {
		require.Equal(t, receipt{c.events, "HITS", uint64(i + 1), false}, r.mustStore(c.body, c.headers...))
	}
	counted := make(map[string]int64)
	for _, h := range r.decodeEvents(eventRules) {
		counted[string(h.Counter)] += h.N
	}
	require.Equal(t, map[string]int64{"paid": 9, "cents": 45}, counted)
}

func TestUniqueValuesAreMadeOfEventsOfEachMode(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.mustStore(`{"specversion":"1.0","type":"paid","source":"/shop","id":"1","data":{"user":"u1"}}`, "Content-Type", structuredType)
	r.mustStore(`[{"specversion":"1.0","type":"paid","source":"/shop","id":"2","data":{"user":"u2"}}]`, "Content-Type", batchType)
	r.mustStore(`{"user":"u3"}`, eventHeaders("3")...)
	const text = "- {stream: HITS, subject: hits.>, format: cloudevents, count: [{key: paid, unique: '{data.user}'}]}"
	require.Equal(t, "paid×1 of u1 paid×1 of u2 paid×1 of u3", format(r.decodeEvents(text)...))
}

// A producer that sends an event again gets the event's place as the answer. An event with the same name and
// something else in it is refused, because either of them would be lost.
func TestEventSentAgainIsStoredOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for _, c := range [][]string{
		{event("1"), "Content-Type", structuredType},
		append([]string{`{"cents":5}`}, eventHeaders("2", "ce-traceparent", "00-1-1-00")...),
	} {
		first := r.mustStore(c[0], c[1:]...)
		require.False(t, first.Duplicate)
		require.Equal(t, receipt{1, "HITS", first.Sequence, true}, r.mustStore(c[0], c[1:]...))
		require.Contains(t, r.mustRefuse(http.StatusUnprocessableEntity, strings.Replace(c[0], "5", "6", 1), c[1:]...).Detail, "source and id")
	}
	first := r.mustStore(`{"cents":5}`, eventHeaders("ä b", "ce-plan", "pro max")...)
	for _, same := range [][]string{
		eventHeaders(`"ä b"`, "ce-plan", `"pro max"`), eventHeaders("%C3%A4%20b", "ce-plan", "pro%20max"),
		eventHeaders(`"\ä%20b"`, "ce-plan", "%70ro max"),
	} {
		require.Equal(t, receipt{1, "HITS", first.Sequence, true}, r.mustStore(`{"cents":5}`, same...), same)
	}
	retry := r.mustStore(`{"cents":5}`, eventHeaders("2", "ce-traceparent", "00-1-2-00")...)
	require.True(t, retry.Duplicate, "with another trace")
	r.mustRefuse(http.StatusUnprocessableEntity, `{"cents":5}`, eventHeaders("2", "ce-tenant", "b")...)
	batch := "[" + event("1") + "]" // a batch has no name by itself
	for _, repeated := range []bool{false, true} {
		require.False(t, r.mustStore(batch, "Content-Type", batchType).Duplicate)
		require.Equal(t, repeated, r.mustStore(batch, "Content-Type", batchType, keyHeader, "k").Duplicate, "a batch's key is not heeded")
	}
	require.False(t, r.mustStore(event("1"), "Content-Type", structuredType, keyHeader, "other").Duplicate, "the source and id count beside a key")
}

func TestEventsOfACallerHaveIDsOfTheirOwn(t *testing.T) {
	t.Parallel()
	r := newRigWithTokens(t)
	r.mustStore(event("1"), "Content-Type", structuredType, "Authorization", "Bearer all")
	require.Regexp(t, `^"all"cloudevent `, r.storedMessages()[0].Header.Get(nats.MsgIdHdr))
}

// zstd's frames are unpacked with any window, with and without the size of their content, and several in a
// row. What is larger than a body may be is refused as that, and what is held is what the body takes.
func TestUnpackedFramesOfZstd(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		maxBody := rapid.SampledFrom([]int{100, 64 << 10, 200_000, 1 << 20}).Draw(rt, "most")
		budget := web.NewBudget(1, 4<<20)
		reader, err := newBodyReader(int64(maxBody), budget)
		require.NoError(rt, err)
		window := zstd.WithWindowSize(1 << rapid.IntRange(10, 25).Draw(rt, "window"))
		var want, packed []byte
		for range rapid.IntRange(1, 3).Draw(rt, "frames") {
			size := rapid.OneOf(rapid.IntRange(0, 300), rapid.IntRange(maxBody-2, maxBody+2),
				rapid.IntRange(0, 3*maxBody)).Draw(rt, "bytes")
			noise := rapid.SliceOfN(rapid.Byte(), 1, 2000).Draw(rt, "noise")
			content := bytes.Repeat(noise, size/len(noise)+1)[:size]
			want = append(want, content...)
			var frame bytes.Buffer
			encoder, err := zstd.NewWriter(&frame, window, zstd.WithZeroFrames(true))
			require.NoError(rt, err)
			if rapid.Bool().Draw(rt, "whole") {
				packed = encoder.EncodeAll(content, packed)
				continue
			}
			_, err = encoder.Write(content)
			require.NoError(rt, err)
			if rapid.Bool().Draw(rt, "flush") {
				require.NoError(rt, encoder.Flush())
			}
			require.NoError(rt, encoder.Close())
			packed = append(packed, frame.Bytes()...)
		}
		held := budget.Hold()
		got, err := reader.unpack(zstdized, packed, &held)
		require.LessOrEqual(rt, budget.Bytes(), int64(cap(packed)+maxBody+beyond))
		if len(want) > maxBody {
			require.ErrorIs(rt, err, web.ErrLarge)
			return
		}
		require.NoError(rt, err)
		require.True(rt, bytes.Equal(want, got))
	})
}
