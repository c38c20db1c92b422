package page_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"tallyroll/tests/stack"
)

// visit publishes hits that say who came, spread over some hours, each visitor twice.
func (s *system) visit(key string, visitors int, over time.Duration) {
	s.t.Helper()
	now := time.Now()
	for from := 0; from < visitors; from += 200 {
		var body strings.Builder
		for i := from; i < min(from+200, visitors); i++ {
			at := now.Add(-over * time.Duration(i) / time.Duration(visitors)).UnixMilli()
			fmt.Fprintf(&body, `{"key":%q,"unique":"u-%d","ts":%d}`+"\n"+`{"key":%[1]q,"unique":"u-%[2]d","ts":%[3]d}`+"\n", key, i, at)
		}
		s.publish("hits.x", body.String())
	}
	stack.EventuallyTotal(s.t, s.query.URL(), key, "24h", int64(2*visitors))
}

// uniquesShown evaluates to the counters that the page shows with a number of unique values, each with the
// words.
const uniquesShown = `[...document.querySelectorAll("#legend li")].filter((item) => /visitors$/.test(item.innerText)).map((item) => item.innerText.replace(/\s+/g, " ").trim()).join("; ")`

// With a counter's hits, the page shows how many unique values it had in the range, as far as that is known.
// The chart shows these in place of the hits, at the click of a button, for the keyboard, and by the address.
func TestUniquesWithHits(t *testing.T) {
	s := start(t)
	s.publishOldHits()
	s.visit("visitors", 3000, 5*time.Hour)
	s.visit("few", 3, 10*time.Minute)
	s.hit("plain")
	b := open(t, s.query.URL()+"/?key=visitors&key=few&key=plain&range=24h&compare=0", desktop)
	b.until("the unique values", `/^visitors (2\.[89]\d|3\.[01]\d|3) ?K? ± [12] % visitors; few 3 visitors$/.test((`+uniquesShown+`).replaceAll("\u202f", " ").replace(/visitors (\d),(\d)(\d)\d/, "visitors $1.$2$3 K"))`)
	if title := eval[string](b, `document.querySelector("#legend button").title`); !strings.Contains(title, "unique in the last 24 hours, between ") || !strings.Contains(title, "with a confidence of 95") {
		t.Errorf("the title is %q", title)
	}
	if eval[bool](b, `document.getElementById("of").hidden`) {
		t.Error("no way to see them in the chart")
	}
	b.click(`#of input[value="uniques"]`)
	b.until("the chart of them", plotted+` && document.getElementById("chart-title").textContent === "Unique values over time" && /of=uniques/.test(location.search) && document.getElementById("plot").dataset.step === "1h"`)
	b.until("what they are not", `/cannot be added up/.test(document.getElementById("chart-note").textContent)`)
	b.tabTo("#plot")
	b.press(kb.ArrowLeft, kb.ArrowLeft)
	b.until("an hour that has ended", `/visitors [\d,]+ \([\d,]+ – [\d,]+\)/.test(document.getElementById("plot").getAttribute("aria-valuetext"))`)
	eval[bool](b, `(history.back(), true)`)
	b.until("the hits again", `document.getElementById("chart-title").textContent === "Hits over time" && document.querySelector("#of input:checked").value === "hits"`)

	// Sums over names have no unique values, and a counter without some says nothing.
	b.must(chromedp.Do(b.ctx, chromedp.Navigate(s.query.URL()+"/?prefix=v&range=24h&of=uniques")))
	b.until("why there is no line", `/Sums over names are not shown/.test(document.getElementById("chart-note").textContent) && !document.getElementById("of").hidden`)
	b.must(chromedp.Do(b.ctx, chromedp.Navigate(s.query.URL()+"/?key=plain&range=24h")))
	b.until("the chart of hits", plotted)
	b.until("nothing of uniques", `document.getElementById("of").hidden && (`+uniquesShown+`) === ""`)
	b.clean(s.query.URL())

	b = open(t, s.query.URL()+"/?key=visitors&range=1h", phone)
	b.until("how many on a phone", `/^\d+$/.test(document.querySelector("#sum-visitors b").textContent)`)
	b.tabTo("#of input")
	b.press(kb.ArrowRight)
	b.until("the chart of them", plotted+` && document.getElementById("chart-title").textContent === "Unique values over time" && document.getElementById("plot").dataset.step === "5m"`)
	b.requireNarrow(phone)
	b.clean(s.query.URL())
}
