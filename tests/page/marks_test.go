package page_test

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"tallyroll/internal/window"
	"tallyroll/tests/stack"
)

// mark has the namespace keep marks.
func (s *system) mark(marks ...window.Mark) {
	s.t.Helper()
	for _, m := range marks {
		if err := window.NewStore(s.redis.Client(), "tallyroll").PutMark(s.t.Context(), m); err != nil {
			s.t.Fatal(err)
		}
	}
}

func minutesAgo(n int64) int64 { return time.Now().UnixMilli() - n*60_000 }

// contrasts are those of the marks' lines and flags against the chart's ground (WCAG 2.2, 1.4.11).
const contrasts = `(() => {
	const light = (color) => color.match(/[\d.]+/g).slice(0, 3).map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)).reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
	const ground = light(getComputedStyle(document.getElementById("chart")).backgroundColor);
	return [...document.querySelectorAll("#plot .mark")].map((mark) => light(getComputedStyle(mark).stroke)).map((mark) => (Math.max(mark, ground) + 0.05) / (Math.min(mark, ground) + 0.05));
})()`

// What happened to the counts stands in the chart as a line, and as a band if it took a while, and below it as a list. A
// pointer, the keyboard and a screen reader get the sentence, whatever the screen.
func TestMarksInTheChart(t *testing.T) {
	s := start(t)
	s.hit("a")
	s.mark(window.Mark{At: minutesAgo(40), Until: minutesAgo(30), Kind: window.MarkLate, Stream: "HITS", Detail: "counting was more than a minute behind, and has caught up"},
		window.Mark{At: minutesAgo(15), Kind: window.MarkLoss, Stream: "HITS", Detail: "messages <b>were</b> discarded"},
		window.Mark{At: minutesAgo(90), Kind: window.MarkTiers, Detail: "before the range"})
	r := s.retell(t, even)
	for _, as := range []looks{desktop, phone, {390, 844, "dark"}, {1440, 900, "dark"}} {
		b := open(t, r.URL+"/?key=a&range=1h&compare=0", as)
		b.until("two marks", `document.querySelectorAll("#plot .mark").length === 2 && document.querySelectorAll("#plot .during").length === 1 && document.querySelectorAll("#marks button").length === 2`)
		b.until("their names", `/^\d\d:\d\d Counted late,\d\d:\d\d Hits missing$/.test([...document.querySelectorAll("#marks button")].map((button) => button.textContent).join())`)
		const places = `((grid) => [...document.querySelectorAll("#plot .mark, #plot .during")].map((node) => ((r) => [r.left + r.width / 2 * (node.matches(".mark") ? 1 : 0), r.width])(node.getBoundingClientRect())).flatMap(([left, width]) => [(left - grid.left) / grid.width, width / grid.width]))(document.querySelector("#plot .grid").getBoundingClientRect())`
		at := eval[[]float64](b, places) // of the band, and then of the two lines, each with its width
		if !near(at[0], 20./60) || !near(at[1], 10./60) || !near(at[2], 20./60) || !near(at[4], 45./60) {
			t.Errorf("%+v: marks at %.2f", as, at)
		}
		for i, ratio := range eval[[]float64](b, contrasts) {
			if ratio < 3 {
				t.Errorf("%+v: mark %d has a contrast of %.2f", as, i, ratio)
			}
		}

		b.mouse(moved, "#plot .grid", 36./60, 0)
		b.until("nothing of a step beside", `!document.getElementById("reading").hidden && !document.querySelector("#reading .marked")`)
		b.mouse(moved, "#plot .grid", 25./60, 0)
		b.until("the sentence in the band", `/^\d\d:\d\d to \d\d:\d\d, HITS: Counting was more than a minute behind, and has caught up\.$/.test(document.querySelector("#reading .marked")?.textContent)`)
		b.mouse(moved, "#main", 0.001, 0)

		eval[bool](b, `(document.getElementById("plot").focus(), true)`)
		b.press(kb.Tab)
		b.until("the first mark to have the focus", `document.activeElement === document.querySelector("#marks button") && /^\d\d:\d\d to \d\d:\d\d, HITS: Counting was /.test(document.activeElement.getAttribute("aria-label")) && /Counting was /.test(document.querySelector("#reading .marked")?.textContent)`)
		b.press(kb.Tab)
		b.until("the second", `document.activeElement === document.querySelectorAll("#marks button")[1] && document.querySelector("#reading .marked")?.textContent.endsWith("HITS: Messages <b>were</b> discarded.")`)
		b.until("the slider to tell it", `document.getElementById("plot").getAttribute("aria-valuetext").endsWith("HITS: Messages <b>were</b> discarded.")`)
		b.legible(as)
		if out := eval[int](b, `[...document.querySelectorAll("#reading, #marks button")].filter((node) => ((r, box) => r.left < box.left - 1 || r.right > box.right + 1)(node.getBoundingClientRect(), document.getElementById("chart").getBoundingClientRect())).length`); out > 0 {
			t.Errorf("%+v: %d nodes leave the chart", as, out)
		}
		b.press(kb.Tab)
		b.until("the reading to end", `document.getElementById("reading").hidden`)
		b.clean(r.URL)
	}
}

func near(got, want float64) bool { return got > want-0.03 && got < want+0.03 }

// Marks are asked for once per range, and no more of them are drawn than can be told apart. Without an answer there are
// none, and the chart is as it was.
func TestMarksAreAskedForOncePerRange(t *testing.T) {
	s := start(t)
	s.hit("a", "b")
	for i := range int64(25) {
		s.mark(window.Mark{At: minutesAgo(50 - i), Kind: window.MarkRules, Stream: "HITS", Detail: fmt.Sprint("version ", i)})
	}
	stack.EventuallyTotal(t, s.query.URL(), "b", "1h", 1)
	b := open(t, s.query.URL()+"/?key=a&range=1h&compare=0", desktop)
	b.until("as many as there is room for", `document.querySelectorAll("#plot .mark").length === 20 && /the last 20 marks are shown/.test(document.getElementById("chart-note").textContent)`)
	b.click(`#rows tr[data-key="b"]`)
	b.until("two lines", `document.querySelectorAll("#legend li").length === 2`)
	eval[bool](b, `(document.querySelector('#scales input[value="apart"]').click(), true)`)
	b.until("marks in both charts", `document.querySelectorAll("#plot .mark").length === 40`)
	const asked = `performance.getEntriesByType("resource").filter(({ name }) => name.includes("/v1/marks")).length`
	if n := eval[int](b, asked); n != 1 {
		t.Errorf("asked %d times", n)
	}
	b.click(`#range input[value="24h"]`)
	b.until("the other range to be asked about", asked+` === 2 && document.querySelectorAll("#plot .mark").length === 40`)
	b.clean(s.query.URL())

	if err := s.redis.Client().Del(t.Context(), "tallyroll:marks").Err(); err != nil {
		t.Fatal(err)
	}
	if err := s.redis.Client().Set(t.Context(), "tallyroll:marks", "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
	b = open(t, s.query.URL()+"/?key=a&range=1h&compare=0", desktop)
	b.until("a chart without marks", plotted+` && `+asked+` === 1 && document.querySelectorAll("#plot .mark").length === 0`)
	if eval[bool](b, `!document.getElementById("notice").hidden || document.getElementById("marks").checkVisibility()`) {
		t.Error("a failure to read marks is shown")
	}
}

// Where a tier holds years, the chart offers months and years of the calendar, and asks for those of the reader's zone.
func TestStepsOfYears(t *testing.T) {
	s := startWithTiers(t, "1m/1d,1d/5y")
	s.hit("a")
	stack.EventuallyTotal(t, s.query.URL(), "a", "1h", 1)
	from := time.Now().Add(-1790 * 24 * time.Hour).UTC().Format(time.RFC3339)
	b := open(t, s.query.URL()+"/?key=a&range=custom&compare=0&from="+from, desktop)
	b.until("months and years", `[...document.getElementById("step").options].map((o) => o.textContent).join() === "1 day,1 week,1 month,1 year" && document.getElementById("step").value === "1mo"`)
	eval[bool](b, `((step) => { step.value = "1y"; step.dispatchEvent(new Event("change")); return true; })(document.getElementById("step"))`)
	b.until("years", `document.getElementById("plot").dataset.step === "1y" && Number(document.getElementById("plot").dataset.points) >= 1 && new URLSearchParams(location.search).get("step") === "1y"`)
	asked := eval[string](b, `performance.getEntriesByType("resource").map(({ name }) => name).filter((name) => name.includes("/v1/series") && name.includes("step=1y")).at(-1)`)
	zone := eval[string](b, `Intl.DateTimeFormat().resolvedOptions().timeZone`)
	if u, err := url.Parse(asked); err != nil || u.Query().Get("tz") != zone {
		t.Errorf("asked %s, want the years of %s", asked, zone)
	}
	b.clean(s.query.URL())
}
