// Package page_test looks at the page at / in a real browser, as people do, with real servers behind it.
package page_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

func TestMain(m *testing.M) { stack.Main(m, closeBrowser) }

// system is the whole of Tallyroll on its own servers.
type system struct {
	t      *testing.T
	redis  *stack.RedisServer
	nats   *stack.NATSProc
	ingest *stack.Service
	query  *stack.Service
	js     jetstream.JetStream
}

// start skips the test where there is no browser. make test-machine says so at its end.
func start(t *testing.T, queryEnv ...string) *system {
	t.Helper()
	return startIngest(t, nil, queryEnv...)
}

// startWithTiers is start with a namespace of other tiers than the default.
func startWithTiers(t *testing.T, tiers string, queryEnv ...string) *system {
	t.Helper()
	return startIngest(t, []string{"TIERS=" + tiers}, queryEnv...)
}

// startIngest is start with settings of ingest.
func startIngest(t *testing.T, ingestEnv []string, queryEnv ...string) *system {
	t.Helper()
	chromium(t)
	t.Parallel()
	s := &system{t: t, redis: stack.Redis(t), nats: stack.NATSProcess(t)}
	s.ingest = stack.Ingest(t, s.nats, s.redis, ingestEnv...)
	s.query = stack.Query(t, s.redis, append([]string{"NATS_URL=" + s.nats.URL()}, queryEnv...)...)
	s.js = s.nats.JetStream()
	return s
}

// sideBySide runs tests on the same system, none of which changes what another one sees.
func (s *system) sideBySide(tests map[string]func(*testing.T, *system)) {
	for name, test := range tests {
		s.t.Run(name, func(t *testing.T) {
			t.Parallel()
			own := *s
			own.t = t
			test(t, &own)
		})
	}
}

// hit publishes one hit of each counter and waits until the stream has stored it.
func (s *system) hit(counters ...string) {
	s.t.Helper()
	for _, counter := range counters {
		s.publish("hits."+counter, "")
	}
}

// chromium is the path of the browser.
func chromium(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"} {
		path, err := exec.LookPath(name)
		if err == nil {
			return path
		}
	}
	t.Skip("SKIPPED for want of Chromium: make chromium installs it")
	return ""
}

// chrome is one Chromium for all tests. It finds this machine when it looks for evil.example.
var chrome struct {
	once  sync.Once
	ctx   context.Context
	err   error
	close func()
}

func startBrowser(t *testing.T) context.Context {
	t.Helper()
	path := chromium(t)
	chrome.once.Do(func() {
		options := []chromedp.ExecAllocatorOption{chromedp.ExecPath(path), chromedp.Flag("host-resolver-rules", "MAP evil.example 127.0.0.1")}
		if os.Getuid() == 0 {
			options = append(options, chromedp.NoSandbox) // Chromium refuses to run as root otherwise
		}
		chrome.ctx, chrome.close = chromedp.NewContext(context.Background(), chromedp.WithAllocatorOptions(options...))
		chrome.err = chromedp.Do(chrome.ctx)
	})
	require.NoError(t, chrome.err)
	return chrome.ctx
}

// closeBrowser waits until the browser is gone.
func closeBrowser() {
	if chrome.ctx != nil {
		_ = chromedp.Cancel(chrome.ctx)
		chrome.close()
	}
}

// tab is a page with a profile of its own in the browser. It remembers what went wrong and what was asked
// for.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu       sync.Mutex
	errors   []string
	requests []string
	asked    map[network.RequestID]string // the address of each request
	bytes    map[string]int64             // by address, as they came over the wire, with headers
	statuses map[network.RequestID]int64
}

// looks is how a tab looks to the page.
type looks struct {
	width, height int64
	scheme        string // light or dark
}

var desktop, phone = looks{1280, 860, "light"}, looks{390, 844, "light"}

func open(t *testing.T, address string, as looks) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(startBrowser(t), chromedp.WithNewBrowserContext())
	b := &tab{t: t, ctx: ctx, asked: make(map[network.RequestID]string), bytes: make(map[string]int64), statuses: make(map[network.RequestID]int64)}
	t.Cleanup(func() {
		_ = chromedp.Cancel(ctx)
		cancel()
	})
	b.must(chromedp.Listen(ctx, b.hear))
	_, err := chromedp.Call(ctx, network.Enable, network.EnableParams{})
	b.must(err)
	_, err = chromedp.Call(ctx, log.Enable, cdp.Empty{})
	b.must(err)
	_, err = chromedp.Call(ctx, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true}) // although other tabs are open
	b.must(err)
	_, err = chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: as.scheme}},
	})
	b.must(err)
	b.must(chromedp.Do(ctx, chromedp.EmulateViewport(as.width, as.height), chromedp.Navigate(address)))
	return b
}

func (b *tab) must(err error) {
	b.t.Helper()
	require.NoError(b.t, err)
}

// hear runs while the browser's messages are read, so it only takes notes.
func (b *tab) hear(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
		b.asked[e.RequestID] = e.Request.URL
	case *network.EventResponseReceivedExtraInfo: // unlike EventResponseReceived, of answers that are kept from the page, too
		b.statuses[e.RequestID] = int64(e.StatusCode)
	case *network.EventLoadingFinished:
		b.bytes[b.asked[e.RequestID]] += int64(e.EncodedDataLength)
	case *runtime.EventExceptionThrown:
		b.errors = append(b.errors, fmt.Sprintf("exception: %s %+v", e.ExceptionDetails.Text, e.ExceptionDetails.Exception))
	case *runtime.EventConsoleAPICalled:
		b.errors = append(b.errors, fmt.Sprintf("console.%s", e.Type))
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			b.errors = append(b.errors, fmt.Sprintf("%s: %s (%s)", e.Entry.Source, e.Entry.Text, e.Entry.URL))
		}
	}
}

// clean fails the test if the page has written to the console, other than what allowed names, or has asked
// another server than the service.
func (b *tab) clean(base string, allowed ...string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	allowed = append(allowed, "net::ERR_NETWORK_CHANGED") // on the machine; what the page did about it is seen elsewhere
	for _, text := range b.errors {
		if !slices.ContainsFunc(allowed, func(part string) bool { return strings.Contains(text, part) }) {
			b.t.Errorf("the console has: %s", text)
		}
	}
	for _, url := range b.requests {
		if !strings.HasPrefix(url, base+"/") && !strings.HasPrefix(url, "data:") { // data: is the browser's own, of fields for a time
			b.t.Errorf("the page has asked for %s", url)
		}
	}
	if len(b.requests) < 10 {
		b.t.Errorf("only %d requests were seen", len(b.requests))
	}
}

// statusOf is what a request for an address, without its query string, was answered with; 0 if it has no
// answer.
func (b *tab) statusOf(address string) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, url := range b.asked {
		path, _, _ := strings.Cut(url, "?")
		if path == address {
			return b.statuses[id]
		}
	}
	return 0
}

// asks is how many requests have had a part in their address.
func (b *tab) asks(part string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, url := range b.requests {
		if strings.Contains(url, part) {
			n++
		}
	}
	return n
}

// eval is what an expression is worth in the page.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	out, err := chromedp.Run(b.ctx, chromedp.Evaluate[T](expression))
	require.NoErrorf(b.t, err, "%s", expression)
	return out
}

// until waits for a condition in the page.
func (b *tab) until(what, condition string) {
	b.t.Helper()
	stack.Eventually(b.t, what, func() (bool, string) {
		ok, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool]("!!("+condition+")"))
		if err != nil || !ok {
			text, _ := chromedp.Run(b.ctx, chromedp.Evaluate[string]("document.body.innerText"))
			return false, fmt.Sprintf("%s is false, %v, in:\n%s", condition, err, text)
		}
		return true, ""
	})
}

// press sends keys to whatever has the focus.
func (b *tab) press(keys ...string) {
	b.t.Helper()
	for _, key := range keys {
		b.must(chromedp.Do(b.ctx, chromedp.KeyEvent(key)))
	}
}

// hits is the expression for the text of a counter's total.
func hits(counter string) string { return cell(counter, ".value") }

// cell is the expression for a text in the row of a counter.
func cell(counter, part string) string {
	return fmt.Sprintf(`document.querySelector('#rows tr[data-key="%s"] %s')?.textContent`, counter, part)
}

// listed is the expression for the names in the table, from top to bottom, and on is that for the lines of
// the chart.
const (
	listed = `[...document.querySelectorAll("#rows .name bdi")].map((name) => name.textContent).join()`
	on     = `[...document.querySelectorAll("#rows tr[aria-selected=true]")].map((row) => row.dataset.key ?? row.dataset.prefix + "*").join()`
)

// middle is the expression for the place of a part of the page, which it scrolls into view.
func middle(selector string) string {
	return fmt.Sprintf(`((node) => {
		node.scrollIntoView({ block: "center" });
		const box = node.getBoundingClientRect();
		return [box.left + box.width / 2, box.top + box.height / 2];
	})(document.querySelector(%q))`, selector)
}

// point moves the pointer onto a part of the page, and click clicks there. Both wait until the part has been
// at the same place for ten looks: what comes above it, such as a chart, moves it away from under the
// pointer.
func (b *tab) point(selector string) (x, y float64) {
	b.t.Helper()
	b.until(selector, fmt.Sprintf("document.querySelector(%q)", selector))
	b.until(selector+" to stand still", fmt.Sprintf(`((at) => {
		const still = window.testPlace?.at === at ? window.testPlace.still + 1 : 0;
		window.testPlace = { at, still };
		return still >= 10;
	})(%q + %s)`, selector, middle(selector)))
	at := eval[[]float64](b, middle(selector))
	_, err := chromedp.Call(b.ctx, input.DispatchMouseEvent, input.DispatchMouseEventParams{Type: input.DispatchMouseEventTypeMouseMoved, X: at[0], Y: at[1]})
	b.must(err)
	return at[0], at[1]
}

// choose takes a range of time. A phone has a list of them in place of the buttons.
func (b *tab) choose(span string) {
	b.t.Helper()
	eval[bool](b, fmt.Sprintf(`((list) => (list.value = %q, list.dispatchEvent(new Event("change"))))(document.getElementById("range-select"))`, span))
}

func (b *tab) click(selector string) {
	b.t.Helper()
	x, y := b.point(selector)
	for _, kind := range []input.DispatchMouseEventType{input.DispatchMouseEventTypeMousePressed, input.DispatchMouseEventTypeMouseReleased} {
		_, err := chromedp.Call(b.ctx, input.DispatchMouseEvent, input.DispatchMouseEventParams{Type: kind, X: x, Y: y, Button: input.MouseButtonLeft, ClickCount: 1})
		b.must(err)
	}
}

// tabTo presses Tab until the focus is there.
func (b *tab) tabTo(selector string) {
	b.t.Helper()
	for range 60 {
		if eval[bool](b, fmt.Sprintf("document.activeElement.matches(%q)", selector)) {
			return
		}
		b.press(kb.Tab)
	}
	b.t.Fatalf("no way to %s by Tab", selector)
}

// publishOldHits makes counting begin long ago, as far as the readers can see.
func (s *system) publishOldHits() {
	s.t.Helper()
	err := s.redis.Client().HSet(s.t.Context(), "tallyroll:streams", ".began", time.Now().Add(-400*24*time.Hour).UnixMilli()).Err()
	require.NoError(s.t, err)
}

// some is a number of hits of a counter, some time ago.
type some struct {
	Key string `json:"key"`
	N   int64  `json:"n"`
	TS  int64  `json:"ts,omitempty"`
}

func ago(key string, n int64, back time.Duration) some {
	return some{key, n, time.Now().Add(-back).UnixMilli()}
}

// publishAll publishes them in one message.
func (s *system) publishAll(hits ...some) {
	s.t.Helper()
	body, err := json.Marshal(hits)
	require.NoError(s.t, err)
	s.publish("hits.x", string(body))
}

// publish publishes a body as it is.
func (s *system) publish(subject, body string) {
	s.t.Helper()
	_, err := s.js.Publish(s.t.Context(), subject, []byte(body))
	require.NoError(s.t, err, "publish to %s", subject)
}
