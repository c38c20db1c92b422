package collect

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
)

// Every form and packing stores what it says, and a worker counts it.
func TestForms(t *testing.T) {
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
		{`[{"key":"a"},{"key":"a","n":1099511627776,"ts":"2026-11-21T10:00:00Z","x":[]}]`, 2, 1 + hit.MaxN},
		{"{\"key\":\"a\"}\n\n{\"key\":\"a\",\"n\":2}\n{\"key\":\"a\",\"ts\":1763683200000}", 3, 4},
		{strings.Repeat("{\"key\":\"a\"}\n", 10_000), 10_000, 10_000},
	} {
		for _, kind := range []string{"", "application/json", "application/x-ndjson", "application/json; charset=UTF-8", "application/x-www-form-urlencoded", "text/plain;charset=utf-8", "application/vnd.x+json"} {
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
				got := r.stored(pack(t, packed, c.body), headers...)
				if got.Stored != c.hits || got.Stream != "HITS" || got.Sequence == 0 || got.Duplicate {
					t.Errorf("body %d, %v: %+v", i, headers, got)
				}
				want["a"] += c.n
			}
		}
	}
	if got := r.counts(); !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
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

// A request that cannot be stored whole is refused whole, and the answer says why.
func TestRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, "COLLECT_MAX_BODY=20000", "COLLECT_MAX_HITS=200")
	for _, c := range []struct {
		name, body string
		headers    []string
		status     int
		says       string
		items      []string
	}{
		{"empty", "", nil, 400, "it is empty", nil},
		{"blank", " \r\n\t", nil, 400, "it is empty", nil},
		{"no hit", "[]", nil, 400, "has no hit", nil},
		{"no JSON", "hello", nil, 400, "body is empty, a JSON object per line, or a JSON array", []string{"body[0]"}},
		{"no key", `{"n":3}`, nil, 400, "no key", []string{"body[0]"}},
		{"a bad item", `[{"key":"a"},{"key":"b","n":0},{"key":"c"},{"key":"","ts":1}]`, nil, 400, "n must be", []string{"body[1]", "body[3]"}},
		{"Unix seconds", `[{"key":"a"},{"key":"b","ts":1763683200}]`, nil, 400, "ts 1763683200 is 1970-01-21T09:54:43.2Z: no tier holds hits of before the year 2000; ts is Unix milliseconds: 2025-11-21T00:00:00Z is 1763683200000", []string{"body[1]"}},
		{"before any tier", `{"key":"a","ts":"1999-12-31T23:59:59.999Z"}`, nil, 400, "ts 946684799999 is 1999-12-31T23:59:59.999Z: no tier holds hits of before the year 2000; nothing", []string{"body[0]"}},
		{"a bad line", "{\"key\":\"a\"}\n{\"key\":\"b\",\"count\":2}\n", nil, 400, `use "n"`, []string{"body[1]"}},
		{"not closed", `[{"key":"a"}`, nil, 400, "not closed", []string{"body[0]"}},
		{"not UTF-8", "{\"key\":\"\xff\"}", nil, 400, "UTF-8", []string{"body[0]"}},
		{"too many", strings.Repeat("{\"key\":\"a\"}\n", 201), nil, 413, "COLLECT_MAX_HITS", nil},
		{"too large", strings.Repeat(" ", 20_001), nil, 413, "COLLECT_MAX_BODY", nil},
		{"too large unpacked", pack(t, "gzip", strings.Repeat(" ", 1<<20)), []string{"Content-Encoding", "gzip"}, 413, "COLLECT_MAX_BODY", nil},
		{"too large unpacked", pack(t, "zstd", strings.Repeat(" ", 1<<20)), []string{"Content-Encoding", "zstd"}, 413, "COLLECT_MAX_BODY", nil},
		{"not packed", `{"key":"a"}`, []string{"Content-Encoding", "gzip"}, 400, "not gzip", nil},
		{"not packed", `{"key":"a"}`, []string{"Content-Encoding", "zstd"}, 400, "not zstd", nil},
		{"cut", pack(t, "gzip", `{"key":"a"}`)[:20], []string{"Content-Encoding", "gzip"}, 400, "not gzip", nil},
		{"packed otherwise", "x", []string{"Content-Encoding", "br"}, 415, "gzip, zstd", nil},
		{"packed twice", "x", []string{"Content-Encoding", "gzip", "Content-Encoding", "gzip"}, 415, "gzip, zstd", nil},
		{"an image", "x", []string{"Content-Type", "image/png"}, 415, "application/x-ndjson", nil},
		{"no type", "x", []string{"Content-Type", ";"}, 415, "application/x-ndjson", nil},
		{"another character set", "x", []string{"Content-Type", "application/json; charset=latin1"}, 415, "UTF-8", nil},
		{"an empty idempotency key", `{"key":"a"}`, []string{"Idempotency-Key", ""}, 400, "visible ASCII", nil},
		{"a long idempotency key", `{"key":"a"}`, []string{"Idempotency-Key", strings.Repeat("k", 256)}, 400, "255", nil},
		{"two idempotency keys", `{"key":"a"}`, []string{"Idempotency-Key", "a", "Idempotency-Key", "b"}, 400, "one key", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp, answer := r.post(c.body, c.headers...)
			p := refused(t, resp, answer, c.status)
			if !strings.Contains(p.Detail, c.says) {
				t.Errorf("detail %q does not say %q", p.Detail, c.says)
			}
			var items []string
			for _, e := range p.Errors {
				items = append(items, e.Location)
				if e.Message == "" {
					t.Errorf("no message about %s", e.Location)
				}
			}
			if fmt.Sprint(items) != fmt.Sprint(c.items) {
				t.Errorf("errors name %v, want %v", items, c.items)
			}
		})
	}
	// Of many bad items, the first hundred are named.
	resp, answer := r.post("[" + strings.Repeat("{},", 150) + "{}]")
	p := refused(t, resp, answer, 400)
	if len(p.Errors) != maxErrors || p.Errors[99].Location != "body[99]" || !strings.Contains(p.Detail, "150 more items are bad") {
		t.Errorf("%d errors: %s", len(p.Errors), p.Detail)
	}
	if n := r.messages(); n != 0 {
		t.Errorf("%d messages are stored", n)
	}
}

// Requests that come together share messages; each is stored once.
func TestGroups(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	const clients, each = 64, 50
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for range each {
				r.stored(fmt.Sprintf(`{"key":"c%d"}`, c))
			}
		})
	}
	wg.Wait()
	counts := r.counts()
	for c := range clients {
		if got := counts[fmt.Sprintf("c%d", c)]; got != each {
			t.Errorf("client %d: %d hits, want %d", c, got, each)
		}
	}
	t.Logf("%d requests in %d messages", clients*each, r.messages())
	if n := r.messages(); n > clients*each/2 {
		t.Errorf("%d requests in %d messages", clients*each, n)
	}
}

// A request with an Idempotency-Key counts once, however often it is sent.
func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	first := r.stored(`{"key":"a","n":2}`, keyHeader, "k-1")
	for _, again := range []string{"k-1", `"k-1"`} {
		got := r.stored(` [{"n":2, "key":"a"}]`, keyHeader, again)
		if got != (receipt{1, "HITS", first.Sequence, true}) || first.Duplicate {
			t.Errorf("first %+v, then %+v", first, got)
		}
	}
	resp, answer := r.post(`{"key":"a","n":3}`, keyHeader, "k-1")
	if p := refused(t, resp, answer, http.StatusUnprocessableEntity); !strings.Contains(p.Detail, "used for other hits") {
		t.Error(p.Detail)
	}
	if got := r.stored(`{"key":"a"}`, keyHeader, `"a\"\\b"`); got.Duplicate {
		t.Errorf("%+v", got)
	}
	m, err := r.stream.GetMsg(t.Context(), 2)
	if err != nil || m.Header.Get("Nats-Msg-Id") != `a"\b` {
		t.Errorf("%v, %v", m, err)
	}
	if got := r.counts()["a"]; got != 3 {
		t.Errorf("counted %d", got)
	}
	// If the first message is gone, its hits were stored all the same.
	require.NoError(t, r.stream.Purge(t.Context()))
	if got := r.stored(`{"key":"a","n":2}`, keyHeader, "k-1"); !got.Duplicate || got.Sequence != first.Sequence {
		t.Errorf("%+v", got)
	}
}

// Many requests with one key at the same time are stored once.
func TestIdempotencyKeyTogether(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	var wg sync.WaitGroup
	var mu sync.Mutex
	fresh := 0
	for range 32 {
		wg.Go(func() {
			if got := r.stored(`{"key":"a"}`, keyHeader, "together"); !got.Duplicate {
				mu.Lock()
				fresh++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if n := r.counts()["a"]; fresh != 1 || n != 1 {
		t.Errorf("%d requests were told that they are the first; counted %d", fresh, n)
	}
}

// The keys of two callers never meet.
func TestMessageIDs(t *testing.T) {
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

// What is larger than one message may be is refused with the bound's name.
func TestLargerThanAMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *jetstream.StreamConfig) { c.MaxMsgSize = 4096 })
	resp, answer := r.post(strings.Repeat("{\"key\":\"a\"}\n", 400))
	if p := refused(t, resp, answer, http.StatusRequestEntityTooLarge); !strings.Contains(p.Detail, "max_msg_size") {
		t.Error(p.Detail)
	}
	// The stream takes less than it did when the service looked.
	config := r.stream.CachedInfo().Config
	config.MaxMsgSize = headerRoom + 76 // room for a small request, even if the service looks again
	if _, err := r.js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	resp, answer = r.post(strings.Repeat("{\"key\":\"a\"}\n", 100))
	refused(t, resp, answer, http.StatusRequestEntityTooLarge)
	r.stored(`{"key":"small"}`)
	if got := r.counts(); got["a"] != 0 || got["small"] != 1 {
		t.Errorf("%v", got)
	}
}
