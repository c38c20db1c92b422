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
	"tallyroll/tests/cases"
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
				for h := binary("1"); len(h) > 0; h = h[2:] {
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
		p := refused(t, resp, answer, resp.StatusCode)
		out := fmt.Sprintf("%d %s", p.Status, p.Detail)
		for _, e := range p.Errors {
			out += "\n" + e.Location + ": " + e.Message
		}
		return out
	})
	// Of many bad items, the first hundred are named.
	resp, answer := r.post("[" + strings.Repeat("{},", 150) + "{}]")
	p := refused(t, resp, answer, 400)
	require.Len(t, p.Errors, maxErrors)
	require.Equal(t, "body[99]", p.Errors[99].Location)
	require.Contains(t, p.Detail, "150 more items are bad")
	require.Zero(t, r.messages())
}

// Requests that come together share messages; each is stored once.
func TestGroups(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	const clients, each = 64, 10
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
	require.Contains(t, r.refuses(http.StatusUnprocessableEntity, `{"key":"a","n":3}`, keyHeader, "k-1").Detail, "used for other hits")
	if got := r.stored(`{"key":"a"}`, keyHeader, `"a\"\\b"`); got.Duplicate {
		t.Errorf("%+v", got)
	}
	m, err := r.stream.GetMsg(t.Context(), 2)
	if err != nil || m.Header.Get("Nats-Msg-Id") != `a"\b` {
		t.Errorf("%v, %v", m, err)
	}
	require.EqualValues(t, 3, r.counts()["a"])
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
	require.Contains(t, r.refuses(http.StatusRequestEntityTooLarge, strings.Repeat("{\"key\":\"a\"}\n", 400)).Detail, "max_msg_size")
	// The stream takes less than it did when the service looked.
	config := r.stream.CachedInfo().Config
	config.MaxMsgSize = headerRoom + 76 // room for a small request, even if the service looks again
	if _, err := r.js.UpdateStream(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	r.refuses(http.StatusRequestEntityTooLarge, strings.Repeat("{\"key\":\"a\"}\n", 100))
	r.stored(`{"key":"small"}`)
	if got := r.counts(); got["a"] != 0 || got["small"] != 1 {
		t.Errorf("%v", got)
	}
}
