package page_test

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// mostShift is how much of a page may move without its reader: the sum of the browser's layout shifts.
const mostShift = 0.05

// A slow service does not let the page jump: heights are reserved, the chart has its axes before it has
// points, and what comes later stands behind what is there.
func TestFirstLoadStandsStill(t *testing.T) {
	s := start(t)
	s.publishOldHits()
	s.hit("a", "a", "b", "shop.cart", "shop.pay")
	s.publish("hits.x", `{"key":"a","unique":"u-1"}`)
	stack.EventuallyTotal(t, s.query.URL(), "a", "1h", 3)
	base, err := url.Parse(s.query.URL())
	require.NoError(t, err)
	for _, as := range []looks{desktop, phone} {
		for _, question := range []string{"", "?key=a", "?key=a&key=b"} {
			asked, answer, real := make(chan bool), make(chan bool), httputil.NewSingleHostReverseProxy(base)
			var once sync.Once
			slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.HasPrefix(r.URL.Path, "/v1/") && r.URL.Path != "/v1/about" {
					once.Do(func() { close(asked) })
					<-answer
				}
				real.ServeHTTP(w, r)
			}))
			t.Cleanup(func() {
				slow.CloseClientConnections() // the live ones never end
				slow.Close()
			})
			b := open(t, "about:blank", as)
			_, err := chromedp.Call(b.ctx, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: `
				window.testShifts = [];
				window.testNote = (list) => testShifts.push(...list.filter((one) => !one.hadRecentInput).map((one) => [one.value, ...one.sources.map(({ node, previousRect: p, currentRect: c }) => (node?.id || node?.className || node?.nodeName) + " " + [p.x, p.y, p.height, c.x, c.y, c.height].map(Math.round).join())]));
				window.testObserver = new PerformanceObserver((list) => testNote(list.getEntries()));
				testObserver.observe({ type: "layout-shift", buffered: true });`})
			b.must(err)
			b.must(chromedp.Do(b.ctx, chromedp.Navigate(slow.URL+"/"+question)))
			select {
			case <-asked:
			case <-t.Context().Done():
			}
			b.until("axes before there are points", `document.querySelector("#plot .drawing .axis") && document.querySelectorAll("#plot text").length > 2 && document.getElementById("chart").checkVisibility()`)
			close(answer)
			b.until("all of it", plotted+` && document.querySelector("#rows .sparkline") && /^\d/.test(document.querySelector("#sum-hits b").textContent) && /^\d/.test(document.querySelector("#sum-rate b").textContent)`)
			if strings.Contains(question, "key=a") {
				b.until("visitors", `document.querySelector("#rows .visitors").textContent !== ""`)
			}
			shift := eval[float64](b, `(testNote(testObserver.takeRecords()), testShifts.reduce((sum, [value]) => sum + value, 0))`)
			t.Logf("%dpx %s: %.3f", as.width, question, shift)
			if shift > mostShift {
				t.Errorf("%+v, %q: a shift of %.3f, at most %.2f is wanted: %s", as, question, shift, mostShift, eval[string](b, `testShifts.map((shift) => shift.join("; ")).join("\n")`))
			}
			b.clean(slow.URL)
		}
	}
}
